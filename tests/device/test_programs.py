"""Small programs: every mode gives the same bits, and the CPU's values within torch's tolerances.

A program is a function of (device, round). The harness runs each for several rounds in every mode, so that the adaptive
mode sees its windows again and fuses them.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from device_harness import check_program, counted, same_bits

import adaptive_eager as ae

NAN, INF = float("nan"), float("inf")


def randn(device, *sizes, dtype=torch.float32):
    """Random numbers that are the same on every device."""
    return torch.randn(*sizes).to(dtype).to(device)


PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


# ---- pointwise -------------------------------------------------------------------------------------------------------


@program
def chain(device, k):
    x = randn(device, 100, 37)
    for _ in range(10):
        x = torch.tanh(x * 1.1 + 0.5) - x.sigmoid()
    return x


@program
def branches_that_join(device, k):
    x = randn(device, 64, 33)
    a, b = x.exp(), (x * 2).cos()
    return a * b + (a - b), a / (b.abs() + 1)


@program
def unary_functions(device, k):
    x = randn(device, 257)
    positive = x.abs() + 0.1
    inside = torch.tanh(x) * 0.9
    return (
        [f(x) for f in (torch.exp, torch.expm1, torch.sin, torch.cos, torch.tan, torch.atan, torch.sinh, torch.cosh)]
        + [f(x) for f in (torch.erf, torch.erfc, F.gelu, F.silu, F.mish, F.softplus, F.elu, F.hardswish, F.relu)]
        + [
            f(positive)
            for f in (torch.log, torch.log2, torch.log10, torch.log1p, torch.sqrt, torch.rsqrt, torch.lgamma)
        ]
        + [f(inside) for f in (torch.asin, torch.acos, torch.atanh)]
        + [F.gelu(x, approximate="tanh"), torch.acosh(positive + 1), torch.asinh(x), x.reciprocal()]
    )


@program
def special_values(device, k):
    x = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1e-40, -1e-40, 0.5, -1.5, 2.5, 3.4e38], device=device)
    y = x.flip(0)
    return (
        [
            f(x)
            for f in (torch.relu, torch.sign, torch.abs, torch.neg, torch.round, torch.trunc, torch.floor, torch.ceil)
        ]
        + [
            f(x)
            for f in (torch.exp, torch.sqrt, torch.log, torch.reciprocal, torch.signbit, torch.isnan, torch.sigmoid)
        ]
        + [torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y), x.clamp(-1, 1), x.nan_to_num()]
        + [x == y, x < y, x >= y, x * y, x / y, x.bfloat16(), x.half(), x.double(), torch.copysign(y, x), x != x]
    )


@program
def where_clamp_lerp(device, k):
    x, y = randn(device, 6, 7), randn(device, 6, 7)
    return (
        torch.where(x > 0, x, y),
        torch.where(x > 0, 1.0, y),
        torch.where(y < x, x, torch.zeros((), device=device)),
        x.clamp(-0.5, 0.5),
        x.clamp(min=y),
        x.clamp(y, y + 1),
        torch.lerp(x, y, 0.3),
        torch.lerp(x, y, torch.sigmoid(x)),
        torch.addcmul(x, y, y, value=0.1),
        torch.addcdiv(x, y, y.abs() + 1, value=2.5),
        x.masked_fill(x > 1, -INF),
    )


@program
def clamp_without_minimum(device, k):
    x, y = randn(device, 5, 5), randn(device, 5, 5)
    return x.clamp(min=None, max=y), x.clamp(max=0.25), torch.clamp_max(x, y), torch.clamp_min(x, y)


@program
def integers(device, k):
    a, b = torch.arange(-10, 10, device=device), torch.arange(1, 21, device=device)
    return (
        [a // b, a % b, torch.fmod(a, b), a.div(b, rounding_mode="trunc"), a / b, a & b, a | b, a ^ b, ~a, -a, a.abs()],
        [torch.bitwise_left_shift(a, b * 5), torch.bitwise_right_shift(a, b * 5), a**2, a.sign(), a == b, a > b],
        [a.sum(), a.prod(), a.float().mean(), a.to(torch.int8) * 100, a.to(torch.uint8) * 3, a.clamp(-3, 3)],
    )


@program
def integers_with_numbers(device, k):
    i = torch.arange(-9, 10, device=device)
    return (
        i % 3,
        i % -3,
        torch.fmod(i, 3),
        i // 4,
        i / 4,
        i * 2,
        i + 1,
        i - 1.5,
        i & 6,
        i << 2,
        i >> 1,
        7 - i,
        i % 2 == 0,
    )


@program
def mixed_dtypes(device, k):
    bf16, f16, f64 = (randn(device, 33, dtype=d) for d in (torch.bfloat16, torch.float16, torch.float64))
    i = torch.arange(33, device=device)
    m = i % 2 == 0
    floats = [bf16 + f16, bf16 * 2.3 + 1, f16 / 3, f64 + bf16, (f16 * f16).float(), torch.where(m, bf16, f16)]
    with_integers = [i * bf16, m * f64, i.to(torch.uint8) * 200, f64.float() * i, m.to(torch.int64) * i]
    casts = [bf16.to(torch.int32), bf16.float().exp().bfloat16(), f64.to(torch.float16) + f16, i.bool(), (bf16 > 0) & m]
    return floats, with_integers, casts, m + m, m.sum(), bf16.sum(), f16.mean()


@program
def bfloat16_chain(device, k):
    x = randn(device, 1000, dtype=torch.bfloat16)
    for _ in range(6):
        x = (x * 1.25 + 0.3).tanh() / 0.9 - 0.01
    return x


@program
def zero_dim_tensors(device, k):
    on_device, on_host = torch.tensor(2.5, device=device), torch.tensor(3.0)
    x = randn(device, 9)
    half = x.to(torch.bfloat16)
    return x * on_device, x + on_host, on_device * on_host, half * on_device, on_device.pow(2) + 1, half + on_host


@program
def broadcasting(device, k):
    a, b, c = randn(device, 5, 1, 7), randn(device, 3, 1), randn(device, 7)
    return (
        a * b + c,
        (a - b).expand(2, 5, 3, 7) * c,
        a.expand(5, 4, 7) + a,
        b * torch.ones((), device=device),
        c[None, :, None] - a,
    )


# ---- views, in-place, out= -------------------------------------------------------------------------------------------


@program
def in_place_on_tensors(device, k):
    x, y = randn(device, 40), randn(device, 40)
    before = x * 2
    x.add_(y).mul_(3).clamp_(-2, 2)
    x -= 1
    y.copy_(x)
    x.zero_()
    return before, x, y, before + x


@program
def in_place_on_views(device, k):
    x = randn(device, 8, 8)
    y = x[::2, 1:5]
    y.mul_(2).add_(1)
    x.t()[3].fill_(7)
    return x, y, x.sum(0)


@program
def views_of_views(device, k):
    x = randn(device, 4, 6, 5)
    view = x.transpose(0, 2)[1:].permute(1, 0, 2)[:, :, ::2]
    view.add_(1)
    doubled = view * 2
    view.copy_(doubled + 1)
    return x, view, doubled


@program
def slices_written(device, k):
    x = torch.zeros(6, 6, device=device)
    x[1] = 2
    x[:, 3] = torch.arange(6.0, device=device)
    x[2:4, ::3] += 5
    x[-1, 1:].sub_(1)
    x[x > 4] = -1
    x[[0, 2], [1, 1]] = 9
    return x


@program
def read_then_overwritten(device, k):
    x = randn(device, 50)
    doubled = x * 2
    x.zero_()
    total = doubled + x
    x.add_(3)
    return x, doubled, total


@program
def overlapping_views(device, k):
    x = torch.arange(20.0, device=device)
    copy = x * 1
    x[2:12] += copy[0:10]
    x[::2].mul_(x[1::2])
    x[:10].copy_(x[10:])
    x[1:].copy_(x[:-1].clone())
    return x, copy


@program
def two_names_of_one_storage(device, k):
    a = torch.ones(4, 4, device=device)
    flat, transposed = a.view(16), a.t()
    flat[::5] += 1
    transposed[0].mul_(3)
    return a + transposed, flat.sum(), transposed


@program
def out_arguments(device, k):
    x = randn(device, 5, 6)
    grown, transposed = torch.empty(0, device=device), torch.empty(6, 5, device=device).t()
    torch.add(x, 1, out=grown)
    torch.mul(x, grown, out=transposed)
    torch.exp(x, out=x)
    total = torch.empty(6, device=device)
    torch.sum(x, 0, out=total)
    wide = torch.empty(5, 6, dtype=torch.float64, device=device)
    torch.add(x, grown, out=wide)
    return grown, transposed, x, total, wide


@program
def strided_copies(device, k):
    x = randn(device, 3, 4, 5)
    y = torch.empty(5, 4, 3, device=device)
    y.copy_(x.permute(2, 1, 0))
    z = torch.zeros(3, 8, 5, device=device)
    z[:, ::2].copy_(x)
    half = torch.empty(4, 5, dtype=torch.float16, device=device).copy_(x[1])
    return y, z, half, x.permute(1, 2, 0).contiguous(), x[:, :, ::2].clone(), x.expand(2, 3, 4, 5).contiguous()


@program
def channels_last(device, k):
    x = randn(device, 2, 3, 4, 5).to(memory_format=torch.channels_last)
    y = F.relu(x) * 2
    return y, y.sum((0, 2, 3)), y.mean(1), y.contiguous(), y + randn(device, 2, 3, 4, 5), y.amax((1, 3))


@program
def chunks_and_joins(device, k):
    x = randn(device, 6, 8)
    a, b = x.chunk(2, 1)
    return (
        torch.cat([a * 2, b, a + b], 1),
        torch.stack([a, b]).sum(0),
        torch.cat([x, x]).view(2, 6, 8)[1] + x,
        a.t() @ b,
    )


# ---- reductions ------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "channels_last": lambda x: x[None].to(memory_format=torch.channels_last)[0],
    "expanded": lambda x: x[1:2].expand(4, 5, 6),
    "sliced": lambda x: x[1:, ::2],
    "size_one": lambda x: x[:, :1],
    "reversed_rows": lambda x: x.flip(0)[:, 1:, 1:],
}


@program
def reductions_added_in_place(device, k):
    """The kept points of a reduction read and write the same memory."""
    x = randn(device, 24, 7, 40).abs()
    total = torch.zeros(1).to(device)
    kept = [torch.ones(x.sum(dims).shape).to(device) for dims in ((0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2))]
    for _ in range(2):
        ae.flush()
        for into, dims in zip(kept, ((0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)), strict=True):
            into += (x * (k + 1)).sum(dims)
            into.lerp_(torch.linalg.vector_norm(x, dim=dims).square_(), 0.1)
        total += kept[-1].mean() * 0.5
    return kept, total


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reductions_over_all_dims(layout):
    def reductions(device, k):
        x = LAYOUTS[layout](randn(device, 4, 5, 6))
        results = [
            x.sum(),
            x.mean(),
            x.amax(),
            x.prod(),
            x.max(),
            x.min(),
            x.argmax(),
            x.var(),
            x.norm(),
            (x > 0).any(),
        ]
        for count in (1, 2, 3):
            for dims in itertools.combinations(range(3), count):
                results += [x.sum(dims), x.mean(dims, keepdim=True), x.amax(dims), x.amin(dims, keepdim=True)]
                results += [x.var(dims), x.std(dims, unbiased=False), torch.linalg.vector_norm(x, 3, dims)]
        for dim in range(3):
            results += [x.prod(dim), x.argmax(dim), x.argmin(dim, keepdim=True), *x.max(dim), *x.min(dim)]
        return results

    check_program(reductions, rounds=3)


@program
def all_and_any_over_all_dims(device, k):
    x = randn(device, 4, 5, 6) > -1
    results = []
    for count in (1, 2, 3):
        for dims in itertools.combinations(range(3), count):
            results += [x.all(dims), x.any(dims, keepdim=True), torch.all(x.float(), dims)]
    return results


@program
def empty_dims(device, k):
    x = torch.zeros(0, 5, device=device)
    return x.sum(0), x.sum(1), x.mean(0), x + 1, x.prod(0), x.any(1), x.all(), x.argmax(1), (x * 2).t().sum(), x.amax(1)


@program
def all_and_any_over_no_dims(device, k):
    x = randn(device, 3, 4)
    return torch.all(x, dim=()), torch.any(x > 0, dim=()), x.sum(()), x.all(), (x > 9).any()


@program
def reduction_between_pointwise(device, k):
    x = randn(device, 33, 65)
    e = (x - x.amax(1, keepdim=True)).exp()
    normal = (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()
    return (x * 2 + 1).sum(1), e / e.sum(1, keepdim=True), normal, x.sum(1).exp().mean(), (x.sigmoid() * x).amax(0) * 2


@program
def several_reductions_of_one_input(device, k):
    x = randn(device, 20, 300) * 3 + 1
    squared = x * x
    return (
        squared.sum(1),
        squared.mean(1),
        squared.amax(1),
        x.amin(1),
        squared.sum(0),
        x.argmax(1),
        squared.sum() / x.sum(),
    )


@program
def argmax_of_ties_and_nan(device, k):
    x = torch.tensor([[1.0, 3, 3, 2], [NAN, 5, NAN, 1], [2, 2, 2, 2]], device=device)
    return x.argmax(1), x.argmin(1), x.argmax(), *x.max(1), *x.min(0), x.amax(1), x.max(), x.argmin(0, keepdim=True)


@program
def norms_and_moments(device, k):
    x = randn(device, 7, 9)
    orders = [x.norm(p) for p in (0, 1, 2, 3, -1, 0.5, INF, -INF)]
    by_dim = [torch.linalg.vector_norm(x, p, dim=1) for p in (0, 1, 2, 2.5, INF, -INF)]
    moments = [x.var(1, correction=c) for c in (0, 1, 2)] + list(torch.std_mean(x, 0)) + list(torch.var_mean(x))
    return (
        orders + by_dim + moments + [torch.linalg.vector_norm(x, 2, dtype=torch.float64), x.sum(1, dtype=torch.float64)]
    )


@program
def integer_and_bool_reductions(device, k):
    i = torch.arange(-30, 30, device=device).view(6, 10)
    m = i % 3 == 0
    return (
        i.sum(0),
        i.prod(1),
        i.amax(1),
        i.argmin(0),
        m.sum(1),
        m.any(0),
        m.all(1),
        i.to(torch.int8).sum(),
        m.float().mean(),
    )


@program
def bool_maximum_with_dim(device, k):
    m = randn(device, 4, 5) > 0
    return *m.max(1), *m.min(0), m.max(), m.amax(1), m.amin(0)


@program
def half_reductions(device, k):
    x = randn(device, 130, 300, dtype=torch.bfloat16)
    return x.mean(1), x.sum(1, dtype=torch.float32), x.amax(0), x.float().mean(), x.var(1), (x * x).mean(0)


def test_large_reductions_are_accurate():
    """A sum of many numbers stays near the exact one: summation is in blocks, not one running total."""
    x = torch.rand(200_000, 4, generator=torch.Generator().manual_seed(1))
    y, exact = x.to("neuron"), x.double()
    for dims in (0, 1, (0, 1)):
        torch.testing.assert_close(y.sum(dims).cpu().double(), exact.sum(dims), rtol=2e-6, atol=0)
        torch.testing.assert_close(y.norm(dim=dims).cpu().double(), exact.norm(dim=dims), rtol=2e-6, atol=0)
    torch.testing.assert_close((y + 1000).var(0).cpu().double(), (exact + 1000).var(0), rtol=1e-3, atol=0)


def test_large_sum_of_an_expanded_dim_is_accurate():
    row = torch.rand(1, 4, generator=torch.Generator().manual_seed(1))
    total = row.to("neuron").expand(1_000_000, 4).sum(0)
    torch.testing.assert_close(total.cpu().double(), row.double()[0] * 1_000_000, rtol=2e-6, atol=0)


# ---- host reads, shapes, scalars -------------------------------------------------------------------------------------


@program
def values_read_between(device, k):
    x = randn(device, 10)
    total = x.sum().item()
    y = x * total
    if y.max() > 0:
        y = y + 1
    listed = y.tolist()
    return y * listed[0], torch.tensor(total, device=device) + x, len(listed)


@program
def other_numbers_each_round(device, k):
    x = randn(device, 70)
    return (
        x * (k + 0.5) + k,
        x.pow(k),
        x.clamp(-k - 0.5, k + 0.5),
        torch.lerp(x, x * 2, 0.1 * k),
        x + (k % 2 == 0),
        x > k,
    )


@program
def other_sizes_each_round(device, k):
    x = randn(device, 3 + k, 5 * k + 1)
    return torch.tanh(x * 2).sum(0) / (k + 1), x.sum(1), x.t() + 1, x.amax()


@program
def dead_temporaries(device, k):
    x = randn(device, 64)
    for i in range(50):
        _ = (x * i).exp()
    return x + 1


@program
def host_ops_between(device, k):
    x, w = randn(device, 16, 24), randn(device, 24, 8)
    h = F.relu(x @ w + 1)
    probabilities = F.softmax(h * 2, -1)
    top, where = probabilities.topk(3)
    return (
        (h.cumsum(1) * 0.5).tanh(),
        top + 1,
        where,
        h.sort(1)[0] - h,
        F.layer_norm(h, (8,)).mul(2),
        h[where[:, 0]] + h,
    )


@program
def training_step(device, k):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    targets = (torch.arange(10) % 3).to(device)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(randn(device, 10, 8)), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses + list(model.parameters())


@program
def complex_numbers(device, k):
    x = torch.complex(torch.randn(4), torch.randn(4)).to(device)
    return (x * x).abs(), torch.view_as_real(x.conj() * 2), x.real + 1, x.imag


@program
def thousand_ops_without_a_read(device, k):
    x = randn(device, 10)
    for i in range(1000):
        x = x * 0.99 + 0.01
        if i % 7 == 0:
            x = x.tanh()
    return x


# Programs whose values the two devices cannot be asked to round alike to the default tolerances, and why.
TOLERANCES = {
    "bfloat16_chain": {"rtol": 3e-2, "atol": 3e-2},  # six roundings to 8 bits, each free to go either way
    "half_reductions": {"rtol": 1.6e-2, "atol": 2e-3},  # means near zero
    "training_step": {"rtol": 1e-4, "atol": 1e-4},  # AdamW divides by the root of a tiny number in its first steps
    "reduction_between_pointwise": {"rtol": 1e-5, "atol": 1e-5},
}


@pytest.mark.filterwarnings("ignore:.*runs on the host")
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    check_program(PROGRAMS[name], **TOLERANCES.get(name, {}))


# ---- what is compiled, and when --------------------------------------------------------------------------------------


def kernels_compiled_by(function, calls):
    """Kernels that each call of `function(k)` compiles or loads, after which its results are read."""
    seen = []
    for k in range(calls):
        before = counted("kernels_compiled") + counted("kernels_from_disk")
        for t in function(k):
            t.cpu()
        seen.append(counted("kernels_compiled") + counted("kernels_from_disk") - before)
    return seen


def test_a_new_batch_size_compiles_nothing():
    def step(k):
        x = torch.randn(5 + 3 * k, 17, device="neuron")
        y = F.gelu(x * 2 + 1)
        return y, y.sum(0), (y - y.mean(1, keepdim=True)) / (y.std(1, keepdim=True) + 1e-5)

    assert sum(kernels_compiled_by(step, 12)[5:]) == 0


def test_new_sizes_of_every_dim_compile_nothing():
    def step(k):
        x = torch.randn(2 + k, 7 + 2 * k, 30 - k, device="neuron")
        y = (x.transpose(1, 2) * 0.5).sigmoid()
        return y, y.amax(1), y.sum((0, 2)), x[:, 1:] + 1

    assert sum(kernels_compiled_by(step, 12)[5:]) == 0


def test_new_numbers_compile_nothing():
    x = torch.randn(1000, device="neuron")

    def step(k):
        y = (x * (1.5 + k)).clamp(-k - 1.0, k + 1.0) + 10.0**-k
        return y, torch.addcmul(y, x, x, value=0.25 * k), torch.lerp(x, y, 0.01 * k), x.masked_fill(y > 0, float(k))

    assert sum(kernels_compiled_by(step, 12)[5:]) == 0


def test_a_changing_learning_rate_and_step_count_compile_nothing():
    model = torch.nn.Linear(6, 4).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    def step(k):
        optimizer.zero_grad()
        loss = model(torch.ones(5, 6, device="neuron")).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return (loss,)

    assert sum(kernels_compiled_by(step, 12)[6:]) == 0


def test_a_growing_cache_compiles_nothing():
    """The key-value cache of text generation: one more row each step."""
    cache = torch.zeros(1, 8, device="neuron")

    def step(k):
        nonlocal cache
        cache = torch.cat([cache, torch.full((1, 8), float(k), device="neuron")])
        weights = torch.softmax(cache @ cache[-1] * 0.1, 0)
        return ((weights[:, None] * cache).sum(0),)

    assert sum(kernels_compiled_by(step, 14)[6:]) == 0


# ---- long loops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [7, 64, 133, 257])
def test_loops_without_host_reads_settle_on_few_windows(period):
    """However long the loop body, the windows are cut at the same places each time round: plans stop being made."""
    with ae.adaptive():
        x = torch.linspace(-1, 1, 32, device="neuron")
        made = []
        for _ in range(12):
            for _ in range(max(1, 700 // period)):
                for i in range(period):
                    x = x.sin() if i % 5 == 0 else (x.mul(0.9) if i % 3 == 0 else x + 0.25)
            made.append(counted("plans_new"))
        ae.flush()
        assert made[-1] == made[-5], f"plans made so far, round by round: {made}"


@pytest.mark.parametrize("ops", [255, 256, 257, 300, 511, 513, 700])
def test_windows_cut_at_their_longest(ops):
    """Values do not depend on where the window ends."""

    def straight(device, k):
        x, kept = torch.linspace(-1, 1, 16, device=device), []
        y = torch.zeros(16, device=device)
        for i in range(ops // 2):
            x = x * 0.99 + 0.01 if i % 3 else x.cos()
            y[i % 16 :].add_(1)
            if i % 100 == 99:
                kept.append(x)
        return x, y, *kept

    check_program(straight, rounds=3)


def test_a_window_with_much_memory_is_run():
    """Pending results are bounded in bytes as well: a loop over big tensors does not pile them up."""
    before = torch.neuron.memory_allocated()
    torch.neuron.reset_peak_memory_stats()
    x = torch.ones(4 << 20, device="neuron")  # 16 MiB
    for _ in range(40):
        x = x * 1.0
    torch.neuron.synchronize()
    assert torch.neuron.max_memory_allocated() - before < 200 << 20


def test_fused_ops_are_counted_and_hot_windows_hit():
    x = torch.randn(300, device="neuron")

    def step():
        return (x * 2 + 1).tanh().sum().cpu()

    with ae.adaptive():
        results = [step() for _ in range(4)]
        before = ae.stats()
        results.append(step())
        after = ae.stats()
    assert after["plans_hit"] == before["plans_hit"] + 1
    assert after["plans_new"] == before["plans_new"]
    assert after["fused_ops"] - before["fused_ops"] == 4
    assert all(same_bits(r, results[0]) for r in results)


@pytest.mark.parametrize(
    "sizes", [(1,), (7,), (16,), (17,), (1000,), (100_003,), (1, 1), (300, 7), (7, 300), (3, 1, 5)]
)
def test_bits_do_not_depend_on_place_or_size(sizes):
    """Tails, vector widths and the split between threads never show: a slice of a result is the result of the slice."""
    x = torch.randn(sizes, device="neuron")

    def f(t):
        return F.gelu(t.exp() * 0.3) + t.sin() / 3

    whole = f(x).cpu()
    part = f(x[..., 1:]).cpu() if sizes[-1] > 1 else f(x.clone()).cpu()
    assert same_bits(whole[..., 1:] if sizes[-1] > 1 else whole, part)


@pytest.mark.parametrize("mode_name", ("stepwise", "adaptive"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_a_tensor_without_dims_keeps_its_digits_beside_half_types(dtype, mode_name):
    x = torch.randn(1024).to(dtype)
    number = torch.tensor(3.3)

    def results(x, number):
        y = number * 1
        rounded = [torch.div(x, y, rounding_mode=m) for m in ("floor", "trunc")]
        return [x * y, x / y, x // y, *rounded, x + y, x.clone().mul_(y)]

    with getattr(ae, mode_name)():
        for _ in range(3):
            actual = results(x.to("neuron"), number.to("neuron"))
            for a, e in zip(actual, results(x, number), strict=True):
                assert torch.equal(a.cpu(), e)


@pytest.mark.parametrize("parameters", (None, torch.bfloat16, torch.float32))
def test_statistics_of_norms_have_the_dtype_they_have_on_the_cpu(parameters):
    def dtypes(device):
        x = torch.randn(2, 4, 3, dtype=torch.bfloat16).to(device)
        p = None if parameters is None else torch.ones(4, dtype=parameters).to(device)
        calls = (
            lambda: torch.native_layer_norm(x.transpose(1, 2).contiguous(), (4,), p, p, 1e-5),
            lambda: torch.native_group_norm(x, p, p, 2, 4, 3, 2, 1e-5),
            lambda: torch.native_batch_norm(x, p, p, None, None, True, 0.1, 1e-5),
        )
        return [[t.dtype for t in call()] for call in calls for _ in range(3)]

    assert dtypes("neuron") == dtypes("cpu")


def test_a_host_op_is_refused_at_every_call():
    x = torch.ones(3, dtype=torch.uint8, device="neuron")
    for _ in range(3):
        with pytest.raises(NotImplementedError, match="nextafter"):
            torch.nextafter(x, x)
        torch.log_softmax(x[:0], 0)
        with pytest.raises(NotImplementedError, match="log_softmax"):
            torch.log_softmax(x, 0)


def test_a_copy_of_a_slice_is_not_of_a_softmaxs_rows():
    """Its points are as many dims as the rows', and fewer."""

    def program(device, k):
        x = torch.arange(9.0).view(3, 1, 3).to(device)
        y = torch.log_softmax(x, -2)
        other = F.group_norm(torch.arange(4.0).view(2, 2).to(device), 1)
        sums = torch.softmax(y, -2).sum(-2)
        y[..., 1:] += y[..., :-1].clone()
        return y, other, sums

    check_program(program)
