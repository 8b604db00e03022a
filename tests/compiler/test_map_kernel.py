"""Map kernels: shapes, strides, offsets, alignment, in-place use, and every way to split the work."""

from __future__ import annotations

import random

import pytest
import torch
from kernel_harness import NAMES, moves_of, pointwise, runnable_targets, runner

from adaptive_eager.compiler.builder import CompileError
from adaptive_eager.compiler.codegen import emit_ir
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import host_target

TARGETS = runnable_targets()
by_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t.name}-{t.cpu}")


def chain(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> Kernel:
    """out = exp(x) - y * x, as a kernel for these layouts."""
    program = (
        Instr("load", (), NAMES[x.dtype], NAMES[x.dtype], (0,)),
        Instr("load", (), NAMES[y.dtype], NAMES[y.dtype], (1,)),
        Instr("exp", (0,), "f32", "f32"),
        Instr("mul", (1, 0), "f32", "f32"),
        Instr("sub", (2, 3), "f32", "f32"),
    )
    accesses = tuple(Access(NAMES[t.dtype], moves_of(t)) for t in (x, y, out))
    return Kernel("k" * out.dim(), accesses, program, (Store(4, 2),))


def run_chain(x, y, out, target, **run):
    x, y = x.expand(out.shape), y.expand(out.shape)
    assert runner(chain(x, y, out), target).run([x, y, out], out.shape, **run) == 0
    return out


@by_target
def test_every_length_and_split(target):
    for n in (*range(41), 333):
        x, y = torch.randn(n), torch.randn(n)
        # Guard elements on both sides must stay untouched.
        memory = torch.full((n + 32,), 7.0)
        whole = run_chain(x, y, memory[16 : 16 + n], target)
        torch.testing.assert_close(whole, x.exp() - y * x)
        assert (memory[:16] == 7).all() and (memory[16 + n :] == 7).all()
        for splits in (range(n), range(0, n, 3), [n // 2]):
            assert torch.equal(run_chain(x, y, torch.empty(n), target, splits=splits), whole)


@by_target
def test_layouts(target):
    base = torch.randn(12, 10, 11)
    shapes = [
        (base, torch.randn(11)), (base, torch.randn(10, 1)), (base, torch.randn(12, 1, 1)), (base, torch.randn(())),
        (base.permute(2, 0, 1), torch.randn(10)), (base[:, 1:9:2, 3:], torch.randn(8)),
        (base[::2, :, ::3], torch.randn(6, 10, 1)), (base[:, :, 4], torch.randn(10)),
        (base[3, :, 1:2], torch.randn(10, 1)),
        (base[2, 3, 4], torch.randn(())), (base.transpose(0, 1)[1], base[:, 2]), (base[:, :0], torch.randn(11)),
    ]  # fmt: skip
    for x, y in shapes:
        want = x.exp() - y * x
        out = run_chain(x, y, torch.empty(want.shape), target)
        torch.testing.assert_close(out, want)
        # The same values through a strided output, and in pieces.
        strided = torch.empty((*want.shape, 2)).select(-1, 1) if want.dim() else torch.empty(())
        total = want.numel()
        splits = sorted(random.Random(1).sample(range(total + 1), min(9, total)))
        assert torch.equal(run_chain(x, y, strided, target, splits=splits), out)


def test_five_dimensions():
    x = torch.randn(3, 2, 4, 3, 5).permute(3, 1, 0, 2, 4)
    out = run_chain(x, torch.randn(1, 2, 1, 4, 1), torch.empty(x.shape), host_target(), splits=range(0, 360, 7))
    assert out.shape == x.shape
    y = torch.randn(4, 1)
    torch.testing.assert_close(run_chain(x, y, torch.empty(x.shape), host_target()), x.exp() - y * x)


@by_target
def test_misaligned_pointers(target):
    memory = torch.zeros(4 * 100 + 8, dtype=torch.uint8)
    values = torch.randn(100)
    for offset in (1, 2, 3, 4, 5):
        raw = memory[offset : offset + 400]
        raw.copy_(values.view(torch.uint8))
        # torch will not view odd addresses as float: hand the kernel a byte tensor posing as the float one.
        program = (Instr("load", (), "f32", "f32", (0,)), Instr("neg", (0,), "f32", "f32"))
        access = Access("f32", "c")
        kernel = Kernel("k", (access, access), program, (Store(1, 1),))
        out = torch.empty(100)
        runner(kernel, target).run([raw, out], (100,))
        assert torch.equal(out, -values)


@by_target
@pytest.mark.parametrize("same_access", [False, True])
def test_in_place(same_access, target):
    """x = where(x > 0, x * 2, x): the same memory loaded and stored, as two accesses and as one."""
    program = (
        Instr("load", (), "f32", "f32", (0,)),
        Instr("scalar", (), "i64", "i64", (0, "i")),
        Instr("scalar", (), "i64", "i64", (1, "i")),
        Instr("gt", (0, 1), "f32", "bool"),
        Instr("mul", (0, 2), "f32", "f32"),
        Instr("where", (3, 4, 0), "f32", "f32"),
    )
    for shape in ((37,), (5, 9)):
        x = torch.randn(*shape, 2)[..., 0] if same_access else torch.randn(shape)
        want = torch.where(x > 0, x * 2, x)
        accesses = (Access("f32", moves_of(x)),) * (1 if same_access else 2)
        kernel = Kernel("k" * x.dim(), accesses, program, (Store(5, len(accesses) - 1),))
        runner(kernel, target).run([x] * len(accesses), shape, (0, 2), splits=(3, 11, 30))
        assert torch.equal(x, want)


@by_target
def test_several_results_of_several_dtypes(target):
    x = torch.randn(77) * 3
    program = (
        Instr("load", (), "f32", "f32", (0,)),
        Instr("exp", (0,), "f32", "bf16"),
        Instr("gt", (0, 1), "f32", "bool"),
        Instr("add", (2, 0), "f32", "f32"),
    )
    outs = [torch.empty(77, dtype=d) for d in (torch.bfloat16, torch.bool, torch.float32, torch.float64, torch.int8)]
    accesses = (Access("f32", "c"), *(Access(NAMES[o.dtype], "c") for o in outs))
    stores = tuple(Store(v, k + 1) for k, v in enumerate((1, 2, 3, 3, 3)))
    runner(Kernel("k", accesses, program, stores), target).run([x, *outs], (77,))
    e = x.exp().bfloat16()
    torch.testing.assert_close(outs[0], e)
    e = outs[0]
    want = [e, x > e.float(), (x > e.float()) + x]
    want += [want[2].double(), want[2].to(torch.int8)]
    for out, value in zip(outs, want, strict=True):
        assert torch.equal(out, value)


def test_fused_equals_unfused():
    """Rounding between ops is the same inside one kernel as through memory."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = NAMES[dtype]
        x, y = torch.randn(1000).to(dtype), torch.randn(1000).to(dtype)
        program = [Instr("load", (), name, name, (0,)), Instr("load", (), name, name, (1,))]
        ops = ("mul", "add", "tanh", "sub", "sigmoid", "div")
        step = None
        for k, op in enumerate(ops):
            one = op in ("tanh", "sigmoid")
            last = x if step is None else step
            program.append(Instr(op, (k + 1 if k else 0,) if one else (k + 1 if k else 0, 1), name, name))
            step, _ = pointwise(op, [last] if one else [last, y], name, name)
        out = torch.empty(1000, dtype=dtype)
        access = Access(name, "c")
        kernel = Kernel("k", (access,) * 3, tuple(program), (Store(len(program) - 1, 2),))
        runner(kernel, host_target()).run([x, y, out], (1000,))
        assert torch.equal(out, step)


def test_nothing_is_read_when_there_is_nothing_to_do():
    kernel = chain(torch.empty(2, 2), torch.empty(()), torch.empty(2, 2))
    run = runner(kernel, host_target())
    run.function(None, 0, 0)
    run.function(None, 5, 5)


def test_errors_name_the_op():
    access = Access("f32", "c")
    load = Instr("load", (), "f32", "f32", (0,))
    for instr, message in (
        (Instr("frobnicate", (0,), "f32", "f32"), "frobnicate: no scalar semantics"),
        (Instr("add", (0,), "f32", "f32"), "add: got 1 operands"),
        (Instr("bitwise_and", (0, 0), "f32", "f32"), "bitwise_and: not defined on f32"),
        (Instr("gelu", (0,), "f32", "f32", ("cubic",)), "gelu: approximate argument"),
    ):
        with pytest.raises(CompileError, match=message):
            emit_ir(Kernel("k", (access, access), (load, instr), (Store(1, 1),)), host_target())


def test_memory_is_asked_for_ahead():
    """Of what is walked in order: loads, then stores. Not of a row that comes again and again, nor of strided elements,
    and one row further only if there is no gap to it."""

    def asked(*tensors):
        lines = [line.strip() for line in emit_ir(chain(*tensors), host_target()).splitlines()]
        writes = [line.split(", i32 ")[1] for line in lines if line.startswith("call void @llvm.prefetch")]
        return writes, sum("icmp eq i64 %s" in line for line in lines)

    x, row, out = torch.randn(6, 50), torch.randn(50).expand(6, 50), torch.empty(6, 50)
    assert asked(x[0], x[1], out[0]) == (["0", "0", "1"], 0)
    assert asked(x, row, out) == (["0", "1"], 2)
    assert asked(x[:, ::2], x[:, 1::2], torch.empty(6, 25)) == (["1"], 1)
