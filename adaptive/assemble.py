"""Assemble: a group as a kernel of the loop IR, and where its pointers, sizes, strides and scalars come from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from adaptive_eager.compiler.loop_ir import ITEMSIZE, Access, Instr, Kernel, Store
from adaptive_eager.cost import kernel_cost
from adaptive_eager.dataflow import Dataflow, Version
from adaptive_eager.fusion import Group
from adaptive_eager.layout import LoopDim, Moves, counted, index_dims, kept_dims, merge, tiled, walk_order
from adaptive_eager.lowering import COUNTED, Lowering
from adaptive_eager.trace import Geometry, Node, Operand, Scalar, Trace


@dataclass
class LaunchRecipe:
    """Everything a launch needs but the kernel's address (native/torch/plan.h: Launch)."""

    kernel: Kernel
    kind: str
    iteration: int
    loop_dims: list[tuple[int, ...]]
    accesses: list[tuple[int, list[int]]]  # (window operand, its dim for each loop dim)
    geometries: list[int]  # of each access
    scalars: list[Scalar]
    nodes: list[int]  # recorded op of each value

    def describe(self) -> dict[str, Any]:
        """As the extension takes it, and as it is stored: without the kernel."""
        return {
            "kind": self.kind,
            "reduced": self.kernel.dims.count("r"),
            "iteration": self.iteration,
            "loop_dims": [list(d) for d in self.loop_dims],
            "accesses": [
                [operand, ITEMSIZE[access.dtype], dims]
                for (operand, dims), access in zip(self.accesses, self.kernel.accesses, strict=True)
            ],
            "scalars": [list(scalar) for scalar in self.scalars],
            "nodes": self.nodes,
            "ops": len(set(self.nodes)),
            "cost": kernel_cost(self.kernel),
        }


@dataclass
class _Slot:
    """One access to be: a window operand, looked at in a geometry, in the points or the finals of a kernel."""

    operand: int
    geometry: int
    final: bool


@dataclass
class Assembler:
    trace: Trace
    flow: Dataflow
    group: Group
    loaded: set[tuple[int, int]]  # versions that some step reads from memory
    in_strip: bool  # the rows of the group's own geometry are walked outermost
    _slots: list[_Slot] = field(default_factory=list)
    _loads: dict[tuple[int, int, bool], int] = field(default_factory=dict)
    _values: dict[tuple[int, int], int] = field(default_factory=dict)  # (node, output) -> value
    _scalars: list[Scalar] = field(default_factory=list)
    _tables: set[int] = field(default_factory=set)  # slots that are gathered from

    def run(self) -> LaunchRecipe:
        lowering = Lowering()
        stores: list[Store] = []
        final_stores: list[Store] = []
        for node in self.group.points:
            self._lower(node, lowering, final=False)
        if self.group.is_reduction:
            lowering.begin_epilogue()
            for node in self.group.points:
                if node.kind == "reduction":
                    lowering.finish_reduction(node, self._one_point)
                    for k, value in enumerate(lowering.results_of(node, self._stored_dtypes(node))):
                        self._values[node.index, k] = value
            for node in self.group.finals:
                self._lower(node, lowering, final=True)
        for node in self.group.nodes():
            if node.index in self.group.recomputed:
                continue
            final = node.kind == "reduction" or node in self.group.finals
            for k in range(len(node.outputs)):
                if self._must_store(self.flow.versions[node.index, k]):
                    access = self._access(node.outputs[k], final)
                    (final_stores if final else stores).append(Store(self._values[node.index, k], access))
        return self._recipe(lowering, stores, final_stores)

    # -- values ------------------------------------------------------------------------------------------------------

    def _lower(self, node: Node, lowering: Lowering, final: bool) -> None:
        loaded = range(1 if node.is_gather else 0, len(node.inputs))
        operands = [self._operand(node, k, lowering, final) for k in loaded]
        scalars = []
        for scalar in node.scalars:
            scalars.append(len(self._scalars))
            self._scalars.append(scalar)
        if node.kind == "reduction":
            lowering.begin_reduction(node, operands[0], scalars, self._one_point)
        elif node.is_gather:
            table = self._access(node.inputs[0], final)
            self._tables.add(table)
            stored = self._stored_dtypes(node)[0]
            self._values[node.index, 0] = lowering.gather(node, table, operands, scalars, stored)
        else:
            for k, value in enumerate(lowering.map(node, operands, scalars, self._stored_dtypes(node))):
                self._values[node.index, k] = value

    @property
    def _one_point(self) -> bool:
        """Whether the reductions of the group reduce dims of size one alone."""
        order = self.group.order
        return order is not None and not any(loop.dims for loop in order.reduced)

    def _stored_dtypes(self, node: Node) -> list[str]:
        return [self.trace.geometries[o.geometry].dtype for o in node.outputs]

    def _operand(self, node: Node, k: int, lowering: Lowering, final: bool) -> int:
        source = self.flow.sources[node.index, k]
        if source is not None and (source.node, source.output) in self._values:
            return self._values[source.node, source.output]
        operand = node.inputs[k]
        key = (operand.geometry, source.node if source is not None else -1, final)
        if key not in self._loads:
            access = self._access(operand, final)
            self._loads[key] = lowering.load(access, self.trace.geometries[operand.geometry].dtype, node.index)
        return self._loads[key]

    def _access(self, operand: Operand, final: bool) -> int:
        for index, slot in enumerate(self._slots):
            if slot.geometry == operand.geometry and slot.final == final:
                return index
        self._slots.append(_Slot(operand.operand, operand.geometry, final))
        return len(self._slots) - 1

    def _must_store(self, version: Version) -> bool:
        return version.in_memory(self.trace) or (version.node, version.output) in self.loaded

    # -- loops -------------------------------------------------------------------------------------------------------

    def _recipe(self, lowering: Lowering, stores: list[Store], final_stores: list[Store]) -> LaunchRecipe:
        space = self.trace.geometries[self.group.geometry]
        moves = [self._moves(slot, space.rank) for slot in self._slots]
        walks = moves + self._counted(space)
        order = self.group.order
        crossing = [False] * len(moves)
        if order is None:
            walk = walk_order(space) if self.in_strip else self._map_walk(space.shape, {s.access for s in stores})
            loops = merge(walk, walks) or [LoopDim(())]
            kinds, kind = "k" * len(loops), "map"
            if not self.in_strip and not any(i.op == "index" for i in lowering.program):
                loops, crossing = tiled(loops, moves, self._tables)
                if any(crossing):
                    kind = "tile"
        else:
            kept = merge(list(order.kept), walks)
            reduced = list(order.reduced)
            if order.inner:
                loops, kinds, kind = kept + reduced, "k" * len(kept) + "r" * len(reduced), "inner"
            else:
                loops = kept[:-1] + reduced + kept[-1:]
                kinds, kind = "k" * (len(kept) - 1) + "r" * len(reduced) + "k", "outer"
        accesses, sources = [], []
        for slot, move, crosses in zip(self._slots, moves, crossing, strict=True):
            row_loop = len(loops) - 2 if crosses else len(loops) - 1
            letters = [move.move(loop, innermost=i == row_loop) for i, loop in enumerate(loops)]
            if slot.final:
                letters = [("0", -1) if k == "r" else letter for letter, k in zip(letters, kinds, strict=True)]
            accesses.append(Access(self.trace.geometries[slot.geometry].dtype, "".join(m for m, _ in letters)))
            sources.append((slot.operand, [d for _, d in letters]))
        kernel = Kernel(
            kinds,
            tuple(accesses),
            tuple(_placed(i, loops, space.rank) for i in lowering.program),
            tuple(stores),
            tuple(lowering.epilogue),
            tuple(final_stores),
        )
        loop_dims = [loop.dims for loop in loops]
        recorded = [self.trace.nodes[n].recorded for n in lowering.nodes]
        geometries = [slot.geometry for slot in self._slots]
        return LaunchRecipe(kernel, kind, self.group.iteration, loop_dims, sources, geometries, self._scalars, recorded)

    def _counted(self, space: Geometry) -> list[Moves]:
        """What the indices of the group's ops ask of its loops."""
        kinds = {COUNTED[n.op] for n in self.group.points if n.op in COUNTED}
        return [Moves(counted(space, kind != "linear"), space.rank) for kind in sorted(kinds)]

    def _map_walk(self, shape: int, stored: set[int]) -> list[int]:
        """The order in which a map's points are walked, any of which gives the same bits: that of most accesses, where
        a store counts twice."""
        votes: dict[tuple[int, ...], int] = {}
        for access, slot in enumerate(self._slots):
            geometry = self.trace.geometries[slot.geometry]
            if geometry.shape == shape and access not in self._tables:
                walk = tuple(walk_order(geometry))
                votes[walk] = votes.get(walk, 0) + 1 + (access in stored)
        return list(max(votes.items(), key=lambda vote: vote[1])[0])

    def _moves(self, slot: _Slot, space_rank: int) -> Moves:
        geometry = self.trace.geometries[slot.geometry]
        if not slot.final:
            return Moves(geometry, space_rank)
        assert self.group.order is not None
        return Moves(geometry, space_rank, kept_dims(self.group.order, space_rank, geometry))


def _placed(instr: Instr, loops: list[LoopDim], rank: int) -> Instr:
    """An index over dims of the space as one over loop dims."""
    if instr.op != "index":
        return instr
    return replace(instr, attrs=index_dims(loops, rank + int(instr.attrs[0]) if instr.attrs else None))


def assemble(
    trace: Trace, flow: Dataflow, group: Group, loaded: set[tuple[int, int]], in_strip: bool = False
) -> LaunchRecipe:
    """The kernel of a group, and its launch recipe. `loaded`: (node, output) of what some step reads from memory;
    `in_strip`: it runs a few rows at a time, with others."""
    return Assembler(trace, flow, group, loaded, in_strip).run()
