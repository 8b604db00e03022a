"""Conversion: values between dtypes, and between a dtype's memory form and the form programs compute in.

dtype   in memory   in a program
bool    i8          i1; any nonzero byte is true, 0 or 1 is stored
bf16    i16         float that a bf16 can hold exactly
f16     i16/half    float that an f16 can hold exactly
others  themselves
"""

from __future__ import annotations

from adaptive_eager.compiler.builder import Builder, Val, bits_of

#: dtype -> LLVM element type in a program.
PROGRAM_TYPE = {
    "bool": "i1", "u8": "i8", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64",
    "f16": "float", "bf16": "float", "f32": "float", "f64": "double",
}  # fmt: skip
#: dtype -> LLVM element type in memory.
MEMORY_TYPE = {**PROGRAM_TYPE, "bool": "i8", "f16": "i16", "bf16": "i16"}
FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
HALVES = frozenset({"f16", "bf16"})
INTEGERS = frozenset({"u8", "i8", "i16", "i32", "i64"})


def opmath(dtype: str) -> str:
    """The dtype that arithmetic on `dtype` works in (at::opmath_type)."""
    return "f32" if dtype in HALVES else dtype


def from_memory(b: Builder, raw: Val, dtype: str) -> Val:
    """Program form of loaded elements."""
    if dtype == "bool":
        return b.icmp("ne", raw, b.const("i8", 0))
    if dtype == "bf16":
        wide = b.convert("zext", raw, "i32")
        return b.convert("bitcast", b.binary("shl", wide, b.const("i32", 16)), "float")
    if dtype == "f16":
        return _half_to_float(b, raw)
    return raw


def to_memory(b: Builder, value: Val, dtype: str) -> Val:
    """Memory form of a value of `dtype`."""
    if dtype == "bool":
        return b.convert("zext", value, "i8")
    if dtype == "bf16":
        return b.convert("trunc", b.binary("lshr", b.as_bits(value), b.const("i32", 16)), "i16")
    if dtype == "f16":
        return _float_to_half(b, value)
    return value


def cast(b: Builder, value: Val, source: str, target: str) -> Val:
    """Convert between dtypes as torch's `copy_` does on the CPU.

    float -> int truncates toward zero and wraps to narrow types; NaN and values out of range give a fixed but
    unspecified integer (torch's own result is undefined there).
    """
    if source == target:
        return value
    if target == "bool":
        if source in FLOATS:
            return b.fcmp("une", value, b.const(value.ty, 0.0))
        return b.icmp("ne", value, b.const(value.ty, 0))
    if target in FLOATS:
        return _round_to(b, _to_float(b, value, source, PROGRAM_TYPE[target]), source, target)
    ty = PROGRAM_TYPE[target]
    if source == "bool":
        return b.convert("zext", value, ty)
    if source in FLOATS:
        # Out of range is poison in LLVM: freeze makes it some number. Narrow integers go through 32 bits and wrap.
        wide = "i64" if target == "i64" else "i32"
        whole = b.freeze(b.convert("fptosi", value, wide))
        return whole if wide == ty else b.convert("trunc", whole, ty)
    if bits_of(ty) == bits_of(value.ty):
        return value
    if bits_of(ty) < bits_of(value.ty):
        return b.convert("trunc", value, ty)
    return b.convert("zext" if source == "u8" else "sext", value, ty)


def _to_float(b: Builder, value: Val, source: str, ty: str) -> Val:
    """Any dtype to float or double."""
    if source in FLOATS:
        if value.ty == ty:
            return value
        return b.convert("fptrunc" if ty == "float" else "fpext", value, ty)
    return b.convert("uitofp" if source in ("bool", "u8") else "sitofp", value, ty)


def _round_to(b: Builder, value: Val, source: str, target: str) -> Val:
    """Round a float to the half types; small integers already fit."""
    if target not in HALVES or source == "bool" or (source in ("u8", "i8")):
        return value
    return round_bf16(b, value) if target == "bf16" else round_f16(b, value)


def rounded(b: Builder, value: Val, dtype: str) -> Val:
    """A float as `dtype` holds it: for the few formulas in which ATen rounds half types midway."""
    return _round_to(b, value, "f32", dtype)


def round_bf16(b: Builder, value: Val) -> Val:
    """Round to nearest even bfloat16, kept as float. Integer arithmetic: `fptrunc` needs a library call or AVX512_BF16,
    which flushes subnormals. NaN stays NaN (the quiet one torch writes)."""
    bits = b.as_bits(value)
    odd = b.and_(b.binary("lshr", bits, b.const("i32", 16)), b.const("i32", 1))
    rounded = b.add(bits, b.add(odd, b.const("i32", 0x7FFF)))
    high = b.convert("bitcast", b.and_(rounded, b.const("i32", -0x10000)), "float")
    return b.select(b.is_nan(value), b.bits("float", 0x7FC00000), high)


def round_f16(b: Builder, value: Val) -> Val:
    """Round to nearest even half, kept as float."""
    return _half_to_float(b, _float_to_half(b, value))


def _half_to_float(b: Builder, raw: Val) -> Val:
    if b.target.has_f16c:
        return b.convert("fpext", b.convert("bitcast", raw, "half"), "float")
    # Move exponent and mantissa into place and rebias; subnormals are normalised by a float subtraction.
    wide = b.convert("zext", raw, "i32")
    sign = b.binary("shl", b.and_(wide, b.const("i32", 0x8000)), b.const("i32", 16))
    magnitude = b.binary("shl", b.and_(wide, b.const("i32", 0x7FFF)), b.const("i32", 13))
    exponent = b.and_(magnitude, b.const("i32", 0x7C00 << 13))
    normal = b.add(magnitude, b.const("i32", (127 - 15) << 23))
    special = b.add(normal, b.const("i32", (128 - 16) << 23))
    shifted = b.convert("bitcast", b.add(normal, b.const("i32", 1 << 23)), "float")
    subnormal = b.as_bits(b.fsub(shifted, b.bits("float", 113 << 23)))
    result = b.select(b.icmp("eq", exponent, b.const("i32", 0)), subnormal, normal)
    result = b.select(b.icmp("eq", exponent, b.const("i32", 0x7C00 << 13)), special, result)
    return b.convert("bitcast", b.or_(result, sign), "float")


def _float_to_half(b: Builder, value: Val) -> Val:
    if b.target.has_f16c:
        return b.convert("bitcast", b.convert("fptrunc", value, "half"), "i16")
    bits = b.as_bits(value)
    sign = b.and_(b.binary("lshr", bits, b.const("i32", 16)), b.const("i32", 0x8000))
    magnitude = b.and_(bits, b.const("i32", 0x7FFFFFFF))
    # Normal results: rebias and round to nearest even in integers; the carry may reach the exponent, up to infinity.
    odd = b.and_(b.binary("lshr", magnitude, b.const("i32", 13)), b.const("i32", 1))
    biased = b.add(b.add(magnitude, b.const("i32", ((15 - 127) << 23) + 0xFFF)), odd)
    normal = b.binary("lshr", biased, b.const("i32", 13))
    # Subnormal results: adding a half makes the float adder shift and round the mantissa for us.
    half = b.const("float", 0.5)
    aligned = b.as_bits(b.fadd(b.convert("bitcast", magnitude, "float"), half))
    subnormal = b.sub(aligned, b.as_bits(half))
    result = b.select(b.icmp("ult", magnitude, b.const("i32", 113 << 23)), subnormal, normal)
    infinite = b.icmp("uge", magnitude, b.const("i32", (127 + 16) << 23))
    result = b.select(infinite, b.const("i32", 0x7C00), result)
    result = b.select(b.icmp("ugt", magnitude, b.const("i32", 255 << 23)), b.const("i32", 0x7E00), result)
    return b.convert("trunc", b.or_(result, sign), "i16")
