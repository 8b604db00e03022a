"""Short reduction: the form of an inner reduction whose rows are short. The vector runs across the rows.

A group of rows is copied to buffers first, transposed, so that what was a column is a vector; then each row is reduced
in one lane, from its first element to its last. Rows of up to SHORT elements always take this form, however many there
are and whatever is fused with them: the order in which a row is added depends on its length alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_eager.compiler.builder import BODY, ENTRY, ROW, SEGMENT, Builder, Val, bits_of
from adaptive_eager.compiler.loop_ir import BROADCAST, UNIT, Kernel
from adaptive_eager.compiler.nest import decompose, load_arguments, load_sizes, memory_type
from adaptive_eager.compiler.points import row_major_index
from adaptive_eager.compiler.program import Program
from adaptive_eager.compiler.reduction_parts import SHORT, minimum, preset, reductions_of
from adaptive_eager.compiler.tile import transposition
from adaptive_eager.compiler.usage import used_by

#: Rows of a group: its buffers stay in the first-level cache.
GROUP = 32
#: Elements of a block that is transposed in registers: rows of fewer go element by element, and more is more code.
BLOCK = 8


class ShortRows:
    """void @short(args, begin, end): items [begin, end), which are rows.

    Names in the generated text, for access j:  %p<j> pointer, %s<j>.<d> its stride along a dim, %g<j> the first row of
    the group, %b<j> the buffer of the group: [column][row], or [row] of what does not move along the rows. Levels of
    the builder: ENTRY, ROW once a group, SEGMENT once a vector of rows, BODY once a column.
    """

    def __init__(self, kernel: Kernel, b: Builder):
        self.kernel = kernel
        self.b = Builder(b.target, b.declarations, b.helpers)
        self.rank = len(kernel.dims)
        self.row, self.column = self.rank - 2, self.rank - 1
        self.reductions = reductions_of(kernel)
        everything = kernel.program + kernel.epilogue
        results = [r.argument for r in self.reductions] + [s.value for s in kernel.stores]
        points, rows = used_by(kernel.program, results), used_by(everything, (s.value for s in kernel.final_stores))
        self.loads = points.loads | rows.loads
        self.tables = points.tables
        self.stores = {s.access for s in (*kernel.stores, *kernel.final_stores)}
        self.used = sorted(self.loads | self.stores | self.tables)
        self._loaded: dict[tuple[int, int], Val] = {}
        self._points()
        self._epilogue()

    # -- the values ----------------------------------------------------------------------------------------------------

    def _points(self) -> None:
        """What is done at every point: the accumulators' new values, and the stores."""
        b, dtypes = self.b, tuple(a.dtype for a in self.kernel.accesses)
        b.real_lanes = self._real_lanes
        program = Program(b, self.kernel.program, dtypes, _Points(self, b))
        self.phis: list[str] = []
        self.totals: list[list[Val]] = [[] for _ in self.reductions]
        for r, reduction in enumerate(self.reductions):
            new = [reduction.element(b, program.operand(reduction.argument, reduction.compute))]
            if reduction.is_arg:
                ty = reduction.types[1]
                at = "%i" if ty == "i64" else b.put(BODY, f"trunc i64 %i to {ty}")
                new.append(b.splat(at, ty, BODY))
            old = [Val(f"%a{r}.{p}", ty, BODY) for p, ty in enumerate(reduction.types)]
            for o, n, none in zip(old, reduction.accumulate(b, old, new), reduction.identity(b), strict=True):
                self.phis.append(f"{o.ref} = phi {b.vector(o.ty)} [ {none.ref}, %vector ], [ {n.ref}, %column ]")
                self.totals[r].append(n._replace(level=BODY))
        stored = [(s.access, program.stored(s.value, dtypes[s.access])) for s in self.kernel.stores]
        for access, value in stored:
            b.line(BODY, self._store(b, BODY, access, value, "%i"))

    def _epilogue(self) -> None:
        """What is done once a row, with the accumulators' last values."""
        e = self.e = Builder(self.b.target, self.b.declarations, self.b.helpers, prefix="e")
        dtypes = tuple(a.dtype for a in self.kernel.accesses)
        e.real_lanes = self._real_lanes_after
        program = Program(e, self.kernel.program + self.kernel.epilogue, dtypes, _Points(self, e))
        for r, reduction in enumerate(self.reductions):
            preset(program, e, reduction, reduction.absolute(e, self.totals[r], e.const("i64", 0)))
        stored = [(s.access, program.stored(s.value, dtypes[s.access])) for s in self.kernel.final_stores]
        for access, value in stored:
            e.line(BODY, self._store(e, BODY, access, value, None))

    def _real_lanes(self) -> Val:
        return self._mask(self.b)

    def _real_lanes_after(self) -> Val:
        return self._mask(self.e)

    def _mask(self, b: Builder) -> Val:
        """Lanes that are rows of the group."""
        left = b.put(SEGMENT, "sub i64 %w, %l")
        limit = b.splat(b.put(SEGMENT, f"trunc i64 {left} to i32"), "i32", SEGMENT)
        lanes = b.lane_numbers("i32")
        return Val(b.put(SEGMENT, f"icmp slt {b.vector('i32')} {lanes.ref}, {limit.ref}"), "i1", SEGMENT)

    def load(self, b: Builder, access: int) -> Val:
        """Memory form of an access at a vector of rows, and at a column if it moves along them."""
        key = id(b), access
        if key not in self._loaded:
            self._loaded[key] = self._load(b, access)
        return self._loaded[key]

    def _load(self, b: Builder, j: int) -> Val:
        ty, along = memory_type(self.kernel.accesses[j]), self._moves(j, self.column)
        level = BODY if along else SEGMENT
        if self._moves(j, self.row):
            return Val(b.put(level, f"load {b.vector(ty)}, ptr {self._place(b, level, j, along)}, align 1"), ty, level)
        if not along:
            return b.splat(b.put(ROW, f"load {ty}, ptr %g{j}, align 1"), ty, ROW)
        offset = b.put(BODY, f"mul i64 %i, %s{j}.{self.column}")
        where = b.put(BODY, f"getelementptr {ty}, ptr %g{j}, i64 {offset}")
        return b.splat(b.put(BODY, f"load {ty}, ptr {where}, align 1"), ty, BODY)

    def _place(self, b: Builder, level: int, j: int, along: bool) -> str:
        """Where a vector of rows is in the buffer of an access."""
        ty, at = memory_type(self.kernel.accesses[j]), "%l"
        if along:
            at = b.put(level, f"add i64 {b.put(level, f'mul i64 %i, {GROUP}')}, %l")
        return b.put(level, f"getelementptr {ty}, ptr %b{j}, i64 {at}")

    def _store(self, b: Builder, level: int, j: int, value: Val, column: str | None) -> str:
        where = self._place(b, level, j, column is not None)
        volatile = " volatile" if j in self.loads else ""  # or it may become a masked store: see Nest.store
        return f"store{volatile} {b.vector(value.ty)} {value.ref}, ptr {where}, align 1"

    def gathered(self, b: Builder, table: int, offset: Val) -> Val:
        """Memory form of a table's elements at an offset from where the table is at a vector of rows and a column."""
        if self._moves(table, self.row):
            rows = b.add(b.splat("%l", "i64", SEGMENT), b.lane_numbers("i64"))
            offset = b.add(offset, b.mul(rows, b.splat(f"%s{table}.{self.row}", "i64", ENTRY)))
        if self._moves(table, self.column):
            column = b.put(BODY, f"mul i64 %i, %s{table}.{self.column}")
            offset = b.add(offset, b.splat(column, "i64", BODY))
        # Lanes past the last row read the first one's element, which is there.
        offset = b.select(self._mask(b), offset, b.const("i64", 0))
        return b.masked_gather(memory_type(self.kernel.accesses[table]), f"%g{table}", offset)

    def index(self, b: Builder, dims: Sequence[int]) -> Val:
        """Row-major linear index of the points over `dims`, an i64 vector."""
        positions = {d: (ROW, f"%x{d}") for d in range(self.row)}
        positions |= {self.row: (SEGMENT, "%at.row"), self.column: (BODY, "%i")}
        return row_major_index(b, dims, positions, self.row)

    # -- the text ------------------------------------------------------------------------------------------------------

    def _moves(self, access: int, dim: int) -> bool:
        return self.kernel.accesses[access].moves[dim] != BROADCAST

    def _bits(self, access: int) -> int:
        return bits_of(memory_type(self.kernel.accesses[access]))

    def text(self) -> list[str]:
        b, e, rank = self.b, self.e, self.rank
        text = ["define internal void @short(ptr %args, i64 %begin, i64 %end) #0 {", "entry:", *b.locals, *e.locals]
        for j in self.used:
            if self._moves(j, self.row) and j not in self.tables:
                size = GROUP * (SHORT if self._moves(j, self.column) else 1)
                text.append(f"%b{j} = alloca [{size} x {memory_type(self.kernel.accesses[j])}], align 64")
        if b.reports_errors or e.reports_errors:
            text.append("%noerror = alloca i64, align 8")
        text += load_arguments(("ptrs", "sizes", "strides", "scalars", "error")) + load_sizes(range(rank))
        for j in self.used:
            text += self._pointer(j)
        buffered = [j for j in self.used if j in self.loads and self._moves(j, self.row)]
        text += [line for j in buffered for line in self._pad(j)]
        text += [*b.streams[ENTRY], *e.streams[ENTRY], "br label %group", "group:"]
        text += ["%at = phi i64 [ %begin, %entry ], [ %at.next, %group.done ]"]
        text += [f"%first = urem i64 %at, %n{self.row}", f"%outer = udiv i64 %at, %n{self.row}"]
        text += [f"%rest = sub i64 %n{self.row}, %first", "%all = sub i64 %end, %at"]
        text += minimum("%w.some", "%rest", "%all") + minimum("%w", "%w.some", str(GROUP))
        text += decompose(range(self.row), "%outer", "x")
        for j in self.used:
            text += self._group(j)
        text += [self._copy_in(j) for j in buffered]
        text += [*b.streams[ROW], *e.streams[ROW], "br label %vector", "vector:"]
        text += ["%l = phi i64 [ 0, %group ], [ %l.next, %vector.done ]", "%at.row = add i64 %first, %l"]
        text += [*b.streams[SEGMENT], "br label %column", "column:"]
        text += ["%i = phi i64 [ 0, %vector ], [ %i.next, %column ]"]
        text += [
            *self.phis,
            *b.streams[BODY],
            "%i.next = add i64 %i, 1",
            f"%i.more = icmp slt i64 %i.next, %n{self.column}",
        ]
        text += ["br i1 %i.more, label %column, label %vector.done", "vector.done:"]
        text += [*e.streams[SEGMENT], *e.streams[BODY], f"%l.next = add i64 %l, {b.lanes}"]
        text += ["%l.more = icmp slt i64 %l.next, %w", "br i1 %l.more, label %vector, label %group.out", "group.out:"]
        text += [self._copy_out(j) for j in sorted(self.stores)]
        text += ["br label %group.done", "group.done:", "%at.next = add i64 %at, %w"]
        text += ["%more = icmp slt i64 %at.next, %end", "br i1 %more, label %group, label %exit"]
        return [*text, "exit:", "ret void", "}"]

    def _pointer(self, j: int) -> list[str]:
        """%p<j>, and its strides along the dims that it moves along."""
        text = [f"%p{j}.at = getelementptr ptr, ptr %ptrs, i64 {j}", f"%p{j} = load ptr, ptr %p{j}.at, align 8"]
        for d, move in enumerate(self.kernel.accesses[j].moves):
            if move == UNIT:
                text.append(f"%s{j}.{d} = add i64 0, 1")
            elif move != BROADCAST:
                text.append(f"%s{j}.{d}.at = getelementptr i64, ptr %strides, i64 {j * self.rank + d}")
                text.append(f"%s{j}.{d} = load i64, ptr %s{j}.{d}.at, align 8")
        return text

    def _group(self, j: int) -> list[str]:
        """%g<j>"""
        text, total = [], "0"
        for d in range(self.column):
            if self._moves(j, d):
                text.append(f"%g{j}.m{d} = mul i64 {f'%x{d}' if d != self.row else '%first'}, %s{j}.{d}")
                text.append(f"%g{j}.a{d} = add i64 {total}, %g{j}.m{d}")
                total = f"%g{j}.a{d}"
        ty = memory_type(self.kernel.accesses[j])
        return [*text, f"%g{j} = getelementptr {ty}, ptr %p{j}, i64 {total}"]

    def _pad(self, j: int) -> list[str]:
        """Fills the buffer with bytes that no operation objects to: lanes past the last row compute with them."""
        size = GROUP * self._bits(j) // 8
        n = f"%n{self.column}" if self._moves(j, self.column) else "1"
        self.b.declarations.setdefault("memset", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        return [
            f"%b{j}.bytes = mul i64 {n}, {size}",
            f"call void @llvm.memset.p0.i64(ptr %b{j}, i8 1, i64 %b{j}.bytes, i1 false)",
        ]

    def _copy_in(self, j: int) -> str:
        n = f"%n{self.column}" if self._moves(j, self.column) else "1"
        return self._copy(j, (f"%b{j}", "1", str(GROUP)), (f"%g{j}", *self._steps(j)), "%w", n)

    def _copy_out(self, j: int) -> str:
        n = f"%n{self.column}" if self._moves(j, self.column) else "1"
        return self._copy(j, (f"%g{j}", *self._steps(j)), (f"%b{j}", "1", str(GROUP)), "%w", n)

    def _steps(self, j: int) -> tuple[str, str]:
        """Strides of an access from row to row, and from column to column."""
        row, column = (f"%s{j}.{d}" if self._moves(j, d) else "0" for d in (self.row, self.column))
        return row, column

    def _copy(self, j: int, dst: tuple[str, str, str], src: tuple[str, str, str], rows: str, columns: str) -> str:
        """Call that copies a block; (first element, stride from row to row, from column to column) of each."""
        if self.kernel.accesses[j].moves[self.column] == UNIT:
            # One of the two is contiguous along the columns, the other along the rows.
            name = transposition(self.b, self._bits(j), BLOCK)
            if src[0] == f"%g{j}":
                ends = f"ptr {dst[0]}, i64 {dst[2]}, ptr {src[0]}, i64 {src[1]}"
                return f"call void @{name}({ends}, i64 {rows}, i64 {columns})"
            ends = f"ptr {dst[0]}, i64 {dst[1]}, ptr {src[0]}, i64 {src[2]}"
            return f"call void @{name}({ends}, i64 {columns}, i64 {rows})"
        name = block_copy(self.b, memory_type(self.kernel.accesses[j]))
        ends = ", ".join(f"ptr {p}, i64 {r}, i64 {c}" for p, r, c in (dst, src))
        return f"call void @{name}({ends}, i64 {rows}, i64 {columns})"


class _Points:
    """What a program asks of the rows."""

    def __init__(self, rows: ShortRows, b: Builder):
        self._rows, self.b = rows, b

    def load(self, access: int) -> Val:
        return self._rows.load(self.b, access)

    def index(self, dims: Sequence[int]) -> Val:
        return self._rows.index(self.b, dims)

    def picked(self, table: int, offset: str) -> Val:
        return self.gathered(table, self.b.splat(offset, "i64", ROW))

    def gathered(self, table: int, offset: Val) -> Val:
        return self._rows.gathered(self.b, table, offset)


# -- helpers -----------------------------------------------------------------------------------------------------------


def block_copy(b: Builder, ty: str) -> str:
    """Helper `void (ptr dst, i64, i64, ptr src, i64, i64, i64 rows, i64 columns)`: copies a block element by element;
    strides of each are from row to row and from column to column."""
    name = f"copy.{ty}"
    if name not in b.helpers:
        b.helpers[name] = "\n".join(
            [
                f"define internal void @{name}(ptr %dst, i64 %dr, i64 %dc, ptr %src, i64 %sr, i64 %sc, i64 %rows, "
                "i64 %columns) #0 {",
                "entry:",
                "%any.r = icmp sgt i64 %rows, 0",
                "%any.c = icmp sgt i64 %columns, 0",
                "%any = and i1 %any.r, %any.c",
                "br i1 %any, label %column, label %exit",
                "column:",
                "%c = phi i64 [ 0, %entry ], [ %c.next, %column.done ]",
                "%dst.c = mul i64 %c, %dc",
                "%src.c = mul i64 %c, %sc",
                "br label %row",
                "row:",
                "%r = phi i64 [ 0, %column ], [ %r.next, %row ]",
                "%dst.r = mul i64 %r, %dr",
                "%src.r = mul i64 %r, %sr",
                "%dst.at = add i64 %dst.r, %dst.c",
                "%src.at = add i64 %src.r, %src.c",
                f"%to = getelementptr {ty}, ptr %dst, i64 %dst.at",
                f"%from = getelementptr {ty}, ptr %src, i64 %src.at",
                f"%x = load {ty}, ptr %from, align 1",
                f"store {ty} %x, ptr %to, align 1",
                "%r.next = add i64 %r, 1",
                "%r.more = icmp slt i64 %r.next, %rows",
                "br i1 %r.more, label %row, label %column.done",
                "column.done:",
                "%c.next = add i64 %c, 1",
                "%c.more = icmp slt i64 %c.next, %columns",
                "br i1 %c.more, label %column, label %exit",
                "exit:",
                "ret void",
                "}",
            ]
        )
    return name
