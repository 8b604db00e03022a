"""Dataflow of a trace: which value each node reads, which writes anybody can still see, which nodes are dead.

A *version* is one write of one geometry: (node, output). Values are forwarded from a version to a reader only when the
reader looks at exactly the geometry that was written last; any other read goes through memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from adaptive_eager.trace import Trace


@dataclass
class Version:
    """The write of output `output` of node `node`."""

    node: int
    output: int
    slot: int
    geometry: int
    readers: list[int] = field(default_factory=list)  # nodes that read exactly this version
    read_through_memory: bool = False  # some node reads the slot in another geometry
    overwritten: bool = False  # a later node writes the same geometry

    def visible(self, trace: Trace) -> bool:
        """Whether somebody outside the window can see it."""
        return trace.live[self.slot] and not self.overwritten

    def in_memory(self, trace: Trace) -> bool:
        """Whether it is stored whatever kernels read it: somebody sees it outside, or in another geometry."""
        return self.read_through_memory or self.visible(trace)


@dataclass
class Dataflow:
    """versions    by (node, output)
    sources     by (node, input): the version read, or None for memory from before the window or another geometry
    needed      per node: whether its results matter
    apart       per node: the nodes whose writes to the same storage it is known not to overlap
    """

    versions: dict[tuple[int, int], Version]
    sources: dict[tuple[int, int], Version | None]
    needed: list[bool]
    apart: list[frozenset[int]]


def analyse(trace: Trace) -> Dataflow:
    """Dataflow of a trace."""
    versions: dict[tuple[int, int], Version] = {}
    sources: dict[tuple[int, int], Version | None] = {}
    writes: dict[int, list[Version]] = {}  # by slot, in order
    apart: list[frozenset[int]] = []
    for node in trace.nodes:
        for k, operand in enumerate(node.inputs):
            slot = trace.geometries[operand.geometry].slot
            earlier = writes.get(slot, [])
            source = earlier[-1] if earlier and earlier[-1].geometry == operand.geometry else None
            sources[node.index, k] = source
            if source is not None:
                source.readers.append(node.index)
            else:
                for version in earlier:
                    version.read_through_memory |= not version.overwritten
        same_storage = writes.get(trace.geometries[node.outputs[0].geometry].slot, []) if node.part else []
        apart.append(frozenset(v.node for v in same_storage[-node.part :]))
        for k, operand in enumerate(node.outputs):
            slot = trace.geometries[operand.geometry].slot
            for version in writes.get(slot, []):
                if version.geometry == operand.geometry:
                    version.overwritten = True
            version = Version(node.index, k, slot, operand.geometry)
            versions[node.index, k] = version
            writes.setdefault(slot, []).append(version)
    return Dataflow(versions, sources, _needed(trace, versions), apart)


def _needed(trace: Trace, versions: dict[tuple[int, int], Version]) -> list[bool]:
    needed = [False] * len(trace.nodes)
    wanted: dict[int, set[int]] = {}  # slot -> geometries that a needed node reads later
    for node in reversed(trace.nodes):
        wants = any(
            wanted.get(v.slot) or v.visible(trace) for v in (versions[node.index, k] for k in range(len(node.outputs)))
        )
        if not wants:
            continue
        needed[node.index] = True
        for operand in node.outputs:
            # This write satisfies the reads of exactly its geometry; reads of others may see older bytes too.
            wanted.get(trace.geometries[operand.geometry].slot, set()).discard(operand.geometry)
        for operand in node.inputs:
            wanted.setdefault(trace.geometries[operand.geometry].slot, set()).add(operand.geometry)
    return needed
