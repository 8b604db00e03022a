"""What the first training step of the GPT-2 of bench/models.py takes longer than a steady one, with empty caches."""

from __future__ import annotations

from collections.abc import Callable

from bench import models
from bench.contender import Contender
from bench.timer import first_and_steady

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
    first, steady = first_and_steady(models.gpt2(contender), WARM_STEPS, STEPS)
    return lambda index: first - steady


if __name__ == "__main__":
    from bench import harness

    harness.main("first_step")
