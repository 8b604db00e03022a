"""`adaptive-eager doctor`: what the device needs, whether it is there, and whether it computes rightly."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from adaptive_eager import params


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and whether it is right."""

    what: str
    found: str
    good: bool = True


def examine() -> bool:
    """Prints all findings; returns whether all are good."""
    return show(list(look()))


def show(findings: list[Finding]) -> bool:
    """Prints findings; returns whether all are good."""
    from rich.console import Console

    console = Console()
    wide = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark, style = (" ok ", "green") if finding.good else ("FAIL", "bold red")
        console.print(f"[{style}]{mark}[/] {finding.what:<{wide}}  ", end="")
        console.print(finding.found, markup=False, highlight=False, soft_wrap=True)
    bad = sum(not finding.good for finding in findings)
    console.print("Everything is in order." if not bad else f"{bad} of {len(findings)} are wrong.", highlight=False)
    return not bad


def look() -> Iterator[Finding]:
    """All findings. One that cannot be made is a bad one that says why."""
    for name, check in _CHECKS:
        try:
            yield from check()
        except Exception as error:
            yield Finding(name, _one_line(error), good=False)


def _versions() -> Iterator[Finding]:
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}")
    import torch

    needed = [line for line in importlib.metadata.requires("adaptive-eager") or [] if line.startswith("torch")]
    right = not needed or _satisfies(torch.__version__, needed[0])
    cure = "" if right else f", need {needed[0]}: install the project again"
    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads{cure}", right)
    from adaptive_eager.compiler.target import ask_llvm

    yield Finding("llvmlite", f"{importlib.metadata.version('llvmlite')}, LLVM {ask_llvm().llvm}")


def _satisfies(version: str, requirement: str) -> bool:
    """Whether `version` starts as a pinned requirement such as "torch==2.13.*" says; True for other requirements."""
    pinned = requirement.partition("==")[2].removesuffix(".*")
    return not pinned or version.startswith((pinned + ".", pinned + "+")) or version == pinned


def _cpu() -> Iterator[Finding]:
    from adaptive_eager.compiler.target import ask_llvm

    host = ask_llvm()
    flags = set(host.features.split(","))
    vectors = [name for name in ("avx512f", "avx2", "neon", "sse4.2") if f"+{name}" in flags]
    unit = vectors[0] if vectors else "no vector unit known"
    yield Finding("CPU", f"{host.cpu}, {unit}, {os.cpu_count()} cores, {host.triple}")


def _runtime() -> Iterator[Finding]:
    from adaptive_eager.native import library

    path = library.find_library(params.get("runtime"))
    lib = library.open_library(path)
    version = library.read_version(lib)
    kind = "software NeuronCore" if library.is_software(lib) else "Neuron Runtime"
    number = ".".join(str(part) for part in version[:3]) if version else "of unknown version"
    yield Finding("runtime", f"{kind} {number}, {path}")


def _device() -> Iterator[Finding]:
    import torch

    import adaptive_eager

    name = torch._C._get_privateuse1_backend_name()
    if name == "privateuseone":
        yield Finding("device", "not registered: see the runtime above, or TORCH_DEVICE_BACKEND_AUTOLOAD", good=False)
        return
    if name != "neuron":
        yield Finding("device", f"torch's device slot is taken by {name!r}, so neuron stepped aside", good=False)
        return
    yield Finding(
        "device", f"{torch.get_device_module('neuron').device_count()} x neuron, mode {adaptive_eager.mode()}"
    )


def _cache() -> Iterator[Finding]:
    from adaptive_eager.cache.store import KernelStore

    store = KernelStore.from_params()
    info = store.info()
    store.close()
    if info["trouble"] is not None:
        yield Finding("cache", f"{info['directory']}: {info['trouble']}", good=False)
        return
    if info["state"] == "off":
        yield Finding("cache", "off")
        return
    entries = ", ".join(f"{number} {kind}s" for kind, number in info["entries"].items())
    writable = "writable" if info["state"] == "on" else "read-only"
    yield Finding("cache", f"{info['directory']}, {writable}, {entries}, {info['bytes'] / 1e6:.1f} MB")


def _parameters() -> Iterator[Finding]:
    changed = params.changed()
    yield Finding(
        "parameters", ", ".join(f"{name}={value}" for name, value in changed.items()) or "all at their defaults"
    )


def _self_test() -> Iterator[Finding]:
    """A small chain, three times over so that its fused form runs too, against the CPU."""
    import torch

    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.exp(-torch.relu(torch.tanh(x * y + 1.5) * x - y) / 2) + x).sum(dim=1)

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(33, 65, generator=generator) for _ in range(2))
    expected = chain(x, y)
    results = [chain(x.to("neuron"), y.to("neuron")).cpu() for _ in range(3)]
    worst = max(float((result - expected).abs().max()) for result in results)
    same = all(torch.equal(result, results[0]) for result in results)
    try:
        torch.testing.assert_close(results[0], expected)
        right = True
    except AssertionError:
        right = False
    repeats = "repeats bit for bit" if same else "the three runs differ"
    yield Finding("self-test", f"largest difference from the CPU {worst:.1e}, {repeats}", right and same)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


_CHECKS: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
    ("versions", _versions),
    ("CPU", _cpu),
    ("runtime", _runtime),
    ("device", _device),
    ("cache", _cache),
    ("parameters", _parameters),
    ("self-test", _self_test),
)
