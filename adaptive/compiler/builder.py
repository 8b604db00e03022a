"""Builder: typed vector LLVM IR text, with automatic hoisting out of loops.

Every value is a vector of the target's lane count, named by its element type. A value knows the loop level at which it
is available; an operation is written at the highest level of its operands, so whatever depends on less than the loop
index leaves the loop by construction (no optimiser runs after us).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from adaptive_eager.compiler.target import Target

#: Loop levels: once a call, once a row, once a run of a row's blocks (full blocks, then the tail), once a block.
ENTRY, ROW, SEGMENT, BODY = range(4)

_FLOAT_BITS = {"half": 16, "float": 32, "double": 64}


class CompileError(ValueError):
    """A kernel asks for something the compiler does not know: an op, a dtype or an attribute."""


class Val(NamedTuple):
    """A vector value: its LLVM name or constant, its element type, and the loop level where it is available."""

    ref: str
    ty: str
    level: int


def bits_of(ty: str) -> int:
    """Width in bits of an LLVM element type."""
    return _FLOAT_BITS[ty] if ty in _FLOAT_BITS else int(ty[1:])


def suffix(ty: str) -> str:
    """How an element type is written in the name of an overloaded intrinsic."""
    return {"float": "f32", "double": "f64"}.get(ty, ty)


def literal(ty: str, value: float | int | bool) -> str:
    """LLVM text of a scalar constant, exact: floats are printed as bits."""
    if ty == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    if ty in ("float", "double"):
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if ty == "i1":
        return "true" if value else "false"
    return str(int(value))


class Builder:
    """Writes the operations of one function and collects what the module needs beside it.

    `streams[level]` is the text of each loop level; `declarations` and `helpers` map names of external and internal
    functions to their text and are shared by the functions of a module.
    """

    def __init__(
        self,
        target: Target,
        declarations: dict[str, str] | None = None,
        helpers: dict[str, str] | None = None,
        prefix: str = "v",
    ):
        """`prefix` of value names: two builders that write to one function need different ones."""
        self.target = target
        self.lanes = target.lanes
        self.streams: list[list[str]] = [[], [], [], []]
        self.declarations: dict[str, str] = {} if declarations is None else declarations
        self.helpers: dict[str, str] = {} if helpers is None else helpers
        #: About the instruction being emitted: which of its operands are Python scalars, and its trace ordinal.
        self.scalar_operands: frozenset[int] = frozenset()
        self.ordinal = 0
        #: Gives the mask of lanes that hold real elements; data errors in the others are not reported.
        self.real_lanes: Callable[[], Val] | None = None
        self.reports_errors = False
        #: i64 vectors that are s, s + 1, s + 2, ... at every point: name -> the scalar s.
        self.runs: dict[str, str] = {}
        #: Stack buffers of the function, for its entry block.
        self.locals: list[str] = []
        self._half: Builder | None = None
        self._prefix = f"%{prefix}"
        self._count = 0

    # -- text -------------------------------------------------------------------------------------------------------

    def vector(self, ty: str) -> str:
        """LLVM type of a vector of `ty`."""
        return f"<{self.lanes} x {ty}>"

    def put(self, level: int, text: str) -> str:
        """Append `name = text` at a level and return the name."""
        self._count += 1
        name = f"{self._prefix}{self._count}"
        self.streams[level].append(f"{name} = {text}")
        return name

    def line(self, level: int, text: str) -> None:
        """Append an instruction without a result."""
        self.streams[level].append(text)

    def declare(self, name: str, result: str, parameters: Sequence[str]) -> None:
        if name not in self.declarations:
            self.declarations[name] = f"declare {result} @{name}({', '.join(parameters)})"

    def local(self, ty: str) -> str:
        """A stack buffer of the function."""
        name = f"{self._prefix}.local{len(self.locals)}"
        self.locals.append(f"{name} = alloca {ty}, align 64")
        return name

    def half(self) -> Builder:
        """Builder of vectors of half the lanes, in the same function."""
        if self._half is None:
            self._half = Builder(self.target, self.declarations, self.helpers, prefix=self._prefix[1:] + "half")
            self._half.lanes = self.lanes // 2
            self._half.streams = self.streams
        return self._half

    # -- values -----------------------------------------------------------------------------------------------------

    def const(self, ty: str, value: float | int | bool) -> Val:
        return Val(f"splat ({ty} {literal(ty, value)})", ty, ENTRY)

    def bits(self, ty: str, pattern: int) -> Val:
        """Float constant from its bit pattern."""
        size, fmt = ("<I", "<f") if ty == "float" else ("<Q", "<d")
        return self.const(ty, struct.unpack(fmt, struct.pack(size, pattern))[0])

    def lane_numbers(self, ty: str) -> Val:
        """Constant vector 0, 1, 2, ... of an integer type."""
        return Val("<" + ", ".join(f"{ty} {i}" for i in range(self.lanes)) + ">", ty, ENTRY)

    def splat(self, scalar: str, ty: str, level: int) -> Val:
        """Vector of one scalar value."""
        v = self.vector(ty)
        one = self.put(level, f"insertelement {v} poison, {ty} {scalar}, i32 0")
        return Val(
            self.put(level, f"shufflevector {v} {one}, {v} poison, <{self.lanes} x i32> zeroinitializer"), ty, level
        )

    def binary(self, op: str, a: Val, b: Val) -> Val:
        level = a.level if a.level > b.level else b.level
        return Val(self.put(level, f"{op} <{self.lanes} x {a.ty}> {a.ref}, {b.ref}"), a.ty, level)

    def fadd(self, a: Val, b: Val) -> Val:
        return self.binary("fadd", a, b)

    def fsub(self, a: Val, b: Val) -> Val:
        return self.binary("fsub", a, b)

    def fmul(self, a: Val, b: Val) -> Val:
        return self.binary("fmul", a, b)

    def fdiv(self, a: Val, b: Val) -> Val:
        return self.binary("fdiv", a, b)

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        """a * b + c rounded once. Only within one op, never for two ops of a program."""
        return self.intrinsic("fma", a, b, c)

    def fneg(self, a: Val) -> Val:
        return Val(self.put(a.level, f"fneg {self.vector(a.ty)} {a.ref}"), a.ty, a.level)

    def add(self, a: Val, b: Val) -> Val:
        return self.binary("add", a, b)

    def sub(self, a: Val, b: Val) -> Val:
        return self.binary("sub", a, b)

    def mul(self, a: Val, b: Val) -> Val:
        return self.binary("mul", a, b)

    def and_(self, a: Val, b: Val) -> Val:
        return self.binary("and", a, b)

    def or_(self, a: Val, b: Val) -> Val:
        return self.binary("or", a, b)

    def xor(self, a: Val, b: Val) -> Val:
        return self.binary("xor", a, b)

    def not_(self, a: Val) -> Val:
        return self.binary("xor", a, self.const(a.ty, True if a.ty == "i1" else -1))

    def fcmp(self, predicate: str, a: Val, b: Val) -> Val:
        return self.binary(f"fcmp {predicate}", a, b)._replace(ty="i1")

    def icmp(self, predicate: str, a: Val, b: Val) -> Val:
        return self.binary(f"icmp {predicate}", a, b)._replace(ty="i1")

    def is_nan(self, a: Val) -> Val:
        return self.fcmp("uno", a, a)

    def select(self, condition: Val, a: Val, b: Val) -> Val:
        level = max(condition.level, a.level, b.level)
        v = self.vector(a.ty)
        return Val(
            self.put(level, f"select <{self.lanes} x i1> {condition.ref}, {v} {a.ref}, {v} {b.ref}"), a.ty, level
        )

    def masked_gather(self, ty: str, base: str, offset: Val) -> Val:
        """The elements of a type that lie `offset` elements, an i64 vector, after a pointer."""
        places = self.put(BODY, f"getelementptr {ty}, ptr {base}, {self.vector('i64')} {offset.ref}")
        pointers, mask, element = self.vector("ptr"), self.vector("i1"), self.vector(ty)
        name = f"llvm.masked.gather.v{self.lanes}{suffix(ty)}.v{self.lanes}p0"
        self.declare(name, element, (pointers, "i32", mask, element))
        call = f"call {element} @{name}({pointers} {places}, i32 1, {mask} splat (i1 true), {element} poison)"
        return Val(self.put(BODY, call), ty, BODY)

    def convert(self, op: str, a: Val, ty: str) -> Val:
        """A conversion instruction: zext, sext, trunc, sitofp, uitofp, fptosi, fptrunc, fpext, bitcast."""
        return Val(self.put(a.level, f"{op} {self.vector(a.ty)} {a.ref} to {self.vector(ty)}"), ty, a.level)

    def freeze(self, a: Val) -> Val:
        return Val(self.put(a.level, f"freeze {self.vector(a.ty)} {a.ref}"), a.ty, a.level)

    def as_bits(self, a: Val) -> Val:
        """The same bits as an integer vector."""
        return self.convert("bitcast", a, f"i{bits_of(a.ty)}")

    def intrinsic(self, name: str, *operands: Val) -> Val:
        """Call an overloaded LLVM intrinsic whose operands and result all have one type."""
        ty = operands[0].ty
        return self.call(f"llvm.{name}.v{self.lanes}{suffix(ty)}", ty, *operands)

    def call(self, function: str, result: str, *operands: Val) -> Val:
        """Call a function on vectors; declares it unless it is one of the module's helpers."""
        level = max(o.level for o in operands)
        if function not in self.helpers:
            self.declare(function, self.vector(result), [self.vector(o.ty) for o in operands])
        args = ", ".join(f"{self.vector(o.ty)} {o.ref}" for o in operands)
        return Val(self.put(level, f"call {self.vector(result)} @{function}({args})"), result, level)

    def fabs(self, a: Val) -> Val:
        return self.intrinsic("fabs", a)

    def sqrt(self, a: Val) -> Val:
        return self.intrinsic("sqrt", a)

    def copysign(self, a: Val, sign: Val) -> Val:
        return self.intrinsic("copysign", a, sign)

    def first_lane(self, a: Val, level: int) -> str:
        """Lane 0 as a scalar."""
        return self.put(level, f"extractelement {self.vector(a.ty)} {a.ref}, i32 0")

    def report_if_any(self, bad: Val, value: Val | None = None, which: int = 0) -> None:
        """Report a data error if any real lane is `bad`. `value`: an i64 vector whose first bad lane is told; which of
        the instruction's indices (fewer than 16) it is."""
        real = self.real_lanes() if self.real_lanes is not None else None
        if real is not None and (bad.level >= BODY or real.level <= bad.level):
            bad = self.and_(bad, real)  # what is known before a block is the same in all its lanes, some of them real
        level, bits = max(bad.level, value.level if value is not None else ENTRY), f"i{self.lanes}"
        mask = self.put(level, f"bitcast {self.vector('i1')} {bad.ref} to {bits}")
        hit = self.put(level, f"icmp ne {bits} {mask}, 0")
        if value is None:
            return self.report(level, hit)
        self.declare(f"llvm.cttz.{bits}", bits, (bits, "i1"))
        first = self.put(level, f"call {bits} @llvm.cttz.{bits}({bits} {mask}, i1 false)")
        lane = self.put(level, f"and {bits} {first}, {self.lanes - 1}")
        told = self.put(level, f"extractelement {self.vector('i64')} {value.ref}, {bits} {lane}")
        self.report(level, hit, told, which)

    def report(self, level: int, hit: str, value: str | None = None, which: int = 0) -> None:
        """Set the launch's error word if `hit`, without a branch and without racing others. `value`: an i64, held
        within 44 bits.

        A store that always happens could erase what another thread reported, so an innocent block reads and writes a
        private word instead.
        """
        self.reports_errors = True
        word = self.put(level, f"select i1 {hit}, ptr %error, ptr %noerror")
        old = self.put(level, f"load i64, ptr {word}")
        first = self.put(level, f"icmp eq i64 {old}, 0")
        code = str(self.ordinal + 1)
        if value is not None:
            for name, limit in (("smin", 2**43 - 1), ("smax", -(2**43))):
                self.declare(f"llvm.{name}.i64", "i64", ("i64", "i64"))
                value = self.put(level, f"call i64 @llvm.{name}.i64(i64 {value}, i64 {limit})")
            high = self.put(level, f"shl i64 {value}, 20")
            code = self.put(level, f"or i64 {high}, {which << 16 | self.ordinal + 1}")
        new = self.put(level, f"select i1 {first}, i64 {code}, i64 {old}")
        self.line(level, f"store i64 {new}, ptr {word}")
