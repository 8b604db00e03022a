"""Linker: loads kernel objects into this process and gives the address of their entry point."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import llvmlite.binding as llvm

from adaptive_eager.compiler.codegen import ENTRY_POINT, _machine
from adaptive_eager.compiler.target import Target, host_target


class LinkError(RuntimeError):
    """An object could not be loaded: damaged, for another machine, or it needs a symbol that no library has."""


class Linker:
    """Loaded kernels of one process.

    Each kernel is a library of its own in an ORC JIT, so that it can be unloaded alone. The linker owns the code: an
    address is valid from `link` until `unlink` of its name or the end of the process. Safe to use from several threads.
    """

    def __init__(self, libraries: Sequence[str], target: Target | None = None):
        """Open the shared libraries (paths) that kernels call into. Raises LinkError if one cannot be opened."""
        machine = _machine(target or host_target())
        for path in libraries:
            try:
                llvm.load_library_permanently(path)
            except RuntimeError as error:
                raise LinkError(f"cannot open {path}: {error}") from error
        self._jit = llvm.create_lljit_compiler(machine)
        self._loaded: dict[str, llvm.ResourceTracker] = {}
        self._serial = 0
        self._lock = threading.Lock()

    def link(self, object_code: bytes, name: str) -> int:
        """Load an object and return the address of its entry point. A name that is loaded already is replaced, and its
        old address becomes invalid. Raises LinkError."""
        with self._lock:
            # ORC never accepts a library name twice, so the caller's name is not used as one.
            self._serial += 1
            builder = llvm.JITLibraryBuilder()
            builder.add_object_img(object_code).add_current_process().export_symbol(ENTRY_POINT)
            try:
                tracker = builder.link(self._jit, f"kernel{self._serial}")
            except RuntimeError as error:
                raise LinkError(f"cannot link {name}: {error}") from error
            self._drop(name)
            self._loaded[name] = tracker
            return int(tracker[ENTRY_POINT])

    def unlink(self, name: str) -> None:
        """Free a kernel's code. The caller promises that it is neither running nor called again. Unknown names are
        ignored."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        tracker = self._loaded.pop(name, None)
        if tracker is not None:
            tracker.close()

    def __len__(self) -> int:
        return len(self._loaded)

    def __contains__(self, name: str) -> bool:
        return name in self._loaded
