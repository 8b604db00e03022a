"""Compile time of kernels by stage: IR text, parse, machine code, link. Usage: python bench/compile_time.py [rounds]"""

from __future__ import annotations

import os
import statistics
import sys
import time

import llvmlite.binding as llvm
import torch

from adaptive_eager.compiler.codegen import _machine, emit_ir
from adaptive_eager.compiler.linker import Linker
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import host_target


def chain(dtype: str, dims: str, moves: tuple[str, str]) -> Kernel:
    """Ten instructions: sigmoid(exp(-relu(tanh(x*y+1.5)*x-y)/2)+x)."""
    p: list[Instr] = [
        Instr("load", (), dtype, dtype, (0,)),
        Instr("load", (), dtype, dtype, (1,)),
        Instr("scalar", (), "f64", "f64", (0, "f")),
        Instr("scalar", (), "f64", "f64", (1, "f")),
    ]
    for op, *args in (
        ("mul", 0, 1), ("add", 4, 2), ("tanh", 5), ("mul", 6, 0), ("sub", 7, 1), ("relu", 8), ("neg", 9),
        ("div", 10, 3), ("exp", 11), ("add", 12, 0), ("sigmoid", 13),
    ):  # fmt: skip
        p.append(Instr(op, tuple(args), dtype, dtype))
    out = moves[0].replace("0", "s")
    return Kernel(
        dims, (Access(dtype, moves[0]), Access(dtype, moves[1]), Access(dtype, out)), tuple(p), (Store(14, 2),)
    )


def alu_chain() -> Kernel:
    """Ten instructions without mathematics."""
    p: list[Instr] = [Instr("load", (), "f32", "f32", (0,)), Instr("load", (), "f32", "f32", (1,))]
    for k in range(10):
        p.append(Instr(("mul", "add", "sub", "maximum", "add")[k % 5], (len(p) - 1, k % 2), "f32", "f32"))
    access = Access("f32", "c")
    return Kernel("k", (access, access, access), tuple(p), (Store(11, 2),))


def one_op(op: str, dtype: str) -> Kernel:
    load = tuple(Instr("load", (), dtype, dtype, (k,)) for k in range(2))
    access = Access(dtype, "c")
    return Kernel("k", (access,) * 3, (*load, Instr(op, (0, 1), dtype, dtype)), (Store(2, 2),))


def reduction(dims: str, moves: str, kinds: tuple[str, ...]) -> Kernel:
    """exp of the input, reduced, and divided by a scalar."""
    kept = moves.replace("c", "0") if dims.endswith("r") else "0c"
    program = [Instr("load", (), "f32", "f32", (0,)), Instr("exp", (0,), "f32", "f32")]
    program.append(Instr("scalar", (), "f64", "f64", (0, "f")))
    reduces = [Instr("reduce", (1,), "f32", "i64" if k.startswith("arg") else "f32", (k,)) for k in kinds]
    epilogue, stores = [], []
    accesses = [Access("f32", moves)]
    for k, reduce in enumerate(reduces):
        number = len(program) + k
        if reduce.dtype == "f32":
            epilogue.append(Instr("div", (number, 2), "f32", "f32"))
            number = len(program) + len(reduces) + len(epilogue) - 1
        stores.append(Store(number, len(accesses)))
        accesses.append(Access(reduce.dtype, kept))
    return Kernel(dims, tuple(accesses), (*program, *reduces), (), tuple(epilogue), tuple(stores))


KERNELS = {
    "add f32": one_op("add", "f32"),
    "add bf16": one_op("add", "bf16"),
    "floor_divide i64": one_op("floor_divide", "i64"),
    "10 alu ops f32": alu_chain(),
    "10 ops f32": chain("f32", "k", ("c", "c")),
    "10 ops bf16": chain("bf16", "k", ("c", "c")),
    "10 ops f32, bias": chain("f32", "kk", ("sc", "0c")),
    "10 ops f32, strided": chain("f32", "kkk", ("sss", "s0s")),
    "inner sum": reduction("kr", "sc", ("sum",)),
    "inner sum amax": reduction("kr", "sc", ("sum", "amax")),
    "outer sum": reduction("rk", "sc", ("sum",)),
    "inner argmax": reduction("kr", "sc", ("argmax",)),
}


def measure(kernel: Kernel, linker: Linker, rounds: int) -> list[float]:
    """Median milliseconds of each stage."""
    target, times = host_target(), []
    for k in range(rounds):
        t0 = time.perf_counter()
        ir = emit_ir(kernel, target)
        t1 = time.perf_counter()
        module = llvm.parse_assembly(ir)
        t2 = time.perf_counter()
        code = _machine(target).emit_object(module)
        t3 = time.perf_counter()
        linker.link(code, f"bench{k}")
        t4 = time.perf_counter()
        linker.unlink(f"bench{k}")
        times.append((t1 - t0, t2 - t1, t3 - t2, t4 - t3))
    return [1e3 * statistics.median(stage) for stage in zip(*times, strict=True)]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    linker = Linker([os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")])
    print(f"{'kernel':24}{'IR lines':>9}{'text':>8}{'parse':>8}{'code':>8}{'link':>8}{'sum ms':>9}")
    for name, kernel in KERNELS.items():
        stages = measure(kernel, linker, rounds)
        lines = emit_ir(kernel, host_target()).count("\n")
        print(f"{name:24}{lines:9d}" + "".join(f"{s:8.2f}" for s in stages) + f"{sum(stages):9.2f}")


if __name__ == "__main__":
    main()
