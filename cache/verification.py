"""Verification: compiles stored kernels again and compares the bytes, which shows that keys say all that matters."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import NamedTuple

from adaptive_eager import host
from adaptive_eager.cache.entry import Entry
from adaptive_eager.cache.key import digest
from adaptive_eager.cache.listing import document_of, kernels_of
from adaptive_eager.cache.store import name_of
from adaptive_eager.compiler.target import ask_llvm


class Verdict(NamedTuple):
    """`state` is "same", "wrong", or "skipped" (it cannot be compared); `why` says why."""

    state: str
    why: str = ""


#: Fields of a key that say what the compiler is. The target may be another one: code is made for it here too.
_COMPILER = ("format", "generator", "llvmlite", "llvm", "torch")


@functools.cache
def current() -> dict[str, str]:
    """Fields that all keys of this version of the package share on this machine."""
    from adaptive_eager.kernels import key_maker

    return {name: value for name, value in key_maker().fields("", "") if name not in ("kind", "text")}


def differing(entry: Entry) -> list[str]:
    """Fields in which an entry is not of this version of the package, or for another machine; [] if it can be used."""
    fields = entry.fields
    wanted = dict(host.fields() or [("processor", "")]) if entry.kind == "host" else current()
    return [name for name, value in wanted.items() if fields.get(name) != value]


def verify(entry: Entry, names: set[str]) -> Verdict:
    """Compares a kernel with a new compilation; of a plan, looks whether its kernels are all among `names`."""
    if entry.kind == "kernel":
        return _verify_kernel(entry)
    if entry.kind == "plan":
        missing = [key for key in kernels_of(entry) if name_of("kernel", key) not in names]
        # Not wrong: the plan is made anew, and the kernel is compiled.
        return Verdict("skipped", f"{len(missing)} of its kernels are not there") if missing else Verdict("same")
    if entry.kind == "host":
        return _verify_host(entry)
    return Verdict("skipped", "a failure")


def _verify_host(entry: Entry) -> Verdict:
    if differing(entry):
        return Verdict("skipped", "it is of another machine or another LLVM")
    same = document_of(entry) == asdict(ask_llvm())
    return Verdict("same") if same else Verdict("wrong", "LLVM says otherwise of this machine")


def _verify_kernel(entry: Entry) -> Verdict:
    from adaptive_eager.compiler.loop_text import parse
    from adaptive_eager.compiler.target import Target
    from adaptive_eager.kernels import make_artifact

    fields = entry.fields
    if not fields:
        return Verdict("skipped", "it was stored without the fields of its key")
    if digest(tuple(fields.items())) != entry.key:
        return Verdict("wrong", "its fields do not make its key")
    other = [name for name in _COMPILER if fields.get(name) != current()[name]]
    if other:
        return Verdict("skipped", f"made by another version ({', '.join(other)})")
    try:
        made = make_artifact(parse(fields["text"]), Target.from_key(fields["target"]))
    except Exception as error:
        return Verdict("wrong", f"it cannot be compiled again: {type(error).__name__}: {error}")
    return Verdict("same") if made == entry.payload else Verdict("wrong", "a new compilation gives other bytes")
