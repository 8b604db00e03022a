"""Variants: traces of the same ops that differ in layouts, arguments, dtypes or liveness; a budget for planning them.

Code that makes ever new variants would be compiled for ever. A plan has paid when it has come back; while too many of
the same code have not, further variants must be seen ever more often before they are planned.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import NamedTuple

from adaptive_eager import params
from adaptive_eager.trace import SIZE_ONE, Geometry, Node, Operand, Trace

log = logging.getLogger("adaptive_eager.planner")

#: Runs from which a plan has paid.
PAID = 3
#: A warning needs this many windows since the oldest plan that has not paid: it has had its time to come back.
PATIENCE = 128
#: No trace has to be seen more often than this.
MOST_SIGHTS = 1024
#: Codes that are remembered, traces of each that a new one is compared with, and warnings a process.
CODES, COMPARED, WARNINGS = 1024, 3, 8


class Change(NamedTuple):
    """The first difference between two traces: its kind, where it is and what it is, and the user's line."""

    kind: str
    detail: str
    origin: str


@dataclass
class _Plan:
    signature: tuple[int, int]
    due: int  # sights at which it has paid
    number: int  # windows run before it
    seconds: float


@dataclass
class _Code:
    made: int = 0
    unpaid: list[_Plan] = field(default_factory=list)
    recent: deque[Trace] = field(default_factory=lambda: deque(maxlen=COMPARED))
    changes: Counter[str] = field(default_factory=Counter)
    warned: bool = False


class Variants:
    """Asked before a window is planned, told afterwards."""

    def __init__(self) -> None:
        self._codes: OrderedDict[int, _Code] = OrderedDict()
        #: Times that a variant was told to wait.
        self.deferred = 0
        #: What was warned of.
        self.warnings: list[str] = []

    def needed_sights(self, trace: Trace, sights: Callable[[int, int], int]) -> int:
        """Sights after which the trace may be planned. `sights`: signature -> how often it has been seen."""
        code = self._code(trace)
        code.unpaid = [plan for plan in code.unpaid if sights(*plan.signature) < plan.due]
        seconds = sum(plan.seconds for plan in code.unpaid)
        excess = max(len(code.unpaid) // params.get("max_variants"), int(seconds // params.get("variant_seconds")))
        return min(params.get("hot_after") << min(excess, 16), MOST_SIGHTS)

    def defer(self, trace: Trace, number: int) -> None:
        """A variant has to wait, at the window of this number. Warns, once a code, if its plans do not come back."""
        self.deferred += 1
        code = self._code(trace)
        if code.warned or not code.unpaid or number - code.unpaid[0].number < PATIENCE:
            return
        code.warned = True
        if len(self.warnings) < WARNINGS:
            self.warnings.append(_describe(code, trace))
            log.warning("%s", self.warnings[-1])

    def note(self, trace: Trace, seen: int, number: int, seconds: float) -> None:
        """A plan has been made, in so many seconds."""
        code = self._code(trace)
        code.made += 1
        code.unpaid.append(_Plan(trace.signature, seen + PAID - 1, number, seconds))
        if code.recent:
            code.changes[nearest_change(code.recent, trace).kind] += 1
        if 2 * code.made >= params.get("max_variants"):  # a trace is large, and most codes have few
            code.recent.append(trace)

    def _code(self, trace: Trace) -> _Code:
        """Traces whose ops have the same names in the same order, however often each is repeated, are one code."""
        key = hash(tuple(name for name, _ in groupby(node.op for node in trace.nodes)))
        code = self._codes.setdefault(key, _Code())
        self._codes.move_to_end(key)
        if len(self._codes) > CODES:
            self._codes.popitem(last=False)
        return code


def _describe(code: _Code, trace: Trace) -> str:
    change = nearest_change(code.recent, trace)
    counted = code.changes + Counter([change.kind])
    kinds = ", ".join(f"{kind} ({number}x)" for kind, number in counted.most_common())
    where = f"\n  recorded at {change.origin}" if change.origin else ""
    return (
        f"the same {len(trace.nodes)} ops keep coming in new variants: {code.made} plans were made, of which "
        f"{len(code.unpaid)} did not come back. Further ones run op by op until they are seen more often. "
        f"What changes: {kinds}. Last: {change.detail}{where}"
    )


def nearest_change(earlier: deque[Trace] | list[Trace], trace: Trace) -> Change:
    """The first difference to that of the earlier traces which has the fewest."""
    return min((_changes(other, trace) for other in earlier), key=len)[0]


def _changes(old: Trace, new: Trace) -> list[Change]:
    changes: list[Change] = []
    if len(old.nodes) != len(new.nodes):
        at = next((i for i, (a, b) in enumerate(zip(old.nodes, new.nodes, strict=False)) if a.op != b.op), -1)
        node = new.nodes[at]
        detail = f"{len(old.nodes)} ops became {len(new.nodes)}, from {node.op} on"
        changes.append(Change("number of ops", detail, node.origin))
    for a, b in zip(old.nodes, new.nodes, strict=False):
        change = _node_change(old, a, new, b)
        if change is not None:
            changes.append(Change(*change, b.origin))
    for slot, (was, now) in enumerate(zip(old.live, new.live, strict=False)):
        if was != now:
            node = _maker(new, slot)
            detail = f"the result of {node.op} is {'kept' if now else 'no longer kept'} after the window"
            changes.append(Change("which results are kept", detail, node.origin))
    return changes or [Change("nothing that is known", "the traces look alike", "")]


def _node_change(old: Trace, a: Node, new: Trace, b: Node) -> tuple[str, str] | None:
    if a.op != b.op:
        return "ops", f"{a.op} became {b.op}"
    if (len(a.inputs), len(a.outputs)) != (len(b.inputs), len(b.outputs)):
        return "number of tensors", f"{b.op} takes {len(b.inputs)} tensors, took {len(a.inputs)}"
    for k, (i, j) in enumerate(zip(a.inputs, b.inputs, strict=True)):
        change = _operand_change(old, i, new, j)
        if change is not None:
            return change[0], f"operand {k} of {b.op}: {change[1]}"
    if a.args != b.args or len(a.scalars) != len(b.scalars):
        return "kind of a number", f"arguments of {b.op} are {_kinds(b)}, were {_kinds(a)}"
    for k, (was, now) in enumerate(zip_longest(a.attrs, b.attrs)):
        if was != now:
            return "argument", f"argument {k} of {b.op}, which is part of its code: {was!r} became {now!r}"
    if (a.compute, a.result) != (b.compute, b.result):
        return "dtype", f"{b.op} computes in {b.compute}, was {a.compute}"
    for i, j in zip(a.outputs, b.outputs, strict=True):
        change = _operand_change(old, i, new, j)
        if change is not None:
            return change[0], f"the result of {b.op}: {change[1]}"
    return None


def _operand_change(old: Trace, a: Operand, new: Trace, b: Operand) -> tuple[str, str] | None:
    change = _geometry_change(old.geometries[a.geometry], new.geometries[b.geometry])
    if change is None and a.geometry != b.geometry:
        return "which tensors are the same", "it is another tensor of the window"
    return change


def _geometry_change(a: Geometry, b: Geometry) -> tuple[str, str] | None:
    if a.dtype != b.dtype:
        return "dtype", f"{a.dtype} became {b.dtype}"
    if a.rank != b.rank:
        return "number of dims", f"{a.rank} dims became {b.rank}"
    for dim, (was, now) in enumerate(zip(a.codes, b.codes, strict=True)):
        if (was ^ now) & SIZE_ONE:
            return "size 1", f"the size of dim {dim} {'became' if now & SIZE_ONE else 'is no longer'} 1"
    if (a.contiguous, a.codes) != (b.contiguous, b.codes):
        return "layout", "its strides are in another order"
    if a.slot != b.slot:
        return "which tensors share memory", "it shares memory with another tensor of the window"
    if a.shape != b.shape:
        return "which sizes are equal", "its sizes equal those of another tensor of the window"
    return None


def _kinds(node: Node) -> str:
    names = {"x": "tensor", "f": "float", "i": "int", "-": "none"}
    return "(" + ", ".join(names.get(str(kind), str(kind)) for kind in node.args) + ")"


def _maker(trace: Trace, slot: int) -> Node:
    """The node that made a slot, or the first that reads it."""

    def has(operands: tuple[Operand, ...]) -> bool:
        return any(trace.geometries[o.geometry].slot == slot for o in operands)

    made = (node for node in trace.nodes if has(node.outputs))
    return next(made, None) or next(node for node in trace.nodes if has(node.inputs))
