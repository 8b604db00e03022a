"""Resident memory of a process that trains the GPT-2 of bench/models.py: high-water mark over steady steps.

`peak` is the mark itself, `growth` what it is above the process with the model made and no step taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench import models
from bench.contender import Contender

TITLE = "Peak resident memory of steady training steps of GPT-2"
UNIT = ("MiB", 1 / 2**20)
CONTENDERS = ("cpu-plain", "cpu-tuned", "cpu-fused-opt", "neuron")
ROUNDS = 5
COMPARISON = "times as little as"
TARGETS = {"gpt2 peak": {"cpu": 1.0}}

WARM_STEPS, STEPS = 10, 5


def cases() -> list[str]:
    return ["gpt2"]


def prepare(case: str, contender: Contender) -> Callable[[int], dict[str, float]]:
    step = models.gpt2(contender)
    before = status("VmRSS")
    for _ in range(WARM_STEPS):
        step()

    def measure(index: int) -> dict[str, float]:
        Path("/proc/self/clear_refs").write_text("5")  # sets the mark back to what is resident now
        for _ in range(STEPS):
            step()
        peak = status("VmHWM")
        return {"peak": peak, "growth": peak - before}

    return measure


def status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)


if __name__ == "__main__":
    from bench import harness

    harness.main("memory")
