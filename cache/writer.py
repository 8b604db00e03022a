"""Writer: puts entries into the database of one directory, through diskcache made safe."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

import diskcache

from adaptive_eager.cache import disk
from adaptive_eager.cache.disk import DATABASE, UnsafeEntry, connect

#: No value is a file of its own.
_NEVER = 1 << 60


class SafeDisk(diskcache.Disk):
    """Serialization that knows names and bytes only. Nothing is pickled, nothing is unpickled, no file is touched."""

    def put(self, key: Any) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"cache names are str, got {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        raise UnsafeEntry("names are listed by the reader")

    def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> tuple[Any, ...]:
        if type(value) is not bytes or read:
            raise TypeError(f"cache values are bytes, got {type(value).__name__}")
        return super().store(value, False, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:
        raise UnsafeEntry("values are read by the reader")

    def remove(self, file_path: str) -> None:
        """Rows that name a file are not ours, and neither is the file."""


class Writer:
    """The entries of one directory, for writing. The caller holds the lock of the directory while it is made.

    Above `size_limit` bytes each put drops ten of the entries that were not used for longest.
    """

    def __init__(self, folder: Path, size_limit: int) -> None:
        self.path = folder / DATABASE
        _wait_for_writers(self.path)
        self._cache = diskcache.Cache(
            str(folder),
            timeout=disk.BUSY_SECONDS,
            disk=SafeDisk,
            size_limit=size_limit,
            cull_limit=10,
            eviction_policy="least-recently-used",
            statistics=0,
            disk_min_file_size=_NEVER,
            sqlite_mmap_size=0,
            sqlite_cache_size=1024,
            sqlite_journal_mode="truncate",
            # A put does not wait for the disk. Loss of power can damage the database, which is then made anew.
            sqlite_synchronous=0,
        )

    def write(self, name: str, blob: bytes) -> None:
        try:
            self._cache.set(name, blob)
        except diskcache.Timeout:
            # diskcache says Timeout whatever kept the transaction from starting.
            what = "is not writable" if not os.access(self.path, os.W_OK) else "stayed locked by another process"
            raise sqlite3.OperationalError(f"{self.path} {what}") from None

    def remove(self, name: str) -> None:
        self._cache.delete(name)

    def shrink(self, size: int) -> None:
        """Drops entries, those that were not used for longest first, until the database has at most `size` bytes."""
        limit, self._cache.size_limit = self._cache.size_limit, size
        try:
            self._cache.cull()
        finally:
            self._cache.size_limit = limit

    def clear(self) -> None:
        """Drops all entries, and what processes have noted."""
        self._cache.clear()
        with contextlib.closing(connect(self.path, "mode=rw")) as connection:
            connection.execute("DROP TABLE IF EXISTS Uses")
            connection.execute("VACUUM")

    def close(self) -> None:
        self._cache.close()


def _wait_for_writers(path: Path) -> None:
    """Raises OperationalError when the database stays locked: opening writes, and diskcache would try for a minute."""
    if not path.exists():
        return
    with contextlib.closing(connect(path, "mode=rw")) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            raise sqlite3.OperationalError(f"{path} stayed locked by another process") from None
        connection.execute("ROLLBACK")
        # Whoever gave it a write-ahead log, or left one beside it, must have closed it before it can go.
        try:
            ((mode,),) = connection.execute("PRAGMA journal_mode = truncate").fetchall()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            mode = b"wal"
        if mode != b"truncate":
            raise sqlite3.OperationalError(f"{path} has a write-ahead log, and another process has it open")
