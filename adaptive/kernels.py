"""Kernels: from the loop IR to an address, through memory, the disk cache, or the compiler."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from adaptive_eager import host
from adaptive_eager.cache.key import Fields, KeyMaker, tool_versions
from adaptive_eager.cache.store import KernelStore
from adaptive_eager.cache.telling import Warned
from adaptive_eager.compiler.target import ask_llvm
from adaptive_eager.native import artifact

if TYPE_CHECKING:
    from adaptive_eager.compiler.loop_ir import Kernel
    from adaptive_eager.compiler.target import Host, Target
    from adaptive_eager.native.model import Model
    from adaptive_eager.native.runtime import Runtime

log = logging.getLogger("adaptive_eager.kernels")

#: What the code of kernels and the shape of plans come from; a change to any of them makes a new key.
_PACKAGE = Path(__file__).parent
GENERATOR_SOURCES = (
    _PACKAGE / "compiler",
    _PACKAGE / "row_programs",
    *(
        _PACKAGE / f"{name}.py"
        for name in (
            "assemble",
            "batches",
            "cost",
            "dataflow",
            "design",
            "expansion",
            "fusion",
            "layout",
            "lowering",
            "merging",
            "planner",
            "rematerialisation",
            "strips",
            "trace",
            "updates",
        )
    ),
)


class LoadedKernel(NamedTuple):
    """A kernel in this process. `address` is a nrtx_kernel_fn (native/nrt/kernel_abi.h)."""

    address: int
    acc_bytes: int
    block: int


@dataclass
class KernelCounters:
    kernels_compiled: int = 0
    kernels_from_disk: int = 0
    kernels_reused: int = 0
    compile_seconds: float = 0.0


@dataclass
class KernelService:
    """All kernels of this process. Thread-safe."""

    runtime: Runtime
    store: KernelStore
    counters: KernelCounters = field(default_factory=KernelCounters)

    def __post_init__(self) -> None:
        self._host = host.recall(self.store)
        self._host_confirmed = False
        self._refused = Warned(
            log, "a stored kernel cannot be loaded and is compiled anew, and so is each like it: %s: %s"
        )
        self.target = self._host.target()
        self._lock = threading.RLock()
        self._loaded: dict[str, LoadedKernel] = {}
        self._making: dict[str, threading.Event] = {}  # kernels that a thread is about to have
        self._keys: dict[str, str] = {}  # canonical text -> key
        self._models: list[Model] = []  # loaded kernels live as long as the process: plans hold their addresses
        self.keys = key_maker(self._host)
        self.runtime.set_loader([self.target.key()], [str(_library())])

    def key_of(self, kernel: Kernel) -> str:
        text = kernel.text()
        key = self._keys.get(text)
        if key is None:
            key = self._keys[text] = self.keys.key("kernel", text)
        return key

    def _fields(self, kernel: Kernel) -> Fields:
        return self.keys.fields("kernel", kernel.text())

    def missing(self, kernel: Kernel) -> bool:
        """Whether `get` would have to compile."""
        return self.get_stored(self.key_of(kernel)) is None

    def get(self, kernel: Kernel) -> LoadedKernel:
        """The kernel, compiled if no process of this user has done so yet. Raises CompileError.

        Different kernels are compiled at once by different threads, the same one once.
        """
        key = self.key_of(kernel)
        while True:
            with self._lock:
                loaded = self._loaded.get(key)
                if loaded is not None:
                    self.counters.kernels_reused += 1
                    return loaded
                made_by_another = self._making.get(key)
                if made_by_another is None:
                    done = self._making[key] = threading.Event()
                    break
            made_by_another.wait()
        try:
            return self._make(key, kernel)
        finally:
            with self._lock:
                del self._making[key]
            done.set()

    def _make(self, key: str, kernel: Kernel) -> LoadedKernel:
        compiled = False

        def compile_it() -> bytes:
            nonlocal compiled
            compiled = True
            return self._compile(kernel)

        blob = self.store.compile_once("kernel", key, compile_it, lambda: self._fields(kernel))
        if compiled:
            return self._load(key, blob)
        try:
            loaded = self._load(key, blob)
        except Exception as error:  # trouble with the cache is never more than a compilation
            self._refused(type(error).__name__, error)
            return self._load(key, self.store.build("kernel", key, compile_it, lambda: self._fields(kernel)))
        self.counters.kernels_from_disk += 1
        return loaded

    def get_stored(self, key: str) -> LoadedKernel | None:
        """The kernel of a key, from memory or the disk cache; None if it is in neither, or what is there cannot be
        loaded (`get` says so, and replaces it)."""
        with self._lock:
            loaded = self._loaded.get(key)
            if loaded is not None:
                self.counters.kernels_reused += 1
                return loaded
            blob = self.store.get("kernel", key)
            if blob is None:
                return None
            try:
                loaded = self._load(key, blob)
            except Exception as error:
                log.debug("a stored kernel cannot be loaded: %s: %s", type(error).__name__, error)
                return None
            self.counters.kernels_from_disk += 1
            return loaded

    def _compile(self, kernel: Kernel) -> bytes:
        import adaptive_eager.compiler.codegen  # noqa: F401  (LLVM: only who compiles loads it, and does not time it)

        if not self._host_confirmed:
            host.confirm(self._host, self.store)
            self._host_confirmed = True
        start = time.perf_counter()
        blob = make_artifact(kernel, self.target)
        with self._lock:
            self.counters.compile_seconds += time.perf_counter() - start
            self.counters.kernels_compiled += 1
        return blob

    def _load(self, key: str, blob: bytes) -> LoadedKernel:
        with self._lock:
            model = self.runtime.load(blob, name=key[:12])
            self._models.append(model)
            metadata = artifact.unpack(blob).metadata
            loaded = LoadedKernel(model.entry("k"), int(metadata["acc_bytes"]), int(metadata["block"]))
            self._loaded[key] = loaded
            return loaded

    def __len__(self) -> int:
        return len(self._loaded)


def key_maker(machine: Host | None = None) -> KeyMaker:
    """Makes the keys of this version of the package, for a machine or (which loads LLVM) this one."""
    machine = machine or ask_llvm()
    return KeyMaker(GENERATOR_SOURCES, machine.target().key(), versions=tool_versions(machine.llvm))


def make_artifact(kernel: Kernel, target: Target) -> bytes:
    """Runs the compiler: what is stored and loaded of a kernel, the same bytes each time. Raises CompileError."""
    from adaptive_eager.compiler import codegen

    code = codegen.compile_kernel(kernel, target)
    return artifact.pack(
        target.key(),
        [code.entry],
        code.object_code,
        metadata={"acc_bytes": str(code.acc_bytes), "block": str(code.block)},
    )


def _library() -> Path:
    """The shared library of the functions that kernels call (compiler/vecmath.py)."""
    import torch

    return Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
