"""Dataflow: which version each read sees, what is visible afterwards, what is dead."""

from __future__ import annotations

from traces import TraceBuilder

from adaptive_eager.dataflow import analyse


def source_nodes(flow, node):
    """Nodes whose versions a node reads, None for memory."""
    return [v.node if v else None for (n, _), v in sorted(flow.sources.items()) if n == node]


def test_values_come_from_the_last_write_of_the_same_geometry():
    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    y = t.map("neg", x)
    t.map("add", y, x, out=y)
    z = t.map("mul", y, y)
    flow = analyse(t.build(live=[z]))
    assert source_nodes(flow, 0) == [None]
    assert source_nodes(flow, 1) == [0, None]
    assert source_nodes(flow, 2) == [1, 1]
    assert flow.versions[0, 0].readers == [1]
    assert flow.versions[0, 0].overwritten and not flow.versions[1, 0].overwritten


def test_another_geometry_is_read_through_memory():
    t = TraceBuilder()
    x = t.input("f32", ("N", "N"))
    y = t.map("neg", x)
    z = t.map("exp", y.t())
    trace = t.build(live=[z])
    flow = analyse(trace)
    assert source_nodes(flow, 1) == [None]
    assert flow.versions[0, 0].read_through_memory and flow.needed == [True, True]
    assert not flow.versions[0, 0].visible(trace)


def test_write_in_another_geometry_ends_forwarding():
    t = TraceBuilder()
    y = t.map("neg", t.input("f32", ("C", "N")))
    t.map("fill", 1.0, out=y.select(0, 2))
    z = t.map("exp", y)
    flow = analyse(t.build(live=[z]))
    assert source_nodes(flow, 2) == [None]
    assert flow.versions[0, 0].read_through_memory and flow.versions[1, 0].read_through_memory
    assert not flow.versions[0, 0].overwritten  # only a row of it
    assert flow.needed == [True, True, True]


def test_dead_values_are_not_needed():
    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    y = t.map("exp", x)
    t.map("log", y)
    t.reduce("sum", y)
    z = t.map("neg", x)
    flow = analyse(t.build(live=[z]))
    assert flow.needed == [False, False, False, True]


def test_what_a_needed_node_reads_is_needed():
    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    y = t.map("exp", x)
    z = t.host("mm", t.map("neg", y), shape=("B", "B"))
    trace = t.build(live=[z])
    assert analyse(trace).needed == [True, True, True]
    assert analyse(t.build(live=[])).needed == [False, False, False]


def test_visible_is_live_and_not_overwritten():
    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    t.map("add", x, 1.0, out=x)
    t.map("mul", x, 2.0, out=x)
    y = t.map("neg", x)
    trace = t.build(live=[])
    flow = analyse(trace)
    # The program holds x from before.
    assert [flow.versions[n, 0].visible(trace) for n in range(3)] == [False, True, False]
    assert flow.needed == [True, True, False]
    assert y.storage == 1


def test_overwritten_before_anyone_looks_is_dead():
    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    y = t.map("exp", x)
    t.map("copy", x, out=y)
    assert analyse(t.build(live=[y])).needed == [False, True]


def test_part_written_later_keeps_the_whole_alive():
    t = TraceBuilder()
    y = t.map("exp", t.input("f32", ("C", "N")))
    t.map("fill", 0.0, out=y.select(0, 0))
    trace = t.build(live=[y])
    flow = analyse(trace)
    assert flow.needed == [True, True]
    assert flow.versions[0, 0].visible(trace) and flow.versions[1, 0].visible(trace)


def test_read_of_a_part_needs_every_write_that_it_may_see():
    t = TraceBuilder()
    y = t.map("exp", t.input("f32", ("C", "N")))
    t.map("fill", 0.0, out=y.select(0, 0))
    z = t.map("neg", y.slice(0, 0, 3))
    assert analyse(t.build(live=[z])).needed == [True, True, True]


def test_only_the_last_version_is_read_through_memory():
    """A read of a view sees the last write of each geometry, and none that it replaced."""
    t = TraceBuilder()
    x = t.map("exp", t.input("f32", ("C", "N")))
    t.map("add", x, 1.0, out=x)
    z = t.map("neg", x.select(0, 0))
    flow = analyse(t.build(live=[z]))
    assert flow.needed == [True, True, True]
    assert flow.versions[1, 0].read_through_memory
    assert not flow.versions[0, 0].read_through_memory


def test_a_draw_that_nobody_looks_at_is_not_made():
    """Its stream was taken from the generator when it was recorded."""
    t = TraceBuilder()
    t.map("normal_", 1, 0, 0.0, 1.0, out=t.map("fill", 0.0, shape=("N",)))
    t.host("sort", t.input("f32", ("N",)))
    assert analyse(t.build(live=[])).needed == [False, False, False]


def test_a_gather_reads_all_of_its_table():
    """Also where its view of the table is just what was written last."""
    t = TraceBuilder()
    x, index = t.input("f32", ("B", "N")), t.input("i64", (1, 1))
    t.map("fill", 1.0, out=x.slice(0, 0, 1))
    t.map("fill", 2.0, out=x.slice(0, 1, 2))
    y = t.gather(x, (0, index))
    t.map("fill", 3.0, out=x.slice(0, 0, 1))
    trace = t.build(live=[y])
    flow = analyse(trace)
    assert trace.nodes[2].inputs[0].geometry not in (trace.nodes[0].outputs[0].geometry, index)
    assert source_nodes(flow, 2) == [None, None]
    assert flow.versions[0, 0].read_through_memory and flow.versions[1, 0].read_through_memory
    assert all(flow.needed)
