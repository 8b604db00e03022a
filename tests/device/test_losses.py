"""Losses and activation functions of several tensors, on the device: in every mode the same bits, and the CPU's values
and errors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from device_harness import check_program

import adaptive_eager as ae

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: Half types are computed in float32 and rounded once; CPU's kernels round midway.
TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5, torch.float64: 1e-9}
REDUCTIONS = ("none", "mean", "sum")


def unit(t):
    """Values between 0 and 1, none of them an end."""
    return torch.sigmoid(t)


#: name -> loss of an input, a target, a weight of their shape, and the reduction.
LOSSES = {
    "mse": lambda x, t, w, r: F.mse_loss(x, t, reduction=r),
    "l1": lambda x, t, w, r: F.l1_loss(x, t, reduction=r),
    "smooth l1": lambda x, t, w, r: F.smooth_l1_loss(x, t, reduction=r, beta=0.7),
    "smooth l1, beta 0": lambda x, t, w, r: F.smooth_l1_loss(x, t, reduction=r, beta=0.0),
    "huber": lambda x, t, w, r: F.huber_loss(x, t, reduction=r, delta=0.7),
    "bce": lambda x, t, w, r: F.binary_cross_entropy(unit(x), unit(t), reduction=r),
    "bce, weight": lambda x, t, w, r: F.binary_cross_entropy(unit(x), unit(t), weight=w, reduction=r),
    "bce with logits": lambda x, t, w, r: F.binary_cross_entropy_with_logits(x, unit(t), weight=w, reduction=r),
    "bce with logits, positive weight": lambda x, t, w, r: F.binary_cross_entropy_with_logits(
        x, unit(t), pos_weight=w, reduction=r
    ),
    "kl": lambda x, t, w, r: F.kl_div(torch.log_softmax(x, -1), torch.softmax(t, -1), reduction=r),
    "kl of logarithms": lambda x, t, w, r: F.kl_div(x, torch.log_softmax(t, -1), reduction=r, log_target=True),
    "soft margin": lambda x, t, w, r: F.soft_margin_loss(x, t.sign(), reduction=r),
    "hinge embedding": lambda x, t, w, r: F.hinge_embedding_loss(x, t.sign(), reduction=r),
    "cosine embedding": lambda x, t, w, r: F.cosine_embedding_loss(x, t, t[:, 0].sign(), reduction=r),
    "margin ranking": lambda x, t, w, r: F.margin_ranking_loss(x, w, t.sign(), margin=0.2, reduction=r),
    "triplet margin": lambda x, t, w, r: F.triplet_margin_loss(x, t, w, reduction=r),
    "poisson": lambda x, t, w, r: F.poisson_nll_loss(x, t.abs(), full=True, reduction=r),
    "gaussian": lambda x, t, w, r: F.gaussian_nll_loss(x, t, w, reduction=r),
    "multilabel soft margin": lambda x, t, w, r: F.multilabel_soft_margin_loss(x, (t > 0).to(x.dtype), reduction=r),
}  # fmt: skip
LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "sliced": lambda t: t[:, ::2],
    "expanded": lambda t: t[:1].expand(6, 8),
}


def operands(device, dtype, layout="contiguous"):
    x, t, w = (LAYOUTS[layout]((torch.randn(6, 8) * 1.5).to(dtype).to(device)) for _ in range(3))
    return x.detach().requires_grad_(), t, w.abs() + 0.1


def with_gradients(loss, *leaves):
    return [loss, *torch.autograd.grad((loss * 1.5).sum(), leaves)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, dtype):
    def program(device, k):
        x, t, w = operands(device, dtype)
        return [r for reduction in REDUCTIONS for r in with_gradients(LOSSES[name](x, t, w, reduction), x)]

    check_program(program, rounds=3, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "contiguous"])
@pytest.mark.parametrize("name", ["mse", "smooth l1", "huber", "bce, weight"])
def test_other_layouts(name, layout):
    def program(device, k):
        x, t, w = operands(device, torch.float32, layout)
        found = []
        for other in (t, t.contiguous()):
            for reduction in REDUCTIONS:
                found += with_gradients(LOSSES[name](x, other, w, reduction), x)
        return found

    check_program(program, rounds=3, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_broadcasting_and_empty_and_numbers():
    def program(device, k):
        row, column = torch.randn(1, 5, device="cpu").to(device), torch.randn(4, 1).to(device)
        found = [torch.ops.aten.mse_loss(row, column, r) for r in range(3)]
        found += [torch.ops.aten.huber_loss(row, column, r, 0.5) for r in range(3)]
        found += [torch.ops.aten.mse_loss(row[0, 0], column[0, 0], r) for r in range(3)]
        found += [torch.ops.aten.mse_loss(row[:0], row[:0], r) for r in range(3)]
        return [*found, torch.ops.aten.mse_loss(row, row.double() * 2, 1)]

    check_program(program, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_gradients_of_what_was_broadcast(loss):
    def program(device, k):
        column, t = (torch.randn(4, n).to(device).requires_grad_() for n in (1, 5))
        found = []
        for reduction in range(3):
            for pair in ((column, t), (t, column)):
                found += with_gradients(getattr(torch.ops.aten, loss)(*pair, reduction), column, t)
        return found

    check_program(program, rounds=3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (0, 0, 4), (2, 3, 0)], ids=str)
def test_nll_loss_of_nothing(sizes):
    def program(device, k):
        x = torch.randn(sizes).to(device).requires_grad_()
        target = torch.zeros(sizes[:1] + sizes[2:], dtype=torch.int64, device=device)
        found = []
        for reduction in REDUCTIONS:
            found += with_gradients(F.nll_loss(x, target, reduction=reduction), x)
        return found

    check_program(program)


def test_compiled_and_fused():
    """The sigmoid, the loss and the mean are one kernel, and no host op takes part."""
    x, t = torch.randn(64, 32, device="neuron"), torch.rand(64, 32, device="neuron")

    def run():
        F.binary_cross_entropy(torch.sigmoid(x * 2), t).cpu()
        F.mse_loss(torch.tanh(x), t).cpu()

    for _ in range(3):
        run()
    before = ae.stats()
    run()
    after = ae.stats()
    assert after["launches"] - before["launches"] == 2
    assert after["host_ops"] == before["host_ops"]


#: name -> sizes of the scores, of which the classes are the second (or only) dim.
SCORES = {"one": (5,), "rows": (7, 5), "sequences": (3, 5, 4), "images": (2, 5, 3, 4)}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", SCORES.values(), ids=SCORES)
def test_nll_loss(sizes, weighted, dtype):
    """With targets that are ignored, are all ignored, are bytes, and are none."""
    classes = 0 if len(sizes) == 1 else 1

    def program(device, k):
        x = torch.log_softmax(torch.randn(sizes), classes).to(dtype).to(device).requires_grad_()
        target = torch.randint(0, 5, sizes[:classes] + sizes[classes + 1 :])
        ignored = torch.where(target == 1, -100, target)
        weight = (torch.rand(5) + 0.1).to(dtype).to(device) if weighted else None
        found = []
        for reduction in REDUCTIONS:
            for t, ignore in ((target, 3), (ignored, -100), (torch.full_like(target, 9), 9)):
                loss = F.nll_loss(x, t.to(device), weight, ignore_index=ignore, reduction=reduction)
                found += with_gradients(loss, x)
            if len(sizes) < 3:
                found.append(F.nll_loss(x, target.byte().to(device), weight, reduction=reduction))
            if classes:
                found.append(F.nll_loss(x[:0], target[:0].to(device), weight, reduction=reduction))
        return found

    check_program(program, rounds=3, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded"])
def test_nll_loss_of_other_layouts(layout):
    def program(device, k):
        x, _, _ = operands(device, torch.float32, layout)
        targets = torch.randint(0, x.size(1), (2, x.size(0))).to(device)
        strided = targets.t().contiguous().t()[1]
        weight = torch.rand(2 * x.size(1)).to(device)[::2]
        return [
            r
            for reduction in REDUCTIONS
            for r in with_gradients(F.cross_entropy(x, strided, weight, reduction=reduction, label_smoothing=0.1), x)
        ]

    check_program(program, rounds=3, rtol=1e-5, atol=1e-5)


def test_cross_entropy_is_compiled():
    """From the scores to the loss, and back: no host op takes part. It adds to the softmax one kernel that looks the
    scores up and sums them, one that divides, and one for the way back."""
    x = torch.randn(64, 32, device="neuron", requires_grad=True)
    target = torch.randint(0, 32, (64,)).to("neuron")

    def run():
        return torch.autograd.grad(F.cross_entropy(x * 2, target), x)[0].cpu()

    for _ in range(3):
        run()
    before = ae.stats()
    run()
    after = ae.stats()
    assert after["host_ops"] == before["host_ops"]
    assert after["launches"] - before["launches"] <= 8


@pytest.mark.parametrize("mode", ["adaptive", "per_op", "stepwise"])
def test_the_first_loss_of_a_process(mode):
    """What it is made of is inferred while it is recorded."""
    program = """
import torch, torch.nn.functional as F
x, target = torch.randn(7, 5), torch.randint(0, 5, (7,))
for reduction in ("none", "mean", "sum"):
    actual = F.nll_loss(x.to("neuron"), target.to("neuron"), reduction=reduction)
    torch.testing.assert_close(actual.cpu(), F.nll_loss(x, target, reduction=reduction))
"""
    environment = {**os.environ, "ADAPTIVE_EAGER_CACHE": "off", "ADAPTIVE_EAGER_MODE": mode}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)


def test_targets_that_are_no_classes():
    x = torch.randn(3, 4, device="neuron")
    for weight in (None, torch.ones(4, device="neuron")):
        for bad in (4, -1):
            target = torch.tensor([0, bad, 1]).to("neuron")
            for _ in range(3):
                with pytest.raises(IndexError, match=f"Target {bad} is out of bounds."):
                    F.nll_loss(x, target, weight).item()
    assert F.nll_loss(x, torch.tensor([0, 9, 1]).to("neuron"), ignore_index=9).isfinite()


def test_gradients_of_gradients_of_nll_loss():
    torch.manual_seed(5)
    x = torch.randn(4, 5, device="neuron", dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 3, 3, 1]).to("neuron")
    assert torch.autograd.gradcheck(lambda x: F.cross_entropy(x, target), (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: F.cross_entropy(x, target), (x,), fast_mode=True)


CHECKED = ("mse", "smooth l1", "huber", "bce, weight", "bce with logits", "kl", "multilabel soft margin")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", CHECKED)
def test_gradcheck(name, reduction):
    torch.manual_seed(3)
    x, t, w = operands("neuron", torch.float64)
    assert torch.autograd.gradcheck(lambda x: LOSSES[name](x, t, w, reduction), (x,), fast_mode=True)


def test_an_input_outside_of_the_unit_interval():
    x = torch.tensor([0.5, 1.5], device="neuron")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="all elements of input should be between 0 and 1"):
            F.binary_cross_entropy(x, x).item()
    assert F.binary_cross_entropy(x[:1], x[:1]).item() == pytest.approx(0.6931, abs=1e-3)


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("huber_loss does not support non-positive values", lambda x: F.huber_loss(x, x, delta=0.0)),
        ("negative values for beta", lambda x: F.smooth_l1_loss(x, x, beta=-1.0)),
        ("must match the size", lambda x: torch.ops.aten.mse_loss(x, torch.ones(3, device=x.device), 1)),
        ("Halving dimension must be even", lambda x: F.glu(x[:, :3], 1)),
    ],
)
def test_errors(match, call):
    F.huber_loss(torch.ones(2, device="neuron"), torch.ones(2, device="neuron"))
    for device in ("cpu", "neuron"):
        with pytest.raises(RuntimeError, match=match):
            call(torch.ones(2, 4, device=device))


# -- activation functions ----------------------------------------------------------------------------------------------

ACTIVATIONS = {
    "glu": lambda x, w: F.glu(x, 1),
    "glu of rows": lambda x, w: F.glu(x, 0),
    "prelu": lambda x, w: F.prelu(x, w[0, :1]),
    "prelu of channels": lambda x, w: F.prelu(x, w[0]),
    "logsigmoid": lambda x, w: F.logsigmoid(x),
    "rrelu": lambda x, w: F.rrelu(x, 0.1, 0.3),
    "celu": lambda x, w: F.celu(x, 0.7),
    "selu": lambda x, w: F.selu(x),
    "tanhshrink": lambda x, w: F.tanhshrink(x),
    "softsign": lambda x, w: F.softsign(x),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, layout, dtype):
    def program(device, k):
        x, w, _ = operands(device, dtype, layout)
        w = w.detach().requires_grad_()
        y = ACTIVATIONS[name](x, w)
        leaves = [x, w] if name.startswith("prelu") else [x]
        return with_gradients(y, *leaves)

    check_program(program, rounds=3, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["glu", "glu of rows", "prelu", "prelu of channels", "logsigmoid"])
def test_activations_gradcheck_and_host_ops(name):
    torch.manual_seed(3)
    x, w, _ = operands("neuron", torch.float64)
    w = w.detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: ACTIVATIONS[name](x, w), (x, w), fast_mode=True)
    before = ae.stats()["host_ops"]
    ACTIVATIONS[name](x, w).sum().backward()
    x.grad.cpu()
    assert ae.stats()["host_ops"] == before


def test_both_halves_of_a_gradient_are_one_launch():
    x, g = torch.randn(16, 8, device="neuron"), torch.randn(16, 4, device="neuron")
    for _ in range(3):
        torch.ops.aten.glu_backward(g, x, 1).cpu()
    before = ae.stats()["launches"]
    torch.ops.aten.glu_backward(g, x, 1).cpu()
    assert ae.stats()["launches"] - before == 1


def test_rrelu_draws_a_slope_for_what_is_not_positive():
    x = torch.linspace(-4, 4, 1000, device="neuron").requires_grad_()
    torch.manual_seed(5)
    y = F.rrelu(x, 0.1, 0.3, training=True)
    (slope,) = torch.autograd.grad(y.sum(), x)
    x, y, slope = x.detach().cpu(), y.detach().cpu(), slope.cpu()
    torch.testing.assert_close(y, x * slope)
    assert torch.all(slope[x > 0] == 1)
    drawn = slope[x <= 0]
    assert drawn.min() >= 0.1 and drawn.max() <= 0.3 and drawn.std() > 0.04
    again = torch.linspace(-4, 4, 1000, device="neuron")
    torch.manual_seed(5)
    F.rrelu_(again, 0.1, 0.3, training=True)
    torch.testing.assert_close(again.cpu(), y, rtol=0, atol=0)


def test_channel_shuffle():
    def program(device, k):
        x = torch.randn(2, 6, 3, 4).to(device)
        last = x.to(memory_format=torch.channels_last)
        found = [F.channel_shuffle(x, 2), F.channel_shuffle(last, 3), F.channel_shuffle(x[0], 3)]
        assert found[1].stride() == last.stride()
        return found

    check_program(program, rtol=0, atol=0)


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss, F.kl_div])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_results_of_mixed_dtypes_have_the_dtype_of_the_cpu(loss, reduction):
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    for first in dtypes:
        for second in dtypes:
            a, b = torch.full((3,), 0.5, dtype=first), torch.full((3,), 0.25, dtype=second)
            try:
                expected = loss(a, b, reduction=reduction)
            except RuntimeError:
                with pytest.raises(RuntimeError):
                    loss(a.to("neuron"), b.to("neuron"), reduction=reduction).cpu()
                continue
            actual = loss(a.to("neuron"), b.to("neuron"), reduction=reduction).cpu()
            torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2)
