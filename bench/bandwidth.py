"""How much of the memory's speed a chain reaches: `a*x + b*y - z` against a plain C loop that moves as many bytes."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.contender import Contender
from bench.timer import Timer

ELEMENTS = 10_000_000
BYTES = 4 * ELEMENTS * 4  # x, y and z read once, the result written once, float32

TITLE = f"a*x + b*y - z over {ELEMENTS:,} float32: time to move {BYTES / 1e6:.0f} MB, beside a C triad's"
UNIT = ("ms", 1e3)
CONTENDERS = ("cpu-plain", "cpu-tuned", "inductor-plain", "inductor-tuned", "triad", "neuron")
ROUNDS = 15
#: The bytes are the same, so a ratio of times is one of bytes a second.
TARGETS = {"chain": {"triad": 0.85}}

#: out[i] = x[i] + s * y[i], so that three arrays make the same bytes.
TRIAD = """
void triad(float *restrict out, const float *restrict x, const float *restrict y, float s, long n, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long i = 0; i < n; i++) out[i] = x[i] + s * y[i];
}
"""


def cases() -> list[str]:
    return list(TARGETS)


def prepare(case: str, contender: Contender) -> Callable[[int], float]:
    return Timer(triad() if contender.name == "triad" else chain(contender), seconds=0.2).round


def chain(contender: Contender) -> Callable[[], object]:
    import torch

    x, y, z = (torch.randn(ELEMENTS).to(contender.device) for _ in range(3))
    function, synchronize = contender.wrap(lambda: 1.5 * x + 2.5 * y - z), contender.synchronizer()

    def call() -> object:
        result = function()
        synchronize()
        return result

    return call


def triad() -> Callable[[], object]:
    """The C loop on as many threads as the others have."""
    import torch

    with tempfile.TemporaryDirectory(prefix="adaptive-eager-bench-") as folder:
        source, library = Path(folder, "triad.c"), Path(folder, "triad.so")
        source.write_text(TRIAD)
        subprocess.run(
            ["cc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", source, "-o", library], check=True
        )
        function = ctypes.CDLL(str(library)).triad
    function.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_float, ctypes.c_long, ctypes.c_int]
    function.restype = None
    count = BYTES // 12
    out, x, y = (torch.randn(count) for _ in range(3))
    return lambda: function(out.data_ptr(), x.data_ptr(), y.data_ptr(), 1.5, count, torch.get_num_threads())


if __name__ == "__main__":
    from bench import harness

    harness.main("bandwidth")
