"""The `gather` instruction: elements of a table at an index, and the report of an index that is out of range."""

from __future__ import annotations

import itertools
import mmap

import pytest
import torch
from kernel_harness import DTYPES, NAMES, moves_of, runnable_targets, runner

from adaptive_eager.compiler.builder import CompileError
from adaptive_eager.compiler.codegen import emit_ir
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import host_target

by_target = pytest.mark.parametrize("target", runnable_targets(), ids=lambda t: f"{t.name}-{t.cpu}")


class Program:
    """Instructions, the tensors of their accesses, and their scalars."""

    def __init__(self, sizes):
        self.sizes = tuple(sizes)
        self.instructions, self.accesses, self.tensors, self.scalars = [], [], [], []

    def emit(self, *instr):
        self.instructions.append(Instr(*instr, ordinal=len(self.instructions)))
        return len(self.instructions) - 1

    def access(self, tensor, moves=None):
        self.accesses.append(Access(NAMES[tensor.dtype], moves or moves_of(tensor)))
        self.tensors.append(tensor)
        return len(self.accesses) - 1

    def load(self, tensor):
        dtype = NAMES[tensor.dtype]
        return self.emit("load", (), dtype, dtype, (self.access(tensor.expand(self.sizes)),))

    def number(self, value):
        self.scalars.append(value)
        return self.emit("scalar", (), "i64", "i64", (len(self.scalars) - 1, "i"))

    def gather(self, table, indices, wraps=False, moves=None):
        """`table` as it moves over the space; `indices`: (value, stride, size) each."""
        dtype = NAMES[table.dtype]
        args = [a for value, stride, size in indices for a in (value, self.number(stride), self.number(size))]
        return self.emit("gather", tuple(args), "i64", dtype, (self.access(table, moves), int(wraps)))

    def map(self, value, out):
        """The map kernel that stores a value."""
        store = Store(value, self.access(out))
        return Kernel("k" * len(self.sizes), tuple(self.accesses), tuple(self.instructions), (store,))

    def run(self, kernel, target, **options):
        return runner(kernel, target).run(self.tensors, self.sizes, self.scalars, **options)


def along(table, dim, sizes):
    """A table as it moves over a space: not at all along `dim`, whose size may be another there."""
    return table.as_strided(sizes, [0 if d == dim else s for d, s in enumerate(table.stride())], table.storage_offset())


def filled(dtype, sizes):
    values = torch.randint(-99, 99, sizes) if dtype != torch.bool else torch.randint(0, 2, sizes)
    return values.to(dtype)


@by_target
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("wide", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("each", [False, True], ids=["select", "gather"])
def test_every_dtype(target, dtype, wide, dim, each):
    """An index for each point, or for each index along the dim."""
    table, sizes = filled(dtype, (9, 37)), (21, 37) if dim == 0 else (9, 45)
    index = torch.randint(0, table.size(dim), sizes if each else (sizes[dim], 1) if dim == 0 else (1, sizes[dim]))
    index = index.to(wide)
    want = table.gather(dim, index.long().expand(sizes))
    for splits in ((), range(0, 21 * 45, 13)):
        out = torch.empty(sizes, dtype=dtype)
        p = Program(sizes)
        value = p.gather(along(table, dim, sizes), [(p.load(index), table.stride(dim), table.size(dim))])
        assert p.run(p.map(value, out), target, splits=splits) == 0
        assert torch.equal(out, want)


@by_target
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "spread", "expanded"])
@pytest.mark.parametrize("dim", [0, 1])
def test_layouts_of_tables(target, layout, dim):
    table = {
        "contiguous": torch.randn(7, 33),
        "transposed": torch.randn(33, 7).t(),
        "spread": torch.randn(7, 33, 3)[..., 1],
        "expanded": torch.randn(7, 1).expand(7, 33),
    }[layout]
    sizes = (50, 33) if dim == 0 else (7, 50)
    for shape in (sizes, [s if d == dim else 1 for d, s in enumerate(sizes)], (1, 1)):
        index, out = torch.randint(0, table.size(dim), shape), torch.empty(sizes)
        p = Program(sizes)
        value = p.gather(along(table, dim, sizes), [(p.load(index), table.stride(dim), table.size(dim))])
        assert p.run(p.map(value, out), target, splits=range(3, 350, 17)) == 0
        assert torch.equal(out, table.gather(dim, index.expand(sizes)))


@by_target
@pytest.mark.parametrize("sizes", [(), (1,), (37,), (3, 19), (2, 3, 21)])
def test_several_indices(target, sizes):
    table, out = torch.randn(5, 6, 7), torch.empty(sizes)
    indices = [torch.randint(-n, n, sizes) for n in table.shape]
    p = Program(sizes)
    places = [(p.load(i), table.stride(d), table.size(d)) for d, i in enumerate(indices)]
    value = p.gather(table.as_strided(sizes, [0] * len(sizes)), places, wraps=True)
    assert p.run(p.map(value, out), target) == 0
    assert torch.equal(out, table[tuple(indices)])


@by_target
def test_several_rows_of_one_table(target):
    """x[a] * x[b], with a tail that is staged for each."""
    table, sizes = torch.randn(11, 29), (40, 29)
    a, b, out = torch.randint(0, 11, (40, 1)), torch.randint(0, 11, (40, 1)), torch.empty(sizes)
    p = Program(sizes)
    at = p.access(along(table, 0, sizes))
    rows = [p.emit("gather", (p.load(i), p.number(29), p.number(11)), "i64", "f32", (at, 0)) for i in (a, b)]
    assert p.run(p.map(p.emit("mul", tuple(rows), "f32", "f32"), out), target, splits=range(0, 1160, 31)) == 0
    assert torch.equal(out, table[a[:, 0]] * table[b[:, 0]])


@by_target
def test_an_index_that_is_computed(target):
    table, sizes = torch.randn(64), (3, 21)
    out = torch.empty(sizes)
    p = Program(sizes)
    index = p.emit("index", (), "i64", "i64", (0, 1))
    value = p.gather(table.as_strided(sizes, (0, 0)), [(index, 1, 64)])
    assert p.run(p.map(value, out), target, splits=(5, 8, 40)) == 0
    assert torch.equal(out.flatten(), table[:63])


def reported(error):
    """(ordinal, which index, value) of an error word."""
    return (error & 0xFFFF) - 1, error >> 16 & 15, error >> 20


@by_target
@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("bad", [-7, -6, -1, 6, 2**31, 2**50, -(2**62)])
@pytest.mark.parametrize("shape", [(40, 37), (40, 1), (1, 37), (1, 1)])
def test_out_of_range(target, bad, wraps, shape):
    """The report says which instruction and what value; the element is that of index 0. Nothing else is changed."""
    sizes, table = (40, 37), torch.randn(6)
    index = torch.randint(0, 6, shape)
    index[-1, -1] = bad
    out = torch.empty(sizes)
    p = Program(sizes)
    value = p.gather(table.as_strided(sizes, (0, 0)), [(p.load(index), 1, 6)], wraps)
    error = p.run(p.map(value, out), target)
    inside = wraps and -6 <= bad < 6
    assert (error == 0) == inside
    if not inside:
        assert reported(error) == (value, 0, min(max(bad, -(2**43)), 2**43 - 1))
        index[-1, -1] = 0
    assert torch.equal(out, table[index.expand(sizes)])


@by_target
@pytest.mark.parametrize("shape", [(40, 1), (40, 37)])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_which_index_is_out_of_range(target, which, shape):
    table, sizes, out = torch.randn(5, 6, 7), (40, 37), torch.empty(40, 37)
    indices = [torch.zeros(shape, dtype=torch.int64) for _ in range(3)]
    indices[which][20, 0] = 9
    p = Program(sizes)
    places = [(p.load(i), table.stride(d), table.size(d)) for d, i in enumerate(indices)]
    value = p.gather(table.as_strided(sizes, (0, 0)), places)
    assert reported(p.run(p.map(value, out), target)) == (value, which, 9)


@by_target
def test_far_from_the_start_of_a_table(target, tmp_path):
    """More elements than 32 bits count, of which few have memory."""
    with (tmp_path / "table").open("w+b") as file:
        file.truncate(2**33 + 4096)
        table = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
    for each in (1, 37):
        table[2**33 - 64 :] = 0
        table[2**33 : 2**33 + each] = torch.arange(1, each + 1, dtype=torch.uint8)
        index, out, sizes = torch.tensor([[0], [2]]), torch.empty((2, each), dtype=torch.uint8), (2, each)
        for at in (index, index.repeat(1, each)):
            p = Program(sizes)
            value = p.gather(table.as_strided(sizes, (0, 1)), [(p.load(at), 2**32, 3)])
            assert p.run(p.map(value, out), target) == 0
            assert out[0].sum() == 0 and torch.equal(out[1], table[2**33 : 2**33 + each])


@by_target
def test_the_first_error_stays(target):
    table, out = torch.randn(6), torch.empty(100)
    index = torch.zeros(100, dtype=torch.int64)
    index[17], index[50] = 70, 80
    p = Program((100,))
    error = p.run(p.map(p.gather(table.as_strided((100,), (0,)), [(p.load(index), 1, 6)]), out), target)
    assert reported(error)[2] == 70


@by_target
@pytest.mark.parametrize("n", [1, 5, 15, 16, 17, 31, 33])
def test_lanes_beyond_the_end_read_nothing(target, n):
    """Padding is no index: a table whose other side may not be touched, with a stride along the row."""
    table = torch.randn(n, 3)
    index, out = torch.randint(0, 3, (n,)), torch.empty(n)
    p = Program((n,))
    value = p.gather(table.as_strided((n,), (3,)), [(p.load(index), 1, 3)])
    assert p.run(p.map(value, out), target) == 0
    assert torch.equal(out, table.gather(1, index[:, None])[:, 0])


@by_target
@pytest.mark.parametrize(("dims", "sizes"), [("kr", (13, 70)), ("rk", (70, 45)), ("krr", (3, 5, 21)), ("r", (3000,))])
def test_points_of_a_reduction(target, dims, sizes):
    """Rows and elements of tables, summed."""
    rank = len(sizes)
    rows, elements = torch.randint(-9, 9, (8, sizes[-1])), torch.randint(-9, 9, (50,))
    by_row = torch.randint(0, 8, [1 if d == rank - 1 else s for d, s in enumerate(sizes)])
    by_point = torch.randint(0, 50, sizes)
    p = Program(sizes)
    spread = rows.as_strided(sizes, [0] * (rank - 1) + [1])
    a = p.gather(spread, [(p.load(by_row), sizes[-1], 8)])
    b = p.gather(elements.as_strided(sizes, [0] * rank), [(p.load(by_point), 1, 50)])
    total = p.emit("add", (a, b), "i64", "i64")
    result = p.emit("reduce", (total,), "i64", "i64", ("sum",))
    out = torch.empty([s if k == "k" else 1 for s, k in zip(sizes, dims, strict=True)], dtype=torch.int64)
    letters = "".join("0" if k == "r" else "c" if d == rank - 1 else "s" for d, k in enumerate(dims))
    store = Store(result, p.access(out, letters))
    kernel = Kernel(dims, tuple(p.accesses), tuple(p.instructions), (), (), (store,))
    want = rows[by_row.expand(sizes), torch.arange(sizes[-1])] + elements[by_point]
    for run in ({}, {"phases": True, "splits": range(1, 40, 3)}):
        assert p.run(kernel, target, **run) == 0
        assert torch.equal(out, want.sum([d for d, k in enumerate(dims) if k == "r"], keepdim=True))


@by_target
@pytest.mark.parametrize(("rows", "columns"), list(itertools.product((3, 40, 150), repeat=2)))
def test_in_tiles(target, rows, columns):
    """A table beside a tensor that crosses the tiles."""
    x, out, table = torch.randn(columns, rows).t(), torch.empty(rows, columns), torch.randn(9, columns)
    by_row, by_point = torch.randint(0, 9, (rows, 1)), torch.randint(0, 9, (rows, columns))
    sizes = rows, columns
    p = Program(sizes)
    crossing = p.emit("load", (), "f32", "f32", (p.access(x, "cs"),))
    for index in (by_row, by_point):
        row = p.gather(table.as_strided(sizes, (0, 1)), [(p.load(index), columns, 9)])
        crossing = p.emit("add", (crossing, row), "f32", "f32")
    kernel = p.map(crossing, out)
    assert kernel.is_tiled
    block = runner(kernel, target).compiled.block
    tiles = -(-rows // block) * -(-columns // block)
    assert p.run(kernel, target, items=tiles) == 0
    assert torch.equal(out, x + table[by_row[:, 0]] + table.gather(0, by_point))


def test_no_gather_in_an_epilogue():
    program = (Instr("load", (), "i64", "i64", (0,)), Instr("reduce", (0,), "i64", "i64", ("sum",)))
    epilogue = (Instr("scalar", (), "i64", "i64", (0, "i")), Instr("gather", (1, 2, 2), "i64", "f32", (1, 0)))
    accesses = (Access("i64", "c"), Access("f32", "0"), Access("f32", "0"))
    kernel = Kernel("r", accesses, program, (), epilogue, (Store(3, 2),))
    with pytest.raises(CompileError, match="gather: not in an epilogue"):
        emit_ir(kernel, host_target())
