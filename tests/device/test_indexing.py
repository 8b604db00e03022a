"""Indexing: gathers have the CPU's bits and strides in every mode, fuse with their neighbours, see their table as it
was, and refuse an index that is out of range."""

import pytest
import torch
import torch.nn.functional as F
from device_harness import check_program, counted, moved

import adaptive_eager as ae

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip

# f(x, i): x is (7, 6, 33), i (4, 5) of numbers from 0 to 5
LOOK_UPS = {
    "index_select_0": lambda x, i: x.index_select(0, i[0]),
    "index_select_1": lambda x, i: x.index_select(1, i[0]),
    "index_select_last": lambda x, i: x.index_select(-1, i[:, 1]),
    "index_select_scalar": lambda x, i: x.index_select(1, i[0, 0]),
    "index_select_nothing": lambda x, i: x.index_select(0, i[0, :0]),
    "index_select_vector": lambda x, i: x[0, 0].index_select(0, i[:, 0]),
    "embedding": lambda x, i: F.embedding(i, x[:, 0]),
    "embedding_scalar": lambda x, i: F.embedding(i[0, 0], x[0]),
    "embedding_padding": lambda x, i: F.embedding(i, x[2], padding_idx=1),
    "embedding_one_column": lambda x, i: F.embedding(i, x[0, :, :1]),
    "gather_0": lambda x, i: x.gather(0, i[:, :, None].expand(4, 5, 33)),
    "gather_1": lambda x, i: x.gather(1, i[:, :, None]),
    "gather_last": lambda x, i: x.gather(2, i[:, :, None].repeat(1, 1, 40)),
    "gather_vector": lambda x, i: x[0, 0].gather(0, i.flatten()),
    "gather_number": lambda x, i: x[0, 0, 0].gather(0, i[0, 0] * 0),
    "gather_nothing": lambda x, i: x.gather(1, i[:, :0, None]),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:1, :, None], 1),
    "take_along_argsort": lambda x, i: torch.take_along_dim(x, x.float().argmax(1, keepdim=True), 1),
    "take": lambda x, i: x.take(i * 200),
    "take_negative": lambda x, i: x.contiguous().take(-i - 1),
    "take_strided": lambda x, i: x[..., ::2].take(i),
    "index": lambda x, i: x[i],
    "index_negative": lambda x, i: x[-i - 1],
    "index_middle": lambda x, i: x[:, i],
    "index_last": lambda x, i: x[..., i],
    "index_two": lambda x, i: x[i, i[0]],
    "index_two_last": lambda x, i: x[:, i, i[:, :1] * 5],
    "index_apart": lambda x, i: x[i, :, i],
    "index_three": lambda x, i: x[i, i, i * 6],
    "index_and_slice": lambda x, i: x[1:, 0, i],
    "index_new_dim": lambda x, i: x[i[0], None, 1:],
    "index_arange": lambda x, i: x[torch.arange(4, device=x.device), i[:, 0]],
    "index_nothing": lambda x, i: x[i[:0]],
    "index_of_the_host": lambda x, i: x[i.cpu()],
    "index_mask": lambda x, i: x[x.float() > 0],
    "chained": lambda x, i: x[i][i[:, 0] % 4],
    "out": lambda x, i: torch.index_select(x, 0, i[0], out=torch.empty(5, 6, 33, dtype=x.dtype, device=x.device)),
    "gather_out": lambda x, i: torch.gather(
        x, 1, i[:, :, None], out=torch.empty(1, 5, 4, dtype=x.dtype, device=x.device).permute(2, 1, 0)
    ),
}  # fmt: skip

TABLES = {
    "contiguous": lambda x: x,
    "permuted": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "sliced": lambda x: torch.cat([x, x], -1)[..., 1:34],
    "stepped": lambda x: torch.cat([x, x], -1)[..., ::2],
    "offset": lambda x: torch.cat([x, x])[3:10],
    "expanded": lambda x: x[:, :1].expand(7, 6, 33),
}


def table(dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    values = torch.randint(-50, 50, (7, 6, 33), generator=g)
    return values > 0 if dtype == torch.bool else values.to(dtype)


def numbers(dtype=torch.int64, seed=1):
    return torch.randint(0, 6, (4, 5), generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("name", LOOK_UPS)
@pytest.mark.parametrize("layout", TABLES)
def test_values_and_strides_are_the_cpus(name, layout, mode):
    x, i = TABLES[layout](table(torch.float32)), numbers()
    want = LOOK_UPS[name](x, i)
    xd, idx = moved(x, "neuron"), i.to("neuron")
    for _ in range(3):
        got = LOOK_UPS[name](xd, idx)
        assert got.stride() == want.stride() and got.dtype == want.dtype
        assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wide", [torch.int64, torch.int32], ids=str)
def test_every_dtype(dtype, wide):
    names = [n for n in LOOK_UPS if "take" not in n and n != "gather_out"]
    x, i = table(dtype), numbers(wide)

    def program(device, round):
        a, at = x.to(device), i.to(device)
        results = []
        for name in names:
            if dtype != torch.complex64 or name not in ("index_mask", "out"):
                results.append(LOOK_UPS[name](a, at) if wide == torch.int64 or "take" not in name else a)
        return results

    check_program(program, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["permuted", "expanded", "stepped"])
def test_indices_of_any_layout(layout):
    i = {
        "permuted": numbers().t().contiguous().t(),
        "expanded": numbers()[:1].expand(4, 5),
        "stepped": numbers().repeat(1, 2)[:, ::2],
    }[layout]

    def program(device, round):
        x, at = table(torch.float32).to(device), moved(i, device)
        return [LOOK_UPS[n](x, at) for n in LOOK_UPS]

    check_program(program, rtol=0, atol=0)


def launches_of(function, rounds=4):
    """Kernels that a hot window of a function launches, and host ops that it runs."""
    for k in range(rounds):
        if k == rounds - 1:
            before = counted("launches"), counted("host_ops")
        result = function()
        torch.neuron.synchronize()
    del result
    return counted("launches") - before[0], counted("host_ops") - before[1]


FUSED = {
    "before": lambda x, i: torch.relu(F.embedding(i, x) * 2 + 1),
    "positions": lambda x, i: F.dropout(F.embedding(i, x) + F.embedding(i.flip(1), x), 0.5),
    "rows": lambda x, i: x[i[0]] * x[i[1]],
    "rotary": lambda x, i: x[i] * torch.sin(x)[0],
    "elements": lambda x, i: torch.exp(x.gather(0, i)) - x.gather(0, 5 - i),
    "computed": lambda x, i: x.take((i * 3 + 1).clamp(0, 20)) * 2,
    "summed": lambda x, i: (x.gather(1, i) * 2).sum(1),
}


@pytest.mark.parametrize("name", FUSED)
def test_neighbours_fuse(name):
    x, i = torch.randn(7, 33).to("neuron"), numbers().to("neuron")
    with ae.adaptive():
        launches, host_ops = launches_of(lambda: FUSED[name](x, i))
    assert host_ops == 0
    # An index of another shape than the result is made by a kernel of its own.
    assert launches == {"positions": 2, "rotary": 2}.get(name, 1)


def test_an_embedding_and_its_norm_run_in_strips():
    table, weight = torch.randn(50, 64).to("neuron"), torch.ones(64, device="neuron")
    positions, i = torch.randn(20, 64).to("neuron"), torch.randint(0, 50, (20,)).to("neuron")

    def step(device="neuron"):
        return F.layer_norm(F.embedding(i, table) + positions, (64,), weight)

    with ae.adaptive():
        assert launches_of(step)[1] == 0
        want = F.layer_norm(F.embedding(i.cpu(), table.cpu()) + positions.cpu(), (64,), weight.cpu())
        torch.testing.assert_close(step().cpu(), want)


def test_a_table_that_is_written_in_the_window():
    """Before, after, in place, in part, and where the row that is read looks just like what was written."""

    def program(device, round):
        torch.manual_seed(0)
        x, i = torch.randn(8, 16).to(device), torch.tensor([3, 0, 7, 3]).to(device)
        one = torch.tensor([5]).to(device)
        y = x * 2
        a = y[i]
        y.add_(1)
        b = y[i]
        y[:1].mul_(3)
        c = y.index_select(0, one)
        y[0:1] = 4
        d = y.index_select(0, one) + y[0:1]
        y[5:6] += 1
        e = F.embedding(one, y) * 2
        y.zero_()
        f = y.gather(0, i.expand(1, 4)) + 1
        x.copy_(x[i].repeat(2, 1))
        return [a, b, c, d, e, f, x, y]

    check_program(program, rtol=0, atol=0)


def test_an_index_that_is_written_in_the_window():
    def program(device, round):
        x, i = torch.arange(20.0).to(device), torch.tensor([3, 0, 7, 3]).to(device)
        a = x[i]
        i.add_(2)
        b = x[i] * 2
        i.copy_(x[i].long())
        return [a, b, i, x[i]]

    check_program(program, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (1, 1), (1, 5), (5, 1)])
def test_sizes_of_nothing_and_one(sizes):
    def program(device, round):
        x = torch.arange(float(sizes[0] * sizes[1])).view(sizes).to(device)
        some = torch.zeros(4 if sizes[0] else 0, dtype=torch.int64).to(device)
        at = torch.zeros(sizes, dtype=torch.int64).to(device)
        return [x[some] + 1, x.index_select(0, some), F.embedding(some, x), x.gather(0, at), x.gather(1, at) * 2]

    check_program(program, rtol=0, atol=0)


OUT_OF_RANGE = {
    "embedding": (lambda x, i: F.embedding(i, x), IndexError, [(9, 0, 9), (-1, 0, 9)]),
    "index_select": (lambda x, i: x.index_select(1, i), IndexError, [(33, 1, 33), (-1, 1, 33)]),
    "gather": (lambda x, i: x.gather(1, i[None]), RuntimeError, [(33, 1, 33), (-2, 1, 33)]),
    "index": (lambda x, i: x[:, i], IndexError, [(33, 1, 33), (-34, 1, 33), (2**40, 1, 33)]),
    "index two": (lambda x, i: x[i % 9, i], IndexError, [(33, 1, 33), (-34, 1, 33)]),
    "take": (lambda x, i: x.take(i), IndexError, [(297, 0, 297), (-298, 0, 297)]),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_an_index_out_of_range_is_named(name, mode):
    call, error, cases = OUT_OF_RANGE[name]
    x = torch.randn(9, 33).to("neuron")
    for value, dim, size in cases:
        bad = torch.tensor([1, value, 2]).to("neuron")
        with pytest.raises((error, RuntimeError)):  # along dim 1 the CPU's index_select has another
            call(x.cpu(), bad.cpu())
        for _ in range(3):
            after = call(x, torch.tensor([1, 0, 2]).to("neuron")) + 1
            with pytest.raises(error) as caught:
                (call(x, bad) * 2).cpu()
            said = f"index {value} is out of bounds for dimension {dim} with size {size}"
            if name == "take":
                said = f"out of range: tried to access index {value} on a tensor of {size} elements."
            assert said in str(caught.value) and f"[neuron.{name.split()[0]}]" in str(caught.value)
            assert mode == "stepwise" or f"recorded at {__file__}" in str(caught.value)
            assert torch.equal(after.cpu(), call(x.cpu(), torch.tensor([1, 0, 2])) + 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i, out: torch.index_select(x, 0, i, out=out),
        lambda x, i, out: torch.gather(x, 0, i[:, None].expand(2, 5), out=out),
        lambda x, i, out: torch.take(x, i[:, None].expand(2, 5), out=out),
        lambda x, i, out: torch.ops.aten.index.Tensor_out(x, [i], out=out),
    ],
    ids=["index_select", "gather", "take", "index"],
)
@pytest.mark.parametrize("fault", ["dtype", "overlap", "input"])
def test_what_cannot_be_written(call, fault):
    messages = []
    for device in ("cpu", "neuron"):
        x, i = torch.ones(4, 5).to(device), torch.tensor([0, 1]).to(device)
        out = torch.empty(2, 5, device=device)
        call(x, i, out)  # also when the kind of call is known
        wrong = {"dtype": out.double(), "overlap": out[:1].expand(2, 5), "input": x[1:3]}[fault]
        with pytest.raises(RuntimeError) as caught:
            call(x, i, wrong)
        messages.append(str(caught.value).splitlines()[0])
    assert messages[0] in messages[1]


def test_nothing_to_look_up():
    """Every index is out of range for a table of nothing."""
    with pytest.raises(IndexError):
        torch.randn(0, 3).to("neuron")[torch.tensor([0]).to("neuron")].cpu()


@pytest.mark.parametrize("classes", [-1, 6, 9])
@pytest.mark.parametrize("sizes", [(), (5,), (4, 5), (1, 1)])
def test_one_hot(classes, sizes):
    def program(device, round):
        x = torch.randint(0, 6, sizes, generator=torch.Generator().manual_seed(round)).to(device)
        return [F.one_hot(x, classes), F.one_hot(x, classes).float() * 2]

    check_program(program, rtol=0, atol=0)


def test_one_hot_is_recorded_if_its_classes_are_given():
    x = numbers().to("neuron")
    with ae.adaptive():
        before = counted("windows")
        y = F.one_hot(x, 6)
        assert counted("windows") == before
        assert launches_of(lambda: F.one_hot(x, 6).float() * 2) == (1, 0)
    assert torch.equal(y.cpu(), F.one_hot(x.cpu(), 6))


@pytest.mark.parametrize(
    ("x", "classes"), [([0, 7], 5), ([-1, 2], 5), ([0, 1], 0), ([0, 1], -3), ([-2], -1), ([], -1), ([0.5], 3)]
)
def test_what_one_hot_refuses(x, classes):
    messages = []
    for device in ("cpu", "neuron"):
        with pytest.raises(RuntimeError) as caught:
            F.one_hot(torch.tensor(x, dtype=torch.float32 if 0.5 in x else torch.int64).to(device), classes).cpu()
        messages.append(str(caught.value).splitlines()[0])
    assert messages[0].rstrip(".") in messages[1]


def test_gradients():
    def program(device, round):
        torch.manual_seed(round)
        i = numbers().to(device)
        x, y = (torch.randn(7, 6, 33).to(device).requires_grad_() for _ in range(2))
        weight = torch.randn(9, 8).to(device).requires_grad_()
        loss = (
            (x[i] * 2).sum() + (x[:, i[0]] ** 2).sum() + y.index_select(1, i[0]).sin().sum()
            + y.gather(2, i[:, :, None].repeat(1, 1, 40)).exp().sum() + x.take(i * 200).sum()
            + F.embedding(i, weight, padding_idx=2).square().sum() + y[i, :, i].cos().sum()
        )  # fmt: skip
        loss.backward()
        return [loss.detach(), x.grad, y.grad, weight.grad]

    check_program(program)


def test_many_rows_on_many_threads():
    """Rows and elements that threads share out have the bits of one thread."""
    x, i = torch.randn(3000, 65).to("neuron"), torch.randint(0, 3000, (70000,)).to("neuron")
    at = torch.randint(0, 65, (3000, 300)).to("neuron")
    threads = torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            assert torch.equal((x[i] + 1).cpu(), x.cpu()[i.cpu()] + 1)
            assert torch.equal((x.gather(1, at) * 2).cpu(), x.cpu().gather(1, at.cpu()) * 2)
            with pytest.raises(IndexError, match="index 3000 "):
                x[i + (i == i.max()) * (3000 - i)].cpu()
    finally:
        torch.set_num_threads(threads)
