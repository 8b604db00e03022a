"""Tiles: kernels that meet a tensor across its memory give what plain ones give, at every size and every split."""

from __future__ import annotations

import pytest
import torch
from kernel_harness import NAMES, runnable_targets, runner

from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.tile import TILE

by_target = pytest.mark.parametrize("target", runnable_targets(), ids=lambda t: f"{t.name}-{t.cpu}")
SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, TILE - 1, TILE, TILE + 1, 2 * TILE + 5)
DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64)


def load(dtype: torch.dtype, access: int) -> Instr:
    return Instr("load", (), NAMES[dtype], NAMES[dtype], (access,))


def copy(dtype: torch.dtype, source: str, target: str) -> Kernel:
    accesses = (Access(NAMES[dtype], source), Access(NAMES[dtype], target))
    return Kernel("k" * len(source), accesses, (load(dtype, 0),), (Store(0, 1),))


def values(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    return (torch.randn(sizes) * 50).to(dtype)


def assert_written(memory: torch.Tensor, view: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(view, expected)
    assert (memory[:32] == 7).all() and (memory[-32:] == 7).all()


@by_target
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transposed_copies_of_every_size(target, dtype):
    for rows in SIZES:
        for columns in SIZES:
            x = values(dtype, columns, rows).t()
            memory = torch.full((rows * columns + 64,), 7, dtype=dtype)
            out = memory.as_strided((rows, columns), (columns, 1), 32)
            items = -(-rows // TILE) * -(-columns // TILE)
            run = runner(copy(dtype, "cs", "sc"), target)
            assert run.compiled.block == TILE
            run.run([x, out], (rows, columns), items=items)
            assert_written(memory, out, x)
            # The same walked along the source: what is stored crosses.
            memory = torch.full_like(memory, 7)
            out = memory.as_strided((rows, columns), (1, rows), 32)
            y = values(dtype, rows, columns)
            runner(copy(dtype, "sc", "cs"), target).run([y, out], (rows, columns), items=items)
            assert_written(memory, out, y)


@by_target
def test_arithmetic_across(target):
    """out = exp(x) - y * x; z = x + y: with operands, results and a column that lie either way."""
    program = (
        load(torch.float32, 0),
        load(torch.float32, 1),
        Instr("exp", (0,), "f32", "f32"),
        Instr("mul", (1, 0), "f32", "f32"),
        Instr("sub", (2, 3), "f32", "f32"),
        Instr("add", (0, 1), "f32", "f32"),
        load(torch.bfloat16, 4),
        Instr("add", (5, 6), "f32", "f32"),
    )
    for n, m in ((5, 7), (70, 40), (TILE + 3, 2 * TILE - 1)):
        x, y = values(torch.float32, n, m), values(torch.float32, m, n).t()
        column = values(torch.bfloat16, n, 1)
        kinds = (("f32", "0sc"), ("f32", "0cs"), ("f32", "ssc"), ("f32", "scs"), ("bf16", "0s0"))
        accesses = tuple(Access(*kind) for kind in kinds)
        kernel = Kernel("kkk", accesses, program, (Store(4, 2), Store(7, 3)))
        out, z = torch.zeros(3, n, m), torch.zeros(3, m, n).mT
        items = 3 * -(-n // TILE) * -(-m // TILE)
        full = [t.expand(3, n, m) for t in (x, y)]
        tensors = [*full, out, z, column.expand(3, n, m)]
        assert runner(kernel, target).run(tensors, (3, n, m), items=items, splits=range(items)) == 0
        torch.testing.assert_close(out, (x.exp() - y * x).expand(3, n, m))
        assert torch.equal(z, (x + y + column.float()).expand(3, n, m))


@by_target
def test_in_place_across(target):
    """x += y, where x lies across: it is read and written through one buffer."""
    program = (load(torch.float32, 0), load(torch.float32, 1), Instr("add", (0, 1), "f32", "f32"))
    kernel = Kernel("kk", (Access("f32", "cs"), Access("f32", "sc")), program, (Store(2, 0),))
    for n, m in ((3, 200), (TILE + 9, 50)):
        x, y = values(torch.float32, m, n).t(), values(torch.float32, n, m)
        expected = x + y
        runner(kernel, target).run([x, y], (n, m), items=-(-n // TILE) * -(-m // TILE))
        assert torch.equal(x, expected)


@by_target
def test_bools_are_made_zero_or_one(target):
    x = torch.randint(0, 255, (40, 70), dtype=torch.uint8).view(torch.bool).t()
    out = torch.empty(70, 40, dtype=torch.bool)
    runner(copy(torch.bool, "cs", "sc"), target).run([x, out], (70, 40), items=1)
    assert torch.equal(out.view(torch.uint8), (x.contiguous().view(torch.uint8) != 0).to(torch.uint8))


@by_target
def test_nothing_to_do(target):
    out = torch.full((4, 4), 7.0)
    runner(copy(torch.float32, "cs", "sc"), target).run([out, out], (0, 4), items=0)
    assert (out == 7).all()
