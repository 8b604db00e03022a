"""Results are laid out as on the CPU, whatever the layout of the operands: also in dims of size 1, whose strides say
nothing but are read by whoever lays out the next result."""

import random
from math import prod

import pytest
import torch
import torch.nn.functional as F
from device_harness import moved

pytestmark = [pytest.mark.filterwarnings("ignore:.*degrees of freedom")]

# f(x, y, z, dims): y and z broadcast with x; dims are some dims of x.
UNARY = {
    "neg": lambda x, y, z, dims: -x,
    "exp": lambda x, y, z, dims: x.exp(),
    "isnan": lambda x, y, z, dims: x.isnan(),
    "gelu": lambda x, y, z, dims: F.gelu(x),
    "leaky_relu": lambda x, y, z, dims: F.leaky_relu(x),
    "logsigmoid": lambda x, y, z, dims: F.logsigmoid(x),
    "clamp": lambda x, y, z, dims: x.clamp(1, 2),
    "add_number": lambda x, y, z, dims: x + 1,
    "number_add": lambda x, y, z, dims: 1 + x,
    "greater_number": lambda x, y, z, dims: x > 1,
    "pow_number": lambda x, y, z, dims: x**2,
    "dropout": lambda x, y, z, dims: F.dropout(x, 0.5),
}
BINARY = {
    "add": lambda x, y, z, dims: x + y,
    "add_alpha": lambda x, y, z, dims: torch.add(x, y, alpha=2),
    "mul": lambda x, y, z, dims: x * y,
    "less": lambda x, y, z, dims: x < y,
    "add_integers": lambda x, y, z, dims: x + y.long(),
    "where": lambda x, y, z, dims: torch.where(x > 2, y, z),
    "where_number": lambda x, y, z, dims: torch.where(x > 2, y, 1.0),
    "lerp": lambda x, y, z, dims: torch.lerp(x, y, z),
    "addcmul": lambda x, y, z, dims: torch.addcmul(x, y, z),
    "masked_fill": lambda x, y, z, dims: x.masked_fill(y > 2, 1),
}
CASTS = {
    "long": lambda x, y, z, dims: x.long(),
    "bfloat16": lambda x, y, z, dims: x.bfloat16(),
    "to_copy": lambda x, y, z, dims: x.to(torch.float32, copy=True),
    "clone": lambda x, y, z, dims: x.clone(),
    "clone_contiguous": lambda x, y, z, dims: x.clone(memory_format=torch.contiguous_format),
    "contiguous": lambda x, y, z, dims: x.contiguous(),
    "empty_like": lambda x, y, z, dims: torch.empty_like(x),
    "zeros_like": lambda x, y, z, dims: torch.zeros_like(x, dtype=torch.int64),
    "rand_like": lambda x, y, z, dims: torch.rand_like(x),
    "reshape": lambda x, y, z, dims: x.reshape(-1),
}
REDUCTIONS = {
    "sum": lambda x, y, z, dims: x.sum(dims),
    "sum_keepdim": lambda x, y, z, dims: x.sum(dims, keepdim=True),
    "mean": lambda x, y, z, dims: x.mean(dims, keepdim=True),
    "var": lambda x, y, z, dims: x.var(dims, keepdim=True),
    "std": lambda x, y, z, dims: x.std(dims),
    "var_mean": lambda x, y, z, dims: torch.var_mean(x, dims)[1],
    "prod": lambda x, y, z, dims: x.prod(dims[0], keepdim=True),
    "any": lambda x, y, z, dims: (x > 1).any(dims[0], keepdim=True),
    "norm": lambda x, y, z, dims: torch.linalg.vector_norm(x, dim=dims),
    "softmax": lambda x, y, z, dims: x.softmax(dims[0]),
    "cumsum": lambda x, y, z, dims: x.cumsum(dims[0]),
}
OF_SOMETHING = {  # not defined where a reduced dim is empty
    "amax": lambda x, y, z, dims: x.amax(dims, keepdim=True),
    "argmax": lambda x, y, z, dims: x.argmax(dims[0], keepdim=True),
    "max_values": lambda x, y, z, dims: x.max(dims[0], True).values,
    "max_indices": lambda x, y, z, dims: x.max(dims[0]).indices,
    "layer_norm": lambda x, y, z, dims: F.layer_norm(x, x.shape[-1:]),
}
OPS = {**UNARY, **BINARY, **CASTS, **REDUCTIONS, **OF_SOMETHING}
ROUNDS = 60


def any_layout(rng, sizes):
    """A float tensor of these sizes with dims in any order, steps, gaps, expanded dims."""
    rank = len(sizes)
    order = rng.sample(range(rank), rank)
    stored = [sizes[d] for d in order]
    steps = [rng.choice((1, 1, 1, 2)) for _ in stored]
    whole = [n * step + rng.choice((0, 0, 0, 1)) for n, step in zip(stored, steps, strict=True)]
    x = torch.arange(1.0, 1 + prod(whole)).reshape(whole)
    x = x[tuple(slice(0, n * step, step) for n, step in zip(stored, steps, strict=True))]
    x = x.permute([order.index(d) for d in range(rank)])
    if rank == 4 and rng.random() < 0.2:
        x = x.contiguous(memory_format=torch.channels_last)
    if rank and rng.random() < 0.2 and sizes[d := rng.randrange(rank)]:
        x = x.narrow(d, 0, 1).expand(sizes)
    return x


def beside(rng, x):
    """A tensor that broadcasts with `x`."""
    kind = rng.random()
    if kind < 0.2:
        return x.clone()
    if kind < 0.3:
        return torch.tensor(2.0)
    sizes = list(x.shape)
    if kind < 0.5:
        sizes = [n if rng.random() < 0.6 else 1 for n in sizes]
    elif kind < 0.6:
        sizes = sizes[1:]
    return any_layout(rng, sizes)


@pytest.mark.parametrize("name", OPS)
def test_strides_of_results(name):
    rng = random.Random(name)
    for _ in range(ROUNDS):
        sizes = [
            rng.choice((1, 1, 2, 2, 3, 4) + (0,) * (rng.random() < 0.1)) for _ in range(rng.choice((1, 2, 3, 4, 4, 5)))
        ]
        if name in OF_SOMETHING and 0 in sizes:
            continue
        x = any_layout(rng, sizes)
        y, z = beside(rng, x), beside(rng, x)
        dims = rng.sample(range(x.dim()), rng.randint(1, x.dim()))
        expected = OPS[name](x, y, z, dims)
        actual = OPS[name](*moved((x, y, z), "neuron"), dims)
        what = f"{[(tuple(t.shape), t.stride()) for t in (x, y, z)]}, dims {dims}"
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), what
        assert actual.stride() == expected.stride(), what


@pytest.mark.parametrize("sizes", [(2, 3, 1, 2), (1, 3, 4, 4), (4, 1, 4, 4), (2, 3, 4, 1)])
def test_every_second_of_channels_last(sizes):
    x = torch.ones(sizes).contiguous(memory_format=torch.channels_last)
    on_device = moved(x, "neuron")
    assert (on_device[::2] + 1).stride() == (x[::2] + 1).stride()
    assert (on_device[::2] + on_device[::2]).stride() == (x[::2] + x[::2]).stride()
    assert on_device[::2].exp().stride() == x[::2].exp().stride()
