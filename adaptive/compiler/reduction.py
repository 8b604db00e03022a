"""Reduction: what one `reduce` instruction accumulates, its identity, and how two accumulations become one.

argmax and argmin carry a value and an index; the others carry a value. Within a chunk the index is relative to the
chunk and as narrow as the value allows, as vectors of mixed widths are slow. Combining is exact about ties (the
smaller index wins), so an arg reduction does not even depend on the order; the others have one fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from adaptive_eager.compiler import conversion
from adaptive_eager.compiler.builder import Builder, CompileError, Val, bits_of
from adaptive_eager.compiler.conversion import FLOATS
from adaptive_eager.compiler.loop_ir import Instr
from adaptive_eager.compiler.semantics import arithmetic, comparison

KINDS = ("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin")
#: Accumulator vectors a reduction, used in turn: hides the latency of the operation.
WAYS = 4


def _nowhere(ty: str) -> int:
    """Index of an arg reduction that has met nothing yet; every real index is smaller."""
    return 2 ** (bits_of(ty) - 1) - 1


@dataclass(frozen=True)
class Reduction:
    """One `reduce` instruction. `dtype` is what it accumulates in; bool is held as 0 or 1 in u8."""

    number: int
    kind: str
    argument: int
    compute: str
    result: str

    @staticmethod
    def of(number: int, instr: Instr) -> Reduction:
        """Raises CompileError for an unknown kind."""
        kind = str(instr.attrs[0]) if instr.attrs else ""
        if kind not in KINDS:
            raise CompileError(f"reduce: unknown kind {kind!r}, need one of {', '.join(KINDS)}")
        return Reduction(number, kind, instr.args[0], instr.compute, instr.dtype)

    @property
    def is_arg(self) -> bool:
        return self.kind.startswith("arg")

    @property
    def dtype(self) -> str:
        return "u8" if self.compute == "bool" else conversion.opmath(self.compute)

    @property
    def types(self) -> tuple[str, ...]:
        """LLVM element types of the parts within a chunk."""
        value = conversion.PROGRAM_TYPE[self.dtype]
        if not self.is_arg:
            return (value,)
        return value, "i64" if bits_of(value) == 64 else "i32"

    @property
    def total_types(self) -> tuple[str, ...]:
        """LLVM element types of the parts once chunks are combined: float sums are wider, indices are absolute."""
        value = "double" if self._sums_floats else self.types[0]
        return (value, *(["i64"] if self.is_arg else []))

    @property
    def _sums_floats(self) -> bool:
        """A long sum is as accurate as its chunks are short: what is added over chunks is added in double."""
        return self.kind == "sum" and self.dtype == "f32"

    def identity(self, b: Builder, types: tuple[str, ...] | None = None) -> tuple[Val, ...]:
        """Parts of a reduction over nothing, of `types` (default: those within a chunk)."""
        types = types or self.types
        value = b.const(types[0], self._identity_value())
        return (value, b.const(types[1], _nowhere(types[1]))) if self.is_arg else (value,)

    def absolute(self, b: Builder, parts: Sequence[Val], first: Val) -> tuple[Val, ...]:
        """Parts of a chunk as parts of the total: an index counts from the start of everything, where the chunk starts
        at `first`."""
        if self._sums_floats:
            return (b.convert("fpext", parts[0], "double"),)
        if not self.is_arg:
            return tuple(parts)
        index = parts[1]
        nowhere = b.icmp("eq", index, b.const(index.ty, _nowhere(index.ty)))
        wide = index if index.ty == "i64" else b.convert("sext", index, "i64")
        return parts[0], b.select(nowhere, b.const("i64", _nowhere("i64")), b.add(wide, first))

    def _identity_value(self) -> float | int:
        if self.kind in ("sum", "any"):
            return 0
        if self.kind in ("prod", "all"):
            return 1
        lowest = self.kind.endswith("max")
        if self.dtype in FLOATS:
            return -inf if lowest else inf
        if self.compute == "bool":
            return 0 if lowest else 1
        bits = bits_of(self.types[0])
        if self.dtype == "u8":
            return 0 if lowest else 255
        return -(2 ** (bits - 1)) if lowest else 2 ** (bits - 1) - 1

    def element(self, b: Builder, value: Val) -> Val:
        """Accumulator form of a value of the compute dtype."""
        return b.convert("zext", value, "i8") if self.compute == "bool" else value

    def combine(self, b: Builder, old: Sequence[Val], new: Sequence[Val]) -> tuple[Val, ...]:
        x, y = old[0], new[0]
        if self.kind == "sum":
            return (arithmetic.plus(b, x, y, "f64" if x.ty == "double" else self.dtype),)
        if self.kind == "prod":
            return (arithmetic.times(b, x, y, self.dtype),)
        if self.kind == "any":
            return (b.or_(x, y),)
        if self.kind == "all":
            return (b.and_(x, y),)
        if self.kind == "amax":
            return (comparison.maximum(b, x, y, self.dtype),)
        if self.kind == "amin":
            return (comparison.minimum(b, x, y, self.dtype),)
        wins = self._wins(b, old, new)
        return b.select(wins, y, x), b.select(wins, new[1], old[1])

    def accumulate(self, b: Builder, old: Sequence[Val], new: Sequence[Val]) -> tuple[Val, ...]:
        """`combine` for a new element later than every old one: the first of equals is already there."""
        if not self.is_arg:
            return self.combine(b, old, new)
        (x, index), y = old, new[0]
        if self.dtype in FLOATS:
            # Unordered or beyond, unless a NaN has already won.
            beyond = b.and_(b.fcmp("ugt" if self.kind == "argmax" else "ult", y, x), b.fcmp("ord", x, x))
        else:
            beyond = comparison.compare(b, "gt" if self.kind == "argmax" else "lt", y, x, self.dtype)
        # The first element counts even if it equals the identity.
        wins = b.or_(beyond, b.icmp("eq", index, b.const(index.ty, _nowhere(index.ty))))
        return b.select(wins, y, x), b.select(wins, new[1], index)

    def _wins(self, b: Builder, old: Sequence[Val], new: Sequence[Val]) -> Val:
        """Whether the new value is more extreme (NaN is the most), or as extreme and earlier."""
        x, y = old[0], new[0]
        beyond = comparison.compare(b, "gt" if self.kind == "argmax" else "lt", y, x, self.dtype)
        equal = comparison.compare(b, "eq", y, x, self.dtype)
        if self.dtype in FLOATS:
            x_nan, y_nan = b.is_nan(x), b.is_nan(y)
            beyond = b.or_(beyond, b.and_(y_nan, b.not_(x_nan)))
            equal = b.or_(equal, b.and_(x_nan, y_nan))
        return b.or_(beyond, b.and_(equal, b.icmp("slt", new[1], old[1])))

    def finished(self, b: Builder, parts: Sequence[Val]) -> Val:
        """Result of the instruction from its accumulated parts."""
        if self.is_arg:
            return conversion.cast(b, parts[1], "i64", self.result)
        if self.compute == "bool":
            return conversion.cast(b, self.extreme(b, parts), "bool", self.result)
        return conversion.cast(b, parts[0], "f64" if self._sums_floats else self.dtype, self.result)

    def extreme(self, b: Builder, parts: Sequence[Val]) -> Val:
        """The accumulated value in the dtype worked in: of an arg reduction, what it found."""
        return b.icmp("ne", parts[0], b.const("i8", 0)) if self.compute == "bool" else parts[0]
