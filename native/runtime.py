"""The Neuron Runtime, opened: the one object through which this process reaches its device.

`open_runtime` finds a library (native/library.py), checks it and takes the cores; everything else hangs off the
`Runtime` it returns. The binding follows the published headers of NRT 2.x. All of it is tested on the software
NeuronCore; the real `libnrt.so.1` cannot be tried without Trainium hardware.

One runtime can be open in a process. It may be closed and opened again; that kills every handle of the one before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from adaptive_eager.native import library
from adaptive_eager.native.errors import DeadHandleError, NrtError, RuntimeLibraryError, Status
from adaptive_eager.native.model import Model
from adaptive_eager.native.nrt_ffi import ffi
from adaptive_eager.native.tensor import DeviceTensor, TensorSet

__all__ = [
    "DeadHandleError",
    "DeviceTensor",
    "InstanceInfo",
    "MemoryStats",
    "Model",
    "NrtError",
    "Runtime",
    "RuntimeLibraryError",
    "Status",
    "TensorSet",
    "Version",
    "open_runtime",
]

_FRAMEWORK_PYTORCH = 3
_DEVICE, _HOST = 0, 1


class Version(NamedTuple):
    major: int
    minor: int
    patch: int
    maintenance: int
    detail: str


class MemoryStats(NamedTuple):
    bytes_used: int
    bytes_limit: int


class InstanceInfo(NamedTuple):
    family: int  # 0 for the software core
    size: int
    arch_name: str
    device_revision: str


def open_runtime(
    choice: str = "auto",
    devices: int = 1,
    bytes_limit: int = 0,
    guard: bool = False,
    framework_version: str = "",
) -> Runtime:
    """Opens the Neuron Runtime that `choice` means: "auto", "software" or the path of a library.

    devices: virtual cores of the software core (the real runtime's are set by NEURON_RT_VISIBLE_CORES).
    bytes_limit: device memory of each, in bytes; 0 is the host's physical memory. Software core only.
    guard: device memory faults when touched outside `guard_open`/`guard_close`, to find bugs. Software core only.

    Raises RuntimeLibraryError if there is no usable library, NrtError if the runtime does not start.
    """
    path = library.find_library(choice)
    lib = library.open_library(path)
    if library.is_software(lib):
        what = f"configuring {devices} devices (1 to 64) of {bytes_limit} bytes (is a runtime open already?)"
        in_range = 0 < devices < 1 << 32 and 0 <= bytes_limit < 1 << 64
        _check(lib.nrtx_configure(devices, bytes_limit) if in_range else Status.NRT_INVALID, what)
        _check(lib.nrtx_guard_enable(guard), "switching guarded memory")
    status = lib.nrt_init(_FRAMEWORK_PYTORCH, framework_version.encode(), b"")
    _check(status, f"starting the runtime '{path}'")
    runtime = Runtime(lib, path)
    try:
        library.check_version(path, library.read_version(lib))
    except RuntimeLibraryError:
        runtime.close()
        raise
    return runtime


def _check(status: int, what: str) -> None:
    if status != Status.NRT_SUCCESS:
        raise NrtError(status, what)


class Runtime:
    """An open runtime: made by `open_runtime`, closed by `close`, at the end of a `with`, or when collected."""

    def __init__(self, lib: Any, library_path: str) -> None:
        self.lib = lib
        self.library_path = library_path
        self.is_software = library.is_software(lib)
        self._pid = os.getpid()
        self._open = [True]  # a list, since list.pop is atomic

    # -- Life ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    @property
    def owns_handles(self) -> bool:
        """Whether handles are this process's to free. After a fork, the real runtime's stay the parent's alone."""
        return self.is_open and (self.is_software or os.getpid() == self._pid)

    def close(self) -> None:
        """Frees everything on the device and gives the cores back. Doing it again does nothing."""
        owner = self.owns_handles
        try:
            self._open.pop()
        except IndexError:
            return
        if owner:
            self.lib.nrt_close()

    def check_usable(self, who: object = None) -> None:
        """Raises unless the runtime can be used by this process. `who` is the object that is about to."""
        if not self._open:
            what = "the neuron runtime was closed" if who is None else f"{who} was freed with its runtime"
            raise DeadHandleError(what)
        if not self.owns_handles:
            raise DeadHandleError(
                f"{who or 'the neuron runtime'} belongs to process {self._pid}: Neuron cores cannot be used after a"
                ' fork; start processes with the "spawn" method'
            )

    def check(self, status: int, what: str) -> None:
        """Raises NrtError unless `status` is success. `what` says what was being done."""
        _check(status, what)

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # At exit modules may be gone already, and the process takes the library with it.
        if sys is not None and not sys.is_finalizing() and hasattr(self, "_open"):
            self.close()

    def __repr__(self) -> str:
        return f"<neuron runtime '{self.library_path}'{'' if self.is_open else ', closed'}>"

    # -- Facts -----------------------------------------------------------------------------------------------------

    @property
    def device_count(self) -> int:
        """Virtual cores that this process may use."""
        return self._count("nrt_get_visible_vnc_count")

    @property
    def total_device_count(self) -> int:
        """Virtual cores of the machine."""
        return self._count("nrt_get_total_vnc_count")

    @property
    def version(self) -> Version:
        version = library.read_version(self.lib)
        if version is None:
            raise NrtError(Status.NRT_FAILURE, "asking for the version")
        return Version(*version)

    def instance_info(self) -> InstanceInfo:
        self.check_usable()
        info = ffi.new("nrt_instance_info_t *")
        _check(self.lib.nrt_get_instance_info(info, ffi.sizeof("nrt_instance_info_t")), "asking for the instance")
        names = [ffi.string(field, len(field)).decode() for field in (info.arch_name, info.device_revision)]
        return InstanceInfo(info.family, info.size, *names)

    def memory_stats(self, device: int = 0) -> MemoryStats:
        self.check_usable()
        memory, size_out = ffi.new("char[256]"), ffi.new("size_t *")  # more than the struct, which may grow
        stats = ffi.cast("nrt_vnc_memory_stats_t *", memory)
        status = self.lib.nrt_get_vnc_memory_stats(_index(device), stats, len(memory), size_out)
        _check(status, f"asking for the memory of neuron:{device}")
        return MemoryStats(stats.bytes_used, stats.bytes_limit)

    def address_of(self, symbol: str) -> int:
        """The address of a function of the library, for code that calls it directly."""
        try:
            return int(ffi.cast("uintptr_t", getattr(self.lib, symbol)))
        except (AttributeError, ffi.error) as error:  # not declared; not in the library
            raise RuntimeLibraryError(
                f"'{self.library_path}' has no function {symbol}; {library.cure(self.library_path)}"
            ) from error

    def need_software(self, what: str) -> None:
        if not self.is_software:
            raise RuntimeLibraryError(f"{what}: '{self.library_path}' is no software core; choose runtime \"software\"")

    def _count(self, function: str) -> int:
        result = ffi.new("uint32_t *")
        _check(getattr(self.lib, function)(result), "counting devices")
        return int(result[0])

    # -- Tensors ---------------------------------------------------------------------------------------------------

    def allocate(self, device: int, nbytes: int, name: str = "") -> DeviceTensor:
        """`nbytes` (at least 1) of device memory, 64-byte aligned on the software core; contents undefined."""
        return self._allocate(_DEVICE, device, nbytes, name, f"neuron:{device}")

    def allocate_host(self, nbytes: int, name: str = "") -> DeviceTensor:
        """The same in host memory."""
        return self._allocate(_HOST, 0, nbytes, name, "the host")

    def allocate_empty(self, name: str = "") -> DeviceTensor:
        """A tensor without storage; `attach` gives it a host buffer."""
        self.check_usable()
        result = ffi.new("nrt_tensor_t **")
        _check(self.lib.nrt_tensor_allocate_empty(name.encode(), result), f"making an empty tensor {name!r}")
        return DeviceTensor(self, result[0], name)

    def tensor_set(self, name: str = "") -> TensorSet:
        self.check_usable()
        result = ffi.new("nrt_tensor_set_t **")
        _check(self.lib.nrt_allocate_tensor_set(result), f"making a tensor set {name!r}")
        return TensorSet(self, result[0], name)

    def _allocate(self, placement: int, device: int, nbytes: int, name: str, where: str) -> DeviceTensor:
        self.check_usable()
        what = f"allocating {nbytes} bytes on {where} {name!r}"
        if not 0 <= nbytes < 1 << 64:
            raise NrtError(Status.NRT_INVALID, what)
        result = ffi.new("nrt_tensor_t **")
        _check(self.lib.nrt_tensor_allocate(placement, _index(device), nbytes, name.encode(), result), what)
        return DeviceTensor(self, result[0], name)

    # -- Models ----------------------------------------------------------------------------------------------------

    def set_loader(self, targets: Sequence[str] = (), libraries: Sequence[str] = ()) -> None:
        """Says what the software core loads, until it is closed.

        targets: the artefact targets this process can run; none given is any.
        libraries: paths of shared libraries whose functions kernels call besides the C library's; each must be loaded
        in this process.
        """
        self.check_usable()
        self.need_software("setting a loader")
        texts = [[ffi.new("char[]", os.fsencode(text)) for text in part] for part in (targets, libraries)]
        arrays = [ffi.new("char *[]", part) for part in texts]
        status = self.lib.nrtx_set_loader(arrays[0], len(texts[0]), arrays[1], len(texts[1]))
        self._check_loaded(status, "setting a loader")

    def load(self, artifact: bytes, device: int = 0, name: str = "") -> Model:
        """Loads an artefact (native/artifact.py), or on the real runtime a NEFF."""
        self.check_usable()
        result = ffi.new("nrt_model_t **")
        status = self.lib.nrt_load(ffi.from_buffer(artifact), len(artifact), _index(device), -1, result)
        self._check_loaded(status, f"loading a model of {len(artifact)} bytes on neuron:{device} {name!r}")
        return Model(self, result[0], name)

    def _check_loaded(self, status: int, what: str) -> None:
        if status != Status.NRT_SUCCESS and self.is_software:
            reason = ffi.string(self.lib.nrtx_load_error()).decode(errors="replace")
            what = f"{what}: {reason}" if reason else what
        _check(status, what)

    # -- Debugging -------------------------------------------------------------------------------------------------

    def guard_open(self) -> None:
        """Opens guarded memory to direct access, until as many `guard_close`."""
        self.need_software("guarded memory")
        self.lib.nrtx_guard_open()

    def guard_close(self) -> None:
        self.need_software("guarded memory")
        self.lib.nrtx_guard_close()


def _index(device: int) -> int:
    # A negative index means something else to parts of the interface.
    if not 0 <= device < 1 << 31:
        raise NrtError(Status.NRT_INVALID, f"neuron:{device} is not a device")
    return device
