"""The database of entries of one directory: `Reader` with plain SQL, `Writer` through diskcache.

Opening a diskcache writes some thirty settings, so a process that finds all it needs never does: it reads, and opening
the reader writes nothing. Entries are rows, published by their transaction; there are no files beside the database that
could be cut short, orphaned or evicted while somebody reads them. The journal is a rollback journal and nothing is
mapped: with a write-ahead log its shared index is, and a file cut short by anybody would end the program by SIGBUS.

diskcache as it ships unpickles what it finds, and whoever can write a row then runs code. `SafeDisk` refuses everything
but names (str) and blobs (bytes), on the way in and on the way out, and `Reader` takes nothing else either.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

DATABASE = "cache.db"
JOURNAL = DATABASE + "-journal"
#: What SQLite looks for when it opens the database: a write-ahead log is none of ours, but it would read it.
FILES = (DATABASE, JOURNAL, f"{DATABASE}-wal", f"{DATABASE}-shm")
#: Seconds that SQLite waits for a writer in another process. A put takes 0.2 ms, so this is a process that hangs.
BUSY_SECONDS = 5.0
#: Seconds that the end of a process waits to say what it has used.
_NOTING_SECONDS = 0.25

#: diskcache's number for a value that is the row's own bytes.
_MODE_RAW = 1
#: What SQLite says when the trouble is not the file itself.
_NOT_DAMAGE = (
    "locked",
    "readonly",
    "unable to open",
    "is full",
    "I/O error",
    "protocol",
    "interrupted",
    "out of memory",
)


class UnsafeEntry(ValueError):
    """A row that we did not write: pickled, text, or pointing to a file."""


class Row(NamedTuple):
    """One row. `used` is the Unix time of the last use that is known."""

    name: str
    blob: bytes
    used: float


class Reader:
    """The entries of one directory. Reading writes nothing; `repair` rolls back what a dead writer left half done."""

    def __init__(self, path: Path, repair: bool) -> None:
        self.path = path
        os.stat(path)  # FileNotFoundError, not SQLite's "unable to open"
        # Without leave to write, SQLite cannot read beside the journal of a writer that died: `immutable` ignores it,
        # and the digests notice what is half written.
        for options in ("mode=rw",) if repair else ("mode=ro", "mode=ro&immutable=1"):
            try:
                self._connection = connect(self.path, options)
                return
            except sqlite3.OperationalError as error:
                failure = error
        raise failure

    def read(self, name: str) -> bytes | None:
        found = self._select("SELECT mode, value FROM Cache WHERE key = ? AND raw = 1", name)
        return _blob(*found[0]) if found else None

    def names(self) -> list[str]:
        """Names of all entries that could be ours."""
        return [name for name, _ in self._keys()]

    def rows(self) -> Iterator[Row]:
        """All rows whose names and values could be ours, one at a time: between two, others may write."""
        for name, used in self._keys():
            with contextlib.suppress(UnsafeEntry):
                blob = self.read(name)
                if blob is not None:
                    yield Row(name, blob, used)

    def uses(self) -> list[tuple[str, str, int, float]]:
        """What processes have noted at their ends: (directory or "made", kind, how many, seconds)."""
        found = self._select("SELECT source, kind, number, seconds FROM Uses")
        return [(_text(source), _text(kind), int(number), float(seconds)) for source, kind, number, seconds in found]

    def volume(self) -> int:
        """Bytes of the database."""
        return os.stat(self.path).st_size

    def close(self) -> None:
        self._connection.close()

    def _select(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """Rows of a table, none if it has not been made yet."""
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if _is_empty(error):
                return []
            raise

    def _keys(self) -> list[tuple[str, float]]:
        found = self._select("SELECT key, access_time FROM Cache WHERE raw = 1")
        return [
            (key.decode(errors="replace"), used if type(used) is float else 0.0)
            for key, used in found
            if type(key) is bytes
        ]


def connect(path: Path, options: str, timeout: float | None = None) -> sqlite3.Connection:
    """A connection that trusts neither the file's structure nor what its schema may call."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?{options}",
        uri=True,
        timeout=BUSY_SECONDS if timeout is None else timeout,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = bytes  # damaged text is no error of its own
    try:
        for pragma in ("trusted_schema = 0", "cell_size_check = 1", "mmap_size = 0", "cache_size = 256"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first look at the file
    except BaseException:
        connection.close()
        raise
    return connection


def note_uses(folder: Path, names: set[str], counts: Mapping[tuple[str, str], tuple[int, float]]) -> None:
    """Says which entries were used now, and adds (source, kind) -> (number, seconds) to what was noted before.

    One short transaction. Hits are noted so, at the end of a process or with its next put, never by themselves.
    """
    now = time.time()
    with contextlib.closing(connect(folder / DATABASE, "mode=rw", _NOTING_SECONDS)) as connection:
        connection.execute("PRAGMA synchronous = 0")
        connection.execute("PRAGMA journal_mode = truncate")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "UPDATE Cache SET access_time = ? WHERE key = ? AND raw = 1", [(now, name) for name in names]
        )
        connection.execute(
            "CREATE TABLE IF NOT EXISTS Uses"
            " (source TEXT, kind TEXT, number INTEGER, seconds REAL, PRIMARY KEY (source, kind))"
        )
        connection.executemany(
            "INSERT INTO Uses VALUES (?, ?, ?, ?) ON CONFLICT (source, kind)"
            " DO UPDATE SET number = number + excluded.number, seconds = seconds + excluded.seconds",
            [(*place, *amounts) for place, amounts in counts.items()],
        )
        connection.execute("COMMIT")


def is_damage(error: Exception) -> bool:
    """Whether the file is not a sound database, as against one that cannot be reached or written now."""
    if isinstance(error, (OSError, MemoryError)):
        return False
    return not (isinstance(error, sqlite3.OperationalError) and any(text in str(error) for text in _NOT_DAMAGE))


def identify(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one in its place; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def set_aside(folder: Path) -> None:
    """Moves a broken database into `broken/`, where one is kept to be looked at. Needs the directory's lock."""
    broken = folder / "broken"
    broken.mkdir(mode=0o700, exist_ok=True)
    for name in (DATABASE, JOURNAL):
        with contextlib.suppress(FileNotFoundError):
            (folder / name).replace(broken / name)


def _is_empty(error: sqlite3.OperationalError) -> bool:
    """A database without its tables: one that is being made, or was cut to nothing. There is nothing to be found."""
    return "no such table" in str(error)


def _blob(mode: object, value: object) -> bytes:
    if mode == _MODE_RAW and type(value) is bytes:
        return value
    raise UnsafeEntry(f"a row of mode {mode!r:.20} and type {type(value).__name__}, need bytes")


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
