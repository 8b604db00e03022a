"""Planner: the way up on a miss. A trace comes in, a plan goes back down (native/torch/plan.h).

All policy is here: which traces are fused, what is looked for in the disk cache, what happens when a compilation fails.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from adaptive_eager import params
from adaptive_eager.assemble import LaunchRecipe, assemble
from adaptive_eager.cache.store import KernelStore
from adaptive_eager.compiler.codegen import CompileError
from adaptive_eager.compiler.conversion import FLOATS
from adaptive_eager.compiler.semantics import lookup
from adaptive_eager.dataflow import analyse
from adaptive_eager.expansion import expand
from adaptive_eager.fusion import Fuser, HostStep
from adaptive_eager.kernels import KernelService, LoadedKernel
from adaptive_eager.lowering import REDUCTION_OPS
from adaptive_eager.rematerialisation import loaded_versions, rematerialise
from adaptive_eager.row_programs import ROW_PROGRAMS
from adaptive_eager.strips import strips
from adaptive_eager.trace import Trace, read_trace

log = logging.getLogger("adaptive_eager.planner")

T = TypeVar("T")

#: A step as the extension takes it: the number of a host node, or a strip: its launches, and which accesses are to
#: scratch, as (launch, access, number of the scratch).
Step = int | dict[str, Any]
#: A plan as the extension takes it (native/torch/planner_bridge.cpp: parse_plan).
Plan = dict[str, Any]


class Planner:
    """The object that the extension asks (native/torch/planner_bridge.h)."""

    def __init__(self, kernels: KernelService, store: KernelStore, defer_interrupt: Callable[[], None]):
        self.kernels = kernels
        self.store = store
        self.defer_interrupt = defer_interrupt
        #: Traces that could not be planned, with the reason: signature -> text.
        self.failures: dict[tuple[int, int], str] = {}
        self._version = self.kernels.keys.key("plan", "", [(n, str(v)) for n, v in params.keyed()])[:32]

    # -- asked by the extension --------------------------------------------------------------------------------------

    def plan_op(self, raw: dict[str, Any]) -> Plan:
        """Plan of a single op. Raises if its kernel cannot be compiled."""
        with _quiet_interpreter():
            return self._uninterrupted(lambda: self._make(read_trace(raw))[0])

    def plan_window(self, raw: dict[str, Any], seen: int) -> Plan | None:
        """Fused plan of a window seen `seen` times, or None: run it op by op."""
        with _quiet_interpreter():
            return self._uninterrupted(lambda: self._plan_window(read_trace(raw)))

    def note_failure(self, raw: dict[str, Any], reason: str) -> None:
        """Remembers why a window runs op by op."""
        self.failures[tuple(raw["signature"])] = reason
        log.warning("a window of %d ops cannot be fused and runs op by op: %s", len(raw["nodes"]), reason)

    def supports(self, op: str, kind: str, compute: str) -> bool:
        """Whether the compiler has an op in a compute dtype."""
        if kind == "reduction":
            return op in REDUCTION_OPS
        if kind == "row_program":
            return op in ROW_PROGRAMS and compute in FLOATS
        try:
            row = lookup(op)
            row.check(row.arity[1], compute)
        except CompileError:
            return False
        return True

    def known_plans(self) -> list[tuple[int, int]]:
        """Signatures of all plans in the disk cache that this version of the package can use."""
        ours = [k[:32] for k in self.store.keys("plan") if k[33:] == self._version]
        return [(int(k[16:32], 16), int(k[:16], 16)) for k in ours]

    # -- making plans ------------------------------------------------------------------------------------------------

    def _plan_window(self, trace: Trace) -> Plan | None:
        try:
            stored = self._stored_plan(trace)
        except Exception as error:  # trouble with the cache is never more than a compilation
            log.warning("a stored plan cannot be used and is made anew: %s: %s", type(error).__name__, error)
            stored = None
        if stored is not None:
            return stored
        try:
            plan, recipes = self._make(trace)
        except Exception as error:  # a trace that cannot be fused runs op by op, whatever the reason
            reason = f"{type(error).__name__}: {error}"
            self.note_failure({"signature": trace.signature, "nodes": trace.nodes}, reason)
            log.debug("the failure", exc_info=True)
            return None
        self.store.put("plan", self._plan_key(trace), self._serialise(trace, plan, recipes))
        return plan

    def _make(self, trace: Trace) -> tuple[Plan, list[LaunchRecipe]]:
        trace = expand(trace)
        flow = analyse(trace)
        steps: list[Step] = []
        recipes = []
        placed = rematerialise(trace, flow, Fuser(trace, flow).run())
        loaded = loaded_versions(flow, placed)
        for step in strips(trace, placed):
            if isinstance(step, HostStep):
                steps.append(step.node.recorded)
                continue
            strip = [assemble(trace, flow, group, loaded) for group in step.groups]
            launches = [_launch(recipe.describe(), self.kernels.get(recipe.kernel)) for recipe in strip]
            steps.append({"launches": launches, "scratch": _scratch(strip, step.scratch)})
            recipes += strip
        return {"temporaries": [list(t) for t in trace.temporaries], "steps": steps}, recipes

    def _uninterrupted(self, work: Callable[[], T]) -> T:
        """Runs to the end whatever keys are pressed; an interrupt is delivered once the window has run.

        A window has been taken from the program by now: were it lost, so would be its values.
        """
        while True:
            try:
                return work()
            except KeyboardInterrupt:
                self.defer_interrupt()

    # -- plans on disk -----------------------------------------------------------------------------------------------

    def _plan_key(self, trace: Trace) -> str:
        lo, hi = trace.signature
        return f"{hi:016x}{lo:016x}-{self._version}"

    def _serialise(self, trace: Trace, plan: Plan, recipes: list[LaunchRecipe]) -> bytes:
        left = iter(recipes)
        stored: list[Any] = []
        for step in plan["steps"]:
            if isinstance(step, int):
                stored.append(step)
                continue
            strip = [next(left) for _ in step["launches"]]
            launches = [{**r.describe(), "kernel": self.kernels.key_of(r.kernel)} for r in strip]
            stored.append({**step, "launches": launches})
        return json.dumps({**plan, "words": trace.words.hex(), "steps": stored}).encode()

    def _stored_plan(self, trace: Trace) -> Plan | None:
        blob = self.store.get("plan", self._plan_key(trace))
        if blob is None:
            return None
        document = json.loads(blob)
        if document["words"] != trace.words.hex():
            return None  # another trace of the same hash
        steps: list[Step] = []
        for step in document["steps"]:
            if isinstance(step, int):
                steps.append(step)
                continue
            launches = []
            for launch in step["launches"]:
                kernel = self.kernels.get_stored(launch.pop("kernel"))
                if kernel is None:
                    return None  # dropped from the cache meanwhile
                launches.append(_launch(launch, kernel))
            steps.append({**step, "launches": launches})
        return {"temporaries": document["temporaries"], "steps": steps}


def _scratch(strip: list[LaunchRecipe], geometries: list[int]) -> list[list[int]]:
    return [
        [launch, access, geometries.index(geometry)]
        for launch, recipe in enumerate(strip)
        for access, geometry in enumerate(recipe.geometries)
        if geometry in geometries
    ]


def _launch(description: dict[str, Any], kernel: LoadedKernel) -> dict[str, Any]:
    return {**description, "address": kernel.address, "acc_bytes": kernel.acc_bytes, "block": kernel.block}


@contextmanager
def _quiet_interpreter() -> Iterator[None]:
    """No garbage collection: a finaliser could use the device while its window is being run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
