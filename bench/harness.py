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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.contender import CONTENDERS, Contender

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Measurement:
    """One contender in one case. `seconds` has one value a round; `error` says why there are none."""

    case: str
    contender: str
    seconds: list[float] = field(default_factory=list)
    setup_seconds: float | None = None
    error: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


class Worker:
    """The parent's end of bench/worker.py."""

    def __init__(self, module: str, case: str, contender: Contender, threads: int) -> None:
        self.result = Measurement(case, contender.name)
        environment = {**os.environ, **contender.environment}
        self._cache = tempfile.TemporaryDirectory(prefix="adaptive-eager-bench-") if contender.cold else None
        if self._cache is not None:
            environment["ADAPTIVE_EAGER_CACHE_DIR"] = self._cache.name + "/cache"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", module, case, contender.name, str(threads)],
            cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        # Waiting here means that no two contenders prepare at the same time.
        self.result.setup_seconds = self._answer().get("setup_seconds")

    def round(self, index: int) -> None:
        if self.result.error is not None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{index}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died; the missing answer says so
        answer = self._answer()
        if "seconds" in answer:
            self.result.seconds.append(answer["seconds"])

    def close(self) -> Measurement:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        if self._cache is not None:
            self._cache.cleanup()
        return self.result

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"its process ended with {self._process.wait()}"}
        self.result.error = answer.get("error", self.result.error)
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
    results = []
    for case in cases or module.cases():
        workers = []
        for each in names:
            _show(f"{name} {case}: preparing {each}")
            workers.append(Worker(module.__name__, case, CONTENDERS[each], threads))
        count = rounds or module.ROUNDS
        for index in range(count):
            _show(f"{name} {case}: round {index + 1} of {count}")
            # Whoever goes first finds a cooler machine, so that is somebody else each time.
            for worker in workers[index % len(workers) :] + workers[: index % len(workers)]:
                worker.round(index)
        results += [worker.close() for worker in workers]
    _show("")
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
