"""What the figures were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

PACKAGES = ("torch", "llvmlite", "numpy", "transformers")


def describe() -> dict[str, str]:
    """Processor, cores, memory, system, versions, and the commit of the source."""
    facts = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    facts["commit"] = _commit()
    return facts


def line(facts: dict[str, str]) -> str:
    return "; ".join(f"{what} {value}" for what, value in facts.items())


def _processor() -> str:
    """Its name, and the vector unit that kernels are compiled for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(part.split(":", 1) for part in lines if ":" in part)
    facts = {name.strip(): value.strip() for name, value in fields.items()}
    flags = facts.get("flags", facts.get("Features", "")).split()
    vector = next((name for name in ("avx512f", "avx2", "asimd") if name in flags), "")
    return " ".join(part for part in (facts.get("model name", platform.machine()), vector) if part)


def _commit() -> str:
    result = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.strip() or "unknown"
