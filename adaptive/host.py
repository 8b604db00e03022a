"""Host: this machine's target, known to a process that has not loaded LLVM.

Only LLVM can say what it calls a processor and its features, and loading it takes more time and memory than all else
that a process needs whose kernels are in the cache. So the store remembers what LLVM said, under what that depends on:
the library and the processor.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path

from adaptive_eager.cache.key import Fields, digest
from adaptive_eager.cache.store import KernelStore
from adaptive_eager.compiler.target import Host, ask_llvm

log = logging.getLogger("adaptive_eager.host")

_CPUINFO = Path("/proc/cpuinfo")
#: Lines of /proc/cpuinfo that are one core's own, or of the moment.
_NOT_OF_THE_MODEL = {
    "processor", "cpu mhz", "bogomips", "apicid", "initial apicid", "core id", "physical id", "cpu cores", "siblings",
}  # fmt: skip


def recall(store: KernelStore) -> Host:
    """What LLVM says of this machine: as the store remembers it, else from LLVM, which is then remembered."""
    depends = fields()
    if depends is None:
        return ask_llvm()
    stored = store.get("host", digest(depends))
    if stored is not None:
        try:
            return Host(**json.loads(stored))
        except (ValueError, TypeError) as error:
            log.debug("what is stored of this machine cannot be read: %s", error)
    return _remember(ask_llvm(), store, depends)


def confirm(host: Host, store: KernelStore) -> None:
    """Compares what was recalled with LLVM's own word, for a process that has loaded it; what is wrong is replaced."""
    told, depends = ask_llvm(), fields()
    if told != host and depends is not None:
        log.debug("LLVM says otherwise of this machine than the store: %s, not %s", told, host)
        _remember(told, store, depends)


def _remember(host: Host, store: KernelStore, depends: Fields) -> Host:
    store.put("host", digest(depends), json.dumps(asdict(host)).encode(), depends)
    return host


def fields() -> Fields | None:
    """What LLVM's word depends on, as the fields of a key; None if that cannot be said."""
    library, model = _library(), processor()
    if library is None or model is None:
        return None
    return [("llvmlite", library), ("processor", model)]


def _library() -> str | None:
    """Version of llvmlite, and which build of it: others may hold another LLVM."""
    try:
        spec = importlib.util.find_spec("llvmlite")
        if spec is None or spec.origin is None:
            return None
        status = Path(spec.origin).with_name("binding").joinpath("libllvmlite.so").stat()
        return f"{importlib.metadata.version('llvmlite')} {status.st_size} {status.st_mtime_ns}"
    except (OSError, importlib.metadata.PackageNotFoundError):
        return None


def processor() -> str | None:
    """Model and features of the processor in the kernel's words; None where the kernel does not say."""
    kinds: dict[str, None] = {}  # of cores, each once
    try:
        with _CPUINFO.open() as lines:
            for is_a_core, core in itertools.groupby(lines, key=lambda line: bool(line.strip())):
                if not is_a_core:
                    continue
                kinds[", ".join(filter(None, map(_of_the_model, core)))] = None
                if os.uname().machine == "x86_64":  # its cores are alike, and the kernel takes a while to tell of each
                    break
    except OSError:
        return None
    return "; ".join(kinds) or None


def _of_the_model(line: str) -> str:
    name, _, value = line.partition(":")
    return "" if name.strip().lower() in _NOT_OF_THE_MODEL else f"{name.strip()}: {value.strip()}"
