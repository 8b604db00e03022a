"""Host: what is remembered of this machine is what LLVM says, and is asked for anew when that may have changed."""

from __future__ import annotations

import logging

import pytest

from adaptive_eager import backend, host
from adaptive_eager.cache.store import KernelStore
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import ask_llvm
from adaptive_eager.kernels import KernelService

NEG = Kernel(
    "k", (Access("f32", "c"),) * 2, (Instr("load", (), "f32", "f32", (0,)), Instr("neg", (0,), "f32", "f32")),
    (Store(1, 1),),
)  # fmt: skip

X86 = """processor\t: {n}
model name\t: Some Processor @ 3 GHz
cpu MHz\t\t: {mhz}
apicid\t\t: {n}
flags\t\t: fpu avx2 {flags}

"""


@pytest.fixture
def store(tmp_path):
    return KernelStore(tmp_path / "cache", strict=True)


@pytest.fixture
def asked(monkeypatch):
    """Counts how often LLVM is asked."""
    calls = []
    monkeypatch.setattr(host, "ask_llvm", lambda: (calls.append(1), ask_llvm())[1])
    return calls


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    """Puts another text in the place of /proc/cpuinfo."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(host, "_CPUINFO", path)
    return path.write_text


def test_llvm_is_asked_once(store, asked):
    first = host.recall(store)
    assert first == ask_llvm() and len(asked) == 1
    again = KernelStore(store.directory, strict=True)
    assert host.recall(again) == first and len(asked) == 1
    assert first.target() == ask_llvm().target()


def test_another_processor_is_asked_for(store, asked, cpuinfo):
    for count, flags in enumerate(["avx512f", "avx512f avx512vl", "avx512f"]):
        cpuinfo(X86.format(n=0, mhz=3000, flags=flags))
        host.recall(store)
        assert len(asked) == min(count + 1, 2)


def test_another_build_of_llvmlite_is_asked_for(store, asked, monkeypatch):
    host.recall(store)
    monkeypatch.setattr(host, "_library", lambda: "0.99 1 2")
    host.recall(store)
    host.recall(store)
    assert len(asked) == 2


@pytest.mark.parametrize("unknown", ["_library", "processor"])
def test_what_cannot_be_told_apart_is_not_remembered(store, asked, monkeypatch, unknown):
    monkeypatch.setattr(host, unknown, lambda: None)
    host.recall(store)
    host.recall(store)
    assert len(asked) == 2 and store.keys("host") == []


def test_the_moment_is_not_of_the_model(cpuinfo, monkeypatch):
    cpuinfo(X86.format(n=0, mhz=800, flags="f16c"))
    first = host.processor()
    cpuinfo("".join(X86.format(n=n, mhz=3000 + n, flags="f16c") for n in range(3)))
    assert host.processor() == first and "Some Processor" in first and "f16c" in first
    cpuinfo("processor: 0\nCPU part: 0xd03\n\nprocessor: 1\nCPU part: 0xd08\n\nprocessor: 2\nCPU part: 0xd03\n\n")
    monkeypatch.setattr(host.os, "uname", lambda: type("Name", (), {"machine": "aarch64"}))
    assert host.processor() == "CPU part: 0xd03; CPU part: 0xd08"  # every kind of core, once


def test_no_cpuinfo(store, asked, cpuinfo):
    assert host.processor() is None
    cpuinfo("\n\n")
    assert host.processor() is None
    assert host.recall(store) == ask_llvm() and store.keys("host") == []


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"null", b'{"llvm": "1"}', b"\xff"])
def test_a_damaged_entry_is_replaced(store, asked, damage):
    host.recall(store)
    (key,) = store.keys("host")
    store.put("host", key, damage)
    assert host.recall(store) == host.recall(store) == ask_llvm()
    assert len(asked) == 2


def test_a_wrong_memory_is_replaced_when_llvm_is_there(store, caplog):
    """Who compiles has LLVM, and compares."""
    right = host.recall(store)
    (key,) = store.keys("host")
    store.put("host", key, store.get("host", key).replace(right.llvm.encode(), b"1.2.3"))
    caplog.set_level(logging.DEBUG, "adaptive_eager.host")
    service = KernelService(backend.runtime(), store)
    assert host.recall(store).llvm == "1.2.3"
    service.get(NEG)
    assert host.recall(store) == right
    assert "LLVM says otherwise" in caplog.text
    caplog.clear()
    KernelService(backend.runtime(), KernelStore(store.directory.with_name("other"), strict=True)).get(NEG)
    assert caplog.text == ""
