"""Fusion: which ops of a trace one kernel computes.

Ops are placed in program order into *steps*. Each has an earliest step it may stand in (after what it reads, what
overwrites it, and what it overwrites), and joins the latest kernel from there on that walks the same points in the same
order and shares data with it. Unrelated ops stay apart, however alike their shapes: one kernel for both would save no
memory traffic, and the many tensors of an optimizer would make ever new mixtures of what is one small kernel, run again
and again. Program order of everything that touches the same memory is kept, so fused and unfused runs give the same
bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from adaptive_eager import params
from adaptive_eager.dataflow import Dataflow, Version
from adaptive_eager.layout import ReductionOrder, can_follow, counted, reduction_order
from adaptive_eager.lowering import COUNTED
from adaptive_eager.trace import Geometry, Node, Trace


@dataclass
class HostStep:
    """A host op."""

    node: Node


@dataclass
class Group:
    """The ops of one kernel.

    points      nodes computed at every point of the iteration space, in program order; reductions among them
    finals      nodes computed once a kept point, after the reduction
    recomputed  nodes among the points that another group computes, too, and stores if need be
    geometry    geometry whose shape is the iteration space, and in whose order it is walked
    iteration   a window operand of that geometry
    order       of a reduction, that of its points
    kept_shapes shapes of the results of its reductions: with the reduced dims, or without
    kept_layout how those results lie in memory
    """

    geometry: int
    iteration: int
    points: list[Node] = field(default_factory=list)
    finals: list[Node] = field(default_factory=list)
    recomputed: set[int] = field(default_factory=set)
    order: ReductionOrder | None = None
    kept_shapes: set[int] = field(default_factory=set)
    kept_layout: bytes = b""
    # (geometry, version node or -1): loads, and stores that somebody is known to see; and all that there could be
    accesses: set[tuple[int, int]] = field(default_factory=set)
    possible: set[tuple[int, int]] = field(default_factory=set)
    scalars: int = 0

    def nodes(self) -> list[Node]:
        return self.points + self.finals

    def computes(self, node: int) -> bool:
        return any(n.index == node for n in self.nodes())

    @property
    def is_reduction(self) -> bool:
        return self.order is not None


Step = HostStep | Group


def nodes_of(step: Step) -> list[Node]:
    return step.nodes() if isinstance(step, Group) else [step.node]


#: What a launch has room for (native/torch/plan.h).
MAX_ACCESSES, MAX_SCALARS = 64, 128


def walks_with(trace: Trace, node: Node, group: Group) -> bool:
    """Whether a map can be walked with a group: over the same points, and in the same order if that matters."""
    geometries = trace.geometries
    out, base = geometries[node.outputs[0].geometry], geometries[group.geometry]
    if out.shape != base.shape:
        return False
    if group.order is None:
        return True  # points of a map may be walked in any order
    return out.layout == base.layout and follows(trace, node, group.order, base)


def follows(trace: Trace, node: Node, order: ReductionOrder, space: Geometry) -> bool:
    """Whether a node of the points can be computed in a reduction's order."""
    walked = [trace.geometries[o.geometry] for o in (*node.inputs, *node.outputs)]
    if node.op in COUNTED:
        walked.append(counted(space, COUNTED[node.op] != "linear"))
    return all(can_follow(order, space, g) for g in walked)


class Fuser:
    """Builds the steps of one trace."""

    def __init__(self, trace: Trace, flow: Dataflow):
        self.trace = trace
        self.flow = flow
        self.steps: list[Step] = []
        self.position: dict[int, int] = {}  # node -> step
        self.role: dict[int, str] = {}  # node -> "point", "reduce", "final"
        self._writes: dict[int, list[Version]] = {}
        self._reads: dict[int, list[tuple[int, int]]] = {}  # slot -> (node, geometry)
        self._touching: dict[tuple[int, int], set[int]] = {}  # access -> steps
        self._max_ops = params.get("max_kernel_ops")
        self._max_accesses = params.get("max_kernel_accesses")

    def run(self) -> list[Step]:
        for node in self.trace.nodes:
            if self.flow.needed[node.index]:
                self._place(node)
        return self.steps

    # -- order of memory ---------------------------------------------------------------------------------------------

    def _place(self, node: Node) -> None:
        floor, partners, clashes = self._constraints(node)
        at = self._join(node, floor, partners, clashes) if node.is_compiled else None
        if at is None:
            at = len(self.steps)
            self.steps.append(self._new_group(node) if node.is_compiled else HostStep(node))
        self.position[node.index] = at
        for operand in node.inputs:
            self._reads.setdefault(self._slot(operand.geometry), []).append((node.index, operand.geometry))
        for k, operand in enumerate(node.outputs):
            self._writes.setdefault(self._slot(operand.geometry), []).append(self.flow.versions[node.index, k])

    def _slot(self, geometry: int) -> int:
        return self.trace.geometries[geometry].slot

    def _constraints(self, node: Node) -> tuple[int, set[int], set[int]]:
        """Where a node may stand: the first step, the earlier nodes with which it may share exactly that step, and
        those among them that read or write what it writes."""
        floor, partners, clashes = 0, set(), set()

        def after(other: int, may_share: bool) -> None:
            nonlocal floor
            at = self.position[other]
            if may_share:
                partners.add(other)
                floor = max(floor, at)
            else:
                floor = max(floor, at + 1)

        for k, operand in enumerate(node.inputs):
            source = self.flow.sources[node.index, k]
            if source is not None:
                if source.node in self.position:
                    after(source.node, may_share=True)
            else:
                for version in self._writes.get(self._slot(operand.geometry), []):
                    after(version.node, may_share=False)
        for operand in node.outputs:
            slot = self._slot(operand.geometry)
            for reader, geometry in self._reads.get(slot, []):
                after(reader, may_share=geometry == operand.geometry)
                clashes.add(reader)
            for version in self._writes.get(slot, []):
                if version.node in self.flow.apart[node.index]:
                    continue
                after(version.node, may_share=version.geometry == operand.geometry)
                clashes.add(version.node)
        return floor, partners, clashes

    # -- joining -----------------------------------------------------------------------------------------------------

    def _join(self, node: Node, floor: int, partners: set[int], clashes: set[int]) -> int | None:
        apart = {self.position[p] for p in self.flow.apart[node.index] if p in self.position}
        # Parts of one tensor that are walked alike come second: a launch less.
        for steps in (self._related(node, partners), apart):
            for at in sorted(steps, reverse=True):
                group = self.steps[at]
                if at >= floor and isinstance(group, Group) and self._fits(node, group, at, partners, clashes):
                    self._add(node, group, at)
                    return at
        return None

    def _related(self, node: Node, partners: set[int]) -> set[int]:
        """Steps that the node shares data with: a value kept in a register, or memory that both touch."""
        related = {self.position[p] for p in partners}
        for k in range(len(node.inputs)):
            related |= self._touching.get(self._access_key(node, k), set())
        return related

    def _access_key(self, node: Node, k: int) -> tuple[int, int]:
        source = self.flow.sources[node.index, k]
        return node.inputs[k].geometry, source.node if source is not None else -1

    def _keys(self, node: Node, at: int, possible: bool) -> set[tuple[int, int]]:
        """Loads and stores of a node in step `at`: those that are sure, or all that are possible.

        Whether a value that nobody outside the window sees must be stored is known only when its readers are placed.
        """
        keys = set()
        for k in range(len(node.inputs)):
            source = self.flow.sources[node.index, k]
            if source is None or self.position.get(source.node) != at:
                keys.add(self._access_key(node, k))
        for k, operand in enumerate(node.outputs):
            version = self.flow.versions[node.index, k]
            if possible or version.in_memory(self.trace):
                keys.add((operand.geometry, node.index))
        return keys

    def _fits(self, node: Node, group: Group, at: int, partners: set[int], clashes: set[int]) -> bool:
        if len(group.points) + len(group.finals) >= self._max_ops:
            return False
        if len(group.accesses | self._keys(node, at, possible=False)) > self._max_accesses:
            return False
        if len(group.possible | self._keys(node, at, possible=True)) > MAX_ACCESSES:
            return False
        if group.scalars + len(node.scalars) > MAX_SCALARS:
            return False
        here = [p for p in partners if self.position[p] == at]
        inputs = [self.flow.sources[node.index, k] for k in range(len(node.inputs))]
        produced_here = [s.node for s in inputs if s is not None and self.position.get(s.node) == at]
        if node.kind == "reduction":
            # What it writes is written once a kept point, while points are still being read: nobody at the points may
            # touch that memory.
            return self._fits_reduction(node, group, produced_here) and not any(
                self.position[c] == at and self.role[c] == "point" for c in clashes
            )
        if walks_with(self.trace, node, group):
            # Values of the kept points are not known yet while the points are walked.
            return all(self.role[p] == "point" for p in here)
        if self._fits_finals(node, group):
            return bool(produced_here) and all(self.role[p] in ("reduce", "final") for p in here)
        return False

    def _fits_finals(self, node: Node, group: Group) -> bool:
        # An update of several tensors stays by itself: many alike ones are launched together.
        if group.order is None or node.op in COUNTED or node.is_gather or len(node.outputs) > 1:
            return False
        out = self.trace.geometries[node.outputs[0].geometry]
        if out.shape not in group.kept_shapes or out.layout != group.kept_layout or out.layout != b"":
            return False
        # Operands of the kept points: of the result's shape, or 0-dim values.
        return all(
            self.trace.geometries[o.geometry].shape == out.shape or self.trace.geometries[o.geometry].rank == 0
            for o in node.inputs
        )

    def _fits_reduction(self, node: Node, group: Group, produced_here: list[int]) -> bool:
        geometries = self.trace.geometries
        source, base = geometries[node.inputs[0].geometry], geometries[group.geometry]
        if source.shape != base.shape or (group.order is not None and source.layout != base.layout):
            return False
        if any(self.role[p] != "point" for p in produced_here):
            return False
        order = reduction_order(node, source)
        if group.order is not None:
            # Equal orders reduce the same dims, whether a result keeps them or not.
            return group.order == order and geometries[node.outputs[0].geometry].layout == group.kept_layout
        return all(follows(self.trace, n, order, source) for n in group.points)

    def _new_group(self, node: Node) -> Group:
        base = node.inputs[0] if node.kind == "reduction" else node.outputs[0]
        group = Group(base.geometry, base.operand)
        self._add(node, group, len(self.steps))
        return group

    def _add(self, node: Node, group: Group, at: int) -> None:
        keys = self._keys(node, at, possible=False)
        group.accesses |= keys
        for key in keys:
            self._touching.setdefault(key, set()).add(at)
        group.possible |= self._keys(node, at, possible=True)
        group.scalars += len(node.scalars)
        if node.kind == "reduction":
            if group.order is None:
                group.geometry, group.iteration = node.inputs[0].geometry, node.inputs[0].operand
                group.order = reduction_order(node, self.trace.geometries[node.inputs[0].geometry])
                group.kept_layout = self.trace.geometries[node.outputs[0].geometry].layout
            group.kept_shapes.add(self.trace.geometries[node.outputs[0].geometry].shape)
            group.points.append(node)
            self.role[node.index] = "reduce"
        elif walks_with(self.trace, node, group) or not (group.points or group.finals):
            group.points.append(node)
            self.role[node.index] = "point"
        else:
            group.finals.append(node)
            self.role[node.index] = "final"
