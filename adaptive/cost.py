"""Cost: how much work a kernel does at a point, to decide when a second thread pays.

The unit is a quarter of what `a + b` on float32 in cache costs: two loads, an addition, a store. Weights were measured
with bench/op_cost.py on one AVX2 core; only their size matters.
"""

from __future__ import annotations

from adaptive_eager.compiler.loop_ir import Kernel

_WEIGHTS = {
    "exp": 12, "exp2": 12, "expm1": 16, "sigmoid": 12, "silu": 14, "log": 16, "log2": 16, "log10": 16, "log1p": 18,
    "tanh": 26, "sinh": 26, "cosh": 26, "erf": 30, "erfc": 40, "gelu": 34, "gelu_backward": 44, "sin": 22, "cos": 22,
    "tan": 30, "asin": 22, "acos": 22, "atan": 22, "atan2": 34, "pow": 48, "lgamma": 80, "mish": 44,
    "mish_backward": 60, "softplus": 28, "elu": 16, "logaddexp": 40, "xlogy": 18, "logit": 20, "asinh": 40,
    "acosh": 40, "atanh": 40, "remainder": 12, "fmod": 12, "floor_divide": 12, "div": 2, "sqrt": 3,
}  # fmt: skip


def kernel_cost(kernel: Kernel) -> int:
    """Work at one point of the kernel's loop nest, in quarters of a float32 addition."""
    instructions = sum(_WEIGHTS.get(i.op, 0 if i.op == "scalar" else 1) for i in kernel.program)
    return max(1, instructions + len(kernel.stores))
