"""The results as Markdown: medians, and `neuron` against each family of contenders, each at its best.

A ratio is the median of the rounds' ratios: the contenders of one round ran within a second of each other, so a machine
that changes its speed from minute to minute changes both sides of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from types import ModuleType

from bench.contender import family
from bench.harness import Measurement


def markdown(module: ModuleType, results: list[Measurement]) -> str:
    """Title, table and notes of one bench."""
    columns = list(dict.fromkeys(result.contender for result in results))
    rivals = rivals_of(module, columns)
    limits = getattr(module, "LIMITS", {})
    unit, scale = module.UNIT
    lines = [f"### {module.TITLE}", ""]
    comparison = getattr(module, "COMPARISON", "times as fast as")
    first = [name for name in columns if any(r.first_seconds is not None for r in results if r.contender == name)]
    headings = [
        "case",
        *(f"{name}, {unit}" for name in columns),
        *(f"{comparison} {rival}" for rival in rivals),
        *(f"first call of {name}, s" for name in _once(first)),
    ]
    lines.append("| " + " | ".join(headings) + " |")
    lines.append("|---" + "|---:" * (len(headings) - 1) + "|")
    for case in dict.fromkeys(result.case for result in results):
        row = {result.contender: result for result in results if result.case == case}
        cells = [
            number(row[name].median, scale)
            + (_limit(row[name].median, limits.get(case), scale) if family(name) == "neuron" else "")
            if name in row
            else "-"
            for name in columns
        ]
        cells += [_ratio(module, row, case, rival) for rival in rivals]
        cells += [number(row[name].first_seconds, 1) if name in row else "-" for name in _once(first)]
        lines.append("| " + " | ".join([case, *cells]) + " |")
    errors = dict.fromkeys(f"{result.contender}: {result.error}" for result in results if result.error)
    if errors:
        lines += ["", *(f"- {error}" for error in errors)]
    return "\n".join(lines) + "\n"


def forms(module: ModuleType) -> tuple[str, ...]:
    """The contenders of a bench that are `neuron` as a user may have it, and not something to compare it with."""
    return getattr(module, "FORMS", ("neuron",))


def rivals_of(module: ModuleType, names: Iterable[str]) -> list[str]:
    """The families that `neuron` is compared with."""
    if "neuron" not in names:
        return []
    return list(dict.fromkeys(family(name) for name in names if name not in forms(module)))


def ratio(module: ModuleType, row: dict[str, Measurement], rival: str) -> float | None:
    """How many times as fast `neuron` is as a family, each in its best form; None when either is missing."""
    ours, theirs = best_form(module, row), best_rival(module, row, rival)
    if ours is None or theirs is None:
        return None
    return statistics.median(their / our for their, our in zip(theirs.seconds, ours.seconds, strict=False))


def best_form(module: ModuleType, row: dict[str, Measurement]) -> Measurement | None:
    return _least(result for name, result in row.items() if name in forms(module))


def best_rival(module: ModuleType, row: dict[str, Measurement], rival: str) -> Measurement | None:
    return _least(result for name, result in row.items() if name not in forms(module) and family(name) == rival)


def _least(results: Iterable[Measurement]) -> Measurement | None:
    """The one with the least median."""
    return min((r for r in results if r.seconds), key=lambda r: statistics.median(r.seconds), default=None)


def _once(names: list[str]) -> list[str]:
    """Of each family the first: the others find what that one has compiled."""
    return list({family(name): name for name in reversed(names) if family(name) != "cpu"}.values())[::-1]


def _ratio(module: ModuleType, row: dict[str, Measurement], case: str, rival: str) -> str:
    value = ratio(module, row, rival)
    if value is None:
        return "-"
    target = module.TARGETS.get(case, {}).get(rival)
    if target is None:
        return f"{value:.2f}"
    return f"{value:.2f} (target {target:.3g}{'' if value >= target else ', missed'})"


def _limit(seconds: float | None, limit: float | None, scale: float) -> str:
    """A target that is a time, not a ratio."""
    if limit is None or seconds is None:
        return ""
    return f" (target {limit * scale:.3g}{'' if seconds <= limit else ', missed'})"


def number(seconds: float | None, scale: float) -> str:
    if seconds is None:
        return "-"
    value = seconds * scale
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
