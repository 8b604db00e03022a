"""Random numbers in kernels: Philox itself, and that a point's number depends on its place alone."""

from __future__ import annotations

from math import prod

import pytest
import torch
from kernel_harness import DTYPES, moves_of, pointwise, runnable_targets, runner

from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.polynomial import log_normal_number, normal_quantile
from adaptive_eager.compiler.semantics import OPS, Op
from adaptive_eager.compiler.target import host_target

by_target = pytest.mark.parametrize("target", runnable_targets(), ids=lambda t: f"{t.name}-{t.cpu}")
SEED, OFFSET = 0x299F31D0A4093822, 0x0370734413198A2E
LOW = 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10 on numbers: four words from a counter of four and a key of two."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second & LOW, first >> 32 ^ c[3] ^ k[1], first & LOW]
        k = [(k[0] + 0x9E3779B9) & LOW, (k[1] + 0xBB67AE85) & LOW]
    return c


def block(number, seed=SEED, offset=OFFSET):
    return philox([number & LOW, number >> 32, offset & LOW, offset >> 32], [seed & LOW, seed >> 32])


def test_the_reference_gives_the_answers_of_its_authors():
    """The known answers of the Random123 library."""
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([LOW] * 4, [LOW] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0])
    assert philox(*pi) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def fill(op, out, target, numbers, dims=None, **run):
    """One random op over `out`; `numbers` are its parameters, after seed and offset."""
    name = {v: k for k, v in DTYPES.items()}[out.dtype]
    program = [Instr("index", (), "i64", "i64", tuple(range(out.dim())) if dims is None else dims)]
    scalars = [SEED - 2**64 if SEED >= 2**63 else SEED, OFFSET, *numbers]
    for k, value in enumerate(scalars):
        kind, ty = ("f", "f64") if isinstance(value, float) else ("i", "i64")
        program.append(Instr("scalar", (), ty, ty, (k, kind)))
    result = "bool" if op == "bernoulli" else name
    program.append(Instr(op, tuple(range(len(program))), "f64" if op == "bernoulli" else name, result))
    kernel = Kernel("k" * out.dim(), (Access(name, moves_of(out)),), tuple(program), (Store(len(program) - 1, 0),))
    assert runner(kernel, target).run([out], out.shape, scalars, **run) == 0
    return out


def layouts(sizes, dtype):
    """Tensors of these sizes: contiguous, with the dims turned round, with gaps."""
    order = tuple(reversed(range(len(sizes))))
    return (torch.empty(sizes, dtype=dtype), torch.empty(sizes[::-1], dtype=dtype).permute(order),
            torch.empty((*sizes, 2), dtype=dtype)[..., 1])  # fmt: skip


@by_target
@pytest.mark.parametrize("sizes", [(1,), (75,), (5, 21), (3, 4, 18)])
def test_bits_of_a_place(sizes, target):
    """32 bits: word i % 4 of block i / 4. 64 bits: the first two words of block i."""
    n = prod(sizes)
    words = [block(i // 4)[i % 4] for i in range(n)]
    want = torch.tensor([(w >> 8) * 2.0**-24 for w in words]).reshape(sizes)
    pairs = [block(i)[0] | block(i)[1] << 32 for i in range(n)]
    whole = torch.tensor([p - 2**64 if p >= 2**63 else p for p in pairs]).reshape(sizes)
    for splits in ((), range(0, n, 5)):
        for out in layouts(sizes, torch.float32):
            assert fill("uniform_", out, target, (0.0, 1.0, 1 - 2.0**-24), splits=splits).equal(want)
        for out in layouts(sizes, torch.int64):
            assert fill("random_", out, target, (0, 0), splits=splits).equal(whole)


def test_large_indices():
    """The upper words of the counter: a row far out, whose points are walked with a stride."""
    out = torch.empty(1, 5, dtype=torch.int64)
    program = (
        Instr("index", (), "i64", "i64", (0, 1)),
        Instr("scalar", (), "i64", "i64", (0, "i")),
        Instr("add", (0, 1), "i64", "i64"),
        Instr("scalar", (), "i64", "i64", (1, "i")),
        Instr("scalar", (), "i64", "i64", (2, "i")),
        Instr("scalar", (), "i64", "i64", (3, "i")),
        Instr("random_", (2, 3, 4, 5, 5), "i64", "i64"),
    )
    kernel = Kernel("kk", (Access("i64", "sc"),), program, (Store(6, 0),))
    far = 0x123456789AB
    runner(kernel, host_target()).run([out], out.shape, (far, SEED, OFFSET, 0))
    pairs = [block(far + i)[0] | block(far + i)[1] << 32 for i in range(5)]
    assert out.flatten().tolist() == [p - 2**64 if p >= 2**63 else p for p in pairs]


@by_target
def test_integers_of_a_range(target):
    """The upper half of a 128-bit product."""
    pairs = [block(i)[0] | block(i)[1] << 32 for i in range(40)]
    for base, count in ((0, 1), (-5, 12), (3, 2**32 - 1), (-(2**40), 2**41 + 12345), (-(2**63), 2**63 + 77)):
        signed = count - 2**64 if count >= 2**63 else count
        out = fill("random_", torch.empty(40, dtype=torch.int64), target, (base, signed))
        assert out.tolist() == [base + (p * count >> 64) for p in pairs]


@by_target
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(
    ("op", "numbers"),
    [
        ("uniform_", (2.0, 3.0, 4.0)), ("normal_", (1.0, 2.0)), ("log_normal_", (0.5, 0.25)), ("exponential_", (2.0,)),
        ("geometric_", (3.5,)), ("cauchy_", (1.0, 2.0)), ("bernoulli", (0.3,)),
    ],
)  # fmt: skip
def test_a_number_depends_on_its_place_alone(op, numbers, dtype, target):
    sizes = (7, 43)
    want = fill(op, torch.empty(sizes, dtype=DTYPES[dtype]), target, numbers)
    assert want.isfinite().all() and want.unique().numel() > 1
    for out in layouts(sizes, DTYPES[dtype])[1:]:
        assert fill(op, out, target, numbers, splits=range(0, 301, 11)).equal(want)
    flat = fill(op, torch.empty(301, dtype=DTYPES[dtype]), target, numbers, splits=(1, 2, 17, 100))
    assert flat.equal(want.flatten())


@by_target
def test_quantiles_and_logarithms(target, monkeypatch):
    """From the least chance that 32 bits give to the largest: as exact as promised, finite at both ends."""
    for name, function in (("quantile", normal_quantile), ("log", log_normal_number)):
        emit = lambda b, args, dtype, attrs, function=function: function(b, *args)  # noqa: E731
        monkeypatch.setitem(OPS, f"test.{name}", Op(f"test.{name}", emit, (1, 1)))
    v = torch.cat([2.0 ** -torch.linspace(0, 32, 4001), 1 - 2.0 ** -torch.linspace(1, 24, 1001)])
    x, _ = pointwise("test.quantile", [v], "f32", "f32", target=target)
    torch.testing.assert_close(x.double(), -torch.special.ndtri(v.double() / 2), rtol=1.5e-6, atol=1e-7)
    assert x[v == 1].eq(0).all() and x.max() < 6.4
    x, _ = pointwise("test.log", [v], "f32", "f32", target=target)
    torch.testing.assert_close(x.double(), v.double().log(), rtol=2e-7, atol=0)
