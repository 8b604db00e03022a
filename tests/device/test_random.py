"""The device's random numbers: their distributions, who draws which of them, and the generators' state.

A seed is fixed in every test, so what a statistical test finds is the same in every run.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import adaptive_eager as ae

DRAWS = {
    "rand": lambda g: torch.rand(7, device="neuron", generator=g),
    "randn": lambda g: torch.randn(33, device="neuron", generator=g),
    "randint": lambda g: torch.randint(3, 90, (11,), device="neuron", generator=g),
    "randperm": lambda g: torch.randperm(12, device="neuron", generator=g),
    "uniform_": lambda g: torch.empty(4, 8, device="neuron").t().uniform_(-1, 2, generator=g),
    "normal_": lambda g: torch.empty(20, device="neuron").normal_(1, 3, generator=g),
    "normal": lambda g: torch.normal(torch.zeros(6, device="neuron"), torch.ones(6, device="neuron"), generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((99,), 0.3, device="neuron"), generator=g),
    "bernoulli_": lambda g: torch.empty(99, device="neuron").bernoulli_(0.6, generator=g),
    "exponential_": lambda g: torch.empty(9, device="neuron").exponential_(generator=g),
    "geometric_": lambda g: torch.empty(29, device="neuron").geometric_(0.3, generator=g),
    "log_normal_": lambda g: torch.empty(9, device="neuron").log_normal_(generator=g),
    "cauchy_": lambda g: torch.empty(9, device="neuron").cauchy_(generator=g),
    "random_": lambda g: torch.empty(9, device="neuron").random_(generator=g),
    "multinomial": lambda g: torch.multinomial(torch.arange(1.0, 99, device="neuron"), 9, generator=g),
    "poisson": lambda g: torch.poisson(torch.full((19,), 40.0, device="neuron"), generator=g),
    "bfloat16": lambda g: torch.randn(20, device="neuron", dtype=torch.bfloat16, generator=g),
}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
N = 1 << 18
by_draw = pytest.mark.parametrize("name", DRAWS)
by_float = pytest.mark.parametrize("dtype", FLOATS)
pytestmark = pytest.mark.filterwarnings("ignore:.*runs on the host")


def empty(dtype=torch.float32, n=N):
    return torch.empty(n, dtype=dtype, device="neuron")


def assert_distributed(x, cdf, step=0.0):
    """Kolmogorov and Smirnov's test at a chance of 1e-4. `step`: how far a number was rounded down at most."""
    x = x.cpu().double().sort().values
    n = x.numel()
    ranks = torch.arange(n + 1, dtype=torch.float64) / n
    above, below = ranks[1:] - cdf(x + step), cdf(x) - ranks[:-1]
    assert max(above.max(), below.max()).item() * math.sqrt(n) < 2.23


def assert_equally_frequent(counts):
    """Chi-square: within 4 standard deviations of what is expected, either way: too even is wrong too."""
    expected = counts.sum().item() / counts.numel()
    degrees = counts.numel() - 1
    chi = ((counts.double() - expected) ** 2 / expected).sum().item()
    assert abs(chi - degrees) < 4 * math.sqrt(2 * degrees)


# -- distributions -----------------------------------------------------------------------------------------------------


@by_float
def test_uniform(dtype):
    digits = {torch.float16: 11, torch.bfloat16: 8}.get(dtype, 24)
    x = torch.rand(N, dtype=dtype, device="neuron")
    assert x.min().item() >= 0 and x.max().item() < 1
    assert_distributed(x, lambda x: x.clamp(0, 1), 2.0**-digits)
    x = empty(dtype).uniform_(-3, 5).cpu().double()
    assert x.min() >= -3 and x.max() < 5
    assert abs(x.mean() - 1) < 0.05 and abs(x.var() - 64 / 12) < 0.1


@by_float
def test_uniform_never_gives_its_end(dtype):
    for first, end in ((1, 2), (0, 1), (100, 101), (-1, 0), (-2, -1), (1000, 1000), (0, 1e-6)):
        x = empty(dtype).uniform_(first, end).cpu()
        assert (x >= torch.tensor(first, dtype=dtype)).all()
        assert (x.double() < end).all() or first == end, (first, end)


@by_float
def test_normal(dtype):
    x = torch.randn(N, dtype=dtype, device="neuron")
    assert x.isfinite().all().item()
    wide = x.cpu().double()
    assert abs(wide.mean()) < 0.01 and abs(wide.var() - 1) < 0.01
    assert abs((wide**3).mean()) < 0.03 and abs((wide**4).mean() - 3) < 0.1
    if dtype not in (torch.float16, torch.bfloat16):
        assert_distributed(x, torch.special.ndtr)
    x = empty(dtype).normal_(5, 0.5).cpu().double()
    assert abs(x.mean() - 5) < 0.01 and abs(x.std() - 0.5) < 0.01
    assert torch.normal(2.0, torch.zeros(3, device="neuron")).tolist() == [2, 2, 2]
    assert torch.normal(torch.tensor([1.0, 2.0], device="neuron"), 0.0).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_continuous_distributions(dtype):
    x = empty(dtype).exponential_(2.0)
    assert x.min().item() > 0
    assert_distributed(x, lambda x: 1 - torch.exp(-2 * x))
    assert_distributed(empty(dtype).cauchy_(1, 2), lambda x: 0.5 + ((x - 1) / 2).atan() / math.pi)
    assert_distributed(empty(dtype).log_normal_(0.5, 0.25), lambda x: torch.special.ndtr((x.log() - 0.5) / 0.25))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32, torch.uint8])
def test_geometric(dtype):
    x = empty(dtype).geometric_(0.5).cpu().long()
    assert x.min() == 1
    for k in range(1, 6):
        share = (x == k).double().mean().item()
        assert abs(share - 0.5**k) < 4 * math.sqrt(0.5**k / N)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, *FLOATS])
def test_bernoulli(dtype):
    for chance in (0.0, 1e-3, 0.3, 0.5, 0.999, 1.0):
        of_tensor = torch.full((N,), chance, device="neuron", dtype=dtype if dtype.is_floating_point else torch.float32)
        rounded = of_tensor[0].item()
        for x, p in ((empty(dtype).bernoulli_(chance), chance), (empty(dtype).bernoulli_(of_tensor), rounded)):
            share = x.double().mean().item()
            assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / N)
            assert set(x.cpu().unique().tolist()) <= {0, 1}


def test_bernoulli_of_a_tensor_of_any_layout(mode):
    p = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]], device="neuron")
    for chances in (p, p.t(), p.expand(4, 2, 3), p[:, ::2], p[0, 1], p.double(), p.bfloat16()):
        assert torch.bernoulli(chances).cpu().equal(chances.cpu())
    assert torch.zeros(5, 2, 3, device="neuron").bernoulli_(p).cpu().equal(p.cpu().expand(5, 2, 3))
    assert torch.zeros(3, device="neuron").bernoulli_(torch.tensor(1.0)).tolist() == [1, 1, 1]
    for wrong in (1.5, -0.1, math.nan):
        with pytest.raises(RuntimeError, match=r"Expected p_in >= 0 && p_in <= 1 to be true"):
            torch.bernoulli(torch.tensor([0.5, wrong], device="neuron")).cpu()


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_integers(dtype):
    x = empty(dtype).random_(-5 if dtype.is_signed else 1, 91).cpu().long()
    x -= x.min()
    assert_equally_frequent(x.bincount())
    assert x.max() == (95 if dtype.is_signed else 89)
    x = empty(dtype).random_(7).cpu().long()
    assert_equally_frequent(x.bincount(minlength=7))


def test_the_largest_ranges():
    for dtype in (torch.bool, *INTEGERS):
        x = empty(dtype).random_().cpu().double()
        top = 1 if dtype is torch.bool else torch.iinfo(dtype).max
        assert x.min() >= 0 and x.max() <= top and abs(x.mean() / top - 0.5) < 0.003
    for dtype, digits in zip(FLOATS, (11, 8, 24, 53), strict=True):
        x = empty(dtype).random_().cpu().double()
        assert x.max() <= 2**digits and abs(x.mean() / 2**digits - 0.5) < 0.003 and x.equal(x.round())
    x = empty(torch.int64).random_(-(2**63), None).cpu().double()
    assert abs(x.mean() / 2**63) < 0.005 and x.min() < -(2**62.9) and x.max() > 2**62.9
    x = empty(torch.int64).random_(2**62, 2**62 + 3).cpu() - 2**62
    assert_equally_frequent(x.bincount(minlength=3))


def test_neighbours_and_calls_are_independent():
    """Of elements at all small distances, of consecutive calls, and of neighbouring seeds."""
    x = torch.randn(N, device="neuron").cpu()
    for lag in (*range(1, 20), 32, 64, 128, 1024):
        assert abs((x[lag:] * x[:-lag]).mean()) < 4.5 / math.sqrt(N)
    streams = [x, torch.randn(N, device="neuron").cpu()]
    for seed in (1, 2, 1 << 32):
        torch.manual_seed(seed)
        streams.append(torch.randn(N, device="neuron").cpu())
    for i, a in enumerate(streams):
        for b in streams[:i]:
            assert abs((a * b).mean()) < 4.5 / math.sqrt(N)


def test_no_number_comes_twice():
    """63 random bits each: what overlaps between calls, seeds or places would show."""
    drawn = []
    for seed in (0, 1, 1 << 33):
        torch.manual_seed(seed)
        drawn += [torch.empty(n, dtype=torch.int64, device="neuron").random_().cpu() for n in (10_000, 17, 20_000)]
    assert torch.cat(drawn).unique().numel() == sum(t.numel() for t in drawn)


# -- who draws which numbers -------------------------------------------------------------------------------------------


def program():
    """Draws of all kinds among other ops, some of them dead."""
    x = torch.rand(40, 30, device="neuron")
    torch.randn(20, device="neuron")
    y = F.dropout(x * 2, 0.4)
    z = torch.empty(30, 40, device="neuron").t().normal_() + y
    p = torch.randperm(10, device="neuron")
    torch.multinomial(x[0], 3)
    m = torch.multinomial(x[0], 5)
    total = (z * torch.rand_like(z)).sum(1)
    b = torch.bernoulli(x)
    return [t.cpu() for t in (x, y, z, p, m, total, b, torch.rand(3, device="neuron"))]


def test_all_modes_draw_the_same(mode):
    torch.manual_seed(3)
    with ae.stepwise():
        expected = program()
    for _ in range(4):
        torch.manual_seed(3)
        for a, b in zip(program(), expected, strict=True):
            assert a.equal(b)


def test_threads_do_not_matter():
    results = []
    threads = torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            torch.manual_seed(4)
            x = torch.randn(700, 1001, device="neuron")
            results.append([t.cpu() for t in (x, F.dropout(x, 0.3), torch.rand(700, 1001, device="neuron").sum(0))])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(a.equal(b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("fill", ["uniform_", "normal_", "exponential_", "random_", "bernoulli_"])
def test_a_number_belongs_to_a_position(fill, mode):
    """In whatever order memory is walked, and whatever lies between."""

    def layouts():
        yield torch.empty(6, 5, 7, device="neuron")
        for order in ((2, 1, 0), (1, 2, 0), (0, 2, 1)):
            sizes = [0] * 3
            for k, d in enumerate(order):
                sizes[d] = (6, 5, 7)[k]
            yield torch.empty(sizes, device="neuron").permute(order)
        yield torch.empty(6, 5, 14, device="neuron")[..., ::2]
        yield torch.empty(12, 6, 9, device="neuron")[::2, 1:, 1:8]
        yield torch.empty(6, 1, 5, 1, 1, 1, 1, 1, 1, 7, device="neuron")  # more dims than kernels have

    results = []
    for out in layouts():
        torch.manual_seed(5)
        results.append(getattr(out, fill)().cpu().reshape(6, 5, 7))
    for other in results[1:]:
        assert other.equal(results[0])


@by_draw
def test_draws_leave_the_generator_of_the_cpu_alone(name):
    state = torch.get_rng_state()
    DRAWS[name](None).cpu()
    assert torch.get_rng_state().equal(state)


@by_draw
def test_a_generator_of_ones_own(name, mode):
    generator = torch.Generator("neuron").manual_seed(5)
    assert generator.device.type == "neuron" and generator.initial_seed() == 5
    default = torch.neuron.get_rng_state()
    first = DRAWS[name](generator).cpu()
    second = DRAWS[name](generator).cpu()
    assert not first.equal(second)
    assert first.equal(DRAWS[name](generator.manual_seed(5)).cpu())
    assert torch.neuron.get_rng_state().equal(default), "the default generator is not touched"


@by_draw
def test_a_seed_makes_all_that_follows_the_same(name, mode):
    def draw():
        torch.manual_seed(11)
        return [DRAWS[name](None).cpu(), DRAWS[name](None).cpu(), torch.rand(3, device="neuron").cpu()]

    first, second = draw(), draw()
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    assert not first[0].equal(first[1])


def test_draws_compile_once_and_do_not_repeat():
    seen = [(torch.rand(4, device="neuron") * 2).cpu() for _ in range(3)]
    before = ae.stats()["kernels_compiled"]
    seen += [(torch.rand(4, device="neuron") * 2).cpu() for _ in range(4)]
    torch.neuron.manual_seed(77)
    seen.append((torch.rand(4, device="neuron") * 2).cpu())
    assert ae.stats()["kernels_compiled"] == before
    assert all(not a.equal(b) for i, a in enumerate(seen) for b in seen[:i])


# -- dropout -----------------------------------------------------------------------------------------------------------


def test_dropout(mode):
    x = torch.ones(20_000, device="neuron")
    y = F.dropout(x, 0.25)
    kept = (y != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.02
    assert y.unique().tolist() == [0, pytest.approx(1 / 0.75)]
    assert F.dropout(x, 0.25, training=False) is x or F.dropout(x, 0.25, training=False).equal(x)
    assert F.dropout(x, 1.0).sum().item() == 0


def test_dropout_is_one_kernel_with_what_is_around_it():
    x = torch.randn(64, 48, device="neuron")
    results = []
    for _ in range(3):
        ae.flush()
        ae.reset_stats()
        results.append(F.dropout(torch.relu(x), 0.5) + x)
        ae.flush()
    assert ae.stats()["launches"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_mask_of_backward_is_that_of_forward(dtype, mode):
    x = torch.ones(20, 25, device="neuron", dtype=dtype, requires_grad=True)
    y = F.dropout(x.t(), 0.5)
    y.sum().backward()
    assert x.grad.cpu().t().equal(y.detach().cpu())


def test_dropout_of_many_dims_and_of_views(mode):
    x = torch.ones([2] * 10, device="neuron")
    y = F.dropout(x, 0.5)
    assert set(y.unique().tolist()) == {0, 2} and y.shape == x.shape
    y = F.dropout(torch.ones(3, 1, device="neuron").expand(3, 50), 0.5)
    assert set(y.unique().tolist()) == {0, 2} and y.shape == (3, 50)


def test_checkpoints_recompute_the_same_dropout(mode):
    x = torch.randn(300, device="neuron", requires_grad=True)

    def part(x):
        return F.dropout(x * 2, 0.5)

    results = []
    for run in (
        part,
        lambda x: checkpoint(part, x, use_reentrant=False),
        lambda x: checkpoint(part, x, use_reentrant=True),
    ):
        torch.manual_seed(6)
        y = run(x)
        torch.rand(5, device="neuron")
        (grad,) = torch.autograd.grad(y.sum(), x) if run is part else (None,)
        if grad is None:
            x.grad = None
            y.sum().backward()
            grad = x.grad
        results.append((y.detach().cpu(), grad.cpu(), torch.rand(3, device="neuron").cpu()))
    for other in results[1:]:
        assert all(a.equal(b) for a, b in zip(results[0], other, strict=True))


# -- generators --------------------------------------------------------------------------------------------------------


def test_seeding():
    torch.neuron.manual_seed(9)
    assert torch.neuron.initial_seed() == 9
    first = torch.rand(4, device="neuron").cpu()
    torch.neuron.manual_seed_all(9)
    assert torch.rand(4, device="neuron").cpu().equal(first)
    torch.manual_seed(9)  # seeds every device
    assert torch.rand(4, device="neuron").cpu().equal(first)
    torch.neuron.seed()
    assert not torch.rand(4, device="neuron").cpu().equal(first)
    torch.manual_seed(-1)
    assert torch.neuron.initial_seed() == 2**64 - 1 and torch.rand(4, device="neuron").isfinite().all()


def test_seeding_takes_effect_at_the_call():
    """What was recorded before draws from the old stream, also when it runs later."""
    torch.neuron.manual_seed(1)
    first = torch.rand(4, device="neuron")
    torch.neuron.manual_seed(2)
    second = torch.rand(4, device="neuron")
    torch.neuron.manual_seed(1)
    assert torch.rand(4, device="neuron").equal(first)
    torch.neuron.manual_seed(2)
    assert torch.rand(4, device="neuron").equal(second)


def test_state_is_saved_and_restored():
    torch.manual_seed(4)
    pending = torch.rand(3, device="neuron")
    state = torch.neuron.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    first = torch.randn(6, device="neuron").cpu()
    torch.neuron.set_rng_state(state)
    assert torch.randn(6, device="neuron").cpu().equal(first)
    states = torch.neuron.get_rng_state_all()
    torch.neuron.set_rng_state_all(states)
    assert len(states) == torch.neuron.device_count() and pending.shape == (3,)
    with pytest.raises(RuntimeError, match="RNG state is wrong size: got 5 bytes, need 16"):
        torch.neuron.set_rng_state(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises((RuntimeError, TypeError), match=r"torch\.ByteTensor"):
        torch.neuron.set_rng_state(torch.zeros(16))


def test_reading_the_state_runs_nothing():
    ae.flush()
    ae.reset_stats()
    x = torch.rand(3, device="neuron")
    torch.neuron.get_rng_state()
    torch.manual_seed(1)
    assert ae.stats()["windows"] == 0 or ae.mode() == "stepwise"
    assert x.shape == (3,)


def test_fork_rng():
    torch.manual_seed(8)
    expected = torch.rand(3, device="neuron").cpu()
    torch.manual_seed(8)
    with torch.random.fork_rng(devices=[0], device_type="neuron"):
        torch.rand(100, device="neuron")
    assert torch.rand(3, device="neuron").cpu().equal(expected)


def test_generator_state_and_clone():
    generator = torch.Generator("neuron").manual_seed(3)
    torch.rand(5, device="neuron", generator=generator)
    twin = generator.clone_state()
    state = generator.get_state()
    a = torch.rand(5, device="neuron", generator=generator).cpu()
    assert torch.rand(5, device="neuron", generator=twin).cpu().equal(a)
    generator.set_state(state)
    assert generator.initial_seed() == 3
    assert torch.rand(5, device="neuron", generator=generator).cpu().equal(a)
    offset = generator.get_offset()
    generator.set_offset(offset - 1)
    assert torch.rand(5, device="neuron", generator=generator).cpu().equal(a)


def test_generators_stay_on_their_device():
    with pytest.raises(RuntimeError, match=r"Expected a 'cpu' device type for generator but found 'neuron'"):
        torch.rand(3, generator=torch.Generator("neuron"))
    with pytest.raises(RuntimeError, match=r"Expected a 'neuron' device type for generator but found 'cpu'"):
        torch.empty(3, device="neuron").normal_(generator=torch.Generator())


# -- arguments ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "normal_ std": lambda d: torch.empty(3, device=d).normal_(0, -1),
    "normal_ dtype": lambda d: torch.empty(3, device=d, dtype=torch.int32).normal_(),
    "uniform_ order": lambda d: torch.empty(3, device=d).uniform_(2, 1),
    "uniform_ bounds": lambda d: torch.empty(3, device=d, dtype=torch.float16).uniform_(0, 1e6),
    "uniform_ dtype": lambda d: torch.empty(3, device=d, dtype=torch.bool).uniform_(),
    "exponential_ rate": lambda d: torch.empty(3, device=d).exponential_(0),
    "exponential_ dtype": lambda d: torch.empty(3, device=d, dtype=torch.int64).exponential_(),
    "log_normal_ std": lambda d: torch.empty(3, device=d).log_normal_(0, 0),
    "log_normal_ dtype": lambda d: torch.empty(3, device=d, dtype=torch.int64).log_normal_(),
    "cauchy_ sigma": lambda d: torch.empty(3, device=d).cauchy_(0, -1),
    "cauchy_ dtype": lambda d: torch.empty(3, device=d, dtype=torch.int64).cauchy_(),
    "geometric_ p": lambda d: torch.empty(3, device=d).geometric_(1),
    "geometric_ dtype": lambda d: torch.empty(3, device=d, dtype=torch.bool).geometric_(0.5),
    "bernoulli_ p": lambda d: torch.empty(3, device=d).bernoulli_(1.5),
    "bernoulli_ dtype of p": lambda d: torch.empty(3, device=d).bernoulli_(torch.tensor([1, 0, 1], device=d)),
    "bernoulli_ shape of p": lambda d: torch.empty(3, device=d).bernoulli_(torch.ones(2, device=d)),
    "random_ order": lambda d: torch.empty(3, device=d).random_(5, 5),
    "random_ bounds": lambda d: torch.empty(3, device=d, dtype=torch.uint8).random_(0, 300),
    "random_ dtype": lambda d: torch.empty(3, device=d, dtype=torch.complex64).random_(),
    "overlap": lambda d: torch.empty(1, device=d).expand(3).normal_(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_torch_refuses(name):
    with pytest.raises((RuntimeError, NotImplementedError)) as cpu:
        REFUSED[name]("cpu")
    with pytest.raises(type(cpu.value)) as ours:
        REFUSED[name]("neuron")
    assert str(ours.value).split("\n")[0] == str(cpu.value).split("\n")[0]


def test_nothing_to_fill(mode):
    for shape in ((0,), (3, 0, 2)):
        x = torch.empty(shape, device="neuron")
        for fill in ("normal_", "uniform_", "exponential_", "bernoulli_", "random_", "cauchy_", "log_normal_"):
            assert getattr(x, fill)().shape == shape
        assert torch.bernoulli(x).shape == shape and F.dropout(x, 0.5).shape == shape
    assert torch.randn((), device="neuron").isfinite().item()


def test_dtypes_without_kernels():
    x = torch.randn(N // 2, dtype=torch.complex64, device="neuron").cpu()
    assert abs(x.real.var() - 0.5) < 0.01 and abs(x.imag.var() - 0.5) < 0.01
    x = torch.zeros(1000, dtype=torch.uint16, device="neuron").random_(5, 9).cpu().long()
    assert set(x.tolist()) == {5, 6, 7, 8}
