"""Batches: launches next to each other that do not depend on each other run as one piece of work.

An optimizer does the same to many tensors, most of them too small to pay for waking the threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_eager.fusion import Group, HostStep
from adaptive_eager.strips import Strip
from adaptive_eager.trace import Trace

#: Most launches of one batch: their arguments are all in memory at once.
MAX_BATCH = 128


def touched(trace: Trace, group: Group) -> tuple[set[int], set[int]]:
    """Slots that a group reads, and those that it writes."""
    nodes = group.nodes()
    reads = {trace.geometries[o.geometry].slot for n in nodes for o in n.inputs}
    writes = {trace.geometries[o.geometry].slot for n in nodes for o in n.outputs}
    return reads, writes


def batch_sizes(trace: Trace, steps: Sequence[HostStep | Strip]) -> list[int]:
    """For each step, how many steps from it on run together; 1 for those that are part of an earlier one's batch.

    Strips of several kernels share threads already, and run by themselves.
    """
    sizes = [1] * len(steps)
    first = 0
    all_reads: set[int] = set()
    all_writes: set[int] = set()
    for i, step in enumerate(steps):
        if isinstance(step, HostStep) or len(step.groups) > 1:
            first, all_reads, all_writes = i + 1, set(), set()
            continue
        reads, writes = touched(trace, step.groups[0])
        if writes & (all_reads | all_writes) or reads & all_writes or i - first >= MAX_BATCH:
            first, all_reads, all_writes = i, set(), set()
        all_reads |= reads
        all_writes |= writes
        sizes[first] = i - first + 1
    return sizes
