"""Map kernel: a pointwise loop nest over any run of its points."""

from __future__ import annotations

from adaptive_eager.compiler.builder import ENTRY, ROW, Builder
from adaptive_eager.compiler.loop_ir import Kernel
from adaptive_eager.compiler.nest import Nest, decompose, load_arguments, load_sizes
from adaptive_eager.compiler.program import Program
from adaptive_eager.compiler.usage import used_by


def emit_map(kernel: Kernel, b: Builder, name: str = "define void @k") -> list[str]:
    """Functions of a map kernel: `void @k(ptr args, i64 begin, i64 end)`. `name`: how its definition begins."""
    rank = len(kernel.dims)
    usage = used_by(kernel.program, (s.value for s in kernel.stores))
    row_dims, vector_dim = (list(range(rank - 1)), rank - 1) if rank else ([], None)
    stores = {s.access for s in kernel.stores}
    nest = Nest(b, kernel.accesses, usage.loads, stores, row_dims, vector_dim, tables=usage.tables)
    b.real_lanes = nest.real_lanes
    program = Program(b, kernel.program, tuple(a.dtype for a in kernel.accesses), nest)
    stored = [(s.access, program.stored(s.value, kernel.accesses[s.access].dtype)) for s in kernel.stores]
    for access, value in stored:
        nest.store(access, value)
    return [
        f"{name}(ptr %args, i64 %begin, i64 %end) #0 {{",
        *(_single_row(nest, b) if rank <= 1 else _rows(nest, b, rank)),
    ]


def _head(nest: Nest, b: Builder, more: list[str]) -> list[str]:
    text = ["entry:", *nest.staging()]
    if b.reports_errors:
        text.append("%noerror = alloca i64, align 8")
    # Nothing may be read when there is nothing to do: the pointers need not be valid.
    text += ["%go = icmp slt i64 %begin, %end", "br i1 %go, label %setup, label %exit", "setup:"]
    return text + load_arguments(("ptrs", "sizes", "strides", "scalars", "error")) + more


def _single_row(nest: Nest, b: Builder) -> list[str]:
    text = _head(nest, b, nest.entry_pointers()) + b.streams[ENTRY] + b.streams[ROW]
    text += nest.segments("setup", "%begin", "%end")
    return [*text, "row.done:", "br label %exit", "exit:", "ret void", "}"]


def _rows(nest: Nest, b: Builder, rank: int) -> list[str]:
    n = f"%n{rank - 1}"
    text = _head(nest, b, load_sizes(range(rank)) + nest.entry_pointers()) + b.streams[ENTRY]
    text += [f"%row.first = udiv i64 %begin, {n}", f"%column.first = urem i64 %begin, {n}"]
    text += decompose(nest.row_dims, "%row.first", "start")
    text += ["br label %row", "row:"]
    text += [f"%i{d} = phi i64 [ %start{d}, %setup ], [ %i{d}.next, %next ]" for d in nest.row_dims]
    text += [
        "%at = phi i64 [ %begin, %setup ], [ %at.next, %next ]",
        "%c0 = phi i64 [ %column.first, %setup ], [ 0, %next ]",
        "%rest = sub i64 %end, %at",
        "%c1.far = add i64 %c0, %rest",
        f"%c1.near = icmp slt i64 %c1.far, {n}",
        f"%c1 = select i1 %c1.near, i64 %c1.far, i64 {n}",
    ]
    text += nest.row_pointers() + b.streams[ROW] + nest.segments("row", "%c0", "%c1")
    text += [
        "row.done:",
        "%row.len = sub i64 %c1, %c0",
        "%at.next = add i64 %at, %row.len",
        "%go.on = icmp slt i64 %at.next, %end",
        "br i1 %go.on, label %next, label %exit",
        "next:",
        *nest.odometer(),
    ]
    return [*text, "br label %row", "exit:", "ret void", "}"]
