"""Assemble: the kernel of a group, and where its pointers, sizes, strides and scalars come from.

The kernels of random windows are interpreted point by point, and leave the memory that the ops leave one after another.
"""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from machine import Machine, run_both
from random_windows import windows
from traces import TraceBuilder

from adaptive_eager import params
from adaptive_eager.assemble import assemble
from adaptive_eager.dataflow import analyse
from adaptive_eager.expansion import expand
from adaptive_eager.fusion import Fuser, HostStep
from adaptive_eager.rematerialisation import loaded_versions
from adaptive_eager.trace import Scalar


def recipes_of(trace):
    flow = analyse(trace)
    steps = Fuser(trace, flow).run()
    loaded = loaded_versions(flow, steps)
    return [assemble(trace, flow, s, loaded) for s in steps if not isinstance(s, HostStep)]


def recipe_of(trace):
    (recipe,) = recipes_of(trace)
    return recipe


def stored(recipe):
    """Trace nodes whose values a kernel stores."""
    return [recipe.nodes[s.value] for s in (*recipe.kernel.stores, *recipe.kernel.final_stores)]


def indices(recipe):
    """Loop dims of each index of a kernel."""
    return [i.attrs for i in recipe.kernel.program if i.op == "index"]


class TestStores:
    def test_dead_intermediates_are_not_stored(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("exp", x)
        z = t.map("neg", y)
        assert stored(recipe_of(t.build(live=[z]))) == [1]
        assert stored(recipe_of(t.build(live=[y, z]))) == [0, 1]

    def test_in_place_chain_stores_its_last_version(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        for _ in range(3):
            t.map("add", x, 1.0, out=x)
        recipe = recipe_of(t.build())
        assert stored(recipe) == [2]
        assert len(recipe.kernel.accesses) == 1  # loaded from and stored to the same place

    def test_what_another_kernel_reads_is_stored(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("exp", x)
        s = t.reduce("sum", y, [1], keepdim=True)
        z = t.map("sub", y, s)
        first, second = recipes_of(t.build(live=[z]))
        assert stored(first) == [0, 1] and stored(second) == [2]

    def test_what_a_host_op_reads_is_stored(self):
        t = TraceBuilder()
        y = t.map("exp", t.input("f32", ("B", "N")))
        h = t.host("mm", y, shape=("B", "B"))
        assert stored(recipe_of(t.build(live=[h]))) == [0]

    def test_what_is_read_through_a_view_is_stored(self):
        t = TraceBuilder()
        y = t.map("exp", t.input("f32", ("B", "N")))
        h = t.host("mm", y.t(), shape=("B", "B"))
        assert stored(recipe_of(t.build(live=[h]))) == [0]

    def test_a_dead_reader_is_no_reason(self):
        t = TraceBuilder()
        y = t.map("exp", t.input("f32", ("B", "N")))
        z = t.map("neg", y)
        t.host("mm", y, shape=("B", "B"))
        assert stored(recipe_of(t.build(live=[z]))) == [1]

    def test_only_what_a_view_can_see_is_stored(self):
        t = TraceBuilder()
        x = t.input("f32", ("C", "N"))
        t.map("add", x, 1.0, out=x)
        t.map("mul", x, 2.0, out=x)
        z = t.map("neg", x.select(0, 0))
        assert stored(recipes_of(t.build(live=[z]))[0]) == [1]


class TestLoops:
    def test_contiguous_maps_are_one_loop(self):
        t = TraceBuilder()
        x = t.input("f32", ("A", "B", "C"))
        recipe = recipe_of(t.build(live=[t.map("exp", x)]))
        assert recipe.kernel.dims == "k" and recipe.loop_dims == [(0, 1, 2)]
        assert [a.moves for a in recipe.kernel.accesses] == ["c", "c"]
        assert recipe.kind == "map" and recipe.accesses == [(0, [2]), (1, [2])]

    def test_broadcast_over_rows_and_columns(self):
        t = TraceBuilder()
        x, row, column = t.input("f32", ("B", "N")), t.input("f32", ("N",)), t.input("f32", ("B", 1))
        recipe = recipe_of(t.build(live=[t.map("add", t.map("mul", x, row), column)]))
        assert recipe.loop_dims == [(0,), (1,)]
        assert [a.moves for a in recipe.kernel.accesses] == ["sc", "0c", "s0", "sc"]
        assert [dims for _, dims in recipe.accesses] == [[0, 1], [-1, 0], [0, -1], [0, 1]]

    def test_numbers(self):
        t = TraceBuilder()
        recipe = recipe_of(t.build(live=[t.map("exp", t.input("f32", ()))]))
        assert recipe.loop_dims == [()] and [a.moves for a in recipe.kernel.accesses] == ["c", "c"]

    def test_transposed_result_is_walked_in_its_own_order(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N")).t()
        recipe = recipe_of(t.build(live=[t.map("exp", x)]))
        assert recipe.loop_dims == [(1, 0)] and [a.moves for a in recipe.kernel.accesses] == ["c", "c"]

    def test_an_index_counts_in_logical_order(self):
        t = TraceBuilder()
        recipe = recipe_of(t.build(live=[t.map("arange", 3, 2, shape=("A", "B", "C"))]))
        assert recipe.loop_dims == [(0, 1, 2)] and indices(recipe) == [(0,)]
        t = TraceBuilder()
        x = t.input("f32", ("B", "C", "H", "W"), (0, 2, 3, 1))
        recipe = recipe_of(t.build(live=[t.map("arange", 3, 2, out=x)]))
        assert recipe.loop_dims == [(0,), (2, 3), (1,)] and indices(recipe) == [(0, 2, 1)]

    def test_indices_along_single_dims_split(self):
        t = TraceBuilder()
        x = t.input("f32", ("A", "B", "C"))
        recipe = recipe_of(t.build(live=[t.map("tril", t.map("exp", x), 0)]))
        assert recipe.loop_dims == [(0,), (1,), (2,)]
        assert indices(recipe) == [(1,), (2,)]
        t = TraceBuilder()
        recipe = recipe_of(t.build(live=[t.map("tril", t.input("f32", ("A", 1, "C")), 0)]))
        assert indices(recipe) == [(), (1,)]

    def test_a_reduction_that_walks_otherwise_is_another_kernel(self):
        """The reduced dims of a transposed input are one loop, against the order in which an index counts."""
        t = TraceBuilder()
        x = t.input("f32", ("B", "N")).t()
        y = t.map("add", x, t.map("arange", 0, 1, shape=("N", "B")))
        assert len(recipes_of(t.build(live=[t.reduce("sum", y)]))) >= 2
        t = TraceBuilder()
        y = t.map("arange", 0, 1, shape=("N", "B"))
        assert len(recipes_of(t.build(live=[t.reduce("sum", y)]))) == 1

    def test_inner_reduction(self):
        t = TraceBuilder()
        x = t.input("f32", ("A", "B", "N"))
        recipe = recipe_of(t.build(live=[t.reduce("sum", x, [2])]))
        assert (recipe.kind, recipe.kernel.dims, recipe.loop_dims) == ("inner", "kr", [(0, 1), (2,)])
        assert [a.moves for a in recipe.kernel.accesses] == ["sc", "s0"]
        assert recipe.accesses == [(0, [1, 2]), (1, [1, -1])]
        assert recipe.describe()["reduced"] == 1

    def test_outer_reduction(self):
        t = TraceBuilder()
        x = t.input("f32", ("A", "B", "N"))
        recipe = recipe_of(t.build(live=[t.reduce("sum", x, [1], keepdim=True)]))
        assert (recipe.kind, recipe.kernel.dims, recipe.loop_dims) == ("outer", "krk", [(0,), (1,), (2,)])
        assert [a.moves for a in recipe.kernel.accesses] == ["ssc", "s0c"]
        assert recipe.accesses[1] == (1, [0, -1, 2])

    def test_nothing_to_reduce(self):
        t = TraceBuilder()
        recipe = recipe_of(t.build(live=[t.reduce("sum", t.input("f32", ("B", 1)), [1])]))
        assert (recipe.kind, recipe.kernel.dims, recipe.loop_dims) == ("inner", "kr", [(0,), ()])

    def test_a_launch_has_room_for_nine_loops(self):
        """Reducing nothing over eight dims, none of which can be walked with its neighbour."""
        t = TraceBuilder()
        x = t.input("bool", (4,) * 8)
        for d in range(8):
            x = x.slice(d, 0, 4, 2)
        recipe = recipe_of(t.build(live=[t.reduce("any", x, [])]))
        assert len(recipe.kernel.dims) <= 9  # native/torch/plan.h: kMaxLoopDims

    def test_finals_see_the_kept_points(self):
        t = TraceBuilder()
        x, scale, number = t.input("f32", ("A", "B", "N")), t.input("f32", ("A", "N")), t.input("f32", ())
        s = t.map("mul", t.map("mul", t.reduce("sum", x, [1]), scale), number)
        recipe = recipe_of(t.build(live=[s]))
        kernel = recipe.kernel
        assert [a.moves for a in kernel.accesses] == ["ssc", "s0c", "000", "s0c"]
        assert not kernel.stores and len(kernel.final_stores) == 1
        assert [dims for _, dims in recipe.accesses] == [[0, 1, 2], [0, -1, 1], [-1, -1, -1], [0, -1, 1]]

    def test_iteration_is_an_operand_of_the_whole_space(self):
        t = TraceBuilder()
        row, x = t.input("f32", ("N",)), t.input("f32", ("B", "N"))
        y = t.map("add", row, x)
        recipe = recipe_of(t.build(live=[t.reduce("sum", y, [1])]))
        assert t.operands[recipe.iteration].sizes == x.sizes

    @settings(max_examples=100, deadline=None)
    @given(windows())
    def test_every_dim_is_walked_once(self, window):
        t, live = window
        trace = expand(t.build(live))
        machine = Machine(t, trace)
        for recipe in recipes_of(trace):
            sizes = machine.tensor(recipe.iteration).sizes
            walked = sorted(d for loop in recipe.loop_dims for d in loop)
            assert walked == [d for d, s in enumerate(sizes) if s != 1]
            assert len(recipe.loop_dims) == len(recipe.kernel.dims)


class TestPrograms:
    def test_values_are_forwarded_and_loads_are_shared(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("exp", x)
        z = t.map("add", t.map("mul", y, x), y)
        kernel = recipe_of(t.build(live=[z])).kernel
        assert [i.op for i in kernel.program] == ["load", "exp", "mul", "add"]
        assert [i.args for i in kernel.program[1:]] == [(0,), (1, 0), (2, 1)]

    def test_memory_and_the_value_written_over_it_are_two_loads(self):
        """A value is never mistaken for what lay in its memory before."""
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        old = t.map("exp", x)
        t.map("fill", 1.0, out=x)
        new = t.map("neg", x)
        kernel = recipe_of(t.build(live=[old, new])).kernel
        neg = next(i for i in kernel.program if i.op == "neg")
        assert kernel.program[neg.args[0]].op == "fill"

    def test_scalars_are_numbered_in_the_window(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        h = t.map("add", t.host("mm", t.map("mul", x, 2.0), shape=("B", "N")), 3)
        first, second = recipes_of(t.build(live=[h]))
        assert (first.scalars, second.scalars) == ([Scalar(0)], [Scalar(1)])
        assert [i.attrs for r in (first, second) for i in r.kernel.program if i.op == "scalar"] == [(0, "f"), (0, "i")]

    def test_values_lead_back_to_their_nodes(self):
        t = TraceBuilder()
        x = t.input("i32", ("B", "N"))
        t.host("sort", x)
        s = t.map("neg", t.reduce("sum", t.map("remainder", x, 3), [1]))
        recipe = recipe_of(t.build(live=[s]))
        everything = (*recipe.kernel.program, *recipe.kernel.epilogue)
        assert [i.ordinal for i in everything] == list(range(len(everything)))
        named = {i.op: recipe.nodes[k] for k, i in enumerate(everything)}
        assert (named["remainder"], named["reduce"], named["neg"]) == (1, 2, 3)
        assert recipe.describe()["ops"] == 3

    def test_text_has_no_sizes_and_no_scalars(self):
        def texts(b, n, scalar):
            t = TraceBuilder()
            x, row = t.input("f32", (b, n)), t.input("f32", (n,))
            y = t.map("add", t.map("mul", x, scalar), row)
            m = t.map("mul", t.reduce("mean", y, [1]), scalar)
            return [r.kernel.text() for r in recipes_of(t.build(live=[y, m]))]

        assert texts(12345, 6789, 0.8125) == texts(2, 3, -3.5)
        assert not any(number in text for text in texts(12345, 6789, 0.8125) for number in ("12345", "6789", "8125"))

    def test_description_can_be_stored(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        s = t.map("neg", t.reduce("mean", t.map("exp", x), [1]))
        description = recipe_of(t.build(live=[s])).describe()
        assert json.loads(json.dumps(description)) == description
        assert set(description) == {
            "kind", "reduced", "iteration", "loop_dims", "accesses", "scalars", "nodes", "ops", "cost",
        }  # fmt: skip


# -- what kernels compute ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("max_ops", [1, 3, 64])
@settings(max_examples=250, deadline=None)
@given(window=windows(), random=st.randoms(use_true_random=False))
def test_kernels_compute_what_the_ops_do(max_ops, backwards, window, random):
    """Fused, rematerialised, in strips whose rows run in any order; in kernels of one, few, and many ops."""
    with params.override(max_kernel_ops=max_ops):
        expected, planned = run_both(*window, random, backwards)
    assert planned == expected


class TestOneMemoryWrittenTwice:
    """Windows in which a kernel could take a later value for an earlier one."""

    @pytest.fixture(params=[False, True], ids=["forwards", "backwards"])
    def check(self, request):
        def check(t, live):
            expected, planned = run_both(t, live, backwards=request.param)
            assert planned == expected

        return check

    def test_reduction_into_memory_that_the_points_read(self, check):
        t = TraceBuilder()
        x, g = t.input("f32", (3, 3)), t.input("f32", (3,))
        y = t.map("add", x, g)
        t.reduce("sum", x, [1], out=g)
        check(t, [y])

    def test_two_reductions(self, check):
        t = TraceBuilder()
        x, g = t.input("f32", (2, 3)), t.input("f32", (2,))
        t.reduce("amax", x, [1], out=g)
        first = t.map("mul", g, 3)
        t.reduce("sum", x, [1], out=g)
        check(t, [first])

    def test_reduction_over_a_follower(self, check):
        """The last of three writes is what a view sees, whatever part of the kernel it is in."""
        t = TraceBuilder()
        x, g = t.input("f32", (3, 3)), t.input("f32", (3,))
        t.reduce("sum", x, [1], out=g)
        t.map("mul", g, 3, out=g)
        second = t.map("add", g, 1)
        t.reduce("amax", x, [1], out=g)
        third = t.map("add", g.slice(0, 0, 3, 2), 1)
        check(t, [second, third])

    def test_in_place_before_and_after_a_view_is_read(self, check):
        t = TraceBuilder()
        x = t.map("add", t.input("f32", (3, 2)), 1)
        t.map("mul", x, 3, out=x)
        y = t.map("add", x.permute(1, 0), 1)
        t.map("mul", x, 5, out=x)
        check(t, [x, y])
