"""Short rows: values, the fixed order of a row, and what a kernel may do at its points and once a row."""

from __future__ import annotations

import pytest
import torch
from kernel_harness import DTYPES, runnable_targets, runner

from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.reduction_parts import SHORT
from adaptive_eager.compiler.short_reduction import GROUP

by_target = pytest.mark.parametrize("target", runnable_targets(), ids=lambda t: f"{t.name}-{t.cpu}")
ROWS = (1, 2, GROUP - 1, GROUP, 5 * GROUP + 3)
LENGTHS = (1, 2, 3, 7, 8, 9, 16, 17, 33, SHORT)


def load(access, dtype="f32"):
    return Instr("load", (), dtype, dtype, (access,))


def kernel_of(kind, compute="f32", result="f32", moves="sc"):
    program = (load(0, compute), Instr("reduce", (0,), compute, result, (kind,)))
    dims = "k" * (len(moves) - 1) + "r"
    out = Access(result, "s" * (len(moves) - 1) + "0")
    return Kernel(dims, (Access(compute, moves), out), program, (), (), (Store(1, 1),))


def from_first_to_last(x):
    """The sum of each row, added one element after the other."""
    total = torch.zeros(x.shape[:-1], dtype=x.dtype)
    for k in range(x.shape[-1]):
        total += x[..., k]
    return total[..., None]


@by_target
@pytest.mark.parametrize("length", LENGTHS)
def test_rows_are_added_from_the_first_to_the_last(length, target):
    """Whatever the number of rows, wherever the items are split, and by whom they are run."""
    for rows in ROWS:
        x = torch.randn(rows, length)
        want = from_first_to_last(x)
        for run in ({}, {"splits": (1, 2, 7, 40)}, {"phases": True, "splits": (3,)}):
            out = torch.full((rows, 1), 9.0)
            runner(kernel_of("sum"), target).run([x, out], x.shape, **run)
            assert torch.equal(out, want)


@by_target
def test_longer_rows_are_added_otherwise(target):
    x = torch.randn(40, SHORT + 1)
    out = torch.empty(40, 1)
    runner(kernel_of("sum"), target).run([x, out], x.shape)
    torch.testing.assert_close(out, x.sum(1, keepdim=True), rtol=1e-5, atol=1e-5)
    assert not torch.equal(out, from_first_to_last(x))


@by_target
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i64", "i32", "i8", "u8", "bool"])
@pytest.mark.parametrize("kind", ["amax", "amin", "argmax", "argmin", "any"])
def test_every_dtype(kind, dtype, target):
    x = (torch.randn(2 * GROUP + 5, 13) * 5).to(DTYPES[dtype])
    compute, result = ("bool", "bool") if kind == "any" else (dtype, "i64" if kind.startswith("arg") else dtype)
    program = (load(0, dtype), Instr("reduce", (0,), compute, result, (kind,)))
    accesses = (Access(dtype, "sc"), Access(result, "s0"))
    out = torch.empty(len(x), 1, dtype=DTYPES[result])
    runner(Kernel("kr", accesses, program, (), (), (Store(1, 1),)), target).run([x, out], x.shape)
    wide = x.to(torch.uint8) if dtype == "bool" and kind.startswith("arg") else x
    assert torch.equal(out, getattr(torch, kind)(wide, 1, keepdim=True))


@by_target
def test_nan_ties_and_signed_zeros(target):
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1, nan, 3, nan], [nan] * 4, [-inf] * 4, [0.0, -0.0, 0.0, -0.0], [-0.0, 0.0, 2, 2]]).repeat(9, 1)
    program = (load(0), Instr("reduce", (0,), "f32", "i64", ("argmax",)))
    epilogue = (Instr("extreme", (1,), "f32", "f32"),)
    accesses = (Access("f32", "sc"), Access("i64", "s0"), Access("f32", "s0"))
    kernel = Kernel("kr", accesses, program, (), epilogue, (Store(1, 1), Store(2, 2)))
    index, value = torch.empty(len(x), 1, dtype=torch.int64), torch.empty(len(x), 1)
    runner(kernel, target).run([x, index, value], x.shape)
    want = x.max(1, keepdim=True)
    assert torch.equal(index, want.indices)
    assert torch.equal(value.view(torch.int32), x.gather(1, index).view(torch.int32))


@by_target
@pytest.mark.parametrize("layout", ["kept dims", "strided rows", "strided columns", "repeated", "columns of one row"])
def test_layouts(layout, target):
    x, moves = {
        "kept dims": (torch.randn(5, 40, 9)[:, 3:], "ssc"),
        "strided rows": (torch.randn(70, 20)[::2, :9], "sc"),
        "strided columns": (torch.randn(70, 20)[:, ::2], "ss"),
        "repeated": (torch.randn(70, 1).expand(70, 9), "s0"),
        "columns of one row": (torch.randn(9).expand(70, 9), "0c"),
    }[layout]
    out = torch.empty(*x.shape[:-1], 1)
    for splits in ((), (1, 11, 50)):
        runner(kernel_of("sum", moves=moves), target).run([x, out.fill_(9)], x.shape, splits=splits)
        assert torch.equal(out, from_first_to_last(x))


@by_target
def test_points_are_stored_in_place_and_rows_are_updated(target):
    """y *= w * m at every point, w for a column and m for a row; t = t + sum(y)."""
    x, w, m, t = torch.randn(3 * GROUP + 7, 11), torch.randn(11), torch.randn(3 * GROUP + 7, 1), torch.ones(103, 1)
    program = (
        load(0), load(1), load(2), Instr("mul", (0, 1), "f32", "f32"), Instr("mul", (3, 2), "f32", "f32"),
        Instr("reduce", (4,), "f32", "f32", ("sum",)),
    )  # fmt: skip
    epilogue = (load(3), Instr("add", (6, 5), "f32", "f32"))
    accesses = (Access("f32", "sc"), Access("f32", "0c"), Access("f32", "s0"), Access("f32", "s0"))
    kernel = Kernel("kr", accesses, program, (Store(4, 0),), epilogue, (Store(7, 3),))
    y = x * w * m
    own = x.clone()
    runner(kernel, target).run([own, w.expand(x.shape), m, t], x.shape, splits=(5,))
    assert torch.equal(own, y)
    assert torch.equal(t, 1 + from_first_to_last(y))


@by_target
def test_indices(target):
    """Of a point among all, along each dim, and over the kept dims."""
    shape = (3, GROUP + 6, 5)
    program = (
        Instr("index", (), "i64", "i64", (0, 1, 2)), Instr("index", (), "i64", "i64", (1,)),
        Instr("index", (), "i64", "i64", (2,)), Instr("index", (), "i64", "i64", (0, 1)),
        *(Instr("reduce", (k,), "i64", "i64", ("amax",)) for k in range(4)),
    )  # fmt: skip
    accesses = tuple(Access("i64", "ss0") for _ in range(4))
    kernel = Kernel("kkr", accesses, program, (), (), tuple(Store(4 + k, k) for k in range(4)))
    outs = [torch.empty(*shape[:2], 1, dtype=torch.int64) for _ in range(4)]
    runner(kernel, target).run(outs, shape, splits=(7, 50))
    everything = torch.arange(3 * (GROUP + 6) * 5).view(shape)
    rows = torch.arange(GROUP + 6).view(1, -1, 1).expand(3, -1, 1)
    wants = everything.amax(2, keepdim=True), rows, torch.full_like(rows, 4), everything[..., :1] // 5
    for out, want in zip(outs, wants, strict=True):
        assert torch.equal(out, want)


@by_target
@pytest.mark.parametrize("bad", [None, 0, 37])
def test_errors_are_those_of_real_rows(bad, target):
    """Lanes past the last row divide by padding, and nobody hears of it."""
    x, y = torch.full((GROUP + 6, 3), 12), torch.full((GROUP + 6, 3), 4)
    if bad is not None:
        y[bad, 1] = 0
    program = (
        load(0, "i64"), load(1, "i64"), Instr("floor_divide", (0, 1), "i64", "i64", ordinal=4),
        Instr("reduce", (2,), "i64", "i64", ("sum",)),
    )  # fmt: skip
    accesses = (Access("i64", "sc"), Access("i64", "sc"), Access("i64", "s0"))
    kernel = Kernel("kr", accesses, program, (), (), (Store(3, 2),))
    out = torch.empty(len(x), 1, dtype=torch.int64)
    assert runner(kernel, target).run([x, y, out], x.shape) == (0 if bad is None else 5)


@by_target
def test_two_programs_with_buffers_of_their_own(target):
    """Ops that work on half vectors or on the stack, at the points and once a row."""
    x = torch.rand(GROUP + 3, 9, dtype=torch.float64) + 0.5
    program = (load(0, "f64"), Instr("lgamma", (0,), "f64", "f64"), Instr("reduce", (1,), "f64", "f64", ("sum",)))
    epilogue = (Instr("lgamma", (2,), "f64", "f64"),)
    kernel = Kernel("kr", (Access("f64", "sc"), Access("f64", "s0")), program, (), epilogue, (Store(3, 1),))
    out = torch.empty(len(x), 1, dtype=torch.float64)
    runner(kernel, target).run([x, out], x.shape)
    torch.testing.assert_close(out, torch.lgamma(torch.lgamma(x).sum(1, keepdim=True)))
