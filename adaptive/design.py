"""Design: how a trace runs, before its kernels are there. All stages of planning, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from adaptive_eager.assemble import LaunchRecipe, assemble
from adaptive_eager.batches import batch_sizes
from adaptive_eager.dataflow import analyse
from adaptive_eager.expansion import expand
from adaptive_eager.fusion import Fuser, HostStep
from adaptive_eager.merging import merge_groups
from adaptive_eager.rematerialisation import loaded_versions, rematerialise
from adaptive_eager.strips import strips
from adaptive_eager.trace import Trace

#: A step as the extension takes it: the number of a host node, or a strip: its launches, and which accesses are to
#: scratch, as (launch, access, number of the scratch).
Step = int | dict[str, Any]
#: A plan as the extension takes it (native/torch/planner_bridge.cpp: parse_plan).
Plan = dict[str, Any]


class Strip(NamedTuple):
    """Launches without their kernels, and which accesses are to scratch."""

    recipes: list[LaunchRecipe]
    scratch: list[list[int]]
    batch: int  # steps from this one on that run together


class Design(NamedTuple):
    """A plan without its kernels. A step is the number of a host node, or a strip."""

    temporaries: list[list[int | str]]
    steps: list[int | Strip]

    def recipes(self) -> list[LaunchRecipe]:
        return [recipe for step in self.steps if isinstance(step, Strip) for recipe in step.recipes]

    def plan(self, launch: Callable[[LaunchRecipe], dict[str, Any]]) -> Plan:
        """The plan, its launches as `launch` describes them."""
        steps: list[Step] = [
            step
            if isinstance(step, int)
            else {"launches": [launch(r) for r in step.recipes], "scratch": step.scratch, "batch": step.batch}
            for step in self.steps
        ]
        return {"temporaries": self.temporaries, "steps": steps}


def design(trace: Trace) -> Design:
    """How a trace runs."""
    trace = expand(trace)
    flow = analyse(trace)
    placed = rematerialise(trace, flow, merge_groups(trace, flow, Fuser(trace, flow).run()))
    loaded = loaded_versions(flow, placed)
    joined = strips(trace, placed)
    steps: list[int | Strip] = []
    for step, batch in zip(joined, batch_sizes(trace, joined), strict=True):
        if isinstance(step, HostStep):
            steps.append(step.node.recorded)
            continue
        strip = [assemble(trace, flow, group, loaded, len(step.groups) > 1) for group in step.groups]
        steps.append(Strip(strip, _scratch(strip, step.scratch), batch))
    return Design([[t.like, t.keep, t.dtype] for t in trace.temporaries], steps)


def _scratch(strip: list[LaunchRecipe], geometries: list[int]) -> list[list[int]]:
    return [
        [launch, access, geometries.index(geometry)]
        for launch, recipe in enumerate(strip)
        for access, geometry in enumerate(recipe.geometries)
        if geometry in geometries
    ]
