"""Points: what a program asks of the loops around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from adaptive_eager.compiler.builder import ENTRY, Builder, CompileError, Val


class Points(Protocol):
    """The points of one vector: of a nest of loops, or of short rows."""

    b: Builder

    def load(self, access: int) -> Val:
        """Memory form of an access at the points."""

    def index(self, dims: Sequence[int]) -> Val:
        """Row-major linear index of the points over some loop dims, an i64 vector."""

    def picked(self, table: int, offset: str) -> Val:
        """Memory form of a table's elements at the points, `offset` elements on, a scalar at ROW."""

    def gathered(self, table: int, offset: Val) -> Val:
        """The same with an offset for each lane."""


def row_major_index(
    b: Builder, dims: Sequence[int], positions: Mapping[int, tuple[int, str]], vector_dim: int | None
) -> Val:
    """Row-major linear index over some loop dims at a vector of points, an i64 vector. `positions`: level and name of
    where the first of them is along each dim that is walked; the others follow it along `vector_dim`.

    If the indices follow each other, too, the builder is told.
    """
    total, at = "0", ENTRY
    weight = "1"  # of a step along a dim: the product of the later sizes
    step = ""
    terms = []
    for d in reversed(dims):
        if d not in positions:
            raise CompileError(f"index: dimension {d} is not walked here")
        level, name = positions[d]
        terms.append((level, b.put(level, f"mul i64 {name}, {weight}")))
        if d == vector_dim:
            step = weight
        if d != dims[0]:
            weight = b.put(ENTRY, f"mul i64 {weight}, %n{d}")
    for level, term in sorted(terms):
        at = level
        total = b.put(level, f"add i64 {total}, {term}")
    first = b.splat(total, "i64", at)
    if not step:
        return first
    lanes = b.lane_numbers("i64")
    index = b.add(first, lanes if step == "1" else b.mul(lanes, b.splat(step, "i64", ENTRY)))
    if step == "1":
        b.runs[index.ref] = total
    return index
