"""The device's random numbers: torch's own generator, so that a seed gives the numbers it gives on the CPU."""

import pytest
import torch
import torch.nn.functional as F

DRAWS = {
    "rand": lambda d, g: torch.rand(7, device=d, generator=g),
    "randn": lambda d, g: torch.randn(33, device=d, generator=g),
    "randn_short": lambda d, g: torch.randn(5, device=d, generator=g),
    "randint": lambda d, g: torch.randint(3, 90, (11,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(12, device=d, generator=g),
    "uniform_": lambda d, g: torch.empty(4, 8, device=d).t().uniform_(-1, 2, generator=g),
    "normal_": lambda d, g: torch.empty(20, device=d).normal_(1, 3, generator=g),
    "normal": lambda d, g: torch.normal(torch.zeros(6, device=d), torch.ones(6, device=d), generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((9,), 0.3, device=d), generator=g),
    "bernoulli_": lambda d, g: torch.empty(9, device=d).bernoulli_(0.6, generator=g),
    "exponential_": lambda d, g: torch.empty(9, device=d).exponential_(generator=g),
    "geometric_": lambda d, g: torch.empty(9, device=d).geometric_(0.3, generator=g),
    "log_normal_": lambda d, g: torch.empty(9, device=d).log_normal_(generator=g),
    "cauchy_": lambda d, g: torch.empty(9, device=d).cauchy_(generator=g),
    "random_": lambda d, g: torch.empty(9, device=d).random_(generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.arange(1.0, 9, device=d), 5, generator=g),
    "poisson": lambda d, g: torch.poisson(torch.full((9,), 4.0, device=d), generator=g),
    "bfloat16": lambda d, g: torch.randn(20, device=d, dtype=torch.bfloat16, generator=g),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*runs on the host")


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_gives_the_numbers_of_the_cpu(name, mode):
    """And what is drawn next is right too: each draw takes as much from the stream as on the CPU."""
    results = {}
    for device in ("cpu", "neuron"):
        torch.manual_seed(11)
        results[device] = [t.cpu() for t in (DRAWS[name](device, None), torch.rand(3, device=device))]
    for a, b in zip(results["neuron"], results["cpu"], strict=True):
        assert a.equal(b)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_leave_the_generator_of_the_cpu_alone(name):
    state = torch.get_rng_state()
    DRAWS[name]("neuron", None).cpu()
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_of_ones_own(name):
    generator = torch.Generator("neuron").manual_seed(5)
    assert generator.device.type == "neuron" and generator.initial_seed() == 5
    default = torch.neuron.get_rng_state()
    first = DRAWS[name]("neuron", generator).cpu()
    second = DRAWS[name]("neuron", generator).cpu()
    assert not first.equal(second)
    assert first.equal(DRAWS[name]("neuron", generator.manual_seed(5)).cpu())
    assert torch.neuron.get_rng_state().equal(default), "the default generator is not touched"


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32, torch.float64, torch.bfloat16])
def test_bernoulli_is_that_of_the_cpu_at_every_place_of_the_stream(dtype):
    """Drawn a block of numbers at a time: whatever was drawn before, and the state afterwards is the same."""
    generators = {device: torch.Generator(device).manual_seed(17) for device in ("cpu", "neuron")}
    sizes = (0, 1, 311, 312, 313, 5, 2000, 623, 624, 1, 1248)
    for k, size in enumerate(sizes):
        results = {}
        for device, generator in generators.items():
            chance = (0.0, 1.0, 0.1, 0.5, 0.9)[k % 5]
            flat = torch.empty(size, device=device, dtype=dtype).bernoulli_(chance, generator=generator)
            turned = torch.empty(7, 3, device=device, dtype=dtype).t().bernoulli_(0.3, generator=generator)
            spread = torch.zeros(9, 4, device=device, dtype=dtype)
            spread[:, ::2].bernoulli_(0.6, generator=generator)
            single = torch.rand(k % 3, device=device, generator=generator)
            results[device] = [t.cpu() for t in (flat, turned, spread, single)]
        for ours, cpu in zip(results["neuron"], results["cpu"], strict=True):
            assert ours.equal(cpu) and ours.stride() == cpu.stride()
    after = [torch.randint(1 << 30, (700,), device=d, generator=g).cpu() for d, g in generators.items()]
    assert after[0].equal(after[1])


def test_draws_are_in_the_order_of_the_program(mode):
    """Draws that are pending together, and those of host ops between, keep their order; one that nobody uses too."""

    def draw(device):
        torch.manual_seed(3)
        a = torch.rand(5, device=device)
        torch.randn(20, device=device)
        c = torch.randint(0, 9, (4,), device=device)
        e = F.dropout(torch.ones(50, device=device))
        p = torch.randperm(10, device=device)
        f = torch.bernoulli(torch.full((9,), 0.5, device=device))
        return [t.cpu() for t in (torch.rand(2, device=device), f, p, e, c, a)]

    expected = draw("cpu")
    for _ in range(4):
        for a, b in zip(draw("neuron"), expected, strict=True):
            assert a.equal(b)


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


def test_seeding_takes_effect_at_the_call():
    """What was recorded before draws from the old stream, also when it runs later."""
    torch.manual_seed(1)
    first = torch.rand(4, device="neuron")
    torch.neuron.manual_seed(2)
    second = torch.rand(4, device="neuron")
    torch.manual_seed(1)
    assert torch.rand(4).equal(first.cpu())
    torch.manual_seed(2)
    assert torch.rand(4).equal(second.cpu())


def test_state_is_saved_and_restored():
    torch.manual_seed(4)
    pending = torch.rand(3, device="neuron")
    state = torch.neuron.get_rng_state()
    first = torch.randn(6, device="neuron").cpu()
    torch.neuron.set_rng_state(state)
    assert torch.randn(6, device="neuron").cpu().equal(first)
    states = torch.neuron.get_rng_state_all()
    torch.neuron.set_rng_state_all(states)
    assert len(states) == torch.neuron.device_count() and pending.shape == (3,)


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
    assert torch.rand(5, device="neuron", generator=generator).cpu().equal(a)


def test_a_generator_of_the_device_is_not_one_of_the_cpu():
    with pytest.raises(RuntimeError, match=r"Expected a 'cpu' device type for generator but found 'neuron'"):
        torch.rand(3, generator=torch.Generator("neuron"))


def test_dropout(mode):
    x = torch.ones(20_000, device="neuron")
    y = F.dropout(x, 0.25)
    kept = (y != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.02
    assert y.unique().tolist() == [0, pytest.approx(1 / 0.75)]
    assert F.dropout(x, 0.25, training=False) is x or F.dropout(x, 0.25, training=False).equal(x)
    assert F.dropout(x, 1.0).sum().item() == 0


def test_the_mask_of_backward_is_that_of_forward(mode):
    x = torch.ones(500, device="neuron", requires_grad=True)
    y = F.dropout(x, 0.5)
    y.sum().backward()
    assert x.grad.cpu().equal(y.detach().cpu())


def test_draws_do_not_repeat_when_the_window_is_hot():
    seen = [torch.rand(4, device="neuron").cpu() for _ in range(6)]
    assert all(not a.equal(b) for i, a in enumerate(seen) for b in seen[:i])
