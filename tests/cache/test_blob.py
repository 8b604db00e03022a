"""One entry's bytes: what goes in comes out, and anything else is refused."""

from __future__ import annotations

import pytest

from adaptive_eager.cache import blob

NAME = "kernel:" + "ab" * 32


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 40])
def test_round_trip(payload):
    assert blob.unpack(NAME, blob.pack(NAME, payload)) == payload


def test_every_flipped_bit_is_noticed():
    good = blob.pack(NAME, b"machine code")
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        with pytest.raises(blob.BadBlob):
            blob.unpack(NAME, bytes(bad))


def test_every_truncation_is_noticed():
    good = blob.pack(NAME, b"machine code")
    for length in range(len(good)):
        with pytest.raises(blob.BadBlob):
            blob.unpack(NAME, good[:length])


def test_trailing_bytes_are_noticed():
    with pytest.raises(blob.BadBlob, match="bytes, need"):
        blob.unpack(NAME, blob.pack(NAME, b"machine code") + b"\0")


def test_entry_of_another_key_is_refused():
    other = "kernel:" + "cd" * 32
    with pytest.raises(blob.BadBlob, match=f"it is the entry {other}"):
        blob.unpack(NAME, blob.pack(other, b"machine code"))


def test_newer_format_is_named(monkeypatch):
    monkeypatch.setattr(blob, "FORMAT", 7)
    newer = blob.pack(NAME, b"machine code")
    monkeypatch.undo()
    with pytest.raises(blob.BadBlob, match="its format is 7, need 1"):
        blob.unpack(NAME, newer)
