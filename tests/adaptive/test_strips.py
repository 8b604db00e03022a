"""Strips: which kernels run a few rows at a time together, and which must not."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from machine import run_both
from random_windows import windows
from row_calls import layer_norm, softmax, softmax_backward
from traces import TraceBuilder

from adaptive_eager import params
from adaptive_eager.design import design


def strips_of(t, live):
    """Recorded ops of each kernel, by strips; the number of a host node. Also runs them, rows in many orders."""
    for seed in range(4):
        expected, by_plan = run_both(t, live, Random(seed), backwards=seed % 2 == 1)
        assert by_plan == expected
    return [
        step if isinstance(step, int) else [sorted(set(recipe.nodes)) for recipe in step.recipes]
        for step in design(t.build(live)).steps
    ]


def lengths(t, live):
    return [1 if isinstance(step, int) else len(step) for step in strips_of(t, live)]


class TestJoined:
    def test_softmax(self):
        t = TraceBuilder()
        y = softmax(t, t.input("f32", (5, 3)), 1)
        assert strips_of(t, [y]) == [[[0], [0], [0]]]

    def test_written_out(self):
        """What a user writes in plain ops is found, too."""
        t = TraceBuilder()
        x = t.input("f32", (5, 3))
        e = t.map("exp", t.map("sub", x, t.reduce("amax", x, [1], keepdim=True)))
        y = t.map("mul", e, t.map("reciprocal", t.reduce("sum", e, [1], keepdim=True)))
        assert lengths(t, [y]) == [3]

    def test_with_its_neighbours(self):
        t = TraceBuilder()
        x, w, b = t.input("f32", (5, 3)), t.input("f32", (3,)), t.input("f32", (3,))
        y = layer_norm(t, t.map("exp", x), 1, w, b, eps=1, statistics=False)[0]
        z = t.map("mul", softmax(t, t.map("add", y, x), 1), x)
        assert len(strips_of(t, [z])) == 1

    def test_backward(self):
        t = TraceBuilder()
        x = t.input("f32", (5, 3))
        y = softmax(t, x, 1)
        grad = softmax_backward(t, t.input("f32", (5, 3)), y, 1)
        assert len(strips_of(t, [y, grad])) == 1

    def test_over_kept_dims_that_are_not_outermost_in_shape(self):
        """Rows are walked as they lie in memory."""
        t = TraceBuilder()
        x = t.input("f32", (2, 5, 3), order=(1, 0, 2))
        y = t.map("exp", t.map("sub", x, t.reduce("amax", x, [2], keepdim=True)))
        assert lengths(t, [y]) == [2]

    def test_in_place_of_the_same_rows(self):
        t = TraceBuilder()
        x = t.input("f32", (5, 3))
        t.map("sub", x, t.reduce("amax", x, [1], keepdim=True), out=x)
        s = t.reduce("sum", x, [1], keepdim=True)
        t.map("mul", x, s, out=x)
        assert lengths(t, [s]) == [3]

    def test_statistics_that_are_rounded(self):
        """A result in another dtype than the parts work in has the shape of the rows, too."""
        t = TraceBuilder()
        results = layer_norm(t, t.input("bf16", (5, 3)), 1, eps=1)
        assert len(strips_of(t, results)) == 1


class TestApart:
    """Each of these was, or could be, a wrong result: kernels that run row by row together, and must not."""

    @pytest.mark.parametrize("rows", [2, 3, 4])
    def test_another_number_of_rows(self, rows):
        t = TraceBuilder()
        x = t.input("f32", (5, 3))
        s = t.reduce("sum", x, [1], keepdim=True)
        y = t.map("exp", x.slice(0, 0, rows).slice(1, 0, 1))
        z = t.map("sub", x, s)
        strips = strips_of(t, [s, y, z])
        assert not any({0, 1} <= {n for kernel in strip for n in kernel} for strip in strips)

    def test_a_row_among_the_columns(self):
        """A square: a result of the rows that is read along the columns."""
        t = TraceBuilder()
        x = t.input("f32", (4, 4))
        s = t.reduce("sum", x, [1])
        z = t.map("sub", x, s)
        assert lengths(t, [z]) == [1, 1]

    def test_transposed_read_of_what_is_written(self):
        t = TraceBuilder()
        x = t.input("f32", (4, 4))
        y = t.map("sub", x, t.reduce("amax", x, [1], keepdim=True))
        z = softmax(t, t.map("add", y, y.t()), 1)
        strips = strips_of(t, [z])
        assert len(strips) > 1

    def test_shifted_rows(self):
        """The rows of a view are other rows of its storage."""
        t = TraceBuilder()
        x = t.input("f32", (6, 3))
        upper, lower = x.slice(0, 0, 5), x.slice(0, 1, 6)
        s = t.reduce("sum", upper, [1], keepdim=True)
        t.map("sub", lower, s, out=lower)
        strips = strips_of(t, [s])
        assert [len(s) for s in strips] == [1, 1]

    def test_written_where_an_earlier_kernel_reads_another_row(self):
        t = TraceBuilder()
        x, y = t.input("f32", (5, 3)), t.input("f32", (5, 3))
        s = t.reduce("sum", t.map("add", x, y.slice(0, 0, 1)), [1], keepdim=True)
        t.map("mul", x, s, out=y)
        assert [len(strip) for strip in strips_of(t, [s])] == [1, 1]

    def test_other_dims_are_reduced(self):
        t = TraceBuilder()
        x = t.input("f32", (4, 4))
        rows = t.map("sub", x, t.reduce("sum", x, [1], keepdim=True))
        columns = t.map("sub", x, t.reduce("sum", x, [0], keepdim=True))
        assert len(strips_of(t, [rows, columns])) > 1

    def test_one_row(self):
        t = TraceBuilder()
        x = t.input("f32", (5, 3))
        y = t.map("sub", x, t.reduce("sum", x))
        assert lengths(t, [y]) == [1, 1]

    def test_unrelated_rows(self):
        t = TraceBuilder()
        x, y = t.input("f32", (5, 3)), t.input("f32", (5, 3))
        a, b = t.reduce("sum", x, [1], keepdim=True), t.reduce("sum", y, [1], keepdim=True)
        assert lengths(t, [a, b]) == [1, 1]

    def test_a_host_op_between(self):
        t = TraceBuilder()
        x = t.input("f32", (5, 3))
        s = t.reduce("sum", x, [1], keepdim=True)
        h = t.host("twice", s)
        z = t.map("sub", x, h)
        assert strips_of(t, [z]) == [[[0]], 1, [[2]]]


@pytest.mark.parametrize("max_ops", [2, 64])
@settings(max_examples=150, deadline=None)
@given(window=windows(), random=st.randoms(use_true_random=False))
def test_rows_run_in_any_order(max_ops, window, random):
    with params.override(max_kernel_ops=max_ops):
        expected, by_plan = run_both(*window, random)
    assert by_plan == expected
