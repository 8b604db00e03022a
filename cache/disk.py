"""The two ways to reach the database of entries: diskcache for reading and writing, plain SQLite for reading only.

diskcache as it ships unpickles what it finds, and whoever can write a row then runs code. `SafeDisk` refuses everything
but names (str) and blobs (bytes), on the way in and on the way out.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diskcache
from diskcache.core import MODE_BINARY, MODE_RAW

#: Blobs from this size are files of their own. Nearly all kernels are smaller, so they are rows, published atomically.
_FILE_BYTES = 256 * 1024
#: Seconds that SQLite waits for a writer in another process. A put takes 0.1 ms, so this is a process that hangs.
_BUSY_SECONDS = 5.0

_VALUE_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")


class UnsafeEntry(ValueError):
    """A row that we did not write: pickled, text, or pointing out of the directory."""


class SafeDisk(diskcache.Disk):
    """Serialization that knows names and bytes only. Nothing is pickled, nothing is unpickled."""

    def put(self, key: Any) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"cache names are str, got {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        # Asked for while listing; a foreign row gets a name that no entry has.
        return key if raw and type(key) is str else ""

    def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> tuple[Any, ...]:
        if type(value) is not bytes or read:
            raise TypeError(f"cache values are bytes, got {type(value).__name__}")
        return super().store(value, False, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:
        if mode == MODE_RAW and type(value) is bytes:
            return value
        if mode == MODE_BINARY and not read and filename is not None:
            return Path(self._directory, _checked(filename)).read_bytes()
        raise UnsafeEntry(f"a row of mode {mode} and type {type(value).__name__}, need bytes")

    def remove(self, file_path: str) -> None:
        super().remove(_checked(file_path))


class Database:
    """The entries of one directory, for reading and writing."""

    def __init__(self, directory: Path, size_limit: int) -> None:
        self._path = directory / diskcache.core.DBNAME
        _wait_for_writers(self._path)
        self._cache = diskcache.Cache(
            str(directory),
            timeout=_BUSY_SECONDS,
            disk=SafeDisk,
            size_limit=size_limit,
            statistics=0,  # counting in the database would make every get a write
            disk_min_file_size=_FILE_BYTES,
            sqlite_mmap_size=0,  # with a mapping, a database cut short by someone is a SIGBUS, not an error
            sqlite_cache_size=1024,
            sqlite_journal_mode="wal",
            sqlite_synchronous=1,  # in WAL mode a put does not wait for the disk, and a crash loses only the last ones
        )
        self._identity = self._identify()

    def read(self, name: str) -> bytes | None:
        return self._cache.get(name)

    def write(self, name: str, blob: bytes) -> None:
        try:
            self._cache.set(name, blob)
        except diskcache.Timeout:
            # diskcache says Timeout whatever kept the transaction from starting.
            what = "is not writable" if not os.access(self._path, os.W_OK) else "stayed locked by another process"
            raise sqlite3.OperationalError(f"{self._path} {what}") from None

    def remove(self, name: str) -> None:
        self._cache.delete(name)

    def names(self) -> Iterator[str]:
        return iter(self._cache.iterkeys())

    def volume(self) -> int:
        return self._cache.volume()

    def moved(self) -> bool:
        """Whether the database file has been removed or replaced since it was opened; SQLite does not notice."""
        return self._identify() != self._identity

    def close(self) -> None:
        self._cache.close()

    def _identify(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


class ReadOnlyDatabase:
    """The entries of one directory, never written: also for a directory that cannot be written."""

    def __init__(self, directory: Path) -> None:
        self._disk = SafeDisk(str(directory))
        path = directory / diskcache.core.DBNAME
        if not path.exists():
            raise FileNotFoundError(f"there is no {path} to read")
        self._connection = self._connect(path)

    @staticmethod
    def _connect(path: Path) -> sqlite3.Connection:
        # SQLite needs to write beside a WAL database even to read it; `immutable` is for where it cannot.
        for options in ("mode=ro", "mode=ro&immutable=1"):
            connection = sqlite3.connect(
                f"{path.as_uri()}?{options}", uri=True, timeout=_BUSY_SECONDS, check_same_thread=False
            )
            try:
                connection.execute("SELECT count(*) FROM Cache").fetchone()
                return connection
            except sqlite3.OperationalError as error:
                connection.close()
                failure = error
        raise failure

    def read(self, name: str) -> bytes | None:
        select = "SELECT mode, filename, value FROM Cache WHERE key = ? AND raw = 1"
        row = self._connection.execute(select, (name,)).fetchone()
        if row is None:
            return None
        try:
            mode, filename, value = row
            return self._disk.fetch(mode, filename, value, False)
        except OSError:
            return None

    def names(self) -> Iterator[str]:
        return (self._disk.get(key, raw) for key, raw in self._connection.execute("SELECT key, raw FROM Cache"))

    def volume(self) -> int:
        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        return pages * self._connection.execute("PRAGMA page_size").fetchone()[0]

    def moved(self) -> bool:
        return False

    def close(self) -> None:
        self._connection.close()


def set_aside(directory: Path, database: Database | None) -> None:
    """Moves a broken database out of the way, into `broken/`, unless another process has replaced it already.

    The caller holds the lock of the directory. One broken database is kept, to be looked at.
    """
    if database is not None and database.moved():
        return
    broken = directory / "broken"
    broken.mkdir(mode=0o700, exist_ok=True)
    for suffix in ("", "-wal", "-shm"):
        path = directory / (diskcache.core.DBNAME + suffix)
        if path.exists():
            path.replace(broken / path.name)


def _wait_for_writers(path: Path) -> None:
    """Raises OperationalError when the database stays locked: opening writes, and diskcache would try for a minute."""
    if not path.exists():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            raise sqlite3.OperationalError(f"{path} stayed locked by another process") from None


def _checked(filename: str) -> str:
    if not _VALUE_FILE.fullmatch(filename):
        raise UnsafeEntry(f"a row whose value is the file {filename!r}")
    return filename
