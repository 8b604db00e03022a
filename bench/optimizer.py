"""A step of torch.optim.AdamW on 12 parameters, by the elements of all; what the formula `adamw` writes out."""

from __future__ import annotations

from collections.abc import Callable

from bench.contender import FORMS_WITH_OPTIMIZER, WITH_OPTIMIZER, Contender
from bench.formulas import PARAMETERS, SIZES
from bench.timer import Timer

TITLE = "AdamW step on 12 parameters, float32, by elements"
UNIT = ("us", 1e6)
CONTENDERS, FORMS = WITH_OPTIMIZER, FORMS_WITH_OPTIMIZER
ROUNDS = 15
TARGETS = {str(size): {"cpu": 1.0, "inductor": 0.95} for size in SIZES}


def cases() -> list[str]:
    return list(TARGETS)


def prepare(case: str, contender: Contender) -> Callable[[int], float]:
    import torch

    size = int(case) // PARAMETERS
    parameters = [torch.nn.Parameter(torch.randn(size).to(contender.device)) for _ in range(PARAMETERS)]
    for parameter in parameters:
        parameter.grad = torch.randn(size).to(contender.device)
    # A number would be compiled anew as it changes; a tensor of the host is what Inductor's documentation advises.
    rate = torch.tensor(1e-3) if contender.compiled else 1e-3
    optimizer = torch.optim.AdamW(parameters, lr=rate, fused=contender.fused_optimizer or None)
    step, synchronize = contender.wrap(optimizer.step), contender.synchronizer()

    def call() -> None:
        step()
        synchronize()

    return Timer(call, seconds=0.05).round


if __name__ == "__main__":
    from bench import harness

    harness.main("optimizer")
