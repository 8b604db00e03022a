"""What a process pays that finds a warm cache: its first training step, opening the cache, and importing the device.

Each round starts new processes. The first one of all fills the cache. Python finds its byte code, as it does for an
installed package.
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

from bench.contender import CONTENDERS as ALL
from bench.contender import WITHOUT_DEVICE, Contender
from bench.timer import first_and_steady

TITLE = "A process that finds a warm cache"
UNIT = ("s", 1.0)
CONTENDERS = ("neuron-cold",)
ROUNDS = 7
TARGETS: dict[str, dict[str, float]] = {}
#: `excess` is the first step less 1.3 steady ones; `import` what `import torch` takes more with the device.
LIMITS = {"gpt2 excess": 0.3, "gpt2 open": 0.03, "gpt2 import": 0.25}

WARM_STEPS, STEPS = 3, 10
ROOT = Path(__file__).resolve().parent.parent


def cases() -> list[str]:
    return ["gpt2"]


def prepare(case: str, contender: Contender) -> Callable[[int], dict[str, float]]:
    import torch

    byte_code = tempfile.TemporaryDirectory(prefix="adaptive-eager-bench-")
    threads = torch.get_num_threads()

    def child(what: str, **environment: str) -> dict[str, Any]:
        variables = {**os.environ, "PYTHONPYCACHEPREFIX": byte_code.name, **environment}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        return json.loads(
            subprocess.run(
                [sys.executable, "-m", "bench.warm_start", what, contender.name, str(threads)],
                cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=True,
            ).stdout.splitlines()[-1]
        )  # fmt: skip

    child("steps")
    child("import", **WITHOUT_DEVICE)

    def measure(index: int) -> dict[str, float]:
        imports = [child("import", **variables)["seconds"] for variables in ({}, WITHOUT_DEVICE)]
        found = child("steps")
        if found["compiled"]:
            raise RuntimeError(f"{found['compiled']} kernels were compiled again")
        return {
            "first": found["first"], "steady": found["steady"], "excess": found["first"] - 1.3 * found["steady"],
            "open": found["open"], "import": imports[0] - imports[1],
        }  # fmt: skip

    return measure


def _steps(contender: Contender) -> dict[str, Any]:
    import adaptive_eager as ae
    from bench import models

    first, steady = first_and_steady(models.gpt2(contender), WARM_STEPS, STEPS)
    return {"first": first, "steady": steady, "compiled": ae.stats()["kernels_compiled"], "open": _opening()}


def _opening() -> float:
    """Seconds until a store in its place has found an entry."""
    from adaptive_eager.cache.store import KernelStore

    key = KernelStore.from_params().keys("kernel")[0]
    start = time.perf_counter()
    assert KernelStore.from_params().get("kernel", key) is not None
    return time.perf_counter() - start


def _child(what: str, contender: str, threads: int) -> None:
    start = time.perf_counter()
    import torch

    imported = time.perf_counter() - start
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    print(json.dumps({"seconds": imported} if what == "import" else _steps(ALL[contender])))


if __name__ == "__main__":
    if sys.argv[1:2] in (["steps"], ["import"]):
        _child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        from bench import harness

        harness.main("warm_start")
