"""Reduce kernel: cuts the reduced points into chunks, accumulates each chunk, combines the chunks in order, finishes.

`@chunk` accumulates one chunk of one item; `@k` calls it in phases 0 and 1, combines in phases 0 and 2, and runs the
epilogue. What goes to which accumulator depends on the sizes alone, so the result does not depend on who ran what.

inner reduction  the vector runs along the last reduced dimension; the accumulator vectors of a chunk take its blocks in
                 turn, and are folded by a fixed tree at the end
outer reduction  the vector runs along the last kept dimension: an item is `block` columns, one accumulator vector for
                 each `lanes` of them
"""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_eager.compiler.builder import BODY, ENTRY, ROW, SEGMENT, Builder, CompileError, Val, bits_of
from adaptive_eager.compiler.loop_ir import KEPT, REDUCED, Kernel
from adaptive_eager.compiler.nest import Carried, Nest, decompose, load_arguments, load_sizes
from adaptive_eager.compiler.program import Program
from adaptive_eager.compiler.reduction import WAYS, Reduction
from adaptive_eager.compiler.usage import used_by


def is_inner(kernel: Kernel) -> bool:
    return kernel.dims.endswith(REDUCED)


def column_block(kernel: Kernel, lanes: int) -> int:
    """Columns of one item of an outer reduction; 1 for an inner one."""
    return 1 if is_inner(kernel) else WAYS * lanes


def reductions_of(kernel: Kernel) -> list[Reduction]:
    """The reductions that the final stores need, in program order."""
    everything = kernel.program + kernel.epilogue
    numbers = used_by(everything, (s.value for s in kernel.final_stores)).reductions
    return [Reduction.of(n, everything[n]) for n in numbers]


def accumulator_bytes(kernel: Kernel, lanes: int) -> int:
    """Bytes of one chunk's accumulators, rounded up to 64."""
    return _Layout(reductions_of(kernel), lanes).bytes


class _Layout:
    """Places of the accumulator vectors in a chunk's block: for each reduction and part, WAYS vectors in a row."""

    def __init__(self, reductions: Sequence[Reduction], lanes: int):
        self.slots: list[tuple[int, int, str, int]] = []
        offset = 0
        for r, reduction in enumerate(reductions):
            for p, ty in enumerate(reduction.types):
                self.slots.append((r, p, ty, offset))
                offset += WAYS * lanes * bits_of(ty) // 8
        self.bytes = (offset + 63) // 64 * 64


def emit_reduction(kernel: Kernel, b: Builder) -> list[str]:
    """Functions of a reduction kernel. Raises CompileError for a form the loop IR does not allow."""
    dims = kernel.dims
    kept = dims.index(REDUCED)
    inner = is_inner(kernel)
    expected = KEPT * kept + REDUCED * dims.count(REDUCED) + ("" if inner else KEPT)
    if dims != expected:
        raise CompileError(f"reduction dims {dims!r}: need kept, reduced, and at most one kept dimension")
    layout = _Layout(reductions_of(kernel), b.lanes)
    return [*_Chunk(kernel, b, layout).text(), *_Finish(kernel, b, layout).text()]


def _product(dims: Sequence[int], result: str) -> list[str]:
    lines, total = [], "1"
    for k, d in enumerate(dims):
        lines.append(f"{result}.{k} = mul i64 {total}, %n{d}")
        total = f"{result}.{k}"
    return [*lines, f"{result} = add i64 {total}, 0"]


def _minimum(result: str, x: str, y: str) -> list[str]:
    return [f"{result}.less = icmp slt i64 {x}, {y}", f"{result} = select i1 {result}.less, i64 {x}, i64 {y}"]


class _Part:
    """What the two functions share: dims, item decoding, accumulator names."""

    def __init__(self, kernel: Kernel, b: Builder, layout: _Layout):
        self.kernel = kernel
        self.b = Builder(b.target, b.declarations, b.helpers)
        self.layout = layout
        self.inner = is_inner(kernel)
        self.rank = len(kernel.dims)
        self.reductions = reductions_of(kernel)
        reduced = [d for d, kind in enumerate(kernel.dims) if kind == REDUCED]
        kept = [d for d, kind in enumerate(kernel.dims) if kind == KEPT]
        self.last = self.rank - 1
        self.row_dims = reduced[:-1] if self.inner else reduced
        self.outer_dims = kept if self.inner else kept[:-1]
        self.dtypes = tuple(a.dtype for a in kernel.accesses)

    def decode_item(self) -> list[str]:
        """%x<d> of the outer kept dimensions, and for outer reductions the item's columns [%c0, %c1)."""
        if self.inner:
            return decompose(self.outer_dims, "%item", "x")
        block = column_block(self.kernel, self.b.lanes)
        return [
            f"%columns.up = add i64 %n{self.last}, {block - 1}",
            f"%column.blocks = udiv i64 %columns.up, {block}",
            "%outer = udiv i64 %item, %column.blocks",
            "%column.block = urem i64 %item, %column.blocks",
            f"%c0 = mul i64 %column.block, {block}",
            f"%c1.far = add i64 %c0, {block}",
            *_minimum("%c1", "%c1.far", f"%n{self.last}"),
            *decompose(self.outer_dims, "%outer", "x"),
        ]

    def stems(self) -> list[tuple[str, str, int, int]]:
        """(name stem, element type, byte offset, way) of every accumulator vector."""
        found = []
        for r, p, ty, offset in self.layout.slots:
            for way in range(WAYS):
                found.append((f"a{r}.{p}.{way}", ty, offset + way * self.b.lanes * bits_of(ty) // 8, way))
        return found

    def identities(self) -> dict[str, str]:
        """Name stem -> identity constant."""
        return {
            f"a{r}.{p}.{way}": self.reductions[r].identity(self.b)[p].ref
            for r, p, _, _ in self.layout.slots
            for way in range(WAYS)
        }


class _Chunk(_Part):
    """void @chunk(args, item, chunk, acc): accumulate one chunk of one item into the block at acc."""

    def __init__(self, kernel: Kernel, b: Builder, layout: _Layout):
        super().__init__(kernel, b, layout)
        results = [r.argument for r in self.reductions] + [s.value for s in kernel.stores]
        loads = used_by(kernel.program, results).loads
        stores = {s.access for s in kernel.stores}
        b = self.b
        self.nest = Nest(b, kernel.accesses, loads, stores, self.row_dims, self.last, self.outer_dims)
        b.real_lanes = self.nest.real_lanes
        program = Program(b, kernel.program, self.dtypes, self.nest.load)
        self.carried = [c for r, reduction in enumerate(self.reductions) for c in self._accumulate(program, r, reduction)]
        stored = [(s.access, program.stored(s.value, self.dtypes[s.access])) for s in kernel.stores]
        for access, value in stored:
            self.nest.store(access, value)

    def _accumulate(self, program: Program, r: int, reduction: Reduction) -> list[Carried]:
        """Body of one reduction: way 0 takes the block and goes to the end of the queue."""
        b = self.b
        parts = [reduction.element(b, program.operand(reduction.argument, reduction.compute))]
        if reduction.is_arg:
            parts.append(self._index())
        if self.inner:
            # Lanes past the row's end count as nothing.
            parts = [
                b.select(self.nest.real_lanes(f"i{bits_of(x.ty)}"), x, identity)
                for x, identity in zip(parts, reduction.identity(b), strict=True)
            ]
        old = [Val(f"%a{r}.{p}.0", ty, BODY) for p, ty in enumerate(reduction.types)]
        new = reduction.combine(b, old, parts)
        return [
            Carried(f"a{r}.{p}.{way}", b.vector(ty), f"%a{r}.{p}.{way + 1}" if way + 1 < WAYS else new[p].ref)
            for p, ty in enumerate(reduction.types)
            for way in range(WAYS)
        ]

    def _index(self) -> Val:
        """Linear index of the block's points over the reduced dimensions."""
        b = self.b
        if not self.inner:
            return b.splat("%o", "i64", ROW)
        first = b.put(ROW, f"mul i64 %o, %n{self.last}")
        return b.add(b.splat(b.put(BODY, f"add i64 {first}, %i"), "i64", BODY), b.lane_numbers("i64"))

    def text(self) -> list[str]:
        b, nest, vector = self.b, self.nest, self.b.vector
        text = ["define internal void @chunk(ptr %args, i64 %item, i64 %chunk, ptr %acc) #0 {", "entry:"]
        text += nest.staging()
        if b.reports_errors:
            text.append("%noerror = alloca i32, align 4")
        text += load_arguments(
            ("ptrs", "sizes", "strides", "scalars", "error", "chunks_per_o", "o_per_chunk", "n_per_chunk")
        )
        text += load_sizes(range(self.rank)) + self.decode_item() + _product(self.row_dims, "%o.all") + self._limits()
        # Without points nothing may be loaded, only the identities stored.
        text += ["br i1 %work, label %setup, label %done", "setup:"]
        text += nest.entry_pointers() + b.streams[ENTRY] + decompose(self.row_dims, "%o.first", "start")
        text += ["br label %row", "row:", "%o = phi i64 [ %o.first, %setup ], [ %o.next, %next ]"]
        text += [f"%i{d} = phi i64 [ %start{d}, %setup ], [ %i{d}.next, %next ]" for d in self.row_dims]
        identities = self.identities()
        kept_as = "out" if self.inner else "turn"
        text += [
            f"%{stem}.row = phi {vector(ty)} [ {identities[stem]}, %setup ], [ %{stem}.{kept_as}, %next ]"
            for stem, ty, _, _ in self.stems()
        ]
        text += nest.row_pointers() + b.streams[ROW] + nest.segments("row", "%c0", "%c1", self.carried)
        text += ["row.done:", *([] if self.inner else self._turn())]
        text += ["%o.next = add i64 %o, 1", "%o.more = icmp slt i64 %o.next, %o.end"]
        leaving = "row.done" if self.inner else "turned"
        text += ["br i1 %o.more, label %next, label %done", "next:", *nest.odometer(), "br label %row", "done:"]
        text += [
            f"%{stem}.end = phi {vector(ty)} [ {identities[stem]}, %entry ], [ %{stem}.{kept_as}, %{leaving} ]"
            for stem, ty, _, _ in self.stems()
        ]
        for stem, ty, offset, _ in self.stems():
            text.append(f"%{stem}.to = getelementptr i8, ptr %acc, i64 {offset}")
            text.append(f"store {vector(ty)} %{stem}.end, ptr %{stem}.to, align 1")
        return [*text, "ret void", "}"]

    def _limits(self) -> list[str]:
        """Rows [%o.first, %o.end) and, for an inner reduction, columns [%c0, %c1) of the chunk."""
        if self.inner:
            text = [
                "%o.chunk = udiv i64 %chunk, %chunks_per_o",
                "%n.chunk = urem i64 %chunk, %chunks_per_o",
                "%c0 = mul i64 %n.chunk, %n_per_chunk",
                "%c1.far = add i64 %c0, %n_per_chunk",
                *_minimum("%c1", "%c1.far", f"%n{self.last}"),
            ]
        else:
            text = ["%o.chunk = add i64 %chunk, 0"]
        return [
            *text,
            "%o.first = mul i64 %o.chunk, %o_per_chunk",
            "%o.far = add i64 %o.first, %o_per_chunk",
            *_minimum("%o.end", "%o.far", "%o.all"),
            "%rows = icmp slt i64 %o.first, %o.end",
            "%columns = icmp slt i64 %c0, %c1",
            "%work = and i1 %rows, %columns",
        ]

    def _turn(self) -> list[str]:
        """After a row of fewer than WAYS blocks: turn the queue until each accumulator is back at its columns."""
        lanes = self.b.lanes
        text = [f"%len.up = add i64 %len, {lanes - 1}", f"%blocks = udiv i64 %len.up, {lanes}"]
        text += [f"%turns = sub i64 {WAYS}, %blocks", "br label %turn", "turn:"]
        text.append("%turns.left = phi i64 [ %turns, %row.done ], [ %turns.less, %turning ]")
        for stem, ty, _, way in self.stems():
            following = f"{stem[: stem.rindex('.')]}.{(way + 1) % WAYS}"
            text.append(
                f"%{stem}.turn = phi {self.b.vector(ty)} [ %{stem}.out, %row.done ], [ %{following}.turn, %turning ]"
            )
        text += ["%turn.on = icmp sgt i64 %turns.left, 0", "br i1 %turn.on, label %turning, label %turned"]
        return [*text, "turning:", "%turns.less = sub i64 %turns.left, 1", "br label %turn", "turned:"]


class _Finish(_Part):
    """void @k(args, begin, end): the phases, the combination of chunks, and the epilogue."""

    def __init__(self, kernel: Kernel, b: Builder, layout: _Layout):
        super().__init__(kernel, b, layout)
        b = self.b
        everything = kernel.program + kernel.epilogue
        loads = used_by(everything, (s.value for s in kernel.final_stores)).loads
        for j in loads:
            if REDUCED in (kind for kind, m in zip(kernel.dims, kernel.accesses[j].moves, strict=True) if m != "0"):
                raise CompileError(f"epilogue: access {j} moves along a reduced dimension")
        stores = {s.access for s in kernel.final_stores}
        self.nest = Nest(b, kernel.accesses, loads, stores, (), None if self.inner else self.last, self.outer_dims)
        self.program = Program(b, everything, self.dtypes, self.nest.load)
        self.join = Builder(b.target, b.declarations, b.helpers, prefix="j")
        self.totals = self._combine()

    def _combine(self) -> dict[str, Val]:
        """Total so far and a chunk's accumulators, vector by vector, to the new total; by name stem."""
        j, totals = self.join, {}
        by_stem = {stem: (ty, offset) for stem, ty, offset, _ in self.stems()}
        for r, reduction in enumerate(self.reductions):
            for way in range(WAYS):
                old, new = [], []
                for p, ty in enumerate(reduction.types):
                    stem = f"a{r}.{p}.{way}"
                    where = j.put(BODY, f"getelementptr i8, ptr %from, i64 {by_stem[stem][1]}")
                    new.append(Val(j.put(BODY, f"load {j.vector(ty)}, ptr {where}, align 1"), ty, BODY))
                    old.append(Val(f"%{stem}.sum", ty, BODY))
                for p, total in enumerate(reduction.combine(j, old, new)):
                    totals[f"a{r}.{p}.{way}"] = total
        return totals

    def _fold(self, r: int, reduction: Reduction) -> Val:
        """Result of an inner reduction in lane 0: the ways as (0 + 1) + (2 + 3), then halves of lanes."""
        b = self.b
        ways = [
            tuple(self.totals[f"a{r}.{p}.{way}"]._replace(level=ENTRY) for p in range(len(reduction.types)))
            for way in range(WAYS)
        ]
        parts = reduction.combine(
            b, reduction.combine(b, ways[0], ways[1]), reduction.combine(b, ways[2], ways[3])
        )
        half = b.lanes // 2
        while half:
            order = ", ".join(f"i32 {lane ^ half}" for lane in range(b.lanes))
            other = [
                Val(
                    b.put(ENTRY, f"shufflevector {b.vector(x.ty)} {x.ref}, {b.vector(x.ty)} poison, <{b.lanes} x i32> <{order}>"),
                    x.ty,
                    ENTRY,
                )
                for x in parts
            ]
            parts = reduction.combine(b, parts, other)
            half //= 2
        return reduction.finished(b, parts)

    def _column_totals(self, r: int, reduction: Reduction) -> Val:
        """Result of an outer reduction at the epilogue's columns, from the block of totals on the stack."""
        b, parts = self.b, []
        column = b.put(BODY, "sub i64 %i, %c0")
        offsets = {(slot[0], slot[1]): slot[3] for slot in self.layout.slots}
        for p, ty in enumerate(reduction.types):
            first = b.put(BODY, f"getelementptr i8, ptr %totals, i64 {offsets[r, p]}")
            where = b.put(BODY, f"getelementptr {ty}, ptr {first}, i64 {column}")
            parts.append(Val(b.put(BODY, f"load {b.vector(ty)}, ptr {where}, align 1"), ty, BODY))
        return reduction.finished(b, parts)

    def _epilogue(self) -> list[str]:
        """Text of the epilogue, which ends at label row.done."""
        b, nest, program = self.b, self.nest, self.program
        if self.inner:
            b.real_lanes = lambda: Val("<" + ", ".join(f"i1 {int(lane == 0)}" for lane in range(b.lanes)) + ">", "i1", ENTRY)
        else:
            b.real_lanes = nest.real_lanes
        for r, reduction in enumerate(self.reductions):
            program.values[reduction.number] = (self._fold if self.inner else self._column_totals)(r, reduction)
        stored = [(s.access, program.stored(s.value, self.dtypes[s.access])) for s in self.kernel.final_stores]
        for access, value in stored:
            (nest.store_point if self.inner else nest.store)(access, value)
        text = self.decode_item() + nest.entry_pointers()
        if self.inner:
            return text + b.streams[ENTRY] + ["br label %row.done"]
        for stem, ty, offset, _ in self.stems():
            text.append(f"%{stem}.to = getelementptr i8, ptr %totals, i64 {offset}")
            text.append(f"store {b.vector(ty)} {self.totals[stem].ref}, ptr %{stem}.to, align 1")
        return text + b.streams[ENTRY] + b.streams[ROW] + nest.segments("finish", "%c0", "%c1")

    def text(self) -> list[str]:
        b, size = self.b, self.layout.bytes
        epilogue = self._epilogue()
        text = ["define void @k(ptr %args, i64 %begin, i64 %end) #0 {", "entry:", *self.nest.staging()]
        if b.reports_errors:
            text.append("%noerror = alloca i32, align 4")
        text += [f"%own = alloca [{size} x i8], align 64", f"%totals = alloca [{size} x i8], align 64"]
        text += ["%go = icmp slt i64 %begin, %end", "br i1 %go, label %setup, label %exit", "setup:"]
        text += load_arguments(("ptrs", "sizes", "strides", "scalars", "error", "partials", "phase", "n_chunks"))
        text += load_sizes(range(self.rank))
        text += ["%whole.phase = icmp eq i64 %phase, 0", "%chunk.phase = icmp eq i64 %phase, 1"]
        text += ["br i1 %chunk.phase, label %chunks, label %items", *self._chunk_phase(), *self._items()]
        return [*text, "finish:", *epilogue, *self._next_item(), "exit:", "ret void", "}"]

    def _chunk_phase(self) -> list[str]:
        return [
            "chunks:",
            "%piece = phi i64 [ %begin, %setup ], [ %piece.next, %chunks ]",
            "%piece.item = udiv i64 %piece, %n_chunks",
            "%piece.chunk = urem i64 %piece, %n_chunks",
            f"%piece.offset = mul i64 %piece, {self.layout.bytes}",
            "%piece.to = getelementptr i8, ptr %partials, i64 %piece.offset",
            "call void @chunk(ptr %args, i64 %piece.item, i64 %piece.chunk, ptr %piece.to)",
            "%piece.next = add i64 %piece, 1",
            "%piece.more = icmp slt i64 %piece.next, %end",
            "br i1 %piece.more, label %chunks, label %exit",
        ]

    def _items(self) -> list[str]:
        """Items loop up to the point where all chunks of an item are combined."""
        identities = self.identities()
        text = [
            "items:",
            "%item = phi i64 [ %begin, %setup ], [ %item.next, %row.done ]",
            "%item.first = mul i64 %item, %n_chunks",
            "br label %gather",
            "gather:",
            "%c = phi i64 [ 0, %items ], [ %c.next, %join ]",
        ]
        text += [
            f"%{stem}.sum = phi {self.b.vector(ty)} [ {identities[stem]}, %items ], [ {self.totals[stem].ref}, %join ]"
            for stem, ty, _, _ in self.stems()
        ]
        return [
            *text,
            "%c.piece = add i64 %item.first, %c",
            f"%c.offset = mul i64 %c.piece, {self.layout.bytes}",
            "%c.from = getelementptr i8, ptr %partials, i64 %c.offset",
            "br i1 %whole.phase, label %compute, label %join",
            "compute:",
            "call void @chunk(ptr %args, i64 %item, i64 %c, ptr %own)",
            "br label %join",
            "join:",
            "%from = phi ptr [ %c.from, %gather ], [ %own, %compute ]",
            *self.join.streams[SEGMENT],
            *self.join.streams[BODY],
            "%c.next = add i64 %c, 1",
            "%c.more = icmp slt i64 %c.next, %n_chunks",
            "br i1 %c.more, label %gather, label %finish",
        ]

    def _next_item(self) -> list[str]:
        return [
            "row.done:",
            "%item.next = add i64 %item, 1",
            "%item.more = icmp slt i64 %item.next, %end",
            "br i1 %item.more, label %items, label %exit",
        ]
