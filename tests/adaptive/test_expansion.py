"""Expansion: what a row program becomes, and what it leaves as it is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from random_windows import windows
from row_calls import batch_norm, layer_norm, softmax
from traces import TraceBuilder

from adaptive_eager.expansion import expand
from adaptive_eager.trace import FIRST_TEMPORARY, SIZE_ONE


def test_a_trace_without_row_programs_is_itself():
    t = TraceBuilder()
    t.reduce("sum", t.map("exp", t.input("f32", ("B", "N"))), [1])
    trace = t.build()
    assert expand(trace) is trace


def test_parts_are_of_the_op_that_was_recorded():
    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    y = t.map("exp", x)
    z = softmax(t, y, 1)
    t.host("mm", z)
    nodes = expand(t.build()).nodes
    assert [n.index for n in nodes] == list(range(len(nodes)))
    assert [n.recorded for n in nodes] == [0] + [1] * (len(nodes) - 2) + [2]
    assert nodes[-1].kind == "host" and {n.kind for n in nodes[1:-1]} == {"map", "reduction"}


def test_temporaries():
    """One a value, contiguous, alive only in the plan, of sizes taken from an operand."""
    t = TraceBuilder()
    x = t.input("f32", ("A", "B", "N"), order=(2, 1, 0))
    softmax(t, x, 1)
    recorded = t.build()
    trace = expand(recorded)
    made = trace.geometries[len(recorded.geometries) :]
    assert len(made) == len(trace.temporaries) and not any(trace.live[len(recorded.live) :])
    assert len({g.slot for g in trace.geometries}) == len(trace.live)
    for geometry, temporary in zip(made, trace.temporaries, strict=True):
        assert geometry.contiguous and geometry.dtype == temporary.dtype and temporary.like < FIRST_TEMPORARY
        assert temporary.keep in (0b111, 0b101)
        # A dim that is not kept has size one, and nothing else is said of a dim.
        assert list(geometry.codes) == [0 if temporary.keep >> d & 1 else SIZE_ONE for d in range(3)]


def test_half_types_are_computed_in_float32():
    t = TraceBuilder()
    y = softmax(t, t.input("bf16", ("B", "N")), 1)
    trace = expand(t.build(live=[y]))
    assert {n.compute for n in trace.nodes} == {"f32"} and {t.dtype for t in trace.temporaries} == {"f32"}
    assert trace.geometries[trace.nodes[-1].outputs[0].geometry].dtype == "bf16"


def test_equal_shapes_have_equal_numbers():
    """So that what follows a reduction joins its kernel: also where one is a result, and one a temporary."""
    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    layer_norm(t, x, 1)
    softmax(t, x, 1)
    trace = expand(t.build())
    reductions = [n for n in trace.nodes if n.kind == "reduction"]
    assert len({trace.geometries[n.outputs[0].geometry].shape for n in reductions}) == 1


def test_a_rounded_result_is_of_the_rows_shape_too():
    t = TraceBuilder()
    layer_norm(t, t.input("bf16", ("B", "N")), 1)
    trace = expand(t.build())
    shapes = {
        trace.geometries[n.outputs[0].geometry].shape for n in trace.nodes if n.kind == "reduction" or n.op == "copy"
    }
    assert len(shapes) == 1


def test_reducing_size_one_changes_no_shape():
    t = TraceBuilder()
    x = t.input("f32", ("B", 1))
    softmax(t, x, 1)
    trace = expand(t.build())
    assert {trace.geometries[o.geometry].shape for n in trace.nodes for o in n.outputs} == {0}


def test_what_is_written_besides_the_results():
    t = TraceBuilder()
    x, mean, variance = t.input("f32", ("B", "C")), t.input("f32", ("C",)), t.input("f32", ("C",))
    batch_norm(t, x, None, None, mean, variance)
    lerps = [n for n in expand(t.build()).nodes if n.op == "lerp"]
    # Each is read and written once, in one geometry.
    assert [t.operands[n.outputs[0].operand].storage for n in lerps] == [mean.storage, variance.storage]
    assert all(n.inputs[0].geometry == n.outputs[0].geometry for n in lerps)


def plainly(nodes, trace):
    """Nodes by what they say alone: operands by the order in which they appear."""
    seen: dict[tuple, int] = {}

    def named(operand):
        g = trace.geometries[operand.geometry]
        return seen.setdefault((g.slot, operand.geometry), len(seen)), g.dtype, g.contiguous, g.codes

    return [
        replace(
            n, index=0, recorded=0, origin="", inputs=tuple(map(named, n.inputs)), outputs=tuple(map(named, n.outputs)),
            scalars=tuple((bool(s.dims), s.dims) for s in n.scalars),
        )
        for n in nodes
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(windows())
def test_parts_depend_on_the_op_alone(window):
    """An op has the same parts by itself and in any window: why fused and unfused give the same bits."""
    t, live = window
    recorded = t.build(live)
    trace = expand(recorded)
    for k, node in enumerate(recorded.nodes):
        if node.kind != "row_program":
            continue
        alone = expand(replace(recorded, nodes=(node,)))
        here = [n for n in trace.nodes if n.recorded == k]
        assert plainly(here, trace) == plainly(alone.nodes, alone)
