"""What the device tests share: tensors moved with their layout, programs compared between modes and with the CPU."""

import os
import signal
import subprocess
import sys
import textwrap

import torch

import adaptive_eager as ae

MODES = ("stepwise", "per_op", "adaptive")


def moved(value, device):
    """`value` with every tensor inside moved to `device` with its whole storage: same sizes, strides and offset."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            return value.detach().to(device)
        value = value.detach()
        length = value.untyped_storage().nbytes() // value.element_size()
        storage = value.as_strided((length,), (1,), 0).to(device, copy=True)
        return storage.as_strided(value.size(), value.stride(), value.storage_offset())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(v, device) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(moved(v, device) for v in value)
    if isinstance(value, dict):
        return {key: moved(v, device) for key, v in value.items()}
    if isinstance(value, torch.device) or value in ("cpu", "cpu:0"):
        return torch.device(device)
    return value


HALVES = (torch.float16, torch.bfloat16)


def widened(value):
    """`value` with its half-precision tensors, at any depth, in float64."""
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.dtype in HALVES else value
    if isinstance(value, (list, tuple)):
        return type(value)(widened(v) for v in value)
    if isinstance(value, dict):
        return {key: widened(v) for key, v in value.items()}
    return value


def assert_close_or_exact(actual, expected, exact, **options):
    """Asserts that two tensors are close; where half-precision elements are not, that ours are as `exact()` says in
    float64, rounded. CPU kernels round half types midway in the tails of their vectors, and not elsewhere."""
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True, **options)
    except AssertionError:
        if actual.dtype not in HALVES or actual.shape != expected.shape or actual.dtype != expected.dtype:
            raise
        right = exact().to(actual.dtype)
        torch.testing.assert_close(torch.where(actual == right, expected, actual), expected, equal_nan=True, **options)


def tensors_in(value, numbers=True):
    """The tensors of nested lists, tuples and dicts, in order; with `numbers`, Python numbers as tensors too."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v, numbers)]
    return [torch.tensor(value)] if numbers and isinstance(value, (bool, int, float)) else []


def on_host(value):
    return [t.detach().cpu() for t in tensors_in(value)]


def same_bits(a, b):
    """Whether two host tensors have the same dtype, sizes and bits, where any NaN equals any NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.is_complex():
        return same_bits(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj()))
    if not a.is_floating_point():
        return torch.equal(a, b)
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    bits = a.contiguous().view(integer) == b.contiguous().view(integer)
    return bool((bits | (a.isnan() & b.isnan())).all())


def assert_same_bits(actual, expected, what=""):
    assert len(actual) == len(expected), what
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if not same_bits(a, b):
            kinds = f"{a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
            far = (a.double() - b.double()).abs().max() if a.shape == b.shape else "-"
            raise AssertionError(f"{what}: result {i} has other bits: {kinds}, largest difference {far}")


def rounds_of(program, device, rounds):
    """Results of `program(device, round)` for each round, on the host, from the same seed each time."""
    results = []
    for k in range(rounds):
        torch.manual_seed(1234 + k)
        results.append(on_host(program(device, k)))
    return results


def check_program(program, rounds=4, rtol=None, atol=None, cpu=True):
    """Runs `program(device, round)` in every mode and on the CPU. The modes must agree in every bit, in every round
    (the first runs op by op, the later ones fused); the CPU within torch's tolerances of the dtypes.

    Returns the results of the last round.
    """
    by_mode = {}
    for mode in MODES:
        with getattr(ae, mode)():
            by_mode[mode] = rounds_of(program, "neuron", rounds)
    for mode in ("per_op", "adaptive"):
        for k in range(rounds):
            assert_same_bits(by_mode[mode][k], by_mode["stepwise"][k], f"{mode} against stepwise, round {k}")
    if cpu:
        for k, expected in enumerate(rounds_of(program, "cpu", rounds)):
            for i, (a, b) in enumerate(zip(by_mode["adaptive"][k], expected, strict=True)):
                torch.testing.assert_close(
                    a, b, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, i=i, k=k: f"round {k}, result {i}: {m}"
                )
    return by_mode["adaptive"][-1]


def counted(name):
    """The present value of one counter of `adaptive_eager.stats()`."""
    return ae.stats()[name]


def run_script(script, timeout=60, **environment):
    """Runs a Python script in a process of its own. Keyword arguments are environment variables; None removes one."""
    env = dict(os.environ)
    for name, value in environment.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = str(value)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that the children it forks end with it
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"hangs: killed after {timeout} s\n{out}\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def output_of(script, timeout=60, **environment):
    """What a script prints; it must succeed."""
    done = run_script(script, timeout, **environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()
