"""The `index` instruction: the true position of every point, whoever walks it and however far the row goes."""

from __future__ import annotations

import itertools
from math import prod

import pytest
import torch
from kernel_harness import moves_of, runnable_targets, runner

from adaptive_eager.compiler.builder import CompileError
from adaptive_eager.compiler.codegen import emit_ir
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import host_target

by_target = pytest.mark.parametrize("target", runnable_targets(), ids=lambda t: f"{t.name}-{t.cpu}")


def linear(sizes, dims):
    """Row-major index over `dims` at each point of a space."""
    total = torch.zeros(sizes, dtype=torch.int64)
    for d in dims:
        along = torch.arange(sizes[d]).reshape([-1 if k == d else 1 for k in range(len(sizes))])
        total = total * sizes[d] + along
    return total


def orders(rank):
    return [dims for n in range(rank + 1) for dims in itertools.permutations(range(rank), n)]


@by_target
@pytest.mark.parametrize("sizes", [(), (1,), (37,), (5, 21), (3, 4, 18), (2, 3, 1, 9)])
def test_map(sizes, target):
    outs = {
        "contiguous": torch.empty(sizes, dtype=torch.int64),
        "turned": torch.empty(sizes[::-1], dtype=torch.int64).permute(tuple(reversed(range(len(sizes))))),
        "spread": torch.empty((*sizes, 2), dtype=torch.int64).select(-1, 1),
    }
    for dims in orders(len(sizes)):
        for out in outs.values():
            program = (Instr("index", (), "i64", "i64", dims),)
            kernel = Kernel("k" * len(sizes), (Access("i64", moves_of(out)),), program, (Store(0, 0),))
            for splits in ((), range(0, prod(sizes), 5)):
                out.fill_(-1)
                runner(kernel, target).run([out], sizes, splits=splits)
                assert torch.equal(out, linear(sizes, dims)), dims


@by_target
@pytest.mark.parametrize(
    ("sizes", "dims"),
    [
        ((6, 45), "kr"), ((2, 3, 5, 19), "kkrr"), ((5000,), "r"), ((700, 9), "rr"), ((3, 2, 2100), "krr"),
        ((300, 21), "rk"), ((2, 150, 37), "krk"), ((2, 3, 70, 9), "krrk"), ((3, 1), "rk"),
    ],
)  # fmt: skip
def test_points_of_a_reduction(sizes, dims, target):
    """The index of each point is stored and summed, and that of each kept point stored at the end."""
    rank = len(dims)
    kept = [d for d, k in enumerate(dims) if k == "k"]
    reduced = [d for d, k in enumerate(dims) if k == "r"]
    out = torch.empty(sizes, dtype=torch.int64)
    letters = "".join("0" if k == "r" else "c" if d == rank - 1 else "s" for d, k in enumerate(dims))
    total = torch.empty([s if k == "k" else 1 for s, k in zip(sizes, dims, strict=True)], dtype=torch.int64)
    place = torch.empty_like(total)
    for order in {tuple(range(rank)), tuple(reversed(range(rank))), (rank - 1,), (0,), ()}:
        program = (Instr("index", (), "i64", "i64", order), Instr("reduce", (0,), "i64", "i64", ("sum",)))
        epilogue = (Instr("index", (), "i64", "i64", tuple(kept)),)
        accesses = (Access("i64", moves_of(out)), Access("i64", letters), Access("i64", letters))
        kernel = Kernel(dims, accesses, program, (Store(0, 0),), epilogue, (Store(1, 1), Store(2, 2)))
        for run in ({}, {"splits": range(1, 40, 3)}, {"phases": True, "splits": range(1, 40, 3)}):
            for t in (out, total, place):
                t.fill_(-1)
            runner(kernel, target).run([out, total, place], sizes, **run)
            want = linear(sizes, order)
            assert torch.equal(out, want)
            assert torch.equal(total, want.sum(reduced, keepdim=True))
            assert torch.equal(place, linear(total.shape, kept))


def test_an_epilogue_knows_no_reduced_index():
    program = (Instr("index", (), "i64", "i64", (1,)), Instr("reduce", (0,), "i64", "i64", ("sum",)))
    kernel = Kernel("kr", (Access("i64", "s0"),), program, (), (), (Store(0, 0),))
    with pytest.raises(CompileError, match="index: dimension 1 is not walked here"):
        emit_ir(kernel, host_target())
