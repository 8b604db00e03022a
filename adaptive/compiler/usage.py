"""Usage: which instructions, loads, tables and reductions a set of results needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from adaptive_eager.compiler.loop_ir import Instr


@dataclass
class Usage:
    """Value numbers and access indices (`loads`; `tables`: of gathers) reached from some results; reductions are
    leaves."""

    values: set[int] = field(default_factory=set)
    loads: set[int] = field(default_factory=set)
    tables: set[int] = field(default_factory=set)
    reductions: list[int] = field(default_factory=list)


def used_by(instructions: tuple[Instr, ...], results: Iterable[int]) -> Usage:
    """Everything that `results` need, without looking through reductions."""
    usage = Usage()
    pending = list(results)
    while pending:
        number = pending.pop()
        if number < 0 or number in usage.values:
            continue
        usage.values.add(number)
        instr = instructions[number]
        if instr.op == "reduce":
            usage.reductions.append(number)
        elif instr.op == "load":
            usage.loads.add(int(instr.attrs[0]))
        else:
            if instr.op == "gather":
                usage.tables.add(int(instr.attrs[0]))
            pending.extend(instr.args)
    usage.reductions.sort()
    return usage
