"""Device tensors and tensor sets: owned handles of a `Runtime`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from adaptive_eager.native.errors import DeadHandleError, NrtError, Status
from adaptive_eager.native.nrt_ffi import ffi

if TYPE_CHECKING:
    from collections.abc import Callable

    from adaptive_eager.native.runtime import Runtime


class Handle:
    """Owns one handle of the runtime and gives it back once: by `free`, at the end of a `with`, or when collected.

    A handle dies with its runtime. Using a dead one raises DeadHandleError, which names it.
    """

    kind = "handle"
    verb = "freed"

    def __init__(self, runtime: Runtime, pointer: Any, name: str) -> None:
        self.runtime = runtime
        self.name = name
        # A list, since list.pop is atomic: two threads that free at once never free twice.
        self._owned = [pointer]

    @property
    def is_alive(self) -> bool:
        return bool(self._owned) and self.runtime.is_open

    @property
    def pointer(self) -> Any:
        """The raw handle (cffi), borrowed."""
        try:
            pointer = self._owned[0]
        except IndexError:
            raise DeadHandleError(f"{self} was {self.verb}") from None
        self.runtime.check_usable(self)
        return pointer

    def free(self) -> None:
        """Gives the handle back. Doing it again, or after the runtime was closed, does nothing."""
        try:
            pointer = self._owned.pop()
        except IndexError:
            return
        if self.runtime.owns_handles:
            self._release(pointer)

    def _release(self, pointer: Any) -> None:
        raise NotImplementedError

    def __str__(self) -> str:
        return f"neuron {self.kind} {self.name!r}"

    def __repr__(self) -> str:
        return f"<{self}{'' if self.is_alive else ', ' + self.verb}>"

    def __enter__(self):
        return self

    def __exit__(self, *_exception: object) -> None:
        self.free()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit the modules this needs may be gone, and the memory goes with the process. No _owned: __init__ failed.
        if not is_finalizing() and hasattr(self, "_owned"):
            self.free()


class DeviceTensor(Handle):
    """`size` bytes of device memory."""

    kind = "tensor"

    def __init__(self, runtime: Runtime, pointer: Any, name: str, keep: Any = None) -> None:
        super().__init__(runtime, pointer, name)
        self._keep = keep  # a buffer that the runtime borrows

    @property
    def size(self) -> int:
        return self.runtime.lib.nrt_tensor_get_size(self.pointer)

    @property
    def va(self) -> int:
        """The address of the first byte. On the software core the host may use it; on Trainium it may not be mapped."""
        return int(ffi.cast("uintptr_t", self.runtime.lib.nrt_tensor_get_va(self.pointer)))

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        size = self._rest(offset) if size is None else size
        # Checked before so many bytes are allocated.
        self._check_range("reading", offset, size)
        buffer = bytearray(size)
        self.read_into(buffer, offset)
        return bytes(buffer)

    def read_into(self, buffer: Any, offset: int = 0) -> None:
        """Fills `buffer`, any writable contiguous buffer, from the bytes at `offset`."""
        with ffi.from_buffer(buffer, require_writable=True) as target:
            size = len(target)
            self._check_range("reading", offset, size)
            status = self.runtime.lib.nrt_tensor_read(self.pointer, target, offset, size)
        self.runtime.check(status, f"reading {size} bytes at {offset} of {self}")

    def write(self, data: Any, offset: int = 0) -> None:
        """Copies `data`, any contiguous buffer, to the bytes at `offset`."""
        with ffi.from_buffer(data) as source:
            size = len(source)
            self._check_range("writing", offset, size)
            status = self.runtime.lib.nrt_tensor_write(self.pointer, source, offset, size)
        self.runtime.check(status, f"writing {size} bytes at {offset} of {self}")

    def copy_from(self, source: DeviceTensor, offset: int = 0, source_offset: int = 0, size: int | None = None) -> None:
        """Copies between tensors, device tensors of one core only. The ranges may overlap."""
        size = source._rest(source_offset) if size is None else size
        source._check_range("copying", source_offset, size)
        self._check_range("copying", offset, size)
        status = self.runtime.lib.nrt_tensor_copy(source.pointer, source_offset, self.pointer, offset, size)
        self.runtime.check(status, f"copying {size} bytes from {source} to {self}")

    def memset(self, value: int, offset: int = 0, size: int | None = None) -> None:
        size = self._rest(offset) if size is None else size
        self._check_range("filling", offset, size)
        status = self.runtime.lib.nrt_tensor_memset(self.pointer, offset, value, size)
        self.runtime.check(status, f"filling {size} bytes at {offset} of {self}")

    def slice(self, offset: int, size: int, name: str = "") -> DeviceTensor:
        """A tensor on part of the same storage, which lives as long as either."""
        self._check_range("slicing", offset, size)
        result = ffi.new("nrt_tensor_t **")
        name = name or self.name
        status = self.runtime.lib.nrt_tensor_allocate_slice(self.pointer, offset, size, name.encode(), result)
        self.runtime.check(status, f"slicing {size} bytes at {offset} of {self}")
        return DeviceTensor(self.runtime, result[0], name, self._keep)

    def attach(self, buffer: Any) -> None:
        """Makes a writable host buffer the tensor's storage, and keeps it alive and at its size."""
        view = ffi.from_buffer(buffer, require_writable=True)
        status = self.runtime.lib.nrt_tensor_attach_buffer(self.pointer, view, len(view))
        self.runtime.check(status, f"attaching a buffer of {len(view)} bytes to {self}")
        self._keep = view

    def _rest(self, offset: int) -> int:
        return max(0, self.size - offset)

    def _check_range(self, doing: str, offset: int, size: int) -> None:
        # The library checks as well, but cannot name the size, and cffi takes no negative numbers.
        if offset < 0 or size < 0 or offset + size > self.size:
            what = f"{doing} {size} bytes at {offset} of {self}, which has {self.size} bytes"
            raise NrtError(Status.NRT_INVALID, what)

    def _release(self, pointer: Any) -> None:
        self.runtime.lib.nrt_tensor_free(ffi.new("nrt_tensor_t **", pointer))
        self._keep = None


class TensorSet(Handle):
    """Named tensors, the inputs or outputs of an execution. Holds on to them, since the runtime only borrows them."""

    kind = "tensor set"
    verb = "destroyed"

    def __init__(self, runtime: Runtime, pointer: Any, name: str) -> None:
        super().__init__(runtime, pointer, name)
        self._tensors: dict[str, DeviceTensor] = {}

    def add(self, name: str, tensor: DeviceTensor) -> None:
        """Adds a tensor, or replaces the one of that name."""
        status = self.runtime.lib.nrt_add_tensor_to_tensor_set(self.pointer, name.encode(), tensor.pointer)
        self.runtime.check(status, f"adding {tensor} as {name!r} to {self}")
        self._tensors[name] = tensor

    def get(self, name: str) -> DeviceTensor:
        result = ffi.new("nrt_tensor_t **")
        status = self.runtime.lib.nrt_get_tensor_from_tensor_set(self.pointer, name.encode(), result)
        self.runtime.check(status, f"looking up {name!r} in {self}")
        return self._tensors[name]

    def _release(self, pointer: Any) -> None:
        self.runtime.lib.nrt_destroy_tensor_set(ffi.new("nrt_tensor_set_t **", pointer))
        self._tensors.clear()
