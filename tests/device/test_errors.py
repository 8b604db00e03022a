"""Wrong input. What shapes, dtypes and devices decide is torch's own error, at the call. What values decide is an error
that names the op and the line of the user's program that recorded it, and the device goes on working."""

import inspect
import sys

import pytest
import torch
import torch.nn.functional as F
from device_harness import run_script

SHAPE_ERRORS = {
    "add": lambda x: x + x[:, :3],
    "add_in_place": lambda x: x.sum(0).add_(x),
    "mm": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x[:, :3]),
    "cat": lambda x: torch.cat([x, x[:, :2]]),
    "reshape": lambda x: x.reshape(5, 5),
    "view": lambda x: x.t().view(-1),
    "dim": lambda x: x.sum(5),
    "expand": lambda x: x.expand(3, 5),
    "amax_of_nothing": lambda x: x[:0].amax(0),
    "max_of_nothing": lambda x: x[:0].max(),
    "argmax_of_nothing": lambda x: x[:0].argmax(),
    "in_place_on_expanded": lambda x: x[:, :1].expand(3, 4).add_(1),
    "item": lambda x: x.item(),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None].expand(2, 3, 3, 4)),
    "index_select": lambda x: x.index_select(0, x.long()),
    "stack": lambda x: torch.stack([x, x[0]]),
}
DTYPE_ERRORS = {
    "add_in_place": lambda x: x.long().add_(1.5),
    "out": lambda x: torch.add(x, x, out=torch.empty_like(x, dtype=torch.int64)),
    "bitwise": lambda x: x & x,
    "mean_of_integers": lambda x: x.long().mean(),
    "mm": lambda x: x @ x.t().double(),
    "where": lambda x: torch.where(x, x, x),
    "embedding": lambda x: F.embedding(x, x),
    "log_softmax": lambda x: torch.log_softmax(x.long(), 0),
    "clamp_without_bounds": lambda x: x.clamp(),
    "subtract_bools": lambda x: (x > 0) - (x > 0),
    "neg_bool": lambda x: -(x > 0),
    "subtract_a_mask": lambda x: x - (x > 0),
    "subtract_a_bool": lambda x: x - True,
    "subtract_from_a_bool": lambda x: True - x,
    "subtract_in_place_a_bool": lambda x: x.sub_(True),
    "rsub_bools": lambda x: torch.rsub(x > 0, x > 0),
    "rsub_with_a_bool_alpha": lambda x: torch.rsub(x, x, alpha=True),
    "heaviside_with_bool": lambda x: torch.heaviside(x, x > 0),
    "out_of_abs": lambda x: torch.abs(x, out=x.double()),
    "out_of_floor": lambda x: torch.floor(x, out=x.half()),
    "abs_bool": lambda x: (x > 0).abs(),
    "relu_bool": lambda x: F.relu(x > 0),
    "floor_bool": lambda x: (x > 0).floor(),
    "shift_floats": lambda x: torch.bitwise_left_shift(x, x),
    "shift_by_a_float": lambda x: x << 2.0,
    "randint": lambda x: torch.randint(5, 3, (3,), device=x.device),
}
# Numbers that an integer power cannot take, or that the dtype cannot hold where the kernel has to hold them.
NUMBER_ERRORS = {
    "negative_power": lambda x: x.long() ** -1,
    "negative_power_in_place": lambda x: x.int().pow_(-2),
    "negative_power_of_bool": lambda x: (x > 0) ** -1,
    "power": lambda x: x.char() ** 300,
    "power_of_half": lambda x: x.half() ** 1e5,
    "alpha": lambda x: torch.add(x.byte(), x.byte(), alpha=300),
    "alpha_in_place": lambda x: x.half().add_(x.half(), alpha=1e6),
    "alpha_of_sub": lambda x: torch.sub(x, x, alpha=1e39),
    "clamp": lambda x: x.char().clamp(0, 300),
    "clamp_min": lambda x: x.half().clamp_min(-1e5),
    "fill": lambda x: x.byte().fill_(300),
    "fill_with_infinity": lambda x: x.long().fill_(float("inf")),
    "full": lambda x: torch.full((3,), 2**40, dtype=torch.int32, device=x.device),
    "masked_fill_of_half": lambda x: x.half().masked_fill(x > 0, -1e9),
    "setitem": lambda x: x.short().__setitem__(0, 1e5),
    "addcmul": lambda x: torch.addcmul(x.int(), x.int(), x.int(), value=2**40),
    "threshold": lambda x: F.threshold(x.char(), 0, 300),
    "hardtanh": lambda x: F.hardtanh(x.char(), 0, 300),
    "hardtanh_of_unsigned": lambda x: F.hardtanh(x.byte(), -1, 1),
    "where": lambda x: torch.where(x > 0, x.byte(), 300),
}
ERRORS = {"shape": SHAPE_ERRORS, "dtype": DTYPE_ERRORS, "number": NUMBER_ERRORS}


def error_of(call, device):
    """The exception that `call` raises, before anything is read or flushed."""
    x = torch.ones(3, 4).to(device)
    with pytest.raises((RuntimeError, IndexError, TypeError, ValueError)) as caught:
        call(x)
    return caught.value


@pytest.mark.filterwarnings("ignore:.*runs on the host")
@pytest.mark.parametrize("name", [f"{kind}-{n}" for kind, cases in ERRORS.items() for n in cases])
def test_torchs_own_error_at_the_call(name):
    kind, _, key = name.partition("-")
    call = ERRORS[kind][key]
    on_device, on_cpu = error_of(call, "neuron"), error_of(call, "cpu")
    assert isinstance(on_device, RuntimeError) == isinstance(on_cpu, RuntimeError)
    # The same sentence, up to the spelling of tensor types and of sizes.
    assert words(on_device)[:6] == words(on_cpu)[:6]


def words(error):
    return str(error).splitlines()[0].replace("torch.FloatTensor", "").replace("*, ", "").split()


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: x + y,
        lambda x, y: y + x,
        lambda x, y: x @ y.t(),
        lambda x, y: torch.cat([x, y]),
        lambda x, y: x.add_(y),
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: F.linear(x, y),
        lambda x, y: torch.add(x, x, out=y),
    ],
    ids=["add", "radd", "mm", "cat", "add_", "where", "linear", "out"],
)
def test_two_devices_in_one_call(call):
    with pytest.raises(RuntimeError, match=r"(?i)device"):
        call(torch.ones(3, 4, device="neuron"), torch.ones(3, 4))


def test_a_failed_call_records_nothing():
    x = torch.ones(3, device="neuron")
    y = x + 1
    with pytest.raises(RuntimeError):
        x + torch.ones(4, device="neuron")
    assert y.tolist() == [2, 2, 2]
    assert (y * 2).tolist() == [4, 4, 4]


def test_numpy_wants_a_host_tensor():
    with pytest.raises(TypeError, match=r"cpu\(\)"):
        torch.ones(3, device="neuron").numpy()


def line_here():
    return inspect.currentframe().f_back.f_lineno


def out_of_range_embedding():
    return F.embedding(torch.tensor([0, 9]).to("neuron"), torch.ones(3, 4, device="neuron"))


def out_of_range_index():
    return torch.ones(3, device="neuron")[torch.tensor([5]).to("neuron")]


def out_of_range_gather():
    return torch.gather(torch.ones(3, device="neuron"), 0, torch.tensor([7]).to("neuron"))


def out_of_range_target():
    return F.nll_loss(torch.ones(2, 3, device="neuron"), torch.tensor([0, 9]).to("neuron"))


def floor_divide_by_zero():
    return torch.arange(3, device="neuron") // torch.tensor([1, 0, 1]).to("neuron")


def remainder_by_zero():
    return torch.arange(3, device="neuron") % torch.tensor([1, 0, 1]).to("neuron")


def divide_by_zero_number():
    return torch.arange(3, device="neuron") // 0


DATA_ERRORS = {
    out_of_range_embedding: ("embedding", "out of range"),
    out_of_range_index: ("index", "out of bounds"),
    out_of_range_gather: ("gather", "out of bounds"),
    out_of_range_target: ("nll_loss", "Target 9 is out of bounds"),
    floor_divide_by_zero: ("floor_divide", "division"),
    remainder_by_zero: ("remainder", "modulo by zero"),
    divide_by_zero_number: ("floor_divide", "by zero"),
}


@pytest.mark.parametrize("function", DATA_ERRORS, ids=lambda f: f.__name__)
def test_errors_of_values_name_the_op_and_the_line(function, mode):
    op, reason = DATA_ERRORS[function]
    line = function.__code__.co_firstlineno + 1
    for _ in range(4):  # also when the window is hot
        with pytest.raises((RuntimeError, IndexError)) as caught:
            function().sum().item()
        assert op in str(caught.value) and reason in str(caught.value)
        if mode != "stepwise":  # there the traceback says it
            assert f"{__file__}:{line}" in str(caught.value)
        assert torch.ones(3, device="neuron").add(1).tolist() == [2, 2, 2]


def test_the_line_is_that_of_this_call_not_of_an_equal_one():
    """Two places that record the same op on the same layouts: each error names its own."""
    a, b = torch.arange(5, device="neuron"), torch.zeros(5, dtype=torch.int64, device="neuron")
    good = a // (b + 1)
    good.cpu()
    for _ in range(3):
        bad = a // b
        line = line_here() - 1
        with pytest.raises(RuntimeError) as caught:
            bad.cpu()
        assert f":{line}" in str(caught.value)


def test_what_was_recorded_before_the_error_keeps_its_values():
    x = torch.arange(4, device="neuron")
    before = x + 1
    bad = x // torch.zeros(4, dtype=torch.int64).to("neuron")
    with pytest.raises(RuntimeError, match="zero"):
        bad.cpu()
    assert before.tolist() == [1, 2, 3, 4]
    assert (before * 2).tolist() == [2, 4, 6, 8]


def test_float_division_by_zero_is_no_error():
    x = torch.tensor([1.0, 0.0, -1.0]).to("neuron")
    assert torch.equal((x / 0).cpu().nan_to_num(7, 8, 9), torch.tensor([8.0, 7.0, 9.0]))
    assert (x // 0).cpu()[0] == float("inf")


def test_deferred_errors_can_be_caught_at_synchronize():
    torch.arange(3, device="neuron") // torch.zeros(3, dtype=torch.int64).to("neuron")
    kept = torch.arange(3, device="neuron") // torch.zeros(3, dtype=torch.int64).to("neuron")
    with pytest.raises(RuntimeError, match="zero"):
        torch.neuron.synchronize()
    torch.neuron.synchronize()
    del kept


def test_a_device_that_is_not_there():
    with pytest.raises(RuntimeError, match=r"neuron:5"):
        torch.empty(3, device="neuron:5")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/nonexistent/libnrt.so", "{other}"], ids=["missing", "not_a_runtime"])
def test_a_runtime_library_that_cannot_be_used(path, tmp_path):
    """One line with the path tried and the cure; `import torch` goes on without the device."""
    other = tmp_path / "libother.so"
    other.write_bytes(b"this is not a library")
    path = path.format(other=other)
    done = run_script(
        """
        import torch
        assert not hasattr(torch, "neuron")
        print(torch.ones(3).sum().item())
        import adaptive_eager
        try:
            adaptive_eager.stats()
        except RuntimeError as error:
            print(error)
        """,
        ADAPTIVE_EAGER_RUNTIME=path,
    )
    assert done.returncode == 0, done.stderr
    total, error = done.stdout.strip().split("\n")
    assert total == "3.0"
    assert path in error and "software" in error
    warned = [line for line in done.stderr.splitlines() if "neuron device is not available" in line]
    assert len(warned) == 1 and path in warned[0]


def test_the_users_own_exception_is_not_touched():
    x = torch.ones(3, device="neuron") + 1
    with pytest.raises(KeyError):
        raise KeyError("mine")
    assert x.tolist() == [2, 2, 2]
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("shape", [(2, 3), (2,), (3, 1)])
def test_a_copy_that_does_not_fit_is_refused_in_the_words_of_the_cpu(shape):
    said = []
    for device in ("cpu", "neuron"):
        with pytest.raises(RuntimeError) as error:
            torch.ones(3, device=device).copy_(torch.ones(shape, device=device))
        said.append(str(error.value).splitlines()[0])
    assert said[0] == said[1]
