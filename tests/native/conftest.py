"""Fixtures of the native tests: the software core, built if it is not there, and an open runtime."""

import os
import subprocess
from pathlib import Path

import alone
import pytest

if not alone.isolate():
    pytest.skip(
        "the torch device holds the runtime: run tests/native in a process of its own, as make test does",
        allow_module_level=True,
    )

from native_kernels import TARGET, scale_artifact

from adaptive_eager.native import library
from adaptive_eager.native.runtime import open_runtime

NRT = Path(library.__file__).parent / "nrt"
MEBIBYTE = 1 << 20
LIMIT = 64 * MEBIBYTE


@pytest.fixture(scope="session", autouse=True)
def software_library():
    if not library.SOFTWARE_LIBRARY.exists():
        fresh = library.SOFTWARE_LIBRARY.with_suffix(f".{os.getpid()}")
        sources = [str(path) for path in sorted(NRT.glob("*.cpp"))]
        flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
        subprocess.run(["g++", *flags, *sources, "-o", str(fresh)], check=True)
        fresh.replace(library.SOFTWARE_LIBRARY)
    return library.SOFTWARE_LIBRARY


@pytest.fixture
def lib(software_library):
    """The raw cffi library. Closed before and after."""
    opened = library.open_library(str(software_library))
    opened.nrt_close()
    yield opened
    opened.nrt_close()
    opened.nrtx_guard_enable(False)


@pytest.fixture
def open_lib(lib):
    """The raw library, initialised with two cores of 64 MiB."""
    assert lib.nrtx_configure(2, LIMIT) == 0
    assert lib.nrt_init(lib.NRT_FRAMEWORK_TYPE_PYTORCH, b"", b"") == 0
    return lib


@pytest.fixture
def runtime(lib):
    """An open runtime of two devices with 64 MiB each, which loads models of TARGET."""
    with open_runtime("software", devices=2, bytes_limit=LIMIT) as opened:
        opened.set_loader([TARGET])
        yield opened


@pytest.fixture
def model(runtime):
    with runtime.load(scale_artifact(), 0, "scale") as loaded:
        yield loaded
