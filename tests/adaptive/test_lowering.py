"""Lowering: trace nodes as instructions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from traces import TraceBuilder

from adaptive_eager.lowering import REDUCTION_OPS, Lowering


def lines(instructions):
    """op(args)[attrs] compute->dtype, one a line."""
    return [
        f"{i.op}({' '.join(map(str, i.args))}){list(i.attrs)} {i.compute}->{i.dtype}".replace("[]", "")
        for i in instructions
    ]


def node_of(record):
    t = TraceBuilder()
    out = record(t)
    trace = t.build(live=[out])
    return trace.nodes[-1], trace.geometries[trace.nodes[-1].outputs[0].geometry].dtype


def lower_map(record):
    """Instructions of a node whose operands are loaded from accesses 0, 1, ..."""
    node, stored = node_of(record)
    lowering = Lowering()
    operands = [lowering.load(k, "f32", node.index) for k in range(len(node.inputs))]
    (value,) = lowering.map(node, operands, list(range(len(node.scalars))), [stored])
    assert value == len(lowering.program) - 1
    return lines(lowering.program[len(operands) :])


def lower_reduction(record):
    """(program after the load, epilogue) of one reduction."""
    node, stored = node_of(record)
    lowering = Lowering()
    lowering.begin_reduction(node, lowering.load(0, "f32", node.index), list(range(len(node.scalars))))
    lowering.begin_epilogue()
    lowering.finish_reduction(node)
    (value,) = lowering.results_of(node, [stored])
    # Values are numbered through, whatever part they are in.
    assert value == len(lowering.program) + len(lowering.epilogue) - 1
    return lines(lowering.program[1:]), lines(lowering.epilogue)


def matrix(t, dtype="f32"):
    return t.input(dtype, ("B", "N"))


class TestMaps:
    def test_operands_scalars_and_absent_ones_in_schema_order(self):
        assert lower_map(lambda t: t.map("clamp", matrix(t), None, 2.0)) == [
            "scalar()[0, 'f'] f64->f64",
            "clamp(0 -1 1) f32->f32",
        ]
        assert lower_map(lambda t: t.map("rsub", 2, matrix(t), 1.0)) == [
            "scalar()[0, 'i'] i64->i64",
            "scalar()[1, 'f'] f64->f64",
            "rsub(1 0 2) f32->f32",
        ]

    def test_structural_arguments(self):
        assert lower_map(lambda t: t.map("gelu", matrix(t), attrs=["tanh"])) == ["gelu(0)['tanh'] f32->f32"]
        assert lower_map(lambda t: t.map("div", matrix(t), matrix(t), attrs=["floor"])) == [
            "div(0 1)['floor'] f32->f32"
        ]

    def test_division_without_a_mode_is_division(self):
        plain = lower_map(lambda t: t.map("div", matrix(t), matrix(t)))
        assert lower_map(lambda t: t.map("div", matrix(t), matrix(t), attrs=["none"])) == plain

    def test_result_dtype(self):
        assert lower_map(lambda t: t.map("gt", matrix(t), matrix(t))) == ["gt(0 1) f32->bool"]

    def test_rounded_to_the_op_first_and_then_to_the_memory(self):
        """As torch does in place: f16 += f32 is computed and rounded to f32, then to f16."""
        assert lower_map(lambda t: t.map("add", matrix(t, "f16"), matrix(t), out=matrix(t, "f16"), dtype="f32")) == [
            "add(0 1) f32->f32",
            "copy(2) f16->f16",
        ]

    def test_a_scalar_of_two_uses_is_one_value(self):
        add, stored = node_of(lambda t: t.map("add", matrix(t), 1.0))
        mul, _ = node_of(lambda t: t.map("mul", matrix(t), 1.0))
        lowering = Lowering()
        x = lowering.load(0, "f32", 0)
        lowering.map(add, [x], [0], [stored])
        lowering.map(mul, [x], [0], [stored])
        assert [i.op for i in lowering.program] == ["load", "scalar", "add", "mul"]

    def test_same_ops_on_same_values_are_computed_once(self):
        add, stored = node_of(lambda t: t.map("add", matrix(t), 1.0))
        lowering = Lowering()
        x, y = lowering.load(0, "f32", 0), lowering.load(1, "f32", 0)
        first = lowering.map(add, [x], [0], [stored])
        assert lowering.map(add, [x], [0], [stored]) == first
        # Another operand, another scalar, another dtype, other structural arguments: another value.
        assert lowering.map(add, [y], [0], [stored]) != first
        assert lowering.map(add, [x], [1], [stored]) != first
        assert lowering.map(replace(add, compute="f64"), [x], [0], [stored]) != first
        assert lowering.map(replace(add, attrs=("tanh",)), [x], [0], [stored]) != first

    def test_constants(self):
        add, stored = node_of(lambda t: t.map("add", matrix(t), 1.0))
        values = {}
        lowering = Lowering()
        x = lowering.load(0, "f32", 0)
        for constant in (1e-7, 0.0, -0.0, 1e-7):
            node = replace(add, args=("x", constant), scalars=())
            values.setdefault(constant.hex(), set()).update(lowering.map(node, [x], [], [stored]))
        assert lines(lowering.program)[1:3] == [
            "constant()['0x1.ad7f29abcaf48p-24'] f64->f64",
            "add(0 1) f32->f32",
        ]
        assert [len(v) for v in values.values()] == [1, 1, 1] and len(set.union(*values.values())) == 3


class TestReductions:
    @pytest.mark.parametrize(
        ("op", "dtype", "line"),
        [
            ("sum", "f32", "reduce(0)['sum'] f32->f32"),
            ("sum", "bf16", "reduce(0)['sum'] f32->bf16"),
            ("sum", "i32", "reduce(0)['sum'] i64->i64"),
            ("prod", "f64", "reduce(0)['prod'] f64->f64"),
            ("amax", "f16", "reduce(0)['amax'] f16->f16"),
            ("max", "f32", "reduce(0)['amax'] f32->f32"),
            ("min", "i32", "reduce(0)['amin'] i32->i32"),
            ("any", "f32", "reduce(0)['any'] bool->bool"),
            ("all", "bool", "reduce(0)['all'] bool->bool"),
            ("argmax", "f32", "reduce(0)['argmax'] f32->i64"),
            ("argmin", "i32", "reduce(0)['argmin'] i32->i64"),
            ("nansum", "i32", "reduce(0)['sum'] i64->i64"),
        ],
    )
    def test_plain(self, op, dtype, line):
        assert lower_reduction(lambda t: t.reduce(op, matrix(t, dtype), [1])) == ([line], [])

    def test_nan_counts_as_nothing_in_nansum(self):
        assert lower_reduction(lambda t: t.reduce("nansum", matrix(t, "bf16"), [1])) == (
            [
                "constant()['0x0.0p+0'] f64->f64", "isnan(0) f32->bool", "where(2 1 0) f32->f32",
                "reduce(3)['sum'] f32->bf16",
            ],
            [],
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("op", "result", "program", "epilogue"),
        [
            ("max", "i64", ["reduce(0)['argmax'] f32->i64"], ["extreme(1) f32->f32"]),
            ("min", "i64", ["reduce(0)['argmin'] f32->i64"], ["extreme(1) f32->f32"]),
            ("aminmax", "f32", ["reduce(0)['amin'] f32->f32", "reduce(0)['amax'] f32->f32"], []),
        ],
    )
    def test_two_results(self, op, result, program, epilogue):
        """An extremum and its index are one reduction."""
        node, stored = node_of(lambda t: t.reduce("max", matrix(t), [1]))
        node = replace(node, op=op, outputs=node.outputs * 2)
        lowering = Lowering()
        lowering.begin_reduction(node, lowering.load(0, "f32", 0), [])
        lowering.begin_epilogue()
        lowering.finish_reduction(node)
        assert len(set(lowering.results_of(node, [stored, result]))) == 2
        assert (lines(lowering.program[1:]), lines(lowering.epilogue)) == (program, epilogue)

    def test_a_norm_of_one_point_takes_no_powers(self):
        for ord, kind in (("2", "amax"), (3.0, "amax"), ("-inf", "amin"), ("1", "sum")):
            node, stored = node_of(lambda t, ord=ord: t.reduce("linalg_vector_norm", matrix(t), [1], ord=ord))
            lowering = Lowering()
            lowering.begin_reduction(node, lowering.load(0, "f32", 0), [0], one_point=True)
            lowering.begin_epilogue()
            lowering.finish_reduction(node, one_point=True)
            lowering.results_of(node, [stored])
            assert lines(lowering.program)[1:] == ["abs(0) f32->f32", f"reduce(1)['{kind}'] f32->f32"]
            assert not lowering.epilogue

    def test_mean_is_divided_once_in_the_accumulators_dtype(self):
        assert lower_reduction(lambda t: t.reduce("mean", matrix(t, "bf16"), [1])) == (
            ["reduce(0)['sum'] f32->f32"],
            ["scalar()[0, 'i'] i64->i64", "div(1 2) f32->bf16"],
        )

    @pytest.mark.parametrize(
        ("ord", "program", "epilogue"),
        [
            ("0", ["copy(0) bool->bool", "reduce(1)['sum'] f32->f16"], []),
            ("1", ["abs(0) f32->f32", "reduce(1)['sum'] f32->f16"], []),
            ("inf", ["abs(0) f32->f32", "reduce(1)['amax'] f32->f16"], []),
            ("-inf", ["abs(0) f32->f32", "reduce(1)['amin'] f32->f16"], []),
            (
                "2",
                ["copy(0) f32->f32", "mul(1 1) f32->f32", "reduce(2)['sum'] f32->f32"],
                ["sqrt(3) f32->f16"],
            ),
            (
                3.0,
                [
                    "abs(0) f32->f32", "scalar()[0, 'f'] f64->f64", "pow(1 2) f32->f32", "reduce(3)['sum'] f32->f32",
                ],
                ["scalar()[0, 'f'] f64->f64", "reciprocal(5) f32->f32", "pow(4 6) f32->f16"],
            ),
        ],
    )  # fmt: skip
    def test_norms(self, ord, program, epilogue):
        """In the accumulator's dtype throughout, and rounded once."""
        record = lambda t: t.reduce("linalg_vector_norm", matrix(t, "f16"), [1], ord=ord)  # noqa: E731
        assert lower_reduction(record) == (program, epilogue)

    def test_result_stored_in_another_dtype(self):
        record = lambda t: t.reduce("sum", matrix(t), [1], out=t.input("f64", ("B",)))  # noqa: E731
        assert lower_reduction(record) == (["reduce(0)['sum'] f32->f32"], ["copy(1) f64->f64"])

    def test_every_reduction_op_is_lowered(self):
        for op in set(REDUCTION_OPS) - {"aminmax"}:
            program, _ = lower_reduction(lambda t, op=op: t.reduce(op, matrix(t), [1]))
            assert program[-1].startswith("reduce(")


def test_a_scalar_of_the_points_is_another_value_in_the_epilogue():
    """The epilogue runs outside the loop over the points."""
    t = TraceBuilder()
    t.reduce("mean", t.map("mul", matrix(t), 3), [1])
    mul, mean = t.build().nodes
    lowering = Lowering()
    (x,) = lowering.map(mul, [lowering.load(0, "f32", 0)], [0], ["f32"])
    lowering.begin_reduction(mean, x, [0])
    lowering.begin_epilogue()
    lowering.finish_reduction(mean)
    assert lines(lowering.program) == [
        "load()[0] f32->f32", "scalar()[0, 'i'] i64->i64", "mul(0 1) f32->f32", "reduce(2)['sum'] f32->f32",
    ]  # fmt: skip
    assert lines(lowering.epilogue) == ["scalar()[0, 'i'] i64->i64", "div(3 4) f32->f32"]


def test_values_lead_back_to_nodes():
    t = TraceBuilder()
    t.reduce("mean", t.map("exp", matrix(t)), [1])
    exp, mean = t.build().nodes
    lowering = Lowering()
    lowering.begin_reduction(mean, lowering.map(exp, [lowering.load(0, "f32", 0)], [], ["f32"])[0], [0])
    lowering.begin_epilogue()
    lowering.finish_reduction(mean)
    assert lowering.nodes == [0, 0, 1, 1, 1]
    assert [i.ordinal for i in (*lowering.program, *lowering.epilogue)] == [0, 1, 2, 3, 4]
