"""Listing: the entries of a layer, each checked, with what they say of themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from adaptive_eager.cache.entry import BadEntry, Entry, unpack
from adaptive_eager.cache.layer import Layer

#: Instructions of the loop IR that are not ops.
_NOT_OPS = ("load", "scalar", "constant", "index")
_INSTRUCTION = re.compile(r"(\w+) \(.*\) \[")


class Listed(NamedTuple):
    """An entry, its bytes, and where they are. `used` is the Unix time of its last use that is known."""

    layer: Layer
    entry: Entry
    used: float
    blob: bytes


def listed(layer: Layer, bad: list[str] | None = None) -> Iterator[Listed]:
    """All sound entries of a layer, one at a time; what is wrong with the others is added to `bad`."""
    reader = layer.reader()
    for row in reader.rows() if reader is not None else ():
        try:
            entry = unpack(row.name, row.blob)
        except BadEntry as error:
            if bad is not None:
                bad.append(f"{row.name}: {error}")
            continue
        yield Listed(layer, entry, max(row.used, entry.made), row.blob)


def ops(entry: Entry) -> list[str]:
    """Names of what it computes, in order: ops of a kernel, kernels and host ops of a plan; a host's processor."""
    if entry.kind == "kernel":
        lines = entry.fields.get("text", "").splitlines()
        found = (_INSTRUCTION.match(line) for line in lines)
        return [match[1] for match in found if match is not None and match[1] not in _NOT_OPS]
    document = document_of(entry)
    if entry.kind == "failure":
        return [str(document.get("reason", ""))]
    if entry.kind == "host":
        return [str(document.get("cpu", ""))]
    return [
        f"host op {step}" if isinstance(step, int) else " + ".join(key[:12] for key in kernels_of_step(step))
        for step in document.get("steps", ())
    ]


def document_of(entry: Entry) -> dict[str, Any]:
    """Payload of anything but a kernel; {} if it cannot be read."""
    try:
        document = json.loads(entry.payload)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def kernels_of(entry: Entry) -> list[str]:
    """Keys of the kernels of a plan."""
    steps = document_of(entry).get("steps", ())
    return [key for step in steps if isinstance(step, dict) for key in kernels_of_step(step)]


def kernels_of_step(step: dict[str, Any]) -> list[str]:
    return [str(launch.get("kernel", "")) for launch in step.get("launches", ())]
