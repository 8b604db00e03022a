"""Vector mathematics: an element's bits depend on no lane, neighbour or place; accuracy over the whole range."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_harness import pointwise, runnable_targets

from adaptive_eager.compiler import polynomial, vecmath
from adaptive_eager.compiler.builder import Builder
from adaptive_eager.compiler.target import named_target

TARGETS = runnable_targets()
BINARY = ("pow", "atan2", "hypot", "fmod")
#: `math` functions that are an op of the same name.
FUNCTIONS = vecmath.functions()


def arguments(dtype: torch.dtype, n: int) -> torch.Tensor:
    """Ordinary, tiny, huge and special arguments, mixed."""
    g = torch.Generator().manual_seed(3)
    top = 38 if dtype == torch.float32 else 300
    exponents = (torch.rand(n, generator=g) * 2 * top - top).double()
    spread = torch.randn(n, generator=g, dtype=torch.float64) * 10**exponents
    plain = torch.randn(n, generator=g, dtype=torch.float64) * 5
    x = torch.where(torch.rand(n, generator=g) < 0.4, spread, plain)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-40, 3e38]
    special += [124.9, 125.1, 14.9, 15.1, 1e14, 39000.0]  # around the limits of argument reductions
    x[: len(special)] = torch.tensor(special, dtype=torch.float64)
    return x.to(dtype)[torch.randperm(n, generator=g)]


def bits(t: torch.Tensor) -> torch.Tensor:
    """Bit patterns, all NaNs alike."""
    t = torch.where(t.isnan(), torch.full_like(t, math.nan), t)
    return t.view(torch.int32 if t.dtype == torch.float32 else torch.int64)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t.name}-{t.cpu}")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_position_independence(function, target):
    n = 407
    for dtype, name in ((torch.float32, "f32"), (torch.float64, "f64")):
        x, y = arguments(dtype, n), arguments(dtype, n).flip(0)

        def run(*order, function=function, name=name, x=x, y=y):
            (o,) = order
            args = [x[o], y[o]] if function in BINARY else [x[o]]
            return bits(pointwise(function, args, name, name, target=target)[0])

        whole = run(torch.arange(n))
        shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(5))
        assert torch.equal(run(shuffled), whole[shuffled])
        small = x.abs().argsort()
        assert torch.equal(run(small), whole[small])
        for k in range(0, n, 17):
            assert torch.equal(run(torch.tensor([k])), whole[k : k + 1]), (name, x[k].item(), y[k].item())
            assert torch.equal(run(torch.full((17,), k)), whole[k].expand(17))


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f not in BINARY])
def test_accuracy(function):
    """f32 within 2 ulp of f64 over the whole range (4 for lgamma, which torch's own uses too); also near zero."""
    x = arguments(torch.float32, 3000)
    x[:200] = torch.randn(200) * 1e-5
    want = getattr(torch, function)(x.double()).float()
    for target in TARGETS[:1]:
        out, _ = pointwise(function, [x], "f32", "f32", target=target)
        torch.testing.assert_close(out, want, rtol=2.5e-7 if function != "lgamma" else 5e-7, atol=1e-42, equal_nan=True)


@pytest.mark.parametrize("function", sorted(polynomial.FUNCTIONS))
def test_polynomials_within_two_ulp(function):
    """Densely over where the function is not constant, and around the limits between its forms."""
    pieces = [torch.linspace(*span, 200_000) for span in ((-105, 88.7), (-10, 10), (-1.5, 1.5), (0.5, 1), (3.4, 4.2))]
    x = torch.cat([*pieces, torch.logspace(-38, 0, 20_000)])
    for target in TARGETS:
        if not target.has_fma:
            continue
        out, _ = pointwise(function, [x], "f32", "f32", target=target)
        exact = getattr(torch, function)(x.double())
        rounded = exact.float()
        ulp = torch.nextafter(rounded.abs(), torch.tensor(math.inf)) - rounded.abs()
        assert ((out.double() - exact).abs() / ulp.double()).max() < 2
        if function != "exp":
            assert out.abs().max() == 1


def test_wide_target_calls_its_own_library():
    """The AVX-512 code cannot run everywhere, but which functions it calls can be read."""
    b = Builder(named_target("avx512"))
    x = b.const("float", 1.0)
    vecmath.math(b, "log", x)
    vecmath.math(b, "sin", x)
    vecmath.math(b, "exp", b.const("double", 1.0))
    assert set(b.declarations) >= {"Sleef_finz_logf16_u10avx512f", "Sleef_sinf16_u10avx512f", "Sleef_expd8_u10avx512f"}
