"""Position: ops whose value depends on where the point is. Their first operands are indices (loop_ir.py: "index")."""

from __future__ import annotations

from adaptive_eager.compiler.builder import Val
from adaptive_eager.compiler.semantics.arithmetic import plus, times
from adaptive_eager.compiler.semantics.registry import EXACT_ALL, row


@row("arange", 3, domain="number", exact_scalars=EXACT_ALL)
def _arange(b, args, dtype, attrs):
    """start + step * index"""
    index, start, step = args
    return plus(b, start, times(b, step, index, dtype), dtype)


def _triangle(b, args, predicate: str) -> Val:
    line, column, x, diagonal = args
    kept = b.icmp(predicate, b.sub(column, line), diagonal)
    return b.select(kept, x, b.const(x.ty, 0))


@row("tril", 4, operands=("i64", "i64", "", "i64"))
def _tril(b, args, dtype, attrs):
    """x on and below a diagonal, else 0"""
    return _triangle(b, args, "sle")


@row("triu", 4, operands=("i64", "i64", "", "i64"))
def _triu(b, args, dtype, attrs):
    """x on and above a diagonal, else 0"""
    return _triangle(b, args, "sge")


@row("one_hot", 3, operands=("i64", "i64", "i64"))
def _one_hot(b, args, dtype, attrs):
    """Whether the point's index along a dim is x, a class below `classes`, as an integer"""
    index, x, classes = args
    b.report_if_any(b.icmp("uge", x, classes), x)
    return b.convert("zext", b.icmp("eq", index, x), "i64")


@row("is_index", 2, result="bool", operands=("i64", "i64"))
def _is_index(b, args, dtype, attrs):
    """Whether the point's index along a dim is x"""
    return b.icmp("eq", args[0], args[1])
