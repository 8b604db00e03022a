"""Runs one bench: a process for each case and contender, interleaved rounds, medians."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.contender import CONTENDERS, Contender

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Measurement:
    """One contender in one case. `seconds` has one value a round (bytes, in a bench of memory); `error` says why there
    are none; `first_seconds` is the first call's, where the bench tells it."""

    case: str
    contender: str
    seconds: list[float] = field(default_factory=list)
    setup_seconds: float | None = None
    first_seconds: float | None = None
    error: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


class Worker:
    """The parent's end of bench/worker.py."""

    def __init__(self, module: str, case: str, contender: Contender, threads: int, compiled: str) -> None:
        self._whole = Measurement(case, contender.name)
        self._parts: dict[str, Measurement] = {}
        environment = {**os.environ, **contender.environment, "TORCHINDUCTOR_CACHE_DIR": compiled}
        self._cache = tempfile.TemporaryDirectory(prefix="adaptive-eager-bench-") if contender.cold else None
        if self._cache is not None:
            environment["ADAPTIVE_EAGER_CACHE_DIR"] = self._cache.name + "/cache"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", module, case, contender.name, str(threads)],
            cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        # Waiting here means that no two contenders prepare at the same time.
        answer = self._answer()
        self._whole.setup_seconds = answer.get("setup_seconds")
        self._whole.first_seconds = answer.get("first_seconds")

    def round(self, index: int) -> None:
        if self._whole.error is not None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{index}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died; the missing answer says so
        answer = self._answer()
        if "seconds" in answer:
            self._whole.seconds.append(answer["seconds"])
        for part, seconds in answer.get("parts", {}).items():
            case = f"{self._whole.case} {part}"
            self._parts.setdefault(case, replace(self._whole, case=case, seconds=[])).seconds.append(seconds)

    def close(self) -> list[Measurement]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        if self._cache is not None:
            self._cache.cleanup()
        if self._whole.error is not None:
            return [self._whole, *self._parts.values()]
        return list(self._parts.values()) or [self._whole]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"its process ended with {self._process.wait()}"}
        self._whole.error = answer.get("error", self._whole.error)
        return answer


def measure(
    name: str,
    contenders: list[str] | None = None,
    cases: list[str] | None = None,
    rounds: int | None = None,
    threads: int = 2,
) -> list[Measurement]:
    """Runs the bench `bench.<name>`; the lists narrow it down."""
    module = importlib.import_module(f"bench.{name}")
    names = contenders or list(module.CONTENDERS)
    # Inductor starts from an empty cache too: its first contender pays for the compilation, and says so.
    with tempfile.TemporaryDirectory(prefix="adaptive-eager-bench-") as compiled:
        results = _measure(module, names, cases or module.cases(), rounds or module.ROUNDS, threads, compiled)
    _show("")
    return results


def _measure(
    module: ModuleType, names: list[str], cases: list[str], count: int, threads: int, compiled: str
) -> list[Measurement]:
    name, results = module.__name__.split(".")[-1], []
    for case in cases:
        workers = []
        for each in names:
            _show(f"{name} {case}: preparing {each}")
            workers.append(Worker(module.__name__, case, CONTENDERS[each], threads, compiled))
        for index in range(count):
            _show(f"{name} {case}: round {index + 1} of {count}")
            # Whoever goes first finds a cooler machine, so that is somebody else each time.
            for worker in workers[index % len(workers) :] + workers[: index % len(workers)]:
                worker.round(index)
        results += [result for worker in workers for result in worker.close()]
    return results


def _show(line: str) -> None:
    """One line of progress, on a terminal only, each in place of the one before."""
    if sys.stderr.isatty():
        print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)


def as_json(results: list[Measurement]) -> list[dict[str, Any]]:
    return [asdict(result) | {"median": result.median} for result in results]


def main(name: str) -> None:
    """Command line of one bench: `python -m bench.<name>`."""
    from bench import table

    module: ModuleType = importlib.import_module(f"bench.{name}")
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=module.TITLE)
    parser.add_argument("--contender", action="append", choices=module.CONTENDERS, help="only these (repeatable)")
    parser.add_argument("--case", action="append", choices=module.cases(), help="only these (repeatable)")
    parser.add_argument("--rounds", type=int, help=f"rounds of each (default {module.ROUNDS})")
    parser.add_argument("--threads", type=int, default=2, help="threads of each (default 2)")
    given = parser.parse_args()
    results = measure(name, given.contender, given.case, given.rounds, given.threads)
    print(table.markdown(module, results))
