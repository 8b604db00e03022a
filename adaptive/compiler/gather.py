"""Gather: where in its table an element is, and that it is inside."""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_eager.compiler.builder import Builder, Val


def offset_of(b: Builder, operands: Sequence[Val], wraps: bool) -> Val:
    """Elements from the start of a table, for operands (index, stride, size) * n: i64 vectors.

    An index out of range is reported and taken as 0. With `wraps`, negative ones count from the end.
    """
    total: Val | None = None
    for index, stride, size in zip(operands[::3], operands[1::3], operands[2::3], strict=True):
        place = b.select(b.icmp("slt", index, b.const("i64", 0)), b.add(index, size), index) if wraps else index
        outside = b.icmp("uge", place, size)  # unsigned: a negative place is a large one
        b.report_if_any(outside, index)
        offset = b.mul(b.select(outside, b.const("i64", 0), place), stride)
        total = offset if total is None else b.add(total, offset)
    assert total is not None
    return total
