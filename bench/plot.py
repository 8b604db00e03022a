"""One picture a group of benches: for each case `neuron` against the best form of each opponent, and the targets."""

from __future__ import annotations

import importlib
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench import machine, table
from bench.contender import family
from bench.harness import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"cpu": "#3b6ea5", "inductor": "#e08a2c", "triad": "#5a9a58", "limit": "#8a8a8a"}
LABELS = {
    "cpu": "CPU eager, best form",
    "inductor": "Inductor, best form",
    "triad": "C triad",
    "limit": "the time allowed",
}
ROW_INCHES, WIDTH_INCHES = 0.3, 10.0


class Bar(NamedTuple):
    """How many times better than `rival` a case is, what it is meant to be, and the figures behind it."""

    rival: str
    ratio: float
    target: float | None
    text: str


def draw(group: str, stored: list[dict[str, Any]], path: Path) -> bool:
    """Draws the stored results of a group's benches, one below the other; False if there is nothing to show."""
    panels = [(one["table"].splitlines()[0].lstrip("# "), _rows(one)) for one in stored]
    panels = [(title, rows) for title, rows in panels if rows]
    if not panels:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = [1.2 + sum(len(bars) for _, bars in rows) for _, rows in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, squeeze=False, layout="constrained",
        figsize=(WIDTH_INCHES, ROW_INCHES * sum(heights) + 0.55 * len(panels) + 1.0), height_ratios=heights,
    )  # fmt: skip
    for axis, (title, rows) in zip(axes[:, 0], panels, strict=True):
        _panel(axis, title, rows)
    rivals = dict.fromkeys(bar.rival for _, rows in panels for _, bars in rows for bar in bars)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[rival]) for rival in rivals]
    handles.append(pyplot.Line2D([], [], color="black", marker="|", markersize=10, linestyle="none"))
    figure.legend(
        handles, ["against " + LABELS[rival] for rival in rivals] + ["target"],
        loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9,
    )  # fmt: skip
    figure.supxlabel("\n".join(textwrap.wrap(machine.line(stored[-1]["machine"]), 130)), fontsize=7, color="#555555")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _panel(axis: Axes, title: str, rows: list[tuple[str, list[Bar]]]) -> None:
    place, ticks, largest = 0.0, [], 1.0
    for case, bars in rows:
        ticks.append((place + (len(bars) - 1) / 2, case))
        for bar in bars:
            axis.barh(place, bar.ratio, height=0.8, color=COLOURS[bar.rival])
            if bar.target is not None:
                axis.plot([bar.target] * 2, [place - 0.5, place + 0.5], color="black", linewidth=2)
            reach = max(bar.ratio, bar.target or 0)
            axis.text(reach, place, f"  {bar.ratio:.2f}   {bar.text}", va="center", fontsize=7.5, color="#333333")
            largest = max(largest, reach)
            place += 1
        place += 0.5
    axis.axvline(1, color="#999999", linewidth=0.8, zorder=0)
    axis.set_yticks([tick for tick, _ in ticks], [case for _, case in ticks], fontsize=8.5)
    axis.set_xlim(0, largest * 1.45)  # room for the figures
    axis.set_ylim(place - 0.5, -0.9)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_title(f"{title}\ntimes as good as the opponent", fontsize=10, loc="left")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _rows(stored: dict[str, Any]) -> list[tuple[str, list[Bar]]]:
    """(case, its bars) of one bench."""
    module = importlib.import_module(f"bench.{stored['bench']}")
    results = [Measurement(**{k: v for k, v in one.items() if k != "median"}) for one in stored["results"]]
    rows = []
    for case in dict.fromkeys(result.case for result in results):
        row = {result.contender: result for result in results if result.case == case}
        rivals = [rival for rival in table.rivals_of(module, row) if rival != "neuron"]
        bars = [_bar(module, row, case, rival) for rival in rivals] + [_limit(module, row, case)]
        if any(bars):
            rows.append((case, [bar for bar in bars if bar is not None]))
    return rows


def _bar(module: Any, row: dict[str, Measurement], case: str, rival: str) -> Bar | None:
    value = table.ratio(module, row, rival)
    ours, best = table.best_form(module, row), table.best_rival(module, row, rival)
    if value is None or ours is None or best is None:
        return None
    text = f"{_figure(module, ours)} : {_figure(module, best)} ({best.contender})"
    return Bar(rival, value, module.TARGETS.get(case, {}).get(rival), text)


def _limit(module: Any, row: dict[str, Measurement], case: str) -> Bar | None:
    """Of a bench whose target is a time."""
    limit = getattr(module, "LIMITS", {}).get(case)
    ours = next((result for name, result in row.items() if family(name) == "neuron" and result.median), None)
    if limit is None or ours is None or ours.median is None:
        return None
    others = [f"{_figure(module, r)} ({name})" for name, r in row.items() if r is not ours and r.median is not None]
    return Bar("limit", limit / ours.median, 1.0, " : ".join([_figure(module, ours), *others]))


def _figure(module: Any, result: Measurement) -> str:
    unit, scale = module.UNIT
    return f"{table.number(result.median, scale)} {unit}"
