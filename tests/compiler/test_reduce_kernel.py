"""Reduction kernels: values against torch and float64, splits and phases, empty sizes, prologues and epilogues."""

from __future__ import annotations

import pytest
import torch
from kernel_harness import DTYPES, NAMES, moves_of, runnable_targets, runner

from adaptive_eager.compiler.builder import CompileError
from adaptive_eager.compiler.codegen import compile_kernel, emit_ir
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import host_target

TARGETS = runnable_targets()
by_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t.name}-{t.cpu}")

#: (sizes, dims): inner and outer, one to three reduced dims, tails, several chunks, narrow, empty.
FORMS = [
    ((5, 1000), "kr"), ((3, 10000), "kr"), ((3, 7, 33), "krr"), ((4, 3, 5000), "rrr"), ((2, 4, 9, 17), "kkrr"),
    ((1, 1), "kr"), ((7, 3), "kr"), ((9000, 3), "rr"), ((100003,), "r"), ((6, 4096), "kr"),
    ((33, 77), "rk"), ((4, 600, 100), "krk"), ((5, 6, 7, 50), "rrrk"), ((2000, 3), "rk"), ((3, 1), "rk"),
    ((2, 3, 1100, 9), "kkrk"), ((700, 300), "rk"),
]  # fmt: skip
EMPTY = [((5, 0), "kr"), ((0, 5), "rk"), ((0, 5), "kr"), ((5, 0), "rk"), ((3, 0, 4), "krr"), ((2, 0, 3), "krk")]


def kept_access(dims: str, dtype: str) -> Access:
    """Access of a contiguous result of the kept shape with reduced dims of size 1."""
    last = len(dims) - 1
    return Access(dtype, "".join("0" if k == "r" else "c" if d == last else "s" for d, k in enumerate(dims)))


def kept_shape(sizes, dims):
    return [s if k == "k" else 1 for s, k in zip(sizes, dims, strict=True)]


def reduced_dims(dims):
    return [d for d, k in enumerate(dims) if k == "r"]


def reduce(x, dims, kind, compute, dtype, target, **run):
    """One reduction of a tensor, result with reduced dims of size 1."""
    out = torch.empty(kept_shape(x.shape, dims), dtype=DTYPES[dtype])
    name = NAMES[x.dtype]
    program = (Instr("load", (), name, name, (0,)), Instr("reduce", (0,), compute, dtype, (kind,)))
    kernel = Kernel(dims, (Access(name, moves_of(x)), kept_access(dims, dtype)), program, (), (), (Store(1, 1),))
    assert runner(kernel, target).run([x, out], x.shape, **run) == 0
    return out


def in_order(x, dims):
    """x with the reduced dims flattened at the end, as [kept..., -1]."""
    kept = [d for d, k in enumerate(dims) if k == "k"]
    return x.permute(*kept, *reduced_dims(dims)).reshape(*[x.shape[d] for d in kept], -1)


@by_target
@pytest.mark.parametrize(("sizes", "dims"), FORMS)
def test_sum_and_extremes(sizes, dims, target):
    x = torch.rand(sizes) + torch.randn(sizes) * 0.1
    over = reduced_dims(dims)
    want = x.double().sum(over, keepdim=True)
    out = reduce(x, dims, "sum", "f32", "f32", target)
    torch.testing.assert_close(out.double(), want, rtol=1.3e-6, atol=1e-5)
    assert torch.equal(reduce(x, dims, "amax", "f32", "f32", target), x.amax(over, keepdim=True))
    flat = in_order(x, dims)
    for kind in ("argmax", "argmin"):
        out = reduce(x, dims, kind, "f32", "i64", target)
        assert torch.equal(out.flatten(), getattr(flat, kind)(-1).flatten())


@by_target
@pytest.mark.parametrize(("sizes", "dims"), FORMS)
def test_bits_do_not_depend_on_who_ran_what(sizes, dims, target):
    x = torch.randn(sizes)
    for kind, dtype in (("sum", "f32"), ("argmin", "i64")):
        whole = reduce(x, dims, kind, "f32", dtype, target)
        for run in ({"splits": range(1, 60, 2)}, {"phases": True}, {"phases": True, "splits": range(1, 60)}):
            assert torch.equal(reduce(x, dims, kind, "f32", dtype, target, **run), whole)


@pytest.mark.parametrize(("sizes", "dims"), EMPTY)
def test_empty(sizes, dims):
    x = torch.empty(sizes)
    for kind, value in (("sum", 0.0), ("prod", 1.0), ("amax", -torch.inf), ("amin", torch.inf)):
        for phases in (False, True):
            out = reduce(x, dims, kind, "f32", "f32", host_target(), phases=phases)
            assert torch.equal(out, torch.full_like(out, value))
    for kind, value in (("any", False), ("all", True)):
        out = reduce(x.bool(), dims, kind, "bool", "bool", host_target())
        assert torch.equal(out, torch.full_like(out, value))


@by_target
@pytest.mark.parametrize("dims", ["kr", "rk"])
def test_dtypes(dims, target):
    over = reduced_dims(dims)
    for dtype, torch_dtype in DTYPES.items():
        if dtype == "bool":
            x = torch.rand(37, 41) < 0.05
        elif torch_dtype.is_floating_point:
            x = torch.randn(37, 41).to(torch_dtype)
        else:
            info = torch.iinfo(torch_dtype)
            x = torch.randint(max(info.min, -(2**40)), min(info.max, 2**40), (37, 41)).to(torch_dtype)
        is_float = torch_dtype.is_floating_point
        compute = dtype if dtype == "f64" else "f32" if is_float else "i64"
        result = dtype if is_float else "i64"
        for kind in ("sum", "prod"):
            out = reduce(x, dims, kind, compute, result, target)
            want = getattr(x.double() if is_float else x, kind)(over[0], keepdim=True).to(DTYPES[result])
            torch.testing.assert_close(out, want)
        for kind in ("amax", "amin"):
            assert torch.equal(reduce(x, dims, kind, dtype, dtype, target), getattr(x, kind)(over, keepdim=True))
        for kind in ("argmax", "argmin"):
            flat = in_order(x.to(torch.uint8) if dtype == "bool" else x, dims)
            # First occurrence by value, not torch's choice among equals.
            best = flat.amax(-1, keepdim=True) if kind == "argmax" else flat.amin(-1, keepdim=True)
            want = (flat == best).int().argmax(-1)
            assert torch.equal(reduce(x, dims, kind, dtype, "i64", target).flatten(), want)
        for kind in ("any", "all"):
            x.view(-1)[:41] = 0
            out = reduce(x, dims, kind, "bool", "bool", target)
            assert torch.equal(out, getattr(x, kind)(over[0], keepdim=True))


@by_target
@pytest.mark.parametrize("dims", ["kr", "rk"])
def test_nan_and_ties(dims, target):
    x = torch.randn(50, 50)
    x[3, 17] = x[3, 30] = x[17, 3] = x[30, 3] = torch.nan
    x[5, :] = -torch.inf
    x[:, 5] = -torch.inf
    x[6, 8] = x[6, 40] = x[8, 6] = x[40, 6] = 9.0
    over = reduced_dims(dims)[0]
    for kind in ("amax", "amin"):
        want = getattr(x, kind)(over, keepdim=True)
        torch.testing.assert_close(reduce(x, dims, kind, "f32", "f32", target), want, rtol=0, atol=0, equal_nan=True)
    for kind in ("argmax", "argmin"):
        out = reduce(x, dims, kind, "f32", "i64", target)
        for row, got in zip(in_order(x, dims), out.flatten().tolist(), strict=True):
            hit = row.isnan() if row.isnan().any() else row == (row.max() if kind == "argmax" else row.min())
            assert got == hit.nonzero()[0].item()
    torch.testing.assert_close(reduce(x, dims, "sum", "f32", "f32", target), x.sum(over, keepdim=True), equal_nan=True)


@by_target
def test_a_million_terms(target):
    for x in (torch.rand(1 << 20), torch.rand(1 << 20) + 1000):
        want = x.double().sum()
        out = reduce(x, "r", "sum", "f32", "f32", target)
        torch.testing.assert_close(out.double().squeeze(), want, rtol=1.3e-6, atol=0)
        out = reduce(x.view(-1, 4), "rk", "sum", "f32", "f32", target)
        torch.testing.assert_close(out.double().sum(), want, rtol=1.3e-6, atol=0)


def test_a_column_does_not_know_its_neighbours():
    """The same column in a full vector, in a tail, and alone gives the same bits."""
    x = torch.randn(3000, 83)
    whole = reduce(x, "rk", "sum", "f32", "f32", host_target())
    for columns in ([0], [82], list(range(5)), list(range(60, 83))):
        part = x[:, columns].contiguous()
        assert torch.equal(reduce(part, "rk", "sum", "f32", "f32", host_target()), whole[:, columns])


def test_strided_and_broadcast_inputs():
    x = torch.randn(40, 3, 50)
    for view, dims in ((x.permute(2, 1, 0), "krr"), (x.permute(2, 0, 1), "rrk"), (x[:, ::2, ::3], "krk")):
        out = reduce(view, dims, "sum", "f32", "f32", host_target())
        want = view.double().sum(reduced_dims(dims), keepdim=True)
        torch.testing.assert_close(out.double(), want, rtol=1.3e-6, atol=3e-5)
    row = torch.randn(50).expand(30, 50)
    torch.testing.assert_close(reduce(row, "rk", "sum", "f32", "f32", host_target()), row.sum(0, keepdim=True))
    column = torch.randn(30, 1).expand(30, 50)
    torch.testing.assert_close(reduce(column, "kr", "sum", "f32", "f32", host_target()), column.sum(1, keepdim=True))


def _softmax_like(dims: str) -> Kernel:
    """y = exp(x - m) stored; s = sum y; t = amax y; then s / scalar + b (bf16) and s * t, two results."""
    program = (
        Instr("load", (), "f32", "f32", (0,)),
        Instr("load", (), "f32", "f32", (1,)),
        Instr("sub", (0, 1), "f32", "f32"),
        Instr("exp", (2,), "f32", "f32"),
        Instr("reduce", (3,), "f32", "f32", ("sum",)),
        Instr("reduce", (3,), "f32", "f32", ("amax",)),
        Instr("scalar", (), "f64", "f64", (0, "f")),
    )
    epilogue = (
        Instr("div", (4, 6), "f32", "f32"),
        Instr("load", (), "bf16", "bf16", (3,)),
        Instr("add", (7, 8), "f32", "f32"),
        Instr("mul", (4, 5), "f32", "f32"),
        Instr("sub", (10, 1), "f32", "f32"),
    )
    kept = kept_access(dims, "f32").moves
    full = "sc"
    accesses = (
        Access("f32", full), Access("f32", kept), Access("f32", full), Access("bf16", kept), Access("f32", kept),
        Access("f32", kept),
    )  # fmt: skip
    return Kernel(dims, accesses, program, (Store(3, 2),), epilogue, (Store(9, 4), Store(11, 5)))


@by_target
@pytest.mark.parametrize("dims", ["kr", "rk"])
@pytest.mark.parametrize("shape", [(23, 45), (3, 9001), (1100, 19), (1, 1)])
def test_prologue_and_epilogue(shape, dims, target):
    over = reduced_dims(dims)[0]
    x = torch.randn(shape)
    kept = kept_shape(shape, dims)
    m, b = torch.randn(kept), torch.randn(kept).bfloat16()
    want_y = (x - m).exp()
    s, t = want_y.sum(over, keepdim=True), want_y.amax(over, keepdim=True)
    first = None
    for run in ({}, {"phases": True, "splits": (1, 2, 5)}):
        y, p, q = torch.empty(shape), torch.empty(kept), torch.empty(kept)
        runner(_softmax_like(dims), target).run([x, m, y, b, p, q], shape, (3.0,), **run)
        torch.testing.assert_close(y, want_y)
        torch.testing.assert_close(p, s / 3.0 + b.float())
        torch.testing.assert_close(q, s * t - m, rtol=1e-5, atol=1e-5)
        first = first or (y, p, q)
        assert all(torch.equal(one, other) for one, other in zip(first, (y, p, q), strict=True))


@by_target
@pytest.mark.parametrize("dims", ["kr", "rk", "r"])
def test_epilogue_that_updates_memory(dims, target):
    """A kept point's own memory is read and written: total += sum."""
    program = (
        Instr("load", (), "f32", "f32", (0,)),
        Instr("reduce", (0,), "f32", "f32", ("sum",)),
    )
    epilogue = (Instr("load", (), "f32", "f32", (1,)), Instr("add", (1, 2), "f32", "f32"))
    accesses = (Access("f32", "sc" if len(dims) == 2 else "c"), kept_access(dims, "f32"))
    kernel = Kernel(dims, accesses, program, (), epilogue, (Store(3, 1),))
    x = torch.randn((23, 45) if len(dims) == 2 else (77,))
    total = torch.ones(kept_shape(x.shape, dims))
    runner(kernel, target).run([x, total], x.shape, ())
    torch.testing.assert_close(total, x.sum(reduced_dims(dims), keepdim=True) + 1)


def test_refuses_bad_forms():
    load = Instr("load", (), "f32", "f32", (0,))
    total = Instr("reduce", (0,), "f32", "f32", ("sum",))
    with pytest.raises(CompileError, match="need kept, reduced"):
        emit_ir(Kernel("rkk", (Access("f32", "ssc"),), (load, total), (), (), ()), host_target())
    with pytest.raises(CompileError, match="unknown kind"):
        bad = Instr("reduce", (0,), "f32", "f32", ("median",))
        kernel = Kernel("r", (Access("f32", "c"), Access("f32", "0")), (load, bad), (), (), (Store(1, 1),))
        emit_ir(kernel, host_target())
    with pytest.raises(CompileError, match="moves along a reduced"):
        emit_ir(
            Kernel("r", (Access("f32", "c"), Access("f32", "0")), (load, total), (), (), (Store(0, 1),)), host_target()
        )


def test_many_strided_accesses_compile():
    """Strides and saved accumulators have names of their own in the generated code."""
    accesses = (*tuple(Access("f32", "ss") for _ in range(4)), Access("f32", "s0"))
    loads = tuple(Instr("load", (), "f32", "f32", (k,)) for k in range(4))
    program = (
        *loads,
        Instr("add", (0, 1), "f32", "f32"),
        Instr("mul", (2, 3), "f32", "f32"),
        Instr("mul", (4, 5), "f32", "f32"),
        Instr("reduce", (6,), "f32", "f32", ("sum",)),
        Instr("reduce", (6,), "f32", "f32", ("amax",)),
    )
    epilogue = (Instr("add", (7, 8), "f32", "f32"),)
    kernel = Kernel("kr", accesses, program, (), epilogue, (Store(9, 4),))
    assert compile_kernel(kernel, host_target()).object_code


@pytest.mark.parametrize(("dims", "asks"), [("kr", True), ("rr", True), ("rk", False), ("krk", False)])
def test_memory_is_asked_for_ahead_along_rows_only(dims, asks):
    x = torch.randn([100] * len(dims))
    program = (Instr("load", (), "f32", "f32", (0,)), Instr("reduce", (0,), "f32", "f32", ("sum",)))
    kernel = Kernel(dims, (Access("f32", moves_of(x)), kept_access(dims, "f32")), program, (), (), (Store(1, 1),))
    lines = emit_ir(kernel, host_target()).splitlines()
    assert any("call void @llvm.prefetch" in line and line.endswith(", i32 0, i32 3, i32 1)") for line in lines) == asks
