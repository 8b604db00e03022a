"""Wrong arguments, as torch's op database has them: the same exception as on the CPU, at the call.

Every op first runs on its good samples, so that a check that only the first call makes would be missed.
"""

import gc
import re
from itertools import islice

import pytest
import torch
from device_harness import moved
from torch.testing._internal.common_methods_invocations import op_db

gc.freeze()  # op_db is half a million objects that the garbage collector need not look at again and again

pytestmark = [pytest.mark.filterwarnings("ignore")]

OPS = [op for op in op_db if op.error_inputs_func is not None]

# (op, position of the sample): why it differs.
DIFFERENT = {
    ("narrow_copy", 1): "torch has a kernel of its own for CPU; other devices get narrow's words",
    ("narrow_copy", 6): "torch has a kernel of its own for CPU; other devices get narrow's words",
}
# Indices in a tensor are values: known when the window runs, and reported with the line that recorded the op.
OF_VALUES = {("gather", 4), ("scatter", 3), ("scatter_add", 3)}


def on(device, value):
    """As `moved`, but tensors that are on another device already are part of the error."""
    if isinstance(value, torch.Tensor):
        return moved(value, device) if value.device.type == "cpu" else value
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(on(device, v) for v in value)
    if isinstance(value, dict):
        return {key: on(device, v) for key, v in value.items()}
    return moved(value, device)


def call(op, device, sample):
    return op(on(device, sample.input), *on(device, sample.args), **on(device, sample.kwargs))


def error_of(op, device, sample):
    """The exception of the call, and whether it came there or later, when the window ran."""
    try:
        call(op, device, sample)
    except Exception as error:
        return error, "call"
    try:
        torch.neuron.synchronize()
    except Exception as error:
        return error, "flush"
    return None, "never"


def use(op):
    """The op on a few good samples."""
    try:
        samples = list(islice(op.sample_inputs("cpu", torch.float32), 6))
    except Exception:  # some ops have no float samples
        return
    for sample in samples:
        try:
            call(op, "neuron", sample)
        except Exception:
            continue
    torch.neuron.synchronize()


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
def test_wrong_arguments(op):
    use(op)
    for i, wrong in enumerate(op.error_inputs("cpu")):
        if (op.formatted_name, i) in DIFFERENT:
            continue
        expected, _ = error_of(op, "cpu", wrong.sample_input)
        actual, where = error_of(op, "neuron", wrong.sample_input)
        if expected is None:
            assert actual is None, f"sample {i}: only on the device: {actual!r}"
            continue
        assert actual is not None, f"sample {i}: no error; on the CPU {expected!r}"
        allowed = ("call", "flush") if (op.formatted_name, i) in OF_VALUES else ("call",)
        assert where in allowed, f"sample {i}: late: {actual!r}"
        assert type(actual) is type(expected), f"sample {i}: {actual!r} instead of {expected!r}"
        said = str(actual)
        assert re.search(wrong.error_regex, said) or str(expected).splitlines()[0] in said, f"sample {i}: {said}"
