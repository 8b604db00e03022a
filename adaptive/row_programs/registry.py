"""Registry: row programs by ATen op. The programs are in the sibling modules."""

from __future__ import annotations

from collections.abc import Callable

from adaptive_eager.expansion import Parts

RowProgram = Callable[[Parts], None]

#: ATen op -> how it is written.
ROW_PROGRAMS: dict[str, RowProgram] = {}


def row_program(*names: str) -> Callable[[RowProgram], RowProgram]:
    """Decorator: registers the parts of ATen ops."""

    def register(program: RowProgram) -> RowProgram:
        ROW_PROGRAMS.update(dict.fromkeys(names, program))
        return program

    return register
