"""Archive: a warm cache as one file, for images and clusters.

    8 bytes   magic "AEwarm\\r\\n" (a transfer that changes line ends breaks it)
    u32       format
    n x       u64 length (not 0), the entry (cache/entry.py)
    u64       0
    u64       number of entries
    32 bytes  sha256 of everything before

All numbers are little-endian. Whoever made the file can run code on the machine that imports it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from adaptive_eager.cache.entry import BadEntry, Entry, unpack

MAGIC = b"AEwarm\r\n"
FORMAT = 1

_HEAD = struct.Struct("<8sI")
_LENGTH = struct.Struct("<Q")
#: No entry is as large; a length beyond it is damage.
_LARGEST = 1 << 30
_PIECE = 1 << 20


class ArchiveError(ValueError):
    """The file is not an archive of this format, is damaged, or must not be trusted; the text says in what."""


def write(path: Path, blobs: Iterable[bytes]) -> int:
    """Writes an archive, whole or not at all, and returns the number of entries."""
    path = path.resolve()  # of a link, what it points to
    if path.exists() and not path.is_file():
        raise ArchiveError(f"{path} is not a plain file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    digest, count = hashlib.sha256(), 0
    try:
        with open(temporary, "xb") as file:

            def put(data: bytes) -> None:
                digest.update(data)
                file.write(data)

            put(_HEAD.pack(MAGIC, FORMAT))
            for blob in blobs:
                put(_LENGTH.pack(len(blob)))
                put(blob)
                count += 1
            put(_LENGTH.pack(0) + _LENGTH.pack(count))
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return count


class Archive:
    """An archive that has been checked as a whole. Raises ArchiveError, and OSError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 (closed by `close`)
        try:
            _check_owner(os.fstat(self._file.fileno()), path)
            self.count = _check(self._file)
        except BaseException:
            self._file.close()
            raise

    def __iter__(self) -> Iterator[tuple[Entry, bytes]]:
        """Each entry, with its bytes."""
        self._file.seek(_HEAD.size)
        for _ in range(self.count):
            blob = self._file.read(_number(self._file))
            try:
                yield unpack(None, blob), blob
            except BadEntry as error:
                raise ArchiveError(f"it holds an entry that cannot be used: {error}") from None

    def close(self) -> None:
        self._file.close()


def _check_owner(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ArchiveError(
            f"others can write to it (user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}), and what is in "
            f"it will run as you; take it over first: cp {path} FILE && chmod go-w FILE"
        )


def _check(file: IO[bytes]) -> int:
    """Number of entries of an archive whose digest is right."""
    size = os.fstat(file.fileno()).st_size
    end = size - hashlib.sha256().digest_size
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or head[: len(MAGIC)] != MAGIC:
        raise ArchiveError("it is not an exported kernel cache")
    version = _HEAD.unpack(head)[1]
    if version != FORMAT:
        raise ArchiveError(f"its format is {version}, need {FORMAT}")
    digest, left = hashlib.sha256(head), end - len(head)
    while left > 0:
        piece = file.read(min(left, _PIECE))
        if not piece:
            break
        digest.update(piece)
        left -= len(piece)
    if left or file.read() != digest.digest():
        raise ArchiveError("it is damaged or cut short: its digest does not match its bytes")
    file.seek(end - _LENGTH.size)
    return _LENGTH.unpack(file.read(_LENGTH.size))[0]


def _number(file: IO[bytes]) -> int:
    number = _LENGTH.unpack(file.read(_LENGTH.size))[0]
    if not 0 < number < _LARGEST:
        raise ArchiveError(f"it holds an entry of {number} bytes")
    return number
