"""The form of one cache entry: magic, format, the full key, the payload, and a digest over all of it.

SQLite and the file system both hand back truncated or altered bytes without a word; the digest is what notices.
"""

from __future__ import annotations

import hashlib
import struct

MAGIC = b"AEcache\n"
FORMAT = 1

_HEAD = struct.Struct("<8sIIQ")  # magic, format, length of the key, length of the payload
_DIGEST_BYTES = hashlib.sha256().digest_size


class BadBlob(ValueError):
    """The bytes are not the entry that was asked for; the text says in what."""


def pack(name: str, payload: bytes) -> bytes:
    """Bytes of the entry `name`."""
    label = name.encode()
    body = _HEAD.pack(MAGIC, FORMAT, len(label), len(payload)) + label + payload
    return body + hashlib.sha256(body).digest()


def unpack(name: str, blob: bytes) -> bytes:
    """Payload of the entry `name`; BadBlob when anything about the bytes is not as `pack` made it."""
    if len(blob) < _HEAD.size + _DIGEST_BYTES:
        raise BadBlob(f"{len(blob)} bytes are too few for an entry")
    magic, version, label_bytes, payload_bytes = _HEAD.unpack_from(blob)
    if magic != MAGIC:
        raise BadBlob("it does not start as an entry does")
    if version != FORMAT:
        raise BadBlob(f"its format is {version}, need {FORMAT}")
    end = _HEAD.size + label_bytes + payload_bytes
    if len(blob) != end + _DIGEST_BYTES:
        raise BadBlob(f"it has {len(blob)} bytes, need {end + _DIGEST_BYTES}")
    if hashlib.sha256(memoryview(blob)[:end]).digest() != blob[end:]:
        raise BadBlob("its digest does not match its bytes")
    label = blob[_HEAD.size : _HEAD.size + label_bytes]
    if label != name.encode():
        raise BadBlob(f"it is the entry {label.decode(errors='replace')}")
    return blob[_HEAD.size + label_bytes : end]
