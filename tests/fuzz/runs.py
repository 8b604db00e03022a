"""Runs a program in every mode, and says what is wrong with it.

Modes and thread counts must agree bit for bit in everything that a program reads or leaves. Against the CPU, each
statement is checked by itself, from the CPU's own values (refed.py).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass

import prelude
import refed
import torch
from program import DEFAULTS, Program, Run

from adaptive_eager import backend, params
from adaptive_eager.variants import Variants

#: Bytes of device memory that earlier programs left for good.
_leaked = 0
REFERENCE = Run("stepwise", together=False)


@dataclass(frozen=True)
class Fault:
    """`kind` stays the same while a program is shrunk: "bits", "error", "cpu", "unfused" or "memory"."""

    kind: str
    run: Run | None
    text: str
    reference: Run = REFERENCE

    def checks(self) -> str:
        """The last lines of a script that shows the fault."""
        if self.kind == "bits":
            return (
                f"expected = {self.reference}\nactual = {self.run}\n"
                "found = difference(actual, expected)\nassert not found, found"
            )
        if self.kind == "cpu":
            return CPU_CHECKS
        if self.kind == "unfused":
            return f"{self.run}\nfrom adaptive_eager import backend\n\nassert not backend.planner().failures"
        if self.kind == "memory":
            return (
                f"{self.run}\nbefore = torch.neuron.memory_allocated()\n{self.run}\n"
                "assert torch.neuron.memory_allocated() <= before"
            )
        return f"print({self.run})"


CPU_CHECKS = """\
with ae.stepwise():
    for thread in threads:
        actual, expected = told(thread("neuron")), told(thread("cpu"))
        for name in expected:
            if not isinstance(expected[name], str):
                torch.testing.assert_close(actual[name][2], expected[name][2], equal_nan=True, msg=name)"""


@contextlib.contextmanager
def limited(limits: dict[str, int | str]) -> Iterator[None]:
    """Sets tunables for a while, and starts without any plan or what led to one."""

    def take() -> None:
        for name in backend._EXTENSION_PARAMS:
            backend._C.set_param(name, params.get(name))
        planner = backend.planner()
        planner._version = planner.kernels.keys.key("plan", "", [(n, str(v)) for n, v in params.keyed()])[:32]
        planner.failures.clear()
        planner.variants = Variants()  # other programs' variants are not this one's
        backend._C.clear_plans()

    with params.override(**{**DEFAULTS, **limits}):
        take()
        yield
    take()


def host_ops() -> int:
    """How many ops of ATen's have run so far: their results may depend on the number of threads."""
    return backend._C.stats()["host_ops"] + sum(backend._C.fallback_counts().values())


def allocated(most: float) -> int:
    """Bytes of device memory in use; if they are more than `most`, what is garbage goes first."""
    backend._C.flush()
    for _ in range(3):  # what one collection finalizes, the next one frees
        if torch.neuron.memory_allocated() > most:
            gc.collect()
    return torch.neuron.memory_allocated()


def check(program: Program, runs: tuple[Run, ...] | None = None, cpu: bool = True) -> Fault | None:
    """The first fault of a program, or None. `runs`: only these against the reference; default: all that fit.

    Raises what the reference itself raises as RuntimeError if the CPU refuses the program too.
    """
    global _leaked
    torch.set_num_threads(1)
    functions = program.functions()
    with limited(program.limits):
        before = _leaked = allocated(_leaked)
        used = host_ops()
        reference = REFERENCE
        try:
            expected = prelude.run(functions, reference.mode, 1, together=False)
        except Exception as error:
            return Fault("error", reference, f"{type(error).__name__}: {error}")
        leaked = allocated(before) > before  # in-place ops can tie a graph into a cycle, on any device
        free_count = host_ops() == used
        if not free_count and program.num_threads > 1:
            reference = Run("stepwise", program.num_threads, together=False)
            expected = prelude.run(functions, reference.mode, reference.num_threads, together=False)
        runs = runs_of(program, free_count) if runs is None else runs
        for run in runs:
            backend._C.clear_plans()
            try:
                actual = prelude.run(functions, run.mode, run.num_threads, run.together)
            except Exception as error:
                return Fault("error", run, f"{type(error).__name__}: {error}")
            if found := prelude.difference(actual, expected):
                return Fault("bits", run, found, reference)
            if failures := backend.planner().failures:
                return Fault("unfused", run, "\n".join(failures.values()))
            if not leaked and allocated(before) > before:
                return Fault("memory", run, f"{allocated(before) - before} bytes stay allocated")
        torch.set_num_threads(1)
        if cpu:
            for i, thread in enumerate(program.threads):
                if found := refed.difference(thread):
                    return Fault("cpu", None, f"thread {i}: {found}")
    return None


def runs_of(program: Program, free_count: bool) -> tuple[Run, ...]:
    """`free_count`: no host op is in it, so that one thread and two must agree."""
    n = program.num_threads
    several = len(program.threads) > 1
    runs = [Run("per_op", 3 - n if free_count else n), Run("adaptive", n)]
    if free_count:
        runs.append(Run("adaptive", 3 - n))
    if several:
        runs += [Run("stepwise", n), Run("adaptive", n, together=False)]
    return tuple(runs)
