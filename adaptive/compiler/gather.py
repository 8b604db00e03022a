"""Gather: elements of a table at integers that the kernel loads or computes.

Where no index changes along the vector dimension, it picks a row of the table, which is then loaded like any other row;
else each lane has a place of its own. An index out of range is reported and taken as 0, so that nothing is read outside
the table. With `wraps`, negative ones count from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from adaptive_eager.compiler.builder import ROW, Builder, Val
from adaptive_eager.compiler.points import Points


class Place(NamedTuple):
    """An index, `at`, along a dim of a table: i64 vectors."""

    at: Val
    stride: Val
    size: Val


def gather(points: Points, table: int, operands: Sequence[Val], wraps: bool) -> Val:
    """Memory form of elements of the access `table`. `operands`: (index, stride, size) * n, i64 vectors."""
    where = [Place(*operands[k : k + 3]) for k in range(0, len(operands), 3)]
    if all(v.level <= ROW for v in operands):
        return points.picked(table, _offset_of_row(points.b, where, wraps))
    return points.gathered(table, _offsets(points.b, where, wraps))


def _offsets(b: Builder, where: Sequence[Place], wraps: bool) -> Val:
    """Elements from the start of a table, for each lane."""
    zero = b.const("i64", 0)
    total: Val | None = None
    for which, (index, stride, size) in enumerate(where):
        place = b.select(b.icmp("slt", index, zero), b.add(index, size), index) if wraps else index
        outside = b.icmp("uge", place, size)  # unsigned: a negative place is a large one
        b.report_if_any(outside, index, which)
        offset = b.mul(b.select(outside, zero, place), stride)
        total = offset if total is None else b.add(total, offset)
    assert total is not None
    return total


def _offset_of_row(b: Builder, where: Sequence[Place], wraps: bool) -> str:
    """The same of lanes that are all alike, as a scalar at ROW."""
    level, total = ROW, "0"
    for which, vectors in enumerate(where):
        index, stride, size = (b.first_lane(v, level) for v in vectors)
        place = index
        if wraps:
            negative = b.put(level, f"icmp slt i64 {index}, 0")
            from_end = b.put(level, f"add i64 {index}, {size}")
            place = b.put(level, f"select i1 {negative}, i64 {from_end}, i64 {index}")
        outside = b.put(level, f"icmp uge i64 {place}, {size}")
        b.report(level, outside, index, which)
        inside = b.put(level, f"select i1 {outside}, i64 0, i64 {place}")
        offset = b.put(level, f"mul i64 {inside}, {stride}")
        total = b.put(level, f"add i64 {total}, {offset}")
    return total
