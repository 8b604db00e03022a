"""Cost: what a kernel's work at a point is estimated to be."""

from __future__ import annotations

import pytest
from traces import TraceBuilder

from adaptive_eager import cost
from adaptive_eager.assemble import assemble
from adaptive_eager.compiler.semantics import OPS
from adaptive_eager.cost import kernel_cost
from adaptive_eager.dataflow import analyse
from adaptive_eager.fusion import Fuser
from adaptive_eager.trace import GATHERS


def cost_of(build):
    """Cost of the one kernel of what `build` records over a matrix and returns."""
    t = TraceBuilder()
    trace = t.build(live=[build(t, t.input("f32", ("B", "N")))])
    flow = analyse(trace)
    (group,) = Fuser(trace, flow).run()
    return kernel_cost(assemble(trace, flow, group, set()).kernel)


def test_an_addition_is_four():
    """The unit: two loads, an addition, a store."""
    assert cost_of(lambda t, x: t.map("add", x, t.input("f32", ("B", "N")))) == 4


def test_scalars_are_free():
    assert cost_of(lambda t, x: t.map("add", x, 1.0)) == 3


def test_work_adds_up():
    one = cost_of(lambda t, x: t.map("tanh", x))
    two = cost_of(lambda t, x: t.map("tanh", t.map("tanh", x)))
    assert two - one == cost._WEIGHTS["tanh"]


@pytest.mark.parametrize("op", ["exp", "tanh", "erf", "log", "lgamma"])
def test_mathematics_costs_more_than_arithmetic(op):
    assert cost_of(lambda t, x: t.map(op, x)) > 2 * cost_of(lambda t, x: t.map("neg", x))


def test_reductions_count_their_points():
    assert cost_of(lambda t, x: t.reduce("sum", x, [1])) == 2  # a load and an addition
    # What is done once a kept point is not work of each point.
    assert cost_of(lambda t, x: t.map("exp", t.reduce("sum", x, [1]))) == 2


def test_never_nothing():
    assert cost_of(lambda t, x: t.map("fill", 0.0, shape=("N",))) >= 1


def test_every_weighed_op_exists():
    assert set(cost._WEIGHTS) <= {*OPS, *GATHERS}
    assert all(isinstance(w, int) and w > 0 for w in cost._WEIGHTS.values())
