"""Compiling the demo's kernels: loop IR to loaded code, text generation and loading included.

The kernels are those that training and generating compile in a process with an empty cache. A round compiles each of
them again; its figure is the median over the kernels. As a program of its own it prints every kernel by stage.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from bench.contender import Contender

if TYPE_CHECKING:
    from adaptive_eager.compiler.loop_ir import Kernel
    from adaptive_eager.compiler.target import Target

TITLE = "Compiling a kernel of the demo: median over the kernels"
UNIT = ("ms", 1e3)
CONTENDERS = ("neuron-cold",)
ROUNDS = 9
TARGETS: dict[str, dict[str, float]] = {}
LIMITS = {"a kernel": 5e-3}

STEPS = 4


class Stages(NamedTuple):
    """Seconds: LLVM IR text, machine code (parsing the text included), loading."""

    text: float
    code: float
    load: float


def cases() -> list[str]:
    return list(LIMITS)


def prepare(case: str, contender: Contender) -> Callable[[int], float]:
    kernels, target = demo_kernels(contender.device)
    compiler = Compiler(target)
    return lambda index: statistics.median(sum(compiler.compile(kernel)) for kernel in kernels)


def demo_kernels(device: str) -> tuple[list[Kernel], Target]:
    """What the demo's first steps compile, in their order."""
    from adaptive_eager import backend, gpt

    service = backend.planner().kernels
    kernels: list[Kernel] = []
    compile_one = service._compile

    def noting(kernel: Kernel) -> bytes:
        kernels.append(kernel)
        return compile_one(kernel)

    service._compile = noting  # type: ignore[method-assign]
    corpus = gpt.Corpus()
    training = gpt.Training(device, gpt.Shape(), corpus)
    for _ in range(STEPS):
        training.step().item()
    training.generate(corpus.encode("The "), 8)
    return kernels, service.target


class Compiler:
    """Compiles kernels as the service does, and times the stages."""

    def __init__(self, target: Target) -> None:
        from adaptive_eager import backend

        self._target = target
        self._runtime = backend.runtime()

    def compile(self, kernel: Kernel) -> Stages:
        from adaptive_eager.compiler.codegen import ENTRY_POINT, emit_ir, emit_object
        from adaptive_eager.native import artifact

        start = time.perf_counter()
        ir = emit_ir(kernel, self._target)
        written = time.perf_counter()
        code = emit_object(ir, self._target)
        made = time.perf_counter()
        model = self._runtime.load(artifact.pack(self._target.key(), [ENTRY_POINT], code))
        loaded = time.perf_counter()
        model.unload()
        return Stages(written - start, made - written, loaded - made)


def main(rounds: int = 9) -> None:
    """Every kernel of the demo by stage, cheapest first."""
    cache = tempfile.TemporaryDirectory(prefix="adaptive-eager-bench-")
    os.environ["ADAPTIVE_EAGER_CACHE_DIR"] = os.path.join(cache.name, "cache")  # read when torch is imported, below

    from adaptive_eager.compiler.codegen import emit_ir

    kernels, target = demo_kernels("neuron")
    compiler, rows = Compiler(target), []
    for kernel in kernels:
        stages = [
            1e3 * statistics.median(s) for s in zip(*(compiler.compile(kernel) for _ in range(rounds)), strict=True)
        ]
        ops = [i.op for i in (*kernel.program, *kernel.epilogue) if i.op not in ("load", "scalar")]
        rows.append((sum(stages), *stages, emit_ir(kernel, target).count("\n"), " ".join(ops)))
    print(f"{'ms':>7}{'text':>7}{'code':>7}{'load':>7}{'lines':>7}  ops")
    for total, text, code, load, lines, ops in sorted(rows):
        print(f"{total:7.2f}{text:7.2f}{code:7.2f}{load:7.2f}{lines:7d}  {ops[:80]}")
    print(f"median of {len(rows)} kernels: {statistics.median(row[0] for row in rows):.2f} ms")


if __name__ == "__main__":
    main()
