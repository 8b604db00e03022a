"""Nearest: which stored entry a missing one is most like, and in which named field of the key they differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import zip_longest

from adaptive_eager.cache.entry import Entry
from adaptive_eager.cache.key import Fields

#: Longest value that is shown whole.
_SHOWN = 60


def explain(kind: str, key: str, fields: Fields, stored: Iterable[Entry]) -> str:
    """One line."""
    wanted = dict(fields)
    best: tuple[tuple[int, bool, float], Entry, dict[str, str]] | None = None
    for entry in stored:
        if entry.kind != kind or not entry.note or entry.key == key:
            continue
        have = entry.fields
        differing = sum(wanted.get(name) != have.get(name) for name in {**wanted, **have})
        # Among those of another text the kernel of most equal lines is nearest: it tells what of the program changed.
        likeness = _likeness(wanted.get("text", ""), have.get("text", ""))
        rank = (differing, wanted.get("text") != have.get("text"), -likeness)
        if best is None or rank < best[0]:
            best = rank, entry, have
    if best is None:
        return f"{kind} {key[:12]} is not there, and neither is any other {kind}"
    _, entry, have = best
    names = [name for name in {**wanted, **have} if wanted.get(name) != have.get(name)]
    differences = ", ".join(_difference(name, have.get(name), wanted.get(name)) for name in names)
    return f"{kind} {key[:12]} is not there; the nearest, {entry.key[:12]}, differs in {differences or 'no field'}"


def _difference(name: str, stored: str | None, wanted: str | None) -> str:
    if stored is None or wanted is None:
        return f"`{name}` (which only {'this one' if stored is None else 'that one'} has)"
    if name == "generator":
        return f"`generator` (made by other sources of the package: {stored[:12]}, now {wanted[:12]})"
    old, new = stored.splitlines(), wanted.splitlines()
    if max(len(old), len(new)) <= 1:
        return f"`{name}` (stored {_shown(stored)}, now {_shown(wanted)})"
    pairs = enumerate(zip_longest(old, new, fillvalue="nothing"), 1)
    number, (was, now) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return f"`{name}` (line {number}: stored {_shown(was)}, now {_shown(now)})"


def _shown(value: str) -> str:
    if len(value) <= _SHOWN:
        return repr(value)
    return f"{value[:_SHOWN]!r}... (sha256 {hashlib.sha256(value.encode()).hexdigest()[:8]})"


def _likeness(one: str, other: str) -> float:
    a, b = set(one.splitlines()), set(other.splitlines())
    return len(a & b) / max(1, len(a | b))
