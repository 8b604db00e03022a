"""Loop IR: what one kernel of the software NeuronCore computes, with symbolic sizes.

A kernel is a loop nest over `len(dims)` loop dimensions (outermost first), a list of memory accesses, a scalar SSA
program run at every point, and for reductions a second program run once for each kept point. Sizes, strides, pointers
and scalars are runtime values: a kernel serves every size of its layout class.

Values are numbered: the program of a kernel is one list of `Instr`, and the value of `program[i]` is `i`; the epilogue
continues the numbering (`epilogue[j]` is `len(program) + j`). Instructions that are not ATen ops: `load`, `gather`,
`scalar`, `constant`, `index`, `reduce`, `extreme`.

The canonical text of a kernel (`Kernel.text()`) is what the kernel's cache key is made from, so two kernels with equal
text are the same kernel. Nothing that is not in the text may change the generated code, but the target.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: dtype -> bytes an element. Names follow torch, shortened.
ITEMSIZE = {
    "bool": 1, "u8": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
}  # fmt: skip

#: Kinds of a loop dimension.
KEPT, REDUCED = "k", "r"
#: How an access moves along a loop dimension: unit stride (innermost dimension, or the one before it: see
#: Kernel.crosses), runtime stride, not at all.
UNIT, STRIDED, BROADCAST = "c", "s", "0"


@dataclass(frozen=True)
class Access:
    """One pointer parameter: element type, and how it moves along each loop dimension.

    `moves` has one letter a loop dimension (UNIT, STRIDED, BROADCAST), outermost first. In a reduction kernel an access
    used by the epilogue has BROADCAST for every reduced dimension.
    """

    dtype: str
    moves: str


@dataclass(frozen=True)
class Instr:
    """One operation on values.

    op      canonical op name (the ATen base name: "add", "gt", "gelu_backward", ...), or
            "load"   attrs = (access index,)         value of that access at this point, dtype = the access's dtype
            "gather" attrs = (access index, wraps)   element of that access, its *table*, `index * stride` elements from
                                                      where it is at this point, summed over args = (index, stride,
                                                      size) * n, all i64. An index that is not below its size, or is
                                                      negative and does not wrap, is a data error and stands for 0, so
                                                      no size may be 0. A table is not loaded from in any other way
            "scalar" attrs = (scalar index, kind)     runtime scalar; kind "f" (double bits) or "i" (int64 bits);
                                                      dtype is the value's type: kind "f" -> "f64", "i" -> "i64"
            "constant" attrs = (hexadecimal text of a float,)   dtype f64
            "index"  attrs = loop dims                row-major linear index of the point over these dims, in the order
                                                      given: 0 over none, the index along it over one; dtype "i64"
    args    value numbers of the operands in schema order; -1 for an absent optional operand
    compute dtype the op works in before opmath (what torch calls the common dtype): operands are cast to it first,
            bf16/f16 then compute in f32
    dtype   dtype of the result; the value is rounded to it
    attrs   structural arguments in schema order (ints, strings, bools, floats never)
    ordinal number of the trace node this came from, for the error flag; never part of the text
    """

    op: str
    args: tuple[int, ...]
    compute: str
    dtype: str
    attrs: tuple[int | str | bool, ...] = ()
    ordinal: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Store:
    """Write a value through an access (cast to the access's dtype as torch's `copy_` casts)."""

    value: int
    access: int


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    A map kernel has only KEPT dims, no epilogue; `stores` are done at each point. A reduction kernel orders its dims
    either  kept..., reduced...             (inner: vectorised along the last reduced dim), or
            kept..., reduced..., one kept    (outer: vectorised along the last kept dim).
    Its program may contain `reduce` instructions: Instr(op="reduce", args=(value,), compute=accumulator dtype,
    dtype=result dtype, attrs=(kind,)) with kind one of "sum prod amax amin any all argmax argmin"; a reduce value may
    be used only by the epilogue. There, Instr(op="extreme", args=(value,)) of an argmax or argmin is the number that it
    found at its index. `stores` of values of `program` are done at each point, `final_stores` once a kept
    point, after the epilogue.
    """

    dims: str
    accesses: tuple[Access, ...]
    program: tuple[Instr, ...]
    stores: tuple[Store, ...] = ()
    epilogue: tuple[Instr, ...] = ()
    final_stores: tuple[Store, ...] = ()

    @property
    def is_reduction(self) -> bool:
        return REDUCED in self.dims

    def crosses(self, access: int) -> bool:
        """Whether an access is contiguous along the last dim but one of a map kernel, and not along the last: what the
        kernel walks along its rows lies in columns there."""
        return not self.is_reduction and self.accesses[access].moves[-2:-1] == UNIT

    @property
    def is_tiled(self) -> bool:
        """Whether a map kernel is walked in tiles, and its items are tiles (adaptive/compiler/tile.py)."""
        return any(self.crosses(access) for access in range(len(self.accesses)))

    def text(self) -> str:
        """Canonical text: equal text means equal kernel."""
        lines = [f"dims {self.dims}"]
        lines += [f"access {a.dtype} {a.moves}" for a in self.accesses]
        lines += [_instr_text(i) for i in self.program]
        lines += [f"store %{s.value} -> {s.access}" for s in self.stores]
        if self.is_reduction:
            lines += ["epilogue"] + [_instr_text(i) for i in self.epilogue]
            lines += [f"store %{s.value} -> {s.access}" for s in self.final_stores]
        return "\n".join(lines)


def _instr_text(i: Instr) -> str:
    args = " ".join(f"%{a}" if a >= 0 else "-" for a in i.args)
    attrs = " ".join(repr(a) for a in i.attrs)
    return f"{i.op} ({args}) [{attrs}] {i.compute} -> {i.dtype}"
