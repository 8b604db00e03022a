"""Row programs: their parts, computed by torch on the CPU, give what torch's own op gives."""

from __future__ import annotations

import pytest
import torch
from row_calls import batch_norm, group_norm, layer_norm, normalize_backward, softmax, softmax_backward, spread
from torch_parts import NAMES, Window
from traces import TraceBuilder

from adaptive_eager.expansion import expand
from adaptive_eager.row_programs import ROW_PROGRAMS

#: Ways a (6, 4, 5) tensor may lie in memory.
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "sliced": lambda x: torch.stack([x, -x], 3)[..., 0],
    "expanded": lambda x: x[:, :1].expand(6, 4, 5),
    "size one": lambda x: x[:1],
    "empty": lambda x: x[:0],
}


CASES = [
    *((layout, torch.float32) for layout in LAYOUTS),
    ("contiguous", torch.float64), ("contiguous", torch.float16), ("contiguous", torch.bfloat16),
    ("transposed", torch.bfloat16),
]  # fmt: skip


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{str(case[1])[6:]}")
def x(request):
    layout, dtype = request.param
    torch.manual_seed(1)
    return LAYOUTS[layout]((torch.randn(6, 4, 5) * 3 + 1).to(dtype))


def close(actual, expected):
    """Within the tolerances of the dtype; half types are computed in float32 and rounded once."""
    torch.testing.assert_close(actual, expected, equal_nan=True)


def x_name(x):
    return NAMES[x.dtype]


MOMENTS = ("var", "std", "var_mean", "std_mean")
SOFTMAXES = {"_softmax": torch.softmax, "_log_softmax": torch.log_softmax}


class TestSoftmax:
    @pytest.mark.parametrize("dim", [0, 1, 2])
    @pytest.mark.parametrize("op", SOFTMAXES)
    def test_forward_and_backward(self, x, op, dim):
        expected = SOFTMAXES[op](x.double(), dim).to(x.dtype)
        w = Window()
        y = softmax(w.t, w.input(x), dim, op)
        g = torch.randn_like(expected)
        grad = softmax_backward(w.t, w.input(g), w.input(expected), dim, op + "_backward_data")
        w.run()
        close(w.value(y), expected)
        backward = getattr(torch.ops.aten, op + "_backward_data")
        close(w.value(grad), backward(g.double(), expected.double(), dim, torch.float64).to(x.dtype))

    @pytest.mark.parametrize("op", SOFTMAXES)
    def test_a_number(self, op):
        w = Window()
        y = softmax(w.t, w.input(torch.tensor(3.0)), 0, op)
        w.run()
        close(w.value(y), SOFTMAXES[op](torch.tensor(3.0), 0))

    @pytest.mark.parametrize("op", SOFTMAXES)
    def test_special_values(self, op):
        inf, nan = float("inf"), float("nan")
        x = torch.tensor([[-inf, 0, 1], [-inf] * 3, [inf, 0, 1], [nan, 0, 1], [1e4, 0, -1e4], [-1e38, 1e38, 0]])
        w = Window()
        y = softmax(w.t, w.input(x), 1, op)
        w.run()
        close(w.value(y), SOFTMAXES[op](x, 1))

    def test_out_of_another_layout(self):
        x = torch.randn(4, 6)
        w = Window()
        out = w.input(torch.zeros(6, 4).t())
        softmax(w.t, w.input(x), 1, out=out)
        w.run()
        close(w.value(out), torch.softmax(x, 1))

    def test_in_place_of_its_input(self):
        x = torch.randn(4, 6)
        w = Window()
        own = w.input(x)
        softmax(w.t, own, 1, out=own)
        w.run()
        close(w.value(own), torch.softmax(x, 1))


def parameters(shape, dtype, which):
    """weight and bias, or None."""
    torch.manual_seed(2)
    return [torch.randn(shape).to(dtype) if named in which else None for named in ("weight", "bias")]


@pytest.mark.parametrize("which", ["", "weight", "bias", "weight bias"])
class TestForward:
    def check(self, w, results, expected):
        w.run()
        for result, value in zip(results, expected, strict=True):
            if result is not None:
                close(w.value(result), value.to(w.value(result).dtype).reshape(result.sizes))

    def parameters(self, x, shape, which):
        """Those of bfloat16 inputs are float32, as in mixed training."""
        return parameters(shape, torch.float32 if x.dtype == torch.bfloat16 else x.dtype, which)

    @pytest.mark.parametrize("n_dims", [1, 2])
    @pytest.mark.parametrize("statistics", [True, False])
    def test_layer_norm(self, x, which, n_dims, statistics):
        shape = x.shape[-n_dims:]
        weight, bias = self.parameters(x, shape, which)
        w = Window()
        results = layer_norm(w.t, w.input(x), n_dims, w.input(weight), w.input(bias), 1e-5, statistics)
        wide = [p if p is None else p.double() for p in (weight, bias)]
        expected = torch.native_layer_norm(x.double(), shape, *wide, 1e-5)
        assert w.t.nodes[0]["attrs"][-1] == (7 if statistics else 4)
        self.check(w, results, (expected[0].to(x.dtype), *expected[1:]))

    @pytest.mark.parametrize("groups", [1, 2, 4])
    def test_group_norm(self, x, which, groups):
        weight, bias = self.parameters(x, 4, which)
        w = Window()
        results = group_norm(w.t, w.input(x), groups, w.input(weight), w.input(bias))
        wide = [p if p is None else p.double() for p in (weight, bias)]
        n, c, inner = x.shape
        expected = torch.native_group_norm(x.double().contiguous(), *wide, n, c, inner, groups, 1e-5)
        self.check(w, results, (expected[0].to(x.dtype), *expected[1:]))

    @pytest.mark.parametrize("running", ["", "mean", "mean variance"])
    def test_batch_norm_training(self, x, which, running):
        if x.numel() == 0:
            return  # torch asks for more than one value a channel
        weight, bias = self.parameters(x, 4, which)
        w = Window()
        kept = [torch.randn(4).double() if name in running else None for name in ("mean", "variance")]
        given = [
            w.input(k if k is None else k.to(torch.float32 if x.dtype == torch.bfloat16 else x.dtype)) for k in kept
        ]
        before = [None if g is None else w.value(g).to(torch.float64, copy=True) for g in given]
        results = batch_norm(w.t, w.input(x), w.input(weight), w.input(bias), *given)
        wide = [p if p is None else p.double() for p in (weight, bias)]
        expected = torch.native_batch_norm(x.double(), *wide, None, None, True, 0.0, 1e-5)
        self.check(w, results, (expected[0].to(x.dtype), *expected[1:]))
        # Momentum 2 and a factor of 3 for the variance: see row_calls.
        variance = x.double().var((0, 2), unbiased=False)
        for value, old, batch in zip(given, before, (x.double().mean((0, 2)), 3 * variance), strict=True):
            if value is not None:
                close(w.value(value), (old + 2 * (batch - old)).to(w.value(value).dtype))

    def test_batch_norm_evaluation(self, x, which):
        weight, bias = self.parameters(x, 4, which)
        w = Window()
        kept = [torch.randn(4).to(x.dtype), torch.rand(4).to(x.dtype) + 0.5]
        given = [w.input(k) for k in kept]
        y = batch_norm(w.t, w.input(x), w.input(weight), w.input(bias), *given, training=False)[0]
        wide = [p if p is None else p.double() for p in (weight, bias, *kept)]
        expected = torch.native_batch_norm(x.double(), *wide, False, 0.0, 1e-5)[0]
        self.check(w, [y], [expected.to(x.dtype)])
        for value, old in zip(given, kept, strict=True):
            assert torch.equal(w.value(value), old)


@pytest.mark.parametrize(
    ("affine", "wanted"),
    [(True, w) for w in ((1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1))] + [(False, (1, 0, 0))],
)
class TestBackward:
    """Gradients by autograd in float64 are what is compared with."""

    def check(self, x, affine, wanted, op, forward, reduced, parameters, shape, constant=False):
        torch.manual_seed(3)
        weight = torch.randn(shape).to(x.dtype) if affine else None
        grad = torch.randn_like(x)
        leaves = [
            x.double().clone().requires_grad_(),
            *(torch.zeros(shape).double().requires_grad_() for _ in range(2)),
        ]
        with torch.no_grad():
            leaves[1].copy_(weight if affine else torch.ones(shape))
        expected = torch.autograd.grad(forward(*leaves), leaves, grad.double(), allow_unused=True)
        dims = [d for d in range(x.dim()) if reduced >> d & 1]
        mean = x.double().mean(dims, keepdim=True).detach()
        rstd = ((x.double() - mean).square().mean(dims, keepdim=True) + 1e-5).rsqrt().detach()
        w = Window()
        own = w.input(x)
        statistics = [w.input(s.to(torch.float32 if x.dtype != torch.float64 else x.dtype)) for s in (mean, rstd)]
        spread_weight = spread(w.input(weight), own.sizes, parameters)
        made = normalize_backward(
            w.t, op, w.input(grad), own, *statistics, spread_weight, reduced, parameters, constant, wanted
        )
        w.run()
        assert [m is not None for m in made] == [bool(k) for k in wanted]
        for result, value in zip(made, expected, strict=True):
            if result is not None:
                close(w.value(result), value.reshape(result.sizes).to(x.dtype))

    @pytest.mark.parametrize("n_dims", [1, 2])
    def test_layer_norm(self, x, affine, wanted, n_dims):
        shape = x.shape[-n_dims:]
        mask = 0b100 if n_dims == 1 else 0b110

        def forward(x, weight, bias):
            return torch.nn.functional.layer_norm(x, shape, weight, bias)

        self.check(x, affine, wanted, "native_layer_norm_backward", forward, mask, mask, shape)

    def test_batch_norm(self, x, affine, wanted):
        if x.numel() == 0:
            return  # torch asks for more than one value a channel

        def forward(x, weight, bias):
            return torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True)

        self.check(x, affine, wanted, "native_batch_norm_backward", forward, 0b101, 0b010, (4,))

    def test_batch_norm_of_constant_statistics(self, x, affine, wanted):
        if x.numel() == 0:
            return  # an empty channel has no statistics
        mean, variance = x.double().mean((0, 2)), x.double().var((0, 2), unbiased=False)

        def forward(x, weight, bias):
            return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, training=False)

        self.check(x, affine, wanted, "native_batch_norm_backward", forward, 0b101, 0b010, (4,), constant=True)


def nll_loss(sizes, reduction, weighted):
    """(loss, logits, target, weight or None, what each target counts, dim of the classes, number of the reduction);
    target 2 is ignored."""
    torch.manual_seed(4)
    classes, number = (0 if len(sizes) == 1 else 1), ("none", "mean", "sum").index(reduction)
    logits = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 4, sizes[:classes] + sizes[classes + 1 :])
    if target.dim():
        target.view(-1)[1] = 2
    weight = torch.rand(4, dtype=torch.float64) if weighted else None
    loss = torch.nn.functional.nll_loss(logits, target, weight, ignore_index=2, reduction=reduction)
    counted = (weight if weighted else torch.ones(4, dtype=torch.float64))[target] * (target != 2)
    return loss, logits, target, weight, counted, classes, number


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("sizes", [(4,), (6, 4), (2, 4, 3, 5)], ids=str)
def test_nll_loss(sizes, reduction, weighted):
    loss, logits, target, weight, counted, classes, number = nll_loss(sizes, reduction, weighted)
    logits, expected = logits.detach(), loss.detach()
    w = Window()
    index = target.unsqueeze(classes)
    result = index.shape if reduction == "none" else (1,) * len(sizes)
    made = [w.t.result(result, "f64"), w.t.result((1,) * len(sizes), "f64")]
    inputs = [logits.gather(classes, index), weight[index] if weighted else None, index]
    op = "nll_loss2d_forward" if len(sizes) == 4 else "nll_loss_forward"
    w.t.row(op, [w.input(x) for x in inputs], made, scalars=[2.0], attrs=[number])
    w.run()
    close(w.value(made[0]).reshape(expected.shape), expected)
    close(w.value(made[1]).reshape(()), counted.sum() if reduction != "none" else torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("sizes", [(4,), (6, 4), (2, 4, 3, 5)], ids=str)
def test_nll_loss_backward(sizes, reduction, weighted):
    loss, logits, target, weight, counted, classes, number = nll_loss(sizes, reduction, weighted)
    grad = torch.randn_like(loss)
    (expected,) = torch.autograd.grad(loss, logits, grad)
    w = Window()
    made = w.t.result(sizes, "f64")
    own = grad.unsqueeze(classes) if reduction == "none" else grad
    shape = [4 if d == classes else 1 for d in range(len(sizes))]
    inputs = [own, target.unsqueeze(classes), weight if weight is None else weight.view(shape), counted.sum()]
    op = "nll_loss2d_backward" if len(sizes) == 4 else "nll_loss_backward"
    w.t.row(op, [w.input(x) for x in inputs], [made], scalars=[2.0], attrs=[classes - len(sizes), number])
    w.run()
    close(w.value(made), expected)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dims", [(2,), (0,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("name", MOMENTS)
def test_moments(x, name, dims):
    expected = getattr(torch, name)(x.double(), dims, correction=1, keepdim=True)
    expected = [v.to(x.dtype) for v in (expected if isinstance(expected, tuple) else (expected,))]
    n = torch.Size(x.shape[d] for d in dims).numel()
    w = Window()
    made = [w.t.result(tuple(v.shape), x_name(x)) for v in expected]
    w.t.row(name, [w.input(x)], made, scalars=[max(0, n - 1)], attrs=[sum(1 << d for d in dims)])
    trace = w.run()
    assert {node.compute for node in trace.nodes} == {"f64"}
    for result, value in zip(made, expected, strict=True):
        close(w.value(result), value)


@pytest.mark.parametrize("dims", [(2,), (0, 2)])
def test_logsumexp(x, dims):
    expected = torch.logsumexp(x.double(), dims, keepdim=True).to(x.dtype)
    w = Window()
    made = w.t.result(tuple(expected.shape), x_name(x))
    w.t.row("logsumexp", [w.input(x)], [made], attrs=[sum(1 << d for d in dims)])
    w.run()
    close(w.value(made), expected)


def parts_of(op, inputs, results, **arguments):
    """(kind, op, compute, part) of each part."""
    t = TraceBuilder()
    t.row(op, [t.input("bf16", sizes) if sizes is not None else None for sizes in inputs],
          [t.result(sizes, "bf16") for sizes in results], **arguments)  # fmt: skip
    return [(node.kind, node.op, node.compute, node.part) for node in expand(t.build()).nodes]


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize(("op", "scalars"), [("mse_loss", 0), ("smooth_l1_loss", 1), ("huber_loss", 1)])
def test_losses(op, scalars, reduction):
    """A map, in float32, and what is made of all points; the gradient is a map."""
    x = (6, 4)
    each = ("map", op, "f32", 0)
    of_all = [("reduction", "mean" if reduction == 1 else "sum", "f32", 0)] if reduction else []
    result = (1, 1) if reduction else x
    numbers = [2.0] * scalars
    assert parts_of(op, [x, x], [result], scalars=numbers, attrs=[reduction]) == [each, *of_all]
    backward = parts_of(op + "_backward", [x, x, x], [x], scalars=[3.0, *numbers], attrs=[])
    assert backward == [("map", op + "_backward", "f32", 0)]


@pytest.mark.parametrize("weight", [None, (6, 4)])
def test_binary_cross_entropy(weight):
    x = (6, 4)
    parts = parts_of("binary_cross_entropy", [x, x, weight], [(1, 1)], attrs=[2])
    assert [op for _, op, _, _ in parts] == ["binary_cross_entropy", "sum"]
    parts = parts_of("binary_cross_entropy_backward", [(), x, x, weight], [x], scalars=[1.0])
    assert [op for _, op, _, _ in parts] == ["binary_cross_entropy_backward"]


@pytest.mark.parametrize(
    ("op", "n_inputs", "expected"),
    [
        ("glu", 2, ["glu"]),
        ("log_sigmoid_forward", 1, ["log_sigmoid"]),
        ("log_sigmoid_backward", 2, ["log_sigmoid_backward"]),
        ("glu_backward", 3, ["glu_backward_first", "glu_backward_second"]),
        ("_prelu_kernel_backward", 3, ["prelu_backward_input", "prelu_backward_weight"]),
    ],
)
def test_activations(op, n_inputs, expected):
    x = (6, 4)
    parts = parts_of(op, [x] * n_inputs, [x] * len(expected))
    assert [(op, compute) for _, op, compute, _ in parts] == [(op, "f32") for op in expected]
    assert [part for *_, part in parts] == [0, 1 if op == "glu_backward" else 0][: len(expected)]


def test_every_program_is_tested():
    losses = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")
    assert set(ROW_PROGRAMS) == {
        *SOFTMAXES, *(op + "_backward_data" for op in SOFTMAXES), "logsumexp", *MOMENTS,
        *(f"native_{name}_norm{end}" for name in ("layer", "group", "batch") for end in ("", "_backward")),
        *(op + end for op in losses for end in ("", "_backward")), "nll_loss_forward", "nll_loss2d_forward",
        "nll_loss_backward", "nll_loss2d_backward",
        "glu", "glu_backward", "log_sigmoid_forward", "log_sigmoid_backward", "_prelu_kernel_backward",
    }  # fmt: skip
