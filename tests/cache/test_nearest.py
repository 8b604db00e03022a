"""Explained misses: the named fields in which the nearest stored entry differs."""

from __future__ import annotations

import pytest

from adaptive_eager.cache import entry
from adaptive_eager.cache.nearest import explain

FIELDS = {
    "format": "1", "generator": "11" * 32, "target": "avx2|znver3|+avx2", "torch": "2.13.0", "kind": "kernel",
    "text": "dims k\naccess f32 c\nneg (%0) [] f32 -> f32",
}  # fmt: skip


def stored(letter, kind="kernel", **changes):
    fields = tuple({**FIELDS, "kind": kind, **changes}.items())
    return entry.unpack(None, entry.pack(f"{kind}:{letter * 64}", b"x", fields))


def explained(*entries, **changes):
    return explain("kernel", "f" * 64, tuple({**FIELDS, **changes}.items()), entries)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"torch": "2.14.0"}, "`torch` (stored '2.13.0', now '2.14.0')"),
        ({"target": "avx512|znver5|+avx512f"}, "`target` (stored 'avx2|znver3|+avx2', now 'avx512|znver5|+avx512f')"),
        (
            {"generator": "22" * 32},
            "`generator` (made by other sources of the package: 111111111111, now 222222222222)",
        ),
        (
            {"text": "dims k\naccess f32 s\nneg (%0) [] f32 -> f32"},
            "`text` (line 2: stored 'access f32 c', now 'access f32 s')",
        ),
        ({"text": FIELDS["text"] + "\nmore"}, "`text` (line 4: stored 'nothing', now 'more')"),
        ({"width": "8"}, "`width` (which only this one has)"),
        ({"torch": "3", "format": "2"}, "`format` (stored '1', now '2'), `torch` (stored '2.13.0', now '3')"),
    ],
)
def test_the_field_is_named(changes, words):
    told = explained(stored("a"), **changes)
    assert told == f"kernel ffffffffffff is not there; the nearest, aaaaaaaaaaaa, differs in {words}"


def test_the_nearest_is_that_of_fewest_differences():
    told = explained(stored("a", torch="1", format="0"), stored("b", torch="1"), stored("c", text="dims kk"))
    assert "bbbbbbbbbbbb" in told and "`torch`" in told
    told = explained(stored("a", text="dims kk"), stored("b", text="dims k\naccess f32 c\nabs (%0) [] f32 -> f32"))
    assert "bbbbbbbbbbbb" in told and "stored 'abs (%0)" in told


def test_others_of_the_kind_only():
    nothing = "kernel ffffffffffff is not there, and neither is any other kernel"
    assert explained() == nothing
    assert explained(stored("a", kind="plan")) == nothing


def test_long_values_are_cut():
    told = explained(stored("a", target="x" * 200))
    assert len(told) < 300 and "sha256" in told
