"""One thread of a program on the CPU and on the device, statement by statement, compared after each.

After each statement the device's tensors take the CPU's values, so that errors do not pile up. The device runs
stepwise: that the other modes give the same bits is another check.
"""

from __future__ import annotations

import re

import torch
from program import Thread, namespace

import adaptive_eager as ae

RANDOM = re.compile(r"rand|dropout|bernoulli|normal_|uniform_|exponential_|geometric_|log_normal|cauchy_|multinomial")
#: These go through several ops, each with its rounding.
COMPOUND = re.compile(r"backward|grad|step\(|scaled_dot|norm\(|loss|entropy|normalize|var|std|for |cumprod|prod")
#: What differs between devices by definition.
DEVICE = re.compile(r"repr\(|\.device")


class Scope:
    """The variables of a thread on one device."""

    def __init__(self, device: str):
        self.names = {**namespace(), "dev": device, "reads": [], "kept": []}

    def run(self, statement: str) -> None:
        exec(compile(statement, "<statement>", "exec"), self.names)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that holds values: variables, their grads, what is kept or read, optimizers' states."""
        found: dict[str, torch.Tensor] = {}

        def add(name: str, value: object) -> None:
            if isinstance(value, torch.Tensor):
                try:
                    grad = value.grad if value.is_leaf else None
                except (
                    RuntimeError
                ):  # one of several views, whose base was written since: torch does not let it be used
                    return
                found[name] = value
                if grad is not None:
                    found[f"{name}.grad"] = grad
            elif isinstance(value, (list, tuple)):
                for i, v in enumerate(value):
                    add(f"{name}[{i}]", v)
            elif isinstance(value, float):
                found[name] = torch.tensor(value)
            elif isinstance(value, torch.optim.Optimizer):
                for i, state in enumerate(value.state.values()):
                    for key, v in state.items():
                        add(f"{name}.state[{i}][{key}]", v)

        for name, value in self.names.items():
            add(name, value)
        return found


def statements(thread: Thread) -> list[str]:
    out = list(thread.setup)
    for k in range(min(thread.rounds, 2)):
        out += [f"k = {k}", *thread.body]
    return out


def difference(thread: Thread) -> str:
    """Where the device's values are not close to the CPU's, in words; "" if nowhere."""
    cpu, device = Scope("cpu"), Scope("neuron")
    drawn = False  # whether a graph may hold other random numbers
    with ae.stepwise():
        for statement in statements(thread):
            drawn = drawn or bool(RANDOM.search(statement) or DEVICE.search(statement))
            before = {n: t.detach().clone() for n, t in cpu.tensors().items()}
            in_any_order = reads_what_it_writes(statement, cpu.tensors())
            cpu.run(statement)
            try:
                device.run(statement)
            except Exception as error:
                return f"{statement}\nonly the device refuses: {type(error).__name__}: {error}"
            expected, actual = cpu.tensors(), device.tensors()
            if expected.keys() != actual.keys():
                return f"{statement}\n{sorted(expected.keys() ^ actual.keys())} exist on one device only"
            for name, e in expected.items():
                a = actual[name]
                # On the CPU alone torch fills a slice that is given a number, so that integers want gradients.
                grads_differ = e.is_floating_point() and a.requires_grad != e.requires_grad
                if (a.dtype, a.shape) != (e.dtype, e.shape) or grads_differ:
                    return (
                        f"{statement}\n{name} is {a.dtype} {tuple(a.shape)} {a.requires_grad}, "
                        f"the CPU's {e.dtype} {tuple(e.shape)} {e.requires_grad}"
                    )
                if not drawn and not in_any_order and not name.startswith(("kept[", "reads[")):
                    found = far(a, e, statement, name, before)
                    if found:
                        return f"{statement}\n{name}: {found}"
            refeed(expected, actual)
    return ""


def reads_what_it_writes(statement: str, tensors: dict[str, torch.Tensor]) -> bool:
    """Whether an in-place op reads elements that it writes elsewhere, which torch refuses only where it sees it: not of
    an input that overlaps itself. What is read then depends on the order of the elements."""
    written = re.match(r"(\w+)\.\w+_\(", statement)
    if not written or written[1] not in tensors:
        return False
    storage = tensors[written[1]].untyped_storage().data_ptr()
    return any(
        tensors[name].untyped_storage().data_ptr() == storage and torch._debug_has_internal_overlap(tensors[name])
        for name in set(re.findall(r"\w+", statement[written.end() :])) & tensors.keys()
    )


def far(actual: torch.Tensor, expected: torch.Tensor, statement: str, name: str, before: dict) -> str:
    """How far a result is from the CPU's, if it is too far."""
    a, e = actual.detach().cpu(), expected.detach().cpu()
    if torch.equal(a, e) or a.numel() == 0:
        return ""
    used = [before[n] for n in set(re.findall(r"\w+", statement)) if n in before]
    if not e.is_floating_point():
        return "" if undefined(e.dtype, used) or (a == e).all() else describe(a, e, a != e)
    # A normalisation of equal numbers multiplies rounding errors by 1/sqrt(eps), 316.
    factor = 300 if "backward" in statement else 30 if COMPOUND.search(statement) else 2
    finite = [t.double()[t.isfinite()].abs().max() for t in (*used, e) if t.numel() and t.isfinite().any()]
    scale = max([1.0, *(float(v) for v in finite)])
    rtol, atol = torch.testing._comparison.default_tolerances(e.dtype)
    if any(t.dtype in (torch.float16, torch.bfloat16) for t in used):
        rtol, atol = max(rtol, 1e-2), 1e-2
    close = torch.isclose(a.double(), e.double(), rtol=rtol * factor, atol=atol * factor * scale, equal_nan=True)
    if COMPOUND.search(statement) and any(extreme(t) for t in used):
        return ""  # its squares overflow here and not there
    if close.all() or scale > 1e6 or nearer(a, e, statement, name, before):
        return ""
    return describe(a, e, ~close)


def extreme(t: torch.Tensor) -> bool:
    """Whether a number's square may overflow or underflow in float32."""
    size = t.double().abs()
    return bool(((size > 1e18) | ((size > 0) & (size < 1e-18))).any())


def undefined(dtype: torch.dtype, used: list[torch.Tensor]) -> bool:
    """Whether a float among the operands may be out of the range of an integer dtype: anything goes then."""
    if dtype == torch.bool:
        return False
    info = torch.iinfo(dtype)
    return any(t.is_floating_point() and bool(((t < info.min) | (t > info.max) | t.isnan()).any()) for t in used) or (
        dtype == torch.uint8 and any(t.dtype.is_signed and bool((t < 0).any()) for t in used)
    )


def nearer(a: torch.Tensor, e: torch.Tensor, statement: str, name: str, before: dict) -> bool:
    """Whether every element is about as near as the CPU's to the result in float64."""
    if "\n" in statement or not statement.startswith(f"{name} = "):
        return False
    wide = {n: t.double() if t.is_floating_point() else t for n, t in before.items()}
    wider = re.sub(r"torch\.b?float16|torch\.half", "torch.float64", statement)
    try:
        exact = eval(wider.partition(" = ")[2], {**namespace(), "dev": "cpu", "k": 0, **wide})
    except Exception:
        return False
    if not isinstance(exact, torch.Tensor) or exact.shape != a.shape:
        return False
    exact = exact.to(a.dtype).double()
    a, e = a.double(), e.double()
    slack = torch.finfo(torch.float32).eps * exact.abs()
    same = (a == e) | (a == exact) | (a.isnan() & (e.isnan() | exact.isnan()))
    return bool((same | ((a - exact).abs() <= 2 * (e - exact).abs() + slack)).all())


def describe(a: torch.Tensor, e: torch.Tensor, wrong: torch.Tensor) -> str:
    at = wrong.reshape(-1).nonzero()[:, 0]
    i = int(at[0])
    return (
        f"{len(at)} of {a.numel()} elements are not close, the first at {i}: "
        f"{a.reshape(-1)[i].item()!r}, the CPU's {e.reshape(-1)[i].item()!r}"
    )


def refeed(expected: dict[str, torch.Tensor], actual: dict[str, torch.Tensor]) -> None:
    """The device's tensors take the CPU's values, behind autograd's back. A storage is written once."""
    done = set()
    for name, e in expected.items():
        a = actual[name]
        if a.device.type == "cpu" or e.numel() == 0:
            continue
        e, a = e.data, a.data  # of a version counter of their own
        layout = (e.stride(), e.storage_offset(), e.untyped_storage().nbytes())
        if layout == (a.stride(), a.storage_offset(), a.untyped_storage().nbytes()):
            if a.untyped_storage().data_ptr() in done:
                continue
            done.add(a.untyped_storage().data_ptr())
            length = e.untyped_storage().nbytes() // e.element_size()
            a.as_strided((length,), (1,), 0).copy_(e.as_strided((length,), (1,), 0))
        elif 0 not in [k for n, k in zip(a.shape, a.stride(), strict=True) if n > 1]:
            a.copy_(e)
