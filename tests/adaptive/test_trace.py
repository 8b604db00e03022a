"""Traces: what is read from the extension's description, and what a trace does not say."""

from __future__ import annotations

from row_calls import softmax
from traces import TraceBuilder

from adaptive_eager.trace import CHAINED, RANK, SIZE_ONE, STRIDE_ONE, STRIDE_ZERO, Geometry, Operand, Scalar, read_trace


def geometry_of(tensor_of) -> Geometry:
    """The geometry of one operand: `tensor_of(builder)` makes it."""
    t = TraceBuilder()
    t.host("read", tensor_of(t))
    return t.build().geometries[0]


def test_reads_every_field():
    raw = {
        "nodes": [
            {
                "op": "clamp", "kind": "map", "args": ["x", "f", "-"], "inputs": [(0, 0)],
                "outputs": [(1, 1)], "scalars": [0], "attrs": [3, "floor"], "compute": "f32", "result": "f16",
                "part": 0,
            },
            {
                "op": "mm", "kind": "host", "args": [], "inputs": [(2, 1), (3, 0)], "outputs": [(4, 2)],
                "scalars": [], "attrs": [], "compute": "f32", "result": "f32",
                "part": 2,
            },
        ],
        "geometries": [(0, 0, "f32", True, b"\0\0"), (1, 0, "f16", False, b"\x41\x80"), (2, 1, "f32", True, b"")],
        "live": [True, False, True],
        "signature": (1, 2),
        "words": b"words",
    }  # fmt: skip
    trace = read_trace(raw)
    clamp, mm = trace.nodes
    assert (clamp.index, clamp.op, clamp.kind) == (0, "clamp", "map")
    assert clamp.args == ("x", "f", "-") and clamp.scalars == (Scalar(0),) and clamp.attrs == (3, "floor")
    assert clamp.inputs == (Operand(0, 0),) and clamp.outputs == (Operand(1, 1),)
    assert (clamp.compute, clamp.result) == ("f32", "f16")
    assert (clamp.recorded, mm.recorded) == (0, 1)
    assert mm.index == 1 and mm.inputs == (Operand(2, 1), Operand(3, 0))
    assert (clamp.part, mm.part) == (0, 2)
    assert clamp.is_compiled and not mm.is_compiled
    assert trace.geometries[1] == Geometry(1, 0, "f16", False, b"\x41\x80")
    assert [g.rank for g in trace.geometries] == [2, 2, 0]
    assert trace.live == (True, False, True) and trace.signature == (1, 2) and trace.words == b"words"


def test_kinds_that_are_compiled():
    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    t.map("neg", x)
    t.reduce("sum", x)
    t.host("sort", x)
    t.host("twice", out=x)
    softmax(t, x, 1)
    nodes = t.build().nodes
    assert [n.is_compiled for n in nodes] == [True, True, False, False, False]
    assert nodes[-1].kind == "row_program"  # its parts are compiled


def test_layout_of_contiguous_tensors_is_one():
    """Sizes of one do not matter where memory is walked straight through."""
    assert geometry_of(lambda t: t.input("f32", ("B", "N"))).layout == b""
    assert geometry_of(lambda t: t.input("f32", (1, "N"))).layout == b""
    assert geometry_of(lambda t: t.input("f32", ("B", 1)).t()).layout == b""
    assert geometry_of(lambda t: t.input("f32", ("B", "N")).t()).layout != b""


def test_codes():
    """The builder's geometries are those of the extension (native/torch/signature.h)."""
    assert geometry_of(lambda t: t.input("f32", ("B", 1, "N"))).codes == bytes([0, SIZE_ONE, 0])
    assert geometry_of(lambda t: t.input("f32", ("B", "N")).t()).codes == bytes([1 | STRIDE_ONE, 0 | CHAINED])
    last = geometry_of(lambda t: t.input("f32", ("B", "C", "H", "W"), order=(0, 2, 3, 1)))
    assert [c & RANK for c in last.codes] == [0, 3, 1, 2]
    assert [bool(c & CHAINED) for c in last.codes] == [True, False, True, True]
    assert [bool(c & STRIDE_ONE) for c in last.codes] == [False, True, False, False]
    assert geometry_of(lambda t: t.input("f32", ("N",)).expand("B", "N")).codes == bytes([STRIDE_ZERO, STRIDE_ONE])
    # Every other row: the rows do not follow each other.
    rows = geometry_of(lambda t: t.input("f32", ("C", "N")).slice(0, 0, 5, 2))
    assert rows.codes == bytes([0, 1 | STRIDE_ONE]) and not rows.contiguous


def test_shapes_and_slots_are_numbered():
    t = TraceBuilder()
    x, y = t.input("f32", ("N", "N")), t.input("f32", ("N",))
    t.map("add", x, y)
    t.map("mul", x.t(), x)
    trace = t.build()
    # Order of first use: x, y, the sum, x transposed, the product.
    assert [(g.slot, g.shape) for g in trace.geometries] == [(0, 0), (1, 1), (2, 0), (0, 0), (3, 0)]
    assert trace.nodes[1].inputs == (Operand(3, 3), Operand(4, 0))


def test_sizes_and_scalars_are_not_in_a_trace():
    def trace(b, n, scalar):
        t = TraceBuilder()
        x = t.input("f32", (b, n))
        return t.build(live=[t.host("mm", t.reduce("sum", t.map("mul", x, scalar), [1]), x.t())])

    assert trace(4, 6, 0.5) == trace(8, 10, 2.5)
    assert trace(4, 6, 0.5).words != trace(4, 6, 2).words  # another kind of scalar
    assert trace(4, 6, 0.5).words != trace(6, 6, 0.5).words  # two shapes are equal
    assert trace(4, 6, 0.5).words != trace(1, 6, 0.5).words  # a size of one
