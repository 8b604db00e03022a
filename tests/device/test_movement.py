"""Movement: elements placed elsewhere have the CPU's bits and strides in every mode, and are computed where they go."""

import pytest
import torch
import torch.nn.functional as F
from device_harness import check_program, counted, moved

import adaptive_eager as ae

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
)
DTYPES = (*DTYPES, torch.int8, torch.bool, torch.complex64)
LAST = torch.channels_last

# f(x, y): x and y are (4, 6, 5, 3) and equally laid out
MOVES = {
    "cat_first": lambda x, y: torch.cat([x, y]),
    "cat_last": lambda x, y: torch.cat([x, y, x], -1),
    "cat_middle": lambda x, y: torch.cat([x[:, 1:3], y, x[:, :0]], 1),
    "cat_promotes": lambda x, y: torch.cat([x.to(torch.int32), y[..., :1].to(torch.float64)], 3),
    "cat_legacy_empty": lambda x, y: torch.cat([torch.empty(0, device=x.device, dtype=x.dtype), x, y]),
    "cat_all_empty": lambda x, y: torch.cat([x[:0], y[:0]]),
    "cat_one": lambda x, y: torch.cat([x]),
    "cat_many": lambda x, y: torch.cat([x[:, :, k % 5] for k in range(40)], 1),
    "cat_expanded": lambda x, y: torch.cat([x[:1].expand(4, 6, 5, 3), y], 2),
    "cat_out": lambda x, y: torch.cat([x, y], 1, out=torch.empty(0, dtype=x.dtype, device=x.device)),
    "cat_out_strided": lambda x, y: torch.cat(
        [x, y], 0, out=torch.empty(8, 6, 3, 5, dtype=x.dtype, device=x.device).mT
    ),
    "stack": lambda x, y: torch.stack([x, y], 2),
    "stack_numbers": lambda x, y: torch.stack([x[0, 0, 0, 0], y[1, 1, 1, 1]]),
    "hstack": lambda x, y: torch.hstack([x, y]),
    "pad": lambda x, y: F.pad(x, (1, 2, 0, 3), value=1),
    "pad_right": lambda x, y: F.pad(x, (0, 2)),
    "pad_left": lambda x, y: F.pad(x, (0, 0, 0, 0, 3, 0), value=1),
    "pad_negative": lambda x, y: F.pad(x, (-1, 2, 1, -1)),
    "pad_only_negative": lambda x, y: F.pad(x, (-1, 0)),
    "pad_nothing": lambda x, y: F.pad(x, (0, 0)),
    "pad_to_nothing": lambda x, y: F.pad(x, (-3, 0)),
    "pad_empty": lambda x, y: F.pad(x[:0], (1, 0, 0, 1)),
    "flip": lambda x, y: x.flip(0),
    "flip_last": lambda x, y: x.flip(-1),
    "flip_all": lambda x, y: x.flip(0, 1, 2, 3),
    "flip_twice": lambda x, y: x.flip(1, 3).flip(3),
    "flip_none": lambda x, y: x.flip(()),
    "flip_empty": lambda x, y: x[:0].flip(1),
    "flip_slice": lambda x, y: x[:, 1::2].flip(1, 2)[1:],
    "roll": lambda x, y: x.roll(1, 1),
    "roll_far": lambda x, y: x.roll((-7, 23), (1, 2)),
    "roll_flat": lambda x, y: x.roll(-50),
    "roll_by_nothing": lambda x, y: x.roll((0, 6), (0, 1)),
    "roll_same_dim": lambda x, y: x.roll((1, 2, -1), (2, -2, 0)),
    "roll_empty": lambda x, y: x[:, :0].roll(1, 1),
    "roll_many": lambda x, y: x[None].roll((1, 1, 1, 1, 1), (0, 1, 2, 3, 4)),
    "repeat": lambda x, y: x.repeat(2, 1, 1, 3),
    "tile": lambda x, y: y[0].tile(2, 1, 2),
    "repeat_interleave": lambda x, y: x.repeat_interleave(3, dim=2),
    "diag_embed": lambda x, y: x.diag_embed(1, 0, 3),
    "slice_scatter": lambda x, y: x.slice_scatter(y[:, 1:3], 1, 2, 6, 2),
    "select_scatter": lambda x, y: x.select_scatter(y[:, 1], 1, 4),
    "permute": lambda x, y: x.permute(3, 1, 0, 2).contiguous(),
    "transpose": lambda x, y: x.mT.contiguous(),
    "channels_last": lambda x, y: x.contiguous(memory_format=LAST),
    "reshape": lambda x, y: x.transpose(1, 2).reshape(4, 5, 18),
    "rot90": lambda x, y: x.rot90(1, (2, 3)),
}
LAYOUTS = {
    "contiguous": lambda t: t,
    "channels_last": lambda t: t.contiguous(memory_format=LAST),
    "transposed": lambda t: t.mT.contiguous().mT,
    "offset": lambda t: torch.cat([t[:1], t])[1:],
    "steps": lambda t: t.repeat_interleave(2, 3)[..., ::2],
}


def operands(dtype, layout, device, k):
    torch.manual_seed(k)
    make = LAYOUTS[layout]
    return [moved(make((torch.randn(4, 6, 5, 3) * 3).to(dtype)), device) for _ in range(2)]


def check_exactly(program, rounds=4):
    """As `check_program`, with the CPU's very bits and strides."""
    check_program(program, rounds, rtol=0, atol=0)
    for k in range(rounds):
        assert program("neuron", k).stride() == program("cpu", k).stride()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("move", MOVES)
def test_moves(move, layout):
    def program(device, k):
        x, y = operands(torch.float32, layout, device, k)
        return MOVES[move](x, y)

    check_exactly(program)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moves_of_every_dtype(dtype):
    refused = {"cat_promotes"} if dtype == torch.complex64 else set()

    def program(device, k):
        x, y = operands(dtype, "contiguous", device, k)
        return [f(x, y) for name, f in MOVES.items() if name not in refused]

    check_program(program, rounds=3, rtol=0, atol=0)


@pytest.mark.parametrize("move", MOVES)
def test_between_arithmetic(move):
    """What is moved is computed in the window, and so is what becomes of it."""

    def program(device, k):
        x, y = operands(torch.float32, "contiguous", device, k)
        z = MOVES[move](x * 2 + 1, y - x)
        return z * 3 - 1, x, z.sum(-1)

    check_program(program)


@pytest.mark.parametrize("sizes", [(0,), (1,), (7,), (0, 3), (1, 1), (1, 9), (65, 1), (3, 1, 2)])
def test_small_sizes(sizes):
    def program(device, k):
        x = torch.randn(sizes).to(device)
        moved = [
            torch.cat([x, x], -1),
            torch.stack([x, x + 1], -1),
            x.flip(0),
            x.roll(1, 0),
            x.roll(3),
            x.repeat(2, *sizes),
        ]
        return [*moved, F.pad(x, (1, 0)), F.pad(x, (2, 2)), F.pad(x, (0, 1)), x.mT.contiguous() if x.dim() > 1 else x]

    check_program(program, rtol=0, atol=0)


def test_gradients():
    def program(device, k):
        x = torch.randn(6, 9).to(device).requires_grad_()
        a, b, c = x.split(3, 1)
        y = torch.cat(
            [a * b, c.flip(1), F.pad(x[:, ::4], (0, 1)), x[2:].roll(1, 0)[:, 4:5].expand(4, 6).repeat(2, 1)[:6]], 1
        )
        z = (y**2).sum() + x[:, 0].sum() + x.select(0, 2)[-1] + x.diagonal().prod() + x.unfold(1, 4, 2).exp().sum()
        z = z + x.unfold(0, 2, 3).exp().sum() + x[1:4, 2:5].sum() + x[:4].sin().sum() + x[:, 7:].cos().sum()
        z.backward()
        return x.grad

    check_program(program)


def test_views_of_odd_offsets():
    """Memory that no vector is aligned to, in elements of every size."""

    def program(device, k):
        memory = torch.arange(2048, dtype=torch.uint8).to(device)
        x = memory[3:].view(torch.uint8)[: 40 * 50].view(40, 50)
        y = memory.view(torch.int32)[1:401].view(20, 20)
        z = memory.view(torch.float64)[5:105].view(10, 10).nan_to_num(0, 0, 0)
        return [
            f(t) for t in (x, y, z) for f in (lambda t: t.mT.contiguous(), lambda t: t.flip(1), lambda t: t.roll(3, 1))
        ]

    check_program(program, rtol=0, atol=0)


ERRORS = {
    "nothing to cat": lambda x: torch.cat([]),
    "cat of other ranks": lambda x: torch.cat([x, x[0]]),
    "cat of other sizes": lambda x: torch.cat([x, x[:, 1:]]),
    "cat dim": lambda x: torch.cat([x, x], 5),
    "cat of a number": lambda x: torch.cat([x[0, 0, 0, 0]]),
    "cat out dtype": lambda x: torch.cat([x, x], out=torch.empty(0, dtype=torch.int32, device=x.device)),
    "cat out over a part": lambda x: torch.cat([x[0, 0], x[0, 1]], out=x[0, 1:3].flatten(0, 1)),
    "cat out of one place": lambda x: torch.cat([x[0], x[1]], out=x[0, 0, 0, :1].expand(12, 5, 3)),
    "stack of other sizes": lambda x: torch.stack([x, x[1:]]),
    "odd pad": lambda x: F.pad(x, (1,)),
    "long pad": lambda x: torch.constant_pad_nd(x, (1,) * 10),
    "pad below nothing": lambda x: F.pad(x, (-4, 0)),
    "flip dim": lambda x: x.flip(4),
    "flip a dim twice": lambda x: x.flip(1, 1),
    "roll by nothing": lambda x: x.roll((), ()),
    "roll dims": lambda x: x.roll((1, 2), (1,)),
    "roll dim": lambda x: x.roll(1, 7),
    "slice_backward dim": lambda x: torch.ops.aten.slice_backward(x, [4, 6, 5, 3], 4, 0, 1, 1),
    "slice_backward step": lambda x: torch.ops.aten.slice_backward(x, [4, 6, 5, 3], 1, 0, 1, 0),
    "slice_backward sizes": lambda x: torch.ops.aten.slice_backward(x, [4, 6, 5, 3], 1, 0, 2, 1),
    "select_backward index": lambda x: torch.ops.aten.select_backward(x[0], [4, 6, 5, 3], 0, 4),
}


@pytest.mark.parametrize("what", ERRORS)
def test_errors_are_torchs_at_the_call(what):
    raised = []
    for device in ("cpu", "neuron"):
        with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)) as info:
            ERRORS[what](torch.ones(4, 6, 5, 3, device=device))
        raised.append((info.type, str(info.value).split("\n")[0]))
    assert raised[0] == raised[1]


def launches(function, *args):
    """Kernels and host ops of one call, once it is fused."""
    with ae.adaptive():
        for _ in range(4):
            torch.neuron.synchronize()
            before = counted("launches"), counted("host_ops")
            result = function(*args)
            torch.neuron.synchronize()
            after = counted("launches"), counted("host_ops")
    del result
    return after[0] - before[0], after[1] - before[1]


class TestLaunches:
    """How many kernels and host ops a fused movement takes."""

    @pytest.fixture
    def x(self):
        return torch.randn(6, 8, device="neuron")

    def test_cat_of_what_is_computed_together(self, x):
        assert launches(lambda: torch.cat([x.exp(), x.sin()], 1)) == (1, 0)

    def test_cat_of_inputs_of_one_shape(self, x):
        y = torch.randn(6, 8, device="neuron")
        assert launches(lambda: torch.cat([x, y], 1)) == (1, 0)

    def test_stack(self, x):
        assert launches(lambda: torch.stack([x.exp(), x.sin(), x], 1)) == (1, 0)

    def test_many_small_parts_are_a_host_op(self, x):
        assert launches(lambda: torch.cat([x] * 40)) == (0, 1)

    def test_pad(self, x):
        assert launches(lambda: F.pad(x.exp(), (1, 1))) == (2, 0)
        assert launches(lambda: F.pad(x.exp(), (0, 1))) == (2, 0)

    def test_gradient_of_a_slice(self, x):
        """Two borders of zeros, and the gradient where it is computed."""
        assert launches(lambda: torch.ops.aten.slice_backward(x.exp(), [6, 20], 1, 2, 10, 1)) == (3, 0)
        assert launches(lambda: torch.ops.aten.slice_backward(x.exp(), [6, 20], 1, 0, 8, 1)) == (2, 0)

    def test_flip_joins_what_is_made_of_it(self, x):
        assert launches(lambda: x.flip(1).exp()) == (1, 0)

    def test_transposed_copy_joins_its_producer(self, x):
        assert launches(lambda: x.t().exp().contiguous()) == (1, 0)

    def test_a_value_is_reduced_and_placed(self, x):
        def program():
            out = torch.empty(6, 16, device="neuron")
            y = x.exp()
            out[:, 8:] = y
            return out, y.sum(1)

        assert launches(program) == (1, 0)
