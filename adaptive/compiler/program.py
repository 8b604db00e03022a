"""Program: emits the SSA program of a kernel for one vector of points."""

from __future__ import annotations

from collections.abc import Iterable

from adaptive_eager.compiler import conversion
from adaptive_eager.compiler.builder import ENTRY, Builder, CompileError, Val
from adaptive_eager.compiler.gather import gather
from adaptive_eager.compiler.loop_ir import Instr
from adaptive_eager.compiler.points import Points
from adaptive_eager.compiler.semantics import lookup


class Program:
    """Values of one program in one function.

    Instructions are emitted on demand: what nothing uses costs nothing, and an epilogue may use values of the program
    that do not depend on a reduced dimension. `values` may be preset (reduction results), and `extremes`: what arg
    reductions found, by the number of their instruction.
    """

    def __init__(self, builder: Builder, instructions: tuple[Instr, ...], dtypes: tuple[str, ...], points: Points):
        self.builder = builder
        self.instructions = instructions
        self.access_dtypes = dtypes
        self.points = points
        self.values: dict[int, Val] = {}
        self.extremes: dict[int, Val] = {}
        self._raw: dict[int, Val] = {}
        self._casts: dict[tuple[int, str, bool], Val] = {}

    def value(self, number: int) -> Val:
        """Value in program form, of the instruction's dtype."""
        found = self.values.get(number)
        if found is None:
            found = self.values[number] = self._emit(number)
        return found

    def emit_all(self, numbers: Iterable[int]) -> None:
        """Emit these values in order, so that loads come before anything stored."""
        for number in numbers:
            self.value(number)

    def stored(self, number: int, dtype: str) -> Val:
        """Value in memory form, cast to an access's dtype."""
        source = self.instructions[number]
        if source.op in ("load", "gather") and source.dtype == dtype and dtype != "bool":  # bools are made 0 or 1
            return self._loaded(number)
        value = self._cast(number, dtype, exact=False)
        return conversion.to_memory(self.builder, value, dtype)

    def _loaded(self, number: int) -> Val:
        """Memory form of a load or a gather."""
        found = self._raw.get(number)
        if found is None:
            instr = self.instructions[number]
            load = self._gather(instr) if instr.op == "gather" else self.points.load(int(instr.attrs[0]))
            found = self._raw[number] = load
        return found

    def _cast(self, number: int, dtype: str, exact: bool) -> Val:
        """Value cast to `dtype`; an exact scalar of a half type stays an unrounded float."""
        source = self.instructions[number].dtype
        if source == dtype:
            return self.value(number)
        key = (number, dtype, exact)
        found = self._casts.get(key)
        if found is None:
            target = conversion.opmath(dtype) if exact else dtype
            found = self._casts[key] = conversion.cast(self.builder, self.value(number), source, target)
        return found

    def operand(self, number: int, dtype: str) -> Val:
        """Value cast to the dtype an instruction computes in."""
        return self._cast(number, dtype, exact=False)

    def _emit(self, number: int) -> Val:
        instr = self.instructions[number]
        if instr.op in ("load", "gather"):
            return conversion.from_memory(self.builder, self._loaded(number), instr.dtype)
        if instr.op == "scalar":
            return self._scalar(instr)
        if instr.op == "constant":
            return self.builder.const("double", float.fromhex(str(instr.attrs[0])))
        if instr.op == "index":
            return self.points.index([int(d) for d in instr.attrs])
        if instr.op == "extreme":
            found = self.extremes[instr.args[0]]
            return conversion.cast(self.builder, found, conversion.opmath(instr.compute), instr.dtype)
        if instr.op == "reduce":
            raise CompileError("reduce: a reduction's value may only be used by the epilogue")
        return self._operation(instr)

    def _gather(self, instr: Instr) -> Val:
        operands = [self._cast(a, "i64", exact=False) for a in instr.args]
        self.builder.ordinal = instr.ordinal
        return gather(self.points, int(instr.attrs[0]), operands, wraps=bool(instr.attrs[1]))

    def _scalar(self, instr: Instr) -> Val:
        """A runtime scalar: read and spread once a call."""
        index, kind = instr.attrs
        ty = {"f": "double", "i": "i64"}[str(kind)]
        b = self.builder
        where = b.put(ENTRY, f"getelementptr i64, ptr %scalars, i64 {index}")
        return b.splat(b.put(ENTRY, f"load {ty}, ptr {where}, align 8"), ty, ENTRY)

    def _operation(self, instr: Instr) -> Val:
        b, compute = self.builder, instr.compute
        op = lookup(instr.op)
        op.check(len(instr.args), compute)
        operands: list[Val | None] = []
        scalars = set()
        for position, number in enumerate(instr.args):
            if number < 0:
                operands.append(None)
                continue
            dtype = (op.operands[position] if position < len(op.operands) else "") or compute
            source, may_be_exact = self.instructions[number], position in op.exact_scalars
            # Another float beside a half type can only be a tensor without dims, which torch takes as a Python scalar.
            other_float = compute in conversion.HALVES and source.dtype in conversion.FLOATS - {compute}
            is_scalar = source.op in ("scalar", "constant") or (may_be_exact and other_float)
            if is_scalar:
                scalars.add(position)
            operands.append(self._cast(number, dtype, is_scalar and may_be_exact))
        b.scalar_operands, b.ordinal = frozenset(scalars), instr.ordinal
        result = op.emit(b, operands, compute, instr.attrs)
        # Half types come back as an unrounded float, and are rounded here, once.
        return conversion.cast(b, result, op.result or conversion.opmath(compute), instr.dtype)
