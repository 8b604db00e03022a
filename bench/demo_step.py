"""One training step of the demo's GPT: forward, backward, AdamW, and reading the loss."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from bench.contender import Contender

TITLE = "Training step of the demo's GPT"
UNIT = ("ms", 1e3)
CONTENDERS = ("cpu-plain", "cpu-tuned", "cpu-fused-opt", "neuron")
ROUNDS = 9
TARGETS = {"step": {"cpu": 1.0}}

WARM_STEPS, STEPS = 10, 10


def cases() -> list[str]:
    return list(TARGETS)


def prepare(case: str, contender: Contender) -> Callable[[int], float]:
    from adaptive_eager.gpt import Corpus, Shape, Training

    training = Training(contender.device, Shape(), Corpus(), fused=contender.fused_optimizer)

    def step() -> float:
        start = time.perf_counter()
        training.step().item()
        return time.perf_counter() - start

    for _ in range(WARM_STEPS):
        step()
    return lambda index: statistics.median(step() for _ in range(STEPS))


if __name__ == "__main__":
    from bench import harness

    harness.main("demo_step")
