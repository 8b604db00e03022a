"""Reduction parts: what the functions of a reduction kernel share - dims, item decoding, accumulator places, text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptive_eager.compiler.builder import Builder, CompileError, Val, bits_of
from adaptive_eager.compiler.loop_ir import BROADCAST, KEPT, REDUCED, Kernel
from adaptive_eager.compiler.nest import Nest, decompose, load_arguments, load_sizes
from adaptive_eager.compiler.program import Program
from adaptive_eager.compiler.reduction import Reduction
from adaptive_eager.compiler.usage import used_by

#: Longest row of an inner reduction that is reduced in one lane (short_reduction.py); an empty one is not.
SHORT = 64
#: Vectors of columns an item of an outer reduction. Its rows are read this far in sequence, which the hardware's
#: prefetcher needs; its accumulators stay in the first-level cache.
COLUMN_VECTORS = 32


def is_inner(kernel: Kernel) -> bool:
    return kernel.dims.endswith(REDUCED)


def column_block(kernel: Kernel, lanes: int) -> int:
    """Columns of one item of an outer reduction; 1 for an inner one."""
    return 1 if is_inner(kernel) else COLUMN_VECTORS * lanes


def reductions_of(kernel: Kernel) -> list[Reduction]:
    """The reductions that the final stores need, in program order."""
    everything = kernel.program + kernel.epilogue
    numbers = used_by(everything, (s.value for s in kernel.final_stores)).reductions
    return [Reduction.of(n, everything[n]) for n in numbers]


@dataclass(frozen=True)
class Slot:
    """Place of part `p` of reduction `r` in a block of accumulators: `vectors` vectors of `ty` from `offset` on."""

    r: int
    p: int
    ty: str
    vectors: int
    offset: int


class Layout:
    """Places of accumulators in a chunk's block, and in the block of totals that chunks are combined into.

    Inner reductions have one vector (they are folded within the chunk); outer reductions have one a vector of columns.
    """

    def __init__(self, kernel: Kernel, reductions: Sequence[Reduction], lanes: int):
        self.slots, self.bytes = self._place(kernel, reductions, lanes, total=False)
        self.totals, self.total_bytes = self._place(kernel, reductions, lanes, total=True)

    @staticmethod
    def _place(kernel: Kernel, reductions: Sequence[Reduction], lanes: int, total: bool) -> tuple[list[Slot], int]:
        slots, offset = [], 0
        for r, reduction in enumerate(reductions):
            vectors = 1 if is_inner(kernel) else COLUMN_VECTORS
            for p, ty in enumerate(reduction.total_types if total else reduction.types):
                slots.append(Slot(r, p, ty, vectors, offset))
                offset += vectors * lanes * bits_of(ty) // 8
        return slots, (offset + 63) // 64 * 64


def has_short_form(kernel: Kernel) -> bool:
    """Whether a kernel reduces along one dim, its last, with kept dims before it: see short_reduction.py."""
    return is_inner(kernel) and kernel.dims.count(REDUCED) == 1 and KEPT in kernel.dims


def preset(program: Program, b: Builder, reduction: Reduction, parts: Sequence[Val]) -> None:
    """Makes a reduction's totals known to an epilogue."""
    program.values[reduction.number] = reduction.finished(b, parts)
    if reduction.is_arg:
        program.extremes[reduction.number] = reduction.extreme(b, parts)


def product(dims: Sequence[int], result: str) -> list[str]:
    """result = product of the sizes of `dims`."""
    lines, total = [], "1"
    for k, d in enumerate(dims):
        lines.append(f"{result}.{k} = mul i64 {total}, %n{d}")
        total = f"{result}.{k}"
    return [*lines, f"{result} = add i64 {total}, 0"]


def minimum(result: str, x: str, y: str) -> list[str]:
    return [f"{result}.less = icmp slt i64 {x}, {y}", f"{result} = select i1 {result}.less, i64 {x}, i64 {y}"]


class Part:
    """One function of a reduction kernel."""

    def __init__(self, kernel: Kernel, b: Builder, layout: Layout):
        self.kernel = kernel
        self.b = Builder(b.target, b.declarations, b.helpers)
        self.layout = layout
        self.inner = is_inner(kernel)
        self.rank = len(kernel.dims)
        self.last = self.rank - 1
        self.reductions = reductions_of(kernel)
        reduced = [d for d, kind in enumerate(kernel.dims) if kind == REDUCED]
        kept = [d for d, kind in enumerate(kernel.dims) if kind == KEPT]
        self.row_dims = reduced[:-1] if self.inner else reduced
        self.outer_dims = kept if self.inner else kept[:-1]
        self.dtypes = tuple(a.dtype for a in kernel.accesses)

    def decode_item(self) -> list[str]:
        """%x<d> of the outer kept dimensions, and for outer reductions the item's columns [%c0, %c1)."""
        if self.inner:
            return decompose(self.outer_dims, "%item", "x")
        block = column_block(self.kernel, self.b.lanes)
        outer = "%item"
        text = ["%column.block = add i64 %item, 0"]
        if self.outer_dims:
            outer = "%outer"
            text = [
                f"%columns.up = add i64 %n{self.last}, {block - 1}",
                f"%column.blocks = udiv i64 %columns.up, {block}",
                "%outer = udiv i64 %item, %column.blocks",
                "%column.block = urem i64 %item, %column.blocks",
            ]
        return [
            *text,
            f"%c0 = mul i64 %column.block, {block}",
            f"%c1.far = add i64 %c0, {block}",
            *minimum("%c1", "%c1.far", f"%n{self.last}"),
            *decompose(self.outer_dims, outer, "x"),
        ]

    def error_word(self) -> list[str]:
        return ["%noerror = alloca i64, align 8"] if self.b.reports_errors else []


class Chunk(Part):
    """void @chunk(args, item, chunk, acc): accumulate one chunk of one item into the block at acc."""

    def __init__(self, kernel: Kernel, b: Builder, layout: Layout):
        super().__init__(kernel, b, layout)
        results = [r.argument for r in self.reductions] + [s.value for s in kernel.stores]
        usage = used_by(kernel.program, results)
        stores = {s.access for s in kernel.stores}
        self.nest = Nest(
            self.b, kernel.accesses, usage.loads, stores, self.row_dims, self.last, self.outer_dims,
            tables=usage.tables, prefetches=self.inner,
        )  # fmt: skip
        self.b.real_lanes = self.nest.real_lanes
        self.program = Program(self.b, kernel.program, self.dtypes, self.nest)

    def emit_stores(self) -> None:
        """The stores of every point."""
        stored = [(s.access, self.program.stored(s.value, self.dtypes[s.access])) for s in self.kernel.stores]
        for access, value in stored:
            self.nest.store(access, value)

    def head(self) -> list[str]:
        """Entry block up to %work, which says whether the chunk has any points."""
        text = ["define internal void @chunk(ptr %args, i64 %item, i64 %chunk, ptr %acc) #0 {", "entry:"]
        text += self.nest.staging() + self.error_word()
        names = ["ptrs", "sizes", "strides", "scalars", "error", "o_per_chunk"]
        text += load_arguments([*names, "chunks_per_o", "n_per_chunk"] if self.inner else names)
        text += load_sizes(range(self.rank)) + product(self.row_dims, "%o.all")
        return text + self.decode_item()

    def rows(self) -> list[str]:
        """%o.first and %o.end, the rows of chunk %o.chunk."""
        return [
            "%o.first = mul i64 %o.chunk, %o_per_chunk",
            "%o.far = add i64 %o.first, %o_per_chunk",
            *minimum("%o.end", "%o.far", "%o.all"),
            "%rows = icmp slt i64 %o.first, %o.end",
            "%columns = icmp slt i64 %c0, %c1",
            "%work = and i1 %rows, %columns",
        ]


class Finish(Part):
    """void @k(args, begin, end): the phases, the combination of chunks, and the epilogue."""

    def __init__(self, kernel: Kernel, b: Builder, layout: Layout):
        super().__init__(kernel, b, layout)
        everything = kernel.program + kernel.epilogue
        usage = used_by(everything, (s.value for s in kernel.final_stores))
        if usage.tables:
            raise CompileError("gather: not in an epilogue")
        for j in usage.loads:
            if any(
                m != BROADCAST and kind == REDUCED
                for kind, m in zip(kernel.dims, kernel.accesses[j].moves, strict=True)
            ):
                raise CompileError(f"epilogue: access {j} moves along a reduced dimension")
        stores = {s.access for s in kernel.final_stores}
        vector_dim = None if self.inner else self.last
        self.nest = Nest(
            self.b, kernel.accesses, usage.loads, stores, (), vector_dim, self.outer_dims, one_point=self.inner
        )
        self.program = Program(self.b, everything, self.dtypes, self.nest)
        #: Operations that combine a chunk's accumulators with the totals.
        self.join = Builder(b.target, b.declarations, b.helpers, prefix="j")

    def emit_final_stores(self) -> list[tuple[int, Val]]:
        stores = self.kernel.final_stores
        return [(s.access, self.program.stored(s.value, self.dtypes[s.access])) for s in stores]

    def head(self, more: Sequence[str]) -> list[str]:
        """Entry, and the loop of phase 1; leaves to label items. `more`: lines for the entry block."""
        text = ["define void @k(ptr %args, i64 %begin, i64 %end) #0 {", "entry:", *self.nest.staging()]
        text += [f"%own = alloca [{max(64, self.layout.bytes)} x i8], align 64", *self.error_word(), *more]
        text += ["%go = icmp slt i64 %begin, %end", "br i1 %go, label %setup, label %exit", "setup:"]
        names = ["ptrs", "sizes", "strides", "scalars", "error", "partials", "phase", "n_chunks"]
        arg = any(r.is_arg for r in self.reductions)
        text += load_arguments([*names, "chunks_per_o", "o_per_chunk", "n_per_chunk"] if arg else names)
        text += load_sizes(range(self.rank))
        start = "setup"
        if has_short_form(self.kernel):  # which knows no chunks: the last phase does it all
            text += [f"%n.less = sub i64 %n{self.last}, 1", f"%is.short = icmp ult i64 %n.less, {SHORT}"]
            text += ["br i1 %is.short, label %short, label %long"]
            text += ["short:", "%nothing.yet = icmp eq i64 %phase, 1", "br i1 %nothing.yet, label %exit, label %rows"]
            text += ["rows:", "call void @short(ptr %args, i64 %begin, i64 %end)", "br label %exit", "long:"]
            start = "long"
        return [
            *text,
            "%whole.phase = icmp eq i64 %phase, 0",
            "%chunk.phase = icmp eq i64 %phase, 1",
            "br i1 %chunk.phase, label %chunks, label %items",
            "chunks:",
            f"%piece = phi i64 [ %begin, %{start} ], [ %piece.next, %chunks ]",
            "%piece.item = udiv i64 %piece, %n_chunks",
            "%piece.chunk = urem i64 %piece, %n_chunks",
            f"%piece.offset = mul i64 %piece, {self.layout.bytes}",
            "%piece.to = getelementptr i8, ptr %partials, i64 %piece.offset",
            "call void @chunk(ptr %args, i64 %piece.item, i64 %piece.chunk, ptr %piece.to)",
            "%piece.next = add i64 %piece, 1",
            "%piece.more = icmp slt i64 %piece.next, %end",
            "br i1 %piece.more, label %chunks, label %exit",
            "items:",
            f"%item = phi i64 [ %begin, %{start} ], [ %item.next, %row.done ]",
            "%item.first = mul i64 %item, %n_chunks",
        ]

    def gather(self) -> list[str]:
        """Find or compute the accumulators of chunk %c, and leave to label join with them at %from."""
        return [
            "%c.piece = add i64 %item.first, %c",
            f"%c.offset = mul i64 %c.piece, {self.layout.bytes}",
            "%c.from = getelementptr i8, ptr %partials, i64 %c.offset",
            "br i1 %whole.phase, label %compute, label %join",
            "compute:",
            "call void @chunk(ptr %args, i64 %item, i64 %c, ptr %own)",
            "br label %join",
            "join:",
            "%from = phi ptr [ %c.from, %gather ], [ %own, %compute ]",
        ]

    def chunk_start(self) -> list[str]:
        """%chunk.start: linear index of the first point of chunk %c, for arg reductions."""
        if not any(r.is_arg for r in self.reductions):
            return []
        if not self.inner:
            return ["%chunk.start = mul i64 %c, %o_per_chunk"]
        return [
            "%c.o = udiv i64 %c, %chunks_per_o",
            "%c.n = urem i64 %c, %chunks_per_o",
            "%c.row = mul i64 %c.o, %o_per_chunk",
            f"%c.rows = mul i64 %c.row, %n{self.last}",
            "%c.columns = mul i64 %c.n, %n_per_chunk",
            "%chunk.start = add i64 %c.rows, %c.columns",
        ]

    def next_item(self) -> list[str]:
        return [
            "row.done:",
            "%item.next = add i64 %item, 1",
            "%item.more = icmp slt i64 %item.next, %end",
            "br i1 %item.more, label %items, label %exit",
            "exit:",
            "ret void",
            "}",
        ]
