"""Outer reduction: the vector runs along the last kept dimension.

An item is a block of columns. A chunk walks down its rows and adds each, left to right, onto a row of accumulators in
memory; every column is added in the order of the rows, whichever vector or tail it is in.
"""

from __future__ import annotations

from adaptive_eager.compiler.builder import BODY, ENTRY, ROW, Builder, Val
from adaptive_eager.compiler.loop_ir import Kernel
from adaptive_eager.compiler.nest import decompose
from adaptive_eager.compiler.reduction import Reduction
from adaptive_eager.compiler.reduction_parts import Chunk, Finish, Layout, Slot, preset


class OuterChunk(Chunk):
    def __init__(self, kernel: Kernel, b: Builder, layout: Layout):
        super().__init__(kernel, b, layout)
        self.column = ""
        for r, reduction in enumerate(self.reductions):
            self._accumulate(r, reduction)
        self.emit_stores()

    def _accumulate(self, r: int, reduction: Reduction) -> None:
        b = self.b
        new = [reduction.element(b, self.program.operand(reduction.argument, reduction.compute))]
        if reduction.is_arg:
            row, ty = b.put(ROW, "sub i64 %o, %o.first"), reduction.types[1]
            new.append(b.splat(row if ty == "i64" else b.put(ROW, f"trunc i64 {row} to {ty}"), ty, ROW))
        self.column = self.column or b.put(BODY, "sub i64 %i, %c0")
        places, old = [], []
        for slot in (s for s in self.layout.slots if s.r == r):
            first = b.put(ENTRY, f"getelementptr i8, ptr %acc, i64 {slot.offset}")
            places.append(b.put(BODY, f"getelementptr {slot.ty}, ptr {first}, i64 {self.column}"))
            old.append(Val(b.put(BODY, f"load {b.vector(slot.ty)}, ptr {places[-1]}, align 1"), slot.ty, BODY))
        for place, total in zip(places, reduction.accumulate(b, old, new), strict=True):
            # Volatile, or LLVM makes a select stored where it was loaded from a masked store: microcode on some CPUs.
            b.line(BODY, f"store volatile {b.vector(total.ty)} {total.ref}, ptr {place}, align 1")

    def text(self) -> list[str]:
        b, nest, lanes = self.b, self.nest, self.b.lanes
        text = [*self.head(), "%o.chunk = add i64 %chunk, 0", *self.rows(), "br i1 %columns, label %clear, label %done"]
        text += ["clear:", "%k = phi i64 [ %c0, %entry ], [ %k.next, %clear ]", "%k.column = sub i64 %k, %c0"]
        for slot in self.layout.slots:
            identity = self.reductions[slot.r].identity(b)[slot.p]
            to = f"%clear{slot.r}.{slot.p}"
            text.append(f"{to}.first = getelementptr i8, ptr %acc, i64 {slot.offset}")
            text.append(f"{to} = getelementptr {slot.ty}, ptr {to}.first, i64 %k.column")
            text.append(f"store {b.vector(slot.ty)} {identity.ref}, ptr {to}, align 1")
        text += [f"%k.next = add i64 %k, {lanes}", "%k.more = icmp slt i64 %k.next, %c1"]
        text += ["br i1 %k.more, label %clear, label %cleared", "cleared:", "br i1 %work, label %setup, label %done"]
        text += ["setup:", *nest.entry_pointers(), *b.streams[ENTRY], *decompose(self.row_dims, "%o.first", "start")]
        text += ["br label %row", "row:", "%o = phi i64 [ %o.first, %setup ], [ %o.next, %next ]"]
        text += [f"%i{d} = phi i64 [ %start{d}, %setup ], [ %i{d}.next, %next ]" for d in self.row_dims]
        text += nest.row_pointers() + b.streams[ROW] + nest.segments("row", "%c0", "%c1")
        text += ["row.done:", "%o.next = add i64 %o, 1", "%o.more = icmp slt i64 %o.next, %o.end"]
        text += ["br i1 %o.more, label %next, label %done", "next:", *nest.odometer(), "br label %row"]
        return [*text, "done:", "ret void", "}"]


class OuterFinish(Finish):
    def __init__(self, kernel: Kernel, b: Builder, layout: Layout):
        super().__init__(kernel, b, layout)
        for r, reduction in enumerate(self.reductions):
            self._combine(r, reduction)
        b = self.b
        b.real_lanes = self.nest.real_lanes
        column = b.put(BODY, "sub i64 %i, %c0")
        for r, reduction in enumerate(self.reductions):
            parts = []
            for slot in (s for s in self.layout.totals if s.r == r):
                first = b.put(ENTRY, f"getelementptr i8, ptr %totals, i64 {slot.offset}")
                where = b.put(BODY, f"getelementptr {slot.ty}, ptr {first}, i64 {column}")
                parts.append(Val(b.put(BODY, f"load {b.vector(slot.ty)}, ptr {where}, align 1"), slot.ty, BODY))
            preset(self.program, b, reduction, parts)
        for access, value in self.emit_final_stores():
            self.nest.store(access, value)

    def _combine(self, r: int, reduction: Reduction) -> None:
        """Combine one vector of columns at %k.column of a chunk, at %from, with the totals."""
        j = self.join
        start = j.splat("%chunk.start", "i64", BODY) if reduction.is_arg else j.const("i64", 0)

        def load(slot: Slot, base: str) -> tuple[str, Val]:
            first = j.put(BODY, f"getelementptr i8, ptr {base}, i64 {slot.offset}")
            where = j.put(BODY, f"getelementptr {slot.ty}, ptr {first}, i64 %k.column")
            return where, Val(j.put(BODY, f"load {j.vector(slot.ty)}, ptr {where}, align 1"), slot.ty, BODY)

        new = [load(s, "%from")[1] for s in self.layout.slots if s.r == r]
        places = [load(s, "%totals") for s in self.layout.totals if s.r == r]
        old = []
        for (_, so_far), identity in zip(places, reduction.identity(j, reduction.total_types), strict=True):
            # Before the first chunk the totals are not written yet.
            v = j.vector(so_far.ty)
            chosen = j.put(BODY, f"select i1 %c.first, {v} {identity.ref}, {v} {so_far.ref}")
            old.append(so_far._replace(ref=chosen))
        for (where, _), total in zip(places, reduction.combine(j, old, reduction.absolute(j, new, start)), strict=True):
            j.line(BODY, f"store volatile {j.vector(total.ty)} {total.ref}, ptr {where}, align 1")

    def text(self) -> list[str]:
        b = self.b
        text = self.head([f"%totals = alloca [{max(64, self.layout.total_bytes)} x i8], align 64"])
        text += [*self.decode_item(), "br label %gather", "gather:"]
        text += ["%c = phi i64 [ 0, %items ], [ %c.next, %joined ]", "%c.first = icmp eq i64 %c, 0"]
        text += [*self.gather(), *self.chunk_start(), "br label %combine", "combine:"]
        text += ["%k = phi i64 [ %c0, %join ], [ %k.next, %combine ]", "%k.column = sub i64 %k, %c0"]
        text += [*self.join.streams[BODY], f"%k.next = add i64 %k, {b.lanes}", "%k.more = icmp slt i64 %k.next, %c1"]
        text += ["br i1 %k.more, label %combine, label %joined", "joined:"]
        text += ["%c.next = add i64 %c, 1", "%c.more = icmp slt i64 %c.next, %n_chunks"]
        text += ["br i1 %c.more, label %gather, label %finish", "finish:"]
        text += self.nest.entry_pointers() + b.streams[ENTRY] + b.streams[ROW]
        return text + self.nest.segments("finish", "%c0", "%c1") + self.next_item()
