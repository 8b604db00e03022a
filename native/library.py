"""Finding, opening and checking a Neuron Runtime library.

Two libraries implement the interface: `libnrt.so.1` of the AWS Neuron SDK, on machines with Trainium or Inferentia, and
the software NeuronCore built from `nrt/`. The path through the real one follows its published headers and cannot be
tried without such hardware.
"""

import os
import struct
import threading
from pathlib import Path
from typing import Any

from adaptive_eager.native.errors import RuntimeLibraryError
from adaptive_eager.native.nrt_ffi import ffi

SOFTWARE_LIBRARY = Path(__file__).with_name("libneuroncore.so")
NEURON_LIBRARY = Path("/opt/aws/neuron/lib/libnrt.so.1")
NEURON_DEVICE = Path("/dev/neuron0")

NRT_MAJOR_VERSION = 2
NRTX_ABI_VERSION = 2

# Never closed: addresses inside are given to generated code and to the torch extension, which may use them until the
# very end of the process.
_opened: dict[str, Any] = {}
_lock = threading.Lock()


def _fresh_lock() -> None:
    global _lock
    _lock = threading.Lock()


# Another thread may hold the lock at a fork; it does not exist in the child.
os.register_at_fork(after_in_child=_fresh_lock)


def find_library(choice: str = "auto") -> str:
    """The path (or soname, for the loader to find) of the library that `choice` means.

    "software": the software NeuronCore. "auto": the real library if this machine has a Neuron device, else the
    software core. Anything else is a path.
    """
    if choice == "software" or (choice == "auto" and not NEURON_DEVICE.exists()):
        return str(SOFTWARE_LIBRARY)
    if choice == "auto":
        return str(NEURON_LIBRARY) if NEURON_LIBRARY.exists() else NEURON_LIBRARY.name
    return choice


def cure(path: str) -> str:
    if path == str(SOFTWARE_LIBRARY):
        return "build it by installing the project again (pip install -e .)"
    return (
        "install the Neuron Runtime (aws-neuronx-runtime-lib), or choose the software device "
        "(ADAPTIVE_EAGER_RUNTIME=software)"
    )


def open_library(path: str) -> Any:
    """The cffi library object of `path`, checked to be a Neuron Runtime of a version this binding knows."""
    with _lock:
        if path not in _opened:
            _opened[path] = _open_checked(path)
        return _opened[path]


def _broken(path: str, reason: str) -> RuntimeLibraryError:
    return RuntimeLibraryError(f"cannot use the Neuron Runtime library '{path}': {reason}; {cure(path)}")


def _open_checked(path: str) -> Any:
    if os.sep in path and not os.path.exists(path):
        raise _broken(path, "no such file")
    if _is_cut_short(path):
        raise _broken(path, "the file is cut short")
    try:
        lib = ffi.dlopen(path)
    except OSError as error:
        # The loader's message repeats the path and may run over several lines.
        lines = str(error).removeprefix(f"cannot load library '{path}': ").splitlines() or ["the loader refused it"]
        raise _broken(path, lines[0].removeprefix(f"{path}: ")) from error
    try:
        version = read_version(lib)
    except ffi.error as error:
        raise _broken(path, "it is not a Neuron Runtime (it has no nrt_get_version)") from error
    if version is not None:  # else it may say after nrt_init
        check_version(path, version)
    if is_software(lib) and lib.nrtx_abi_version() != NRTX_ABI_VERSION:
        found = lib.nrtx_abi_version()
        raise _broken(path, f"it is a software core of ABI {found}, and this needs {NRTX_ABI_VERSION}")
    return lib


def _is_cut_short(path: str) -> bool:
    """Whether an ELF file ends before its segments do. The loader does not look, and dies of it."""
    try:
        data = Path(path).read_bytes()
        if data[:6] != b"\x7fELF\2\1":  # 64 bits, little-endian; anything else the loader judges well enough
            return False
        table, entry_size, entries = *struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54)
        for at in range(table, table + entries * entry_size, entry_size):
            offset, _, _, size = struct.unpack_from("<4Q", data, at + 8)
            if offset + size > len(data):
                return True
    except OSError:  # a soname, which the loader will find, or not
        return False
    except struct.error:
        return True
    return False


def check_version(path: str, version: tuple[int, int, int, int, str] | None) -> None:
    if version is None:
        raise _broken(path, "it does not say its version")
    if version[0] != NRT_MAJOR_VERSION:
        found = ".".join(str(part) for part in version[:3])
        raise _broken(path, f"it is Neuron Runtime {found}, and this needs {NRT_MAJOR_VERSION}.x")


def read_version(lib: Any) -> tuple[int, int, int, int, str] | None:
    """(major, minor, patch, maintenance, detail), or None if the library gives none."""
    # A later library may know a longer struct.
    memory = ffi.new("char[]", 2 * ffi.sizeof("nrt_version_t"))
    version = ffi.cast("nrt_version_t *", memory)
    if lib.nrt_get_version(version, ffi.sizeof("nrt_version_t")) != 0:
        return None
    detail = ffi.string(version.rt_detail, len(version.rt_detail)).decode(errors="replace")
    return version.rt_major, version.rt_minor, version.rt_patch, version.rt_maintenance, detail


def is_software(lib: Any) -> bool:
    """Whether the library is a software core: only that has the nrtx_ functions."""
    try:
        return lib.nrtx_abi_version is not None
    except ffi.error:  # cffi's error for a symbol that is declared but not there
        return False
