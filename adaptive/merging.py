"""Merging: kernels that turn out to share data, once all ops are placed, become one.

Fusion sees an op at a time: two kernels over the tensors of one parameter know nothing of each other until an op joins
their results. Here the earlier of two such map kernels moves down to the later one, or that one up, if no step between
them minds.
"""

from __future__ import annotations

from adaptive_eager import params
from adaptive_eager.dataflow import Dataflow
from adaptive_eager.fusion import MAX_ACCESSES, MAX_SCALARS, Group, Step, nodes_of
from adaptive_eager.trace import Node, Trace


class _Merger:
    def __init__(self, trace: Trace, flow: Dataflow, steps: list[Step]):
        self.trace, self.flow = trace, flow
        self.steps: list[Step | None] = list(steps)
        self._reads: dict[int, set[int]] = {}  # slot -> steps
        self._writes: dict[int, set[int]] = {}
        self._loads: dict[tuple[int, int], set[int]] = {}  # (geometry, version node or -1) -> map groups that load it
        self._position = {n.index: at for at, step in enumerate(steps) for n in nodes_of(step)}

    def run(self) -> list[Step]:
        for at, step in enumerate(self.steps):
            assert step is not None
            self._note(step, at)
            if isinstance(step, Group) and not step.is_reduction:
                self._absorb(step, at)
        return [step for step in self.steps if step is not None]

    def _slot(self, geometry: int) -> int:
        return self.trace.geometries[geometry].slot

    def _note(self, step: Step, at: int) -> None:
        for node in nodes_of(step):
            self._position[node.index] = at
            for operand in node.inputs:
                self._reads.setdefault(self._slot(operand.geometry), set()).add(at)
            for operand in node.outputs:
                self._writes.setdefault(self._slot(operand.geometry), set()).add(at)
            for key in self._keys(node):
                self._loads.setdefault(key, set()).add(at)

    def _forget(self, step: Step, at: int) -> None:
        for node in nodes_of(step):
            for operand in node.inputs:
                self._reads[self._slot(operand.geometry)].discard(at)
            for operand in node.outputs:
                self._writes[self._slot(operand.geometry)].discard(at)
            for key in self._keys(node):
                self._loads[key].discard(at)

    def _keys(self, node: Node) -> list[tuple[int, int]]:
        keys = []
        for k, operand in enumerate(node.inputs):
            source = self.flow.sources[node.index, k]
            keys.append((operand.geometry, source.node if source is not None else -1))
        return keys

    def _absorb(self, group: Group, at: int) -> None:
        """Merges the group at `at` with the earlier ones that it shares data with, the latest first."""
        related = set()
        for node in group.points:
            for geometry, version in self._keys(node):
                related |= self._loads[geometry, version]
                if version >= 0:
                    related.add(self._position[version])
        for other in sorted(related, reverse=True):
            earlier = self.steps[other]
            if other >= at or not isinstance(earlier, Group) or not self._fit(earlier, group):
                continue
            if self._free(earlier, other, at):
                self._join(earlier, other, group, at)
            elif self._free(group, other, at):
                self._join(group, at, earlier, other)
                return

    def _free(self, group: Group, first: int, last: int) -> bool:
        """Whether a group may change its place with every step between two."""
        for node in group.points:
            for operand in node.inputs:
                if any(first < k < last for k in self._writes.get(self._slot(operand.geometry), ())):
                    return False
            for operand in node.outputs:
                slot = self._slot(operand.geometry)
                if any(first < k < last for k in self._writes[slot] | self._reads.get(slot, set())):
                    return False
        return True

    def _fit(self, a: Group, b: Group) -> bool:
        geometries = self.trace.geometries
        one, other = geometries[a.geometry], geometries[b.geometry]
        if a.is_reduction or one.shape != other.shape or one.layout != other.layout:
            return False
        if len(a.points) + len(b.points) > params.get("max_kernel_ops"):
            return False
        if len(a.accesses | b.accesses) > params.get("max_kernel_accesses"):
            return False
        if len(a.possible | b.possible) > MAX_ACCESSES or a.scalars + b.scalars > MAX_SCALARS:
            return False
        # What one writes the other must look at in the same way, or a point would meet another point's value.
        seen = [{o.geometry for n in g.points for o in (*n.inputs, *n.outputs)} for g in (a, b)]
        written = {self._slot(o.geometry) for n in (*a.points, *b.points) for o in n.outputs}
        shared = {self._slot(g) for g in seen[0]} & {self._slot(g) for g in seen[1]} & written
        looks: dict[int, set[int]] = {}
        for geometry in seen[0] | seen[1]:
            looks.setdefault(self._slot(geometry), set()).add(geometry)
        return all(len(looks[slot]) == 1 for slot in shared)

    def _join(self, moved: Group, start: int, into: Group, at: int) -> None:
        self._forget(moved, start)
        self.steps[start] = None
        into.points = sorted((*moved.points, *into.points), key=lambda node: node.index)
        into.accesses |= moved.accesses
        into.possible |= moved.possible
        into.scalars += moved.scalars
        self._note(moved, at)


def merge_groups(trace: Trace, flow: Dataflow, steps: list[Step]) -> list[Step]:
    """The steps of a trace with map groups merged where they share data."""
    return _Merger(trace, flow, steps).run()
