"""Loaded models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adaptive_eager.native.nrt_ffi import ffi
from adaptive_eager.native.tensor import Handle, TensorSet


@dataclass(frozen=True)
class TensorInfo:
    """A tensor that a model works on. `dtype` is an nrt_dtype_t code; size 0 is any; no shape if sizes are dynamic."""

    name: str
    usage: str
    dtype: int
    size: int
    shape: tuple[int, ...]


class Model(Handle):
    """A loaded model. `unload` gives its code back; addresses from `entry` are dead from then on."""

    kind = "model"
    verb = "unloaded"

    def entry(self, name: str) -> int:
        """The address of a kernel (`nrtx_kernel_fn`), to be called directly. Software core only."""
        self.runtime.need_software("the address of a kernel")
        result = ffi.new("nrtx_kernel_fn *")
        status = self.runtime.lib.nrtx_model_entry(self.pointer, name.encode(), result)
        self.runtime.check(status, f"looking up entry {name!r} of {self}")
        return int(ffi.cast("uintptr_t", result[0]))

    def execute(self, inputs: TensorSet, outputs: TensorSet, repeat: int = 1) -> None:
        """Runs the model, and waits for its outputs."""
        lib = self.runtime.lib
        if repeat == 1:
            status = lib.nrt_execute(self.pointer, inputs.pointer, outputs.pointer)
        else:
            status = lib.nrt_execute_repeat(self.pointer, inputs.pointer, outputs.pointer, repeat)
        self.runtime.check(status, f"executing {self}")

    def tensor_info(self) -> list[TensorInfo]:
        """The model's tensors. A software model has the input "launch" besides those its artefact declares."""
        lib = self.runtime.lib
        result = ffi.new("nrt_tensor_info_array_t **")
        self.runtime.check(lib.nrt_get_model_tensor_info(self.pointer, result), f"asking for the tensors of {self}")
        try:
            count = int(result[0].tensor_count)
            return [_tensor_info(result[0].tensor_array[i]) for i in range(count)]
        finally:
            lib.nrt_free_model_tensor_info(result[0])

    @property
    def device(self) -> int:
        """The virtual core that the model is loaded on."""
        memory, size_out = ffi.new("char[256]"), ffi.new("size_t *")  # more than the struct, which may grow
        info = ffi.cast("nrt_model_info_t *", memory)
        status = self.runtime.lib.nrt_get_model_info(self.pointer, info, len(memory), size_out)
        self.runtime.check(status, f"asking where {self} is")
        return int(info.vnc)

    @property
    def instance_count(self) -> int:
        """How many threads executing the model keep the device busy."""
        return self._count(self.runtime.lib.nrt_get_model_instance_count)

    @property
    def device_count(self) -> int:
        """How many virtual cores the model takes."""
        return self._count(self.runtime.lib.nrt_get_model_vnc_count)

    def unload(self) -> None:
        self.free()

    def _count(self, function: Any) -> int:
        result = ffi.new("uint32_t *")
        self.runtime.check(function(self.pointer, result), f"asking about {self}")
        return int(result[0])

    def _release(self, pointer: Any) -> None:
        self.runtime.check(self.runtime.lib.nrt_unload(pointer), f"unloading {self}")


def _tensor_info(info: Any) -> TensorInfo:
    return TensorInfo(
        name=ffi.string(info.name, len(info.name)).decode(),
        usage="output" if info.usage == 1 else "input",
        dtype=int(info.dtype),
        size=int(info.size),
        shape=tuple(info.shape[d] for d in range(info.ndim)),
    )
