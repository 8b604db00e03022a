"""Cost of ops: measured weights beside those of adaptive/cost.py. Usage: python -m bench.op_cost [op ...]

Every op runs alone over 10,000 float32 elements in cache, on one thread, straight from the compiler. The unit is a
quarter of what `a + b` takes, and loads and stores count one each as they do in the table, so `add` itself is one. Ops
that are named need not be in the table: what is not there counts one.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
from dataclasses import dataclass, field

import numpy as np

from adaptive_eager import backend, cost
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.semantics import lookup
from bench.timer import Timer

ELEMENTS = 10_000
ROUNDS = 9
SECONDS = 0.004  # a round

#: Operands where they are not as many tensors as the op must have: "x" a tensor, a number a scalar.
OPERANDS: dict[str, tuple[str | float, ...]] = {
    "add": ("x", "x"), "sub": ("x", "x"), "elu": ("x", 1.0, 1.0, 1.0), "softplus": ("x", 1.0, 20.0),
    "leaky_relu": ("x", 0.01), "hardtanh": ("x", -1.0, 1.0), "clamp": ("x", 0.25, 0.75), "threshold": ("x", 0.5, 0.0),
    "nan_to_num": ("x",), "softshrink": ("x", 0.5), "hardshrink": ("x", 0.5), "addcmul": ("x", "x", "x", 1.0),
    "addcdiv": ("x", "x", "x", 1.0), "lerp": ("x", "x", 0.5), "logit": ("x",),
}  # fmt: skip
ATTRS = {"gelu": ("none",), "gelu_backward": ("none",)}
#: Where most ops have ordinary values, and the exceptions.
DOMAIN, DOMAINS = (0.05, 0.95), {"acosh": (1.05, 9.0)}


class Arguments(ctypes.Structure):
    """nrtx_kernel_args (native/nrt/kernel_abi.h)."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ptrs", "sizes", "strides", "scalars", "error", "partials")),
        *((name, ctypes.c_int64) for name in ("phase", "n_chunks", "chunks_per_o", "o_per_chunk", "n_per_chunk")),
    )


FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def one_op(op: str) -> tuple[Kernel, list[float]]:
    """The kernel of an op, and its scalars."""
    operands = OPERANDS.get(op, ("x",) * lookup(op).arity[0])
    tensors, scalars = [o for o in operands if isinstance(o, str)], [o for o in operands if not isinstance(o, str)]
    program = [Instr("load", (), "f32", "f32", (k,)) for k in range(len(tensors))]
    program += [Instr("scalar", (), "f64", "f64", (k, "f")) for k in range(len(scalars))]
    program.append(Instr(op, tuple(range(len(operands))), "f32", lookup(op).result or "f32", ATTRS.get(op, ())))
    result = program[-1].dtype
    accesses = (*(Access("f32", "c") for _ in tensors), Access(result, "c"))
    return Kernel("k", accesses, tuple(program), (Store(len(program) - 1, len(tensors)),)), scalars


@dataclass
class OpTimer:
    """Times the kernel of one op. `seconds` has one value a round: the mean of a call, without the call itself."""

    op: str
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernel, scalars = one_op(self.op)
        self._function = FUNCTION(backend.planner().kernels.get(self.kernel).address)
        low, high = DOMAINS.get(self.op, DOMAIN)
        random, count = np.random.default_rng(0), len(self.kernel.accesses)
        tensors = [random.uniform(low, high, ELEMENTS).astype(np.float32) for _ in range(count)]
        arrays = (
            (ctypes.c_void_p * count)(*(t.ctypes.data for t in tensors)),
            (ctypes.c_int64 * 1)(ELEMENTS),
            (ctypes.c_int64 * count)(*(1 for _ in tensors)),
            (ctypes.c_double * max(1, len(scalars)))(*scalars),
            ctypes.c_int32(0),
        )
        self._alive = (tensors, arrays)
        self._arguments = Arguments(*(ctypes.addressof(a) for a in arrays))
        self._whole, self._empty = self._timer(ELEMENTS), self._timer(0)

    def _timer(self, elements: int) -> Timer:
        function, address = self._function, ctypes.addressof(self._arguments)
        return Timer(lambda: function(address, 0, elements), SECONDS)

    def round(self) -> None:
        self.seconds.append(self._whole.round() - self._empty.round())

    @property
    def moves(self) -> int:
        """Loads and stores of a point."""
        return len(self.kernel.accesses)


def measure(ops: list[str]) -> dict[str, float]:
    """Weight of each op, from the median over rounds of its ratio to the addition of the same round."""
    unit, timers = OpTimer("add"), [OpTimer(op) for op in ops]
    weights: dict[str, list[float]] = {op: [] for op in ops}
    for _ in range(ROUNDS):
        for timer in timers:
            unit.round()
            timer.round()
            weights[timer.op].append(4 * timer.seconds[-1] / unit.seconds[-1] - timer.moves)
    return {op: statistics.median(values) for op, values in weights.items()}


def main() -> None:
    ops = sys.argv[1:] or ["add", *cost._WEIGHTS]
    print(f"{'op':24}{'measured':>10}{'table':>8}{'measured/table':>16}")
    for op, measured in measure(ops).items():
        table = cost._WEIGHTS.get(op, 1)
        print(f"{op:24}{measured:10.1f}{table:8d}{measured / table:16.2f}")


if __name__ == "__main__":
    main()
