"""Cost: how much work a kernel does at a point, to decide when a second thread pays.

The unit is a quarter of what `a + b` on float32 in cache costs: two loads, an addition, a store. Weights are
rough, from single measurements on one AVX2 core (bench/op_cost.py measures them); only their size matters.
"""

from __future__ import annotations

from adaptive_eager.compiler.loop_ir import Kernel

_WEIGHTS = {
    "exp": 24, "exp2": 24, "expm1": 32, "sigmoid": 24, "silu": 28, "log": 32, "log2": 32, "log10": 32, "log1p": 36,
    "tanh": 52, "sinh": 52, "cosh": 52, "erf": 60, "erfc": 80, "gelu": 68, "gelu_backward": 88, "sin": 44, "cos": 44,
    "tan": 60, "asin": 44, "acos": 44, "atan": 44, "atan2": 68, "pow": 96, "lgamma": 160, "mish": 88,
    "mish_backward": 120, "softplus": 56, "elu": 32, "logaddexp": 80, "xlogy": 36, "logit": 40, "asinh": 80,
    "acosh": 80, "atanh": 80, "remainder": 24, "fmod": 24, "floor_divide": 24, "div": 2, "sqrt": 3,
}  # fmt: skip


def kernel_cost(kernel: Kernel) -> int:
    """Work at one point of the kernel's loop nest, in quarters of a float32 addition."""
    instructions = sum(_WEIGHTS.get(i.op, 0 if i.op == "scalar" else 1) for i in kernel.program)
    return max(1, instructions + len(kernel.stores))
