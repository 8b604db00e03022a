"""Examination of the cache directories: `adaptive-eager cache doctor`."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from adaptive_eager.cache.disk import DATABASE, JOURNAL, connect
from adaptive_eager.cache.layer import LAYOUT, Layer
from adaptive_eager.cache.listing import listed
from adaptive_eager.cache.locks import lock_files
from adaptive_eager.doctor import Finding

#: File systems on which locks between machines are known to fail.
_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "lustre", "gpfs")
#: A lock held so long is worth a look: a kernel compiles in milliseconds.
_LONG_SECONDS = 30.0


def examine(layers: list[Layer], size_limit: int) -> Iterator[Finding]:
    """All findings. Nothing is written."""
    for number, layer in enumerate(layers, 1):
        name = "cache" if len(layers) == 1 else f"layer {number}"
        if not layer.directory.exists() and number == 1:
            yield Finding(name, f"{layer.directory}, not made yet")
            yield from _disk(layer.directory, size_limit)
            continue
        try:
            names = layer.names()
        except Exception as error:
            yield Finding(name, f"{layer.directory}: {error}", good=False)
            continue
        first = number == 1
        yield Finding(name, f"{layer.directory}, {'written to' if first else 'read only'}, {len(names)} entries")
        checks = {
            "permissions": _permissions(layer, first), "disk": _disk(layer.directory, size_limit if first else 0),
            "database": _database(layer), "locks": _locks(layer), "leftovers": _leftovers(layer),
        }  # fmt: skip
        for what, findings in checks.items():
            try:
                yield from findings
            except Exception as error:
                yield Finding(what, f"{type(error).__name__}: {error}", good=False)


def _permissions(layer: Layer, written: bool) -> Iterator[Finding]:
    status = os.stat(layer.directory)
    text = f"mode {stat.S_IMODE(status.st_mode):04o}, user {status.st_uid}"
    blocked = [
        str(path)
        for path in (layer.directory, layer.folder, layer.folder / DATABASE, layer.folder / JOURNAL, layer.leases)
        if written and path.exists() and not os.access(path, os.W_OK)
    ]
    yield Finding("permissions", text + (f"; not writable: {', '.join(blocked)}" if blocked else ""), not blocked)


def _disk(directory: Path, size_limit: int) -> Iterator[Finding]:
    import psutil

    there = next(path for path in (directory, *directory.parents) if path.exists())
    mounts = [part for part in psutil.disk_partitions(all=True) if there.is_relative_to(part.mountpoint)]
    kind = max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"
    remote = kind.startswith(_REMOTE)
    cure = "; a remote one may lose locks: choose a local directory, or ADAPTIVE_EAGER_CACHE=read-only"
    yield Finding("file system", kind + (cure if remote and size_limit else ""), not (remote and size_limit))
    free = psutil.disk_usage(str(there)).free
    enough = free >= size_limit
    more = "" if enough else f", less than the {size_limit / 1e6:,.0f} MB that the cache may grow to"
    yield Finding("free space", f"{free / 1e6:,.0f} MB{more}", enough)


def _database(layer: Layer) -> Iterator[Finding]:
    path = layer.folder / DATABASE
    if not path.exists():
        return
    with contextlib.closing(connect(path, "mode=ro")) as connection:
        ((first, *_), *_) = connection.execute("PRAGMA quick_check(5)").fetchall()
    sound = first == b"ok"
    bad: list[str] = []
    for _ in listed(layer, bad):
        pass
    text = f"{path.stat().st_size / 1e6:.1f} MB, "
    text += "sound" if sound else f"damaged ({first.decode(errors='replace')}); the next use makes a new one"
    if bad:
        text += f", {len(bad)} damaged entries (`adaptive-eager cache verify` names them)"
    yield Finding("database", text, sound and not bad)


def _locks(layer: Layer) -> Iterator[Finding]:
    files = lock_files(layer)
    stale = [file for file in files if not file.held and file.path.parent == layer.leases]
    for file in files:
        if file.held:
            yield Finding(
                "lock", f"{file.path.name}, for {file.seconds:.0f} s, by {file.holder}", file.seconds < _LONG_SECONDS
            )
    if stale:
        killed = f"{len(stale)} leases of processes that were killed, the last one {stale[-1].holder}"
        yield Finding("stale locks", f"{killed}; they block nobody, and `adaptive-eager cache prune` removes them")
    if not stale and not any(file.held for file in files):
        yield Finding("locks", "none is held")


def _leftovers(layer: Layer) -> Iterator[Finding]:
    with contextlib.suppress(OSError):
        if os.path.getsize(layer.folder / JOURNAL) > 0 and not any(file.held for file in lock_files(layer)):
            yield Finding("journal", "of a writer that is writing, or died; the next use rolls it back")
    with contextlib.suppress(OSError):
        kept = os.listdir(layer.folder / "broken")
        if kept:
            yield Finding("put aside", f"{len(kept)} damaged files in {layer.folder / 'broken'}")
    others = [path.name for path in layer.directory.glob("v[0-9]*") if path.name != LAYOUT]
    if others:
        yield Finding("other layouts", f"{', '.join(others)}, of other versions of the package; not touched")
