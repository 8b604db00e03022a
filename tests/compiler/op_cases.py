"""Op cases: every op of the compiler, how torch computes it on the CPU, and on which dtypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan

import torch
import torch.nn.functional as F

FLOATS = ("f32", "bf16", "f16", "f64")
INTS = ("u8", "i8", "i16", "i32", "i64")
NUMBERS = FLOATS + INTS
ALL = (*NUMBERS, "bool")
INTEGRAL = (*INTS, "bool")


@dataclass(frozen=True)
class Case:
    """One use of an op.

    args    one entry an operand: "x" a tensor of the dtype, "b" a bool tensor, "+" a tensor of positive or nonzero
            values, "u" one of values in [-1, 1], "s" a tensor of shift counts, None an absent optional operand, a
            number a Python scalar
    torch   the same on CPU tensors, called with the operands that are not None
    exact   bits must be equal (but for the sign and payload of NaN)
    fused   the same on processors with a fused multiply-add; others round twice, and are not compared
    bound   random values are drawn from [-bound, bound]
    special whether special values (nan, inf, ...) take part
    """

    op: str
    torch: Callable[..., torch.Tensor]
    args: tuple
    dtypes: tuple[str, ...] = FLOATS
    attrs: tuple = ()
    result: str = ""
    exact: bool = False
    fused: bool = False
    bound: float = 4.0
    special: bool = True

    @property
    def id(self) -> str:
        return "-".join((self.op, *(str(a) for a in self.attrs), *(str(a) for a in self.args), *["fused"] * self.fused))


aten = torch.ops.aten


def _unary(*names: str, **kw) -> list[Case]:
    return [Case(n, getattr(torch, n), ("x",), **kw) for n in names]


def _binary(*names: str, **kw) -> list[Case]:
    return [Case(n, getattr(torch, n), ("x", "x"), **kw) for n in names]


def _addcmul(x, first, second, value):
    return torch.addcmul(x, first, second, value=value)


CASES: list[Case] = [
    *_unary("abs", "sign", "sgn", "relu", dtypes=NUMBERS, exact=True),
    *_unary("neg", dtypes=NUMBERS, exact=True),
    *_unary("floor", "ceil", "trunc", "round", dtypes=NUMBERS, exact=True),
    *_unary("frac", "reciprocal", exact=True),
    Case("complement", lambda x: 1 - x, ("x",), exact=True),
    *_unary("sqrt", "rsqrt"),
    *_unary("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
    *_unary("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid"),
    *_unary("lgamma", bound=20.0),
    *_unary("sin", "cos", "tan", bound=1e5, special=False),
    *_unary("sin", "cos", "tan", bound=1e18, dtypes=("f32", "f64"), special=False),
    *_unary("isnan", "isinf", "isneginf", "isposinf", "signbit", dtypes=ALL, result="bool", exact=True),
    *_unary("logical_not", dtypes=ALL, result="bool", exact=True),
    *_unary("bitwise_not", dtypes=INTEGRAL, exact=True),
    Case("log_sigmoid", F.logsigmoid, ("x",)),
    Case(
        "log_sigmoid_backward", lambda g, x: aten.log_sigmoid_backward(g, x, (-x.abs()).exp()), ("x", "x"),
        special=False,
    ),
    Case("glu", lambda a, b: F.glu(torch.stack([a, b]), 0)[0], ("x", "x"), special=False),
    Case(
        "glu_backward_first", lambda g, b: aten.glu_backward(g[None], torch.stack([b, b]), 0)[0], ("x", "x"),
        special=False,
    ),
    Case(
        "glu_backward_second",
        lambda g, a, b: aten.glu_backward(g[None].double(), torch.stack([a, b]).double(), 0)[1].to(g.dtype),
        ("x", "x", "x"), special=False,
    ),
    Case("_prelu_kernel", aten._prelu_kernel, ("x", "x"), exact=True),
    Case(
        "prelu_backward_input", lambda g, x, w: aten._prelu_kernel_backward(g, x, w)[0], ("x", "x", "x"), exact=True,
        special=False,
    ),
    Case(
        "prelu_backward_weight", lambda g, x: aten._prelu_kernel_backward(g, x, g)[1], ("x", "x"), exact=True,
        special=False,
    ),
    # losses
    *[
        Case(name, lambda x, t, *s, f=f: f(x.double(), t.double(), *s).to(x.dtype), ("x", "x", *s), special=False)
        for name, f, s in (
            ("mse_loss", lambda x, t: aten.mse_loss(x, t, 0), ()),
            ("smooth_l1_loss", lambda x, t, b: aten.smooth_l1_loss(x, t, 0, b), (0.7,)),
            ("smooth_l1_loss", lambda x, t, b: aten.smooth_l1_loss(x, t, 0, b), (0.0,)),
            ("huber_loss", lambda x, t, d: aten.huber_loss(x, t, 0, d), (0.7,)),
        )
    ],
    *[
        Case(
            name, lambda g, x, t, n, *s, f=f: n * f(g.double(), x.double(), t.double(), *s).to(x.dtype),
            ("x", "x", "x", 0.25, *s), special=False,
        )
        for name, f, s in (
            ("mse_loss_backward", lambda g, x, t: aten.mse_loss_backward(g, x, t, 0), ()),
            ("smooth_l1_loss_backward", lambda g, x, t, b: aten.smooth_l1_loss_backward(g, x, t, 0, b), (0.7,)),
            ("smooth_l1_loss_backward", lambda g, x, t, b: aten.smooth_l1_loss_backward(g, x, t, 0, b), (0.0,)),
            ("huber_loss_backward", lambda g, x, t, d: aten.huber_loss_backward(g, x, t, 0, d), (0.7,)),
        )
    ],
    Case("silu", F.silu, ("x",)),
    Case("mish", F.mish, ("x",)),
    Case("hardswish", F.hardswish, ("x",)),
    Case("hardsigmoid", F.hardsigmoid, ("x",)),
    # In float64: with AVX-512, CPU's float32 kernel is 1e-4 off at -3, and NaN at infinity.
    Case("gelu", lambda x: F.gelu(x.double()).to(x.dtype), ("x",), attrs=("none",)),
    Case("gelu", lambda x: F.gelu(x, approximate="tanh"), ("x",), attrs=("tanh",)),
    Case("gelu_backward", lambda g, x: aten.gelu_backward(g, x), ("x", "x"), attrs=("none",), special=False),
    Case(
        "gelu_backward", lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), ("x", "x"), attrs=("tanh",),
        special=False,
    ),
    Case("silu_backward", aten.silu_backward, ("x", "x"), special=False),
    Case("mish_backward", aten.mish_backward, ("x", "x"), special=False),
    Case("sigmoid_backward", aten.sigmoid_backward, ("x", "u"), special=False),
    Case("tanh_backward", aten.tanh_backward, ("x", "u"), special=False),
    Case("threshold", F.threshold, ("x", 1, 20), dtypes=NUMBERS, exact=True),
    Case("threshold", F.threshold, ("x", 0.3, -0.7), exact=True),
    Case("threshold_backward", aten.threshold_backward, ("x", "x", 1), dtypes=NUMBERS, exact=True),
    Case("threshold_backward", aten.threshold_backward, ("x", "x", 0.3), exact=True),
    Case("elu", aten.elu, ("x", 1.3, 1.1, 0.7)),
    Case(
        "elu_backward", lambda g, a, s, i, x: aten.elu_backward(g, a, s, i, False, x), ("x", 1.3, 1.1, 0.7, "x"),
        attrs=(False,), special=False,
    ),
    Case(
        "elu_backward", lambda g, a, s, i, x: aten.elu_backward(g, a, s, i, True, x), ("x", 1.3, 1.1, 0.7, "x"),
        attrs=(True,), special=False,
    ),
    Case("leaky_relu", F.leaky_relu, ("x", 0.013), exact=True),
    Case(
        "leaky_relu_backward", lambda g, x, s: aten.leaky_relu_backward(g, x, s, False), ("x", "x", 0.013),
        attrs=(False,), exact=True,
    ),
    Case("hardtanh", F.hardtanh, ("x", -0.7, 1.3), exact=True),
    Case("hardtanh", F.hardtanh, ("x", -3, 5), dtypes=("i8", "i16", "i32", "i64"), exact=True),
    Case("hardtanh_backward", aten.hardtanh_backward, ("x", "x", -0.7, 1.3), exact=True),
    Case("hardswish_backward", aten.hardswish_backward, ("x", "x"), special=False),
    Case("hardsigmoid_backward", aten.hardsigmoid_backward, ("x", "x"), special=False),
    Case("softplus", F.softplus, ("x", 1.5, 2.5)),
    Case("softplus_backward", aten.softplus_backward, ("x", "x", 1.5, 2.5), special=False),
    Case("softshrink", F.softshrink, ("x", 0.3), exact=True),
    Case("softshrink_backward", aten.softshrink_backward, ("x", "x", 0.3), exact=True),
    Case("hardshrink", F.hardshrink, ("x", 0.3), exact=True),
    Case("hardshrink_backward", aten.hardshrink_backward, ("x", "x", 0.3), exact=True),
    Case("logit", torch.logit, ("x",), bound=1.0),
    Case("logit", torch.logit, ("x", 0.1), bound=1.0),
    Case("logit_backward", aten.logit_backward, ("x", "x"), bound=1.0, special=False),
    Case("logit_backward", aten.logit_backward, ("x", "x", 0.1), bound=1.0, special=False),
    Case("nan_to_num", torch.nan_to_num, ("x",), dtypes=ALL, exact=True),
    Case("nan_to_num", torch.nan_to_num, ("x", 1.3, 2.3, -3.3), exact=True),
    Case("nan_to_num", lambda x, p: torch.nan_to_num(x, posinf=p), ("x", None, 2.3, None), exact=True),
    # binary
    *_binary("add", "mul", dtypes=ALL, exact=True),
    *_binary("sub", "rsub", dtypes=NUMBERS, exact=True),
    Case("add", lambda x, y, a: torch.add(x, y, alpha=a), ("x", "x", 3), dtypes=NUMBERS, special=False),
    Case("add", lambda x, y, a: torch.add(x, y, alpha=a), ("x", "x", 0.3), special=False),
    # One rounding, where a product that cancels or overflows by itself shows it.
    Case("add", lambda x, y, a: torch.add(x, y, alpha=a), ("x", "x", -1.1), ("f32", "f64"), fused=True),
    Case("sub", lambda x, y, a: torch.sub(x, y, alpha=a), ("x", "x", 2.1), ("f32", "f64"), fused=True),
    Case("rsub", lambda x, y, a: torch.rsub(x, y, alpha=a), ("x", "x", 2.1), ("f32", "f64"), fused=True),
    Case("addcmul", _addcmul, ("x", "x", "x", 0.3), ("f32", "f64"), fused=True, special=False),
    *[Case("lerp", torch.lerp, ("x", "x", w), ("f32", "f64"), fused=True) for w in (0.3, 0.7)],
    Case("lerp", torch.lerp, ("x", "x", "x"), ("f32", "f64"), fused=True, special=False),
    Case("sub", lambda x, y, a: torch.sub(x, y, alpha=a), ("x", "x", 3), dtypes=NUMBERS, special=False),
    Case("rsub", lambda x, y, a: torch.rsub(x, y, alpha=a), ("x", "x", 3), dtypes=NUMBERS, special=False),
    Case("add", torch.add, ("x", 0.3), exact=True),
    Case("add", torch.add, ("x", 3), dtypes=NUMBERS, exact=True),
    Case("sub", torch.sub, ("x", 0.3), exact=True),
    Case("rsub", torch.rsub, ("x", 0.3), exact=True),
    Case("mul", torch.mul, ("x", 0.3), exact=True),
    Case("mul", torch.mul, ("x", -3), dtypes=NUMBERS, exact=True),
    Case("div", torch.div, ("x", "x"), exact=True),
    Case("div", torch.div, ("x", 0.3)),
    Case("div", lambda x, y: torch.div(x, y, rounding_mode="floor"), ("x", "+"), dtypes=NUMBERS, attrs=("floor",)),
    Case("div", lambda x, y: torch.div(x, y, rounding_mode="trunc"), ("x", "+"), dtypes=NUMBERS, attrs=("trunc",)),
    Case("floor_divide", torch.floor_divide, ("x", "+"), dtypes=NUMBERS),
    *[Case("floor_divide", torch.floor_divide, ("x", s), exact=True, special=False) for s in (0.3, -1.7, 3.3)],
    *[
        Case("div", lambda x, y, m=m: torch.div(x, y, rounding_mode=m), ("x", s), attrs=(m,), exact=True, special=False)
        for m in ("floor", "trunc")
        for s in (0.3, -1.7, 3.3)
    ],
    Case("remainder", torch.remainder, ("x", "+"), dtypes=NUMBERS, special=False),
    Case("fmod", torch.fmod, ("x", "+"), dtypes=NUMBERS, special=False),
    Case("remainder", torch.remainder, ("x", 0.7), special=False),
    Case("fmod", torch.fmod, ("x", 0.7), special=False),
    Case("pow", torch.pow, ("+", "x"), special=False),
    Case("pow", torch.pow, ("x", "x"), dtypes=("u8", "i16", "i32", "i64")),
    *[Case("pow", torch.pow, ("x", e)) for e in (2.0, 3.0, -2.0, 0.5, -0.5, -1.0, 1.0, 0.0, 1.7, -2.3)],
    *[Case("pow", torch.pow, ("x", e), dtypes=NUMBERS) for e in (2, 3, 0)],
    Case("pow", torch.pow, (1.7, "x"), special=False),
    *_binary("maximum", "minimum", dtypes=ALL, exact=True),
    *_binary("fmax", "fmin", dtypes=ALL, exact=True),
    *_binary("atan2", "copysign", "hypot"),
    *_binary("xlogy", bound=6.0),
    *_binary("logaddexp", "logaddexp2", dtypes=FLOATS),
    *_binary("heaviside", dtypes=NUMBERS, exact=True),
    *_binary("eq", "ne", "lt", "le", "gt", "ge", dtypes=ALL, result="bool", exact=True),
    *[Case(n, getattr(torch, n), ("x", 0.3), result="bool", exact=True) for n in ("eq", "ne", "lt", "le", "gt", "ge")],
    *_binary("logical_and", "logical_or", "logical_xor", dtypes=ALL, result="bool", exact=True),
    *_binary("bitwise_and", "bitwise_or", "bitwise_xor", dtypes=INTEGRAL, exact=True),
    Case("bitwise_left_shift", torch.bitwise_left_shift, ("x", "s"), dtypes=INTS, exact=True),
    Case("bitwise_right_shift", torch.bitwise_right_shift, ("x", "s"), dtypes=INTS, exact=True),
    # ternary
    Case("where", torch.where, ("b", "x", "x"), dtypes=ALL, exact=True),
    Case("masked_fill", lambda x, m, v: x.masked_fill(m, v), ("x", "b", 3), dtypes=ALL, exact=True),
    Case("masked_fill", lambda x, m, v: x.masked_fill(m, v), ("x", "b", 0.3), exact=True),
    Case("clamp", torch.clamp, ("x", -1, 2), dtypes=("i8", "i16", "i32", "i64", *FLOATS), exact=True),
    Case("clamp", torch.clamp, ("x", -0.7, 1.3), exact=True),
    Case("clamp", torch.clamp, ("x", 1.3, -0.7), exact=True),
    Case("clamp", torch.clamp, ("x", "x", "x"), dtypes=NUMBERS, exact=True),
    Case("clamp", lambda x, hi: torch.clamp(x, max=hi), ("x", None, 1.3), exact=True),
    Case("clamp_min", torch.clamp_min, ("x", 0.3), exact=True),
    Case("clamp_max", torch.clamp_max, ("x", 0.3), exact=True),
    Case("lerp", torch.lerp, ("x", "x", 0.3)),
    Case("lerp", torch.lerp, ("x", "x", "x"), special=False),
    Case("addcmul", _addcmul, ("x", "x", "x", 3), dtypes=NUMBERS, special=False),
    Case("addcmul", _addcmul, ("x", "x", "x", 0.3), special=False),
    Case("addcdiv", lambda x, a, b, v: torch.addcdiv(x, a, b, value=v), ("x", "x", "+", 0.3), special=False),
    Case("copy", torch.clone, ("x",), dtypes=ALL, exact=True),
]  # fmt: skip

_SPECIAL_FLOATS = (0.0, -0.0, nan, inf, -inf, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0)


def special_values(dtype: torch.dtype) -> torch.Tensor:
    """Values at which ops go wrong: infinities, NaN, zeros, ties, subnormals, extremes."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        values = [0, 1, 2, 3, 7, info.max, info.max - 1, info.min, info.min + 1]
        return torch.tensor([*values, *([-1, -2, -3] if info.min < 0 else [])], dtype=dtype)
    info = torch.finfo(dtype)
    edges = (info.max, info.min, info.tiny, -info.tiny, info.tiny / 4, info.eps, 1e-4, -1e-4)
    return torch.tensor([*_SPECIAL_FLOATS, *edges], dtype=torch.float64).to(dtype)


def operand(kind: str, dtype: torch.dtype, n: int, case: Case, generator: torch.Generator, turn: int) -> torch.Tensor:
    """One tensor operand of a case, of n elements; `turn` rotates the special values so that all pairs meet."""
    if kind == "b":
        return torch.randint(0, 2, (n,), generator=generator).bool()
    if kind == "s":
        bits = 8 * dtype.itemsize
        low = 0 if dtype == torch.uint8 else -2
        return torch.randint(low, bits + 3, (n,), generator=generator).to(dtype)
    if dtype == torch.bool:
        values = torch.randint(0, 2, (n,), generator=generator).bool()
    elif dtype.is_floating_point:
        values = ((torch.rand(n, generator=generator, dtype=torch.float64) * 2 - 1) * case.bound).to(dtype)
        if kind == "+":
            values = values.abs() + 0.1
        if kind == "u":
            values = values / case.bound
    else:
        info = torch.iinfo(dtype)
        values = torch.randint(max(info.min, -(2**40)), min(info.max, 2**40), (n,), generator=generator).to(dtype)
        values[: n // 2] = values[: n // 2] % 10
        if kind == "+":
            values[values == 0] = 3
    if case.special and kind == "x":
        special = special_values(dtype)
        count = len(special) ** 2
        index = torch.arange(count)
        index = index % len(special) if turn % 2 == 0 else index // len(special)
        values[:count] = special[index]
    return values
