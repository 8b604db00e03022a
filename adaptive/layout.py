"""Layout: the loop dimensions of a kernel, and how each tensor moves along them, from layout classes alone."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from adaptive_eager.compiler.loop_ir import BROADCAST, STRIDED, UNIT
from adaptive_eager.trace import CHAINED, RANK, SIZE_ONE, STRIDE_ONE, STRIDE_ZERO, Geometry, Node

#: Reductions whose result names a position: positions are counted in the order of the dims as the user sees them.
POSITIONAL = ("argmax", "argmin")

#: Most tensors that cross the tiles of a kernel: each takes a buffer on the stack.
MAX_CROSSING = 4


class LoopDim(NamedTuple):
    """Adjacent dims of the iteration space walked as one loop, outermost first. Empty: one single point."""

    dims: tuple[int, ...]


@dataclass(frozen=True)
class ReductionOrder:
    """The order in which a reduction walks its input.

    It depends on the input's layout alone, never on what is fused with it: that order is part of the result.

    inner    vectorised along the last reduced loop dim (else along the last kept one)
    kept     dims of the kept points, in walking order
    reduced  loop dims of the reduced points
    """

    inner: bool
    kept: tuple[int, ...]
    reduced: tuple[LoopDim, ...]


def walk_order(geometry: Geometry) -> list[int]:
    """Dims of size other than one, in falling order of their strides: the order in which memory is walked."""
    dims = [d for d in range(geometry.rank) if not geometry.codes[d] & SIZE_ONE]
    if geometry.contiguous:
        return dims
    return sorted(dims, key=lambda d: -1 if geometry.codes[d] & STRIDE_ZERO else geometry.codes[d] & RANK)


class Moves:
    """How a tensor moves along the dims of an iteration space.

    `dims` gives the tensor's dim for each dim of the space, or -1; by default its shape broadcasts to the space.
    """

    def __init__(self, geometry: Geometry, space_rank: int, dims: Sequence[int] | None = None):
        self.geometry = geometry
        self._dims = dims if dims is not None else [d - (space_rank - geometry.rank) for d in range(space_rank)]
        self._walk = walk_order(geometry)

    def dim(self, d: int) -> int:
        """The tensor's dim that moves with dim `d` of the space, or -1."""
        own = self._dims[d]
        if own < 0 or self.geometry.codes[own] & (SIZE_ONE | STRIDE_ZERO):
            return -1
        return own

    def chained(self, outer: int, inner: int) -> bool:
        """Whether the tensor walks the two dims of the space as if they were one."""
        a, b = self.dim(outer), self.dim(inner)
        if a < 0 or b < 0:
            return a < 0 and b < 0
        if self._walk.index(b) != self._walk.index(a) + 1:
            return False
        return self.geometry.contiguous or bool(self.geometry.codes[a] & CHAINED)

    def move(self, loop: LoopDim, innermost: bool) -> tuple[str, int]:
        """(letter of loop_ir.Access.moves, tensor dim whose stride it moves by or -1) along a loop dim."""
        if not loop.dims:
            return UNIT if innermost else BROADCAST, -1
        own = self.dim(loop.dims[-1])
        if own < 0:
            return BROADCAST, -1
        return UNIT if innermost and self.unit(loop) else STRIDED, own

    def unit(self, loop: LoopDim) -> bool:
        """Whether the tensor is contiguous along a loop dim."""
        own = self.dim(loop.dims[-1]) if loop.dims else -1
        if own < 0:
            return False
        return own == self._walk[-1] if self.geometry.contiguous else bool(self.geometry.codes[own] & STRIDE_ONE)


def merge(dims: list[int], tensors: list[Moves]) -> list[LoopDim]:
    """Joins neighbouring dims that every tensor walks as one."""
    loops: list[list[int]] = []
    for d in dims:
        if loops and all(t.chained(loops[-1][-1], d) for t in tensors):
            loops[-1].append(d)
        else:
            loops.append([d])
    return [LoopDim(tuple(loop)) for loop in loops]


def tiled(loops: list[LoopDim], tensors: list[Moves], tables: Container[int] = ()) -> tuple[list[LoopDim], list[bool]]:
    """Loops of a map in the order in which tiles are walked, and which tensors cross them: those that are contiguous
    along the last loop but one, where others are along the last. No tensor crosses where rows are as good. Those whose
    numbers are in `tables` do not lie in tiles."""
    *outer, last = loops
    across = []
    if last.dims:
        lying = [t for k, t in enumerate(tensors) if k not in tables]
        across = [t for t in lying if t.dim(last.dims[-1]) >= 0 and not t.unit(last)]
    votes = [sum(t.unit(loop) for t in across) for loop in outer]
    most = max(votes, default=0)
    if not 0 < most <= MAX_CROSSING or not any(t.unit(last) for t in tensors):
        return loops, [False] * len(tensors)
    other = outer.pop(votes.index(most))
    return [*outer, other, last], [any(t is c for c in across) and t.unit(other) for t in tensors]


def counted(space: Geometry, dims: bool) -> Geometry:
    """A geometry that is walked as an index over the space is counted: the row-major index of a point, or (`dims`) the
    indices along single dims, for which no two dims may be one loop."""
    sizes = [code & SIZE_ONE for code in space.codes]
    if not dims:
        return space._replace(contiguous=True, codes=bytes(sizes))
    return space._replace(contiguous=False, codes=bytes(code | d for d, code in enumerate(sizes)))


def index_dims(loops: Sequence[LoopDim], dim: int | None) -> tuple[int, ...]:
    """Loop dims over which the index along dim `dim` of the space is counted (None: the row-major index of the point).
    The loops must follow `counted`."""
    found = [(loop.dims, i) for i, loop in enumerate(loops) if loop.dims and (dim is None or dim in loop.dims)]
    return tuple(i for _, i in sorted(found))


def reduction_order(node: Node, source: Geometry) -> ReductionOrder:
    """The order of a reduction node over its input."""
    mask = int(node.attrs[0])
    walk = walk_order(source)
    reduced = [d for d in walk if mask >> d & 1]
    kept = [d for d in walk if not mask >> d & 1]
    inner = not kept or (bool(reduced) and walk.index(reduced[-1]) > walk.index(kept[-1]))
    if not reduced:
        inner = True
    if node.op in POSITIONAL:
        reduced.sort()
    loops = merge(reduced, [Moves(source, source.rank)])
    return ReductionOrder(inner, tuple(kept), tuple(loops) or (LoopDim(()),))


def kept_dims(order: ReductionOrder, rank: int, tensor: Geometry) -> list[int]:
    """For each of the `rank` dims of a reduction's space, the dim of a tensor of the kept points that moves with it, or
    -1. Whether the tensor has the reduced dims as dims of size one, or not at all, makes no difference; one without
    moving dims moves with none."""
    own = [d for d in range(tensor.rank) if not tensor.codes[d] & SIZE_ONE]
    dims = [-1] * rank
    if own:
        for d, moving in zip(sorted(order.kept), own, strict=True):
            dims[d] = moving
    return dims


def can_follow(order: ReductionOrder, space: Geometry, tensor: Geometry) -> bool:
    """Whether a tensor can be walked in a reduction's order: it walks the merged reduced dims as one, too."""
    moves = Moves(tensor, space.rank)
    return all(moves.chained(a, b) for loop in order.reduced for a, b in pairwise(loop.dims))
