"""What the cache tests share: a directory that does not exist yet, and processes that start together."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def together():
    """together(n, function, *args): runs function(index, *args) in n fresh processes from one barrier on; results."""
    context = multiprocessing.get_context("spawn")  # nothing inherited: as programs started one by one

    def run(count: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        with context.Manager() as manager, context.Pool(count) as pool:
            barrier = manager.Barrier(count)
            jobs = [pool.apply_async(_start, (barrier, function, index, args)) for index in range(count)]
            return [job.get(timeout=120) for job in jobs]

    return run


def _start(barrier: Any, function: Callable[..., Any], index: int, args: tuple[Any, ...]) -> Any:
    barrier.wait(60)
    return function(index, *args)
