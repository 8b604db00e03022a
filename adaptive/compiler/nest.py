"""Nest: the loops around a vector body - rows, and within a row the full blocks and the tail.

Dimensions of a nest are row dimensions, walked by an odometer, and at most one vector dimension. The body is emitted
once. The last, partial block of a row runs through the same body: its inputs are first copied to a small buffer on the
stack and its outputs copied back, so an element's bits never depend on where the row ends. Copies are of masked vectors
where the target has them: a row of a few elements is nothing but such a block.

Names in the generated text, for access j:  %p<j> pointer at loop level ENTRY, %r<j> at ROW, %b<j> and %s<j> base
pointer and element stride of the running SEGMENT, %st<j> staging buffer. Rows that gathers pick from their tables are
accesses of the nest too, numbered after the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adaptive_eager.compiler import conversion
from adaptive_eager.compiler.builder import (
    BODY,
    ENTRY,
    ROW,
    SEGMENT,
    Builder,
    Val,
    bits_of,
    literal,
    suffix,
)
from adaptive_eager.compiler.loop_ir import BROADCAST, ITEMSIZE, STRIDED, UNIT, Access
from adaptive_eager.compiler.points import row_major_index

#: How far ahead of its use memory is asked for.
PREFETCH_BYTES = 4096
#: 1 in memory form: padding that no operation objects to.
_ONE = {"bf16": 0x3F80, "f16": 0x3C00}
#: Byte offsets in nrtx_kernel_args (native/nrt/kernel_abi.h).
ARGS = {
    "ptrs": 0, "sizes": 8, "strides": 16, "scalars": 24, "error": 32, "partials": 40, "phase": 48, "n_chunks": 56,
    "chunks_per_o": 64, "o_per_chunk": 72, "n_per_chunk": 80,
}  # fmt: skip


def memory_type(access: Access) -> str:
    """LLVM type of an element of an access."""
    return conversion.MEMORY_TYPE[access.dtype]


def ones(access: Access) -> str:
    """A vector of padding for an access."""
    ty = memory_type(access)
    return f"splat ({ty} {_ONE.get(access.dtype) or literal(ty, 1)})"


@dataclass(frozen=True)
class Carried:
    """A value carried from block to block: name stem, LLVM type, and its reference at the end of a block."""

    stem: str
    type: str
    new: str


def load_arguments(names: Sequence[str]) -> list[str]:
    """Read members of the argument structure into values of the same names."""
    lines = []
    for name in names:
        ty = "ptr" if ARGS[name] < ARGS["phase"] else "i64"
        lines.append(f"%{name}.at = getelementptr i8, ptr %args, i64 {ARGS[name]}")
        lines.append(f"%{name} = load {ty}, ptr %{name}.at, align 8")
    return lines


def load_sizes(dims: Sequence[int]) -> list[str]:
    """Read loop sizes into %n<d>."""
    lines = []
    for d in dims:
        lines.append(f"%n{d}.at = getelementptr i64, ptr %sizes, i64 {d}")
        lines.append(f"%n{d} = load i64, ptr %n{d}.at, align 8")
    return lines


def decompose(dims: Sequence[int], linear: str, index: str) -> list[str]:
    """%<index><d> for each of `dims` from a row-major linear index. Needs %n<d>."""
    lines = []
    for d in reversed(dims[1:]):
        lines.append(f"%{index}{d} = urem i64 {linear}, %n{d}")
        lines.append(f"%{index}{d}.up = udiv i64 {linear}, %n{d}")
        linear = f"%{index}{d}.up"
    if dims:
        lines.append(f"%{index}{dims[0]} = add i64 {linear}, 0")
    return lines


class Nest:
    """Access arithmetic and loop text of one nest in one function."""

    def __init__(
        self,
        builder: Builder,
        accesses: Sequence[Access],
        loads: set[int],
        stores: set[int],
        row_dims: Sequence[int],
        vector_dim: int | None,
        outer_dims: Sequence[int] = (),
        one_point: bool = False,
        tables: Iterable[int] = (),
        prefetches: bool = True,
    ):
        """`outer_dims` are fixed for the whole nest: their offsets are in the ENTRY pointers. A nest of `one_point` has
        no loops at all: its operations are in ENTRY, and it is written by `store_point`. `tables`: accesses of gathers,
        none of them among the loads or stores. `prefetches`: whether the nest walks memory in order."""
        self.b = builder
        self.prefetches = prefetches
        self.accesses = list(accesses)
        self.loads = sorted(loads)
        self.stores = sorted(stores)
        self.tables = sorted(tables)
        self.picked_rows: list[int] = []  # of tables
        self.used = sorted({*loads, *stores, *self.tables})
        self.row_dims = list(row_dims)
        self.outer_dims = list(outer_dims)
        self.vector_dim = vector_dim
        self.one_point = one_point
        self._mask: Val | None = None
        self._real_bits: dict[str, Val] = {}
        self._loaded: dict[int, Val] = {}

    # -- how accesses move ------------------------------------------------------------------------------------------

    def moves(self, access: int, dim: int | None) -> str:
        moves = self.accesses[access].moves
        return BROADCAST if dim is None or dim >= len(moves) else moves[dim]

    def _in_rows(self, access: int) -> bool:
        return access in self.picked_rows or any(self.moves(access, d) != BROADCAST for d in self.row_dims)

    @property
    def _moving(self) -> list[int]:
        """Accesses that are walked along the vector dimension, in blocks."""
        walked = [j for j in self.used if j not in self.tables] + self.picked_rows
        return [j for j in walked if self._along_vector(j)]

    def _along_vector(self, access: int) -> bool:
        # A store that does not move along the vector dimension belongs to a nest of one point.
        return self.moves(access, self.vector_dim) != BROADCAST or access in self.stores

    def memory_type(self, access: int) -> str:
        return memory_type(self.accesses[access])

    # -- the body ---------------------------------------------------------------------------------------------------

    def load(self, access: int) -> Val:
        """Memory form of an access at the block's points, loaded at the highest level it is constant at."""
        found = self._loaded.get(access)
        if found is None:
            found = self._loaded[access] = self._load(access)
        return found

    def _load(self, access: int) -> Val:
        b, ty = self.b, self.memory_type(access)
        move = self.moves(access, self.vector_dim)
        if move == BROADCAST and (self.one_point or access not in self.stores):
            level, pointer = (ROW, f"%r{access}") if self._in_rows(access) else (ENTRY, f"%p{access}")
            return b.splat(b.put(level, f"load {ty}, ptr {pointer}, align 1"), ty, level)
        if move == UNIT:
            where = b.put(BODY, f"getelementptr {ty}, ptr %b{access}, i64 %i")
            self._prefetch(access, where, writes=False)
            return Val(b.put(BODY, f"load {b.vector(ty)}, ptr {where}, align 1"), ty, BODY)
        gathered = "poison"
        for lane, where in enumerate(self._lane_pointers(access)):
            element = b.put(BODY, f"load {ty}, ptr {where}, align 1")
            gathered = b.put(BODY, f"insertelement {b.vector(ty)} {gathered}, {ty} {element}, i32 {lane}")
        return Val(gathered, ty, BODY)

    def _prefetch(self, access: int, where: str, writes: bool) -> None:
        """Asks for the memory that an access in order will be at soon.

        The CPU does so by itself, but not across pages, nor from one kernel of a strip to the next one's rows: what is
        bound by memory runs up to twice as fast.
        """
        b, ty = self.b, self.memory_type(access)
        dims = [*self.outer_dims, *self.row_dims]
        if not self.prefetches or access in self.picked_rows:
            return
        if dims and (self.moves(access, dims[-1]) == BROADCAST or self._stride(access, dims[-1]) == "1"):
            return
        ahead = str(PREFETCH_BYTES * 8 // bits_of(ty))
        if dims:  # only if rows follow each other without a gap
            gapless = b.put(ENTRY, f"icmp eq i64 {self._stride(access, dims[-1])}, %n{self.vector_dim}")
            ahead = b.put(ENTRY, f"select i1 {gapless}, i64 {ahead}, i64 0")
        far = b.put(BODY, f"getelementptr {ty}, ptr {where}, i64 {ahead}")
        b.declare("llvm.prefetch.p0", "void", ("ptr", "i32", "i32", "i32"))
        b.line(BODY, f"call void @llvm.prefetch.p0(ptr {far}, i32 {int(writes)}, i32 3, i32 1)")

    def row_base(self, access: int) -> str:
        """Pointer to where an access is at the start of the running row."""
        return f"%r{access}" if self._in_rows(access) else f"%p{access}"

    def pick_row(self, table: int, offset: str) -> int:
        """The row of a table that is `offset` elements, a scalar at ROW, from where the table is: an access."""
        b, v, row = self.b, self.vector_dim, len(self.accesses)
        self.accesses.append(self.accesses[table])
        self.picked_rows.append(row)
        self.loads.append(row)
        b.line(ROW, f"%r{row} = getelementptr {self.memory_type(table)}, ptr {self.row_base(table)}, i64 {offset}")
        if self.moves(table, v) == STRIDED:
            b.line(ENTRY, f"%s{row}.{v} = add i64 %s{table}.{v}, 0")
        return row

    def picked(self, table: int, offset: str) -> Val:
        """Memory form of a row of a table: see pick_row."""
        return self.load(self.pick_row(table, offset))

    def gathered(self, table: int, offset: Val) -> Val:
        """Memory form of a table's elements at an offset for each lane, from where it is at the block's points."""
        b, v = self.b, self.vector_dim
        move = self.moves(table, v)
        if move != BROADCAST:
            columns = b.add(b.splat("%i", "i64", BODY), b.lane_numbers("i64"))
            if move == STRIDED:
                columns = b.mul(columns, b.splat(f"%s{table}.{v}", "i64", ENTRY))
            offset = b.add(offset, columns)
        # Lanes past the row's end read its first element, which is there.
        offset = b.select(self.real_lanes(), offset, b.const("i64", 0))
        return b.masked_gather(self.memory_type(table), self.row_base(table), offset)

    def _lane_pointers(self, access: int) -> list[str]:
        b, ty = self.b, self.memory_type(access)
        offset = b.put(BODY, f"mul i64 %i, %s{access}")
        pointers = []
        for lane in range(b.lanes):
            if lane:
                offset = b.put(BODY, f"add i64 {offset}, %s{access}")
            pointers.append(b.put(BODY, f"getelementptr {ty}, ptr %b{access}, i64 {offset}"))
        return pointers

    def store(self, access: int, value: Val) -> None:
        """Write the memory form of a value to the block's points."""
        b, ty = self.b, self.memory_type(access)
        if self.moves(access, self.vector_dim) == UNIT:
            where = b.put(BODY, f"getelementptr {ty}, ptr %b{access}, i64 %i")
            if access not in self.loads:
                self._prefetch(access, where, writes=True)
            # Volatile where the access is also loaded, or LLVM may turn `a = select(m, x, a)` into a masked store,
            # which is microcode on some CPUs.
            store = "store volatile" if access in self.loads else "store"
            b.line(BODY, f"{store} {b.vector(ty)} {value.ref}, ptr {where}, align 1")
            return
        for lane, where in enumerate(self._lane_pointers(access)):
            element = b.put(BODY, f"extractelement {b.vector(ty)} {value.ref}, i32 {lane}")
            b.line(BODY, f"store {ty} {element}, ptr {where}, align 1")

    def store_point(self, access: int, value: Val) -> None:
        """Write lane 0 of a memory form to the one point of a nest without loops."""
        b, ty = self.b, self.memory_type(access)
        element = b.put(ENTRY, f"extractelement {b.vector(ty)} {value.ref}, i32 0")
        b.line(ENTRY, f"store {ty} {element}, ptr %p{access}, align 1")

    def _inside(self, ty: str, level: int) -> Val:
        """Mask of the block's lanes inside the row, compared in an integer type."""
        b = self.b
        count = b.put(SEGMENT, f"trunc i64 %valid to {ty}" if ty != "i64" else "add i64 %valid, 0")
        limit = b.splat(count, ty, SEGMENT)
        return Val(b.put(level, f"icmp ult {b.vector(ty)} {b.lane_numbers(ty).ref}, {limit.ref}"), "i1", level)

    def real_lanes(self) -> Val:
        """Mask of the block's lanes inside the row."""
        if self._mask is None:
            # Compared in the body: a mask that lives across blocks would be widened to another shape and back.
            self._mask = self._inside("i32", BODY)
        return self._mask

    def only_real(self, value: Val, otherwise: Val) -> Val:
        """`value` in the block's lanes inside the row, the constant `otherwise` beyond.

        Bits are masked by integers that are made once a segment: a comparison and a blend in every block would be the
        dearest part of a sum.
        """
        b, ty = self.b, f"i{bits_of(value.ty)}"
        if ty not in self._real_bits:
            self._real_bits[ty] = b.convert("sext", self._inside(ty, SEGMENT), ty)
        real = self._real_bits[ty]
        bits = b.and_(self._bits(value), real)
        if otherwise != b.const(value.ty, 0):
            bits = b.or_(bits, b.and_(self._bits(otherwise), b.not_(real)))
        return bits if value.ty == ty else b.convert("bitcast", bits, value.ty)

    def _bits(self, value: Val) -> Val:
        return value if value.ty.startswith("i") else self.b.as_bits(value)

    # -- indices ----------------------------------------------------------------------------------------------------

    def index(self, dims: Sequence[int]) -> Val:
        """Row-major linear index of the block's points over `dims`, an i64 vector.

        A block past the row's end goes on counting. If the points of a block follow each other, the builder is told.
        """
        positions = {d: (ENTRY, f"%x{d}") for d in self.outer_dims} | {d: (ROW, f"%i{d}") for d in self.row_dims}
        if self.vector_dim is not None:
            positions[self.vector_dim] = (BODY, "%i")
        return row_major_index(self.b, dims, positions, self.vector_dim)

    # -- text of the loops ------------------------------------------------------------------------------------------

    def staging(self) -> list[str]:
        """Stack buffers, for the entry block."""
        return self.b.locals + [f"%st{j} = alloca {self.b.vector(self.memory_type(j))}, align 64" for j in self._moving]

    def entry_pointers(self) -> list[str]:
        """Pointers and strides of every access. Needs %ptrs, %strides, and %x<d> for the outer dimensions."""
        lines = []
        rank = max((len(a.moves) for a in self.accesses), default=0)
        for j in self.used:
            first = f"%p{j}" if not self._outer_moves(j) else f"%p{j}.base"
            lines.append(f"%p{j}.at = getelementptr ptr, ptr %ptrs, i64 {j}")
            lines.append(f"{first} = load ptr, ptr %p{j}.at, align 8")
            moving = [d for d in (*self.outer_dims, *self.row_dims, self.vector_dim) if d is not None]
            for d in moving:
                if self.moves(j, d) not in (BROADCAST, UNIT) or (self.moves(j, d) == UNIT and d in self.outer_dims):
                    lines.append(f"%s{j}.{d}.at = getelementptr i64, ptr %strides, i64 {j * rank + d}")
                    lines.append(f"%s{j}.{d} = load i64, ptr %s{j}.{d}.at, align 8")
            lines += self._offset(j, self._outer_moves(j), first, f"%p{j}", "x")
        return lines

    def _outer_moves(self, access: int) -> list[int]:
        return [d for d in self.outer_dims if self.moves(access, d) != BROADCAST]

    def row_pointers(self) -> list[str]:
        """%r<j> from %p<j> and the row's indices %i<d>."""
        lines = []
        for j in self.used:
            dims = [d for d in self.row_dims if self.moves(j, d) != BROADCAST]
            lines += self._offset(j, dims, f"%p{j}", f"%r{j}", "i")
        return lines

    def _stride(self, access: int, dim: int) -> str:
        return "1" if self.moves(access, dim) == UNIT and dim not in self.outer_dims else f"%s{access}.{dim}"

    def _offset(self, j: int, dims: list[int], base: str, result: str, index: str) -> list[str]:
        """result = base + sum of index * stride over dims."""
        if not dims:
            return [] if base == result else [f"{result} = getelementptr i8, ptr {base}, i64 0"]
        lines, total = [], ""
        for d in dims:
            lines.append(f"{result}.m{d} = mul i64 %{index}{d}, {self._stride(j, d)}")
            if total:
                lines.append(f"{result}.a{d} = add i64 {total}, {result}.m{d}")
            total = f"{result}.m{d}" if not total else f"{result}.a{d}"
        lines.append(f"{result} = getelementptr {self.memory_type(j)}, ptr {base}, i64 {total}")
        return lines

    def odometer(self) -> list[str]:
        """Next row's indices %i<d>.next from %i<d>."""
        lines, carry = [], "1"
        for k, d in enumerate(reversed(self.row_dims)):
            last = k == len(self.row_dims) - 1
            lines.append(f"%i{d}.up = add i64 %i{d}, {carry}")
            if last:
                lines.append(f"%i{d}.next = add i64 %i{d}.up, 0")
                continue
            lines.append(f"%i{d}.full = icmp eq i64 %i{d}.up, %n{d}")
            lines.append(f"%i{d}.next = select i1 %i{d}.full, i64 0, i64 %i{d}.up")
            lines.append(f"%i{d}.carry = zext i1 %i{d}.full to i64")
            carry = f"%i{d}.carry"
        return lines

    def segments(self, before: str, first: str, end: str, carried: Sequence[Carried] = ()) -> list[str]:
        """Blocks over columns [first, end): full ones, then the tail. Control comes from block `before` and leaves to
        label `row.done`. A carried value comes in as %<stem>.row, is %<stem> in the body, %<stem>.out afterwards."""
        lanes = self.b.lanes
        moving = self._moving
        strided = [j for j in moving if self.moves(j, self.vector_dim) != UNIT]
        base = {j: self.row_base(j) for j in moving}
        stride = {
            j: f"%s{j}.{self.vector_dim}" if self.moves(j, self.vector_dim) != BROADCAST else "0" for j in strided
        }
        text = [
            f"%len = sub i64 {end}, {first}",
            f"%whole = and i64 %len, {-lanes}",
            f"%edge = add i64 {first}, %whole",
            f"%left = sub i64 {end}, %edge",
            "br label %segment",
            "segment:",
            f"%i.first = phi i64 [ {first}, %{before} ], [ %edge, %staged ]",
            f"%stop = phi i64 [ %edge, %{before} ], [ %past, %staged ]",
            f"%valid = phi i64 [ {lanes}, %{before} ], [ %left, %staged ]",
        ]
        text += [f"%b{j} = phi ptr [ {base[j]}, %{before} ], [ %t{j}, %staged ]" for j in moving]
        text += [f"%s{j} = phi i64 [ {stride[j]}, %{before} ], [ 1, %staged ]" for j in strided]
        text += [
            f"%{c.stem}.seg = phi {c.type} [ %{c.stem}.row, %{before} ], [ %{c.stem}.out, %staged ]" for c in carried
        ]
        text += self.b.streams[SEGMENT]
        text += ["%some = icmp slt i64 %i.first, %stop", "br i1 %some, label %body, label %after"]
        text += ["body:", "%i = phi i64 [ %i.first, %segment ], [ %i.next, %body ]"]
        text += [f"%{c.stem} = phi {c.type} [ %{c.stem}.seg, %segment ], [ {c.new}, %body ]" for c in carried]
        text += self.b.streams[BODY]
        text += [
            f"%i.next = add i64 %i, {lanes}",
            "%more = icmp slt i64 %i.next, %stop",
            "br i1 %more, label %body, label %after",
            "after:",
        ]
        text += [f"%{c.stem}.out = phi {c.type} [ %{c.stem}.seg, %segment ], [ {c.new}, %body ]" for c in carried]
        text += ["%was.tail = icmp ne i64 %stop, %edge", "br i1 %was.tail, label %unstage, label %check", "check:"]
        text += ["%has.tail = icmp sgt i64 %left, 0", "br i1 %has.tail, label %stage, label %row.done", "stage:"]
        return text + self._stage(moving, base, stride) + self._unstage(base, stride)

    def _stage(self, moving: list[int], base: dict[int, str], stride: dict[int, str]) -> list[str]:
        b = self.b
        loaded = [j for j in moving if j in self.loads]
        text = [f"%past = add i64 %edge, {b.lanes}", "%back = sub i64 0, %edge"]
        for j in moving:
            ty = self.memory_type(j)
            if j in loaded and not self._masked("in", j, stride):
                text.append(f"store {b.vector(ty)} {ones(self.accesses[j])}, ptr %st{j}, align 64")
            text.append(f"%t{j} = getelementptr {ty}, ptr %st{j}, i64 %back")
        # The tail block computes addresses as base + (edge + lane) * 1, so its bases are moved back by edge.
        return text + self._copy("in", loaded, base, stride, "stage", "staged") + ["staged:", "br label %segment"]

    def _unstage(self, base: dict[int, str], stride: dict[int, str]) -> list[str]:
        return ["unstage:", *self._copy("out", self.stores, base, stride, "unstage", "row.done")]

    def _masked(self, way: str, access: int, stride: dict[int, str]) -> bool:
        """Whether the tail of an access is copied as a masked vector."""
        target = self.b.target
        if access in stride:
            return False
        return target.masks_loads(bits_of(self.memory_type(access))) if way == "in" else target.masks_stores

    def _left(self, way: str) -> list[str]:
        """%<way>.mask: the lanes of the tail."""
        lanes = self.b.lanes
        return [
            f"%{way}.left = trunc i64 %left to i32",
            f"%{way}.one = insertelement <{lanes} x i32> poison, i32 %{way}.left, i32 0",
            f"%{way}.all = shufflevector <{lanes} x i32> %{way}.one, <{lanes} x i32> poison, "
            f"<{lanes} x i32> zeroinitializer",
            f"%{way}.mask = icmp ult <{lanes} x i32> {self.b.lane_numbers('i32').ref}, %{way}.all",
        ]

    def _copy_masked(self, way: str, j: int) -> list[str]:
        b, ty, lanes = self.b, self.memory_type(j), self.b.lanes
        v, place = b.vector(ty), f"%{way}{j}"
        overload = f"v{lanes}{suffix(ty)}.p0"
        if way == "in":
            name = f"llvm.masked.load.{overload}"
            b.declare(name, v, ("ptr", "i32", f"<{lanes} x i1>", v))
            return [
                f"{place} = call {v} @{name}"
                f"(ptr {place}.far, i32 1, <{lanes} x i1> %in.mask, {v} {ones(self.accesses[j])})",
                f"store {v} {place}, ptr %st{j}, align 64",
            ]
        name = f"llvm.masked.store.{overload}"
        b.declare(name, "void", (v, "ptr", "i32", f"<{lanes} x i1>"))
        return [
            f"{place} = load {v}, ptr %st{j}, align 64",
            f"call void @{name}({v} {place}, ptr {place}.far, i32 1, <{lanes} x i1> %out.mask)",
        ]

    def _copy(
        self, way: str, which: list[int], base: dict[int, str], stride: dict[int, str], before: str, then: str
    ) -> list[str]:
        """Copy the tail's elements between their places and the staging buffers: contiguous ones by memcpy, the others
        in a loop."""
        text = []
        contiguous = [j for j in which if j not in stride]
        if any(self._masked(way, j, stride) for j in contiguous):
            text += self._left(way)
        for j in contiguous:
            ty, place = self.memory_type(j), f"%{way}{j}"
            text.append(f"{place}.far = getelementptr {ty}, ptr {base[j]}, i64 %edge")
            if self._masked(way, j, stride):
                text += self._copy_masked(way, j)
                continue
            text.append(f"{place}.bytes = mul i64 %left, {ITEMSIZE[self.accesses[j].dtype]}")
            ends = (f"%st{j}", f"{place}.far") if way == "in" else (f"{place}.far", f"%st{j}")
            text.append(f"call void @llvm.memcpy.p0.p0.i64(ptr {ends[0]}, ptr {ends[1]}, i64 {place}.bytes, i1 false)")
            self.b.declarations.setdefault("memcpy", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        strided = [j for j in which if j in stride]
        if not strided:
            return [*text, f"br label %{then}"]
        k, loop = f"%{way}.k", f"copy.{way}"
        text += [
            f"br label %{loop}",
            f"{loop}:",
            f"{k} = phi i64 [ 0, %{before} ], [ {k}.next, %{loop} ]",
            f"{k}.column = add i64 %edge, {k}",
        ]
        for j in strided:
            ty, place = self.memory_type(j), f"%{way}{j}"
            text.append(f"{place}.offset = mul i64 {k}.column, {stride[j]}")
            text.append(f"{place}.far = getelementptr {ty}, ptr {base[j]}, i64 {place}.offset")
            text.append(f"{place}.near = getelementptr {ty}, ptr %st{j}, i64 {k}")
            source, target = (".far", ".near") if way == "in" else (".near", ".far")
            text.append(f"{place} = load {ty}, ptr {place}{source}, align 1")
            text.append(f"store {ty} {place}, ptr {place}{target}, align 1")
        text += [f"{k}.next = add i64 {k}, 1", f"{k}.more = icmp slt i64 {k}.next, %left"]
        return [*text, f"br i1 {k}.more, label %{loop}, label %{then}"]
