"""The one timer of all benches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


class Timer:
    """Times one function. Each `round` makes as many calls as fill `seconds`, and gives the mean of them.

    The first calls, which compile and warm caches, are made when the timer is.
    """

    def __init__(self, function: Callable[[], object], seconds: float = 0.2, warm_calls: int = 10) -> None:
        self._function = function
        for _ in range(warm_calls):
            function()
        self._calls = 1
        while True:
            taken = self._measure()
            if taken >= seconds / 4:
                break
            self._calls *= 2
        self._calls = max(1, round(self._calls * seconds / taken))

    def round(self, index: int = 0) -> float:
        """Seconds a call."""
        return self._measure() / self._calls

    def _measure(self) -> float:
        function = self._function
        start = time.perf_counter()
        for _ in range(self._calls):
            function()
        return time.perf_counter() - start


def first_and_steady(function: Callable[[], object], warm_calls: int, calls: int) -> tuple[float, float]:
    """Seconds of the first call, and the median of `calls` later ones, after `warm_calls` that are not timed."""

    def timed() -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    first = timed()
    for _ in range(warm_calls):
        function()
    return first, statistics.median(timed() for _ in range(calls))
