"""The form of one cache entry: a single blob of magic, format, full key, note, payload, and a digest over all of it.

SQLite and the file system both hand back truncated or altered bytes without a word; the digest is what notices.
What the entry is (the fields of its key) travels as a note that a hit does not look into.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

MAGIC = b"AEcache\n"
FORMAT = 2

# magic, format, bytes of the name, of the note and of the payload, seconds that making it took, when (Unix time)
_HEAD = struct.Struct("<8sIIIQdd")
_DIGEST_BYTES = hashlib.sha256().digest_size


class BadEntry(ValueError):
    """The bytes are not the entry that was asked for; the text says in what."""


class Entry(NamedTuple):
    """One entry.

    name     "kind:key"
    payload  what was put
    seconds  that making the payload took; 0 if unknown
    made     Unix time of that
    note     the fields of the key, as JSON
    """

    name: str
    payload: bytes
    seconds: float
    made: float
    note: bytes

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def key(self) -> str:
        return self.name.partition(":")[2]

    @property
    def fields(self) -> dict[str, str]:
        """Named fields of the key, in their order; {} if it was put without them, or with what are none."""
        try:
            return {str(name): str(value) for name, value in json.loads(self.note or b"[]")}
        except (ValueError, TypeError, RecursionError):
            return {}


def pack(name: str, payload: bytes, fields: Sequence[tuple[str, str]] = (), seconds: float = 0.0) -> bytes:
    """Bytes of the entry `name`."""
    label = name.encode()
    note = json.dumps([list(field) for field in fields], separators=(",", ":")).encode() if fields else b""
    head = _HEAD.pack(MAGIC, FORMAT, len(label), len(note), len(payload), seconds, time.time())
    body = b"".join((head, label, note, payload))
    return body + hashlib.sha256(body).digest()


def unpack(name: str | None, blob: bytes) -> Entry:
    """The entry `name` (None: whichever it is); BadEntry when anything about the bytes is not as `pack` made it."""
    if len(blob) < _HEAD.size + _DIGEST_BYTES:
        raise BadEntry(f"{len(blob)} bytes are too few for an entry")
    magic, version, label_bytes, note_bytes, payload_bytes, seconds, made = _HEAD.unpack_from(blob)
    if magic != MAGIC:
        raise BadEntry("it does not start as an entry does")
    if version != FORMAT:
        raise BadEntry(f"its format is {version}, need {FORMAT}")
    note_at = _HEAD.size + label_bytes
    payload_at = note_at + note_bytes
    end = payload_at + payload_bytes
    if len(blob) != end + _DIGEST_BYTES:
        raise BadEntry(f"it has {len(blob)} bytes, need {end + _DIGEST_BYTES}")
    if hashlib.sha256(memoryview(blob)[:end]).digest() != blob[end:]:
        raise BadEntry("its digest does not match its bytes")
    label = blob[_HEAD.size : note_at].decode(errors="replace")
    if name is not None and label != name:
        raise BadEntry(f"it is the entry {label}")
    return Entry(label, blob[payload_at:end], seconds, made, blob[note_at:payload_at])
