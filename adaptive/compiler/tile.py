"""Tile: map kernels that meet a tensor across its memory, walked in square tiles.

Where some accesses are contiguous along the innermost dim and others along another (a transposed copy), rows would use
one element of each cache line of the latter. Such a kernel works on tiles of TILE x TILE points: what crosses is
transposed into a buffer first, or from one afterwards, by vectors; in between a plain map kernel runs over the tile as
if everything lay along its rows. Narrow tiles of a copy are transposed from one tensor to the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from adaptive_eager.compiler.builder import Builder
from adaptive_eager.compiler.loop_ir import BROADCAST, ITEMSIZE, UNIT, Access, Kernel
from adaptive_eager.compiler.map_kernel import emit_map
from adaptive_eager.compiler.nest import ARGS, decompose, load_arguments, load_sizes
from adaptive_eager.compiler.usage import used_by

#: Points of a tile along each of its two dims: rows long enough for the pages they lie in, and buffers for the stack.
TILE = 128
#: Tiles narrower than this are copied without a buffer, which pays by its long rows.
FEW = 32


def emit_tile(kernel: Kernel, b: Builder) -> list[str]:
    """Functions of a tiled map kernel: `void @k(ptr args, i64 begin, i64 end)`, where an item is a tile."""
    body = emit_map(_body(kernel), b, "define internal void @body")
    return [*body, *_Tiles(kernel, b).text(_copied(kernel))]


def _copied(kernel: Kernel) -> int | None:
    """The access that is copied as it is, if that is all the kernel does."""
    if len(kernel.stores) != 1:
        return None
    (store,) = kernel.stores
    value, target = kernel.program[store.value], kernel.accesses[store.access]
    while value.op == "copy" and value.dtype == value.compute == kernel.program[value.args[0]].dtype:
        value = kernel.program[value.args[0]]
    if value.op != "load" or value.dtype != target.dtype or value.dtype == "bool":  # bools are made 0 or 1
        return None
    source = int(value.attrs[0])
    return source if kernel.crosses(source) != kernel.crosses(store.access) else None


def _body(kernel: Kernel) -> Kernel:
    """The kernel over one tile: what crosses is in a buffer, and lies along the rows."""
    accesses = (
        Access(a.dtype, "s" + UNIT if kernel.crosses(j) else a.moves[-2:]) for j, a in enumerate(kernel.accesses)
    )
    return replace(kernel, dims="kk", accesses=tuple(accesses))


class _Tiles:
    """Text of the loop over tiles. Dims `t` and `v` are those of a tile; what crosses is contiguous along `t`."""

    def __init__(self, kernel: Kernel, b: Builder):
        self.kernel, self.b = kernel, b
        self.rank = len(kernel.dims)
        self.t, self.v = self.rank - 2, self.rank - 1
        self.stores = {s.access for s in kernel.stores}
        usage = used_by(kernel.program, (s.value for s in kernel.stores))
        self.loads = usage.loads
        self.used = sorted(usage.loads | usage.tables | self.stores)
        self.crossing = [j for j in self.used if kernel.crosses(j)]

    def text(self, copied: int | None) -> list[str]:
        n = len(self.kernel.accesses)
        text = ["define void @k(ptr %args, i64 %begin, i64 %end) #0 {", "entry:"]
        text += [f"%buffer{j} = alloca [{TILE * TILE} x i{self._bits(j)}], align 64" for j in self.crossing]
        text += [f"%in = alloca [{ARGS['partials']} x i8], align 8", "%in.sizes = alloca [2 x i64], align 8"]
        text += [f"%in.ptrs = alloca [{n} x ptr], align 8", f"%in.strides = alloca [{2 * n} x i64], align 8"]
        text += ["%go = icmp slt i64 %begin, %end", "br i1 %go, label %setup, label %exit", "setup:"]
        text += load_arguments(("ptrs", "sizes", "strides", "scalars", "error")) + load_sizes(range(self.rank))
        for j in self.used:
            text += self._access(j)
        for d in (self.t, self.v):
            text += [f"%up{d} = add i64 %n{d}, {TILE - 1}", f"%tiles{d} = udiv i64 %up{d}, {TILE}"]
        text += self._arguments()
        text += ["br label %tile", "tile:", "%at = phi i64 [ %begin, %setup ], [ %at.next, %next ]"]
        text += [f"%k{self.v} = urem i64 %at, %tiles{self.v}", f"%rest = udiv i64 %at, %tiles{self.v}"]
        text += [f"%k{self.t} = urem i64 %rest, %tiles{self.t}", f"%outer = udiv i64 %rest, %tiles{self.t}"]
        text += decompose(range(self.rank - 2), "%outer", "i")
        for d in (self.t, self.v):
            text += [f"%i{d} = mul i64 %k{d}, {TILE}", f"%left{d} = sub i64 %n{d}, %i{d}"]
            text += [f"%short{d} = icmp slt i64 %left{d}, {TILE}"]
            text += [f"%w{d} = select i1 %short{d}, i64 %left{d}, i64 {TILE}"]
        for j in self.used:
            text += self._base(j)
        if copied is not None:
            text += [f"%wider = icmp sgt i64 %w{self.t}, %w{self.v}"]
            text += [f"%least = select i1 %wider, i64 %w{self.v}, i64 %w{self.t}", f"%few = icmp slt i64 %least, {FEW}"]
            text += ["br i1 %few, label %direct, label %buffered", "direct:", *self._copy(copied), "br label %next"]
            text += ["buffered:"]
        text += [*self._compute(), "br label %next", "next:"]
        text += ["%at.next = add i64 %at, 1", "%more = icmp slt i64 %at.next, %end"]
        return [*text, "br i1 %more, label %tile, label %exit", "exit:", "ret void", "}"]

    # -- accesses ----------------------------------------------------------------------------------------------------

    def _bits(self, j: int) -> int:
        return 8 * ITEMSIZE[self.kernel.accesses[j].dtype]

    def _access(self, j: int) -> list[str]:
        """%p<j>, and its stride %s<j>.<d> along each dim."""
        text = [f"%p{j}.at = getelementptr ptr, ptr %ptrs, i64 {j}", f"%p{j} = load ptr, ptr %p{j}.at, align 8"]
        for d, move in enumerate(self.kernel.accesses[j].moves):
            stride = f"%s{j}.{d}"
            if move in (UNIT, BROADCAST):
                text.append(f"{stride} = add i64 0, {int(move == UNIT)}")
                continue
            text.append(f"{stride}.at = getelementptr i64, ptr %strides, i64 {j * self.rank + d}")
            text.append(f"{stride} = load i64, ptr {stride}.at, align 8")
        return text

    def _base(self, j: int) -> list[str]:
        """%b<j>: the first element of the tile."""
        text, total = [], "0"
        for d, move in enumerate(self.kernel.accesses[j].moves):
            if move != BROADCAST:
                text.append(f"%b{j}.m{d} = mul i64 %i{d}, %s{j}.{d}")
                text.append(f"%b{j}.a{d} = add i64 {total}, %b{j}.m{d}")
                total = f"%b{j}.a{d}"
        return [*text, f"%b{j} = getelementptr i{self._bits(j)}, ptr %p{j}, i64 {total}"]

    # -- a tile ------------------------------------------------------------------------------------------------------

    def _transpose(self, j: int, dst: tuple[str, str], src: tuple[str, str], rows: str, columns: str) -> str:
        """Call that writes src[r][c] to dst[c][r]; (first element, stride of a row) of each."""
        name = transposition(self.b, self._bits(j))
        arguments = f"ptr {dst[0]}, i64 {dst[1]}, ptr {src[0]}, i64 {src[1]}, i64 {rows}, i64 {columns}"
        return f"call void @{name}({arguments})"

    def _copy(self, source: int) -> list[str]:
        (target,) = self.stores
        # Rows of the source are contiguous: along `t` if it is the source that crosses, else along `v`.
        row, column = (self.v, self.t) if source in self.crossing else (self.t, self.v)
        dst, src = (f"%b{target}", f"%s{target}.{column}"), (f"%b{source}", f"%s{source}.{row}")
        return [self._transpose(source, dst, src, f"%w{row}", f"%w{column}")]

    def _arguments(self) -> list[str]:
        """What the arguments of the kernel over a tile have in common."""
        text = []
        members = {"ptrs": "in.ptrs", "sizes": "in.sizes", "strides": "in.strides"}
        for name in ("ptrs", "sizes", "strides", "scalars", "error"):
            text.append(f"%in.{name}.at = getelementptr i8, ptr %in, i64 {ARGS[name]}")
            text.append(f"store ptr %{members.get(name, name)}, ptr %in.{name}.at, align 8")
        for j in self.used:
            crosses = j in self.crossing
            for k, (d, of_buffer) in enumerate(((self.t, TILE), (self.v, 1))):
                text.append(f"%in.s{j}.{d} = getelementptr i64, ptr %in.strides, i64 {2 * j + k}")
                text.append(f"store i64 {of_buffer if crosses else f'%s{j}.{d}'}, ptr %in.s{j}.{d}, align 8")
            text.append(f"%in.p{j} = getelementptr ptr, ptr %in.ptrs, i64 {j}")
            if crosses:
                text.append(f"store ptr %buffer{j}, ptr %in.p{j}, align 8")
        return [*text, "%in.sizes.v = getelementptr i64, ptr %in.sizes, i64 1"]

    def _compute(self) -> list[str]:
        t, v = self.t, self.v
        text = [f"store i64 %w{t}, ptr %in.sizes, align 8", f"store i64 %w{v}, ptr %in.sizes.v, align 8"]
        for j in self.used:
            if j not in self.crossing:
                text.append(f"store ptr %b{j}, ptr %in.p{j}, align 8")
        buffer = {j: (f"%buffer{j}", str(TILE)) for j in self.crossing}
        memory = {j: (f"%b{j}", f"%s{j}.{v}") for j in self.crossing}
        text += [self._transpose(j, buffer[j], memory[j], f"%w{v}", f"%w{t}") for j in self.crossing if j in self.loads]
        text += [f"%points = mul i64 %w{t}, %w{v}", "call void @body(ptr %in, i64 0, i64 %points)"]
        return text + [
            self._transpose(j, memory[j], buffer[j], f"%w{t}", f"%w{v}") for j in self.crossing if j in self.stores
        ]


# -- transposition -----------------------------------------------------------------------------------------------------


def transposition(b: Builder, bits: int, widest: int = 16) -> str:
    """Helper `void (ptr dst, i64 dst_stride, ptr src, i64 src_stride, i64 rows, i64 columns)`: writes src[r][c] to
    dst[c][r]. Blocks of a vector's width, or of `widest` elements, go through registers; the last ones overlap those
    before them. Memory that is narrower than a block goes element by element."""
    width = min(b.lanes, b.lanes * 32 // bits, widest)
    name = f"transpose{bits}.{width}"
    if name not in b.helpers:
        b.helpers[name] = "\n".join(_transposition(name, bits, width))
    return name


def _transposition(name: str, bits: int, width: int) -> list[str]:
    ty, vector = f"i{bits}", f"<{width} x i{bits}>"
    text = [
        f"define internal void @{name}(ptr %dst, i64 %ds, ptr %src, i64 %ss, i64 %rows, i64 %columns) #0 {{",
        "entry:",
        f"%last.r = sub i64 %rows, {width}",
        f"%last.c = sub i64 %columns, {width}",
        "%least = or i64 %last.r, %last.c",
        "%narrow = icmp slt i64 %least, 0",
        "br i1 %narrow, label %narrow.block, label %row",
        "row:",
        "%r0 = phi i64 [ 0, %entry ], [ %r0.next, %row.done ]",
        "%r.past = icmp sgt i64 %r0, %last.r",
        "%r = select i1 %r.past, i64 %last.r, i64 %r0",
        "%src.r = mul i64 %r, %ss",
        f"%row.src = getelementptr {ty}, ptr %src, i64 %src.r",
        f"%row.dst = getelementptr {ty}, ptr %dst, i64 %r",
        "br label %block",
        "block:",
        "%c0 = phi i64 [ 0, %row ], [ %c0.next, %block ]",
        "%c.past = icmp sgt i64 %c0, %last.c",
        "%c = select i1 %c.past, i64 %last.c, i64 %c0",
        "%dst.c = mul i64 %c, %ds",
        f"%in0 = getelementptr {ty}, ptr %row.src, i64 %c",
        f"%out0 = getelementptr {ty}, ptr %row.dst, i64 %dst.c",
    ]
    rows = []
    for k in range(width):
        if k:
            text.append(f"%in{k} = getelementptr {ty}, ptr %in{k - 1}, i64 %ss")
        text.append(f"%x{k} = load {vector}, ptr %in{k}, align 1")
        rows.append(f"%x{k}")
    for k, column in enumerate(_transposed(text, rows, vector, bits)):
        if k:
            text.append(f"%out{k} = getelementptr {ty}, ptr %out{k - 1}, i64 %ds")
        text.append(f"store {vector} {column}, ptr %out{k}, align 1")
    return [
        *text,
        f"%c0.next = add i64 %c0, {width}",
        "%more.c = icmp slt i64 %c0.next, %columns",
        "br i1 %more.c, label %block, label %row.done",
        "row.done:",
        f"%r0.next = add i64 %r0, {width}",
        "%more.r = icmp slt i64 %r0.next, %rows",
        "br i1 %more.r, label %row, label %done",
        # The shorter dim runs inside: each cache line is written at once.
        "narrow.block:",
        "%swap = icmp sgt i64 %columns, %rows",
        "%e.outer = select i1 %swap, i64 %columns, i64 %rows",
        "%e.inner = select i1 %swap, i64 %rows, i64 %columns",
        "%e.src.outer = select i1 %swap, i64 1, i64 %ss",
        "%e.src.inner = select i1 %swap, i64 %ss, i64 1",
        "%e.dst.outer = select i1 %swap, i64 %ds, i64 1",
        "%e.dst.inner = select i1 %swap, i64 1, i64 %ds",
        "br label %line",
        "line:",
        "%e.o = phi i64 [ 0, %narrow.block ], [ %e.o.next, %line.done ]",
        "%e.src.o = mul i64 %e.o, %e.src.outer",
        "%e.dst.o = mul i64 %e.o, %e.dst.outer",
        f"%e.src = getelementptr {ty}, ptr %src, i64 %e.src.o",
        f"%e.dst = getelementptr {ty}, ptr %dst, i64 %e.dst.o",
        "br label %element",
        "element:",
        "%e.i = phi i64 [ 0, %line ], [ %e.i.next, %element ]",
        "%e.src.i = mul i64 %e.i, %e.src.inner",
        "%e.dst.i = mul i64 %e.i, %e.dst.inner",
        f"%e.from = getelementptr {ty}, ptr %e.src, i64 %e.src.i",
        f"%e.to = getelementptr {ty}, ptr %e.dst, i64 %e.dst.i",
        f"%e = load {ty}, ptr %e.from, align 1",
        f"store {ty} %e, ptr %e.to, align 1",
        "%e.i.next = add i64 %e.i, 1",
        "%more.i = icmp slt i64 %e.i.next, %e.inner",
        "br i1 %more.i, label %element, label %line.done",
        "line.done:",
        "%e.o.next = add i64 %e.o, 1",
        "%more.o = icmp slt i64 %e.o.next, %e.outer",
        "br i1 %more.o, label %line, label %done",
        "done:",
        "ret void",
        "}",
    ]


def _transposed(text: list[str], rows: list[str], vector: str, bits: int) -> list[str]:
    """Columns of a square block of rows. Elements are interleaved within 128-bit lanes, then the lanes are moved: both
    are single instructions on x86 and ARM."""
    width = len(rows)
    lane = min(width, 128 // bits)
    lanes = width // lane

    def shuffle(a: str, b: str, indices: list[int]) -> str:
        name = f"%y{len(text)}"
        mask = ", ".join(f"i32 {i}" for i in indices)
        text.append(f"{name} = shufflevector {vector} {a}, {vector} {b}, <{width} x i32> <{mask}>")
        return name

    def interleaved(high: int) -> list[int]:
        half = range(high * lane // 2, (high + 1) * lane // 2)
        return [m * lane + i + of * width for m in range(lanes) for i in half for of in (0, 1)]

    def lanes_of(a: list[int], b: list[int]) -> list[int]:
        return [m * lane + i + of * width for of, which in ((0, a), (1, b)) for m in which for i in range(lane)]

    for _ in range(lane.bit_length() - 1):
        mixed = list(rows)
        for group in range(0, width, lane):
            for k in range(lane // 2):
                a, b = rows[group + k], rows[group + k + lane // 2]
                mixed[group + 2 * k] = shuffle(a, b, interleaved(0))
                mixed[group + 2 * k + 1] = shuffle(a, b, interleaved(1))
        rows = mixed
    # Now lane m of row (group, k) has column m * lane + k of the rows of that group.
    columns = list(rows)
    for k in range(lane):
        parts = [rows[group * lane + k] for group in range(lanes)]
        for m, column in enumerate(_moved(parts, shuffle, lanes_of)):
            columns[m * lane + k] = column
    return columns


def _moved(
    parts: list[str],
    shuffle: Callable[[str, str, list[int]], str],
    lanes_of: Callable[[list[int], list[int]], list[int]],
) -> list[str]:
    """Transposes a square of lanes."""
    if len(parts) == 1:
        return parts
    if len(parts) == 2:
        return [shuffle(parts[0], parts[1], lanes_of([m], [m])) for m in (0, 1)]
    a, b, c, d = parts
    halves = [(shuffle(a, b, lanes_of(half, half)), shuffle(c, d, lanes_of(half, half))) for half in ([0, 1], [2, 3])]
    return [shuffle(x, y, lanes_of(which, which)) for x, y in halves for which in ([0, 2], [1, 3])]
