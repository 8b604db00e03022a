"""Finding a library, and the one line that says what is wrong with it."""

import re
import subprocess
import sys

import pytest
from alone import PRELUDE

from adaptive_eager.native import declarations, library, nrt_ffi
from adaptive_eager.native.errors import RuntimeLibraryError
from adaptive_eager.native.runtime import open_runtime

STUB = """
#include <string.h>
#include "nrt.h"
NRT_STATUS nrt_get_version(nrt_version_t* version, size_t size) {
  if (MAJOR == 0) return NRT_UNINITIALIZED;
  memset(version, 0, size);
  version->rt_major = MAJOR;
  version->rt_minor = 7;
  return NRT_SUCCESS;
}
NRT_STATUS nrt_init(nrt_framework_type_t framework, const char* a, const char* b) { return NRT_SUCCESS; }
void nrt_close(void) {}
#ifdef ABI
unsigned nrtx_abi_version(void) { return ABI; }
#endif
"""


def build_stub(folder, *defines):
    path = folder / "libstub.so"
    source = folder / "stub.c"
    source.write_text(STUB)
    include = library.SOFTWARE_LIBRARY.parent / "nrt"
    flags = [f"-D{define}" for define in defines]
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{include}", *flags, str(source), "-o", str(path)], check=True)
    return str(path)


def complaint(path) -> str:
    with pytest.raises(RuntimeLibraryError) as caught:
        open_runtime(str(path))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"cannot use the Neuron Runtime library '{path}': ")
    assert text.count(str(path)) == 1
    return text


def test_the_binding_is_up_to_date():
    assert declarations.header_digest() == nrt_ffi.HEADER_DIGEST, "run python -m adaptive_eager.native.declarations"


def test_generating_the_binding(tmp_path):
    fresh = tmp_path / "nrt_ffi.py"
    declarations.generate(fresh)
    namespace: dict = {}
    exec(fresh.read_text(), namespace)
    assert namespace["ffi"].list_types() == library.ffi.list_types()
    assert namespace["HEADER_DIGEST"] == declarations.header_digest()


def test_the_library_exports_what_the_header_declares(lib):
    declared = set(re.findall(r"^\w[\w *]*?[ *](nrtx?_\w+)\(", declarations.declarations(), re.MULTILINE))
    assert {"nrt_init", "nrt_get_status_as_str", "nrt_tensor_get_va", "nrtx_set_loader"} < declared
    assert [name for name in declared if not hasattr(lib, name)] == []


def test_find(monkeypatch, tmp_path):
    software = str(library.SOFTWARE_LIBRARY)
    device, real = tmp_path / "neuron0", tmp_path / "libnrt.so.1"
    monkeypatch.setattr(library, "NEURON_DEVICE", device)
    monkeypatch.setattr(library, "NEURON_LIBRARY", real)
    assert library.find_library("software") == software
    assert library.find_library("auto") == software
    assert library.find_library("/some/path.so") == "/some/path.so"
    real.touch()
    assert library.find_library("auto") == software  # the SDK without a device
    device.touch()
    assert library.find_library("auto") == str(real)
    assert library.find_library("software") == software
    real.unlink()
    assert library.find_library("auto") == "libnrt.so.1"  # the loader's search path


def test_missing(tmp_path, monkeypatch):
    assert "no such file; install the Neuron Runtime" in complaint(tmp_path / "nothing.so")
    assert "cannot open shared object file" in complaint("libnothing-of-the-kind.so.1")
    monkeypatch.setattr(library, "SOFTWARE_LIBRARY", tmp_path / "libneuroncore.so")
    with pytest.raises(RuntimeLibraryError, match=r"libneuroncore.so': no such file; build it by installing"):
        open_runtime("software")


def test_not_a_library(tmp_path):
    empty, text, cut = tmp_path / "empty.so", tmp_path / "text.so", tmp_path / "cut.so"
    empty.touch()
    text.write_text("This is not a library.\n" * 10)
    assert "file too short" in complaint(empty)
    assert "invalid ELF header" in complaint(text)
    assert "Is a directory" in complaint(tmp_path) or "cannot read" in complaint(tmp_path)
    whole = library.SOFTWARE_LIBRARY.read_bytes()
    for size in (6, 50, 70, 5000):
        cut.write_bytes(whole[:size])
        assert "the file is cut short" in complaint(cut)


def test_another_library(tmp_path):
    source, path = tmp_path / "empty.c", tmp_path / "other.so"
    source.write_text("int other(void) { return 1; }")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    assert "it is not a Neuron Runtime (it has no nrt_get_version)" in complaint(path)


def test_other_versions(tmp_path):
    assert "it is Neuron Runtime 3.7.0, and this needs 2.x" in complaint(build_stub(tmp_path, "MAJOR=3"))


def test_another_software_core(tmp_path):
    assert "it is a software core of ABI 99, and this needs 2" in complaint(build_stub(tmp_path, "MAJOR=2", "ABI=99"))


def test_no_version(tmp_path):
    assert "it does not say its version" in complaint(build_stub(tmp_path, "MAJOR=0"))


def test_a_runtime_without_extensions_is_not_software(tmp_path):
    with open_runtime(build_stub(tmp_path, "MAJOR=2")) as runtime:
        assert not runtime.is_software
        assert runtime.version[:2] == (2, 7)
        with pytest.raises(RuntimeLibraryError, match="is no software core"):
            runtime.set_loader()
        with pytest.raises(RuntimeLibraryError, match="is no software core"):
            runtime.guard_open()
        with pytest.raises(RuntimeLibraryError, match="has no function nrt_load"):
            runtime.address_of("nrt_load")


def test_importing_opens_nothing():
    script = """
import adaptive_eager.native.runtime, sys
assert "torch" not in sys.modules and "pycparser" not in sys.modules
assert "libneuroncore" not in open("/proc/self/maps").read()
"""
    subprocess.run([sys.executable, "-c", PRELUDE + script], check=True)
