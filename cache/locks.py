"""Locks: the lock files of a cache directory, who holds them, and which nobody does. For people and for tidying up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from adaptive_eager.cache.layer import Layer
from adaptive_eager.cache.lease import acquire


class LockFile(NamedTuple):
    """A lock file.

    held     whether a process holds it
    holder   that process: pid, command and state; who held it last, if nobody does
    seconds  since it was taken
    """

    path: Path
    held: bool
    holder: str
    seconds: float


def lock_files(layer: Layer) -> list[LockFile]:
    """All lock files of a directory."""
    return [found for path in _paths(layer) if (found := _look(path)) is not None]


def remove_stale(layer: Layer) -> int:
    """Removes the leases that nobody holds: what processes left that were killed. Returns how many."""
    removed = 0
    for path in _paths(layer):
        if path.parent != layer.leases:
            continue
        with contextlib.suppress(OSError):
            lock = acquire(path, 0)
            if lock is not None:
                os.unlink(path)  # while it is held: whoever has it open notices (cache/lease.py)
                lock.release()
                removed += 1
    return removed


def _paths(layer: Layer) -> Iterator[Path]:
    if (layer.directory / "open.lock").exists():
        yield layer.directory / "open.lock"
    with contextlib.suppress(OSError):
        yield from sorted(layer.leases.glob("*.lock"))


def _look(path: Path) -> LockFile | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        seconds = max(0.0, time.time() - os.fstat(descriptor).st_mtime)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            held = False
        except BlockingIOError:
            held = True
        return LockFile(path, held, _describe(text, path if held else None), seconds)
    finally:
        os.close(descriptor)


def _describe(pid: str, held: Path | None) -> str:
    """A process in words. One that has the lock must have the file open: a pid may have been given out again, or be
    another container's."""
    import psutil

    if not pid.isdigit():
        return "an unknown process"
    try:
        process = psutil.Process(int(pid))
        if held is not None and not any(Path(file.path) == held for file in process.open_files()):
            return f"a process that cannot be seen from here (it calls itself {pid})"
        command = " ".join(process.cmdline())[:120] or process.name()
        return f"pid {pid} ({process.status()}): {command}"
    except psutil.NoSuchProcess:
        return f"pid {pid}, which is gone"
    except psutil.Error:
        return f"pid {pid}, which may not be looked at"
