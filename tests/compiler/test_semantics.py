"""Every op against torch on the CPU: dtypes, special values, Python scalars, integer edges."""

from __future__ import annotations

import zlib

import pytest
import torch
from kernel_harness import DTYPES, NAMES, pointwise, runnable_targets, runner
from op_cases import CASES, Case, operand

from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.semantics import OPS
from adaptive_eager.compiler.target import named_target
from adaptive_eager.lowering import COUNTED

#: Elements the kernels compute: some vectors and a tail. torch computes WHOLE: in its own scalar tails it rounds half
#: types more often than in its vector loops, so only the latter are an oracle.
N, WHOLE = 1009, 1024
#: The host's widest family and the generic one: between them every path of the emitters.
TARGETS = [runnable_targets()[0], named_target("generic")]
#: Dtypes tried on the second target: one of each kind and width.
FEWER = ("f32", "f16", "u8", "i64", "bool")


def run_case(case: Case, dtype: str, target):
    """(result, error flag, torch's result, operands) of a case."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{case.id} {dtype}".encode()))
    args = [
        operand(a, DTYPES[dtype], WHOLE, case, generator, k) if isinstance(a, str) else a
        for k, a in enumerate(case.args)
    ]
    want = case.torch(*(a for a in args if a is not None))[:N]
    args = [a[:N] if isinstance(a, torch.Tensor) else a for a in args]
    out, error = pointwise(case.op, args, dtype, case.result or dtype, case.attrs, target)
    return out, error, want, args


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_matches_cpu(case, target):
    if case.fused and not target.has_fma:
        pytest.skip("this target has no fused multiply-add")
    for dtype in case.dtypes if target is TARGETS[0] else [d for d in case.dtypes if d in FEWER]:
        out, error, want, args = run_case(case, dtype, target)
        assert error == 0
        assert NAMES[want.dtype] == (case.result or dtype), "the case names the wrong result dtype"
        tolerance = {"rtol": 0, "atol": 0} if case.exact or case.fused else {}

        def explain(message, out=out, want=want, args=args, dtype=dtype):
            bad = ~torch.isclose(out.double(), want.double(), rtol=1e-5, atol=1e-8, equal_nan=True)
            where = bad.nonzero().flatten()[:5].tolist()
            rows = []
            for i in where:
                given = [a[i].item() if isinstance(a, torch.Tensor) else a for a in args]
                rows.append(f"{given}: {out[i].item()} not {want[i].item()}")
            return f"{dtype}: {message}\n" + "\n".join(rows)

        torch.testing.assert_close(out, want, equal_nan=True, msg=explain, **tolerance)


def test_every_op_has_a_case():
    assert {case.op for case in CASES} >= set(OPS) - {"fill", *PROBABILITIES} - set(COUNTED)


PROBABILITIES = ("binary_cross_entropy", "binary_cross_entropy_backward")


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(dtype, weighted, target):
    """Of numbers from 0 to 1; another one, or NaN, is a data error."""
    x = torch.tensor([0.0, 1.0, 0.5, 1e-30, 0.25, 1 - 2**-20] * 7, dtype=DTYPES[dtype])
    t, g = x.flip(0).contiguous(), torch.linspace(-2, 2, len(x), dtype=x.dtype)
    w = torch.linspace(0.5, 3, len(x), dtype=x.dtype) if weighted else None
    out, error = pointwise("binary_cross_entropy", [x, t, w], dtype, dtype, target=target)
    assert error == 0
    torch.testing.assert_close(out, torch.ops.aten.binary_cross_entropy(x, t, w, 0))
    out, _ = pointwise("binary_cross_entropy_backward", [g, x, t, w, 1.0], dtype, dtype, target=target)
    torch.testing.assert_close(out, torch.ops.aten.binary_cross_entropy_backward(g, x, t, w, 0))
    for wrong in (-0.1, 1.1, float("nan")):
        x[-1] = wrong
        assert pointwise("binary_cross_entropy", [x, t, w], dtype, dtype, target=target)[1] != 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_fill(target):
    for dtype, value in (("f32", 0.1), ("bf16", 0.3), ("i32", -7), ("bool", 3), ("u8", 255), ("i64", 2**62 + 1)):
        out = torch.zeros(37, dtype=DTYPES[dtype])
        pointwise("fill", [value], dtype, dtype, target=target, out=out)
        assert torch.equal(out, torch.full_like(out, value))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_casts_between_all_dtypes(target):
    values = torch.tensor([0.0, 1.0, 2.0, 3.5, 100.25, 0.001] * 3)
    for source in DTYPES:
        x = values.to(DTYPES[source])
        load = Instr("load", (), source, source, (0,))
        copies = [Instr("copy", (0,), result, result) for result in DTYPES]
        outs = [torch.empty(len(x), dtype=d) for d in DTYPES.values()]
        accesses = (Access(source, "c"), *(Access(result, "c") for result in DTYPES))
        stores = tuple(Store(k + 1, k + 1) for k in range(len(outs)))
        runner(Kernel("k", accesses, (load, *copies), stores), target).run([x, *outs], x.shape)
        for out in outs:
            assert torch.equal(out, x.to(out.dtype)), (source, out.dtype)
