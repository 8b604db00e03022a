"""Reduce kernel: cuts the reduced points into chunks, accumulates each chunk, combines the chunks in order, finishes.

`@chunk` accumulates one chunk of one item; `@k` calls it in phases 0 and 1, combines in phases 0 and 2, and runs the
epilogue. What goes to which accumulator depends on the sizes alone, so the result does not depend on who ran what.
How accumulators are held differs between the two forms: inner_reduction.py and outer_reduction.py. Short rows have a
form of their own: short_reduction.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_eager.compiler.builder import Builder, CompileError
from adaptive_eager.compiler.inner_reduction import InnerChunk, InnerFinish
from adaptive_eager.compiler.loop_ir import KEPT, REDUCED, Kernel
from adaptive_eager.compiler.outer_reduction import OuterChunk, OuterFinish
from adaptive_eager.compiler.reduction_parts import Layout, column_block, has_short_form, is_inner, reductions_of
from adaptive_eager.compiler.short_reduction import ShortRows

__all__ = ["accumulator_bytes", "column_block", "emit_reduction"]


def accumulator_bytes(kernel: Kernel, lanes: int) -> int:
    """Bytes of one chunk's accumulators, rounded up to 64."""
    return Layout(kernel, reductions_of(kernel), lanes).bytes


def emit_reduction(kernel: Kernel, b: Builder) -> list[str]:
    """Functions of a reduction kernel. Raises CompileError for a form the loop IR does not allow."""
    check_dims(kernel.dims)
    layout = Layout(kernel, reductions_of(kernel), b.lanes)
    parts: Sequence[InnerChunk | InnerFinish | OuterChunk | OuterFinish]
    if is_inner(kernel):
        parts = InnerChunk(kernel, b, layout), InnerFinish(kernel, b, layout)
    else:
        parts = OuterChunk(kernel, b, layout), OuterFinish(kernel, b, layout)
    text = [line for part in parts for line in part.text()]
    return text + (ShortRows(kernel, b).text() if has_short_form(kernel) else [])


def check_dims(dims: str) -> None:
    """Raises CompileError unless dims are kept..., reduced..., and at most one kept."""
    first, count = dims.index(REDUCED), dims.count(REDUCED)
    tail = dims[first + count :]
    if dims[:first] != KEPT * first or dims[first : first + count] != REDUCED * count or tail not in ("", KEPT):
        raise CompileError(f"reduction dims {dims!r}: need kept, reduced, and at most one kept dimension")
