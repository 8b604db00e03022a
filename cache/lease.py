"""File locks between processes, and leases: the right to compile one key, held by one process at a time.

`flock` rather than a row in the database: the kernel frees it when its owner dies, however it dies. It excludes the
threads of one process too, as each lease opens the file anew.

A lease saves work; nothing's correctness rests on it. Who cannot get it in time compiles for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from adaptive_eager.cache.telling import Warned

log = logging.getLogger("adaptive_eager.cache")
_no_leases = Warned(
    log,
    "kernel cache: no leases can be taken in %s (%s), so processes that start together compile the same kernels",
    later=logging.INFO,
)

#: Pause between two tries. A kernel compiles in 2 to 5 ms, so the first tries come quickly.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02


class Lock:
    """A held `flock`. Released once, and only by the process that took it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._owner = os.getpid()
        _held.add(self)

    @property
    def mine(self) -> bool:
        """False in a child that inherited it, and after the release."""
        return self in _held and self._owner == os.getpid()

    def release(self) -> None:
        if self.mine:
            _held.discard(self)
            # Unlocking, not only closing: a child made by foreign code may still have a copy of the descriptor.
            with contextlib.suppress(OSError):
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)


#: Locks this process holds. A forked child closes its copies: they share the parent's locks, and would keep them held
#: after the parent has died.
_held: set[Lock] = set()


@contextlib.contextmanager
def lease(folder: Path, key: str, wait: float) -> Iterator[bool]:
    """Holds the lease of `key` for the `with` block; waits up to `wait` seconds. Yields whether it is held.

    Look into the store again after taking it: who held it before has probably put the entry there.
    """
    path = folder / f"{key}.lock"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = acquire(path, wait)
    except FileNotFoundError as error:  # the directory was removed: the next entry makes it again
        log.info("no lease on %s: %s", path, error)
        lock = None
    except OSError as error:
        _no_leases(folder, error, about=folder)
        lock = None
    if lock is None:
        yield False
        return
    try:
        yield True
    finally:
        # The file goes while the lock is held; `acquire` makes sure that nobody is left with a lock on a file that
        # is gone. Otherwise the folder would gain a file for every kernel ever compiled.
        if lock.mine:
            with contextlib.suppress(OSError):
                os.unlink(path)
            lock.release()


@contextlib.contextmanager
def file_lock(path: Path, wait: float) -> Iterator[None]:
    """Holds the lock of `path`, a file that stays, for the `with` block; TimeoutError after `wait` seconds."""
    lock = acquire(path, wait)
    if lock is None:
        raise TimeoutError(f"{path} stayed locked for {wait:g} s by another process")
    try:
        yield
    finally:
        lock.release()


def acquire(path: Path, wait: float) -> Lock | None:
    """Locks the file `path`, making it if need be; None when `wait` seconds were not enough."""
    deadline = time.monotonic() + wait
    pause = _FIRST_PAUSE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() >= deadline:
                return None
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            continue
        except BaseException:
            os.close(descriptor)
            raise
        if _is_file_at(descriptor, path):
            _sign(descriptor)
            return Lock(descriptor)
        os.close(descriptor)  # its last owner removed the file between our open and our lock


def _sign(descriptor: int) -> None:
    """Writes who holds the lock, for people: whether it is held only the lock itself says."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _drop_inherited() -> None:
    for lock in _held:
        with contextlib.suppress(OSError):
            os.close(lock.descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_drop_inherited)
