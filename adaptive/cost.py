"""Cost: how much work a kernel does at a point, to decide when a second thread pays.

The unit is a quarter of what `a + b` on float32 in cache costs: two loads, an addition, a store. Weights are
rough, from single measurements on one AVX2 core (bench/op_cost.py measures them); only their size matters.
"""

from __future__ import annotations

from adaptive_eager.compiler.loop_ir import BROADCAST, Kernel

_WEIGHTS = {
    "exp": 16, "exp2": 16, "expm1": 60, "sigmoid": 24, "silu": 24, "log": 42, "log2": 44, "log10": 44, "log1p": 46,
    "tanh": 32, "sinh": 100, "cosh": 96, "erf": 38, "erfc": 180, "gelu": 40, "gelu_backward": 60, "sin": 44, "cos": 48,
    "tan": 72, "asin": 40, "acos": 46, "atan": 54, "atan2": 84, "pow": 160, "lgamma": 340, "mish": 130,
    "mish_backward": 150, "softplus": 92, "elu": 64, "logaddexp": 90, "xlogy": 43, "logit": 47, "asinh": 145,
    "bernoulli": 18, "uniform_": 18, "normal_": 40, "log_normal_": 56, "exponential_": 30, "geometric_": 30,
    "cauchy_": 60, "random_": 38,
    "acosh": 120, "atanh": 75, "remainder": 52, "fmod": 48, "floor_divide": 76, "div": 2, "sqrt": 4,
}  # fmt: skip


def op_cost(op: str) -> int:
    """Work of one op at one point, in quarters of a float32 addition with its loads and store."""
    return _WEIGHTS.get(op, 0 if op in ("scalar", "constant") else 1)


def kernel_cost(kernel: Kernel) -> int:
    """Work at one point of the kernel's loop nest, in quarters of a float32 addition."""
    uniform: list[bool] = []  # the same at every point: computed once a call
    for i in kernel.program:
        still = i.op == "load" and not kernel.accesses[int(i.attrs[0])].moves.strip(BROADCAST)
        uniform.append(
            i.op in ("scalar", "constant") or still or (bool(i.args) and all(a < 0 or uniform[a] for a in i.args))
        )
    moving = (i for i, same in zip(kernel.program, uniform, strict=True) if not same)
    return max(1, sum(op_cost(i.op) for i in moving) + len(kernel.stores))
