"""Variants: when the same ops may be planned once more, and what is said about them."""

from __future__ import annotations

import logging

import pytest
from traces import TraceBuilder

from adaptive_eager import params, variants
from adaptive_eager.trace import read_trace
from adaptive_eager.variants import Variants, nearest_change


def trace(dims=(1,), shape=("B", "N"), dtype="f32", scalar=2.0, keep=False, other=False, ops=1, line=7):
    t = TraceBuilder()
    x = t.input(dtype, shape)
    y = t.input(dtype, shape) if other else x
    m = t.map("mul", x, y)
    for _ in range(ops):
        m = t.map("add", m, scalar)
    s = t.reduce("sum", m, list(dims))
    raw = t.raw(live=[s, m] if keep else [s])
    for node in raw["nodes"]:
        node["origin"] = f"model.py:{line}"
    return read_trace(raw)


def never(lo, hi):
    return 0


class TestBudget:
    def test_sights_double_with_each_lot_that_does_not_come_back(self):
        v = Variants()
        needed = []
        for i in range(20):
            needed.append(v.needed_sights(trace(dims=(i,)), never))
            v.note(trace(dims=(i,)), 2, i, 0.0)
        assert needed == [2] * 8 + [4] * 8 + [8] * 4

    def test_plans_that_come_back_cost_nothing(self):
        v = Variants()
        for i in range(20):
            assert v.needed_sights(trace(dims=(i,)), lambda lo, hi: 4) == 2
            v.note(trace(dims=(i,)), 2, i, 0.0)

    def test_a_plan_has_paid_with_its_third_run(self):
        with params.override(max_variants=1):
            v = Variants()
            v.note(trace(), 2, 0, 0.0)
            assert v.needed_sights(trace(), lambda lo, hi: 3) == 4
            assert v.needed_sights(trace(), lambda lo, hi: 4) == 2

    def test_seconds_count_too(self):
        v = Variants()
        v.note(trace(), 2, 0, 4.5)
        assert v.needed_sights(trace(dims=(0,)), never) == 8

    def test_other_ops_have_their_own_budget(self):
        v = Variants()
        v.note(trace(), 2, 0, 9.0)
        t = TraceBuilder()
        other = read_trace(t.raw(live=[t.map("neg", t.input("f32", ("N",)))]))
        assert v.needed_sights(other, never) == 2

    def test_there_is_a_limit(self):
        v = Variants()
        v.note(trace(), 2, 0, 1e6)
        assert v.needed_sights(trace(), never) == 1024

    def test_few_codes_are_remembered(self, monkeypatch):
        monkeypatch.setattr(variants, "CODES", 1)
        v = Variants()
        v.note(trace(), 2, 0, 9.0)
        t = TraceBuilder()
        v.needed_sights(read_trace(t.raw(live=[t.map("neg", t.input("f32", ("N",)))])), never)
        assert v.needed_sights(trace(), never) == 2


KINDS = [
    (dict(dims=(1,)), dict(dims=(0,)), "argument", "argument 0 of sum, which is part of its code"),
    (dict(), dict(shape=("B", 1)), "size 1", "operand 0 of mul: the size of dim 1 became 1"),
    (dict(shape=(1, "N")), dict(), "size 1", "operand 0 of mul: the size of dim 0 is no longer 1"),
    (dict(), dict(shape=("A", "B", "N")), "number of dims", "2 dims became 3"),
    (dict(), dict(dtype="f64"), "dtype", "operand 0 of mul: f32 became f64"),
    (dict(scalar=2.0), dict(scalar=2), "kind of a number", "arguments of add are (tensor, int), were (tensor, float)"),
    (dict(), dict(keep=True), "which results are kept", "the result of add is kept after the window"),
    (dict(keep=True), dict(), "which results are kept", "the result of add is no longer kept"),
    (dict(), dict(other=True), "which tensors share memory", "operand 1 of mul"),
    (dict(), dict(ops=3), "number of ops", "3 ops became 5"),
]


@pytest.mark.parametrize(("before", "after", "kind", "detail"), KINDS)
def test_what_changed(before, after, kind, detail):
    change = nearest_change([trace(**before)], trace(**after, line=12))
    assert change.kind == kind and detail in change.detail
    assert change.origin == "model.py:12"


def test_sizes_that_agree():
    def pair(a, b):
        t = TraceBuilder()
        return read_trace(t.raw(live=[t.map("neg", t.input("f32", (a,))), t.map("neg", t.input("f32", (b,)))]))

    assert nearest_change([pair("A", "A")], pair("A", "B")).kind == "which sizes are equal"


def test_the_nearest_of_several():
    earlier = [trace(dtype="f64", keep=True), trace(keep=True), trace(shape=("A", "B", "N"))]
    assert nearest_change(earlier, trace()).kind == "which results are kept"


class TestWarning:
    def storm(self, v, number, kinds=12):
        for i in range(kinds):
            if v.needed_sights(trace(dims=(i,)), never) > 2:
                v.defer(trace(dims=(i,)), number + i)
            else:
                v.note(trace(dims=(i,)), 2, number + i, 0.0)

    def test_says_what_changes_and_where(self, caplog):
        v = Variants()
        with caplog.at_level(logging.WARNING):
            self.storm(v, 0)
            assert caplog.text == ""  # they may come back yet
            v.defer(trace(shape=("B", 1)), 200)
            v.defer(trace(shape=(1, "B")), 201)
        (said,) = v.warnings
        assert caplog.text.count("keep coming in new variants") == 1 and "model.py:7" in caplog.text
        assert "8 plans were made, of which 8 did not come back" in said
        assert "argument (" in said and "size 1 (1x)" in said and "dim 1 became 1" in said
        assert v.deferred == 6

    def test_not_for_ever(self, monkeypatch):
        monkeypatch.setattr(variants, "WARNINGS", 0)
        v = Variants()
        self.storm(v, 0)
        v.defer(trace(dims=(99,)), 200)
        assert v.warnings == []
