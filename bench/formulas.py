"""Formulas written out in plain ops, as papers and model code have them, by the number of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.contender import Contender
from bench.timer import Timer

if TYPE_CHECKING:
    from torch import Tensor

TITLE = "Formulas written out, float32, by elements"
UNIT = ("us", 1e6)
CONTENDERS = ("cpu-plain", "cpu-tuned", "inductor-plain", "inductor-tuned", "neuron")
ROUNDS = 15

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
FORMULAS = ("rms_norm", "rotary", "swiglu", "gelu", "focal_loss", "adamw")
TARGETS = {f"{name} {size}": {"cpu": 1.0, "inductor": 0.95} for name in FORMULAS for size in SIZES}

PARAMETERS = 12  # of the AdamW step


def cases() -> list[str]:
    return list(FORMULAS)


def prepare(case: str, contender: Contender) -> Callable[[int], dict[str, float]]:
    """One process for all sizes of a formula: a round measures each of them."""
    timers = {str(size): Timer(_call(case, size, contender), seconds=0.05) for size in SIZES}
    return lambda index: {size: timer.round() for size, timer in timers.items()}


def _call(case: str, size: int, contender: Contender) -> Callable[[], object]:
    function, synchronize = contender.wrap(globals()[case]), contender.synchronizer()
    arguments = [tensor.to(contender.device) for tensor in ARGUMENTS[case](size)]

    def call() -> object:
        result = function(*arguments)
        synchronize()
        return result

    return call


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    import torch

    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    import torch

    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    import torch

    return gate / (1 + torch.exp(-gate)) * up


def gelu(x: Tensor) -> Tensor:
    import torch

    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def focal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    import torch

    entropy = torch.clamp(logits, min=0) - logits * labels + torch.log1p(torch.exp(-logits.abs()))
    p = torch.sigmoid(logits)
    of_label = p * labels + (1 - p) * (1 - labels)
    weight = 0.25 * labels + 0.75 * (1 - labels)
    return (weight * (1 - of_label) ** 2 * entropy).mean()


def adamw(*tensors: Tensor) -> None:
    """One step on parameters, gradients and both moments, in place. The scalars are those of the tenth step."""
    rate, decay, beta1, beta2, step = 1e-3, 1e-2, 0.9, 0.999, 10
    groups = [tensors[k * PARAMETERS : (k + 1) * PARAMETERS] for k in range(4)]
    for parameter, gradient, mean, square in zip(*groups, strict=True):
        parameter.mul_(1 - rate * decay)
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (square / (1 - beta2**step)).sqrt() + 1e-8
        parameter.sub_(mean / scale * (rate / (1 - beta1**step)))


def _normal(*sizes: int) -> Tensor:
    import torch

    return torch.randn(sizes)


def _adamw_arguments(size: int) -> list[Tensor]:
    """`size` elements of parameters in all."""
    tensors = [_normal(size // PARAMETERS) for _ in range(4 * PARAMETERS)]
    for square in tensors[3 * PARAMETERS :]:
        square.square_()
    return tensors


#: What each formula works on; `size` is the number of elements of its result, or of what it reduces.
ARGUMENTS: dict[str, Callable[[int], list[Tensor]]] = {
    "rms_norm": lambda size: [_normal(size // 500, 500), _normal(500)],
    "rotary": lambda size: [_normal(10, size // 1000, 100), _normal(size // 1000, 100), _normal(size // 1000, 100)],
    "swiglu": lambda size: [_normal(size), _normal(size)],
    "gelu": lambda size: [_normal(size)],
    "focal_loss": lambda size: [_normal(size), (_normal(size) > 0).float()],
    "adamw": _adamw_arguments,
}


if __name__ == "__main__":
    from bench import harness

    harness.main("formulas")
