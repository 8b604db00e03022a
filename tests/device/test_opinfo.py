"""Every op of the device's op table against the CPU, on the sample inputs that torch itself tests its ops with.

Compared are values (torch's tolerances of the dtype, or the op's own where OpInfo has some), dtypes, sizes and strides.
A half-precision value beyond the tolerance must be the exact one, rounded: then the CPU's is wrong.
Of what draws random numbers no values are compared: a device has its own (test_random.py).
The default selection takes a few samples of each op; the slow tests take all samples, all dtypes and all ops.
"""

import gc
import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from device_harness import assert_close_or_exact, moved, tensors_in, widened
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import DecorateInfo

import adaptive_eager as ae

gc.freeze()  # op_db is half a million objects that the garbage collector need not look at again and again

OP_TABLE = Path(__file__).parents[2] / "native" / "torch" / "op_rows.inc"
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
QUICK_SAMPLES = {torch.float32: 2, torch.bfloat16: 2, torch.int64: 1, torch.bool: 1}
OTHER_DTYPES = (torch.float16, torch.float64, torch.int32, torch.uint8)

# Ops that are not compared, and why. A key is the op, or the op and a dtype.
SKIPS = {
    "empty": "the result is not initialised",
    "empty_like": "the result is not initialised",
    "empty_permuted": "the result is not initialised",
    "empty_strided": "the result is not initialised",
    "new_empty": "the result is not initialised",
    "new_empty_strided": "the result is not initialised",
    "sparse_mm_reduce": "there are no sparse tensors on the device",
    "sparse_sampled_addmm": "there are no sparse tensors on the device",
    "to_sparse": "there are no sparse tensors on the device",
    "tensor_split": "torch wants the indices in a CPU tensor, whatever the device of the input",
    "linalg_eig": "eigenvectors are unique up to a factor",
    "linalg_eigh": "eigenvectors are unique up to a factor",
    "linalg_svd": "singular vectors are unique up to a factor",
    "svd": "singular vectors are unique up to a factor",
    "pca_lowrank": "singular vectors are unique up to a factor",
    "svd_lowrank": "singular vectors are unique up to a factor",
}

# Where the CPU's own result has fewer right digits than the tolerance asks for: op or (op, dtype) -> (rtol, atol), why.
TOLERANCES = {}

# Rows of the table of which a sample needs an overload that the table does not have, and that overload.
KNOWN_FALLBACKS = {
    "round_decimals_0": "round.decimals",
    "round_decimals_3": "round.decimals",
    "round_decimals_neg_3": "round.decimals",
}


def table_rows():
    """aten name -> kind, from the op table's source."""
    rows = {}
    for kind, name in re.findall(r"^OP\((\w+), (\w+),", OP_TABLE.read_text(), re.MULTILINE):
        rows.setdefault(name, kind)
    return rows


ROWS = table_rows()
COMPILED = [op for op in op_db if ROWS.get(op.aten_name) in ("Map", "Reduction", "RowProgram")]
HOST = [op for op in op_db if ROWS.get(op.aten_name) in ("Host", "HostNow")]
OTHERS = [op for op in op_db if op.aten_name not in ROWS and not op.name.startswith("jiterator")]  # those are of CUDA
SLOW_SAMPLES = {"max_pool2d_with_indices_backward"}  # thousands of samples, slow to make


def pairs(ops, dtypes):
    """pytest parameters (op, dtype), where the op takes the dtype on the CPU."""
    return [
        pytest.param(op, dtype, id=f"{op.formatted_name}-{str(dtype).removeprefix('torch.')}")
        for op in ops
        for dtype in dtypes
        if dtype in op.supported_dtypes("cpu")
    ]


def differentiable(ops):
    return [pytest.param(op, id=op.formatted_name) for op in ops if op.supports_autograd]


def tolerance(op, dtype):
    """(rtol, atol) for `op`; (None, None): torch's default of the dtype."""
    for key in ((op.formatted_name, dtype), op.formatted_name):
        if key in TOLERANCES:
            return TOLERANCES[key]
    rtol = atol = None
    for info in op.decorators:
        for decorator in info.decorators if isinstance(info, DecorateInfo) else [info]:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                rtol, atol = max(rtol or 0, decorator.d[dtype].rtol), max(atol or 0, decorator.d[dtype].atol)
            elif isinstance(decorator, precisionOverride) and dtype in decorator.d:
                rtol, atol = max(rtol or 0, decorator.d[dtype]), max(atol or 0, decorator.d[dtype])
    if rtol is None:
        return None, None
    default_rtol, default_atol = torch.testing._comparison.default_tolerances(dtype)
    return max(rtol, default_rtol), max(atol, default_atol)


def spread(items, limit):
    """At most `limit` of `items`, evenly spread, the first and the last among them."""
    if limit is None or len(items) <= limit:
        return items
    return [items[i * (len(items) - 1) // max(1, limit - 1)] for i in range(limit)]


def seed():
    """torch.manual_seed(0) but for devices that are not there: for CUDA it keeps a formatted stack of each call."""
    torch.default_generator.manual_seed(0)
    torch.neuron.manual_seed_all(0)


def draws(run):
    """Whether the CPU's generator moves on while `run` runs. Some ops of the database seed it, and put it back."""
    before = torch.get_rng_state()
    with mock.patch.object(torch, "set_rng_state", lambda state: None):
        run()
    return not torch.get_rng_state().equal(before)


def call(op, device, sample):
    seed()
    return op(moved(sample.input, device), *moved(sample.args, device), **moved(sample.kwargs, device))


def compare(op, dtype, limit, strides=True):
    for key in ((op.formatted_name, dtype), op.formatted_name):
        if key in SKIPS:
            pytest.skip(SKIPS[key])
    rtol, atol = tolerance(op, dtype)
    seed()
    for i, sample in enumerate(spread(list(op.sample_inputs("cpu", dtype)), limit)):

        def what(i=i, sample=sample):
            return f"sample {i}: {sample.summary() if hasattr(sample, 'summary') else sample}"

        try:
            expected = tensors_in(call(op, "cpu", sample))
        except (RuntimeError, NotImplementedError):
            with pytest.raises((RuntimeError, NotImplementedError)):
                [t.cpu() for t in tensors_in(call(op, "neuron", sample))]
            continue
        actual = tensors_in(call(op, "neuron", sample))
        assert len(actual) == len(expected), what()
        torch.default_generator.manual_seed(0)
        drawn = draws(lambda sample=sample: op(sample.input, *sample.args, **sample.kwargs))
        for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
            if strides and e.numel() > 1 and e.layout == torch.strided:
                assert a.stride() == e.stride(), what()
            if drawn:
                assert (a.shape, a.dtype) == (e.shape, e.dtype), what()
                continue

            def exact(sample=sample, k=k):
                return tensors_in(call(op, "cpu", sample.transform(widened)))[k]

            assert_close_or_exact(a.cpu(), e, exact, rtol=rtol, atol=atol, msg=lambda m, what=what: f"{what()}\n{m}")


def gradients(op, device, sample):
    """Gradients of the sum of all floating-point results, for every tensor of the sample that asks for one."""
    given = (sample.input, sample.args, sample.kwargs)
    arguments = moved(given, device)
    twins = zip(tensors_in(arguments, numbers=False), tensors_in(given, numbers=False), strict=True)
    leaves = [t.requires_grad_() for t, asked in twins if asked.requires_grad]
    seed()
    results = [t for t in tensors_in(op(arguments[0], *arguments[1], **arguments[2])) if t.requires_grad]
    if not results or not leaves:
        return []
    return torch.autograd.grad(sum(t.sum() for t in results), leaves, allow_unused=True)


def compare_gradients(op, limit):
    if op.formatted_name in SKIPS:
        pytest.skip(SKIPS[op.formatted_name])
    rtol, atol = tolerance(op, torch.float32)
    seed()
    for sample in spread(list(op.sample_inputs("cpu", torch.float32, requires_grad=True)), limit):
        try:
            expected = gradients(op, "cpu", sample)
        except RuntimeError:  # no derivative
            with pytest.raises(RuntimeError):
                gradients(op, "neuron", sample)
            continue
        torch.default_generator.manual_seed(0)
        drawn = draws(lambda sample=sample: op(sample.input, *sample.args, **sample.kwargs))
        for a, e in zip(gradients(op, "neuron", sample), expected, strict=True):
            assert (a is None) == (e is None)
            if e is not None and not drawn:
                torch.testing.assert_close(a.cpu(), e, rtol=rtol, atol=atol, equal_nan=True)


pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("op,dtype", pairs(COMPILED, DTYPES))
def test_compiled_op(op, dtype):
    before = ae.get_fallback_ops()
    compare(op, dtype, QUICK_SAMPLES[dtype])
    new = {name: n for name, n in ae.get_fallback_ops().items() if n != before.get(name)}
    if op.formatted_name not in KNOWN_FALLBACKS:
        assert not new, f"an op of the table that is not run on the device: {new}"


@pytest.mark.parametrize(
    "op,dtype", pairs([op for op in HOST if op.formatted_name not in SLOW_SAMPLES], (torch.float32,))
)
def test_host_op(op, dtype):
    compare(op, dtype, 2)


@pytest.mark.parametrize(
    "op",
    [pytest.param(op, id=op.formatted_name) for op in COMPILED if op.supports_autograd and op.variant_test_name == ""],
)
def test_gradients_of_compiled_op(op):
    compare_gradients(op, 1)


@pytest.mark.slow
@pytest.mark.parametrize("op,dtype", pairs(COMPILED, DTYPES + OTHER_DTYPES))
def test_compiled_op_on_all_samples(op, dtype):
    compare(op, dtype, None)


@pytest.mark.slow
@pytest.mark.parametrize("op,dtype", pairs(HOST, DTYPES))
def test_host_op_on_all_samples(op, dtype):
    compare(op, dtype, None)


@pytest.mark.slow
@pytest.mark.parametrize("op,dtype", pairs(OTHERS, (torch.float32, torch.int64)))
def test_composite_and_fallback_op(op, dtype):
    compare(op, dtype, 6, strides=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.formatted_name) for op in COMPILED + HOST if op.supports_autograd]
)
def test_gradients_on_more_samples(op):
    compare_gradients(op, 8)
