"""Targets: families, keys, and code for machines other than this one."""

from __future__ import annotations

import pytest

from adaptive_eager.compiler.codegen import compile_kernel, emit_ir
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import Host, ask_llvm, host_can_run, host_target, named_target

F32 = Access("f32", "c")
LOAD = Instr("load", (), "f32", "f32", (0,))
MAP = Kernel("k", (F32, F32), (LOAD, Instr("tanh", (0,), "f32", "f32")), (Store(1, 1),))
SUM = Kernel(
    "kr", (Access("f32", "sc"), Access("f32", "s0")), (LOAD, Instr("reduce", (0,), "f32", "f32", ("sum",))), (), (),
    (Store(1, 1),),
)  # fmt: skip


def test_lanes():
    assert [named_target(n).lanes for n in ("avx512", "avx2", "generic")] == [16, 8, 4]
    assert host_target().lanes == named_target(host_target().name).lanes


def test_unknown_name():
    with pytest.raises(ValueError, match="unknown target 'sse9'"):
        named_target("sse9")


def test_keys_differ():
    targets = {named_target(n) for n in ("avx512", "avx2", "generic")} | {host_target()}
    assert len({t.key() for t in targets}) == len(targets)


def test_family_needs_all_features():
    def family(features: str) -> str:
        return Host("20.1.0", "x86_64-unknown-linux-gnu", "some", features).family

    avx512 = "+avx512f,+avx512bw,+avx512dq,+avx512vl"
    assert family(f"+avx2,{avx512},+f16c,+fma") == "avx512"
    assert family(f"+avx2,{avx512.replace('+avx512vl', '-avx512vl')},+f16c,+fma") == "avx2"
    assert family("+avx2,+avx512f,+f16c,+fma") == "avx2"
    assert family("+avx2") == family("-avx2,-f16c,-fma") == family("") == "generic"


def test_the_host_is_what_llvm_says():
    import llvmlite.binding as llvm

    host, features = ask_llvm(), llvm.get_host_cpu_features()
    assert {flag[1:]: flag[0] == "+" for flag in host.features.split(",")} == dict(features)
    assert (host.triple, host.cpu) == (llvm.get_process_triple(), llvm.get_host_cpu_name())
    assert host.target() == host_target()


def test_host_runs_what_it_should():
    assert host_can_run(host_target())
    assert host_can_run(named_target("generic"))


@pytest.mark.parametrize("name", ["avx512", "avx2", "generic"])
@pytest.mark.parametrize("kernel", [MAP, SUM], ids=["map", "sum"])
def test_compiles_for_every_family(name, kernel):
    target = named_target(name)
    compiled = compile_kernel(kernel, target)
    assert compiled.object_code[:4] == b"\x7fELF" and compiled.entry == "k" and compiled.block == 1
    assert compiled.acc_bytes == (0 if kernel is MAP else max(64, 4 * target.lanes))  # a vector of float32
    assert f"<{target.lanes} x float>" in emit_ir(kernel, target)


def test_wide_vectors_stay_whole():
    """A function that takes 512-bit vectors must say so, or its arguments travel in two halves."""
    assert '"min-legal-vector-width"="512"' in emit_ir(MAP, named_target("avx512"))
