"""KernelStore: kernels, plans, failures and what LLVM says of hosts, on disk, shared by every process of the user.

Whoever can write to a cache directory can run code in every program that uses it, as kernels are machine code
(cache/trust.py says what is refused).

Trouble with the cache is never trouble for the program: whatever fails, one warning names the cause, and from then on
this process keeps in memory what it cannot keep on disk.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import resource
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from adaptive_eager.cache import entry as entries
from adaptive_eager.cache import forks
from adaptive_eager.cache.entry import Entry
from adaptive_eager.cache.key import Fields
from adaptive_eager.cache.layer import Layer
from adaptive_eager.cache.lease import lease
from adaptive_eager.cache.telling import Warned
from adaptive_eager.cache.trust import Refused

log = logging.getLogger("adaptive_eager.cache")

KINDS = ("kernel", "plan", "failure", "host")
MODES = ("on", "read-only", "off", "assert-warm")

#: Bytes kept for a process that has no disk to keep them on.
_MEMORY_BYTES = 64 << 20
#: Uses are noted with a put when the last ones were noted so many seconds ago.
_NOTING_SECONDS = 60.0

T = TypeVar("T")
Path_ = str | os.PathLike[str]


class CacheTrouble(RuntimeError):
    """What a strict store raises where another one warns and goes on in memory."""


class NotWarm(RuntimeError):
    """A kernel is missing although the cache was said to be warm; the text says in what it differs from the nearest."""


class KernelStore:
    """Payloads by kind and key. Opened at the first use, never at import. Threads and forks may share one.

    directories  one, or several: the first is written to (and made if missing), all are read, in this order
    mode         "on"; "read-only": nothing is written; "off": nothing is kept on disk; "assert-warm": read-only, and
                 what would have to be compiled is an error
    size_limit   bytes of the first directory above which the entries that were not used for longest are dropped
    wait         longest wait in seconds for another process that compiles the same key
    strict       raise CacheTrouble instead of warning; for tests
    """

    def __init__(
        self,
        directories: Path_ | Sequence[Path_],
        *,
        mode: str = "on",
        size_limit: int = 512 << 20,
        wait: float = 20.0,
        strict: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"cache mode {mode!r}: need one of {', '.join(MODES)}")
        paths = [directories] if isinstance(directories, (str, os.PathLike)) else list(directories)
        self.mode = mode
        self.strict = strict
        self.layers = [Layer(Path(path), mode == "on" and not at, size_limit) for at, path in enumerate(paths)]
        self._wait = wait
        self._warned = Warned(log, "%s", later=logging.INFO)
        self._memory: OrderedDict[str, Entry] = OrderedDict()
        self._memory_bytes = 0
        self._lock = threading.RLock()
        self._reset()
        forks.join(self)
        _stores.add(self)

    def _reset(self) -> None:
        self._counters = {"hits": 0, "misses": 0, "puts": 0}
        #: Names found on disk, and what was found and made, since it was noted: (directory or "made", kind) -> ...
        self._used: set[str] = set()
        self._counts: dict[tuple[str, str], tuple[int, float]] = {}
        self._noted = time.monotonic()

    @classmethod
    def from_params(cls) -> KernelStore:
        """The store that the parameters describe."""
        from adaptive_eager import params

        return cls(
            params.get("cache_dir").split(os.pathsep),
            mode=params.get("cache"),
            size_limit=params.get("cache_size"),
            wait=params.get("cache_wait"),
        )

    @property
    def directory(self) -> Path:
        """The directory that is written to."""
        return self.layers[0].directory

    @property
    def trouble(self) -> str | None:
        """Why this process keeps in memory what it should keep on disk, or cannot read; or None."""
        found = (layer.read_trouble or layer.write_trouble for layer in self.layers)
        return next((trouble for trouble in found if trouble is not None), None)

    # -- entries --------------------------------------------------------------------------------------------------

    def get(self, kind: str, key: str) -> bytes | None:
        """Payload of an entry, or None. A damaged entry is put aside, counted, and not found. Writes nothing else."""
        with self._lock:
            entry = self._find(name_of(kind, key))
            self._counters["misses" if entry is None else "hits"] += 1
            return None if entry is None else entry.payload

    def put(self, kind: str, key: str, payload: bytes, fields: Fields = (), seconds: float = 0.0) -> None:
        """Keeps a payload. Does not wait for the disk.

        fields   of the key: what `adaptive-eager cache show` shows and a miss is explained with
        seconds  that making the payload took
        """
        name = name_of(kind, key)
        with self._lock:
            self._count("made", kind, seconds)
            blob = entries.pack(name, payload, fields, seconds)
            if not (self._shared and self._write(self.layers[0], lambda: self.layers[0].write(name, blob))):
                self._keep_in_memory(entries.unpack(name, blob))
            self._counters["puts"] += 1
            if time.monotonic() - self._noted > _NOTING_SECONDS:
                self.note_uses()

    def compile_once(
        self, kind: str, key: str, build: Callable[[], bytes], fields: Callable[[], Fields] = tuple
    ) -> bytes:
        """Payload of an entry, built if need be by one process of those that ask for it at the same time.

        Who has waited `wait` seconds for another process builds it for itself. Raises NotWarm where building is
        forbidden, and what `build` raises.
        """
        payload = self.get(kind, key)
        if payload is not None:
            return payload
        first = self.layers[0]
        with self._lock:
            shared = self._shared and self._write(first, first.prepare)
        if not shared:
            return self.build(kind, key, build, fields)
        with lease(first.leases, f"{kind}-{key}", self._wait) as held:
            if not held:
                log.info("compiling %s %s without its lease: another process may be doing the same", kind, key)
            with self._lock:
                entry = self._find(name_of(kind, key))  # a second look, not a second miss
            return self.build(kind, key, build, fields) if entry is None else entry.payload

    def build(self, kind: str, key: str, build: Callable[[], bytes], fields: Callable[[], Fields] = tuple) -> bytes:
        """Payload of a new entry, in place of one that may be there. Raises as `compile_once` does."""
        if self.mode == "assert-warm":
            raise NotWarm(f"the kernel cache is not warm: {self.explain(kind, key, fields())}")
        if log.isEnabledFor(logging.DEBUG):
            log.debug("a miss: %s", self.explain(kind, key, fields()))
        start = time.perf_counter()
        payload = build()
        self.put(kind, key, payload, fields(), time.perf_counter() - start)
        return payload

    def keys(self, kind: str) -> list[str]:
        """Keys of all entries of a kind, sorted."""
        prefix = name_of(kind, "")
        with self._lock:
            names = set(self._memory)
            for layer in self.layers:
                names.update(self._read(layer, layer.names) or ())
        return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    def explain(self, kind: str, key: str, fields: Fields) -> str:
        """In what a missing entry differs from the nearest one: one line. Reads all entries."""
        from adaptive_eager.cache.nearest import explain

        with self._lock:
            troubled = [layer for layer in self.layers if layer.read_trouble is not None]
            found = explain(kind, key, fields, (entry for layer in self.layers for entry in self._entries(layer)))
        where = "".join(f"; {layer.directory} is not read: {layer.read_trouble}" for layer in troubled)
        return found + where

    # -- for reports ----------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """What this process did: hits, misses, puts, bad_entries."""
        return {**self._counters, "bad_entries": sum(layer.bad_entries for layer in self.layers)}

    def info(self) -> dict[str, Any]:
        """State (a mode, or "memory"), the cause of trouble, entries of each kind, bytes on disk; opens the store."""
        with self._lock:
            counts = {kind: len(self.keys(kind)) for kind in KINDS}
            volume = sum(self._read(layer, layer.volume) or 0 for layer in self.layers)
        memory = self.mode != "off" and not any(layer.read_trouble is None for layer in self.layers)
        return {
            "directory": os.pathsep.join(str(layer.directory) for layer in self.layers),
            "state": "memory" if memory else self.mode, "trouble": self.trouble, "entries": counts, "bytes": volume,
        }  # fmt: skip

    def note_uses(self) -> None:
        """Writes down what was used since the last time, for eviction and `adaptive-eager cache stats`."""
        with self._lock:
            used, counts = self._used, self._counts
            self._used, self._counts, self._noted = set(), {}, time.monotonic()
            layer = self.layers[0]
            if not (counts and self._shared):
                return
            from adaptive_eager.cache import disk

            # It is worth neither a warning nor a wait.
            try:
                if (layer.folder / disk.DATABASE).exists():
                    disk.note_uses(layer.folder, used, counts)
            except Exception as error:
                log.debug("uses of the kernel cache are not noted: %s", error)

    def close(self) -> None:
        """Notes what was used, and closes the databases; the next use opens them again."""
        with self._lock:
            self.note_uses()
            for layer in self.layers:
                layer.close()

    # -- reading and writing --------------------------------------------------------------------------------------

    @property
    def _shared(self) -> bool:
        """Whether other processes will find what this one puts."""
        first = self.layers[0]
        return self.mode == "on" and first.read_trouble is None and first.write_trouble is None

    def _find(self, name: str) -> Entry | None:
        found = self._memory.get(name)
        if found is not None:
            return found
        for layer in self.layers:
            entry = self._read(layer, lambda layer=layer: layer.read(name))  # type: ignore[misc]
            if entry is not None:
                self._used.add(name)
                self._count(str(layer.directory), entry.kind, entry.seconds)
                return entry
        return None

    def _count(self, source: str, kind: str, seconds: float) -> None:
        number, total = self._counts.get((source, kind), (0, 0.0))
        self._counts[source, kind] = number + 1, total + seconds

    def _entries(self, layer: Layer) -> list[Entry]:
        """Without their payloads."""
        from adaptive_eager.cache.listing import listed

        return self._read(layer, lambda: [item.entry._replace(payload=b"") for item in listed(layer)]) or []

    def _read(self, layer: Layer, action: Callable[[], T]) -> T | None:
        """Result of `action`; None when the layer cannot be read (any more)."""
        if self.mode == "off" or layer.read_trouble is not None:
            return None
        try:
            return action()
        except Exception as error:  # whatever it is, the program must not see it
            layer.read_trouble = _cause(error)
            layer.close()
            self._tell(layer, "used", layer.read_trouble, error)
            return None

    def _write(self, layer: Layer, action: Callable[[], None]) -> bool:
        """Whether `action` could be done. What is there is read on, also when it could not."""
        try:
            action()
            return True
        except Exception as error:
            layer.write_trouble = _cause(error)
            self._tell(layer, "written to", layer.write_trouble, error)
            return False

    def _tell(self, layer: Layer, what: str, cause: str, error: Exception) -> None:
        """One warning a layer: what is not written to may turn out not to be readable either."""
        message = f"kernel cache {layer.directory} is not {what}: {cause}."
        if self.mode != "assert-warm" and layer is self.layers[0]:
            message += " Kernels are kept in memory only."
        if self.strict:
            raise CacheTrouble(message) from error
        self._warned(message, about=layer)

    def _keep_in_memory(self, entry: Entry) -> None:
        old = self._memory.pop(entry.name, None)
        self._memory_bytes += len(entry.payload) - (0 if old is None else len(old.payload))
        self._memory[entry.name] = entry
        while self._memory_bytes > _MEMORY_BYTES:
            self._memory_bytes -= len(self._memory.popitem(last=False)[1].payload)

    # -- forks (cache/forks.py) -----------------------------------------------------------------------------------

    def hold(self, wait: float) -> bool:
        return self._lock.acquire(timeout=wait)

    def let_go(self) -> None:
        self._lock.release()

    def renew_in_child(self, held: bool) -> None:
        self._lock = threading.RLock()
        self._reset()
        for layer in self.layers:
            _abandoned.extend(layer.forget_inherited())
            if not held and layer.read_trouble is None:
                layer.read_trouble = "this process was forked while a thread was inside the database"
                log.info("kernel cache %s is not used: %s", layer.directory, layer.read_trouble)


def name_of(kind: str, key: str) -> str:
    """Name of an entry."""
    if kind not in KINDS:
        raise ValueError(f"cache entry kind {kind!r}: need one of {', '.join(KINDS)}")
    return f"{kind}:{key}"


def _cause(error: Exception) -> str:
    if isinstance(error, Refused):
        return str(error)
    cause = f"{type(error).__name__}: {error}"
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most != resource.RLIM_INFINITY:  # SQLite knows only that it could not write
        cause += f" (this process may make files of at most {most} bytes)"
    return cause


_stores: weakref.WeakSet[KernelStore] = weakref.WeakSet()
#: Connections that a forked child inherited. Closing one would touch the parent's files, so they are kept unused.
_abandoned: list[Any] = []


def _at_exit() -> None:
    for store in list(_stores):
        with contextlib.suppress(Exception):
            store.note_uses()


atexit.register(_at_exit)
