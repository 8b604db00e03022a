"""Rematerialisation: what is computed where it is used, and what must be read from memory."""

from __future__ import annotations

import pytest
from machine import run_both
from row_calls import softmax
from traces import TraceBuilder

from adaptive_eager import params
from adaptive_eager.dataflow import analyse
from adaptive_eager.expansion import expand
from adaptive_eager.fusion import Fuser, HostStep
from adaptive_eager.rematerialisation import loaded_versions, rematerialise


def steps_of(t, live):
    """Ops of each step, after it was checked that the window leaves the same memory as its ops one by one."""
    for backwards in (False, True):
        expected, by_plan = run_both(t, live, backwards=backwards)
        assert by_plan == expected
    trace = expand(t.build(live))
    flow = analyse(trace)
    steps = rematerialise(trace, flow, Fuser(trace, flow).run())
    return [s.node.op if isinstance(s, HostStep) else [n.op for n in s.nodes()] for s in steps]


class TestTakenOver:
    def test_a_value_that_only_the_next_kernel_needs(self):
        """Its store and its load go."""
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        y = t.map("tanh", x)  # dear, but computed once: nobody else needs it
        s = t.reduce("sum", x, [1], keepdim=True)
        z = t.map("sub", y, s)
        assert steps_of(t, [z]) == [["sum"], ["tanh", "sub"]]

    def test_a_cheap_value_that_both_need(self):
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        y = t.map("mul", x, 2)
        z = t.map("sub", y, t.reduce("sum", y, [1], keepdim=True))
        assert steps_of(t, [z]) == [["mul", "sum"], ["mul", "sub"]]

    def test_a_chain(self):
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        y = t.map("add", t.map("mul", x, 2), x)
        z = t.map("sub", y, t.reduce("sum", y, [1], keepdim=True))
        assert steps_of(t, [z]) == [["mul", "add", "sum"], ["mul", "add", "sub"]]

    def test_from_a_value_that_is_stored_anyway(self):
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        e = t.map("exp", x)
        y = t.map("mul", e, 2)
        z = t.map("sub", y, t.reduce("sum", y, [1], keepdim=True))
        assert steps_of(t, [e, z]) == [["exp", "mul", "sum"], ["mul", "sub"]]

    def test_what_somebody_sees_is_still_stored_once(self):
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        y = t.map("mul", x, 2)
        z = t.map("sub", y, t.reduce("sum", y, [1], keepdim=True))
        assert steps_of(t, [y, z]) == [["mul", "sum"], ["mul", "sub"]]

    def test_nothing_of_softmax_is_stored_but_its_result_and_the_exponentials(self):
        t = TraceBuilder()
        trace = expand((softmax(t, t.input("f32", (3, 2)), 1), t.build())[1])
        flow = analyse(trace)
        steps = rematerialise(trace, flow, Fuser(trace, flow).run())
        full = trace.geometries[trace.nodes[0].inputs[0].geometry].shape
        stored = [
            trace.nodes[node].op
            for node, output in sorted(loaded_versions(flow, steps))
            if trace.geometries[trace.nodes[node].outputs[output].geometry].shape == full
        ]
        assert stored == ["exp"]


class TestReadFromMemory:
    def test_a_dear_value_that_both_need(self):
        t = TraceBuilder()
        y = t.map("tanh", t.input("f32", (3, 2)))
        z = t.map("sub", y, t.reduce("sum", y, [1], keepdim=True))
        assert steps_of(t, [z]) == [["tanh", "sum"], ["sub"]]

    def test_more_loads_than_it_saves(self):
        t = TraceBuilder()
        a, b, c = (t.input("f32", (3, 2)) for _ in range(3))
        y = t.map("add", t.map("add", a, b), c)
        z = t.map("sub", y, t.reduce("sum", y, [1], keepdim=True))
        assert steps_of(t, [z]) == [["add", "add", "sum"], ["sub"]]

    def test_a_reduction(self):
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        z = t.map("sub", x, t.reduce("sum", x, [1], keepdim=True))
        assert steps_of(t, [z]) == [["sum"], ["sub"]]

    def test_an_op_in_place(self):
        """What it read is no longer there: it has written over it itself."""
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        t.map("add", x, 1, out=x)
        z = t.map("sub", x, t.reduce("sum", x, [1], keepdim=True))
        assert steps_of(t, [z]) == [["add", "sum"], ["sub"]]

    def test_an_op_in_place_between(self):
        """Its input was overwritten after it was computed."""
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        y = t.map("mul", x, 2)
        s = t.reduce("sum", y, [1], keepdim=True)
        t.map("add", x, 1, out=x)
        z = t.map("sub", y, s)
        assert steps_of(t, [z])[-1] == ["sub"]

    def test_overwritten_in_the_very_kernel(self):
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        y = t.map("mul", x, 2)
        s = t.reduce("sum", y, [1], keepdim=True)
        t.map("sub", y, s, out=x)
        assert steps_of(t, [])[-1] == ["sub"]

    @pytest.mark.parametrize("view", ["row", "transposed", "every other"])
    def test_overwritten_through_a_view(self, view):
        t = TraceBuilder()
        x = t.input("f32", (3, 3))
        y = t.map("mul", x, 2)
        s = t.reduce("sum", y, [1], keepdim=True)
        part = {"row": x.select(0, 1), "transposed": x.t(), "every other": x.slice(1, 0, 3, 2)}[view]
        t.map("add", part, 1, out=part)
        z = t.map("sub", y, s)
        assert steps_of(t, [z])[-1] == ["sub"]

    def test_overwritten_by_a_host_op(self):
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        y = t.map("mul", x, 2)
        s = t.reduce("sum", y, [1], keepdim=True)
        t.host("draw", out=x)
        z = t.map("sub", y, s)
        assert steps_of(t, [z]) == [["mul", "sum"], "draw", ["sub"]]

    def test_an_older_version_of_a_value_in_place(self):
        """The chain is computed again from what it started from, or not at all."""
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        y = t.map("mul", x, 2)
        t.map("add", y, 1, out=y)
        s = t.reduce("sum", y, [1], keepdim=True)
        z = t.map("sub", y, s)
        t.map("add", y, s, out=y)
        steps_of(t, [y, z])

    def test_no_more_ops_than_a_kernel_may_have(self):
        t = TraceBuilder()
        x = t.input("f32", (3, 2))
        y = t.map("mul", x, 2)
        z = t.map("sub", y, t.reduce("sum", y, [1], keepdim=True))
        with params.override(max_kernel_ops=1):
            assert steps_of(t, [z]) == [["mul"], ["sum"], ["sub"]]

    def test_a_random_op_is_drawn_once(self):
        t = TraceBuilder()
        x = t.map("fill", 1, shape=(3, 2))
        t.host("draw", out=x)
        z = t.map("sub", x, t.reduce("sum", x, [1], keepdim=True))
        assert [s for s in steps_of(t, [z]) if s == "draw"] == ["draw"]
