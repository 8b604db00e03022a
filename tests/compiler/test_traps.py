"""The ways LLVM code goes wrong where torch is well defined, one test each."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_harness import DTYPES, pointwise, runnable_targets, runner

from adaptive_eager.compiler.codegen import emit_ir
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import host_target

by_target = pytest.mark.parametrize("target", runnable_targets(), ids=lambda t: f"{t.name}-{t.cpu}")
NAN, INF = math.nan, math.inf


def f32(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def same(out: torch.Tensor, *values: float) -> None:
    torch.testing.assert_close(out.double(), torch.tensor(values, dtype=torch.float64), rtol=0, atol=0, equal_nan=True)


@by_target
def test_extremes_propagate_nan(target):
    x, y = f32(NAN, 1, NAN, 2), f32(1, NAN, NAN, 3)
    same(pointwise("maximum", [x, y], "f32", "f32", target=target)[0], NAN, NAN, NAN, 3)
    same(pointwise("minimum", [x, y], "f32", "f32", target=target)[0], NAN, NAN, NAN, 2)
    same(pointwise("fmax", [x, y], "f32", "f32", target=target)[0], 1, 1, NAN, 3)
    same(pointwise("clamp", [x, -1.0, 1.5], "f32", "f32", target=target)[0], NAN, 1, NAN, 1.5)
    same(pointwise("clamp", [x, NAN, 1.5], "f32", "f32", target=target)[0], NAN, NAN, NAN, NAN)
    same(pointwise("clamp", [f32(1, 2, 3), 5.0, 2.0], "f32", "f32", target=target)[0], 2, 2, 2)
    out = pointwise("relu", [f32(NAN, -0.0, 0.0, -3, 3)], "f32", "f32", target=target)[0]
    same(out, NAN, 0, 0, 0, 3)
    assert out.signbit().tolist()[1:] == [True, False, False, False]


@by_target
def test_products_and_sums_round_twice(target):
    x, y, z = (torch.randn(4096) for _ in range(3))
    program = (
        *(Instr("load", (), "f32", "f32", (k,)) for k in range(3)),
        Instr("mul", (0, 1), "f32", "f32"),
        Instr("add", (3, 2), "f32", "f32"),
    )
    out = torch.empty(4096)
    runner(Kernel("k", (Access("f32", "c"),) * 4, program, (Store(4, 3),)), target).run([x, y, z, out], (4096,))
    assert torch.equal(out, (x * y) + z)
    contracted = (x.double() * y.double() + z.double()).float()
    assert not torch.equal(out, contracted), "the data cannot tell one rounding from two"


def test_no_relaxed_arithmetic_in_the_text():
    program = (
        Instr("load", (), "f32", "f32", (0,)),
        Instr("mul", (0, 0), "f32", "f32"),
        Instr("add", (1, 0), "f32", "f32"),
        Instr("softplus", (2, 0, 0), "f32", "f32"),
    )
    text = emit_ir(Kernel("k", (Access("f32", "c"),) * 2, program, (Store(3, 1),)), host_target())
    for word in ["fast", "contract", "reassoc", "nnan", "arcp", "afn", "fmuladd", "nsw", "nuw", "exact"]:
        assert word not in text.split()


@by_target
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_types_round_after_each_op(dtype, target):
    x = torch.randn(2000).to(DTYPES[dtype])
    program = (
        Instr("load", (), dtype, dtype, (0,)),
        Instr("mul", (0, 0), dtype, dtype),
        Instr("add", (1, 0), dtype, dtype),
        Instr("mul", (2, 1), dtype, dtype),
    )
    out = torch.empty_like(x)
    runner(Kernel("k", (Access(dtype, "c"),) * 2, program, (Store(3, 1),)), target).run([x, out], (2000,))
    square = x * x
    assert torch.equal(out, (square + x) * square)
    wide = x.float()
    assert not torch.equal(out, ((wide * wide + wide) * (wide * wide)).to(x.dtype))


@by_target
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_half_value_and_its_neighbours_round_like_torch(dtype, target):
    """All 65536 values survive float, and floats at and around every rounding tie go where torch sends them."""
    every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype])
    wide, _ = pointwise("copy", [every], dtype, "f32", target=target)
    torch.testing.assert_close(wide, every.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(wide.signbit(), every.signbit())
    bits = every.float()[every.isfinite()].view(torch.int32)
    step = 1 << (16 if dtype == "bf16" else 13)
    for offset in (0, 1, -1, step // 2, step // 2 - 1, step // 2 + 1, -step // 2):
        near = (bits + offset).view(torch.float32)
        narrow, _ = pointwise("copy", [near], "f32", dtype, target=target)
        torch.testing.assert_close(narrow, near.to(DTYPES[dtype]), rtol=0, atol=0, equal_nan=True)
    subnormal = torch.arange(0, 1 << 24, 4099, dtype=torch.int32).view(torch.float32)
    narrow, _ = pointwise("copy", [subnormal], "f32", dtype, target=target)
    assert torch.equal(narrow, subnormal.to(DTYPES[dtype]))


@by_target
@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32", "i64"])
def test_integers_wrap_and_never_trap(dtype, target):
    info = torch.iinfo(DTYPES[dtype])
    top = torch.tensor([info.max, info.min, info.min]).to(DTYPES[dtype])
    bottom = torch.tensor([1, 1, -1]).to(DTYPES[dtype])

    def run(op, x, y, attrs=()):
        out, error = pointwise(op, [x, y], dtype, dtype, attrs, target)
        assert error == 0
        return out

    assert torch.equal(run("add", top, bottom), top + bottom)
    assert torch.equal(run("mul", top, top), top * top)
    for op, attrs in (("div", ("trunc",)), ("div", ("floor",)), ("floor_divide", ())):
        out = run(op, top, bottom, attrs)
        assert out[0] == info.max
        if info.min < 0:
            assert out.tolist() == [info.max, info.min, info.min]
    assert run("remainder", top, bottom).tolist() == [0, 0, info.min % 255 if dtype == "u8" else 0]


@by_target
@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32", "i64"])
def test_shift_counts_out_of_range(dtype, target):
    width = 8 * DTYPES[dtype].itemsize
    x = torch.tensor([1, 5, 100, 0, 127] + ([-1, -100] if dtype != "u8" else [])).to(DTYPES[dtype])
    for count in (0, 1, width - 1, width, width + 1, 100):
        y = torch.full_like(x, count)
        left, _ = pointwise("bitwise_left_shift", [x, y], dtype, dtype, target=target)
        right, _ = pointwise("bitwise_right_shift", [x, y], dtype, dtype, target=target)
        assert left.tolist() == (x << y).tolist()
        assert right.tolist() == [v >> count for v in x.tolist()]
        if count >= width:
            assert not left.any()


@by_target
@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32", "i64"])
@pytest.mark.parametrize("op", ["floor_divide", "remainder", "fmod", "div"])
def test_division_by_zero_sets_the_flag(op, dtype, target):
    attrs = ("trunc",) if op == "div" else ()
    for n in (1, 3, 8, 37):
        x = torch.arange(1, n + 1).to(DTYPES[dtype])
        assert pointwise(op, [x, torch.ones_like(x)], dtype, dtype, attrs, target)[1] == 0
        for at in {0, n // 2, n - 1}:
            y = torch.ones_like(x)
            y[at] = 0
            assert pointwise(op, [x, y], dtype, dtype, attrs, target)[1] == 7
        assert pointwise(op, [x, 0], dtype, dtype, attrs, target)[1] == 7


def test_padding_is_never_an_error():
    """x // (x - 1): padding lanes hold 1, and must not report their zero divisor."""
    program = (
        Instr("load", (), "i32", "i32", (0,)),
        Instr("scalar", (), "i64", "i64", (0, "i")),
        Instr("sub", (0, 1), "i32", "i32"),
        Instr("floor_divide", (0, 2), "i32", "i32", (), 4),
    )
    kernel = Kernel("k", (Access("i32", "c"),) * 2, program, (Store(3, 1),))
    for n in range(1, 20):
        x = torch.arange(5, 5 + n, dtype=torch.int32)
        out = torch.empty_like(x)
        assert runner(kernel, host_target()).run([x, out], (n,), (1,)) == 0
        assert torch.equal(out, x // (x - 1))
        x[n - 1] = 1
        assert runner(kernel, host_target()).run([x, out], (n,), (1,)) == 5


@by_target
def test_floor_and_python_remainder_follow_signs(target):
    pairs = [(a, c) for a in range(-7, 8) for c in (-4, -3, -2, -1, 1, 2, 3, 4)]
    for dtype in ("i8", "i16", "i32", "i64", "f32", "f64"):
        x, y = (torch.tensor(v).to(DTYPES[dtype]) for v in zip(*pairs, strict=True))
        assert pointwise("floor_divide", [x, y], dtype, dtype, target=target)[0].tolist() == [a // c for a, c in pairs]
        assert pointwise("remainder", [x, y], dtype, dtype, target=target)[0].tolist() == [a % c for a, c in pairs]
        assert pointwise("fmod", [x, y], dtype, dtype, target=target)[0].tolist() == [math.fmod(a, c) for a, c in pairs]


@by_target
def test_float_to_int(target):
    x = f32(0.9, -0.9, 1.5, -1.0, 300.0, -300.0, 127.6, 70000.0, -70000.0)
    for dtype in ("u8", "i8", "i16", "i32", "i64"):
        out, _ = pointwise("copy", [x], "f32", dtype, target=target)
        width = DTYPES[dtype].itemsize
        want = x.to(torch.int64).tolist()
        signed = dtype != "u8"
        wrapped = [int.from_bytes((v % 256**width).to_bytes(width, "little"), "little", signed=signed) for v in want]
        assert out.tolist() == wrapped
        # Undefined in torch; here only that nothing traps and the same input gives the same result everywhere.
        wild = f32(NAN, INF, -INF, 1e30, -1e30).repeat(7)
        out, _ = pointwise("copy", [wild], "f32", dtype, target=target)
        assert torch.equal(out.view(7, 5), out[:5].expand(7, 5))
    assert pointwise("copy", [f32(NAN, 0.0, -0.0, 1e-40, 3)], "f32", "bool", target=target)[0].tolist() == [
        True, False, False, True, True,
    ]  # fmt: skip


@by_target
def test_round_half_to_even(target):
    same(pointwise("round", [f32(0.5, 1.5, 2.5, -0.5, -1.5)], "f32", "f32", target=target)[0], 0, 2, 2, 0, -2)


@by_target
def test_bool_is_any_nonzero_byte(target):
    raw = torch.tensor([0, 1, 2, 128, 255, 0, 7], dtype=torch.uint8)
    program = (Instr("load", (), "bool", "bool", (0,)), Instr("copy", (0,), "bool", "bool"))
    out = torch.empty(7, dtype=torch.uint8)
    runner(Kernel("k", (Access("bool", "c"),) * 2, program, (Store(1, 1),)), target).run([raw, out], (7,))
    assert out.tolist() == [0, 1, 1, 1, 1, 0, 1]


@by_target
def test_scalars_are_exact(target):
    x = f32(1.0)
    for value in (1e-7, 0.1, 1 / 3, 1e-40, 3e38):
        assert pointwise("mul", [x, value], "f32", "f32", target=target)[0].item() == torch.tensor(value).item()
        assert pointwise("mul", [x.double(), value], "f64", "f64", target=target)[0].item() == value
    big = 2**62 + 1
    assert pointwise("add", [torch.tensor([0]), big], "i64", "i64", target=target)[0].item() == big


@by_target
@pytest.mark.parametrize("dtype", ("f32", "f64"))
def test_remainders_where_the_quotient_overflows(dtype, target):
    info = torch.finfo(DTYPES[dtype])
    smallest = info.smallest_normal * info.eps
    pairs = [(9.0, -info.smallest_normal * 0.75), (info.max, smallest * 3), (-1e30, smallest), (info.max, 1e-9)]
    x, y = (torch.tensor(v * 4, dtype=DTYPES[dtype]) for v in zip(*pairs, strict=True))
    out, _ = pointwise("fmod", [x, y], dtype, dtype, target=target)
    assert out.tolist() == [math.fmod(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]


@by_target
@pytest.mark.parametrize("op", ("sinh", "cosh"))
def test_hyperbolic_functions_up_to_their_own_bound(op, target):
    x = torch.cat([torch.linspace(87, 90, 500), -torch.linspace(87, 90, 500), f32(INF, -INF, NAN)])
    out, _ = pointwise(op, [x], "f32", "f32", target=target)
    torch.testing.assert_close(out, getattr(torch, op)(x.double()).float(), equal_nan=True)
