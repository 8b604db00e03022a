"""Linker: loading, replacing and freeing kernels, from several threads."""

from __future__ import annotations

import threading

import pytest
import torch
from kernel_harness import _FUNCTION, TORCH_LIBRARY, linker, runner

from adaptive_eager.compiler.codegen import compile_kernel
from adaptive_eager.compiler.linker import Linker, LinkError
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import host_target

F32 = Access("f32", "c")


def kernel(op: str) -> Kernel:
    return Kernel(
        "k", (F32, F32), (Instr("load", (), "f32", "f32", (0,)), Instr(op, (0,), "f32", "f32")), (Store(1, 1),)
    )


def call(address: int, op: str) -> torch.Tensor:
    x, out = torch.tensor([4.0, 9.0]), torch.empty(2)
    run = runner(kernel(op), host_target())
    original, run.function = run.function, _FUNCTION(address)
    run.run([x, out], (2,))
    run.function = original
    return out


def test_link_replace_unlink():
    link = Linker([TORCH_LIBRARY])
    code = {op: compile_kernel(kernel(op), host_target()).object_code for op in ("sqrt", "neg", "exp")}
    first = link.link(code["sqrt"], "a")
    second = link.link(code["neg"], "b")
    assert "a" in link and len(link) == 2
    assert call(first, "sqrt").tolist() == [2.0, 3.0]
    assert call(second, "neg").tolist() == [-4.0, -9.0]
    again = link.link(code["exp"], "a")
    torch.testing.assert_close(call(again, "exp"), torch.tensor([4.0, 9.0]).exp())
    link.unlink("a")
    link.unlink("never linked")
    assert "a" not in link and len(link) == 1
    assert call(second, "neg").tolist() == [-4.0, -9.0]
    assert call(link.link(code["sqrt"], "a"), "sqrt").tolist() == [2.0, 3.0]


def test_bookkeeping_is_bounded():
    link = Linker([TORCH_LIBRARY])
    code = compile_kernel(kernel("neg"), host_target()).object_code
    for k in range(200):
        link.link(code, f"n{k % 3}")
    assert len(link) == 3


@pytest.mark.parametrize("damage", [b"", b"not an object", b"\x7fELF" + bytes(60)])
def test_damaged_object(damage):
    with pytest.raises(LinkError, match="cannot link broken"):
        linker().link(damage, "broken")
    assert "broken" not in linker()


def test_missing_library():
    with pytest.raises(LinkError, match="cannot open"):
        Linker(["/nonexistent/library.so"])


def test_threads():
    link = Linker([TORCH_LIBRARY])
    failures = []

    def work(k: int) -> None:
        try:
            for turn in range(4):
                op = ("sqrt", "neg", "abs", "exp")[(k + turn) % 4]
                address = link.link(compile_kernel(kernel(op), host_target()).object_code, f"t{k}")
                out = call_directly(address)
                torch.testing.assert_close(out, getattr(torch, op)(torch.tensor([4.0, 9.0])))
        except Exception as error:
            failures.append(error)

    def call_directly(address: int) -> torch.Tensor:
        import copy

        x, out = torch.tensor([4.0, 9.0]), torch.empty(2)
        run = copy.copy(runner(kernel("neg"), host_target()))
        run.function = _FUNCTION(address)
        run.run([x, out], (2,))
        return out

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert len(link) == 4
