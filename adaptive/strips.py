"""Strips: runs of kernels that share their rows, and so can run a few rows at a time.

What one kernel of a strip writes, the next still finds in cache: softmax reads its input from memory once, not three
times (native/torch/strip.cpp). Rows are the kept points of a reduction. A kernel joins if it walks the rows outermost
in the same order, and if all memory that it shares with the others, where one of them writes it, is the same row's.
Rows may then run in any order and on any thread: the bits are those of the kernels run one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from adaptive_eager.fusion import Group, HostStep, Step, nodes_of
from adaptive_eager.layout import Moves, ReductionOrder, kept_dims, walk_order
from adaptive_eager.trace import Geometry, Trace

#: Most kernels of a strip.
MAX_KERNELS = 16


@dataclass(frozen=True)
class Rows:
    """A space of points cut into rows: its shape's number and rank, and the kept dims in walking order."""

    shape: int
    rank: int
    kept: tuple[int, ...]

    @staticmethod
    def of(group: Group, trace: Trace) -> Rows | None:
        """The rows of a reduction along its input's inner dims; None if there is but one."""
        order = group.order
        if order is None or not order.inner or not order.kept:
            return None
        space = trace.geometries[group.geometry]
        return Rows(space.shape, space.rank, order.kept)


@dataclass
class Strip:
    """Kernels that run a few rows at a time; often a single one, which runs as it is.

    scratch  geometries of values that no other step touches: each thread keeps them for the rows at hand only
    """

    groups: list[Group]
    scratch: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Access:
    """A slot that a kernel touches, in a geometry; `rows`: its dim that moves with each kept dim of the rows."""

    slot: int
    geometry: int
    rows: tuple[int, ...]
    writes: bool


class StripBuilder:
    def __init__(self, trace: Trace, steps: list[Step]):
        self.trace = trace
        self.steps = steps

    def run(self) -> list[HostStep | Strip]:
        """The steps, with those that form a strip joined."""
        result: list[HostStep | Strip] = []
        at = 0
        while at < len(self.steps):
            step = self.steps[at]
            if isinstance(step, HostStep):
                result.append(step)
                at += 1
                continue
            strip = self._strip_from(at)
            result.append(strip)
            at += len(strip.groups)
        return result

    def _strip_from(self, at: int) -> Strip:
        """The longest strip that starts with step `at`, which is a group."""
        run: list[Group] = []
        for step in self.steps[at : at + MAX_KERNELS]:
            if isinstance(step, HostStep):
                break
            run.append(step)
        rows = next((r for r in (Rows.of(group, self.trace) for group in run) if r is not None), None)
        if rows is None:
            return Strip(run[:1])
        one_each = {shape for group in run if Rows.of(group, self.trace) == rows for shape in group.kept_shapes}
        strip: list[Group] = []
        touched: list[_Access] = []
        for group in run:
            accesses = self._accesses(group, rows, one_each)
            if accesses is None or (strip and not self._joins(accesses, touched)):
                break
            strip.append(group)
            touched += accesses
        while strip and not any(Rows.of(g, self.trace) for g in strip):
            strip.pop()
        if len(strip) < 2:
            return Strip(run[:1])
        return Strip(strip, self._scratch(touched, rows, strip))

    def _scratch(self, touched: list[_Access], rows: Rows, strip: list[Group]) -> list[int]:
        """Geometries of values that begin and end in the strip, contiguous with the rows outermost."""
        own = {id(group) for group in strip}
        inside = {a.slot for a in touched}
        outside = {
            self.trace.geometries[g].slot for step in self.steps if id(step) not in own for g in _geometries(step)
        }
        found = []
        for slot in sorted(inside - outside):
            geometries = {a.geometry for a in touched if a.slot == slot}
            geometry = self.trace.geometries[next(iter(geometries))]
            if (
                not self.trace.live[slot]
                and len(geometries) == 1
                and geometry.contiguous
                and geometry.shape == rows.shape
                and tuple(walk_order(geometry))[: len(rows.kept)] == rows.kept
                and next(a for a in touched if a.slot == slot).writes
            ):
                found.append(next(iter(geometries)))
        return found

    def _joins(self, accesses: list[_Access], touched: list[_Access]) -> bool:
        """Whether a kernel shares memory with the strip so far, and in the same rows wherever somebody writes it."""
        shares = False
        for a in accesses:
            for b in touched:
                if a.slot != b.slot:
                    continue
                shares = True
                if (a.writes or b.writes) and (a.geometry != b.geometry or a.rows != b.rows):
                    return False
        return shares

    # -- what a kernel touches -----------------------------------------------------------------------------------------

    def _accesses(self, group: Group, rows: Rows, one_each: set[int]) -> list[_Access] | None:
        """What a kernel touches, if it walks the rows outermost. `one_each`: shapes known to have a point a row."""
        space = self.trace.geometries[group.geometry]
        if group.order is not None:
            if Rows.of(group, self.trace) != rows:
                return None
        elif space.rank != rows.rank or not self._walks(space, rows, one_each):
            return None
        accesses = []
        for node in group.nodes():
            final = node in group.finals
            for operand in node.inputs:
                accesses.append(self._access(operand.geometry, group.order if final else None, rows, writes=False))
            for operand in node.outputs:
                order = group.order if final or node.kind == "reduction" else None
                accesses.append(self._access(operand.geometry, order, rows, writes=True))
        return accesses

    def _walks(self, space: Geometry, rows: Rows, one_each: set[int]) -> bool:
        """Whether a map over `space` walks the rows outermost: all points of each, or one."""
        if space.shape != rows.shape and space.shape not in one_each:
            return False
        return tuple(walk_order(space))[: len(rows.kept)] == rows.kept

    def _access(self, geometry: int, order: ReductionOrder | None, rows: Rows, writes: bool) -> _Access:
        """An access by the points, or (`order`) by the kept points of a reduction."""
        g = self.trace.geometries[geometry]
        moves = Moves(g, rows.rank, None if order is None else kept_dims(order, rows.rank, g))
        return _Access(g.slot, geometry, tuple(moves.dim(d) for d in rows.kept), writes)


def _geometries(step: Step) -> set[int]:
    return {o.geometry for node in nodes_of(step) for o in (*node.inputs, *node.outputs)}


def strips(trace: Trace, steps: list[Step]) -> list[HostStep | Strip]:
    """The steps of a trace in order, with kernels joined to strips."""
    return StripBuilder(trace, steps).run()
