"""Usage: what the cache holds and what it has saved, over all processes. Each notes it at its end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from adaptive_eager.cache.layer import Layer
from adaptive_eager.cache.listing import listed
from adaptive_eager.cache.verification import differing


def usage(layers: list[Layer]) -> dict[str, Any]:
    """Entries, bytes, hits and seconds of compiling saved, by directory; what was made; hit rates by kind.

    A hit rate is the share of needed entries that were found and not made.
    """
    uses = layers[0].uses()
    made = {kind: (number, seconds) for source, kind, number, seconds in uses if source == "made"}
    found = [_of_layer(layer, uses) for layer in layers]
    rates = {}
    for kind in ("kernel", "plan"):
        hits = sum(layer["hits"].get(kind, 0) for layer in found)
        needed = hits + made.get(kind, (0, 0.0))[0]
        if needed:
            rates[kind] = round(hits / needed, 4)
    return {
        "layers": found,
        "made": {kind: number for kind, (number, _) in sorted(made.items())},
        "compile_seconds": round(made.get("kernel", (0, 0.0))[1], 3),
        "compile_seconds_saved": round(sum(layer["compile_seconds_saved"] for layer in found), 3),
        "hit_rate": rates,
    }


def _of_layer(layer: Layer, uses: list[tuple[str, str, int, float]]) -> dict[str, Any]:
    entries: Counter[str] = Counter()
    other = 0
    for item in listed(layer):
        entries[item.entry.kind] += 1
        other += bool(differing(item.entry))
    hits = {kind: (number, seconds) for source, kind, number, seconds in uses if source == str(layer.directory)}
    return {
        "directory": str(layer.directory),
        "entries": dict(entries),
        "of_other_versions": other,
        "bytes": layer.volume(),
        "hits": {kind: number for kind, (number, _) in sorted(hits.items())},
        "compile_seconds_saved": round(hits.get("kernel", (0, 0.0))[1], 3),
    }
