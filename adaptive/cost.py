"""Cost: how much work a kernel does at a point, to decide when a second thread pays.

The unit is a quarter of what `a + b` on float32 in cache costs: two loads, an addition, a store. Weights are
rough, from single measurements on one AVX2 core (bench/op_cost.py measures them); only their size matters.
"""

from __future__ import annotations

from adaptive_eager.compiler.loop_ir import BROADCAST, Kernel
from adaptive_eager.trace import GATHERS

_WEIGHTS = {
    "exp": 16, "exp2": 16, "expm1": 60, "sigmoid": 24, "silu": 24, "log": 42, "log2": 44, "log10": 44, "log1p": 46,
    "tanh": 32, "sinh": 100, "cosh": 96, "erf": 38, "erfc": 180, "gelu": 40, "gelu_backward": 60, "sin": 44, "cos": 48,
    "tan": 72, "asin": 40, "acos": 46, "atan": 54, "atan2": 84, "pow": 160, "lgamma": 340, "mish": 130,
    "mish_backward": 150, "softplus": 92, "elu": 64, "logaddexp": 90, "xlogy": 43, "logit": 47, "asinh": 145,
    "bernoulli": 18, "uniform_": 18, "normal_": 40, "log_normal_": 56, "exponential_": 30, "geometric_": 30,
    "cauchy_": 60, "random_": 38,
    **dict.fromkeys(GATHERS, 12),
    "acosh": 120, "atanh": 75, "remainder": 52, "fmod": 48, "floor_divide": 76, "div": 2, "sqrt": 4,
}  # fmt: skip


def op_cost(op: str) -> int:
    """Work of one op at one point, in quarters of a float32 addition with its loads and store."""
    return _WEIGHTS.get(op, 0 if op in ("scalar", "constant") else 1)


def kernel_cost(kernel: Kernel) -> int:
    """Work at one point of the kernel's loop nest, in quarters of a float32 addition."""
    last = len(kernel.dims) - 1
    along: list[set[int]] = []  # loop dims along which each value changes
    total = len(kernel.stores)
    for i in kernel.program:
        of_operands = set().union(*(along[a] for a in i.args if a >= 0))
        own: set[int] = set()
        if i.op in ("load", "gather"):
            own = {d for d, move in enumerate(kernel.accesses[int(i.attrs[0])].moves) if move != BROADCAST}
        elif i.op == "index":
            own = {int(d) for d in i.attrs}
        along.append(of_operands | own)
        if along[-1]:  # else it is the same at every point, and computed once a call
            row = i.op == "gather" and last not in of_operands
            total += op_cost("load" if row else i.op)
    return max(1, total)
