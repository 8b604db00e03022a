"""KernelStore: kernels, plans and failures on disk, shared by every process of the user on this machine.

Whoever can write to the directory can run code in every program that uses it, as kernels are machine code. So it must
be a directory of mode 0700, owned by the user, and not a symbolic link; otherwise it is not used.

Trouble with the cache is never trouble for the program: whatever fails, one warning names the cause, and from then on
this process keeps its entries in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from adaptive_eager.cache import blob
from adaptive_eager.cache.lease import file_lock, lease

if TYPE_CHECKING:
    from adaptive_eager.cache.disk import Database, ReadOnlyDatabase

log = logging.getLogger("adaptive_eager.cache")

KINDS = ("kernel", "plan", "failure")
MODES = ("on", "off", "read-only")

#: Folder of this layout. An older or newer one beside it stays untouched.
_LAYOUT = "v1"
#: Opening takes about 1 ms; so long a wait means a process that hangs.
_OPEN_SECONDS = 10.0
#: Bytes kept for a process that has no disk to keep them on.
_MEMORY_BYTES = 64 << 20

T = TypeVar("T")


class CacheTrouble(RuntimeError):
    """What a strict store raises where another one warns and goes on in memory."""


class KernelStore:
    """Bytes by kind and key. Opened at the first use, never at import. Threads and forks may share one.

    directory   made if missing
    mode        "on", "off" (nothing is kept on disk), "read-only" (nothing is written)
    size_limit  bytes above which the oldest entries are dropped
    wait        longest wait in seconds for another process that compiles the same key
    strict      raise CacheTrouble instead of warning; for tests
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        mode: str = "on",
        size_limit: int = 512 << 20,
        wait: float = 20.0,
        strict: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"cache mode {mode!r}: need one of {', '.join(MODES)}")
        self.directory = Path(directory)
        self.mode = mode
        self.strict = strict
        #: Why this process works in memory, or None.
        self.trouble: str | None = None
        self._size_limit = size_limit
        self._wait = wait
        self._counters = {"hits": 0, "misses": 0, "puts": 0, "bad_entries": 0}
        self._database: Database | ReadOnlyDatabase | None = None
        self._repaired = False
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._memory_bytes = 0
        self._lock = threading.RLock()
        _stores.add(self)

    @classmethod
    def from_params(cls) -> KernelStore:
        """The store that the parameters describe."""
        from adaptive_eager import params

        return cls(
            params.get("cache_dir"),
            mode=params.get("cache"),
            size_limit=params.get("cache_size"),
            wait=params.get("cache_wait"),
        )

    # -- entries --------------------------------------------------------------------------------------------------

    def get(self, kind: str, key: str) -> bytes | None:
        """Payload of an entry, or None. A damaged entry is removed, counted, and not found."""
        with self._lock:
            payload = self._find(_name(kind, key))
            self._counters["misses" if payload is None else "hits"] += 1
            return payload

    def put(self, kind: str, key: str, payload: bytes) -> None:
        """Keeps a payload. Does not wait for the disk."""
        name = _name(kind, key)
        with self._lock:
            if not (self.mode == "on" and self._attempt(lambda database: _write(database, name, payload))):
                self._keep_in_memory(name, payload)
            self._counters["puts"] += 1

    def compile_once(self, kind: str, key: str, build: Callable[[], bytes]) -> bytes:
        """Payload of an entry, built if need be by one process of those that ask for it at the same time.

        Who has waited `wait` seconds for another process builds it for itself.
        """
        payload = self.get(kind, key)
        if payload is not None:
            return payload
        if self.mode != "on" or self.trouble is not None:
            payload = build()
            self.put(kind, key, payload)
            return payload
        with lease(self.directory / _LAYOUT / "leases", f"{kind}-{key}", self._wait) as held:
            if not held:
                log.info("compiling %s %s without its lease: another process may be doing the same", kind, key)
            with self._lock:
                payload = self._find(_name(kind, key))  # a second look, not a second miss
            if payload is None:
                payload = build()
                self.put(kind, key, payload)
            return payload

    def keys(self, kind: str) -> list[str]:
        """Keys of all entries of a kind, sorted."""
        prefix = _name(kind, "")
        with self._lock:
            names = set(self._memory)
            names.update(self._attempt(lambda database: list(database.names())) or ())
        return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    # -- for reports ----------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """What this process did: hits, misses, puts, bad_entries."""
        return dict(self._counters)

    def info(self) -> dict[str, Any]:
        """State ("on", "off", "read-only", "memory"), the cause of trouble, entries, bytes on disk; opens the store."""
        with self._lock:
            counts = {kind: len(self.keys(kind)) for kind in KINDS}
            volume = self._attempt(lambda database: database.volume()) or 0
        state = self.mode if self.trouble is None else "memory"
        return {
            "directory": str(self.directory), "state": state, "trouble": self.trouble, "entries": counts,
            "bytes": volume,
        }  # fmt: skip

    def close(self) -> None:
        """Closes the database; the next use opens it again."""
        with self._lock:
            database, self._database = self._database, None
            if database is not None:
                with contextlib.suppress(sqlite3.Error):
                    database.close()

    # -- the database ---------------------------------------------------------------------------------------------

    def _find(self, name: str) -> bytes | None:
        payload = self._memory.get(name)
        return payload if payload is not None else self._attempt(lambda database: self._read(database, name))

    def _attempt(self, action: Callable[[Any], T]) -> T | None:
        """Result of `action` on the database; None when there is none (any more)."""
        if self.mode == "off" or self.trouble is not None:
            return None
        try:
            return action(self._opened())
        except sqlite3.DatabaseError as error:
            if not self._repair(error):
                self._give_up(error)
                return None
        except Exception as error:  # whatever it is, the program must not see it
            self._give_up(error)
            return None
        try:
            return action(self._opened())
        except Exception as error:
            self._give_up(error)
            return None

    def _opened(self) -> Database | ReadOnlyDatabase:
        if self._database is not None and self._database.moved():
            log.info("kernel cache %s was removed or replaced by another process; opening it again", self.directory)
            self.close()
        if self._database is None:
            self._database = self._open_read_only() if self.mode == "read-only" else self._open()
        return self._database

    def _open(self) -> Database:
        from adaptive_eager.cache.disk import Database, set_aside

        make_private(self.directory)
        folder = self.directory / _LAYOUT
        # Opening writes some thirty settings, and makes the tables the first time: processes take turns.
        with file_lock(self.directory / "open.lock", _OPEN_SECONDS):
            folder.mkdir(mode=0o700, exist_ok=True)
            try:
                return Database(folder, self._size_limit)
            except sqlite3.DatabaseError as error:
                if not _is_broken(error):
                    raise
                self._report_broken(error)
                set_aside(folder, None)
                return Database(folder, self._size_limit)

    def _open_read_only(self) -> ReadOnlyDatabase:
        from adaptive_eager.cache.disk import ReadOnlyDatabase

        check_trusted(self.directory, read_only=True)
        return ReadOnlyDatabase(self.directory / _LAYOUT)

    def _repair(self, error: sqlite3.DatabaseError) -> bool:
        """Replaces a broken database by an empty one, once a process. Returns whether it is worth another try."""
        if self._repaired or self.mode != "on" or not _is_broken(error):
            return False
        from adaptive_eager.cache.disk import Database, set_aside

        self._repaired = True
        database, self._database = self._database, None
        if not isinstance(database, Database):
            return False
        self._report_broken(error)
        try:
            with file_lock(self.directory / "open.lock", _OPEN_SECONDS):
                set_aside(self.directory / _LAYOUT, database)
        except OSError:
            return False
        return True

    def _report_broken(self, error: Exception) -> None:
        if self.strict:
            raise CacheTrouble(f"kernel cache {self.directory}: {error}") from error
        log.warning("kernel cache %s is damaged (%s): moved aside, starting an empty one", self.directory, error)

    def _read(self, database: Database | ReadOnlyDatabase, name: str) -> bytes | None:
        from adaptive_eager.cache.disk import Database, UnsafeEntry

        try:
            stored = database.read(name)
            return None if stored is None else blob.unpack(name, stored)
        except (UnsafeEntry, blob.BadBlob) as error:
            self._counters["bad_entries"] += 1
            level = logging.WARNING if self._counters["bad_entries"] == 1 else logging.INFO
            log.log(level, "kernel cache %s: entry %s is damaged (%s); compiling again", self.directory, name, error)
        if isinstance(database, Database):
            try:
                database.remove(name)
            except UnsafeEntry:
                log.debug("entry %s names a file that is not ours; the row is gone, the file stays", name)
        return None

    def _give_up(self, error: Exception) -> None:
        self.trouble = f"{type(error).__name__}: {error}" if not isinstance(error, Refused) else str(error)
        self._database = None
        message = f"kernel cache {self.directory} is not used: {self.trouble}. Kernels are kept in memory only."
        if self.strict:
            raise CacheTrouble(message) from error
        log.warning(message)

    def _keep_in_memory(self, name: str, payload: bytes) -> None:
        self._memory_bytes += len(payload) - len(self._memory.pop(name, b""))
        self._memory[name] = payload
        while self._memory_bytes > _MEMORY_BYTES:
            self._memory_bytes -= len(self._memory.popitem(last=False)[1])

    def _forget_inherited(self) -> None:
        """In a forked child: the connection is the parent's and the lock may be held by a thread that is not here."""
        if self._database is not None:
            _abandoned.append(self._database)
            self._database = None
        self._lock = threading.RLock()


class Refused(OSError):
    """A directory that must not be trusted; the text says why and what would be right."""


def make_private(directory: Path) -> None:
    """Makes the directory if it is missing, and checks it."""
    if not directory.is_absolute():
        raise Refused(f"{directory} is not an absolute path (is there a home directory? set ADAPTIVE_EAGER_CACHE_DIR)")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise Refused(f"{error.filename} is not a directory") from None
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    check_trusted(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise Refused("it is not writable (chmod 700, or set ADAPTIVE_EAGER_CACHE=read-only)")


def check_trusted(directory: Path, read_only: bool = False) -> None:
    """Refuses a directory that somebody else could have put kernels into.

    One that is only read may belong to root, and others may read it too.
    """
    status = os.lstat(directory)
    if stat.S_ISLNK(status.st_mode):
        raise Refused("it is a symbolic link, need the directory itself (set ADAPTIVE_EAGER_CACHE_DIR to its target)")
    if not stat.S_ISDIR(status.st_mode):
        raise Refused("it is not a directory")
    if status.st_uid not in ({os.geteuid(), 0} if read_only else {os.geteuid()}):
        raise Refused(f"it belongs to user {status.st_uid}, need user {os.geteuid()}")
    forbidden = 0o022 if read_only else 0o077
    if status.st_mode & forbidden:
        raise Refused(f"its mode is {stat.S_IMODE(status.st_mode):04o}, need 0700 (chmod 700 {directory})")


def _name(kind: str, key: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"cache entry kind {kind!r}: need one of {', '.join(KINDS)}")
    return f"{kind}:{key}"


def _write(database: Any, name: str, payload: bytes) -> bool:
    database.write(name, blob.pack(name, payload))
    return True


def _is_broken(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is not a sound database, as against one that cannot be reached or written now."""
    return "malformed" in str(error) or "not a database" in str(error)


_stores: weakref.WeakSet[KernelStore] = weakref.WeakSet()
#: Connections that a forked child inherited. Closing one would touch the parent's files, so they are kept unused.
_abandoned: list[Any] = []


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._forget_inherited()


os.register_at_fork(after_in_child=_after_fork_in_child)
