"""Random calls of one op: source of an expression, and operands of all dtypes, layouts and values."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
INTS = (*SIGNED, torch.uint8)
ALL = (*FLOATS, *INTS, torch.bool)
NUMBERS = (*FLOATS, *INTS)


def words(text):
    return tuple(text.split())


UNARY = words(
    "neg abs sign sgn floor ceil round trunc frac exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos "
    "tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma sigmoid logit relu isnan isinf "
    "isfinite isposinf isneginf signbit logical_not bitwise_not square positive deg2rad rad2deg nan_to_num "
    "erfinv digamma i0"
)
ACTIVATIONS = words(
    "silu mish gelu hardswish hardsigmoid elu leaky_relu hardtanh relu6 softplus softshrink hardshrink celu selu "
    "logsigmoid tanhshrink softsign"
)
BINARY = words(
    "add sub rsub mul div true_divide floor_divide remainder fmod pow float_power maximum minimum fmax fmin atan2 "
    "copysign hypot xlogy logaddexp logaddexp2 heaviside eq ne lt le gt ge logical_and logical_or logical_xor "
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift nextafter gcd"
)
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "<", ">=", "==", "!=")
REDUCE = ("sum", "mean", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "std", "var", "nansum", "logsumexp")
NORMS = ("0", "1", "2", "3", "0.5", "float('inf')", "-float('inf')")
IN_PLACE = words(
    "add_ sub_ mul_ div_ floor_divide_ remainder_ fmod_ pow_ copysign_ eq_ lt_ ge_ logical_and_ logical_or_ "
    "bitwise_and_ bitwise_xor_ clamp_min_ clamp_max_ copy_ fill_ atan2_ hypot_ xlogy_ masked_fill_"
)
UNARY_IN_PLACE = words("neg_ abs_ exp_ sqrt_ floor_ round_ sigmoid_ tanh_ relu_ reciprocal_ sin_ bitwise_not_ zero_")
SCALARS = (
    "0",
    "1",
    "2",
    "3",
    "-1",
    "-2",
    "7",
    "0.5",
    "2.0",
    "-1.25",
    "0.1",
    "1e-3",
    "3.7",
    "True",
    "False",
    "255",
    "100",
)
SHAPES = (
    (),
    (1,),
    (3,),
    (7,),
    (33,),
    (4, 5),
    (1, 5),
    (4, 1),
    (3, 4, 5),
    (2, 1, 5),
    (3, 1, 1),
    (0,),
    (0, 5),
    (2, 70),
    (130,),
)
OUT_OPS = (
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "maximum",
    "fmod",
    "eq",
    "atan2",
    "exp",
    "sqrt",
    "abs",
    "floor",
    "sigmoid",
)


@dataclass
class Call:
    """One call. `source` reads operands a, b, c; `operands` are CPU tensors; `written` names those it changes."""

    source: str
    operands: dict[str, torch.Tensor] = field(default_factory=dict)
    written: tuple[str, ...] = ()

    def describe(self) -> str:
        lines = [self.source]
        for name, t in self.operands.items():
            values = t.flatten()[:40].tolist()
            lines.append(f"  {name}: {t.dtype} {tuple(t.shape)} strides {t.stride()} +{t.storage_offset()} {values}")
        return "\n".join(lines)


class Drawer:
    """Draws calls from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.tame = False  # whether values stay small, so that no intermediate result overflows

    # -- operands ----------------------------------------------------------------------------------------------------

    def values(self, dtype: torch.dtype, n: int) -> torch.Tensor:
        style = self.random.random() * (0.6 if self.tame else 1)
        if dtype == torch.bool:
            return torch.randint(0, 2, (n,), generator=self.generator).bool()
        if dtype.is_floating_point:
            info = torch.finfo(dtype)
            if style < 0.5:
                return (torch.randn(n, generator=self.generator, dtype=torch.float64) * 3).to(dtype)
            if style < 0.65:
                return torch.randint(-6, 7, (n,), generator=self.generator).to(dtype)
            if style < 0.75:  # any magnitude
                exponents = torch.rand(n, generator=self.generator, dtype=torch.float64) * 2 - 1
                signs = torch.randint(0, 2, (n,), generator=self.generator) * 2 - 1
                return (signs * 10 ** (exponents * (4 if dtype == torch.float16 else 30))).to(dtype)
            inf, nan = float("inf"), float("nan")
            extremes = (info.max, info.min, info.tiny, -info.tiny, info.tiny / 8, info.eps)
            usual = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 3.0, -3.0, 1e-4, 88.0, 127.5, 255.0, -4.0)
            edges = (*usual, *extremes, nan, inf, -inf)
            picks = torch.randint(0, len(edges), (n,), generator=self.generator)
            return torch.tensor(edges, dtype=torch.float64)[picks].to(dtype)
        info = torch.iinfo(dtype)
        if style < 0.6:
            low = 0 if info.min == 0 else -10
            return torch.randint(low, 11, (n,), generator=self.generator).to(dtype)
        if style < 0.8:
            low, high = max(info.min, -(2**62)), min(info.max, 2**62)
            return torch.randint(low, high, (n,), generator=self.generator).to(dtype)
        edges = [0, 1, 2, 3, 7, info.max, info.max - 1, info.min, info.min + 1, *([-1, -2] if info.min < 0 else [])]
        picks = torch.randint(0, len(edges), (n,), generator=self.generator)
        return torch.tensor(edges, dtype=dtype)[picks]

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], writable: bool = False) -> torch.Tensor:
        """A tensor of a random layout; `writable` ones do not overlap themselves."""
        r = self.random
        n = 1
        for s in shape:
            n *= s
        draw = r.random()
        if draw < 0.5 or not shape:
            return self.values(dtype, n).view(shape)
        if draw < 0.65:
            order = list(range(len(shape)))
            r.shuffle(order)
            permuted = self.values(dtype, n).view([shape[d] for d in order])
            return permuted.permute([order.index(d) for d in range(len(shape))])
        if draw < 0.8:
            d = r.randrange(len(shape))
            wide = [*shape]
            step, start = r.choice((1, 2, 3)), r.choice((0, 1, 2))
            wide[d] = shape[d] * step + start
            total = 1
            for s in wide:
                total *= s
            index = [slice(None)] * len(shape)
            index[d] = slice(start, start + shape[d] * step, step)
            return self.values(dtype, total).view(wide)[tuple(index)]
        if draw < 0.9 and not writable:
            small = [1 if r.random() < 0.5 else s for s in shape]
            total = 1
            for s in small:
                total *= s
            return self.values(dtype, total).view(small).expand(shape)
        if draw < 0.95 and not writable and n:
            strides = [r.choice((0, 1, 2, 3)) for _ in shape]
            length = sum((s - 1) * k for s, k in zip(shape, strides, strict=True)) + 2
            return self.values(dtype, length).as_strided(shape, strides, 1)
        return self.values(dtype, n + 3)[3:].view(shape)

    def partner(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts with `shape`."""
        draw = self.random.random()
        if draw < 0.6:
            return shape
        if draw < 0.7:
            return ()
        kept = shape[self.random.randrange(len(shape) + 1) :]
        return tuple(1 if self.random.random() < 0.3 else s for s in kept)

    def dtype(self, like: torch.dtype | None = None) -> torch.dtype:
        if like is not None and self.random.random() < 0.55:
            return like
        return self.random.choice(ALL)

    def scalar(self) -> str:
        return self.random.choice(SCALARS)

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self) -> Call:
        r, draw = self.random, self.random.random()
        dtype, shape = self.dtype(), r.choice(SHAPES)
        if draw < 0.14:
            return Call(f"torch.{r.choice(UNARY)}(a)", {"a": self.tensor(dtype, shape)})
        if draw < 0.19:
            extra = (
                r.choice(("", "", ", 0.3")) if (name := r.choice(ACTIVATIONS)) in ("elu", "leaky_relu", "celu") else ""
            )
            return Call(f"torch.nn.functional.{name}(a{extra})", {"a": self.tensor(dtype, shape)})
        if draw < 0.34:
            return self.binary(f"torch.{r.choice(BINARY)}(a, b)", dtype, shape)
        if draw < 0.44:
            op, s = r.choice(OPERATORS), self.scalar()
            source = f"a {op} {s}" if r.random() < 0.7 else f"{s} {op} a"
            return Call(source, {"a": self.tensor(dtype, shape)})
        if draw < 0.48:
            mode = r.choice(("floor", "trunc"))
            if r.random() < 0.5:
                call = self.binary(f"torch.div(a, b, rounding_mode='{mode}')", dtype, shape)
            else:
                call = Call(f"torch.div(a, {self.scalar()}, rounding_mode='{mode}')", {"a": self.tensor(dtype, shape)})
            a = call.operands["a"]
            if a.dtype in SIGNED:  # the smallest one divided by -1 stops the process, on the CPU
                smallest = torch.iinfo(a.dtype).min
                call.operands["a"] = torch.where(a == smallest, smallest + 1, a)
            return call
        if draw < 0.52:
            op = r.choice(("add", "sub"))
            return self.binary(f"torch.{op}(a, b, alpha={self.scalar()})", dtype, shape)
        if draw < 0.62:
            return self.reduction(dtype, shape)
        if draw < 0.70:
            name = r.choice(IN_PLACE)
            if name.startswith("clamp") and dtype == torch.bool:
                dtype = torch.int8  # the CPU takes bools with a tensor as bound, and not with a number
            a = self.tensor(dtype, shape, writable=True)
            if name == "masked_fill_":
                mask = self.tensor(torch.bool, self.partner(shape))
                return Call(f"a.masked_fill_(b, {self.scalar()})", {"a": a, "b": mask}, ("a",))
            if r.random() < 0.4 and name not in ("copy_", "atan2_", "hypot_"):
                return Call(f"a.{name}({self.scalar()})", {"a": a}, ("a",))
            other = () if name == "fill_" else self.partner(shape)
            return Call(f"a.{name}(b)", {"a": a, "b": self.tensor(self.dtype(dtype), other)}, ("a",))
        if draw < 0.73:
            return Call(f"a.{r.choice(UNARY_IN_PLACE)}()", {"a": self.tensor(dtype, shape, writable=True)}, ("a",))
        if draw < 0.79:
            return self.out_call(dtype, shape)
        if draw < 0.84:
            return Call(f"a.to({r.choice(ALL)})", {"a": self.tensor(dtype, shape)})
        if draw < 0.88:
            condition = self.tensor(torch.bool, self.partner(shape))
            if r.random() < 0.3:
                return Call(f"torch.where(c, a, {self.scalar()})", {"a": self.tensor(dtype, shape), "c": condition})
            call = self.binary("torch.where(c, a, b)", dtype, shape)
            call.operands["c"] = condition
            return call
        if draw < 0.92:
            if r.random() < 0.5:
                low, high = r.choice(("None", self.scalar())), self.scalar()
                return Call(f"torch.clamp(a, {low}, {high})", {"a": self.tensor(dtype, shape)})
            call = self.binary("torch.clamp(a, b, c)", dtype, shape)
            call.operands["c"] = self.tensor(self.dtype(dtype), self.partner(shape))
            return call
        if draw < 0.96:
            name = r.choice(("addcmul", "addcdiv", "lerp"))
            value = f", value={self.scalar()}" if name != "lerp" and r.random() < 0.6 else ""
            if name == "lerp" and r.random() < 0.5:
                return self.binary(f"torch.lerp(a, b, {self.scalar()})", dtype, shape)
            call = self.binary(f"torch.{name}(a, b, c{value})", dtype, shape)
            call.operands["c"] = self.tensor(self.dtype(dtype), self.partner(shape))
            return call
        if draw < 0.975 and shape:
            return self.look_up(dtype, shape)
        if draw < 0.98:
            name = r.choice(("softmax", "log_softmax", "cumsum", "cumprod", "sort", "flip", "roll"))
            argument = {"flip": "(-1,)", "roll": "1, -1"}.get(name, "-1")
            return Call(f"torch.{name}(a, {argument})", {"a": self.tensor(dtype, shape)})
        self.tame = True
        return Call(f"torch.linalg.vector_norm(a, {r.choice(NORMS)})", {"a": self.tensor(dtype, shape)})

    def look_up(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
        """A gather or a scatter; some indices are out of range."""
        r, d = self.random, self.random.randrange(len(shape))
        a = self.tensor(dtype, shape)
        sizes = r.choice(((), (1,), (3,), (2, 4)))
        source = r.choice(("a[i]", "a[..., i]", "a.take(i)", f"a.index_select({d}, i)", f"a.gather({d}, i)"))
        if "gather" in source:
            sizes = tuple(r.choice((1, 3, 20)) if k == d else r.choice((1, n)) for k, n in enumerate(shape))
        elif "select" in source:
            sizes = sizes[:1]
        limit = {"a[i]": shape[0], "a[..., i]": shape[-1], "a.take(i)": a.numel()}.get(source, shape[d])
        low = -limit if "[" in source or "take" in source else 0
        # The CPU's index_select has another error along dim 1.
        high = max(limit, 1) + (r.random() < 0.05 and "select" not in source)
        index = torch.randint(min(low, high - 1), high, sizes, generator=self.generator)
        wide = torch.int32 if r.random() < 0.3 and "take" not in source else torch.int64
        return Call(source, {"a": a, "i": index.to(wide)})

    def binary(self, source: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
        other = self.dtype(dtype)
        operands = {"a": self.tensor(dtype, shape), "b": self.tensor(other, self.partner(shape))}
        if self.random.random() < 0.15:
            operands = {"a": operands["b"], "b": operands["a"]}
        return Call(source, operands)

    def reduction(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
        r = self.random
        name = r.choice(REDUCE)
        # Their intermediate results overflow, and the CPU's are in other dtypes and another order.
        self.tame = name in ("prod", "std", "var")
        arguments = []
        if (r.random() < 0.6 and shape) or name == "logsumexp":
            arguments.append(f"dim={r.choice(('0', '-1'))}")
            if r.random() < 0.4:
                arguments.append("keepdim=True")
        if name in ("sum", "mean", "prod", "nansum") and r.random() < 0.35:
            arguments.append(f"dtype={r.choice(ALL)}")
        return Call(f"a.{name}({', '.join(arguments)})", {"a": self.tensor(dtype, shape)})

    def out_call(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
        r = self.random
        name = r.choice(OUT_OPS)
        into = self.dtype(dtype)
        if name in ("exp", "sqrt", "abs", "floor", "sigmoid"):
            call = Call(f"torch.{name}(a, out=o)", {"a": self.tensor(dtype, shape)}, ("o",))
            result = shape
        else:
            call = self.binary(f"torch.{name}(a, b, out=o)", dtype, shape)
            call.written = ("o",)
            result = torch.broadcast_shapes(call.operands["a"].shape, call.operands["b"].shape)
        call.operands["o"] = self.tensor(into, tuple(result), writable=True)
        return call
