"""Vector mathematics: inline polynomials for the float32 functions that programs use most (`polynomial`), calls to the
SLEEF functions that libtorch_cpu.so exports for the others (generic target: the C library).

An element's bits must not depend on the lane it is in or on its neighbours. SLEEF promises that of its deterministic
variants (`Sleef_finz_*`). Where there is none, the plain variant is used, which was tested to keep the promise, except
for sin, cos and tan: those choose their argument reduction by looking at the whole vector. `_ranged` calls them once a
range with the other lanes filled from the same range, so that each element always takes its own path.
"""

from __future__ import annotations

from adaptive_eager.compiler import polynomial
from adaptive_eager.compiler.builder import Builder, CompileError, Val

#: Function -> SLEEF accuracy suffix (units in the last place, times ten).
_ACCURACY = {
    "exp": "u10", "exp2": "u10", "expm1": "u10", "log": "u10", "log2": "u10", "log10": "u10", "log1p": "u10",
    "sin": "u10", "cos": "u10", "tan": "u10", "asin": "u10", "acos": "u10", "atan": "u10",
    "sinh": "u10", "cosh": "u10", "tanh": "u10", "asinh": "u10", "acosh": "u10", "atanh": "u10",
    "erf": "u10", "erfc": "u15", "lgamma": "u10", "pow": "u10", "atan2": "u10", "hypot": "u05", "fmod": "",
}  # fmt: skip
#: Functions without a deterministic variant.
_PLAIN = {
    "float": {"sin", "cos", "tan"},
    "double": {"sin", "cos", "tan", "asin", "acos", "atan", "atan2", "exp", "exp2"},
}
_RANGED = ("sin", "cos", "tan")
#: Functions that square their argument, and so overflow long before their result does.
_OVERFLOWING = ("asinh", "acosh")
_HUGE = {"float": 1e12, "double": 1e100}
#: sin, cos, tan: limits of |x| between argument reductions, and an argument inside each range but the first
#: (sleefsimdsp.c TRIGRANGEMAX2f; sleefsimddp.c TRIGRANGEMAX2, TRIGRANGEMAX).
_RANGES = {"float": ((125.0, 256.0),), "double": ((15.0, 32.0), (1e14, 1e15))}


def functions() -> tuple[str, ...]:
    """Names that `math` accepts."""
    return tuple(_ACCURACY)


def math(b: Builder, function: str, *operands: Val) -> Val:
    """The function of each element. Operands are float or double vectors of one type."""
    ty = operands[0].ty
    if ty not in _PLAIN:
        raise CompileError(f"{function}: no vector function for {ty}")
    if ty == "float" and b.target.has_fma and function in polynomial.FUNCTIONS:
        return polynomial.FUNCTIONS[function](b, *operands)
    name, width = _symbol(b, function, ty)
    if width == 1:
        return b.call(_lane_by_lane(b, name, ty, len(operands)), ty, *operands)
    if function in _RANGED:
        return b.call(_ranged(b, function, name, width, ty), ty, *operands)
    if function in _OVERFLOWING:
        return b.call(_overflowing(b, function, name, width, ty), ty, *operands)
    return _call(b, name, width, ty, operands)


def _symbol(b: Builder, function: str, ty: str) -> tuple[str, int]:
    """Library symbol and its vector width.

    The generic target calls the C library lane by lane: libtorch_cpu.so has no SLEEF function narrower than AVX on x86.
    (On aarch64 it has Sleef_expf4_u10 and Sleef_expd2_u10, of the width of NEON; not used, as it could not be tried.)
    """
    letter = "f" if ty == "float" else "d"
    accuracy = _ACCURACY[function]
    if b.target.name == "generic":
        return function + ("f" if ty == "float" else ""), 1
    width = b.lanes if ty == "float" else b.lanes // 2
    isa = "avx512f" if b.target.name == "avx512" else "avx2"
    variant = "" if function in _PLAIN[ty] else "finz_"
    return f"Sleef_{variant}{function}{letter}{width}_{accuracy}{isa}", width


def _call(b: Builder, name: str, width: int, ty: str, operands: tuple[Val, ...]) -> Val:
    """Call a vector function of the target's lanes, or of half of them twice."""
    if width == b.lanes:
        return b.call(name, ty, *operands)
    level = max(o.level for o in operands)
    half = f"<{width} x {ty}>"
    b.declare(name, half, [half] * len(operands))
    parts = []
    for start in (0, width):
        lanes = ", ".join(f"i32 {i}" for i in range(start, start + width))
        pieces = [
            b.put(level, f"shufflevector {b.vector(ty)} {o.ref}, {b.vector(ty)} poison, <{width} x i32> <{lanes}>")
            for o in operands
        ]
        parts.append(b.put(level, f"call {half} @{name}({', '.join(f'{half} {p}' for p in pieces)})"))
    lanes = ", ".join(f"i32 {i}" for i in range(b.lanes))
    joined = b.put(level, f"shufflevector {half} {parts[0]}, {half} {parts[1]}, <{b.lanes} x i32> <{lanes}>")
    return Val(joined, ty, level)


def _lane_by_lane(b: Builder, name: str, ty: str, arity: int) -> str:
    """Helper that applies a scalar library function to each lane; returns its name."""
    helper = f"lanes.{name}"
    if helper in b.helpers:
        return helper
    v = b.vector(ty)
    b.declare(name, ty, [ty] * arity)
    lines = []
    result = "poison"
    for lane in range(b.lanes):
        for k in range(arity):
            lines.append(f"%x{k}.{lane} = extractelement {v} %x{k}, i32 {lane}")
        args = ", ".join(f"{ty} %x{k}.{lane}" for k in range(arity))
        lines.append(f"%y{lane} = call {ty} @{name}({args})")
        lines.append(f"%r{lane} = insertelement {v} {result}, {ty} %y{lane}, i32 {lane}")
        result = f"%r{lane}"
    parameters = ", ".join(f"{v} %x{k}" for k in range(arity))
    body = "\n".join(lines)
    b.helpers[helper] = f"define internal {v} @{helper}({parameters}) #0 {{\n{body}\nret {v} {result}\n}}"
    return helper


def _ranged(b: Builder, function: str, name: str, width: int, ty: str) -> str:
    """Helper that calls a range-dependent function once for each range some lane is in; returns its name."""
    helper = f"ranged.{function}.{ty}"
    if helper in b.helpers:
        return helper
    inner = Builder(b.target, b.declarations, b.helpers)
    v, mask = b.vector(ty), f"<{b.lanes} x i1>"
    x = Val("%x", ty, 0)
    lines = inner.streams[0]
    magnitude = inner.fabs(x)
    limits = _RANGES[ty]
    below = inner.fcmp("olt", magnitude, inner.const(ty, limits[0][0]))
    result = _call(inner, name, width, ty, (inner.select(below, x, inner.const(ty, 0.0)),))
    block = "%0"
    for k, (limit, inside) in enumerate(limits):
        # Lanes from this limit up to the next one; the last range also takes infinities and NaN.
        beyond = inner.not_(inner.fcmp("olt", magnitude, inner.const(ty, limit)))
        if k + 1 < len(limits):
            beyond = inner.and_(beyond, inner.fcmp("olt", magnitude, inner.const(ty, limits[k + 1][0])))
        bits = inner.put(0, f"bitcast {mask} {beyond.ref} to i{b.lanes}")
        some = inner.put(0, f"icmp ne i{b.lanes} {bits}, 0")
        lines.append(f"br i1 {some}, label %far{k}, label %join{k}\nfar{k}:")
        far = _call(inner, name, width, ty, (inner.select(beyond, x, inner.const(ty, inside)),))
        merged = inner.select(beyond, far, result)
        lines.append(f"br label %join{k}\njoin{k}:")
        joined = inner.put(0, f"phi {v} [ {result.ref}, {block} ], [ {merged.ref}, %far{k} ]")
        result, block = Val(joined, ty, 0), f"%join{k}"
    body = "\n".join(lines)
    b.helpers[helper] = f"define internal {v} @{helper}({v} %x) #0 {{\n{body}\nret {v} {result.ref}\n}}"
    return helper


def _overflowing(b: Builder, function: str, name: str, width: int, ty: str) -> str:
    """Helper for asinh and acosh that takes log|x| + log 2 for huge arguments, where it is exact; returns its name."""
    helper = f"wide.{function}.{ty}"
    if helper in b.helpers:
        return helper
    inner = Builder(b.target, b.declarations, b.helpers)
    v, lines, x = b.vector(ty), inner.streams[0], Val("%x", ty, 0)
    huge = inner.fcmp("oge", x if function == "acosh" else inner.fabs(x), inner.const(ty, _HUGE[ty]))
    near = _call(inner, name, width, ty, (inner.select(huge, inner.const(ty, 1.0), x),))
    bits = inner.put(0, f"bitcast <{b.lanes} x i1> {huge.ref} to i{b.lanes}")
    some = inner.put(0, f"icmp ne i{b.lanes} {bits}, 0")
    lines.append(f"br i1 {some}, label %far, label %near\nnear:\nret {v} {near.ref}\nfar:")
    far = inner.fadd(math(inner, "log", inner.fabs(x)), inner.const(ty, 0.6931471805599453))
    result = inner.select(huge, far if function == "acosh" else inner.copysign(far, x), near)
    lines.append(f"ret {v} {result.ref}")
    body = "\n".join(lines)
    b.helpers[helper] = f"define internal {v} @{helper}({v} %x) #0 {{\n{body}\n}}"
    return helper
