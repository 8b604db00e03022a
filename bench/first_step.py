"""What the first training step of the GPT-2 of bench/models.py takes longer than a steady one, with empty caches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from bench import models
from bench.contender import Contender

TITLE = "First training step of GPT-2 from an empty cache, less a steady step"
UNIT = ("s", 1.0)
CONTENDERS = ("cpu-plain", "inductor-plain", "neuron-cold")
ROUNDS = 1  # a process has one first step
TARGETS: dict[str, dict[str, float]] = {}
LIMITS = {"gpt2": 2.0}

WARM_STEPS, STEPS = 5, 10


def cases() -> list[str]:
    return list(LIMITS)


def prepare(case: str, contender: Contender) -> Callable[[int], float]:
    step = models.gpt2(contender)

    def timed() -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    first = timed()
    for _ in range(WARM_STEPS):
        step()
    extra = first - statistics.median(timed() for _ in range(STEPS))
    return lambda index: extra


if __name__ == "__main__":
    from bench import harness

    harness.main("first_step")
