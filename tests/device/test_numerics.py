"""The numerics contract: fused runs have the bits of unfused ones, values are the CPU's, wide types are wide, and
deterministic mode fuses nothing."""

import pytest
import torch
from device_harness import MODES, same_bits

import adaptive_eager as ae


def program(x, y, flush_after=None):
    """Twelve ops with roundings, reductions and a view between them; the window runs after op `flush_after`."""
    ops = [
        lambda v: v * y + x,
        lambda v: torch.tanh(v),
        lambda v: v.bfloat16() * 1.7,
        lambda v: (v + 0.3).float(),
        lambda v: v - v.mean(-1, keepdim=True),
        lambda v: v.t().contiguous().t() / 3,
        lambda v: v.softmax(-1),
        lambda v: v.half() * v,
        lambda v: v.sum(0) + x,
        lambda v: v.mul_(y).add_(x, alpha=0.1),
        lambda v: torch.where(v > 0, v.exp(), v),
        lambda v: v * v.norm(),
    ]
    value = x
    for k, op in enumerate(ops):
        value = op(value)
        if k == flush_after:
            ae.flush()
    return value.cpu()


@pytest.fixture
def operands():
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(37, 65, generator=generator).to("neuron") for _ in range(2)]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def fused_ops():
    return ae.stats()["fused_ops"]


def test_fused_is_unfused_bit_for_bit_at_every_cut_and_thread_count(operands, threads):
    with ae.stepwise():
        expected = program(*operands)
    for count in (1, 2):
        threads(count)
        for cut in (None, *range(12)):
            with ae.adaptive():
                before = fused_ops()
                runs = [program(*operands, cut) for _ in range(4)]
                assert fused_ops() > before
            assert all(same_bits(run, expected) for run in runs), (count, cut)
        with ae.per_op():
            assert same_bits(program(*operands), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_and_sums_are_not_contracted(dtype):
    """(1 + e)(1 - e) - 1 is zero if the product is rounded, -e**2 if it is not."""
    e = torch.finfo(dtype).eps
    a, b = (torch.tensor([1 + s * e] * 33, dtype=dtype) for s in (1.0, -1.0))
    expected = a * b - 1
    for mode in MODES:
        with ae._as_mode(mode):
            x, y = a.to("neuron"), b.to("neuron")
            for _ in range(3):
                assert torch.equal((x * y - 1).cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_each_op_rounds_to_its_dtype(dtype):
    """256 + 1 - 256 in bfloat16 is 0, and so is 2048 + 1 - 2048 in float16; a wider intermediate would give 1."""
    large = 256.0 if dtype == torch.bfloat16 else 2048.0
    for mode in MODES:
        with ae._as_mode(mode):
            x = torch.full((33,), large, dtype=dtype, device="neuron")
            for _ in range(3):
                assert not ((x + 1) - x).any()


# No denormals, and nothing that small: the remainders of CPU vectors are NaN where the quotient overflows.
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 1e-3, 1e30]
FLOAT_OPS = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "mul": torch.mul,
    "div": torch.div,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
    "copysign": torch.copysign,
    "atan2": torch.atan2,
    "nextafter": torch.nextafter,
    "lt": torch.lt,
    "ne": torch.ne,
}


@pytest.mark.parametrize("name", FLOAT_OPS)
def test_special_values_are_those_of_the_cpu(name, mode):
    a = torch.tensor(SPECIAL).repeat_interleave(len(SPECIAL))
    b = torch.tensor(SPECIAL).repeat(len(SPECIAL))
    expected = FLOAT_OPS[name](a, b)
    for _ in range(3):
        actual = FLOAT_OPS[name](a.to("neuron"), b.to("neuron")).cpu()
        torch.testing.assert_close(actual, expected, equal_nan=True)
        if expected.is_floating_point():
            # Which of two zeros is the larger is left open by IEEE 754.
            open_ = expected.isnan() | (
                (a == 0) & (b == 0) if name == "fmax" else torch.zeros_like(a, dtype=torch.bool)
            )
            assert torch.equal(torch.signbit(actual)[~open_], torch.signbit(expected)[~open_])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_wrap_as_on_the_cpu(dtype, mode):
    limits = torch.iinfo(dtype)
    a = torch.tensor([limits.min, limits.max, limits.max, 3], dtype=dtype)
    b = torch.tensor([limits.max, limits.max, 2, 5], dtype=dtype)
    for _ in range(3):
        x, y = a.to("neuron"), b.to("neuron")
        assert torch.equal((x * y + y - x).cpu(), a * b + b - a)
        assert torch.equal((-x).abs().cpu(), (-a).abs())


def test_wide_types_are_native(mode):
    for _ in range(3):
        large = torch.tensor([2**53 + 1, 2**62], device="neuron")
        assert ((large + 2) * 1).tolist() == [2**53 + 3, 2**62 + 2]
        fine = torch.tensor([1.0, 1.0], dtype=torch.float64, device="neuron") + 2.0**-50
        assert ((fine - 1) * 2.0**50).tolist() == [1.0, 1.0]
        assert fine.sum().item() == 2 + 2.0**-49


def test_deterministic_algorithms_turn_fusing_off(operands):
    with ae.adaptive():
        expected = [program(*operands) for _ in range(3)][-1]
        torch.use_deterministic_algorithms(True)
        try:
            before = fused_ops()
            assert all(same_bits(program(*operands), expected) for _ in range(3))
            assert fused_ops() == before
        finally:
            torch.use_deterministic_algorithms(False)
        program(*operands)
        assert fused_ops() > before
