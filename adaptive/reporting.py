"""The report: counters as a table that a reader understands. Pure functions of their inputs.

Not named `report`: a module of that name would take the place of the function `adaptive_eager.report`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = tuple[str, str, str]  # what, value, remark

#: Flush causes in words. A cause that is not here is shown under its own name.
CAUSES = {
    "host_read": "a value was read: print, item(), a copy to the host",
    "synchronize": "synchronize()",
    "event": "an event was recorded or waited for",
    "fallback": "an op the device cannot run needed the results",
    "data_dependent_shape": "an op whose result's shape depends on data",
    "max_ops": "the window was full: max_ops",
    "max_bytes": "the window was full: max_bytes",
    "resize": "a storage was resized",
    "memory": "memory was short",
    "other_device": "another device needed the results",
    "collective": "a collective operation among processes",
    "first_use": "a host op's first use with these dtypes runs at its call, where it can refuse them",
    "fork": "the process forked",
    "mode_change": "the mode was changed",
    "stepwise": "stepwise mode: each op at its call",
    "user": "flush()",
}

NOTHING = "Nothing has run on the neuron device yet."


def sections(stats: Mapping[str, Any], fallback_ops: Mapping[str, int] | None = None) -> list[tuple[str, list[Row]]]:
    """The report as (title, rows), from the counters of `adaptive_eager.stats()` and `get_fallback_ops()`.

    Counters that are missing count as 0.
    """
    count = {name: value for name, value in stats.items() if isinstance(value, (int, float))}

    def of(name: str) -> float:
        return count.get(name, 0)

    windows, ops, launches = of("windows"), of("ops_recorded"), of("launches")
    compiled, from_disk, reused = of("kernels_compiled"), of("kernels_from_disk"), of("kernels_reused")
    seconds = of("compile_seconds")
    plans = of("plans_hit") + of("plans_new")
    # Launches replace the ops that are neither computed by the host nor run as fallback.
    kernel_ops = max(0, ops - of("host_ops"))
    result = [
        (
            "Recording",
            [
                ("ops recorded", _number(ops), ""),
                ("windows run", _number(windows), _ratio(ops, windows, "ops a window")),
            ],
        ),
        (
            "Plans",
            [
                ("found", _number(of("plans_hit")), _percent(of("plans_hit"), plans, "of all windows")),
                ("new", _number(of("plans_new")), ""),
                *_shown("failed", of("plans_failed"), "windows that cannot be fused and run op by op"),
                *_shown("deferred", of("plans_deferred"), "variants of the same ops that must be seen more often"),
            ],
        ),
        (
            "Kernels",
            [
                ("compiled", _number(compiled), _compile_remark(compiled, seconds)),
                ("loaded from disk", _number(from_disk), _percent(from_disk, compiled + from_disk, "of those needed")),
                ("reused", _number(reused), ""),
                ("launches", _number(launches), _ratio(kernel_ops, launches, "ops a launch")),
                ("ops in fused kernels", _number(of("fused_ops")), _percent(of("fused_ops"), ops, "of all ops")),
            ],
        ),
        ("Host", [("host ops", _number(of("host_ops")), "matrix products, convolutions, sorts: ATen's own kernels")]),
    ]
    result[-1][1].extend(_fallback_rows(of("fallback_calls"), fallback_ops or {}))
    reasons = dict(stats.get("not_fused") or {})
    if reasons:
        by_number = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        result.append(("Not fused", [("windows", _number(number), " ".join(why.split())) for why, number in by_number]))
    causes = {name: number for name, number in dict(stats.get("flush_causes") or {}).items() if number}
    if causes:
        by_number = sorted(causes.items(), key=lambda item: (-item[1], item[0]))
        result.append(("Flushes", [(name, _number(number), CAUSES.get(name, "")) for name, number in by_number]))
    return result


def render(
    stats: Mapping[str, Any], fallback_ops: Mapping[str, int] | None = None, *, title: str = "neuron: what ran"
) -> RenderableType:
    """The report for rich: a terminal, or HTML in a notebook."""
    from rich.table import Table
    from rich.text import Text

    if not _anything_ran(stats, fallback_ops):
        return Text(NOTHING)
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("remark", style="dim")
    for name, rows in sections(stats, fallback_ops):
        table.add_row(Text(name, style="bold"), "", "")
        for what, value, remark in rows:
            table.add_row(Text("  " + what), value, Text(remark))
    return table


def text(
    stats: Mapping[str, Any], fallback_ops: Mapping[str, int] | None = None, *, title: str = "neuron: what ran"
) -> str:
    """The report as plain text, without colours, lines ending in a newline."""
    if not _anything_ran(stats, fallback_ops):
        return NOTHING + "\n"
    parts = sections(stats, fallback_ops)
    wide = max(len(what) for _, rows in parts for what, _, _ in rows)
    digits = max(len(value) for _, rows in parts for _, value, _ in rows)
    lines = [title]
    for name, rows in parts:
        lines.append(name)
        lines += [f"  {what:<{wide}}  {value:>{digits}}  {remark}".rstrip() for what, value, remark in rows]
    return "\n".join(lines) + "\n"


def print_report(
    stats: Mapping[str, Any], fallback_ops: Mapping[str, int] | None = None, file: TextIO | None = None
) -> None:
    """Prints the report to a file (standard output): in colour on a terminal, plain elsewhere, HTML in a notebook."""
    from rich.console import Console

    console = Console(file=file)
    if console.is_terminal or console.is_jupyter:
        console.print(render(stats, fallback_ops))
    else:
        (file or sys.stdout).write(text(stats, fallback_ops))


def html(stats: Mapping[str, Any], fallback_ops: Mapping[str, int] | None = None) -> str:
    """The report as an HTML fragment, for a notebook."""
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False)
    console.print(render(stats, fallback_ops))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _anything_ran(stats: Mapping[str, Any], fallback_ops: Mapping[str, int] | None) -> bool:
    return bool(fallback_ops) or any(value for value in stats.values())


def _fallback_rows(calls: float, ops: Mapping[str, int]) -> list[Row]:
    if not calls and not ops:
        return [("fallbacks", "none", "")]
    rows = [("fallbacks", _number(calls or sum(ops.values())), "ops the device cannot run, run on the host")]
    by_number = sorted(ops.items(), key=lambda item: (-item[1], item[0]))
    return rows + [(f"  {name}", _number(number), "") for name, number in by_number]


def _shown(what: str, value: float, remark: str) -> list[Row]:
    return [(what, _number(value), remark)] if value else []


def _compile_remark(compiled: float, seconds: float) -> str:
    if not compiled:
        return ""
    return f"in {seconds:.2f} s, {seconds / compiled * 1e3:.1f} ms each"


def _number(value: float) -> str:
    return f"{int(value):,}"


def _ratio(part: float, whole: float, unit: str) -> str:
    return f"{part / whole:.1f} {unit}" if whole else ""


def _percent(part: float, whole: float, of_what: str) -> str:
    return f"{part / whole:.1%} {of_what}" if whole else ""
