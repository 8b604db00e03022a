"""A chain of ten float32 pointwise ops, run to its end at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.contender import Contender
from bench.timer import Timer

if TYPE_CHECKING:
    from torch import Tensor

TITLE = "Chain of 10 pointwise ops, float32, by elements"
UNIT = ("us", 1e6)
CONTENDERS = ("cpu-plain", "cpu-tuned", "inductor-plain", "inductor-tuned", "neuron")
ROUNDS = 41
TARGETS = {
    "16": {"cpu": 2.0, "inductor": 0.95},
    "1000": {"cpu": 1.7, "inductor": 0.95},
    "10000": {"cpu": 1.3, "inductor": 0.95},
    "100000": {"cpu": 1.7, "inductor": 0.95},
    "1000000": {"cpu": 2.3, "inductor": 0.95},
}


def cases() -> list[str]:
    return list(TARGETS)


def prepare(case: str, contender: Contender) -> Callable[[int], float]:
    import torch

    x, y = (torch.randn(int(case)).to(contender.device) for _ in range(2))
    function, synchronize = contender.wrap(chain), contender.synchronizer()

    def call() -> Tensor:
        result = function(x, y)
        synchronize()
        return result

    return Timer(call, seconds=0.05).round


def chain(x: Tensor, y: Tensor) -> Tensor:
    import torch

    a = x * y
    b = a + 1.5
    c = torch.tanh(b)
    d = c * x
    e = d - y
    g = torch.relu(e)
    h = g / 2.0
    i = torch.exp(-h)
    j = i + x
    return torch.sigmoid(j)


if __name__ == "__main__":
    from bench import harness

    harness.main("chain")
