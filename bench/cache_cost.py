"""The chain of bench/chain.py with and without the disk cache: it is not on the path of what is hot."""

from __future__ import annotations

from bench.chain import UNIT, prepare

__all__ = ["CONTENDERS", "ROUNDS", "TARGETS", "TITLE", "UNIT", "cases", "prepare"]

TITLE = "The chain with the disk cache, and without"
CONTENDERS = ("uncached", "neuron")
ROUNDS = 21
TARGETS = {elements: {"uncached": 0.97} for elements in ("16", "1000", "100000")}


def cases() -> list[str]:
    return list(TARGETS)


if __name__ == "__main__":
    from bench import harness

    harness.main("cache_cost")
