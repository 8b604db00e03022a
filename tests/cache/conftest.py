"""What the cache tests share: a directory that does not exist yet, and processes that start together."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import pytest

from adaptive_eager.cache.store import KernelStore


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def store(directory):
    """A store that raises where others warn."""
    strict = KernelStore(directory, strict=True)
    yield strict
    strict.close()


@pytest.fixture
def warnings_of(caplog):
    """warnings_of(): the warnings logged so far."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def in_child():
    """in_child(action): runs it in a forked child, which must end well."""

    def run(action):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                action()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0

    return run


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
