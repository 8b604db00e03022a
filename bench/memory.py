"""Resident memory of a process that trains the GPT-2 of bench/models.py: high-water mark over steady steps.

`peak` is the mark itself, `growth` what it is above the process with the model made and no step taken. `neuron` finds
its kernels in the cache, where another process has left them; `neuron-cold` compiles them, and keeps the compiler.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench import models
from bench.contender import CONTENDERS as CONTENDERS_BY_NAME
from bench.contender import Contender

TITLE = "Peak resident memory of steady training steps of GPT-2"
UNIT = ("MiB", 1 / 2**20)
CONTENDERS = ("cpu-plain", "cpu-tuned", "cpu-fused-opt", "neuron", "neuron-cold")
ROUNDS = 5
COMPARISON = "times as little as"
TARGETS = {"gpt2 peak": {"cpu": 1.0}}

WARM_STEPS, STEPS = 10, 5
ROOT = Path(__file__).resolve().parent.parent


def cases() -> list[str]:
    return ["gpt2"]


def prepare(case: str, contender: Contender) -> Callable[[int], dict[str, float]]:
    if contender.device == "neuron" and not contender.cold:
        subprocess.run([sys.executable, "-m", "bench.memory", "fill"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
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


def fill_cache() -> None:
    """Takes the steps once, so that all their kernels and plans are stored."""
    step = models.gpt2(CONTENDERS_BY_NAME["neuron"])
    for _ in range(WARM_STEPS + STEPS):
        step()


def status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)


if __name__ == "__main__":
    if sys.argv[1:] == ["fill"]:
        fill_cache()
    else:
        from bench import harness

        harness.main("memory")
