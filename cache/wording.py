"""Wording: sizes, times and tables as people read them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

#: Seconds of a unit of time.
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Columns; on a terminal the last but one is cut to its width."""
    from rich.console import Console

    wide = [max(len(row[at]) for row in [headings, *rows]) for at in range(len(headings) - 2)]
    console = Console()
    for row in (headings, *rows):
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, wide, strict=False))
        line = f"{line}  {row[-2]}" + (f"  [{row[-1]}]" if row[-1] and row is not headings else "")
        click.echo(line[: console.width] if console.is_terminal else line)


def shortened(names: list[str]) -> str:
    text = " ".join(names)
    return text if len(text) <= 100 else f"{text[:97]}..."


def size(number: int) -> str:
    return f"{number / 1e6:,.1f} MB" if number >= 1e6 else f"{number / 1e3:.1f} kB"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds else "-"


def age(seconds: float) -> str:
    for unit in ("w", "d", "h", "m"):
        if seconds >= 2 * UNITS[unit]:
            return f"{seconds / UNITS[unit]:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def when(moment: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))} ({age(time.time() - moment)} ago)"
