"""Runs all benches: bench/results/<name>.json, <group>.png and README.md; prints the tables."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from bench import harness, machine, plot, table

#: In the order of the report; a group is a plot.
GROUPS = {
    "pointwise": ("chain", "bandwidth"),
    "formulas": ("formulas", "optimizer"),
    "models": ("models", "demo_step", "memory"),
    "recording": ("single_use", "first_step", "compile_time"),
    "cache": ("warm_start", "stampede", "cache_cost"),
}
BENCHES = tuple(name for group in GROUPS.values() for name in group)
RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("bench", nargs="*", help=f"only these: {', '.join(BENCHES)}")
    parser.add_argument("--threads", type=int, default=2, help="threads of each contender (default 2)")
    parser.add_argument("--rounds", type=int, help="rounds of each contender (default: each bench's own)")
    given = parser.parse_args()
    unknown = set(given.bench) - set(BENCHES)
    if unknown:
        parser.error(f"no bench {', '.join(sorted(unknown))}: need some of {', '.join(BENCHES)}")
    facts = machine.describe() | {"threads": str(given.threads)}
    RESULTS.mkdir(exist_ok=True)
    for name in given.bench or BENCHES:
        results = harness.measure(name, rounds=given.rounds, threads=given.threads)
        text = table.markdown(importlib.import_module(f"bench.{name}"), results)
        print(text)
        stored = {"bench": name, "machine": facts, "table": text, "results": harness.as_json(results)}
        (RESULTS / f"{name}.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    write_summary()


def write_summary() -> None:
    """One page from the stored results, each with the machine it was measured on."""
    parts = [
        "# Results\n\nMedians of interleaved rounds, each contender in its own process. Written by `make bench`.\n"
    ]
    shown: dict[str, str] | None = None
    for group, names in GROUPS.items():
        found = [RESULTS / f"{name}.json" for name in names if (RESULTS / f"{name}.json").exists()]
        stored = [json.loads(path.read_text(encoding="utf-8")) for path in found]
        if plot.draw(group, stored, RESULTS / f"{group}.png"):
            parts.append(f"![{group}]({group}.png)\n")
        for one in stored:
            if one["machine"] != shown:
                shown = one["machine"]
                parts.append(f"Measured on: {machine.line(shown)}.\n")
            parts.append(one["table"])
    (RESULTS / "README.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
