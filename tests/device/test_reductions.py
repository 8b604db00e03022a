"""Reductions, on the device: moments, extrema with their indices, logsumexp, norms; in every mode the same bits, and
the CPU's values."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from device_harness import assert_same_bits, check_program, on_host

import adaptive_eager as ae

INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MOMENTS = (torch.var, torch.std, torch.var_mean, torch.std_mean)
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5, torch.float64: 1e-9}

#: Sizes and the dims reduced: inner, outer, full, mixed, of size one, and of several chunks.
SPACES = {
    "full": ((7, 30), None), "inner": ((5, 6), 1), "outer": ((5, 6), 0), "mixed": ((4, 5, 6), (0, 2)),
    "middle": ((4, 5, 6), 1), "long": ((2, 5000), (-1,)), "tall": ((3000, 2), 0), "no dims": ((4, 5), []),
    "number": ((), None), "one": ((6, 1), 1), "short rows": ((300, 5), 1),
}  # fmt: skip


def randn(device, *sizes, dtype=torch.float32, offset=0.0):
    return (torch.randn(sizes) * 3 + offset).to(dtype).to(device)


def launches(run):
    """Launches of `run` once it is hot."""
    for _ in range(3):
        [t.cpu() for t in run()]
    before = ae.stats()["launches"]
    [t.cpu() for t in run()]
    return ae.stats()["launches"] - before


# -- moments -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_moments(space, dtype):
    sizes, dims = SPACES[space]

    def program(device, k):
        x = randn(device, *sizes, dtype=dtype, offset=20)
        found = []
        for t in (x, x.transpose(0, -1) if x.dim() > 1 and dims != 1 else x):
            for moment in MOMENTS:
                for correction, keepdim in ((0, False), (1, True), (1.5, False)):
                    found += [*torch.atleast_1d(moment(t, dim=dims, correction=correction, keepdim=keepdim))]
        return found

    check_program(program, rounds=3, rtol=TOLERANCE[dtype], atol=1e-6)


def test_moments_neither_overflow_nor_vanish():
    def program(device, k):
        big = torch.tensor([1e20, 3e20, -2e20], device=device)
        tiny = torch.tensor([1e-30, 3e-30], device=device)
        far = torch.tensor([1e6, 1e6 + 1, 1e6 + 0.5], device=device)
        return big.std(), *torch.std_mean(big), big.var(), tiny.std(), far.var()

    found = check_program(program, rtol=1e-6, atol=0)
    assert torch.isfinite(found[0])


def test_the_correction_is_a_runtime_value():
    x = torch.randn(6, 9, device="neuron")
    for k in range(4):
        x.var(1, correction=k).cpu()
    before = ae.stats()["kernels_compiled"]
    for k in range(4, 9):
        torch.testing.assert_close(x.var(1, correction=k).cpu(), x.cpu().var(1, correction=k), equal_nan=True)
    assert ae.stats()["kernels_compiled"] == before


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_degrees_of_freedom(moment):
    found = {}
    for device in ("cpu", "neuron"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = torch.tensor([1.0, 2.0], device=device)
            results = [moment(x[:1]), moment(x, dim=0, correction=2), moment(x[:0]), moment(x.view(1, 2), dim=0)]
            moment(x)
        values = [t for r in results for t in (r if isinstance(r, tuple) else (r,))]
        found[device] = on_host(values), [str(w.message).split("(Triggered")[0] for w in caught]
    assert len(found["neuron"][1]) == 4 and found["neuron"][1] == found["cpu"][1]
    for ours, cpu in zip(found["neuron"][0], found["cpu"][0], strict=True):
        torch.testing.assert_close(ours, cpu, equal_nan=True)


def test_moments_fuse_with_their_neighbours():
    """Two passes over the rows: the mean, then everything else."""
    x = torch.randn(64, 50, device="neuron")

    def run():
        y = torch.relu(x * 2)
        return [(y.var(1, keepdim=True) + 1e-5).rsqrt()]

    assert launches(run) == 2


def test_moments_into_a_tensor_of_another_dtype():
    def program(device, k):
        x = randn(device, 5, 6)
        out = torch.empty(0, dtype=torch.float64, device=device)
        half = torch.empty(6, 5, device=device, dtype=torch.bfloat16).t()
        torch.std(x, dim=1, correction=1, keepdim=True, out=half[:, :1])
        return torch.var(x, dim=1, correction=1, out=out), half[:, :1]

    check_program(program, rtol=1e-2, atol=1e-3)


# -- extrema -----------------------------------------------------------------------------------------------------------

EXTREMA = ("max", "min")
SPECIAL = [
    [1.0, NAN, 3.0, NAN], [NAN] * 4, [INF, -INF, INF, 0], [-INF] * 4, [0.0, -0.0, -0.0, 0.0], [-0.0, 0.0, 0.0, -0.0],
    [2.0] * 4,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int8, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("name", EXTREMA)
def test_extrema_and_their_indices(name, dtype):
    def program(device, k):
        x = (torch.randn(6, 40, 9) * 3).to(dtype).to(device)
        found = []
        for t in (x, x.transpose(0, 2), x[::2, 1:, ::3], x[:, :1].expand(6, 40, 9)):
            for d in range(3):
                found += [*getattr(torch, name)(t, d), *getattr(torch, name)(t, d, keepdim=True)]
        return found

    check_program(program, rounds=3, rtol=0, atol=0)


@pytest.mark.parametrize("name", EXTREMA)
def test_the_first_of_equals_and_nan(name):
    """A NaN is beyond everything; the value is the one at the index, down to a zero's sign."""
    table = torch.tensor(SPECIAL)

    def program(device, k):
        found = []
        for t in (table, table.repeat(1, 30), table.repeat(1, 900)):
            x = t.to(device)
            found += [*getattr(torch, name)(x, 1), *getattr(torch, name)(x.t().contiguous(), 0)]
        return [*found, *getattr(torch, name)(x[0, 0], 0), *getattr(torch, name)(x[:0], 1)]

    found = check_program(program, rtol=0, atol=0)
    for values, index, t in ((found[0], found[1], table), (found[4], found[5], table.repeat(1, 30))):
        picked = t.gather(1, index[:, None])[:, 0]
        assert torch.equal(torch.signbit(picked), torch.signbit(values))


def test_an_extremum_and_its_index_are_one_launch():
    x = torch.randn(64, 50, device="neuron")
    assert launches(lambda: torch.max(x * 2 + 1, 1)) == 1


def test_gradients_of_extrema():
    def program(device, k):
        x = randn(device, 7, 9).requires_grad_()
        loss = (x.max(1).values * x.min(0).values[:7]).sum() + x.amax(0).sum() + torch.aminmax(x).max
        return loss, *torch.autograd.grad(loss, x)

    check_program(program, rtol=1e-5, atol=1e-5)


def test_aminmax():
    def program(device, k):
        x = randn(device, 6, 40, 9)
        special = torch.tensor(SPECIAL, device=device)
        return [
            *torch.aminmax(x), *torch.aminmax(x, dim=1), *torch.aminmax(x.transpose(0, 2), dim=0, keepdim=True),
            *torch.aminmax(special, dim=1), *torch.aminmax((x * 9).long(), dim=2), *torch.aminmax(x > 0),
        ]  # fmt: skip

    check_program(program, rtol=0, atol=0)


# -- sums --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_sums_that_leave_something_out(dtype):
    def program(device, k):
        x = randn(device, 6, 40, 9, dtype=dtype)
        if dtype.is_floating_point:
            x[x > 2] = NAN
        found = []
        for t in (x, x.transpose(0, 2), x[:, :0]):
            found += [torch.nansum(t), torch.nansum(t, (0, 2)), torch.nansum(t, 1, keepdim=True)]
            found += [torch.count_nonzero(t), torch.count_nonzero(t, 1), torch.count_nonzero(t, (0, 2))]
            if dtype.is_floating_point:
                found.append(torch.nanmean(t, 1))
        return [*found, torch.nansum(x, 0, dtype=torch.float64)]

    check_program(program, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4)


def test_logsumexp():
    def program(device, k):
        x = randn(device, 6, 40, 9)
        special = torch.tensor(SPECIAL, device=device)
        leaf = randn(device, 4, 5).requires_grad_()
        loss = torch.logsumexp(leaf, 1)
        return [
            torch.logsumexp(x, 1), torch.logsumexp(x, (0, 2), keepdim=True), torch.logsumexp(x.transpose(0, 2), 0),
            torch.logsumexp(special, 1), torch.logsumexp(x[:0], 0), torch.logsumexp(x.long(), 1),
            torch.logsumexp(x * 1e4, 2), torch.logsumexp(x[0, 0, 0], 0),
            loss, *torch.autograd.grad(loss.square().sum(), leaf),
        ]  # fmt: skip

    check_program(program, rtol=2e-5, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_logsumexp_of_half_types_is_rounded_once(dtype):
    """CPU's is rounded at each step."""
    x = randn("cpu", 6, 40, dtype=dtype)
    torch.testing.assert_close(
        torch.logsumexp(x.to("neuron"), 1).cpu(), torch.logsumexp(x.double(), 1).to(dtype), rtol=0, atol=0
    )


@pytest.mark.parametrize("order", [2, 1, 0, INF, -INF, 3, 0.5, -1])
def test_norms_of_extremes(order):
    """Of one element a norm is |x|, whatever the order; of more it overflows and vanishes where the CPU's does."""

    def program(device, k):
        norm = torch.linalg.vector_norm
        one = torch.tensor([[1e20], [-1e-30], [NAN], [-INF], [0.0], [-3.0]], device=device)
        found = [norm(one, order, 1), norm(one[:1], order), norm(one[0, 0], order), norm(one.t(), order, 0)]
        if order in (1, 2):
            found += [norm(torch.tensor([1e20, 1.0], device=device), order), norm(one[:0], order)]
        x = randn(device, 6, 40, 9)
        return [*found, norm(x, order, 1), norm(x, order, (0, 2), keepdim=True), norm(x.half(), order, 2).float()]

    check_program(program, rtol=2e-3 if order == 0.5 else 1e-3, atol=1e-5)


# -- bits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(2, 70000), (70000, 2), (500, 33), (300, 8), (40, 30, 50)], ids=str)
def test_thread_counts_and_modes_give_the_same_bits(sizes):
    torch.manual_seed(5)
    x = torch.randn(*sizes).to("neuron")

    def run():
        y = x * 1.5
        found = [y.sum(), y.var(), *y.max(-1), *y.min(0), y.std(-1), y.logsumexp(-1), y.norm(), y.prod(-1)]
        return [*found, *torch.aminmax(y), y.sum(0), (y - y.mean(-1, keepdim=True)).sum(-1)]

    before = torch.get_num_threads()
    first = None
    try:
        for mode, threads in (("per_op", 1), ("adaptive", 1), ("adaptive", 2), ("stepwise", 2)):
            torch.set_num_threads(threads)
            with getattr(ae, mode)():
                for k in range(3 if mode == "adaptive" else 1):
                    found = on_host(run())
                    first = first or found
                    assert_same_bits(found, first, f"{mode}, {threads} threads, round {k}")
    finally:
        torch.set_num_threads(before)
