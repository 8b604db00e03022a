"""Fusion: what shares a kernel, what never does, and in which order everything that touches the same memory runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from random_windows import windows
from traces import TraceBuilder

from adaptive_eager import params
from adaptive_eager.assemble import assemble
from adaptive_eager.dataflow import analyse
from adaptive_eager.expansion import expand
from adaptive_eager.fusion import Fuser, HostStep
from adaptive_eager.rematerialisation import loaded_versions

ROOT = Path(__file__).resolve().parents[2]


def steps_of(trace):
    """Steps as node numbers: a list for a kernel, a number for a host op."""
    steps = Fuser(trace, analyse(trace)).run()
    return [s.node.index if isinstance(s, HostStep) else [n.index for n in s.nodes()] for s in steps]


class TestMaps:
    def test_chain_is_one_kernel(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("mul", x, x)
        y = t.map("add", y, 1.5)
        y = t.map("tanh", y)
        assert steps_of(t.build(live=[y])) == [[0, 1, 2]]

    def test_kernels_of_one_op(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("tanh", t.map("mul", x, x))
        y = t.reduce("sum", y)
        with params.override(max_kernel_ops=1):
            assert steps_of(t.build(live=[y])) == [[0], [1], [2]]

    def test_dead_ops_are_not_run(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        t.map("exp", x)
        y = t.map("neg", x)
        t.host("sort", x)
        assert steps_of(t.build(live=[y])) == [[1]]

    def test_same_points_share_a_kernel_if_they_share_data(self):
        t = TraceBuilder()
        x, y = t.input("f32", ("B", "N")), t.input("f32", ("B", "N"))
        assert steps_of(t.build(live=[t.map("neg", x), t.map("exp", y), t.map("exp", x)])) == [[0, 2], [1]]

    def test_other_shapes_and_other_orders_do_not(self):
        t = TraceBuilder()
        x, y, z = t.input("f32", ("B", "N")), t.input("f32", ("N",)), t.input("f32", ("N", "B")).t()
        assert steps_of(t.build(live=[t.map("neg", x), t.map("neg", y), t.map("neg", z)])) == [[0], [1], [2]]

    def test_other_orders_of_the_same_points_share_a_kernel(self):
        """Points of a map may be walked in any order."""
        t = TraceBuilder()
        x = t.map("exp", t.input("f32", ("N", "B")).t())
        assert steps_of(t.build(live=[t.map("copy", x, out=t.empty("f32", ("B", "N")))])) == [[0, 1]]

    def test_broadcast_operand_joins(self):
        t = TraceBuilder()
        x, y = t.input("f32", ("B", "N")), t.input("f32", ("N",))
        z = t.map("add", x, y)
        assert steps_of(t.build(live=[t.map("exp", z)])) == [[0, 1]]

    def test_joins_the_kernel_it_shares_data_with(self):
        """Not simply the latest one that would do."""
        t = TraceBuilder()
        x, y, other = t.input("f32", ("B", "N")), t.input("f32", ("B", "N")), t.input("f32", ("M",))
        a = t.map("exp", x)
        h = t.host("mm", a, shape=("B", "N"))
        b = t.map("exp", h)
        c = t.map("neg", x)
        assert steps_of(t.build(live=[a, b, c, other, y])) == [[0, 3], 1, [2]]

    def test_passes_a_host_op_that_it_does_not_depend_on(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("exp", x)
        h = t.host("mm", x, shape=("B", "B"))
        z = t.map("neg", y)
        assert steps_of(t.build(live=[z, h])) == [[0, 2], 1]

    def test_host_results_come_first(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("exp", x)
        h = t.host("mm", y, shape=("B", "N"))
        z = t.map("neg", h)
        assert steps_of(t.build(live=[z])) == [[0], 1, [2]]


class TestParts:
    """Copies into parts of one tensor that are known not to overlap: a concatenation."""

    def cat(self, t, x, y, part=1):
        out = t.empty("f32", ("B", 8))
        t.map("copy", x, out=out.slice(1, 0, 4))
        t.map("copy", y, out=out.slice(1, 4, 8), part=part)
        return out

    def test_producers_write_into_their_parts(self):
        t = TraceBuilder()
        a, b = t.input("f32", ("B", 4)), t.input("f32", ("B", 4))
        x = t.map("add", a, b)
        y = t.map("sub", a, b)
        assert steps_of(t.build(live=[self.cat(t, x, y)])) == [[0, 1, 2, 3]]

    def test_parts_of_one_shape_share_a_kernel(self):
        t = TraceBuilder()
        assert steps_of(t.build(live=[self.cat(t, t.input("f32", ("B", 4)), t.input("f32", ("B", 4)))])) == [[0, 1]]

    def test_a_part_rather_joins_its_producer(self):
        t = TraceBuilder()
        y = t.map("exp", t.input("f32", ("B", 4)))
        x = t.map("exp", t.input("f32", ("B", 4)))
        assert steps_of(t.build(live=[self.cat(t, x, y)])) == [[0, 3], [1, 2]]

    def test_writes_that_may_overlap_keep_their_order(self):
        t = TraceBuilder()
        a, b = t.input("f32", ("B", 4)), t.input("f32", ("B", 4))
        x = t.map("add", a, b)
        y = t.map("sub", a, b)
        assert steps_of(t.build(live=[self.cat(t, x, y, part=0)])) == [[0, 1, 2], [3]]

    def test_earlier_writes_keep_their_order(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", 4))
        out = t.empty("f32", ("B", 8))
        t.map("copy", x, out=out.slice(1, 2, 6))
        t.map("copy", x, out=out.slice(1, 0, 4))
        t.map("copy", x, out=out.slice(1, 4, 8), part=1)
        assert steps_of(t.build(live=[out])) == [[0], [1, 2]]

    def test_readers_of_the_whole_come_after(self):
        t = TraceBuilder()
        x, y = t.input("f32", ("B", 4)), t.input("f32", ("B", 4))
        assert steps_of(t.build(live=[t.map("neg", self.cat(t, x, y))])) == [[0, 1], [2]]


class TestGathers:
    def test_neighbours_share_its_kernel(self):
        t = TraceBuilder()
        x, index, z = t.input("f32", ("A", "N")), t.input("i64", ("B", 1)), t.input("f32", ("B", "N"))
        y = t.map("exp", t.map("add", t.gather(x, (0, index)), z))
        assert steps_of(t.build(live=[y])) == [[0, 1, 2]]

    def test_an_index_that_is_computed_at_each_point(self):
        t = TraceBuilder()
        x, index = t.input("f32", ("A", "N")), t.input("i64", ("A", "B"))
        y = t.map("exp", t.gather(x, (1, t.map("add", index, 1))))
        assert steps_of(t.build(live=[y])) == [[0, 1, 2]]

    def test_it_is_reduced_where_it_is_made(self):
        t = TraceBuilder()
        x, index = t.input("f32", ("A", "N")), t.input("i64", ("B", 1))
        assert steps_of(t.build(live=[t.reduce("sum", t.gather(x, (0, index)), [1])])) == [[0, 1]]

    def test_not_of_kept_points(self):
        t = TraceBuilder()
        x, index = t.input("f32", ("B", "N")), t.reduce("argmax", t.input("f32", ("B", "N")), [1], keepdim=True)
        assert steps_of(t.build(live=[t.gather(x, (1, index))])) == [[0], [1]]


class TestMemory:
    def test_in_place_chain_is_one_kernel(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        t.map("add", x, 1.0, out=x)
        t.map("mul", x, 2.0, out=x)
        assert steps_of(t.build()) == [[0, 1]]

    def test_read_before_the_write_may_share_its_kernel(self):
        """Each point is read before it is written."""
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("exp", x)
        t.map("fill", 0.0, out=x)
        assert steps_of(t.build(live=[y])) == [[0, 1]]

    def test_read_of_a_view_is_ordered_and_never_fused(self):
        t = TraceBuilder()
        x = t.map("exp", t.input("f32", ("N", "N")))
        y = t.map("neg", x.t())
        z = t.map("add", y, x)
        steps = steps_of(t.build(live=[z]))
        assert steps[0] == [0] and 1 in steps[1]

    def test_write_of_a_view_is_ordered_and_never_fused(self):
        t = TraceBuilder()
        x = t.map("exp", t.input("f32", ("C", "N")))
        y = t.map("neg", x)
        t.map("add", x.select(0, 1), 1.0, out=x.select(0, 1))
        z = t.map("abs", x)
        assert steps_of(t.build(live=[y, z])) == [[0, 1], [2], [3]]

    def test_write_after_a_read_of_a_view(self):
        t = TraceBuilder()
        x = t.input("f32", ("N", "N"))
        y = t.map("neg", x.t())
        t.map("fill", 0.0, out=x)
        assert steps_of(t.build(live=[y])) == [[0], [1]]

    def test_writes_of_two_views_keep_their_order(self):
        t = TraceBuilder()
        x = t.input("f32", ("N", "N"))
        t.map("fill", 1.0, out=x.select(0, 1))
        t.map("fill", 2.0, out=x.select(1, 1))
        t.map("fill", 3.0, out=x.select(0, 2))
        assert steps_of(t.build()) == [[0], [1], [2]]

    def test_host_op_reads_before_a_later_write(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("exp", x)
        h = t.host("mm", x, shape=("B", "B"))
        t.map("add", x, 1.0, out=x)
        assert steps_of(t.build(live=[y, h])) == [[0], 1, [2]]

    def test_host_op_in_place(self):
        t = TraceBuilder()
        x = t.map("exp", t.input("f32", ("B", "N")))
        t.host("index_put_", out=x)
        y = t.map("neg", x)
        assert steps_of(t.build(live=[y])) == [[0], 1, [2]]

    def test_a_dropout_mask_is_computed_with_what_it_masks(self):
        t = TraceBuilder()
        y = t.map("exp", t.input("f32", ("B", "N")))
        mask = t.map("bernoulli", y, 1, 0, 0.9, dtype="f64")
        z = t.map("mul", t.map("mul", y, mask), 1.1)
        assert steps_of(t.build(live=[mask, z])) == [[0, 1, 2, 3]]

    def test_random_ops_need_no_order(self):
        """Each has its own stream: the second joins the kernel of its reader, over one that comes between."""
        t = TraceBuilder()
        a = t.map("normal_", 1, 0, 0.0, 1.0, out=t.map("fill", 0.0, shape=("A",)))
        b = t.map("normal_", 1, 1, 0.0, 1.0, out=t.map("fill", 0.0, shape=("B",)))
        c = t.map("neg", a)
        assert steps_of(t.build(live=[b, c])) == [[1, 4], [3]]

    def test_a_table_is_never_written_in_the_kernel_of_its_gather(self):
        """Not even where all points read the row that they write."""
        t = TraceBuilder()
        x, index = t.input("f32", ("B", "N")), t.input("i64", (1, 1))
        row = x.slice(0, 0, 1)
        t.map("add", row, 1.0, out=row)
        y = t.gather(x, (0, index))
        t.map("mul", row, y, out=row)
        assert steps_of(t.build(live=[y])) == [[0], [1], [2]]

    def test_reduction_into_what_the_points_read(self):
        """A point may read, along another dim, what an earlier kept point would have overwritten."""
        t = TraceBuilder()
        x, g = t.input("f32", ("N", "N")), t.input("f32", ("N",))
        y = t.map("add", x, g)
        t.reduce("sum", x, [1], out=g)
        assert steps_of(t.build(live=[y])) == [[0], [1]]


class TestReductions:
    def test_takes_its_producers_and_followers(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("exp", x)
        s = t.reduce("sum", y, [1])
        z = t.map("log", s)
        assert steps_of(t.build(live=[z])) == [[0, 1, 2]]

    def test_points_wait_for_the_result(self):
        """What needs the reduced value at every point is another kernel."""
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        y = t.map("exp", x)
        s = t.reduce("sum", y, [1], keepdim=True)
        z = t.map("div", y, s, attrs=["none"])
        assert steps_of(t.build(live=[z])) == [[0, 1], [2]]

    def test_sisters_over_the_same_input(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        a, b = t.reduce("sum", x, [1]), t.reduce("amax", x, [1])
        assert steps_of(t.build(live=[t.map("div", a, b, attrs=["none"])])) == [[0, 1, 2]]

    def test_sisters_that_keep_the_dims_and_that_do_not(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        s, m = t.reduce("sum", x, [1]), t.reduce("amax", x, [1], keepdim=True)
        results = [t.map("exp", s), t.map("exp", m)]
        assert steps_of(t.build(live=results)) == [[0, 1, 2, 3]]

    def test_other_dims_are_other_kernels(self):
        t = TraceBuilder()
        x = t.input("f32", ("N", "N"))
        assert steps_of(t.build(live=[t.reduce("sum", x, [1]), t.reduce("sum", x, [0])])) == [[0], [1]]

    def test_finals_of_another_shape_wait(self):
        t = TraceBuilder()
        x, other = t.input("f32", ("B", "N")), t.input("f32", ("C", "B"))
        s = t.reduce("sum", x, [1])
        assert steps_of(t.build(live=[t.map("add", other, s)])) == [[0], [1]]

    def test_finals_over_a_number(self):
        t = TraceBuilder()
        x, count = t.input("f32", ("B", "N")), t.input("f32", ())
        s = t.reduce("sum", x, [1])
        assert steps_of(t.build(live=[t.map("div", s, count, attrs=["none"])])) == [[0, 1]]

    def test_size_one_result_of_the_same_shape_is_not_a_point(self):
        """Reducing dims of size one gives the same shape; its followers still come after it."""
        t = TraceBuilder()
        x = t.input("f32", ("B", 1))
        s = t.reduce("sum", x, [1], keepdim=True)
        z = t.map("exp", s)
        trace = t.build(live=[z])
        roles = Fuser(trace, analyse(trace))
        roles.run()
        assert roles.role[1] == "final" or roles.position[1] > roles.position[0]

    def test_points_that_cannot_follow_stay_away(self):
        """The whole is summed as one loop; an operand that is broadcast would split it."""
        t = TraceBuilder()
        x, row = t.input("f32", ("B", "N")), t.input("f32", ("N",))
        s = t.reduce("sum", x)
        y = t.map("add", x, row)
        assert steps_of(t.build(live=[s, y])) == [[0], [1]]

    def test_cannot_join_points_that_cannot_follow(self):
        t = TraceBuilder()
        x, row = t.input("f32", ("B", "N")), t.input("f32", ("N",))
        y = t.map("add", x, row)
        assert steps_of(t.build(live=[y, t.reduce("sum", y)])) == [[0], [1]]
        assert steps_of(t.build(live=[y])) == [[0]]


class TestLimits:
    def chain(self, n, op="add", scalars=(1.0,), live=()):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        for _ in range(n):
            x = t.map(op, x, *scalars)
        return t.build(live=[x])

    def test_max_kernel_ops(self):
        with params.override(max_kernel_ops=4):
            assert steps_of(self.chain(10)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_max_kernel_accesses(self):
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        made = [t.map("add", x, t.input("f32", ("B", "N"))) for _ in range(6)]
        with params.override(max_kernel_accesses=5):
            assert steps_of(t.build(live=made)) == [[0, 1], [2, 3], [4, 5]]

    @settings(max_examples=60, deadline=None)
    @given(windows())
    def test_limits_hold(self, window):
        t, live = window
        trace = expand(t.build(live))
        flow = analyse(trace)
        with params.override(max_kernel_ops=3, max_kernel_accesses=5):
            steps = Fuser(trace, flow).run()
            loaded = loaded_versions(flow, steps)
            for step in steps:
                if isinstance(step, HostStep):
                    continue
                assert len(step.nodes()) <= 3
                assert len(step.nodes()) == 1 or len(assemble(trace, flow, step, loaded).accesses) <= 5

    def test_values_that_stay_in_registers_are_no_accesses(self):
        """A chain reads one tensor and stores one, however long it is."""
        assert len(steps_of(self.chain(60))) == 1

    @pytest.mark.parametrize("accesses", [24, 64])
    def test_groups_fit_into_a_launch(self, accesses):
        """A launch has a fixed room for scalars (native/torch/launch.h)."""
        room = int(re.search(r"kMaxScalars = (\d+)", (ROOT / "native/torch/launch.h").read_text()).group(1))
        trace = self.chain(64, "elu", (1.0, 1.0, 1.0))
        with params.override(max_kernel_accesses=accesses):
            for group in Fuser(trace, analyse(trace)).run():
                assert sum(len(n.scalars) for n in group.nodes()) <= room


def conflict(trace, a, b):
    """(whether two nodes must keep their order because of memory, whether they may share a kernel)."""
    geometries = trace.geometries
    pairs = [(p, q) for p in a.outputs for q in (*b.inputs, *b.outputs)] + [(p, q) for p in a.inputs for q in b.outputs]
    meet = [(p, q) for p, q in pairs if geometries[p.geometry].slot == geometries[q.geometry].slot]
    return bool(meet), all(p.geometry == q.geometry for p, q in meet)


@settings(max_examples=300, deadline=None)
@given(windows())
def test_order_of_memory_and_stored_values(window):
    t, live = window
    trace = expand(t.build(live))
    flow = analyse(trace)
    fuser = Fuser(trace, flow)
    steps = fuser.run()
    # Every needed node is in one step, in program order within a kernel's points and finals; no other node is in any.
    placed = [n.index for s in steps for n in ([s.node] if isinstance(s, HostStep) else s.nodes())]
    assert sorted(placed) == [n.index for n in trace.nodes if flow.needed[n.index]]
    for step in steps:
        if not isinstance(step, HostStep):
            for part in (step.points, step.finals):
                assert [n.index for n in part] == sorted(n.index for n in part)
    # Memory: program order.
    at = fuser.position
    needed = [n for n in trace.nodes if flow.needed[n.index]]
    for k, later in enumerate(needed):
        for earlier in needed[:k]:
            ordered, may_share = conflict(trace, earlier, later)
            if ordered:
                assert at[earlier.index] <= at[later.index]
            if ordered and at[earlier.index] == at[later.index]:
                assert may_share
    # Every read finds its value.
    geometry_of = {o.operand: o.geometry for n in trace.nodes for o in (*n.inputs, *n.outputs)}
    stored = set()  # (step, geometry)
    loaded = loaded_versions(flow, steps)
    for k, step in enumerate(steps):
        if isinstance(step, HostStep):
            stored |= {(k, o.geometry) for o in step.node.outputs}
            continue
        recipe = assemble(trace, flow, step, loaded)
        kernel = recipe.kernel
        stored |= {(k, geometry_of[recipe.accesses[s.access][0]]) for s in (*kernel.stores, *kernel.final_stores)}

    def is_stored(version):
        return (at[version.node], version.geometry) in stored

    for node in needed:
        for k in range(len(node.inputs)):
            source = flow.sources[node.index, k]
            if source is not None:
                assert at[source.node] == at[node.index] or (is_stored(source) and at[source.node] < at[node.index])
            else:
                slot = trace.geometries[node.inputs[k].geometry].slot
                seen = {}  # the last write of each geometry
                for version in flow.versions.values():
                    if version.slot == slot and version.node < node.index and flow.needed[version.node]:
                        seen[version.geometry] = version
                assert all(is_stored(v) and at[v.node] < at[node.index] for v in seen.values())
    for version in flow.versions.values():
        if version.visible(trace):
            assert is_stored(version)


@settings(max_examples=200, deadline=None)
@given(windows())
def test_reductions_walk_as_they_do_alone(window):
    t, live = window
    trace = expand(t.build(live))
    flow = analyse(trace)

    def orders():
        found = {}
        steps = Fuser(trace, flow).run()
        loaded = loaded_versions(flow, steps)
        for step in steps:
            if isinstance(step, HostStep) or not step.is_reduction:
                continue
            recipe = assemble(trace, flow, step, loaded)
            loops = [d for d, kind in zip(recipe.loop_dims, recipe.kernel.dims, strict=True) if kind == "r"]
            found |= {n.index: (recipe.kind, loops) for n in step.points if n.kind == "reduction"}
        return found

    fused = orders()
    with params.override(max_kernel_ops=1):
        assert orders() == fused


def layouts(t):
    """Full tensors of many layouts, of rank one to four."""
    return {
        "row": t.input("f32", ("N",)),
        "contiguous": t.input("f32", ("A", "B", "C")),
        "transposed": t.input("f32", ("C", "B", "A"), None).permute(2, 1, 0),
        "middle first": t.input("f32", ("A", "B", "C"), (1, 0, 2)),
        "channels last": t.input("f32", ("A", "B", "H", "W"), (0, 2, 3, 1)),
        "size one": t.input("f32", ("A", 1, "C")),
        "size one, transposed": t.input("f32", ("C", 1, "A")).permute(2, 1, 0),
        "every other": t.input("f32", ("A", 6, "C")).slice(1, 0, 6, 2),
        "every other column": t.input("f32", ("A", "B", 6)).slice(2, 0, 6, 2),
        "rows expanded": t.input("f32", ("C",)).expand("A", "B", "C"),
        "columns expanded": t.input("f32", ("A", 1)).expand("A", "C"),
    }


def reduced_loops(trace, node):
    """(kind, reduced loop dims) of the kernel that a reduction is in, and the nodes of that kernel."""
    flow = analyse(trace)
    steps = Fuser(trace, flow).run()
    loaded = loaded_versions(flow, steps)
    for step in steps:
        if not isinstance(step, HostStep) and any(n.index == node for n in step.nodes()):
            recipe = assemble(trace, flow, step, loaded)
            loops = [d for d, kind in zip(recipe.loop_dims, recipe.kernel.dims, strict=True) if kind == "r"]
            return (recipe.kind, loops), [n.index for n in step.nodes()]
    raise AssertionError("not run")


@pytest.mark.parametrize("op", ["sum", "argmax"])
@pytest.mark.parametrize("name", layouts(TraceBuilder()))
def test_order_of_a_reduction_is_its_inputs_alone(name, op):
    """Alone, with a producer, with operands that are broadcast, with followers and sisters: the same order."""
    rank = len(layouts(TraceBuilder())[name].sizes)
    choices = [None, *([d] for d in range(rank))]
    if op == "sum" and rank > 2:
        choices += [[d for d in range(rank) if d != e] for e in range(rank)]
    fused = 0
    for dims in choices:
        t = TraceBuilder()
        x = layouts(t)[name]
        y = t.map("exp", x)  # the producer's result: x's layout where that has no gaps
        t.nodes.clear()
        alone, _ = reduced_loops(_reduction_alone(y, op, dims), 0)
        for operand in (None, y.sizes[-1:], (1,) * rank, y.sizes[:1] + (1,) * (rank - 1)):
            t = TraceBuilder()
            x = layouts(t)[name]
            y = t.map("mul", x, x if operand is None else t.input("f32", operand))
            s = t.reduce(op, y, dims)
            after = t.map("neg", s)
            sister = t.reduce("amax", y, dims)
            again = t.map("abs", y)
            order, group = reduced_loops(t.build(live=[after, sister, again]), 1)
            assert order == alone, (dims, operand)
            fused += len(group) > 1
    assert fused


def _reduction_alone(like, op, dims):
    t = TraceBuilder()
    order = sorted(range(len(like.sizes)), key=lambda d: -like.strides[d])
    t.reduce(op, t.input("f32", like.sizes, order), dims)
    return t.build()
