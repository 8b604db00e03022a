"""Registry: op name -> how to emit it. One row an op; the rows are in the sibling modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adaptive_eager.compiler.builder import Builder, CompileError, Val
from adaptive_eager.compiler.conversion import FLOATS, INTEGERS

#: emit(builder, operands, dtype, attrs) -> value. Operands are vectors of `dtype`, the compute dtype (bf16 and f16 as
#: float, and the result may be left unrounded), None where an optional one is absent.
Emit = Callable[[Builder, Sequence[Any], str, tuple[Any, ...]], Val]


@dataclass(frozen=True)
class Op:
    """One row.

    arity          least and most number of operands
    result         dtype of the result, or "" for the compute dtype
    domain         compute dtypes accepted, those of ATen's CPU kernel: "any", "float", "integral" (with bool),
                   "integer" (without), "number" (float or integer), "signed" (a number, not unsigned)
    operands       dtype of each operand where it is not the compute dtype ("" = it is)
    exact_scalars  positions of operands that, given as a Python scalar to a bf16/f16 op, are not rounded to it first
                   (torch's CPU kernels differ op by op here)
    """

    name: str
    emit: Emit
    arity: tuple[int, int]
    result: str = ""
    domain: str = "any"
    operands: tuple[str, ...] = ()
    exact_scalars: frozenset[int] = frozenset()

    def check(self, n_operands: int, compute: str) -> None:
        """Raise CompileError if the row does not cover this use."""
        if not self.arity[0] <= n_operands <= self.arity[1]:
            raise CompileError(f"{self.name}: got {n_operands} operands, need {self.arity[0]} to {self.arity[1]}")
        accepted = {
            "any": True,
            "float": compute in FLOATS,
            "integral": compute not in FLOATS,
            "integer": compute in INTEGERS,
            "number": compute != "bool",
            "signed": compute not in ("u8", "bool"),
        }[self.domain]
        if not accepted:
            raise CompileError(f"{self.name}: not defined on {compute}, need {self.domain}")


OPS: dict[str, Op] = {}

EXACT_ALL = frozenset(range(8))


def row(
    name: str,
    arity: int | tuple[int, int],
    result: str = "",
    domain: str = "any",
    operands: tuple[str, ...] = (),
    exact_scalars: frozenset[int] = frozenset(),
) -> Callable[[Emit], Emit]:
    """Decorator: register an emitter under an op name."""
    bounds = (arity, arity) if isinstance(arity, int) else arity

    def register(emit: Emit) -> Emit:
        OPS[name] = Op(name, emit, bounds, result, domain, operands, exact_scalars)
        return emit

    return register


def lookup(name: str) -> Op:
    """The row of an op. Raises CompileError for an op without one."""
    try:
        return OPS[name]
    except KeyError:
        raise CompileError(f"{name}: no scalar semantics") from None
