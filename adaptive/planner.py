"""Planner: the way up on a miss. A trace comes in, a plan goes back down (native/torch/plan.h).

All policy is here: which traces are fused, what is looked for in the disk cache, what happens when a compilation fails.
The stages of planning and the compiler are imported when something is planned or compiled: a process that finds
everything on disk loads none of them.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from adaptive_eager import params
from adaptive_eager.background import Background, Job
from adaptive_eager.cache.key import Fields
from adaptive_eager.cache.store import KernelStore, NotWarm
from adaptive_eager.cache.telling import Warned
from adaptive_eager.kernels import KernelService, LoadedKernel
from adaptive_eager.trace import Trace, read_trace
from adaptive_eager.variants import Variants

if TYPE_CHECKING:
    from adaptive_eager.design import Design, Plan, Step

log = logging.getLogger("adaptive_eager.planner")

T = TypeVar("T")

Signature = tuple[int, int]

#: Most sights until a window that failed is tried again; they double up to here.
LONGEST_BACK_OFF = 1024
#: Most windows kept that failed, and that wait for the background.
MOST_FAILURES, MOST_WAITING = 1024, 256


class Planner:
    """The object that the extension asks (native/torch/planner_bridge.h)."""

    #: What `plan_window` raises to the program; whatever else goes wrong, the window runs op by op.
    fatal = NotWarm

    def __init__(self, kernels: KernelService, store: KernelStore, defer_interrupt: Callable[[], None]):
        self.kernels = kernels
        self.store = store
        self.defer_interrupt = defer_interrupt
        self.background = Background()
        self.variants = Variants()
        #: Traces that could not be planned, with the reason: signature -> text.
        self.failures: dict[Signature, str] = {}
        self._tried: set[Signature] = set()  # what failed in this process
        self._refused = Warned(log, "a stored plan cannot be used and is made anew, and so is each like it: %s: %s")
        self._waiting: dict[Signature, _Waiting] = {}  # for the background
        self._version = self.kernels.keys.key("plan", "", [(n, str(v)) for n, v in params.keyed()])[:32]

    # -- asked by the extension --------------------------------------------------------------------------------------

    def plan_op(self, raw: dict[str, Any]) -> Plan:
        """Plan of a single op. Raises if its kernel cannot be compiled."""
        with _quiet_interpreter():
            return self._uninterrupted(lambda: self._plan_op(read_trace(raw)))

    def plan_window(
        self, raw: dict[str, Any], seen: int, number: int, sights: Callable[[int, int], int]
    ) -> Plan | int | None:
        """Fused plan of a window; or the sight at which to ask again; or None: when `ready` says so.

        seen    sights of the window
        number  windows run so far
        sights  signature -> sights of another one

        Raises NotWarm if a kernel is missing where none may be compiled.
        """

        def work() -> Plan | int | None:
            trace = read_trace(raw)
            try:
                return self._plan_window(trace, seen, number, sights)
            except NotWarm:
                raise
            except Exception as error:  # a trace that cannot be fused runs op by op, whatever the reason
                log.debug("the failure", exc_info=True)
                self._fail(trace, error)
                return seen + min(seen, LONGEST_BACK_OFF)

        with _quiet_interpreter():
            return self._uninterrupted(work)

    def ready(self, signature: Signature) -> bool:
        """Whether the window's kernels are no longer being compiled in the background."""
        waiting = self._waiting.get(signature)
        return waiting is None or waiting.job.done

    def note_failure(self, raw: dict[str, Any], reason: str) -> None:
        """Remembers why a window runs op by op."""
        self._remember(tuple(raw["signature"]), len(raw["nodes"]), reason)

    def not_fused(self) -> dict[str, int]:
        """Reasons why windows run op by op -> number of windows."""
        return dict(Counter(self.failures.values())) | dict.fromkeys(self.variants.warnings, 1)

    def supports(self, op: str, kind: str, compute: str) -> bool:
        """Whether the compiler has an op in a compute dtype."""
        if kind == "reduction":
            from adaptive_eager.lowering import REDUCTION_OPS

            return op in REDUCTION_OPS
        if kind == "row_program":
            from adaptive_eager.compiler.conversion import FLOATS
            from adaptive_eager.row_programs import ROW_PROGRAMS

            return op in ROW_PROGRAMS and compute in FLOATS
        from adaptive_eager.compiler.builder import CompileError
        from adaptive_eager.compiler.semantics import lookup

        try:
            row = lookup(op)
            row.check(row.arity[1], compute)
        except CompileError:
            return False
        return True

    def known_plans(self) -> list[tuple[int, int]]:
        """Signatures of all plans in the disk cache that this version of the package can use."""
        # Nothing has checked the names that a directory lists: a damaged one is no plan of ours.
        ours = [k[:32] for k in self.store.keys("plan") if k[33:] == self._version and _SIGNATURE.fullmatch(k[:32])]
        return [(int(k[16:32], 16), int(k[:16], 16)) for k in ours]

    # -- making plans ------------------------------------------------------------------------------------------------

    def _plan_op(self, trace: Trace) -> Plan:
        stored = self._stored_plan(trace)
        return self._finish(trace, _design(trace)) if stored is None else stored

    def _plan_window(
        self, trace: Trace, seen: int, number: int, sights: Callable[[int, int], int]
    ) -> Plan | int | None:
        waiting = self._waiting.pop(trace.signature, None)
        if waiting is not None:
            if not waiting.job.done:  # asked by somebody who has forgotten that it waits
                self._waiting[trace.signature] = waiting
                return None
            if waiting.job.error is not None:
                raise waiting.job.error
            return self._finish(trace, waiting.design)
        stored = self._stored_plan(trace)
        if stored is not None:
            return stored
        reason = self._stored_failure(trace)
        if reason is not None:
            self._remember(trace.signature, len(trace.nodes), reason)
            return seen + LONGEST_BACK_OFF
        needed = self.variants.needed_sights(trace, sights)
        if needed > seen:
            self.variants.defer(trace, number)
            return needed
        start = time.perf_counter()
        design = _design(trace)
        if _in_background():
            missing = [recipe.kernel for recipe in design.recipes() if self.kernels.missing(recipe.kernel)]
            if missing:
                job = Job([functools.partial(self.kernels.get, kernel) for kernel in missing])
                while len(self._waiting) >= MOST_WAITING:  # windows that never came back for their plans
                    del self._waiting[next(iter(self._waiting))]
                self._waiting[trace.signature] = _Waiting(design, job)
                self.background.submit(job)
                self.variants.note(trace, seen, number, time.perf_counter() - start)
                return None
        plan = self._finish(trace, design)
        self.variants.note(trace, seen, number, time.perf_counter() - start)
        return plan

    def _finish(self, trace: Trace, design: Design) -> Plan:
        """The plan of a window, stored, with its kernels, which are compiled where need be."""
        plan = self._with_kernels(design)
        self.store.put("plan", self._plan_key(trace), self._serialise(trace, design), self._fields("plan", trace))
        return plan

    def _with_kernels(self, design: Design) -> Plan:
        return design.plan(lambda recipe: _launch(recipe.describe(), self.kernels.get(recipe.kernel)))

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
        return f"{_hex(trace.signature)}-{self._version}"

    def _fields(self, kind: str, trace: Trace) -> Fields:
        """What the key of a plan, or of its failure, stands for."""
        return self.kernels.keys.fields(kind, _hex(trace.signature), params.keyed())

    def _serialise(self, trace: Trace, design: Design) -> bytes:
        plan = design.plan(lambda recipe: {**recipe.describe(), "kernel": self.kernels.key_of(recipe.kernel)})
        return json.dumps({**plan, "words": trace.words.hex()}).encode()

    def _stored_plan(self, trace: Trace) -> Plan | None:
        """The plan that is on disk, with its kernels; None if either is not, or cannot be used."""
        try:
            return self._read_plan(trace)
        except Exception as error:  # trouble with the cache is never more than a compilation
            self._refused(type(error).__name__, error)
            return None

    def _read_plan(self, trace: Trace) -> Plan | None:
        blob = self.store.get("plan", self._plan_key(trace))
        if blob is None:
            return None
        document = json.loads(blob)
        if document["words"] != trace.words.hex():
            return None  # another trace of the same hash
        steps: list[Step] = []
        for step in document["steps"]:
            if isinstance(step, int):
                if not 0 <= step < len(trace.nodes) or trace.nodes[step].kind != "host":
                    raise ValueError(f"op {step} of the window is none that runs on the host")
                steps.append(step)
                continue
            launches = []
            for launch in step["launches"]:
                kernel = self.kernels.get_stored(launch.pop("kernel"))
                if kernel is None:
                    return None  # dropped from the cache meanwhile
                launches.append(_launch(launch, kernel))
            steps.append({**step, "launches": launches})
        run = {step for step in steps if isinstance(step, int)}
        for number, node in enumerate(trace.nodes):
            if node.kind != "host" or number in run:
                continue
            if any(trace.live[trace.geometries[o.geometry].slot] for o in node.outputs):
                raise ValueError(f"op {number} of the window, which runs on the host, is missing")
        if not steps and any(trace.live):
            raise ValueError("it has no steps")
        return {"temporaries": document["temporaries"], "steps": steps}

    # -- failures ----------------------------------------------------------------------------------------------------

    def _fail(self, trace: Trace, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._tried.add(trace.signature)
        self._remember(trace.signature, len(trace.nodes), reason)
        if not isinstance(error, (MemoryError, OSError)):  # those are of this moment; OSError is TimeoutError too
            document = {"words": trace.words.hex(), "reason": reason, "time": time.time()}
            blob = json.dumps(document).encode()
            self.store.put("failure", self._plan_key(trace), blob, self._fields("failure", trace))

    def _remember(self, signature: Signature, ops: int, reason: str) -> None:
        if self.failures.pop(signature, None) != reason:
            log.warning("a window of %d ops cannot be fused and runs op by op: %s", ops, reason)
        self.failures[signature] = reason
        if len(self.failures) > MOST_FAILURES:
            oldest = next(iter(self.failures))
            del self.failures[oldest]
            self._tried.discard(oldest)

    def _stored_failure(self, trace: Trace) -> str | None:
        """Why another process, of this version of the package, could not plan the trace; None: it may be tried."""
        if trace.signature in self._tried:
            return None  # this one goes by sights
        blob = self.store.get("failure", self._plan_key(trace))
        if blob is None:
            return None
        try:
            document = json.loads(blob)
            if document["words"] == trace.words.hex() and 0 <= time.time() - document["time"] < params.get(
                "failure_age"
            ):
                return str(document["reason"])
        except (ValueError, KeyError, TypeError):
            log.debug("a stored failure cannot be read", exc_info=True)
        return None


#: A signature in the key of a plan, as `_hex` writes it.
_SIGNATURE = re.compile("[0-9a-f]{32}")


def _hex(signature: Signature) -> str:
    lo, hi = signature
    return f"{hi:016x}{lo:016x}"


class _Waiting(NamedTuple):
    """A window whose kernels are being compiled."""

    design: Design
    job: Job


def _design(trace: Trace) -> Design:
    from adaptive_eager.design import design

    return design(trace)


def _in_background() -> bool:
    """Whether kernels of hot windows are compiled in the background. See docs/architecture.md for what was measured."""
    choice = params.get("background")
    if choice == "auto":
        import torch

        return len(os.sched_getaffinity(0)) > torch.get_num_threads()
    return choice == "on"


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
