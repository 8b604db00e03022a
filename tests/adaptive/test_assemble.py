"""Assemble: the kernel of a group, and where its pointers, sizes, strides and scalars come from.

The kernels of random windows are interpreted point by point, and leave the memory that the ops leave one after another.
"""

from __future__ import annotations

import itertools
import json
from math import prod

import pytest
from hypothesis import given, settings
from traces import Tensor, TraceBuilder, windows

from adaptive_eager.assemble import assemble
from adaptive_eager.dataflow import analyse
from adaptive_eager.fusion import Fuser, HostStep


def recipes_of(trace, fuse=True):
    flow = analyse(trace)
    return [assemble(trace, flow, s) for s in Fuser(trace, flow, fuse).run() if not isinstance(s, HostStep)]


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
        for recipe in recipes_of(t.build(live)):
            sizes = t.operands[recipe.iteration].sizes
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
        assert (first.scalars, second.scalars) == ([0], [1])
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

PRIME = 10007


def scalar_op(op, args):
    """The ops of the random windows on whole numbers, where no order of a sum can be seen."""
    if op in ("copy", "fill"):
        return args[0]
    if op == "arange":
        index, start, step = args
        return (start + step * index) % PRIME
    if op == "tril":
        line, column, x, diagonal = args
        return x if column - line <= diagonal else 0
    a, b = args
    return {"add": a + b, "sub": a - b, "mul": a * b}[op] % PRIME


def reduced(kind, values):
    if kind == "argmax":
        return values.index(max(values))
    return max(values) if kind == "amax" else sum(values) % PRIME


class Machine:
    """Memory of a window, and both ways to run it. `backwards` takes the kept points from the last to the first, as a
    second thread might."""

    def __init__(self, t: TraceBuilder, backwards: bool = False):
        self.t = t
        self.memory = [[(7 * k + 31 * s) % 97 for k in range(n)] for s, n in enumerate(t.sizes)]
        self.backwards = backwards

    def read(self, x: Tensor, sizes=None):
        return [self.memory[x.storage][p] for p in (x.expand(*sizes) if sizes else x).places()]

    def run_node(self, node):
        """One op, whole tensors at once."""
        out = self.t.operands[node.outputs[0].operand]
        ins = [self.t.operands[o.operand] for o in node.inputs]
        if node.kind == "reduction":
            values = self.reduce(node, ins[0])
        elif node.op == "draw":
            values = [(v + 1000 * (node.index + 1)) % PRIME for v in self.read(out)]
        elif node.op == "twice":
            values = [2 * v % PRIME for v in self.read(ins[0])]
        else:
            columns = [self.read(x, out.sizes) for x in ins]
            places = list(itertools.product(*map(range, out.sizes)))
            if node.op == "arange":
                columns.insert(0, list(range(len(places))))
            if node.op == "tril":
                columns[:0] = [[p[-2] for p in places], [p[-1] for p in places]]
            columns += [[self.t.scalars[s]] * prod(out.sizes) for s in node.scalars]
            values = [scalar_op(node.op, args) for args in zip(*columns, strict=True)]
        for place, value in zip(out.places(), values, strict=True):
            self.memory[out.storage][place] = value

    def reduce(self, node, x):
        mask = int(node.attrs[0])
        kept = [d for d in range(len(x.sizes)) if not mask >> d & 1]
        values = {}
        for place, index in zip(x.places(), itertools.product(*map(range, x.sizes)), strict=True):
            values.setdefault(tuple(index[d] for d in kept), []).append(self.memory[x.storage][place])
        return [reduced(node.op, values[key]) for key in sorted(values)]

    def run_kernel(self, recipe):
        """One kernel, point by point; every store is seen by the points after it."""
        kernel, t = recipe.kernel, self.t
        shape = t.operands[recipe.iteration].sizes
        sizes = [prod(shape[d] for d in loop) for loop in recipe.loop_dims]
        everything = (*kernel.program, *kernel.epilogue)

        def place(access, index):
            operand, dims = recipe.accesses[access]
            x, letters = t.operands[operand], kernel.accesses[access].moves
            at = x.offset
            for i, d, letter, size in zip(index, dims, letters, sizes, strict=True):
                assert (letter == "0") == (d < 0) or size == 1
                assert letter != "c" or d < 0 or size == 1 or x.strides[d] == 1
                at += i * x.strides[d] if d >= 0 else 0
            return self.memory[x.storage], at

        def evaluate(values, numbers, index):
            for number in numbers:
                i = everything[number]
                if i.op == "load":
                    memory, at = place(i.attrs[0], index)
                    values[number] = memory[at]
                elif i.op == "scalar":
                    values[number] = t.scalars[recipe.scalars[i.attrs[0]]]
                elif i.op == "index":
                    values[number] = 0
                    for d in i.attrs:
                        values[number] = values[number] * sizes[d] + index[d]
                elif i.op == "reduce":
                    values.setdefault(number, []).append(values[i.args[0]])
                else:
                    values[number] = scalar_op(i.op, [values[a] for a in i.args])

        def store(stores, values, index):
            for s in stores:
                memory, at = place(s.access, index)
                memory[at] = values[s.value]

        kept = [range(n) if kind == "k" else range(1) for n, kind in zip(sizes, kernel.dims, strict=True)]
        inner = [range(1) if kind == "k" else range(n) for n, kind in zip(sizes, kernel.dims, strict=True)]
        points = list(itertools.product(*kept))
        for point in reversed(points) if self.backwards else points:
            values = {}
            for step in itertools.product(*inner):
                index = [a + b for a, b in zip(point, step, strict=True)]
                evaluate(values, range(len(kernel.program)), index)
                store(kernel.stores, values, index)
            if kernel.is_reduction:
                for number, i in enumerate(kernel.program):
                    if i.op == "reduce":
                        values[number] = reduced(i.attrs[0], values[number])
                evaluate(values, range(len(kernel.program), len(everything)), point)
                store(kernel.final_stores, values, point)


def run_both(t, live, fuse, backwards):
    """(memory after the ops one by one, memory after the plan): storages that can still be seen."""
    trace = t.build(live)
    one_by_one, planned = Machine(t), Machine(t, backwards)
    for node in trace.nodes:
        one_by_one.run_node(node)
    flow = analyse(trace)
    for step in Fuser(trace, flow, fuse).run():
        if isinstance(step, HostStep):
            planned.run_node(step.node)
        else:
            planned.run_kernel(assemble(trace, flow, step))
    seen = {x.storage for x in live} | {s for s, before in enumerate(t.from_before) if before}
    return [{s: m.memory[s] for s in sorted(seen)} for m in (one_by_one, planned)]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("fuse", [False, True])
@settings(max_examples=250, deadline=None)
@given(window=windows())
def test_kernels_compute_what_the_ops_do(fuse, backwards, window):
    expected, planned = run_both(*window, fuse, backwards)
    assert planned == expected


class TestOneMemoryWrittenTwice:
    """Windows in which a kernel could take a later value for an earlier one."""

    @pytest.fixture(params=[False, True], ids=["forwards", "backwards"])
    def check(self, request):
        def check(t, live):
            expected, planned = run_both(t, live, True, request.param)
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
