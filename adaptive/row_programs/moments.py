"""Moments: variance and standard deviation."""

from __future__ import annotations

import functools

from adaptive_eager.expansion import Parts
from adaptive_eager.row_programs.registry import ROW_PROGRAMS


def _moments(p: Parts, root: bool, n: int) -> None:
    """The variance or its root, and the mean if two results are asked for; over the dims of attribute 0.

    In float64: squares neither overflow nor vanish, and the distances are those from the mean, not from it rounded.
    """
    spread, mean_out = (*p.results(n), None)[:2]
    assert spread is not None
    x, dims = p.input(0), p.attr(0)
    p.compute = "f64"
    p.declare(x, dims, spread)
    mean = p.reduce("mean", x, dims)
    distance = p.map("sub", x, mean)
    total = p.reduce("sum", p.map("mul", distance, distance), dims)
    variance = p.map("div", total, p.scalar(0), into=None if root else spread)
    if root:
        p.map("sqrt", variance, into=spread)
    if mean_out is not None:
        p.deliver(mean, mean_out)


for _name, _root, _n in (("var", False, 1), ("std", True, 1), ("var_mean", False, 2), ("std_mean", True, 2)):
    ROW_PROGRAMS[_name] = functools.partial(_moments, root=_root, n=_n)
