"""Launch block: sizes, strides and scalars of one `nrt_execute` of a software kernel (`nrtx_launch` in nrt/nrtx.h)."""

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Chunks:
    """How a reduction is cut, as in `nrtx_kernel_args`. All zero for a map kernel."""

    n_chunks: int = 0
    chunks_per_o: int = 0
    o_per_chunk: int = 0
    n_per_chunk: int = 0


def scalar_bits(value: float | int) -> int:
    """The 64 raw bits of a kernel scalar: of a double for a float, of an int64 for an int or a bool."""
    form = "<d" if isinstance(value, float) else "<q"
    return int(struct.unpack("<Q", struct.pack(form, value))[0])


def launch_block(
    begin: int,
    end: int,
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    scalars: Sequence[float | int] = (),
    chunks: Chunks | None = None,
) -> bytes:
    """The block for work items [begin, end): `sizes` outermost first, one row of element strides an access."""
    if any(len(row) != len(sizes) for row in strides):
        raise ValueError(f"each access needs {len(sizes)} strides, got {[len(row) for row in strides]}")
    counts = (len(sizes), len(strides), len(scalars))
    numbers = [begin, end, *astuple(chunks or Chunks()), *counts, *sizes]
    for row in strides:
        numbers += row
    raw = [scalar_bits(value) for value in scalars]
    return struct.pack(f"<{len(numbers)}q{len(raw)}Q", *numbers, *raw)
