"""Rematerialisation: what one kernel stores only for another to load is computed there instead, if that is cheap.

Fusion places an op in the earliest kernel that shares data with it, so the first half of an expression often ends up in
one kernel and the second in the next, with a store and a load between. Here a kernel that loads such a value takes over
the ops that make it: always if nobody else needs them, else (the ops are computed in both) if they cost less than the
traffic. The same ops on the same values give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from adaptive_eager import params
from adaptive_eager.cost import op_cost
from adaptive_eager.dataflow import Dataflow, Version
from adaptive_eager.fusion import MAX_ACCESSES, MAX_SCALARS, Group, Step, nodes_of, walks_with
from adaptive_eager.trace import Node, Trace

#: What may be computed once more instead of a store and a load, in the unit of `cost`.
MAX_COST = 8


@dataclass
class _Tree:
    """Ops that make a value from what can be loaded. `leaves`: (geometry, version node or -1) of the loads."""

    nodes: dict[int, Node] = field(default_factory=dict)
    leaves: set[tuple[int, int]] = field(default_factory=set)


class Rematerialiser:
    def __init__(self, trace: Trace, flow: Dataflow, steps: list[Step]):
        self.trace = trace
        self.flow = flow
        self.steps = steps
        self._max_ops = params.get("max_kernel_ops")
        self._max_accesses = params.get("max_kernel_accesses")
        self._home: dict[int, int] = {}  # node -> step
        self._at_points: set[int] = set()  # maps computed at every point
        self._writes: dict[int, list[int]] = {}  # slot -> nodes that write it
        for at, step in enumerate(steps):
            if isinstance(step, Group):
                self._at_points |= {node.index for node in step.points if node.kind == "map"}
            for node in nodes_of(step):
                self._home[node.index] = at
                for operand in node.outputs:
                    self._writes.setdefault(trace.geometries[operand.geometry].slot, []).append(node.index)

    def run(self) -> list[Step]:
        """The steps, less what they no longer need to compute."""
        for at, step in enumerate(self.steps):
            if isinstance(step, Group):
                for node in list(step.points):
                    for source in self._sources(node):
                        if not step.computes(source.node):
                            self._take_over(source, step, at)
        loaded: set[tuple[int, int]] = set()
        for step in reversed(self.steps):  # whoever reads a version stands after it
            if isinstance(step, Group):
                self._drop_unused(step, loaded)
            loaded |= loaded_versions(self.flow, [step])
        return [step for step in self.steps if nodes_of(step)]

    def _sources(self, node: Node) -> list[Version]:
        found = (self.flow.sources[node.index, k] for k in range(len(node.inputs)))
        return [source for source in found if source is not None]

    # -- taking over ---------------------------------------------------------------------------------------------------

    def _take_over(self, source: Version, group: Group, at: int) -> None:
        tree = _Tree()
        loads = self._loads(group)
        if not self._grow(source, group, at, loads, tree):
            return
        space = self.trace.geometries[group.geometry].shape
        # Loads at every point that come in, less the one that goes; if nobody else needs the value, so does its store.
        more = sum(self.trace.geometries[geometry].shape == space for geometry, _ in tree.leaves - loads) - 1
        only_here = not source.in_memory(self.trace) and all(
            group.computes(r) for r in source.readers if self.flow.needed[r]
        )
        if more > only_here or not (only_here or sum(op_cost(n.op) for n in tree.nodes.values()) <= MAX_COST):
            return
        scalars = group.scalars + sum(len(node.scalars) for node in tree.nodes.values())
        if len(group.possible | tree.leaves) > MAX_ACCESSES or scalars > MAX_SCALARS:
            return
        accesses = group.accesses - {(source.geometry, source.node)} | tree.leaves
        if len(accesses) > max(self._max_accesses, len(group.accesses)):
            return
        if len(group.nodes()) + len(tree.nodes) > self._max_ops:
            return
        group.accesses = accesses
        group.possible |= tree.leaves
        group.scalars = scalars
        group.recomputed |= set(tree.nodes)
        group.points = sorted([*group.points, *tree.nodes.values()], key=lambda n: n.index)

    def _grow(self, version: Version, group: Group, at: int, loads: set[tuple[int, int]], tree: _Tree) -> bool:
        """Adds the op that makes a version to a tree, and the ops that make what it needs and nothing stores."""
        node = self.trace.nodes[version.node]
        if node.index not in self._at_points or not walks_with(self.trace, node, group):
            return False
        if len(tree.nodes) >= self._max_ops:
            return False
        tree.nodes[node.index] = node
        for k, operand in enumerate(node.inputs):
            source = self.flow.sources[node.index, k]
            if source is not None and (group.computes(source.node) or source.node in tree.nodes):
                continue
            leaf = operand.geometry, source.node if source is not None else -1
            if leaf in loads or source is None or source.in_memory(self.trace) or source.node not in self._at_points:
                if self._changed(operand.geometry, node, at):
                    return False
                tree.leaves.add(leaf)
            elif not self._grow(source, group, at, loads, tree):
                return False
        return True

    def _changed(self, geometry: int, since: Node, at: int) -> bool:
        """Whether memory is written once node `since` has read it, by itself or up to step `at`."""
        writes = self._writes.get(self.trace.geometries[geometry].slot, [])
        return any(node >= since.index and self._home[node] <= at for node in writes)

    def _loads(self, group: Group) -> set[tuple[int, int]]:
        """(geometry, version node or -1) of what the points of a kernel load."""
        loads = set()
        for node in group.points:
            for k, operand in enumerate(node.inputs):
                source = self.flow.sources[node.index, k]
                if source is None:
                    loads.add((operand.geometry, -1))
                elif not group.computes(source.node):
                    loads.add((operand.geometry, source.node))
        return loads

    # -- what is left over ---------------------------------------------------------------------------------------------

    def _drop_unused(self, group: Group, loaded: set[tuple[int, int]]) -> None:
        """Removes ops at the points whose results nobody needs any more; `loaded`: versions that later steps load."""
        for node in reversed(list(group.points)):
            if node.index not in self._at_points:
                continue
            versions = [self.flow.versions[node.index, k] for k in range(len(node.outputs))]
            read = any(source in versions for other in group.nodes() for source in self._sources(other))
            own = node.index not in group.recomputed
            if not read and not (
                own and any(v.in_memory(self.trace) or (v.node, v.output) in loaded for v in versions)
            ):
                group.points.remove(node)
                group.recomputed.discard(node.index)


def loaded_versions(flow: Dataflow, steps: list[Step]) -> set[tuple[int, int]]:
    """(node, output) of the versions that some step reads from memory."""
    loaded = set()
    for step in steps:
        for node in nodes_of(step):
            for k in range(len(node.inputs)):
                source = flow.sources[node.index, k]
                if source is not None and not (isinstance(step, Group) and step.computes(source.node)):
                    loaded.add((source.node, source.output))
    return loaded


def rematerialise(trace: Trace, flow: Dataflow, steps: list[Step]) -> list[Step]:
    """The steps of a trace, with cheap values computed where they are used. Changes the groups."""
    return Rematerialiser(trace, flow, steps).run()
