"""exp, tanh, erf and others of float32 vectors as inline polynomials, for targets with fused multiply-add.

SLEEF's tanh and erf carry double-float arithmetic to their last step and cost three to four times as much as these, and
a call makes every live vector go through memory. The polynomials are minimax fits of relative error (Lawson's
algorithm: weighted least squares, weights multiplied by the error until it levels); the fit of each contributes less
than 0.3 units in the last place, rounding the rest, and results are within 2 of the exact value. Every step is
lane-wise, so an element's bits depend on nothing but the element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from adaptive_eager.compiler.builder import Builder, Val

#: 1.5 * 2**23: adding it to a small float rounds that to an integer, which is then in the low bits of the sum.
_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000
#: log(2) in two parts; the first has 14 trailing zero bits, so that its products with exponents are exact.
_LN2_HIGH, _LN2_LOW = 0.693145751953125, math.log(2.0) - 0.693145751953125
#: Below the first, exp(x) is 0 in float32; above the second, infinite.
_EXP_LOW, _EXP_HIGH = -104.0, 89.0

#: (exp(r) - 1 - r) / r**2 over |r| <= log(2) / 2.
_EXP = (0.49999994, 0.16666520, 0.041668393, 0.0083687808, 0.0013814466)
#: (tanh(x) / x - 1) / x**2 in powers of x**2 over |x| <= 0.625.
_TANH_CUT = 0.625
_TANH = (-0.33333281, 0.13331442, -0.053739715, 0.020639090, -0.0057049892)
#: tanh(x) rounds to 1 from here on.
_TANH_ONE = 9.02
#: erf(x) / x - 1 in powers of x**2 over |x| <= 0.875, and log(erfc(x)) in powers of x from there to 4.
_ERF_CUT = 0.875
_ERF = (0.12837915, -0.37612551, 0.11282456, -0.026791478, 0.0050321990, -0.00062033388)
_LOG_ERFC = (-0.00013249049, -1.1279408, -0.63672918, -0.10433475, 0.022423804, -0.0030932140, 0.00020109239)
#: erf(x) rounds to 1 from here on.
_ERF_ONE = 4.0

#: log(1 + f) = f - f**2 / 2 + f**3 p(f) over 1/sqrt(2) <= 1 + f <= sqrt(2).
_LOG = (0.33333910, -0.25001338, 0.19963065, -0.16577585, 0.14914761, -0.14267489, 0.087004669)
_SQRT_HALF_BITS = 0x3F3504F3
#: The size that a normal number exceeds with chance v >= 2**-32: (1 - v) p(sqrt(shift - log(v (2 - v))) - middle).
_NORMAL_SHIFT, _NORMAL_MIDDLE = 6.0, 3.8515625
_NORMAL = (
    3.9671972, 1.8346775, -0.13773094, 0.040247981, -0.00055277137, -0.013266989, 0.017221911, -0.014778049,
    0.0026170129, 0.0060235346, -0.0030052273, -0.00070686371, 0.00049113826,
)  # fmt: skip


def _fma(b: Builder, x: Val, y: Val, z: Val) -> Val:
    return b.fma(x, y, z) if b.target.has_fma else b.fadd(b.fmul(x, y), z)


def polynomial(b: Builder, x: Val, coefficients: Sequence[float]) -> Val:
    """c[0] + c[1] x + c[2] x**2 + ... by Estrin's scheme: pairs side by side, so that latencies overlap."""
    terms = [b.const(x.ty, c) for c in coefficients]
    while len(terms) > 1:
        pairs = [_fma(b, high, x, low) for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
        if len(terms) > 1:
            x = b.fmul(x, x)
    return terms[0]


def _below(b: Builder, x: Val, limit: float) -> Val:
    """min(x, limit); NaN stays NaN."""
    c = b.const(x.ty, limit)
    return b.select(b.fcmp("olt", c, x), c, x)


def _above(b: Builder, x: Val, limit: float) -> Val:
    """max(x, limit); NaN stays NaN."""
    c = b.const(x.ty, limit)
    return b.select(b.fcmp("ogt", c, x), c, x)


def _mantissa(b: Builder, x: Val) -> tuple[Val, Val]:
    """exp(x) as (m, n): m * 2**n with m near 1 and n an i32."""
    rounded = b.fma(x, b.const(x.ty, 1 / math.log(2.0)), b.const(x.ty, _ROUNDER))
    whole = b.fsub(rounded, b.const(x.ty, _ROUNDER))
    r = b.fma(whole, b.const(x.ty, -_LN2_HIGH), x)
    r = b.fma(whole, b.const(x.ty, -_LN2_LOW), r)
    tail = b.fma(b.fmul(r, r), polynomial(b, r, _EXP), r)
    return b.fadd(tail, b.const(x.ty, 1.0)), b.sub(b.as_bits(rounded), b.const("i32", _ROUNDER_BITS))


def _power_of_two(b: Builder, n: Val) -> Val:
    """2**n for an i32 n from -126 to 127."""
    exponent = b.binary("shl", b.add(n, b.const("i32", 127)), b.const("i32", 23))
    return b.convert("bitcast", exponent, "float")


def exp(b: Builder, x: Val) -> Val:
    mantissa, n = _mantissa(b, _above(b, _below(b, x, _EXP_HIGH), _EXP_LOW))
    # In two steps: the result may be denormal or infinite where both factors are normal.
    half = b.binary("ashr", n, b.const("i32", 1))
    return b.fmul(b.fmul(mantissa, _power_of_two(b, half)), _power_of_two(b, b.sub(n, half)))


def _exp_moderate(b: Builder, x: Val) -> Val:
    """exp(x) where the result is a normal number."""
    mantissa, n = _mantissa(b, x)
    return b.fmul(mantissa, _power_of_two(b, n))


def tanh(b: Builder, x: Val) -> Val:
    """Odd polynomial near 0, else 1 - 2 / (exp(2 |x|) + 1)."""
    one = b.const(x.ty, 1.0)
    square, size = b.fmul(x, x), b.fabs(x)
    near = b.fma(b.fmul(square, x), polynomial(b, square, _TANH), x)
    limited = _below(b, size, _TANH_ONE)
    grown = b.fadd(_exp_moderate(b, b.fadd(limited, limited)), one)
    far = b.copysign(b.fsub(one, b.fdiv(b.const(x.ty, 2.0), grown)), x)
    return b.select(b.fcmp("olt", size, b.const(x.ty, _TANH_CUT)), near, far)


def erf(b: Builder, x: Val) -> Val:
    """Odd polynomial near 0, else 1 - exp(log(erfc(|x|)))."""
    size = b.fabs(x)
    near = b.fma(x, polynomial(b, b.fmul(x, x), _ERF), x)
    rest = _exp_moderate(b, polynomial(b, _below(b, size, _ERF_ONE), _LOG_ERFC))
    far = b.copysign(b.fsub(b.const(x.ty, 1.0), rest), x)
    return b.select(b.fcmp("olt", size, b.const(x.ty, _ERF_CUT)), near, far)


def log_normal_number(b: Builder, x: Val) -> Val:
    """log(x) of positive normal numbers, on every target."""
    bits = b.as_bits(x)
    exponent = b.binary("ashr", b.sub(bits, b.const("i32", _SQRT_HALF_BITS)), b.const("i32", 23))
    mantissa = b.convert("bitcast", b.sub(bits, b.binary("shl", exponent, b.const("i32", 23))), "float")
    f, n = b.fsub(mantissa, b.const(x.ty, 1.0)), b.convert("sitofp", exponent, "float")
    square = b.fmul(f, f)
    tail = _fma(b, b.fmul(square, f), polynomial(b, f, _LOG), b.fmul(n, b.const(x.ty, _LN2_LOW)))
    tail = _fma(b, square, b.const(x.ty, -0.5), tail)
    return b.fadd(_fma(b, n, b.const(x.ty, _LN2_HIGH), f), tail)


def normal_quantile(b: Builder, v: Val) -> Val:
    """x > 0 such that a standard normal number is beyond -x or x with chance v; float, 2**-32 <= v <= 1, on every
    target. Relative error below 1e-6: not for an op on data, but far finer than any sample of numbers shows."""
    one = b.const(v.ty, 1.0)
    depth = log_normal_number(b, b.fmul(v, b.fsub(b.const(v.ty, 2.0), v)))
    root = b.sqrt(b.fsub(b.const(v.ty, _NORMAL_SHIFT), depth))
    return b.fmul(b.fsub(one, v), polynomial(b, b.fsub(root, b.const(v.ty, _NORMAL_MIDDLE)), _NORMAL))


FUNCTIONS: dict[str, Callable[[Builder, Val], Val]] = {"exp": exp, "tanh": tanh, "erf": erf}
