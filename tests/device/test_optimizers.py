"""Many tensors at once: torch's optimizers in all their forms, gradient clipping, GradScaler, and _foreach_ ops. Every
mode gives the same bits, nothing is a fallback, and a step is a few launches however many parameters there are."""

import pytest
import torch
from device_harness import MODES, assert_same_bits, counted, on_host
from torch.testing._internal.common_optimizers import optim_db

import adaptive_eager as ae

pytestmark = pytest.mark.filterwarnings("ignore")

optim = torch.optim
SHAPES = ((3, 5), (7,), (1,), (), (2, 3, 4), (0, 4), (33, 17), (1, 6))
#: Their gradients are sparse tensors, which the device does not have; or they search a line and read the host at will.
LEFT_OUT = {"SparseAdam", "LBFGS"}
INFOS = {info.optim_cls.__name__: info for info in optim_db if info.optim_cls.__name__ not in LEFT_OUT}
IMPLEMENTATIONS = ("plain", "foreach", "fused")


def flags(info, implementation):
    if implementation == "plain":
        return {"foreach": False} if "foreach" in info.supported_impls else {}
    return {implementation: True}


def parameters(device, dtype, only_matrices=False, empty=True):
    """Parameters of many shapes: contiguous, transposed, channels last, with gaps, and without elements."""
    generator = torch.Generator().manual_seed(1)

    def make(shape):
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    shapes = [s for s in SHAPES if (len(s) == 2 or not only_matrices) and (0 not in s or empty)]
    made = [make(s) for s in shapes]
    made.append(make((6, 4)).t())
    if not only_matrices:
        made.append(make((2, 3, 4, 4)).to(memory_format=torch.channels_last))
        made.append(make((5, 8))[:, ::2])
    return [p.requires_grad_() for p in made]


def steps(device, make, dtype=torch.float32, n=4, before_step=lambda optimizer, k: None, **which):
    """Parameters, gradients and state after `n` steps."""
    params = parameters(device, dtype, **which)
    optimizer = make(params)
    generator = torch.Generator().manual_seed(2)
    for k in range(n):
        for i, p in enumerate(params):
            grad = torch.randn(p.shape, generator=generator).to(dtype).to(device)
            p.grad = grad if i % 2 else torch.empty_like(p).copy_(grad)
        before_step(optimizer, k)
        optimizer.step()
    state = [v for p in params for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    return on_host([p.detach() for p in params] + [p.grad for p in params] + state)


def in_every_mode(program):
    """The result of `program("neuron")`, the same bits in every mode, twice; without a fallback."""
    ae.clear_fallback_ops()
    results = {}
    for mode in MODES:
        with getattr(ae, mode)():
            first = program("neuron")
            results[mode] = program("neuron")
            assert_same_bits(first, results[mode], f"{mode}, second run")
    for mode in ("per_op", "adaptive"):
        assert_same_bits(results[mode], results["stepwise"], mode)
    assert not ae.get_fallback_ops()
    return results["adaptive"]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", INFOS)
def test_every_optimizer(name, implementation):
    info = INFOS[name]
    if implementation != "plain" and implementation not in info.supported_impls:
        pytest.skip(f"{name} has no {implementation} form")
    for case in info.optim_inputs_func(device="cpu"):

        def program(device, case=case):
            # CPU's fused kernels take the layouts of gradients to be those of their parameters.
            kwargs = {**case.kwargs, **flags(info, "plain" if device == "cpu" else implementation)}
            which = {"only_matrices": name == "Muon", "empty": name not in ("Muon", "Adafactor")}
            return steps(device, lambda p: info.optim_cls(p, **kwargs), **which)

        actual, expected = in_every_mode(program), program("cpu")
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, c=case: f"{c.desc}: {m}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_other_dtypes(name, implementation, dtype):
    """Half types against float64: CPU's fused SGD leaves the parameters of a half type as they are."""
    info = INFOS[name]
    more = {"momentum": 0.9, "nesterov": True} if name == "SGD" else {"eps": 1e-3}  # float16 has no 1e-8
    kwargs = {"lr": 0.01, "weight_decay": 0.1, **more}

    def program(device, dtype=dtype):
        form = flags(info, "plain" if device == "cpu" else implementation)
        return steps(device, lambda p: info.optim_cls(p, **kwargs, **form), dtype, n=3)

    loose = {"rtol": 0.05, "atol": 0.05} if dtype != torch.float64 else {}
    for a, b in zip(in_every_mode(program), program("cpu", torch.float64), strict=True):
        torch.testing.assert_close(a.double(), b.double(), **loose)


def test_parameters_of_mixed_dtypes():
    def program(device):
        dtypes = (torch.float32, torch.float64, torch.bfloat16)
        params = [p for dtype in dtypes for p in parameters(device, dtype)[:4]][::-1]
        results = []
        for fused in (True, False):
            optimizer = optim.AdamW(params, lr=0.01, fused=fused)
            for _ in range(3):
                for p in params:
                    p.grad = torch.ones_like(p)
                optimizer.step()
            results += [p.detach().clone() for p in params]
        return on_host(results)

    for a, b in zip(in_every_mode(program), program("cpu"), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("where", ["number", "cpu", "neuron"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_changing_rate_compiles_nothing(fused, where):
    params = parameters("neuron", torch.float32)
    rate = 0.1 if where == "number" else torch.tensor(0.1, device=where)
    optimizer = optim.Adam(params, lr=rate, fused=fused, capturable=where == "neuron" and not fused)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    for p in params:
        p.grad = torch.ones_like(p)
    for k in range(200):
        if k == 4:
            compiled = counted("kernels_compiled")
        optimizer.step()
        schedule.step()
        torch.neuron.synchronize()
    assert counted("kernels_compiled") == compiled


@pytest.mark.parametrize("kwargs", [{"fused": True}, {"foreach": True}])
def test_a_step_is_a_few_launches(kwargs):
    params = [torch.randn(8 + k % 3, 5, device="neuron", requires_grad=True) for k in range(70)]
    optimizer = optim.AdamW(params, **kwargs)
    for p in params:
        p.grad = torch.ones_like(p)
    for _ in range(4):
        optimizer.step()
        torch.neuron.synchronize()
    before = ae.stats()
    optimizer.step()
    torch.neuron.synchronize()
    after = ae.stats()
    assert after["windows"] - before["windows"] == 1
    assert after["launches"] - before["launches"] <= 2
    assert after["host_ops"] == before["host_ops"]


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf"), 0.0])
def test_clipping(norm_type, foreach):
    def program(device):
        params = parameters(device, torch.float32, empty=norm_type != float("inf"))
        results = []
        for k in range(3):
            for p in params:
                p.grad = torch.full_like(p, 0.1 * (k + 1))
            results.append(torch.nn.utils.clip_grad_norm_(params, 1.0, norm_type, foreach=foreach))
            results += [p.grad.clone() for p in params]
            torch.nn.utils.clip_grad_value_(params, 0.02, foreach=foreach)
            results += [p.grad.clone() for p in params]
        optim.SGD(params, 0.1).zero_grad(set_to_none=False)
        return on_host(results + [p.grad for p in params])

    for a, b in zip(in_every_mode(program), program("cpu"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # sums of float32 in another order


def test_clipping_reads_nothing():
    """Norms, their norm, and the products stay on the device, in few launches."""
    params = [torch.randn(40 + k, 50, device="neuron", requires_grad=True) for k in range(70)]
    for p in params:
        p.grad = torch.ones_like(p)
    for _ in range(4):
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        torch.neuron.synchronize()
    before = ae.stats()
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    torch.neuron.synchronize()
    after = ae.stats()
    assert after["windows"] - before["windows"] == 1
    assert after["launches"] - before["launches"] <= 5


@pytest.mark.parametrize("fused", [True, False])
def test_grad_scaler(fused):
    """A gradient that overflows skips its step and halves the scale; enough good ones double it."""

    def program(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(device)
        optimizer = optim.AdamW(model.parameters(), fused=fused)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        scales = []
        for k in range(7):
            x = torch.randn(5, 8, generator=torch.Generator().manual_seed(k)).to(device)
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                loss = (model(x) ** 2).mean()
            scaler.scale(loss * (float("inf") if k == 3 else 1.0)).backward()
            if k % 2:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scales.append(torch.tensor(scaler.get_scale()))
        return on_host(scales + list(model.state_dict().values()))

    actual, expected = in_every_mode(program), program("cpu")
    assert [s.item() for s in actual[:7]] == [s.item() for s in expected[:7]]
    for a, b in zip(actual[7:], expected[7:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [None, float("inf"), -float("inf"), float("nan")])
def test_unscale(bad, dtype):
    def program(device):
        grads = [torch.full((3, 4), 8.0, dtype=dtype).to(device), torch.ones(70, dtype=dtype).to(device)[::2]]
        grads += [torch.ones((0, 3), dtype=dtype).to(device), torch.tensor(2.0, dtype=dtype).to(device)]
        if bad is not None:
            grads[1][-1] = bad
        found, inverse = torch.zeros(1, device=device), torch.tensor([0.25], device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        return on_host([found, *grads])

    actual = in_every_mode(program)
    assert actual[0].item() == (bad is not None)
    for a, b in zip(actual, program("cpu"), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


#: Calls of list ops: alike tensors, lists that only ATen's own loop takes, numbers of every kind.
LISTS = {
    "add": lambda a, b: torch._foreach_add(a, b, alpha=2),
    "add_scalar": lambda a, b: torch._foreach_add(a, 1.5),
    "sub_": lambda a, b: torch._foreach_sub_(a, b),
    "mul_numbers": lambda a, b: torch._foreach_mul(a, [k / 2 for k in range(len(a))]),
    "mul_integers": lambda a, b: torch._foreach_mul(a, list(range(len(a)))),
    "mul_tensor": lambda a, b: torch._foreach_mul(a, b[0].sum()),
    "div_broadcast": lambda a, b: torch._foreach_div(a, [t.sum() + 9 for t in b]),
    "lerp_": lambda a, b: torch._foreach_lerp_(a, b, 0.3),
    "addcmul": lambda a, b: torch._foreach_addcmul(a, b, b, 0.5),
    "addcdiv_tensor": lambda a, b: torch._foreach_addcdiv(a, b, [t.exp() for t in b], torch.ones(len(a))),
    "maximum": lambda a, b: torch._foreach_maximum(a, b),
    "clamp_max_": lambda a, b: torch._foreach_clamp_max_(a, 0.2),
    "pow": lambda a, b: torch._foreach_pow([t.abs() for t in a], 2.5),
    "pow_of_a_number": lambda a, b: torch._foreach_pow(2.0, a),
    "sqrt_abs": lambda a, b: torch._foreach_sqrt(torch._foreach_abs(a)),
    "norm": lambda a, b: torch._foreach_norm(a, 2),
    "zero_": lambda a, b: torch._foreach_zero_(a),
    "copy_": lambda a, b: torch._foreach_copy_(a, b),
    "swapped": lambda a, b: torch._foreach_add_([*a, *b], [*b, *a]),
    "the_same_twice": lambda a, b: torch._foreach_add_([a[0], a[0]], [b[0], a[0]]),
    "mixed_dtypes": lambda a, b: torch._foreach_mul(a, [t.to(torch.bfloat16) for t in b]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists(name):
    def program(device):
        with torch.no_grad():
            a, b = (parameters(device, torch.float32), [p.neg().add(0.1) for p in parameters(device, torch.float32)])
            result = LISTS[name](a, b)
            return on_host([*(result or ()), *a, *b])

    for x, y in zip(in_every_mode(program), program("cpu"), strict=True):
        torch.testing.assert_close(x, y)


def test_a_list_is_one_op_of_a_window():
    """A window holds `max_ops` calls, however many tensors they have, and is not cut inside one."""
    tensors = [torch.ones(3, device="neuron") for _ in range(100)]
    torch.neuron.synchronize()
    windows = counted("windows")
    for _ in range(20):
        torch._foreach_mul_(tensors, 1.5)
    assert counted("windows") == windows
    torch.testing.assert_close(tensors[-1].cpu(), torch.full((3,), 1.5**20))


def test_errors_are_torchs():
    a = [torch.ones(3, device="neuron"), torch.ones(2, device="neuron")]
    with pytest.raises(RuntimeError, match=r"must match|broadcast|doesn't match"):
        torch._foreach_add_(a, a[::-1])
    with pytest.raises(RuntimeError, match=r"same number of tensors|same length|lists must have"):
        torch._foreach_add_(a, a[:1])
    torch._foreach_add_(a, 1)
    assert a[0].tolist() == [2, 2, 2]
