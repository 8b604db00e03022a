"""Ops over rows, on the device: softmax and the normalisations, in every mode the same bits, and the CPU's values."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from device_harness import assert_same_bits, check_program, on_host

import adaptive_eager as ae

INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
#: Half types are computed in float32 and rounded once; CPU's kernels round midway here and there.
TOLERANCE = {torch.float16: {"rtol": 2e-3, "atol": 2e-3}, torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2}}

SOFTMAXES = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
#: Ways an input lies in memory, of sizes (6, 4, 10) where not said otherwise.
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "expanded": lambda x: x[:, :1].expand(6, 4, 10),
    "expanded_rows": lambda x: x[0].expand(6, 4, 10),
    "sliced": lambda x: x[::2, 1:, ::3],
    "empty": lambda x: x[:, :0],
    "size_one": lambda x: x[:1, :, :1],
    "channels_last": lambda x: x.view(3, 2, 4, 10).to(memory_format=torch.channels_last),
}


def randn(device, *sizes, dtype=torch.float32, scale=1.0):
    """Random numbers that are the same on every device."""
    return (torch.randn(*sizes) * scale).to(dtype).to(device)


def gradients(results, inputs):
    """Gradients of a weighted sum of the results, so that no element's is like another's."""
    total = sum((r.float() * torch.linspace(-1, 1, max(r.numel(), 1), device=r.device)[: r.numel()].view(r.shape)).sum()
                for r in results)  # fmt: skip
    return torch.autograd.grad(total, inputs)


# -- softmax -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_softmax_over_each_dim(layout):
    def program(device, k):
        results = []
        for softmax in SOFTMAXES.values():
            x = LAYOUTS[layout](randn(device, 6, 4, 10, scale=3))
            for dim in range(-1, x.dim() - 1):
                leaf = x.detach().requires_grad_()
                y = softmax(leaf, dim)
                results += [y, *gradients([y], [leaf])]
        return results

    check_program(program)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_of_each_dtype(dtype):
    def program(device, k):
        x = randn(device, 5, 33, dtype=dtype, scale=3).requires_grad_()
        results = []
        for softmax in SOFTMAXES.values():
            y = softmax(x, 1)
            results += [y, *gradients([y], [x])]
        return results

    check_program(program, **TOLERANCE.get(dtype, {}))


def test_softmax_to_another_dtype():
    def program(device, k):
        results = []
        for softmax in SOFTMAXES.values():
            x = randn(device, 5, 33, dtype=torch.bfloat16, scale=3).requires_grad_()
            y = softmax(x, 1, dtype=torch.float32)
            results += [y, *gradients([y], [x])]
            results.append(softmax(x.detach().half(), 0, dtype=torch.float32))
            results.append(softmax(x.detach(), 0, dtype=torch.float64))
            results.append(softmax(x.detach().long(), 0, dtype=torch.float32))
        return results

    for result in check_program(program):
        assert result.dtype in (torch.float32, torch.float64, torch.bfloat16)


def test_softmax_of_numbers_and_special_values():
    values = [[-INF, 0, 1], [-INF] * 3, [INF, 0, 1], [NAN, 0, 1], [1e4, 0, -1e4], [-1e38, 1e38, 0], [-0.0, 0, 0]]

    def program(device, k):
        x, number = torch.tensor(values, device=device), torch.tensor(1.5, device=device)
        return [s(t, dim) for s in SOFTMAXES.values() for t, dim in ((x, 1), (x, 0), (number, 0), (number, -1))]

    check_program(program)


def test_softmax_out():
    def program(device, k):
        results = []
        for softmax in SOFTMAXES.values():
            x = randn(device, 6, 10)
            new, turned = torch.empty(0, device=device), torch.zeros(10, 6, device=device).t()
            part = torch.zeros(8, 12, device=device)
            softmax(x, 1, out=new)
            softmax(x, 0, out=turned)
            softmax(x, 1, out=part[1:7, 1:11])
            softmax(x, 1, out=x)
            results += [new, turned, part, x, x.sum(1)]
        return results

    check_program(program)


def test_softmax_errors_are_torchs():
    x = torch.randn(3, 4, device="neuron")
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.softmax(x, 2)
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        torch.softmax(x.long(), 1)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype float, but got double instead"):
        torch.softmax(x, 1, out=x.double())


def test_normalisation_errors_are_torchs_however_often_a_dtype_was_used():
    x, w = torch.randn(4, 6, 5, device="neuron"), torch.ones(6, device="neuron")
    for _ in range(3):
        for t in (F.layer_norm(x, (5,)), F.group_norm(x, 2, w, w), F.batch_norm(x, w * 0, w * 1, w, w)):
            t.cpu()
    mixed = "expect parameter to have scalar type of Float"
    with pytest.raises(RuntimeError, match=mixed):
        F.layer_norm(x, (5,), torch.ones(5, device="neuron").half())
    with pytest.raises(RuntimeError, match=mixed):
        F.group_norm(x, 2, w.double())
    with pytest.raises(RuntimeError, match=mixed):
        F.batch_norm(x, w.double(), w.double())
    with pytest.raises(ValueError, match="must either both be None or neither be None"):
        F.batch_norm(x, w * 1, None, training=True)
    with pytest.raises(RuntimeError, match="running_mean"):
        F.batch_norm(x, torch.ones(5, device="neuron"), torch.ones(5, device="neuron"))
    with pytest.raises(RuntimeError, match="normalized_shape"):
        F.layer_norm(x, (4,))
    with pytest.raises(RuntimeError, match="divisible by num_groups"):
        F.group_norm(x, 4)


# -- sizes and threads -------------------------------------------------------------------------------------------------

SIZES = {"one row": (1, 1_000_000), "few rows": (3, 500_000), "many short rows": (100_000, 3), "rows of one": (5000, 1)}


def rows_of_every_kind(x, w, b):
    n = x.shape[-1:]
    return (
        torch.softmax(x, 1), torch.log_softmax(x, 1), F.layer_norm(x, n, w, b), torch.softmax(x, 0),
        x - x.mean(1, keepdim=True), F.group_norm(x.view(x.size(0), 1, -1), 1),
    )  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_thread_counts_and_modes_give_the_same_bits(sizes):
    torch.manual_seed(5)
    host = torch.randn(*sizes), torch.randn(sizes[1]), torch.randn(sizes[1])
    x, w, b = (t.to("neuron") for t in host)
    before = torch.get_num_threads()
    found = {}
    try:
        for mode, threads in (("per_op", 1), ("adaptive", 1), ("adaptive", 2), ("stepwise", 2)):
            torch.set_num_threads(threads)
            with getattr(ae, mode)():
                for k in range(3 if mode == "adaptive" else 1):
                    found[mode, threads, k] = on_host(rows_of_every_kind(x, w, b))
    finally:
        torch.set_num_threads(before)
    first = found["per_op", 1, 0]
    for key, results in found.items():
        assert_same_bits(results, first, str(key))
    for ours, cpu in zip(first, rows_of_every_kind(*host), strict=True):
        torch.testing.assert_close(ours, cpu, rtol=1e-4, atol=1e-5)


# -- normalisations ----------------------------------------------------------------------------------------------------


def normalised(module, x, device, k, steps=3):
    """A few steps of a module with its gradients, then its evaluation."""
    torch.manual_seed(7)
    for p in module.parameters():
        torch.nn.init.normal_(p)
    module = module.to(device)
    results = []
    for _ in range(steps):
        leaf = x.detach().requires_grad_()
        module.zero_grad()
        y = module(leaf)
        grads = gradients([y], [leaf, *module.parameters()])
        results += [y, *grads, *(b.clone() for b in module.buffers())]
        x = x * 0.5 + 1
    module.eval()
    leaf = x.detach().requires_grad_()
    y = module(leaf)
    return [*results, y, *gradients([y], [leaf, *module.parameters()]), *module.buffers()]


MODULES = {
    "layer norm": (lambda: torch.nn.LayerNorm(10), (4, 6, 10)),
    "layer norm of two dims": (lambda: torch.nn.LayerNorm((6, 10)), (4, 6, 10)),
    "layer norm without parameters": (lambda: torch.nn.LayerNorm(10, elementwise_affine=False), (4, 6, 10)),
    "layer norm without bias": (lambda: torch.nn.LayerNorm(10, bias=False), (4, 6, 10)),
    "group norm": (lambda: torch.nn.GroupNorm(2, 6), (4, 6, 5, 3)),
    "group norm without parameters": (lambda: torch.nn.GroupNorm(3, 6, affine=False), (4, 6, 5)),
    "group norm of vectors": (lambda: torch.nn.GroupNorm(2, 6), (4, 6)),
    "batch norm of vectors": (lambda: torch.nn.BatchNorm1d(6), (8, 6)),
    "batch norm": (lambda: torch.nn.BatchNorm2d(6), (4, 6, 5, 3)),
    "batch norm of volumes": (lambda: torch.nn.BatchNorm3d(2), (2, 2, 3, 4, 2)),
    "batch norm, cumulative": (lambda: torch.nn.BatchNorm1d(6, momentum=None), (4, 6, 5)),
    "batch norm, nothing kept": (lambda: torch.nn.BatchNorm2d(6, track_running_stats=False), (4, 6, 5, 3)),
    "batch norm without parameters": (lambda: torch.nn.BatchNorm2d(6, affine=False), (4, 6, 5, 3)),
    "instance norm": (lambda: torch.nn.InstanceNorm2d(6), (4, 6, 5, 3)),
    "instance norm with all": (lambda: torch.nn.InstanceNorm2d(6, affine=True, track_running_stats=True), (4, 6, 5, 3)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    make, sizes = MODULES[name]
    check_program(
        lambda device, k: normalised(make(), randn(device, *sizes), device, k), rounds=3, rtol=2e-4, atol=2e-4
    )


@pytest.mark.parametrize("name", ["group norm", "batch norm", "instance norm"])
def test_channels_last(name):
    make, sizes = MODULES[name]

    def program(device, k):
        x = randn(device, *sizes).to(memory_format=torch.channels_last)
        return normalised(make(), x, device, k, steps=2)

    check_program(program, rounds=3, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["layer norm", "group norm", "batch norm"])
@pytest.mark.parametrize("layout", ["transposed", "expanded", "sliced"])
def test_inputs_of_other_layouts(name, layout):
    def program(device, k):
        x = randn(device, 6, 4, 10)
        x = {"transposed": x.transpose(0, 2), "expanded": x[:, :1].expand(6, 4, 10), "sliced": x[::2, :, ::3]}[layout]
        channels = x.size(1)
        module = {
            "layer norm": lambda: torch.nn.LayerNorm(x.size(2)),
            "group norm": lambda: torch.nn.GroupNorm(2, channels),
            "batch norm": lambda: torch.nn.BatchNorm1d(channels),
        }[name]()
        return normalised(module, x, device, k, steps=1)

    check_program(program, rounds=3, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["layer norm", "layer norm without parameters", "group norm", "batch norm"])
def test_half_inputs(name, dtype, mixed):
    """With parameters of their own dtype or, as in mixed training, of float32; against float64, since CPU's kernels
    round midway."""
    make, sizes = MODULES[name]

    def program(device, k, exact=False):
        module = make().to(torch.float32 if mixed else dtype).to(device)
        x = randn(device, *sizes, dtype=dtype)
        if exact:
            module, x = module.double(), x.double()
        x.requires_grad_()
        y = module(x)
        assert exact or y.dtype == dtype
        return [y, *gradients([y], [x, *module.parameters()]), *module.buffers()]

    found = check_program(program, rounds=3, cpu=False)
    torch.manual_seed(1234 + 2)  # the last round's
    for ours, exact in zip(found, on_host(program("cpu", 2, exact=True)), strict=True):
        torch.testing.assert_close(ours, exact.to(ours.dtype), **{k: 2 * v for k, v in TOLERANCE[dtype].items()})


def test_float64():
    def program(device, k):
        results = []
        for name in ("layer norm", "group norm", "batch norm"):
            make, sizes = MODULES[name]
            module = make().to(device, torch.float64)
            x = randn(device, *sizes, dtype=torch.float64).requires_grad_()
            y = module(x)
            results += [y, *gradients([y], [x, *module.parameters()]), *module.buffers()]
        return results

    check_program(program, rounds=3)


def test_statistics_that_the_ops_return():
    def program(device, k):
        x, w = randn(device, 4, 6, 10), randn(device, 6)
        running = [torch.zeros(6, device=device), torch.ones(6, device=device)]
        return [
            *torch.native_layer_norm(x, (10,), None, None, 1e-5),
            *torch.native_group_norm(x, w, None, 4, 6, 10, 3, 1e-5),
            *torch.native_batch_norm(x, w, None, *running, True, 0.2, 1e-5),
            *torch.native_batch_norm(x, None, w, *running, False, 0.2, 1e-5),
            *running,
        ]

    check_program(program)


def test_empty_inputs():
    def program(device, k):
        x = torch.randn(0, 4, 3, device=device)
        running = [torch.zeros(4, device=device), torch.ones(4, device=device)]
        norms = F.layer_norm(x, (3,)), F.group_norm(x, 2), F.batch_norm(x, *running)
        return [*norms, F.layer_norm(x.view(3, 0), (0,)), *running]

    check_program(program)


def test_dims_up_to_the_limit():
    """Groups are a dim more than the input has."""

    def program(device, k):
        x = randn(device, 2, 4, 1, 2, 1, 2, 1, 2).requires_grad_()
        results = [F.group_norm(x, 2), F.batch_norm(x, None, None, training=True), F.layer_norm(x, (2, 1, 2))]
        results.append(torch.softmax(x, 3))
        return [*results, *gradients(results, [x])]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nine dims run on the host, and are reported once
        check_program(program, rounds=3)
    assert any("native_group_norm" in op for op in ae.get_fallback_ops())


# -- running statistics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
def test_running_statistics_move_once_a_step(momentum):
    """A loop that is hot: its windows are cut where they will, and every step moves the statistics exactly once."""

    def program(device, k):
        module = torch.nn.BatchNorm1d(5, momentum=momentum).to(device)
        x = randn(device, 7, 5)
        kept = []
        for step in range(12):
            y = module(x)
            x = y * 0.5 + x
            if step % 3 == 2:
                kept += [module.running_mean.clone(), module.running_var.clone()]
        return [x, *kept, *module.buffers()]

    check_program(program)


def test_running_statistics_against_the_formula():
    torch.manual_seed(3)
    module = torch.nn.BatchNorm1d(4, momentum=0.25).to("neuron")
    mean, variance = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    for step in range(10):
        x = torch.randn(6, 4, 3) * (step + 1)
        module(x.to("neuron"))
        mean += 0.25 * (x.double().mean((0, 2)) - mean)
        variance += 0.25 * (x.double().var((0, 2)) - variance)
        if step % 2:
            torch.testing.assert_close(module.running_mean.cpu(), mean.float())
            torch.testing.assert_close(module.running_var.cpu(), variance.float())
    assert module.num_batches_tracked.item() == 10


def test_nobody_looks_at_the_result():
    """The statistics move, though y is dropped."""

    def program(device, k):
        module = torch.nn.BatchNorm1d(4).to(device)
        for _ in range(5):
            module(randn(device, 6, 4))
        return list(module.buffers())

    check_program(program)


def test_evaluation_leaves_the_statistics_alone():
    module = torch.nn.BatchNorm1d(4).to("neuron").eval()
    before = on_host(list(module.buffers()))
    for _ in range(4):
        module(torch.randn(6, 4, device="neuron")).cpu()
    assert_same_bits(on_host(list(module.buffers())), before)


# -- derivatives -------------------------------------------------------------------------------------------------------


def small(*sizes):
    torch.manual_seed(11)
    return torch.randn(*sizes, dtype=torch.float64).to("neuron").requires_grad_()


def constants(x):
    return torch.linspace(-1, 1, 4).to(x), torch.linspace(0.5, 2, 4).to(x)


CHECKED = {
    "softmax": lambda x, w, b: torch.softmax(x, 1),
    "log_softmax": lambda x, w, b: torch.log_softmax(x, 0),
    "layer_norm": lambda x, w, b: F.layer_norm(x, (4,), w, b),
    "group_norm": lambda x, w, b: F.group_norm(x, 2, w, b),
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "batch_norm, constant": lambda x, w, b: F.batch_norm(x, *constants(x), w, b, training=False),
}


@pytest.mark.parametrize("name", CHECKED)
def test_gradcheck(name):
    inputs = small(3, 4), small(4), small(4)
    assert torch.autograd.gradcheck(CHECKED[name], inputs, fast_mode=True)


@pytest.mark.parametrize("name", CHECKED)
def test_double_backward(name):
    def program(device, k):
        x, w, b = (randn(device, *s, dtype=torch.float64).requires_grad_() for s in ((3, 4), (4,), (4,)))
        y = CHECKED[name](x, w, b)
        grads = torch.autograd.grad(y.square().sum(), (x, w, b), create_graph=True, allow_unused=True)
        total = sum(g.square().sum() for g in grads if g is not None)
        return [g for g in torch.autograd.grad(total, (x, w, b), allow_unused=True) if g is not None]

    check_program(program)


# -- with their neighbours ---------------------------------------------------------------------------------------------


def written_softmax(x):
    e = (x - x.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


def written_rms_norm(x):
    return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)


def written_layer_norm(x):
    d = x - x.mean(1, keepdim=True)
    return d * torch.rsqrt((d * d).mean(1, keepdim=True) + 1e-5)


WRITTEN = {"softmax": written_softmax, "rms_norm": written_rms_norm, "layer_norm": written_layer_norm}


@pytest.mark.parametrize("name", WRITTEN)
def test_written_out_by_the_user(name):
    """In plain ops: the same bits as unfused, in fewer launches."""
    check_program(lambda device, k: WRITTEN[name](randn(device, 37, 41)))
    x = torch.randn(37, 41, device="neuron")
    launches = {}
    for mode in ("per_op", "adaptive"):
        with getattr(ae, mode)():
            for _ in range(3):
                WRITTEN[name](x).cpu()
            before = ae.stats()["launches"]
            WRITTEN[name](x).cpu()
            launches[mode] = ae.stats()["launches"] - before
    assert launches["adaptive"] <= 3 < launches["per_op"]


def test_neighbours_in_place():
    """Ops in place before, between and after: a value is never computed again from memory that was overwritten."""

    def program(device, k):
        x = randn(device, 9, 11)
        with torch.no_grad():
            for _ in range(3):
                x.add_(1)
                s = x.sum(1, keepdim=True)
                x -= s / 11
                y = torch.softmax(x, 1)
                x.mul_(y).add_(y)
                m = x.mean(1)
                x.sub_(m.unsqueeze(1))
                x[1:] += F.layer_norm(x[:-1], (11,)).clone()
                z = x * 2
                x.zero_().add_(z - z.amax(0))
        return x, y, z

    check_program(program, rtol=1e-4, atol=1e-4)


def test_other_rows_of_the_same_storage():
    """Kernels that would walk other numbers of rows, or shifted ones, in one loop."""

    def program(device, k):
        x = randn(device, 64, 40)
        s = x.sum(1, keepdim=True)
        few, top = torch.exp(x[:7, :1]), x[:30] * 2
        z = x - s
        a = torch.softmax(x, 1)
        half = a[:32] + a[32:]
        a[1:].sub_(a[:-1].sum(1, keepdim=True))
        square = x[:40] - x[:40].sum(1)
        return s, few, top, z, a, half, square, square - square.t().amax(1, keepdim=True)

    check_program(program)


def test_results_without_the_reduced_dim():
    def program(device, k):
        x = randn(device, 12, 12)
        s, m = x.sum(1), x.amax(0)
        y = x - s.unsqueeze(1) + m
        z = torch.softmax(y - s, 1) * s.view(12, 1)
        return y, z, z.sum(0) - s

    check_program(program)


def test_training_loop():
    """Blocks of a small network, several steps a round: hot windows with everything in them."""

    def program(device, k):
        torch.manual_seed(13)
        net = torch.nn.Sequential(
            torch.nn.Linear(10, 12), torch.nn.LayerNorm(12), torch.nn.GELU(), torch.nn.Linear(12, 12),
            torch.nn.BatchNorm1d(12), torch.nn.SiLU(), torch.nn.GroupNorm(3, 12), torch.nn.Linear(12, 5),
        ).to(device)  # fmt: skip
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for _ in range(6):
            x = randn(device, 16, 10)
            loss = F.cross_entropy(net(x), (x.sum(1) > 0).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *net.parameters(), *net.buffers()]

    check_program(program, rtol=1e-3, atol=1e-4)
