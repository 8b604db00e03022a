"""`torch.neuron`: the device module that torch and its libraries look for."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from typing import Any

import torch

from adaptive_eager import sharing
from adaptive_eager.native import _C

#: What torch's checkpointing looks at before it saves the device's random state.
_initialized = True


def is_available() -> bool:
    return _C.device_count() > 0


def is_initialized() -> bool:
    return True


def init() -> None:
    """Nothing to do: the device is ready once torch is imported."""


def _is_in_bad_fork() -> bool:
    """A forked child may use the device (its kernels run on one thread there)."""
    return False


def _lazy_init() -> None:
    """Nothing to do."""


def device_count() -> int:
    return _C.device_count()


def current_device() -> int:
    return _C.current_device()


def _index(device: Any = None) -> int:
    """Index of a device given as an int, a string, a torch.device or None (the current one)."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        index = device
    else:
        parsed = torch.device(device)
        if parsed.type != "neuron":
            raise ValueError(f"Expected a neuron device, but got: {device}")
        index = current_device() if parsed.index is None else parsed.index
    if not 0 <= index < device_count():
        raise RuntimeError(f"invalid device ordinal: neuron:{index}; there are {device_count()} neuron devices")
    return index


def set_device(device: Any) -> None:
    _C.set_device(_index(device))


class device:
    """Context manager that changes the current device."""

    def __init__(self, device: Any):
        self.index = _index(device)
        self.previous = -1

    def __enter__(self) -> device:
        self.previous = current_device()
        _C.set_device(self.index)
        return self

    def __exit__(self, *_: object) -> None:
        _C.set_device(self.previous)


@dataclass(frozen=True)
class DeviceProperties:
    """name                    what the device calls itself
    major, minor            version of the architecture
    total_memory            bytes of device memory
    multi_processor_count   threads that a kernel is spread over
    arch_name               architecture of the core, as the runtime calls it
    target                  vector instructions that kernels are compiled to
    """

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    arch_name: str
    target: str


def get_device_properties(device: Any = None) -> DeviceProperties:
    """What there is to know of a device, under the names torch.cuda.get_device_properties uses."""
    from adaptive_eager.backend import planner, runtime

    index = _index(device)
    major, minor = get_device_capability(index)
    return DeviceProperties(
        name=get_device_name(index),
        major=major,
        minor=minor,
        total_memory=mem_get_info(index)[1],
        multi_processor_count=torch.get_num_threads(),
        arch_name=runtime().instance_info().arch_name,
        target=planner().kernels.target.name,
    )


def get_device_name(device: Any = None) -> str:
    return f"software NeuronCore {_index(device)}"


def get_device_capability(device: Any = None) -> tuple[int, int]:
    _index(device)
    return (1, 0)


def synchronize(device: Any = None) -> None:
    """Runs everything recorded on a device."""
    _C.synchronize(-1 if device is None else _index(device))


class Stream(torch.Stream):
    """A handle to a device's one in-order stream."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=torch.device("neuron", _index(device)), priority=priority)


def Event(enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
    """A point in the stream. The time between two events is that of the work recorded between them.

    A function, not a class: torch's `elapsed_time` takes its own Event class and no other.
    """
    return torch.Event(
        device=f"neuron:{current_device()}", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
    )


def current_stream(device: Any = None) -> torch.Stream:
    with _device(_index(device)):
        return torch.accelerator.current_stream()


def default_stream(device: Any = None) -> torch.Stream:
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=20)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


class stream:
    """Context manager that changes the current stream."""

    def __init__(self, stream: torch.Stream | None):
        self.stream = stream
        self.previous: torch.Stream | None = None

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self.previous = current_stream(self.stream.device)
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.previous is not None:
            set_stream(self.previous)


_device = device


def _generator(device: Any = None) -> torch.Generator:
    return default_generators[_index(device)]


def manual_seed(seed: int) -> None:
    _generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for generator in default_generators:
        generator.manual_seed(seed)


def seed() -> None:
    _generator().seed()


def seed_all() -> None:
    for generator in default_generators:
        generator.seed()


def initial_seed() -> int:
    return _generator().initial_seed()


def get_rng_state(device: Any = "neuron") -> torch.Tensor:
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "neuron") -> None:
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for generator, state in zip(default_generators, new_states, strict=True):
        generator.set_state(state)


def memory_stats(device: Any = None) -> dict[str, int]:
    """Allocator counters, in bytes and counts, under the names torch.cuda.memory_stats uses."""
    return dict(_C.memory_stats(_index(device)))


def memory_allocated(device: Any = None) -> int:
    """Bytes in use by tensors (of the size classes they were given)."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Any = None) -> int:
    """Bytes that the allocator holds from the runtime."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Any = None) -> int:
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: Any = None) -> None:
    _C.reset_peak_stats(_index(device))


def empty_cache() -> None:
    """Gives unused device memory back to the runtime."""
    for index in range(device_count()):
        _C.empty_cache(index)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of device memory. What the allocator holds for re-use is not free; `empty_cache` gives it
    back. The memory of a software core is the host's: no more is free than the host has left."""
    return _C.memory_info(_index(device))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


default_generators: tuple[torch.Generator, ...] = ()


def _print_from_host() -> None:
    """Printing a tensor reads it and computes on a host copy: looking at a value never compiles or records anything."""
    from torch import _tensor_str

    format_values = _tensor_str._tensor_str

    def formatted(self: torch.Tensor, indent: int) -> str:
        return format_values(self.cpu() if self.device.type == "neuron" else self, indent)

    _tensor_str._tensor_str = formatted


def _offer_gloo() -> None:
    """Process groups over Gloo take device tensors (native/torch/collectives.cpp)."""
    if torch.distributed.is_available():
        from torch.distributed.distributed_c10d import Backend

        if "neuron" not in Backend.backend_capability["gloo"]:
            Backend.backend_capability["gloo"].append("neuron")
        Backend.default_device_backend_map.setdefault("neuron", "gloo")


_PRIVATE = ("install", "_C", "sharing", "torch", "sys", "types", "dataclass", "Any", "annotations")


def install() -> None:
    """Makes this module `torch.neuron` and gives tensors, modules and storages their `neuron` methods."""
    global default_generators
    module = types.ModuleType("torch.neuron", __doc__)
    module.__dict__.update({k: v for k, v in globals().items() if k not in _PRIVATE})
    torch.utils.rename_privateuse1_backend("neuron")
    torch._register_device_module("neuron", module)
    sys.modules["torch.neuron"] = module
    torch.utils.generate_methods_for_privateuse1_backend()
    _print_from_host()
    _offer_gloo()
    sharing.install()
    module.__dict__["default_generators"] = default_generators = tuple(
        _C.default_generator(index) for index in range(device_count())
    )
