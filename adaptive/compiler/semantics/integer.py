"""Integer: division, remainders, powers, shifts and bits. Everything wraps at the operand's width; nothing traps."""

from __future__ import annotations

from adaptive_eager.compiler.builder import Builder, Val, bits_of
from adaptive_eager.compiler.semantics.registry import row


def _safe_divisor(b: Builder, x: Val, y: Val, dtype: str) -> tuple[Val, Val]:
    """A divisor that cannot trap, and whether the true one is -1 (INT_MIN / -1 traps as well). Zero is reported."""
    zero = b.icmp("eq", y, b.const(y.ty, 0))
    b.report_if_any(zero)
    minus_one = b.const("i1", False) if dtype == "u8" else b.icmp("eq", y, b.const(y.ty, -1))
    unsafe = zero if dtype == "u8" else b.or_(zero, minus_one)
    return b.select(unsafe, b.const(y.ty, 1), y), minus_one


def _quotient(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    """Truncated quotient by a divisor that is neither 0 nor -1.

    No vector unit divides integers. Up to 32 bits a float division is exact enough: the true quotient is either whole
    or at least 1/|y| away from a whole number, more than the rounding error of float (16 bits) or double (32 bits).
    """
    bits = bits_of(x.ty)
    if bits == 64:
        return b.binary("sdiv", x, y)
    wide = "float" if bits <= 16 else "double"
    up = "uitofp" if dtype == "u8" else "sitofp"
    exact = b.fdiv(b.convert(up, x, wide), b.convert(up, y, wide))
    whole = b.convert("fptosi", exact, "i32")
    return whole if bits == 32 else b.convert("trunc", whole, x.ty)


def divide_trunc(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    """C division; by -1 wraps, by 0 sets the error flag."""
    divisor, minus_one = _safe_divisor(b, x, y, dtype)
    quotient = _quotient(b, x, divisor, dtype)
    if dtype == "u8":
        return quotient
    return b.select(minus_one, b.sub(b.const(x.ty, 0), x), quotient)


def remainder_trunc(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    """C remainder (sign of the dividend); by -1 it is 0, by 0 sets the error flag."""
    divisor, minus_one = _safe_divisor(b, x, y, dtype)
    rest = b.sub(x, b.mul(_quotient(b, x, divisor, dtype), divisor))
    return rest if dtype == "u8" else b.select(minus_one, b.const(x.ty, 0), rest)


def _needs_floor(b: Builder, rest: Val, y: Val) -> Val:
    """Whether truncation went up: a rest, of the other sign than the divisor."""
    zero = b.const(y.ty, 0)
    return b.and_(b.icmp("ne", rest, zero), b.icmp("slt", b.xor(rest, y), zero))


def divide_floor(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    """Python's //."""
    divisor, minus_one = _safe_divisor(b, x, y, dtype)
    quotient = _quotient(b, x, divisor, dtype)
    if dtype == "u8":
        return quotient
    rest = b.sub(x, b.mul(quotient, divisor))
    floored = b.select(_needs_floor(b, rest, divisor), b.sub(quotient, b.const(x.ty, 1)), quotient)
    return b.select(minus_one, b.sub(b.const(x.ty, 0), x), floored)


def remainder_floor(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    """Python's %: sign of the divisor."""
    rest = remainder_trunc(b, x, y, dtype)
    return rest if dtype == "u8" else b.select(_needs_floor(b, rest, y), b.add(rest, y), rest)


def power(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    """x ** y by squaring, wrapping. A negative exponent gives 1 for x = 1, +-1 for x = -1, else 0 (ATen's powi)."""
    helper = f"power.{dtype}"
    v, mask = b.vector(x.ty), f"<{b.lanes} x i1>"
    if helper not in b.helpers:
        signed = dtype != "u8"
        inner = Builder(b.target, b.declarations, b.helpers)
        base, exponent = Val("%base", x.ty, 0), Val("%exponent", x.ty, 0)
        lines = inner.streams[0]
        zero, one = inner.const(x.ty, 0), inner.const(x.ty, 1)
        result = Val("%result", x.ty, 0)
        odd = inner.icmp("ne", inner.and_(exponent, one), zero)
        product = inner.select(odd, inner.mul(result, base), result)
        square = inner.mul(base, base)
        rest = inner.binary("lshr", exponent, one)
        more = inner.icmp("ne", rest, zero)
        bits = inner.put(0, f"bitcast {mask} {more.ref} to i{b.lanes}")
        any_more = inner.put(0, f"icmp ne i{b.lanes} {bits}, 0")
        lines.append(f"br i1 {any_more}, label %loop, label %done\ndone:")
        answer = product
        if signed:
            x0, y0 = Val("%x", x.ty, 0), Val("%y", x.ty, 0)
            is_one = inner.icmp("eq", x0, one)
            is_minus = inner.icmp("eq", x0, inner.const(x.ty, -1))
            y_odd = inner.icmp("ne", inner.and_(y0, one), zero)
            unit = inner.select(y_odd, inner.const(x.ty, -1), one)
            inverse = inner.select(is_one, one, inner.select(is_minus, unit, zero))
            answer = inner.select(inner.icmp("slt", y0, zero), inverse, product)
        body = "\n".join(lines)
        b.helpers[helper] = f"""define internal {v} @{helper}({v} %x, {v} %y) #0 {{
entry:
br label %loop
loop:
%base = phi {v} [ %x, %entry ], [ {square.ref}, %loop ]
%exponent = phi {v} [ %y, %entry ], [ {rest.ref}, %loop ]
%result = phi {v} [ {one.ref}, %entry ], [ {product.ref}, %loop ]
{body}
ret {v} {answer.ref}
}}"""
    return b.call(helper, x.ty, x, y)


def _bits_row(name: str, op: str) -> None:
    @row(name, 2, domain="integral")
    def emit(b, args, dtype, attrs):
        return b.binary(op, args[0], args[1])


for _name in ("and", "or", "xor"):
    _bits_row(f"bitwise_{_name}", _name)


@row("bitwise_not", 1, domain="integral")
def _bitwise_not(b, args, dtype, attrs):
    return b.not_(args[0])


def _outside(b: Builder, y: Val) -> Val:
    """Whether a shift count is negative or not below the width (LLVM's shifts are poison there)."""
    return b.icmp("uge", y, b.const(y.ty, bits_of(y.ty)))


@row("bitwise_left_shift", 2, domain="integer")
def _left_shift(b, args, dtype, attrs):
    x, y = args
    outside = _outside(b, y)
    shifted = b.binary("shl", x, b.select(outside, b.const(y.ty, 0), y))
    return b.select(outside, b.const(x.ty, 0), shifted)


@row("bitwise_right_shift", 2, domain="integer")
def _right_shift(b, args, dtype, attrs):
    x, y = args
    outside = _outside(b, y)
    if dtype == "u8":
        shifted = b.binary("lshr", x, b.select(outside, b.const(y.ty, 0), y))
        return b.select(outside, b.const(x.ty, 0), shifted)
    return b.binary("ashr", x, b.select(outside, b.const(y.ty, bits_of(y.ty) - 1), y))
