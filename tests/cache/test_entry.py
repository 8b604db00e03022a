"""One entry's bytes: what goes in comes out, and anything else is refused."""

from __future__ import annotations

import time

import pytest

from adaptive_eager.cache import entry

NAME = "kernel:" + "ab" * 32


FIELDS = (("target", "znver3"), ("text", "dims k\n\u00e9"))


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 40])
@pytest.mark.parametrize("fields", [(), FIELDS])
def test_round_trip(payload, fields):
    before = time.time()
    found = entry.unpack(NAME, entry.pack(NAME, payload, fields, 0.25))
    assert (found.name, found.kind, found.key) == (NAME, "kernel", "ab" * 32)
    assert (found.payload, found.seconds) == (payload, 0.25)
    assert tuple(found.fields.items()) == fields
    assert before <= found.made <= time.time()


def test_whichever_it_is():
    assert entry.unpack(None, entry.pack(NAME, b"x")).name == NAME


@pytest.mark.parametrize("fields", [[("a", "b", "c")], [("a",)], ["x"]])
def test_fields_that_are_none(fields):
    assert entry.unpack(NAME, entry.pack(NAME, b"x", fields)).fields == {}


def test_every_flipped_bit_is_noticed():
    good = entry.pack(NAME, b"machine code", FIELDS)
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        with pytest.raises(entry.BadEntry):
            entry.unpack(NAME, bytes(bad))


def test_every_truncation_is_noticed():
    good = entry.pack(NAME, b"machine code", FIELDS)
    for length in range(len(good)):
        with pytest.raises(entry.BadEntry):
            entry.unpack(NAME, good[:length])


def test_trailing_bytes_are_noticed():
    with pytest.raises(entry.BadEntry, match="bytes, need"):
        entry.unpack(NAME, entry.pack(NAME, b"machine code", FIELDS) + b"\0")


def test_entry_of_another_key_is_refused():
    other = "kernel:" + "cd" * 32
    with pytest.raises(entry.BadEntry, match=f"it is the entry {other}"):
        entry.unpack(NAME, entry.pack(other, b"machine code"))


def test_newer_format_is_named(monkeypatch):
    monkeypatch.setattr(entry, "FORMAT", 7)
    newer = entry.pack(NAME, b"machine code", FIELDS)
    monkeypatch.undo()
    with pytest.raises(entry.BadEntry, match="its format is 7, need 2"):
        entry.unpack(NAME, newer)
