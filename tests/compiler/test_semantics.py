"""Every op against torch on the CPU: dtypes, special values, Python scalars, integer edges."""

from __future__ import annotations

import zlib

import pytest
import torch
from kernel_harness import DTYPES, NAMES, pointwise, runnable_targets
from op_cases import CASES, Case, operand

from adaptive_eager.compiler.builder import CompileError
from adaptive_eager.compiler.semantics import OPS
from adaptive_eager.compiler.target import named_target

#: Elements the kernels compute: some vectors and a tail. torch computes WHOLE: in its own scalar tails it rounds half types
#: more often than in its vector loops, so only the latter are an oracle.
N, WHOLE = 1009, 1024
#: The host's widest family and the generic one: between them every path of the emitters.
TARGETS = [runnable_targets()[0], named_target("generic")]


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
    for dtype in case.dtypes:
        out, error, want, args = run_case(case, dtype, target)
        assert error == 0
        assert NAMES[want.dtype] == (case.result or dtype), "the case names the wrong result dtype"
        tolerance = {"rtol": 0, "atol": 0} if case.exact else {}

        def explain(message, out=out, want=want, args=args, dtype=dtype):
            bad = ~torch.isclose(out.double(), want.double(), rtol=1e-5, atol=1e-8, equal_nan=True)
            where = bad.nonzero().flatten()[:5].tolist()
            rows = [
                f"{[a[i].item() if isinstance(a, torch.Tensor) else a for a in args]}: {out[i].item()} not {want[i].item()}"
                for i in where
            ]
            return f"{dtype}: {message}\n" + "\n".join(rows)

        torch.testing.assert_close(out, want, equal_nan=True, msg=explain, **tolerance)
