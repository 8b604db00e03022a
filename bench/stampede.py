"""Eight processes that start the same program at once on an empty cache: how long, and how often the compiler runs.

The program is the first steps of the demo's training. All have imported what they need when they are let go. Compared
with one process on an empty cache that has as many cores free: the other seven only compute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.contender import Contender

TITLE = "8 processes started together on an empty cache, as a multiple of one alone with as many cores free"
UNIT = ("times", 1.0)
CONTENDERS = ("neuron-cold",)
ROUNDS = 7
TARGETS: dict[str, dict[str, float]] = {}
LIMITS = {"8 processes": 1.5}

PROCESSES, STEPS = 8, 4
ROOT = Path(__file__).resolve().parent.parent


def cases() -> list[str]:
    return list(LIMITS)


def prepare(case: str, contender: Contender) -> Callable[[int], float]:
    def measure(index: int) -> float:
        alone, _, _ = _run(["train"] + ["compute"] * (PROCESSES - 1))
        together, compiled, distinct = _run(["train"] * PROCESSES)
        if compiled != distinct:
            raise RuntimeError(f"the compiler ran {compiled} times for {distinct} kernels")
        return together / alone

    return measure


def _run(works: list[str]) -> tuple[float, int, int]:
    """Seconds until all that train have ended, runs of the compiler, and kernels in the cache."""
    from adaptive_eager.cache.store import KernelStore

    with tempfile.TemporaryDirectory(prefix="adaptive-eager-bench-") as folder:
        environment = {**os.environ, "ADAPTIVE_EAGER_CACHE_DIR": folder + "/cache", "ADAPTIVE_EAGER_BACKGROUND": "off"}
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.stampede", work], cwd=ROOT, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
            for work in works
        ]  # fmt: skip
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        start = time.perf_counter()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        trained: list[dict[str, Any]] = []
        for child, work in zip(children, works, strict=True):
            assert child.stdout is not None
            if work == "train":
                trained.append(json.loads(child.stdout.readline()))
        seconds = time.perf_counter() - start
        for child in children:
            child.kill()
            child.communicate()
        assert len({tuple(one["losses"]) for one in trained}) == 1, "they do not agree"
        kernels = KernelStore(folder + "/cache", mode="read-only", strict=True).keys("kernel")
        return seconds, sum(one["compiled"] for one in trained), len(kernels)


def _child(work: str) -> None:
    import torch

    import adaptive_eager as ae
    from adaptive_eager.gpt import Corpus, Shape, Training

    torch.set_num_threads(1)
    torch.manual_seed(0)
    corpus = Corpus()
    print("ready", flush=True)
    sys.stdin.readline()
    if work == "compute":
        parent = os.getppid()
        while os.getppid() == parent:
            pass
    training = Training("neuron", Shape(), corpus)
    losses = [training.step().item() for _ in range(STEPS)]
    print(json.dumps({"losses": losses, "compiled": ae.stats()["kernels_compiled"]}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] in (["train"], ["compute"]):
        _child(sys.argv[1])
    else:
        from bench import harness

        harness.main("stampede")
