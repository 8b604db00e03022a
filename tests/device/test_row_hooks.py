"""What is special to single ops: statistics of the norms, and what torch checks in its kernels only."""

import pytest
import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def on(device, *tensors):
    return [None if t is None else t.to(device) for t in tensors]


def layer_norm(device, x, p):
    (x, p) = on(device, x, p)
    return torch.native_layer_norm(x, (4,), p, p, 1e-5)


def group_norm(device, x, p):
    (x, p) = on(device, x, p)
    return torch.native_group_norm(x, p, p, 3, 4, 1, 2, 1e-5)


def batch_norm(running, training):
    def run(device, x, p):
        mean = None if running is None else torch.zeros(4, dtype=running)
        (x, p, mean) = on(device, x, p, mean)
        return torch.native_batch_norm(x, p, p, mean, mean, training, 0.1, 1e-5)

    return run


NORMS = {
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "batch_norm": batch_norm(None, True),
    "batch_norm_float_running": batch_norm(torch.float32, True),
    "batch_norm_half_running": batch_norm(torch.bfloat16, True),
    "batch_norm_evaluation": batch_norm(torch.float32, False),
}


@pytest.mark.parametrize("parameter", [None, *FLOATS], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_dtypes_of_statistics(norm, dtype, parameter):
    """As CPU eager has them: of the parameters where there are some, which may be float32 beside half inputs."""
    x = torch.arange(12.0).reshape(3, 4).to(dtype)
    p = None if parameter is None else torch.ones(4, dtype=parameter)
    try:
        expected = NORMS[norm]("cpu", x, p)
    except RuntimeError as error:
        for _ in range(2):
            with pytest.raises(type(error)):
                NORMS[norm]("neuron", x, p)
        return
    for _ in range(2):  # at its first use the op runs at the call, from then on in the window
        actual = NORMS[norm]("neuron", x, p)
        assert [(t.dtype, t.shape, t.stride()) for t in actual] == [(t.dtype, t.shape, t.stride()) for t in expected]
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.cpu(), e)


WRONG = {
    "uniform_": lambda x: x.uniform_(2, 1),
    "normal_": lambda x: x.normal_(0, -1),
    "exponential_": lambda x: x.exponential_(-1),
    "geometric_": lambda x: x.geometric_(2.0),
    "log_normal_": lambda x: x.log_normal_(0, -1),
    "cauchy_": lambda x: x.cauchy_(0, -1),
    "random_": lambda x: x.random_(5, 3),
    "random_to": lambda x: x.random_(-2),
    "bernoulli_": lambda x: x.bernoulli_(2.0),
    "randint": lambda x: torch.randint(5, 3, (3,), device=x.device),
    "random_byte": lambda x: x.byte().random_(0, 1000),
    "softshrink": lambda x: torch.nn.functional.softshrink(x, -0.5),
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="none or tanh"),
    "masked_fill": lambda x: x.masked_fill(x > 0, torch.ones(1, device=x.device)),
    "masked_fill_mask": lambda x: x.masked_fill(x, 1),
    "where": lambda x: torch.where(x, x, x),
    "amax_out": lambda x: torch.amax(x, 0, out=torch.empty(3, dtype=torch.int32, device=x.device)),
    "shift": lambda x: x << 1,
    "abs_bool": lambda x: (x > 0).abs(),
    "ceil_bool": lambda x: (x > 0).ceil(),
    "relu_bool": lambda x: (x > 0).relu(),
    "gcd": lambda x: torch.gcd(x, x),
    "sub_mask": lambda x: x - (x > 0),
    "sub_bool": lambda x: x - True,
    "rsub_mask": lambda x: torch.rsub(x > 0, x),
    "heaviside_mask": lambda x: torch.heaviside(x, x > 0),
    "bucketize": lambda x: torch.bucketize(x, x),
    "dilation": lambda x: torch.nn.functional.conv2d(x[None, None], x[None, None, :2, :2], dilation=0),
    "index_select": lambda x: x.index_select(0, torch.zeros(2, 2, dtype=torch.int64, device=x.device)),
    "index_select_dtype": lambda x: x.index_select(0, x[0]),
}


@pytest.mark.parametrize("name", WRONG)
def test_checks_of_torchs_kernels_at_the_call(name):
    """Every time, not only the first time."""
    with pytest.raises((RuntimeError, IndexError)) as expected:
        WRONG[name](torch.ones(4, 3))
    for good in (
        lambda x: x.uniform_(),
        lambda x: torch.nn.functional.softshrink(x),
        lambda x: torch.gcd(x.long(), x.long()),
        lambda x: x.sub_(x) - 1,
        lambda x: torch.bucketize(x, x[0]),
        lambda x: torch.nn.functional.conv2d(x[None, None], x[None, None, :2, :2]),
        lambda x: x.index_select(0, torch.zeros(2, dtype=torch.int64, device=x.device)),
    ):
        good(torch.ones(4, 3, device="neuron"))
    for _ in range(3):
        with pytest.raises(type(expected.value)) as actual:
            WRONG[name](torch.ones(4, 3, device="neuron"))
        assert str(expected.value).splitlines()[0] in str(actual.value)
    torch.neuron.synchronize()


@pytest.mark.parametrize("sizes", [(3, 2), (0, 2), (5, 0), (0, 0)])
@pytest.mark.parametrize("dim", [0, -1])
def test_index_add_of_nothing(mode, sizes, dim):
    """torch's meta function wants a first slice of both tensors."""

    def added(device):
        x = torch.ones(sizes, device=device)
        shape = list(sizes)
        shape[dim] = 0
        index = torch.empty(0, dtype=torch.int64, device=device)
        result = torch.index_add(x, dim, index, torch.ones(shape, device=device))
        return result, x.index_add_(dim, index, torch.ones(shape, device=device))

    for actual, expected in zip(added("neuron"), added("cpu"), strict=True):
        torch.testing.assert_close(actual.cpu(), expected)
