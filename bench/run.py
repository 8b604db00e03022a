"""Runs all benches, writes bench/results/<name>.json and bench/results/README.md, and prints the tables."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from bench import harness, machine, table

#: In the order of the report.
BENCHES = ("chain", "single_use", "demo_step", "compile_time")
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
    for name in BENCHES:
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["machine"] != shown:
            shown = stored["machine"]
            parts.append(
                "Measured on: " + "; ".join(f"{what} {value}" for what, value in stored["machine"].items()) + ".\n"
            )
        parts.append(stored["table"])
    (RESULTS / "README.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
