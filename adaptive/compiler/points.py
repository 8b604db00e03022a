"""Points: what a program asks of the loops around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from adaptive_eager.compiler.builder import Builder, Val


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
