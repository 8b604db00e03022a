"""Softmax: softmax, log_softmax and their backwards, shifted by the row's maximum; logsumexp."""

from __future__ import annotations

import math

from adaptive_eager.expansion import Parts
from adaptive_eager.row_programs.registry import row_program


def _one_dim(p: Parts) -> int:
    return 1 << p.attr(0) & (1 << p.rank) - 1


@row_program("_softmax")
def _softmax(p: Parts) -> None:
    """exp(x - max) / sum(exp(x - max))"""
    (y,) = p.results(1)
    assert y is not None
    x, dims = p.input(0), _one_dim(p)
    e = p.map("exp", p.map("sub", x, p.reduce("amax", x, dims)))
    p.map("mul", e, p.map("reciprocal", p.reduce("sum", e, dims)), into=y)


@row_program("_log_softmax")
def _log_softmax(p: Parts) -> None:
    """(x - max) - log(sum(exp(x - max)))"""
    (y,) = p.results(1)
    assert y is not None
    x, dims = p.input(0), _one_dim(p)
    highest = p.reduce("amax", x, dims)
    total = p.reduce("sum", p.map("exp", p.map("sub", x, highest)), dims)
    p.map("sub", p.map("sub", x, highest), p.map("log", total), into=y)


@row_program("_softmax_backward_data")
def _softmax_backward(p: Parts) -> None:
    """(grad - sum(grad * y)) * y"""
    (result,) = p.results(1)
    assert result is not None
    grad, y, dims = p.input(0), p.input(1), _one_dim(p)
    total = p.reduce("sum", p.map("mul", grad, y), dims)
    p.map("mul", p.map("sub", grad, total), y, into=result)


@row_program("_log_softmax_backward_data")
def _log_softmax_backward(p: Parts) -> None:
    """grad - exp(y) * sum(grad)"""
    (result,) = p.results(1)
    assert result is not None
    grad, y, dims = p.input(0), p.input(1), _one_dim(p)
    total = p.reduce("sum", grad, dims)
    p.map("sub", grad, p.map("mul", p.map("exp", y), total), into=result)


@row_program("logsumexp")
def _logsumexp(p: Parts) -> None:
    """log(sum(exp(x - max))) + max, where an infinite max is not subtracted."""
    (result,) = p.results(1)
    assert result is not None
    x, dims = p.input(0), p.attr(0)
    p.declare(x, dims, result)
    highest = p.reduce("amax", x, dims)
    infinite = p.map("eq", p.map("abs", highest), math.inf)
    shift = p.map("where", infinite, 0.0, highest)
    total = p.reduce("sum", p.map("exp", p.map("sub", x, shift)), dims)
    p.map("add", p.map("log", total), shift, into=result)
