"""Scatters: sums at indices are the CPU's, and the same bits whatever the mode and the number of threads."""

import pytest
import torch
import torch.nn.functional as F
from device_harness import check_program, moved

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip


def filled(dtype, *sizes, seed=0):
    values = torch.randint(-9, 9, sizes, generator=torch.Generator().manual_seed(seed))
    return values > 0 if dtype == torch.bool else values.to(dtype)


def numbers(*sizes, high=6, seed=1):
    return torch.randint(0, high, sizes, generator=torch.Generator().manual_seed(seed))


def put(x, indices, source):
    """index_put that adds, at indices some of which are absent."""
    indices = [i.to(x.device) if i is not None else None for i in indices]
    return torch.ops.aten.index_put(x, indices, source, accumulate=True)


# f(x, s): x is (6, 7, 9) and s a function that makes sources; the device is x's
SCATTERS = {
    "index_add_0": lambda x, s: x.index_add(0, numbers(11).to(x.device), s(11, 7, 9)),
    "index_add_1": lambda x, s: x.index_add(1, numbers(11).to(x.device), s(6, 11, 9)),
    "index_add_last": lambda x, s: x.index_add(-1, numbers(11).to(x.device), s(6, 7, 11)),
    "index_add_narrow": lambda x, s: x.index_add(0, numbers(11).int().to(x.device), s(11, 7, 9)),
    "index_add_alpha": lambda x, s: x.index_add(0, numbers(11).to(x.device), s(11, 7, 9), alpha=2),
    "index_add_nothing": lambda x, s: x.index_add(0, numbers(0).to(x.device), s(0, 7, 9)),
    "index_add_vector": lambda x, s: x[0, 0].index_add(0, numbers(50).to(x.device), s(50)),
    "index_add_expanded": lambda x, s: x.index_add(0, numbers(11).to(x.device), s(1, 7, 1).expand(11, 7, 9)),
    "index_add_out": lambda x, s: torch.index_add(x, 1, numbers(3).to(x.device), s(6, 3, 9), out=torch.empty_like(x)),
    "scatter_add_0": lambda x, s: x.scatter_add(0, numbers(9, 7, 9).to(x.device), s(9, 7, 9)),
    "scatter_add_1": lambda x, s: x.scatter_add(1, numbers(6, 30, 9).to(x.device), s(6, 30, 9)),
    "scatter_add_last": lambda x, s: x.scatter_add(2, numbers(6, 7, 30).to(x.device), s(6, 7, 30)),
    "scatter_add_part": lambda x, s: x.scatter_add(1, numbers(4, 30, 5).to(x.device), s(5, 31, 9)),
    "scatter_add_rows": lambda x, s: x.scatter_add(0, numbers(9, 1, 1).to(x.device).expand(9, 7, 9), s(9, 7, 9)),
    "scatter_add_rows_1": lambda x, s: x.scatter_add(1, numbers(1, 9, 1).to(x.device).expand(6, 9, 9), s(6, 9, 9)),
    "scatter_add_vector": lambda x, s: x[0, 0].scatter_add(0, numbers(50).to(x.device), s(50)),
    "scatter_add_nothing": lambda x, s: x.scatter_add(0, numbers(0, 7, 9).to(x.device), s(2, 7, 9)),
    "index_put": lambda x, s: x.index_put((numbers(11).to(x.device),), s(11, 7, 9), accumulate=True),
    "index_put_wide": lambda x, s: x.index_put((numbers(2, 5).to(x.device),), s(2, 5, 7, 9), accumulate=True),
    "index_put_negative": lambda x, s: x.index_put((numbers(11).to(x.device) - 6,), s(11, 7, 9), accumulate=True),
    "index_put_broadcast": lambda x, s: x.index_put((numbers(11).to(x.device),), s(9), accumulate=True),
    "index_put_middle": lambda x, s: put(x, [None, numbers(11)], s(6, 11, 9)),
    "index_put_two": lambda x, s: x.index_put(
        (numbers(4, 1).to(x.device), numbers(5).to(x.device)), s(4, 5, 9), accumulate=True
    ),
    "index_put_last_two": lambda x, s: put(x, [None, numbers(4, 1), numbers(5)], s(6, 4, 5)),
    "index_put_apart": lambda x, s: put(x, [numbers(30), None, numbers(30, seed=2)], s(30, 7)),
    "index_put_all": lambda x, s: x.index_put(
        tuple(numbers(99, seed=k).to(x.device) for k in range(3)), s(99), accumulate=True
    ),
    "put": lambda x, s: x.put(numbers(99, high=300).to(x.device) - 100, s(99), accumulate=True),
    "put_over": lambda x, s: x.put(torch.tensor([3, 1]).to(x.device), s(2)),
    "index_put_over": lambda x, s: x.index_put((torch.tensor([3, 1]).to(x.device),), s(2, 7, 9)),
    "index_put_mask": lambda x, s: x.index_put((x.real.float() > 0,), s(1), accumulate=True),
}  # fmt: skip

TARGETS = {
    "contiguous": lambda x: x,
    "permuted": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "sliced": lambda x: torch.cat([x, x], 1)[:, 3:10],
}


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("layout", TARGETS)
def test_sums_are_the_cpus(name, layout):
    def program(device, round):
        x = moved(TARGETS[layout](filled(torch.float32, 6, 7, 9)), device)
        return SCATTERS[name](x, lambda *sizes: filled(torch.float32, *sizes, seed=3).to(device))

    check_program(program, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    def program(device, round):
        x, results = filled(dtype, 6, 7, 9).to(device), []
        for name, scatter in SCATTERS.items():
            if dtype not in (torch.bool, torch.complex64) or "alpha" not in name:
                results.append(scatter(x, lambda *sizes: filled(dtype, *sizes, seed=3).to(device)))
        return results

    check_program(program, rtol=0, atol=0)


def test_in_place():
    def program(device, round):
        x, i = filled(torch.float32, 6, 7).to(device), numbers(9).to(device)
        s = filled(torch.float32, 9, 7, seed=2).to(device)
        y = x.t()
        x.index_add_(0, i, s)
        x.scatter_add_(0, i[:, None].expand(9, 7), s * 2)
        x[:, 1:4].index_add_(0, i, s[:, :3])
        y.index_add_(1, i, s.t())
        x.index_put_((i,), s, accumulate=True)
        x[1:].index_put_((i % 5, i), s[:, 0], accumulate=True)
        return [x, y * 2]

    check_program(program, rtol=0, atol=0)


def test_what_overlaps_itself():
    """Windows of a vector, which share elements: each sum is seen by the others."""

    def program(device, round):
        x, i = filled(torch.float32, 16).to(device), numbers(4, high=15).to(device)
        windows = x.unfold(0, 2, 1)
        windows.index_put_((i,), filled(torch.float32, 4, 2, seed=2).to(device), accumulate=True)
        windows.index_add_(0, i, filled(torch.float32, 4, 2, seed=3).to(device))
        return [x, windows * 2]

    check_program(program, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["index_add", "index_put"])
def test_what_it_reads_may_not_be_written(name):
    """Sums of itself are those of the CPU where it takes them."""

    def sums(device):
        x, i = filled(torch.float32, 6, 4).to(device), torch.tensor([1, 1, 5]).to(device)
        if name == "index_add":
            x.index_add_(0, i, x[:3])
        else:
            x.index_put_((i,), x[:3], accumulate=True)
        return x.cpu()

    try:
        want = sums("cpu")
    except RuntimeError as refused:
        assert "memory location" in str(refused)
    else:
        assert torch.equal(sums("neuron"), want)


@pytest.mark.parametrize("sizes", [(4096, 48), (4096, 1), (64, 4096), (3, 70000)])
def test_bits_do_not_depend_on_threads(sizes):
    """Many additions of numbers that round, to the same few rows."""
    rows, each = sizes
    g = torch.Generator().manual_seed(0)
    i = torch.randint(0, 3, (rows,), generator=g).to("neuron")
    source = torch.randn(rows, each, generator=g).to("neuron")
    everywhere = torch.randint(0, 3, (rows, each), generator=g).to("neuron")

    def sums():
        zeros = torch.zeros(3, each, device="neuron")
        across = torch.zeros(each, 3, device="neuron")
        return [
            t.cpu()
            for t in (
                zeros.index_add(0, i, source), zeros.scatter_add(0, i[:, None].expand(rows, each), source),
                zeros.scatter_add(0, everywhere, source), zeros.index_put((i,), source, accumulate=True),
                across.scatter_add(1, everywhere.t(), source.t()), across.index_add(1, i, source.t()),
                torch.ops.aten.embedding_dense_backward(source, i, 3, -1, False),
                zeros.put(i[:, None].expand_as(source), source, accumulate=True),
                zeros[:, 0].index_add(0, i, source[:, 0]),
                zeros.half().index_put((i,), source.half(), accumulate=True),
            )
        ]  # fmt: skip

    threads, found = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3, 2):
            torch.set_num_threads(n)
            found.append(sums())
    finally:
        torch.set_num_threads(threads)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))
    want = torch.zeros(3, each, dtype=torch.float64).index_add(0, i.cpu(), source.double().cpu())
    for k in (0, 1, 3, 5, 6):
        result = found[0][k].double()
        torch.testing.assert_close(result.t() if k == 5 else result, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_gradients_of_embeddings(padding, by_frequency):
    def program(device, round):
        torch.manual_seed(round)
        weight = torch.randn(50, 33).to(device).requires_grad_()
        i = numbers(4, 60, high=50).to(device)
        y = F.embedding(i, weight, padding_idx=padding if padding >= 0 else None, scale_grad_by_freq=by_frequency)
        (y * torch.randn(33).to(device)).sum().backward()
        return [weight.grad]

    check_program(program)


OUT_OF_RANGE = {
    "index_add": (lambda x, i, s: x.index_add_(0, i, s), IndexError),
    "_index_put_impl_": (lambda x, i, s: x.index_put_((i,), s, accumulate=True), IndexError),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_an_index_out_of_range_changes_nothing(name, mode):
    call, error = OUT_OF_RANGE[name]
    bad, s = torch.tensor([1, 6, 2]).to("neuron"), torch.ones(3, 4, device="neuron")
    for _ in range(3):
        x = torch.zeros(6, 4, device="neuron")
        with pytest.raises(error, match="index 6 is out of bounds for dimension 0 with size 6") as caught:
            call(x, bad, s)
            torch.neuron.synchronize()
        assert f"[neuron.{name}]" in str(caught.value) and __file__ in str(caught.value)
        assert torch.equal(x.cpu(), torch.zeros(6, 4))
