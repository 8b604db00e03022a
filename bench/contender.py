"""Who is compared: a name, the environment of its process, and how it runs a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])

#: glibc returns and maps big blocks again and again by default, which costs CPU eager most of its time on tensors over
#: 1 MB. With this it keeps them: the CPU at its best.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
#: The CPU's processes do not load our device.
WITHOUT_DEVICE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@dataclass(frozen=True)
class Contender:
    name: str
    device: str
    environment: dict[str, str] = field(default_factory=dict)
    compiled: bool = False
    #: Whether a bench that has an optimizer uses its fused form.
    fused_optimizer: bool = False
    #: Whether its process starts with an empty kernel cache, of its own.
    cold: bool = False

    def wrap(self, function: Function) -> Function:
        """The function as this contender runs it."""
        if not self.compiled:
            return function
        import torch

        return torch.compile(function, dynamic=False)  # type: ignore[return-value]

    def synchronizer(self) -> Callable[[], object]:
        """What waits until all that was asked for has run."""
        if self.device != "neuron":
            return lambda: None
        import torch

        return torch.neuron.synchronize  # type: ignore[attr-defined, no-any-return]


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("cpu-plain", "cpu", WITHOUT_DEVICE),
        Contender("cpu-tuned", "cpu", WITHOUT_DEVICE | KEEP_MEMORY),
        Contender("cpu-fused-opt", "cpu", WITHOUT_DEVICE | KEEP_MEMORY, fused_optimizer=True),
        Contender("inductor-plain", "cpu", WITHOUT_DEVICE, compiled=True),
        Contender("inductor-tuned", "cpu", WITHOUT_DEVICE | KEEP_MEMORY, compiled=True),
        Contender("triad", "c", WITHOUT_DEVICE | KEEP_MEMORY),
        Contender("neuron", "neuron"),
        Contender("neuron-fused-opt", "neuron", fused_optimizer=True),
        Contender("neuron-cold", "neuron", cold=True),
        Contender("uncached", "neuron", {"ADAPTIVE_EAGER_CACHE": "off"}),
    )
}


#: Of benches that have an optimizer. The CPU is given the better of torch's, and so is neuron.
WITH_OPTIMIZER = (
    "cpu-plain", "cpu-tuned", "cpu-fused-opt", "inductor-plain", "inductor-tuned", "neuron", "neuron-fused-opt",
)  # fmt: skip
FORMS_WITH_OPTIMIZER = ("neuron", "neuron-fused-opt")


def family(name: str) -> str:
    """What a contender is a form of: "cpu" for cpu-plain and cpu-tuned."""
    return name.split("-")[0]
