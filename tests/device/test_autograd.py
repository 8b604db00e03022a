"""Autograd on the device: first and second derivatives against finite differences, hooks, versions, checkpoints."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint


def leaf(*sizes, positive=False):
    x = torch.randn(*sizes, dtype=torch.float64)
    return (x.abs() + 0.5 if positive else x).to("neuron").requires_grad_()


def module(make):
    """The module as a function of its input and its parameters."""

    def call(x, *parameters):
        names = [name for name, _ in m.named_parameters()]
        return torch.func.functional_call(m, dict(zip(names, parameters, strict=True)), (x,))

    torch.manual_seed(3)
    m = make().double().to("neuron")
    return call, [p.detach().clone().requires_grad_() for p in m.parameters()]


FUNCTIONS = {
    "add_broadcast": (lambda a, b: a + 2 * b, (3, 4), (4,)),
    "sub_scalar": (lambda a: 3 - a, (3, 4)),
    "mul": (lambda a, b: a * b, (3, 1), (1, 4)),
    "div": (lambda a, b: a / (b * b + 1), (3, 4), (3, 4)),
    "pow": (lambda a: a.pow(3), (3, 4)),
    "exp_log": (lambda a: (a.exp() + 1).log(), (3, 4)),
    "sqrt_rsqrt": (lambda a: (a * a + 1).sqrt() * (a * a + 2).rsqrt(), (3, 4)),
    "sin_cos_tan": (lambda a: a.sin() * a.cos() + a.tanh(), (3, 4)),
    "sigmoid_softplus": (lambda a: a.sigmoid() * F.softplus(a), (3, 4)),
    "gelu": (lambda a: F.gelu(a), (3, 4)),
    "gelu_tanh": (lambda a: F.gelu(a, approximate="tanh"), (3, 4)),
    "silu_mish": (lambda a: F.silu(a) + F.mish(a), (3, 4)),
    "elu_leaky": (lambda a: F.elu(a) + F.leaky_relu(a, 0.2), (3, 4)),
    "erf_lgamma": (lambda a: a.erf() + (a * a + 1).lgamma(), (3, 4)),
    "atan2_hypot": (lambda a, b: torch.atan2(a, b) + torch.hypot(a, b), (3, 4), (3, 4)),
    "where_clamp": (lambda a, b: torch.where(a > 0, a * b, b).clamp(-2, 2), (3, 4), (3, 4)),
    "lerp_addcmul": (lambda a, b: torch.lerp(a, b, 0.3) + torch.addcmul(a, a, b, value=0.5), (3, 4), (3, 4)),
    "maximum": (lambda a, b: torch.maximum(a, b), (3, 4), (3, 4)),
    "masked_fill": (lambda a: a.masked_fill(a > 0.5, 0.0) * 2, (3, 4)),
    "sum_mean": (lambda a: a.sum(0) * a.mean(), (3, 4)),
    "prod": (lambda a: a.prod(1), (3, 4)),
    "amax_max": (lambda a: a.amax(1) + a.max(1)[0], (3, 4)),
    "var_std": (lambda a: a.var(1) + a.std(0).sum(), (3, 4)),
    "norm": (lambda a: torch.linalg.vector_norm(a, 3, 1) + a.norm(), (3, 4)),
    "logsumexp": (lambda a: a.logsumexp(1), (3, 4)),
    "softmax": (lambda a: a.softmax(1) * a.log_softmax(0), (3, 4)),
    "cumsum_sort": (lambda a: a.cumsum(1) + a.sort(1)[0], (3, 4)),
    "matmul": (lambda a, b: a @ b, (3, 4), (4, 2)),
    "bmm": (lambda a, b: torch.bmm(a, b), (2, 3, 4), (2, 4, 2)),
    "views": (lambda a: a.t()[1:].reshape(-1)[::2].view(-1, 1).expand(-1, 3) * 2, (3, 4)),
    "slices_written": (
        lambda a, b: torch.zeros_like(a).index_put((torch.tensor([0, 2]).to(a.device),), b),
        (3, 4),
        (2, 4),
    ),
    "cat_stack": (lambda a, b: torch.cat([a, b * 2]).sum(1) + torch.stack([a, b]).sum((0, 1)).sum(), (3, 4), (3, 4)),
    "gather_index": (
        lambda a: a.gather(1, torch.tensor([[0, 1], [3, 3], [2, 0]]).to(a.device)) + a[[0, 0, 2], 1:3],
        (3, 4),
    ),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (1, 2, 3, 3), (2, 2, 2, 2)),
    "pool": (lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), (1, 2, 4, 4)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 1, 3, 3)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[(1, 2, 3, 4)] * 3),
    "losses": (lambda a, b: F.mse_loss(a, b) + F.smooth_l1_loss(a, b) + F.huber_loss(a, b), (3, 4), (3, 4)),
    "cross_entropy": (lambda a: F.cross_entropy(a, torch.tensor([0, 3, 1]).to(a.device)), (3, 4)),
    "in_place": (lambda a: (a * 2).mul_(a).add_(1).tanh_(), (3, 4)),
}

MODULES = {
    "linear_relu_linear": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), (3, 4)),
    "layer_norm": (lambda: nn.LayerNorm(4), (3, 4)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "batch_norm": (lambda: nn.BatchNorm1d(4, track_running_stats=False), (5, 4)),
    "rms_norm": (lambda: nn.RMSNorm(4), (3, 4)),
    "lstm": (lambda: First(nn.LSTM(3, 2, batch_first=True)), (2, 3, 3)),
    "gru": (lambda: First(nn.GRU(3, 2, batch_first=True)), (2, 3, 3)),
}


class First(nn.Module):
    """The first result of a module that returns several."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck(name):
    function, *sizes = FUNCTIONS[name]
    torch.manual_seed(7)
    assert gradcheck(function, [leaf(*s) for s in sizes])


@pytest.mark.filterwarnings("ignore:.*runs on the host")
@pytest.mark.parametrize("name", MODULES)
def test_gradcheck_of_module(name):
    make, sizes = MODULES[name]
    function, parameters = module(make)
    torch.manual_seed(7)
    assert gradcheck(function, [leaf(*sizes), *parameters])


DOUBLE = [
    "mul",
    "div",
    "pow",
    "sin_cos_tan",
    "sigmoid_softplus",
    "gelu",
    "silu_mish",
    "var_std",
    "softmax",
    "matmul",
    "in_place",
]


@pytest.mark.parametrize("name", DOUBLE)
def test_double_backward(name):
    function, *sizes = FUNCTIONS[name]
    torch.manual_seed(7)
    assert gradgradcheck(function, [leaf(*s) for s in sizes])


def test_gradient_penalty(mode):
    """A second backward through recorded first gradients, in every mode."""

    def penalty(device):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        x = torch.randn(6, 4).to(device).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (gradient.norm(dim=1) - 1).square().mean().backward()
        return [p.grad.cpu() for p in model.parameters() if p.grad is not None]

    for a, b in zip(penalty("neuron"), penalty("cpu"), strict=True):
        torch.testing.assert_close(a, b)


def test_hooks():
    x = torch.ones(3, device="neuron", requires_grad=True)
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()) or g * 10)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    (y * 3).sum().backward()
    assert seen == [[3, 3, 3], [60, 60, 60]]


def test_module_hooks():
    layer = nn.Linear(2, 2).to("neuron")
    seen = []
    layer.register_forward_hook(lambda m, args, out: out * 0 + 1)
    layer.register_full_backward_hook(lambda m, grad_in, grad_out: seen.append(grad_out[0].tolist()))
    out = layer(torch.ones(1, 2, device="neuron", requires_grad=True))
    out.sum().backward()
    assert out.tolist() == [[1, 1]] and seen == [[[1, 1]]]


def test_in_place_change_of_a_saved_value_is_an_error(mode):
    x = torch.ones(3, device="neuron", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_version_counters():
    x = torch.zeros(4, device="neuron")
    view = x[1:]
    versions = [x._version]
    for change in (lambda: x.add_(1), lambda: view.mul_(2), lambda: torch.add(x, 1, out=x), lambda: x.detach().zero_()):
        change()
        versions.append(x._version)
    assert versions == sorted(set(versions)), "each change counts"
    assert view._version == x._version


def test_in_place_on_a_leaf_is_an_error():
    x = torch.ones(3, device="neuron", requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    with torch.no_grad():
        x.add_(1)
    assert x.tolist() == [2, 2, 2]


def test_views_that_require_grad():
    x = torch.zeros(2, 3, device="neuron", requires_grad=True)
    y = x * 1
    y[0, 1:] = 5
    y.t()[2].mul_(3)
    y.sum().backward()
    assert x.grad.tolist() == [[1, 0, 0], [1, 1, 3]]


def test_gradients_accumulate():
    x = torch.ones(3, device="neuron", requires_grad=True)
    for _ in range(3):
        (x * 2).sum().backward()
    assert x.grad.tolist() == [6, 6, 6]
    x.grad.zero_()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_retain_graph_and_freed_graph():
    x = torch.ones(3, device="neuron", requires_grad=True)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert x.grad.tolist() == [4, 4, 4]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant):
    """Recomputing the forward in backward gives the same gradients, dropout included: the random state is restored."""

    def run(recompute):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.5), nn.Linear(6, 2)).to("neuron")
        x = torch.ones(20, 6, device="neuron", requires_grad=True)
        y = checkpoint(model, x, use_reentrant=use_reentrant) if recompute else model(x)
        y.square().sum().backward()
        return [x.grad.cpu(), *(p.grad.cpu() for p in model.parameters())]

    for a, b in zip(run(True), run(False), strict=True):
        assert a.equal(b)


def test_custom_function():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x**2

    x = torch.tensor([1.0, 2.0], device="neuron", requires_grad=True)
    Cube.apply(x).sum().backward()
    assert x.grad.tolist() == [3, 12]


def test_gradient_of_sgn_is_zero():
    """torch answers with a tensor that has no memory; it is read as any."""
    x = torch.randn(3, 2, device="neuron", requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.sgn(x).sum(), x)
    assert gradient.cpu().equal(torch.zeros(3, 2))
    zeros = torch._efficientzerotensor((3, 2), device="neuron")
    assert (zeros + x).cpu().equal(x.detach().cpu())
    assert zeros.cpu().equal(torch.zeros(3, 2))


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
def test_anomaly_mode():
    x = torch.tensor([-1.0], device="neuron", requires_grad=True)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=r"SqrtBackward0.* returned nan"):
        x.sqrt().sum().backward()


def test_functional_transforms():
    x = torch.randn(3, 4, device="neuron")
    w = torch.randn(4, device="neuron")

    def f(w, x):
        return (x * w).tanh().sum()

    gradients = torch.func.vmap(torch.func.grad(f), (None, 0))(w, x)
    expected = torch.func.vmap(torch.func.grad(f), (None, 0))(w.cpu(), x.cpu())
    torch.testing.assert_close(gradients.cpu(), expected)


def test_forward_mode():
    x, t = torch.randn(3, device="neuron"), torch.ones(3, device="neuron")
    _, tangent = torch.func.jvp(lambda v: (v * v).sin(), (x,), (t,))
    torch.testing.assert_close(tangent.cpu(), (2 * x * (x * x).cos()).cpu())
