"""Code that makes ever new variants: it is planned ever less often, its results stay right, and the reason is named."""

import logging

import pytest
import torch
from device_harness import counted, output_of

import adaptive_eager as ae
from adaptive_eager import backend
from adaptive_eager.variants import Variants

ROUNDS = 140


@pytest.fixture
def planner(monkeypatch):
    """This process's planner, without variants or plans of earlier tests."""
    ae.flush()
    planner = backend.planner()
    backend._C.clear_plans()
    monkeypatch.setattr(planner, "variants", Variants())
    return planner


def argument(i, x):
    return (x.reshape([2] * 8) + 1).sum([k for k in range(8) if i >> k & 1] or [0], keepdim=True) * 2


def size_one(i, x):
    sizes = [1 + (i >> k & 1) for k in range(8)]
    return x[: torch.Size(sizes).numel()].reshape(sizes).mul(2).add(x[:1]).sum(0)


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64)


def dtype(i, x):
    return [torch.ones(4, dtype=DTYPES[i // 5**k % 5], device=x.device) + 1 for k in range(4)]


def kept(i, x):
    values = []
    for k in range(8):
        x = x * 0.5 + 1
        if i >> k & 1:
            values.append(x)
    return x.sum(), *values


def growing(i, x):
    return torch.cat([x + 1] * (i + 1)).mul(2)


STORMS = [
    (argument, "argument"),
    (size_one, "size 1"),
    (dtype, "dtype"),
    (kept, "which results are kept"),
    (growing, "number of tensors"),
]


@pytest.mark.parametrize(("storm", "kind"), STORMS, ids=[kind.replace(" ", "-") for _, kind in STORMS])
def test_storm(storm, kind, planner, caplog):
    """Each variant comes a few times, and never again. (Host ops run at their call the first time.)"""
    x = torch.arange(256.0)
    on_device = x.to("neuron")
    before = counted("plans_new")
    with caplog.at_level(logging.WARNING, "adaptive_eager"):
        for i in range(ROUNDS):
            for _ in range(3):
                results = storm(i, on_device)
                ae.flush()
            for a, b in zip(
                torch.utils._pytree.tree_leaves(results), torch.utils._pytree.tree_leaves(storm(i, x)), strict=True
            ):
                torch.testing.assert_close(a.cpu(), b)
                ae.flush()
    assert counted("plans_new") - before <= 16
    said = [text for text in planner.variants.warnings if kind in text]
    assert said and caplog.text.count("keep coming in new variants") == len(planner.variants.warnings)
    assert "test_storms.py:" in said[0]
    assert said[0] in ae.stats()["not_fused"]


def test_a_variant_that_keeps_coming_is_planned_in_the_end(planner):
    x = torch.ones(256, device="neuron")
    for i in range(12):
        for _ in range(3):
            y = argument(i, x)
            ae.flush()
    before = counted("plans_new")
    for _ in range(6):
        y = argument(255, x)
        ae.flush()
    assert counted("plans_new") == before + 1
    assert y.item() == 1024


def test_many_windows_of_the_same_ops_are_no_storm(planner, caplog):
    """A loop of thirty windows that look alike: all are planned within a few rounds, and nothing is said."""
    x = torch.arange(256.0, device="neuron")
    with caplog.at_level(logging.WARNING, "adaptive_eager"):
        for _ in range(18):
            for i in range(30):
                argument(i, x)
                ae.flush()
    before = counted("plans_hit")
    for i in range(30):
        argument(i, x)
        ae.flush()
    assert counted("plans_hit") == before + 30
    assert "variants" not in caplog.text


def test_memory_stays_flat_where_nothing_repeats():
    """Traces are kept up to a limit, those used last."""
    out = output_of(
        """
import torch, adaptive_eager as ae
from adaptive_eager import backend
x = torch.ones(8, device="neuron")
sizes = []
for i in range(1000):
    y = x
    for k in range(12):
        y = y + x if i >> k & 1 else y * x
    keep = y
    ae.flush()
    sizes.append(backend._C.plans(0))
    if i % 10 == 0:
        (x * 2 + 1).tanh().sum().item()  # comes back: stays
print(max(sizes) < 300, max(sizes[500:]) <= max(sizes[:500]), ae.stats()["plans_hit"] > 90)
""",
        timeout=120,
        ADAPTIVE_EAGER_TRACE_BYTES="256K",
    )
    assert out == "True True True"
