"""Inner reduction: the vector runs along the last reduced dimension.

A chunk's blocks go to WAYS accumulator vectors in turn. Instead of four copies of the body, the four rotate: the first
takes the block and goes to the end of the queue. At the chunk's end they are folded: the ways as (0 + 1) + (2 + 3),
then the lanes, half onto half. What is kept of a chunk is a vector of which lane 0 counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_eager.compiler.builder import BODY, ENTRY, ROW, Builder, Val
from adaptive_eager.compiler.loop_ir import Kernel
from adaptive_eager.compiler.nest import Carried, decompose
from adaptive_eager.compiler.reduction import WAYS, Reduction
from adaptive_eager.compiler.reduction_parts import Chunk, Finish, Layout, minimum, preset


def fold(b: Builder, reduction: Reduction, ways: Sequence[Sequence[Val]]) -> tuple[Val, ...]:
    """Accumulator vectors to one whose lane 0 is the result."""
    parts = reduction.combine(b, reduction.combine(b, ways[0], ways[1]), reduction.combine(b, ways[2], ways[3]))
    half = b.lanes // 2
    while half:
        order = ", ".join(f"i32 {lane ^ half}" for lane in range(b.lanes))
        others = []
        for x in parts:
            v = b.vector(x.ty)
            text = f"shufflevector {v} {x.ref}, {v} poison, <{b.lanes} x i32> <{order}>"
            others.append(Val(b.put(x.level, text), x.ty, x.level))
        parts = reduction.combine(b, parts, others)
        half //= 2
    return parts


class InnerChunk(Chunk):
    def __init__(self, kernel: Kernel, b: Builder, layout: Layout):
        super().__init__(kernel, b, layout)
        self.carried = [c for r, reduction in enumerate(self.reductions) for c in self._accumulate(r, reduction)]
        self.emit_stores()

    def _accumulate(self, r: int, reduction: Reduction) -> list[Carried]:
        b = self.b
        parts = [reduction.element(b, self.program.operand(reduction.argument, reduction.compute))]
        if reduction.is_arg:
            parts.append(self._index(reduction.types[1]))
        # Lanes past the row's end count as nothing.
        parts = [self.nest.only_real(x, identity) for x, identity in zip(parts, reduction.identity(b), strict=True)]
        old = [Val(f"%a{r}.{p}.0", ty, BODY) for p, ty in enumerate(reduction.types)]
        new = reduction.accumulate(b, old, parts)
        return [
            Carried(f"a{r}.{p}.{way}", b.vector(ty), f"%a{r}.{p}.{way + 1}" if way + 1 < WAYS else new[p].ref)
            for p, ty in enumerate(reduction.types)
            for way in range(WAYS)
        ]

    def _index(self, ty: str) -> Val:
        """Linear index of the block's points, from the chunk's first point."""
        b = self.b
        row = b.put(ROW, "sub i64 %o, %o.first")
        first = b.put(ROW, f"mul i64 {row}, %n{self.last}")
        start = b.put(ROW, f"sub i64 {first}, %c0")
        position = b.put(BODY, f"add i64 {start}, %i")
        if ty != "i64":
            position = b.put(BODY, f"trunc i64 {position} to {ty}")
        return b.add(b.splat(position, ty, BODY), b.lane_numbers(ty))

    def _phis(self, suffix: str, outside: str, inside: str, source: str) -> list[str]:
        """Phi of every accumulator: its identity from block `outside`, its `source` from block `inside`."""
        text = []
        for r, reduction in enumerate(self.reductions):
            for p, identity in enumerate(reduction.identity(self.b)):
                for way in range(WAYS):
                    stem = f"%a{r}.{p}.{way}"
                    text.append(
                        f"{stem}.{suffix} = phi {self.b.vector(identity.ty)} "
                        f"[ {identity.ref}, %{outside} ], [ {stem}.{source}, %{inside} ]"
                    )
        return text

    def text(self) -> list[str]:
        b, nest = self.b, self.nest
        text = self.head() + self._limits()
        # Without points nothing may be loaded, only the identities stored.
        text += ["br i1 %work, label %setup, label %done", "setup:"]
        text += nest.entry_pointers() + b.streams[ENTRY] + decompose(self.row_dims, "%o.first", "start")
        text += ["br label %row", "row:", "%o = phi i64 [ %o.first, %setup ], [ %o.next, %next ]"]
        text += [f"%i{d} = phi i64 [ %start{d}, %setup ], [ %i{d}.next, %next ]" for d in self.row_dims]
        text += self._phis("row", "setup", "next", "out")
        text += nest.row_pointers() + b.streams[ROW] + nest.segments("row", "%c0", "%c1", self.carried)
        text += ["row.done:", "%o.next = add i64 %o, 1", "%o.more = icmp slt i64 %o.next, %o.end"]
        text += ["br i1 %o.more, label %next, label %done", "next:", *nest.odometer(), "br label %row", "done:"]
        text += self._phis("end", "limits", "row.done", "out")
        return [*text, *self._save(), "ret void", "}"]

    def _limits(self) -> list[str]:
        """Rows and columns [%c0, %c1) of the chunk. The first chunk, often the only one, needs no slow division."""
        return [
            "%is.first = icmp eq i64 %chunk, 0",
            "br i1 %is.first, label %limits, label %divide",
            "divide:",
            "%o.divided = udiv i64 %chunk, %chunks_per_o",
            "%n.divided = urem i64 %chunk, %chunks_per_o",
            "br label %limits",
            "limits:",
            "%o.chunk = phi i64 [ 0, %entry ], [ %o.divided, %divide ]",
            "%n.chunk = phi i64 [ 0, %entry ], [ %n.divided, %divide ]",
            "%c0 = mul i64 %n.chunk, %n_per_chunk",
            "%c1.far = add i64 %c0, %n_per_chunk",
            *minimum("%c1", "%c1.far", f"%n{self.last}"),
            *self.rows(),
        ]

    def _save(self) -> list[str]:
        b = Builder(self.b.target, self.b.declarations, self.b.helpers, prefix="save")
        for r, reduction in enumerate(self.reductions):
            ways = [
                [Val(f"%a{r}.{p}.{way}.end", ty, ENTRY) for p, ty in enumerate(reduction.types)] for way in range(WAYS)
            ]
            folded = fold(b, reduction, ways)
            for slot in (s for s in self.layout.slots if s.r == r):
                to = b.put(ENTRY, f"getelementptr i8, ptr %acc, i64 {slot.offset}")
                b.line(ENTRY, f"store {b.vector(slot.ty)} {folded[slot.p].ref}, ptr {to}, align 1")
        return b.streams[ENTRY]


class InnerFinish(Finish):
    def __init__(self, kernel: Kernel, b: Builder, layout: Layout):
        super().__init__(kernel, b, layout)
        self.totals = [self._combine(r, reduction) for r, reduction in enumerate(self.reductions)]
        b = self.b
        only_first = ", ".join(f"i1 {str(lane == 0).lower()}" for lane in range(b.lanes))
        b.real_lanes = lambda: Val(f"<{only_first}>", "i1", ENTRY)
        for reduction, total in zip(self.reductions, self.totals, strict=True):
            here = [part._replace(level=ENTRY) for part in total]
            preset(self.program, b, reduction, here)
        for access, value in self.emit_final_stores():
            self.nest.store_point(access, value)

    def _combine(self, r: int, reduction: Reduction) -> tuple[Val, ...]:
        """New totals from the totals so far and a chunk's accumulators."""
        j = self.join
        start = j.splat("%chunk.start", "i64", BODY) if reduction.is_arg else j.const("i64", 0)
        new = []
        for slot in (s for s in self.layout.slots if s.r == r):
            where = j.put(BODY, f"getelementptr i8, ptr %from, i64 {slot.offset}")
            new.append(Val(j.put(BODY, f"load {j.vector(slot.ty)}, ptr {where}, align 1"), slot.ty, BODY))
        old = [Val(f"%a{r}.{p}.sum", ty, BODY) for p, ty in enumerate(reduction.total_types)]
        return reduction.combine(j, old, reduction.absolute(j, new, start))

    def text(self) -> list[str]:
        text = [*self.head([]), "br label %gather", "gather:", "%c = phi i64 [ 0, %items ], [ %c.next, %join ]"]
        for r, (reduction, total) in enumerate(zip(self.reductions, self.totals, strict=True)):
            identity = reduction.identity(self.b, reduction.total_types)
            for p, part in enumerate(total):
                text.append(
                    f"%a{r}.{p}.sum = phi {self.b.vector(part.ty)} [ {identity[p].ref}, %items ], [ {part.ref}, %join ]"
                )
        text += [*self.gather(), *self.chunk_start(), *self.join.streams[BODY]]
        text += ["%c.next = add i64 %c, 1", "%c.more = icmp slt i64 %c.next, %n_chunks"]
        text += ["br i1 %c.more, label %gather, label %finish", "finish:", *self.decode_item()]
        return [*text, *self.nest.entry_pointers(), *self.b.streams[ENTRY], "br label %row.done", *self.next_item()]
