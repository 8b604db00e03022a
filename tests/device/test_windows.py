"""Windows of loops that never read a value: cut at the same places each round, whatever the loop's length."""

import random

import pytest
import torch
from device_harness import counted

import adaptive_eager as ae
from adaptive_eager import backend, params

OPS = (
    torch.add,
    torch.mul,
    torch.sub,
    torch.maximum,
    lambda a, b: torch.tanh(a),
    lambda a, b: torch.sigmoid(b),
    lambda a, b: torch.relu(a),
    lambda a, b: a * 0.5,
)


def mixed(period):
    """Random ops on recent values."""
    draw = random.Random(period)
    steps = [(draw.choice(OPS), draw.randrange(4)) for _ in range(period)]

    def body(values):
        for op, at in steps:
            values.append(op(values[-1], values[at % len(values)]))
            del values[:-4]

    return body


def alike(period):
    """One op over and over, but for one."""

    def body(values):
        for _ in range(period - 1):
            values[0] = values[0] + values[1]
        values[0] = values[0] * values[1]

    return body


def nested(period):
    """A short loop inside a longer one."""
    inner = period * 4 // 5 // 3

    def body(values):
        x = values[0]
        for _ in range(inner):
            x = torch.tanh(x + values[1]) * values[1]
        for i in range(period - 3 * inner):
            x = (torch.relu, torch.neg, torch.sigmoid, torch.abs)[(i * i + i // 3) % 4](x)
        values[0] = x

    return body


def cut_off(period):
    """A short loop whose last turn the end of a longer one cuts off: no op is new there, only what it follows."""

    def body(values):
        x = values[0]
        for k in range(period):
            m = (k * k + 3 * k) % 11
            x = x * 1.0001 if m < 3 else x + 0.5 if m < 5 else x.sin() if m < 8 else x.abs() if m < 9 else x - x.mean()
        values[0] = x

    return body


def in_place(period):
    """Nothing but writes: no new memory is pending, however large the tensors."""

    def body(values):
        for i in range(period):
            if i % 3:
                values[i % 2].add_(values[1 - i % 2], alpha=0.25)
            else:
                values[i % 2].mul_(0.5)

    return body


def kept(period):
    """Every seventh value outlives its window."""
    inner = mixed(period)
    keep = []

    def body(values):
        keep.clear()
        inner(values)
        for _ in range(period // 7):
            keep.append(values[-1] + values[0])

    return body


def consumed(period):
    """Values of the round before are replaced: until the window runs, only it holds them."""
    draw = random.Random(period)
    ops = [draw.choice(OPS) for _ in range(period)]
    state = []

    def body(values):
        if not state:
            state.extend(values[0] + k for k in range(period))
        for k, op in enumerate(ops):
            state[k] = op(state[k], values[0])

    return body


@pytest.fixture
def limits():
    """limits(name=value): the recorder's own parameters, for one test. No plan is left of earlier tests."""
    backend._C.flush()
    backend._C.clear_plans()

    def change(**values):
        for name, value in values.items():
            backend._C.set_param(name, value)

    yield change
    ae.flush()
    change(max_ops=params.get("max_ops"), min_ops=params.get("min_ops"), max_bytes=params.get("max_bytes"))


def new_plans(body, period, rounds, size=16):
    """Plans made in each round. A round is one turn of the loop, or as many as fill a window."""
    values = [torch.randn(size, device="neuron") for _ in range(2)]
    made = []
    for _ in range(rounds):
        before = counted("plans_new")
        for _ in range(-(-params.get("max_ops") // period)):
            body(values)
        made.append(counted("plans_new") - before)
    return made


PERIODS = (7, 64, 133, 257, 1000)


@pytest.mark.parametrize("kind", [mixed, alike, nested, cut_off, in_place, kept])
@pytest.mark.parametrize("period", PERIODS)
def test_loops_settle_on_few_windows(kind, period, limits):
    made = new_plans(kind(period), period, 12)
    assert 0 < sum(made) <= max(4, period // 32)
    assert sum(made[6:]) == 0, made


@pytest.mark.parametrize("period", PERIODS[1:])
def test_windows_that_are_full_by_bytes_settle_too(period, limits):
    """Sixteen old values fill a window, so its places to cut are about sixteen."""
    limits(max_bytes=16 * 4096)
    before = ae.stats()["flush_causes"].get("max_bytes", 0)
    made = new_plans(consumed(period), period, 8, size=1024)
    assert 0 < sum(made) <= max(6, period // 8)
    assert sum(made[4:]) == 0, made
    assert ae.stats()["flush_causes"]["max_bytes"] > before


@pytest.mark.parametrize("kind", [mixed, alike, nested])
def test_what_the_program_holds_or_never_needed_fills_no_window(kind, limits):
    limits(max_bytes=16 * 4096)
    before = ae.stats()["flush_causes"].get("max_bytes", 0)
    new_plans(kind(133), 133, 4, size=1024)
    assert ae.stats()["flush_causes"].get("max_bytes", 0) == before


def test_what_is_put_together_and_used_up_fills_no_window(limits):
    """The parts of a concatenation, a pad or a roll are no memory that has to be kept."""
    limits(max_bytes=16 * 4096)
    before = ae.stats()["flush_causes"].get("max_bytes", 0)
    x = torch.randn(64, 128, device="neuron")
    expected = None
    for _ in range(3):
        y = x
        for _ in range(12):
            halves = torch.cat((-y[:, 64:], y[:, :64]), 1)
            y = torch.tanh(halves.roll(3, 0) + torch.nn.functional.pad(y[1:-1], (0, 0, 1, 1)))
        value = y.cpu()
        assert expected is None or torch.equal(value, expected)
        expected = value
    assert ae.stats()["flush_causes"].get("max_bytes", 0) == before


def test_writes_need_no_memory(limits):
    """What is pending counts once: a tensor written a thousand times is no thousand tensors."""
    limits(max_bytes=64 * 4096)
    before = ae.stats()["flush_causes"].get("max_bytes", 0)
    new_plans(in_place(133), 133, 4, size=4096)
    assert ae.stats()["flush_causes"].get("max_bytes", 0) == before


@pytest.mark.parametrize(("max_ops", "min_ops"), [(1, 32), (2, 1), (40, 32), (32, 40)])
def test_any_limits(max_ops, min_ops, limits):
    limits(max_ops=max_ops, min_ops=min_ops)
    x = y = torch.ones(5)
    x = x.to("neuron")
    for i in range(100):
        x, y = torch.sin(x) + i, torch.sin(y) + i
    torch.testing.assert_close(x.cpu(), y)
