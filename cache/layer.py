"""Layer: one directory of entries, opened when it is first needed, opened again when it was removed or replaced, and
made anew when it is damaged.

What a layer cannot do it raises; what a damaged entry is it says. The store decides what of it the user hears.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from adaptive_eager.cache.disk import DATABASE, FILES, Reader, UnsafeEntry, identify, is_damage, set_aside
from adaptive_eager.cache.entry import BadEntry, Entry, unpack
from adaptive_eager.cache.lease import file_lock
from adaptive_eager.cache.trust import check_absolute, check_inside, check_trusted, make_private

if TYPE_CHECKING:
    from adaptive_eager.cache.writer import Writer

log = logging.getLogger("adaptive_eager.cache")

T = TypeVar("T")

#: Folder of this layout. An older or newer one beside it stays untouched.
LAYOUT = "v2"
#: Opening takes a few milliseconds; so long a wait means a process that hangs.
_OPEN_SECONDS = 10.0
#: Damaged databases that one process replaces before it gives up: something damages them on and on.
_MOST_REPAIRS = 8
#: Damaged entries that are kept in `broken/`, to be looked at.
_MOST_BROKEN = 16


class Layer:
    """Entries of one directory, by name. Not thread-safe: the store's lock is held around each call.

    directory   made if missing, when the first entry is written
    writable    whether this process may write to it
    size_limit  bytes above which entries are dropped
    """

    def __init__(self, directory: Path, writable: bool, size_limit: int) -> None:
        self.directory = directory
        self.folder = directory / LAYOUT
        self.writable = writable
        #: Why nothing is read from it (any more), and why nothing is written to it.
        self.read_trouble: str | None = None
        self.write_trouble: str | None = None
        self.bad_entries = 0
        self.repairs = 0
        self._size_limit = size_limit
        self._path = self.folder / DATABASE
        self._identity: tuple[int, int] | None = None  # of the database that is open, or could not be opened
        self._reader: Reader | None = None
        self._writer: Writer | None = None

    @property
    def leases(self) -> Path:
        return self.folder / "leases"

    def prepare(self) -> None:
        """Makes the directory, so that leases can be taken before the first entry is put."""
        make_private(self.directory)
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def read(self, name: str) -> Entry | None:
        """The entry; None if there is none, or a damaged one, which is put aside and removed."""
        blob = self._reading(lambda reader: self._blob(reader, name), None)
        if blob is None:
            return None
        try:
            return unpack(name, blob)
        except BadEntry as error:
            self._bad(name, blob, error)
            return None

    def names(self) -> list[str]:
        return self._reading(lambda reader: reader.names(), [])

    def volume(self) -> int:
        """Bytes of the database; 0 if there is none."""
        return self._reading(lambda reader: reader.volume(), 0)

    def uses(self) -> list[tuple[str, str, int, float]]:
        return self._reading(lambda reader: reader.uses(), [])

    def write(self, name: str, blob: bytes) -> None:
        self._writing(lambda writer: writer.write(name, blob))

    def remove(self, name: str) -> None:
        self._writing(lambda writer: writer.remove(name))

    def shrink(self, size: int) -> None:
        """Drops entries, those that were not used for longest first, down to `size` bytes."""
        self._writing(lambda writer: writer.shrink(size))

    def clear(self) -> None:
        self._writing(lambda writer: writer.clear())

    def reader(self) -> Reader | None:
        """The open reader, for listing; None if there is no database."""
        return self._reading(lambda reader: reader, None)

    def close(self) -> None:
        for opened in (self._reader, self._writer):
            if opened is not None:
                with contextlib.suppress(sqlite3.Error):
                    opened.close()
        self._reader = self._writer = None

    def forget_inherited(self) -> list[object]:
        """In a forked child: the connections are the parent's. Returns them; they must be neither used nor closed."""
        inherited: list[object] = [opened for opened in (self._reader, self._writer) if opened is not None]
        self._reader = self._writer = None
        return inherited

    # -- the database ---------------------------------------------------------------------------------------------

    def _reading(self, action: Callable[[Reader], T], nothing: T) -> T:
        """Result of `action`; `nothing` where there is no database yet, or one that had to be put aside."""

        def attempt() -> T:
            reader = self._opened_reader()
            return nothing if reader is None else action(reader)

        return self._attempt(attempt)

    def _writing(self, action: Callable[[Writer], None]) -> None:
        self._attempt(lambda: action(self._opened_writer()))

    def _attempt(self, action: Callable[[], T]) -> T:
        """Tries again, once, after what has a cure: a database that was moved away or is damaged."""
        try:
            return action()
        except Exception as error:
            if not self._cure(error):
                raise
        return action()

    def _cure(self, error: Exception) -> bool:
        if identify(self._path) != self._identity:
            return True
        if not self.writable and self._reader is not None:
            self.close()  # its writer may have died since: then it must be opened in another way
            return True
        if not (self.writable and is_damage(error)) or self.repairs >= _MOST_REPAIRS:
            return False
        self.repairs += 1
        level = logging.WARNING if self.repairs == 1 else logging.INFO
        log.log(level, "kernel cache %s is damaged (%s): moved aside, starting an empty one", self.directory, error)
        make_private(self.directory)  # nothing is touched in a directory that is no longer ours
        with file_lock(self.directory / "open.lock", _OPEN_SECONDS):
            if identify(self._path) == self._identity:  # otherwise another process was quicker
                set_aside(self.folder)
        self.close()
        return True

    def _look(self) -> None:
        """Notices a database that was removed or replaced since it was opened; SQLite does not."""
        identity = identify(self._path)
        if identity != self._identity:
            if self._reader is not None or self._writer is not None:
                log.info("kernel cache %s was removed or replaced; opening it again", self.directory)
            self.close()
            self._identity = identity

    def _opened_reader(self) -> Reader | None:
        self._look()
        if self._reader is None:
            check_absolute(self.directory)
            try:
                check_trusted(self.directory, read_only=not self.writable)
                check_inside(self.folder, FILES, read_only=not self.writable)
                self._reader = Reader(self._path, repair=self.writable)
            except FileNotFoundError as error:
                if self.writable:
                    return None  # nothing has been put yet
                raise FileNotFoundError(f"there is no {self._path} to read") from error
        return self._reader

    def _opened_writer(self) -> Writer:
        from adaptive_eager.cache.writer import Writer

        self._look()
        if self._writer is None:
            self.prepare()
            # Opening writes some thirty settings, and makes the tables the first time: processes take turns.
            with file_lock(self.directory / "open.lock", _OPEN_SECONDS):
                check_inside(self.folder, FILES)
                self._look()
                self.close()  # a write-ahead log that somebody left can go only while nobody reads it
                self._writer = Writer(self.folder, self._size_limit)
            self._identity = identify(self._path)
        return self._writer

    # -- damaged entries ------------------------------------------------------------------------------------------

    def _blob(self, reader: Reader, name: str) -> bytes | None:
        try:
            return reader.read(name)
        except UnsafeEntry as error:
            self._bad(name, None, error)
            return None

    def _bad(self, name: str, blob: bytes | None, error: Exception) -> None:
        self.bad_entries += 1
        level = logging.WARNING if self.bad_entries == 1 else logging.INFO
        log.log(level, "kernel cache %s: entry %s is damaged (%s); compiling again", self.directory, name, error)
        if self.writable and self.write_trouble is None:
            if blob is not None:
                self._quarantine(name, blob)
            with contextlib.suppress(Exception):  # then it stays, until it is put anew
                self.remove(name)

    def _quarantine(self, name: str, blob: bytes) -> None:
        broken = self.folder / "broken"
        with contextlib.suppress(OSError):
            broken.mkdir(mode=0o700, exist_ok=True)
            if len(os.listdir(broken)) < _MOST_BROKEN:
                label = hashlib.sha256(name.encode()).hexdigest()[:16]
                (broken / f"{label}.entry").write_bytes(blob)
