"""arange, tril and triu: computed on the device from the position of each element, in any layout."""

import pytest
import torch

import adaptive_eager as ae

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", [None, *INTEGERS, *FLOATS])
def test_arange(dtype, mode):
    for args in ((10,), (3, 50), (3, 50, 7), (0,), (100, -20, -3), (5, 1005), (-7, 300, 2)):
        # In whole numbers, rounded once: ATen's own bfloat16 values depend on where its blocks begin.
        exact = torch.arange(*args)
        ours = torch.arange(*args, dtype=dtype, device="neuron")
        assert ours.cpu().equal(exact.to(dtype or torch.int64))
        assert ours.dtype == (dtype or torch.int64)


@pytest.mark.parametrize("dtype", FLOATS)
def test_arange_of_fractions(dtype, mode):
    for args in ((0, 1, 0.1), (0.5, 100, 0.3), (1, 0, -0.01), (2.5,)):
        exact = torch.arange(*args, dtype=torch.float64)
        torch.testing.assert_close(torch.arange(*args, dtype=dtype, device="neuron").cpu(), exact.to(dtype))


def test_arange_into_a_tensor(mode):
    for make in (lambda d: torch.zeros(5, 40, device=d).t()[:, ::2], lambda d: torch.zeros(3, 40, device=d)[:, 3:23]):
        cpu, ours = make("cpu"), make("neuron")
        n = cpu.numel()
        torch.arange(n, out=cpu)
        torch.arange(n, out=ours)
        assert ours.cpu().equal(cpu) and ours.stride() == cpu.stride()
    out = torch.zeros(3, device="neuron")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.arange(7, out=out)
    assert out.tolist() == list(range(7))


def test_arange_refuses_what_torch_refuses():
    for args in ((0, 5, 0), (0, 5, -1), (5, 0), (0, float("inf")), (float("nan"),)):
        with pytest.raises(RuntimeError) as cpu:
            torch.arange(*args, dtype=torch.float32)
        with pytest.raises(RuntimeError) as ours:
            torch.arange(*args, dtype=torch.float32, device="neuron")
        assert str(ours.value) == str(cpu.value)
    with pytest.raises(NotImplementedError):
        torch.arange(3, dtype=torch.bool, device="neuron")


def test_start_and_step_compile_nothing_new():
    for k in range(4):
        assert torch.arange(k, 10 + k, 1 + k % 2, device="neuron")[1].item() == 1 + k + k % 2
    before = ae.stats()["kernels_compiled"]
    for k in range(4, 9):
        assert torch.arange(k, 30 + k, 3 + k, device="neuron")[1].item() == 3 + 2 * k
    assert ae.stats()["kernels_compiled"] == before


@pytest.mark.parametrize("op", [torch.tril, torch.triu])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64, *FLOATS])
def test_triangles(op, dtype, mode):
    base = (torch.randn(3, 17, 23) * 3).to(dtype)
    views = (base, base.transpose(1, 2), base.permute(2, 0, 1), base[:, :1], base[..., :1], base[0], base[:, ::2, 3:],
             base[:, :0])  # fmt: skip
    for cpu in views:
        ours = torch.empty_strided(cpu.size(), cpu.stride(), dtype=dtype, device="neuron").copy_(cpu)
        for diagonal in (-30, -3, 0, 4, 40):
            want = op(cpu, diagonal)
            assert op(ours, diagonal).cpu().equal(want) and op(ours, diagonal).stride() == want.stride()
            assert getattr(ours.clone(), f"{op.__name__}_")(diagonal).cpu().equal(want)
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        op(torch.ones(3, dtype=dtype, device="neuron"))


def test_positions_beside_other_ops(mode):
    """Kernels with an index and loops of several dims, and reductions of both forms over them."""
    x = torch.randn(3, 17, 23)
    for _ in range(3):
        y = torch.tril(torch.exp(x.to("neuron")), 1)
        for dim in ((0,), (1,), (2,), (0, 1, 2)):
            torch.testing.assert_close(y.sum(dim).cpu(), torch.tril(torch.exp(x), 1).sum(dim))
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
            numbers = torch.empty(3, 17, 23, device="neuron").permute(order)
            torch.arange(numbers.numel(), out=numbers)
            total = (numbers * 2).sum(dim=(0, 2))
            want = torch.arange(3.0 * 17 * 23).reshape(numbers.shape)
            assert numbers.cpu().equal(want) and total.cpu().equal((want * 2).sum(dim=(0, 2)))
