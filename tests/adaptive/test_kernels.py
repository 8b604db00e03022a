"""Kernels: from the loop IR to an address, and what is remembered where."""

from __future__ import annotations

import ast
import ctypes
import struct
import threading
from pathlib import Path

import pytest

from adaptive_eager import backend, planner
from adaptive_eager import kernels as module
from adaptive_eager.cache.store import KernelStore
from adaptive_eager.compiler import codegen
from adaptive_eager.compiler.codegen import CompileError
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.kernels import KernelService


def kernel(op="neg", ordinal=0):
    program = (Instr("load", (), "f32", "f32", (0,)), Instr(op, (0,), "f32", "f32", ordinal=ordinal))
    return Kernel("k", (Access("f32", "c"), Access("f32", "c")), program, (Store(1, 1),))


OUTER_SUM = Kernel(
    "rk", (Access("f32", "sc"), Access("f32", "0c")),
    (Instr("load", (), "f32", "f32", (0,)), Instr("reduce", (0,), "f32", "f32", ("sum",))), (), (), (Store(1, 1),),
)  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return KernelStore(tmp_path / "cache", strict=True)


@pytest.fixture
def service(store):
    return KernelService(backend.runtime(), store)


def run(address, values):
    """Runs a kernel of one input and one output over floats."""
    n = len(values)
    source, result = (ctypes.c_float * n)(*values), (ctypes.c_float * n)()
    pointers = (ctypes.c_void_p * 2)(ctypes.addressof(source), ctypes.addressof(result))
    sizes, strides, error = (ctypes.c_int64 * 1)(n), (ctypes.c_int64 * 2)(1, 1), ctypes.c_int32()
    arrays = (pointers, sizes, strides, sizes, error)
    args = struct.pack("<6Q5q", *(ctypes.addressof(a) for a in arrays), 0, 0, 1, 1, 1, n)
    buffer = ctypes.create_string_buffer(args, len(args))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)(ctypes.addressof(buffer), 0, n)
    return list(result)


def test_a_kernel_runs(service):
    assert run(service.get(kernel()).address, [1.0, -2.0, 3.5]) == [-1.0, 2.0, -3.5]
    assert run(service.get(kernel("sqrt")).address, [4.0, 9.0]) == [2.0, 3.0]


def test_compiled_once_and_reused(service):
    first = service.get(kernel())
    assert service.get(kernel()) == first and len(service) == 1
    counters = service.counters
    assert (counters.kernels_compiled, counters.kernels_from_disk, counters.kernels_reused) == (1, 0, 1)
    assert counters.compile_seconds > 0


def test_equal_text_is_one_kernel(service):
    """Which node an instruction came from is not part of a kernel."""
    assert service.get(kernel(ordinal=5)) == service.get(kernel(ordinal=6))
    assert service.key_of(kernel(ordinal=5)) == service.key_of(kernel(ordinal=6))
    assert service.key_of(kernel("neg")) != service.key_of(kernel("abs"))


def test_another_process_finds_it_on_disk(service, store):
    service.get(OUTER_SUM)
    again = KernelService(backend.runtime(), KernelStore(store.directory, strict=True))
    loaded = again.get(OUTER_SUM)
    assert (again.counters.kernels_compiled, again.counters.kernels_from_disk) == (0, 1)
    # What the launch needs besides the code travels with it.
    assert (loaded.acc_bytes, loaded.block) == service.get(OUTER_SUM)[1:]
    assert loaded.acc_bytes > 0 and loaded.block > 1


def test_stored_kernels_by_key(service, store):
    key = service.key_of(kernel())
    assert service.get_stored(key) is None
    assert service.counters.kernels_compiled == 0
    loaded = service.get(kernel())
    assert service.get_stored(key) == loaded
    again = KernelService(backend.runtime(), KernelStore(store.directory, strict=True))
    assert run(again.get_stored(key).address, [2.0]) == [-2.0]
    assert again.counters.kernels_from_disk == 1
    assert again.get_stored(key) is not None
    assert (again.counters.kernels_from_disk, again.counters.kernels_reused) == (1, 1)


def test_what_cannot_be_compiled(service, store):
    with pytest.raises(CompileError, match="no_such_op"):
        service.get(kernel("no_such_op"))
    assert len(service) == 0 and store.keys("kernel") == []
    service.get(kernel())  # nothing is left locked


def test_unusable_blob_is_compiled_again(service, store):
    """Trouble with the cache is never more than a compilation."""
    store.put("kernel", service.key_of(kernel()), b"not an artefact")
    assert run(service.get(kernel()).address, [2.0]) == [-2.0]
    assert service.counters.kernels_compiled == 1
    again = KernelService(backend.runtime(), KernelStore(store.directory, strict=True))
    assert again.get_stored(again.key_of(kernel())) is not None  # and stored anew


def test_threads_share_one_compilation(service):
    found = []
    threads = [threading.Thread(target=lambda: found.append(service.get(kernel("exp")))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 6
    assert service.counters.kernels_compiled == 1


def modules_behind(path: Path) -> set[str]:
    """Names of the package's own modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("adaptive_eager."):
            found.add(node.module.split(".")[1])
    return found


def test_different_kernels_are_compiled_at_once(service, monkeypatch):
    """Whoever waits for one kernel does not wait for another; two that want the same one compile it once."""
    both, compile_kernel = threading.Barrier(2, timeout=20), codegen.compile_kernel
    monkeypatch.setattr(codegen, "compile_kernel", lambda *args: (both.wait(), compile_kernel(*args))[1])
    loaded = {}

    def get(i):
        loaded[i] = service.get(kernel(("neg", "abs")[i % 2]))

    threads = [threading.Thread(target=get, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert loaded[0] == loaded[2] != loaded[1] == loaded[3]
    assert service.counters.kernels_compiled == 2


def test_a_failure_leaves_nobody_waiting(service, monkeypatch):
    compile_kernel = codegen.compile_kernel
    monkeypatch.setattr(codegen, "compile_kernel", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        service.get(kernel())
    monkeypatch.setattr(codegen, "compile_kernel", compile_kernel)
    assert service.missing(kernel())
    service.get(kernel())
    assert not service.missing(kernel())


def test_every_source_of_a_plan_is_in_the_key():
    """A change to any module that kernels or plans come from must make new keys."""
    sources = {path.stem for path in module.GENERATOR_SOURCES}
    assert all(path.exists() for path in module.GENERATOR_SOURCES)
    needed, pending = set(), {"planner"}
    while pending:
        name = pending.pop()
        needed.add(name)
        path = Path(planner.__file__).with_name(f"{name}.py")
        if path.exists():
            pending |= modules_behind(path) - needed
    # Neither what keeps and loads kernels, nor what says when plans are made, nor the tunables and the machine, which
    # are part of the keys by value.
    assert needed - {"cache", "native", "kernels", "host", "params", "background", "variants"} <= sources
