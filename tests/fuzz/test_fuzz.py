"""Differential fuzzing: random programs give the same bits in every mode, round after round.

`FUZZ_SECONDS` runs new seeds for that long (make fuzz); without it a fixed set of seeds is run.
"""

import programs
import pytest
import torch
from told import check_new_seeds

import adaptive_eager as ae
from adaptive_eager import backend

SEEDS = 150
ROUNDS = 4  # the window is hot from the second on


def make_inputs(seed, device):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for shape, dtype, transposed in programs.inputs_of(seed):
        values = torch.randn(shape, generator=generator) * 3
        values = values.to(getattr(torch, dtype)).to(device)
        made.append(values.transpose(0, -1).contiguous().transpose(0, -1) if transposed else values)
    return made


def run(source, seed, mode):
    """What `ROUNDS` rounds of a program give: every tensor as its bytes, and every value read on the way."""
    scope = {"torch": torch}
    exec(source, scope)
    results = []
    with getattr(ae, mode)():
        for k in range(ROUNDS):
            torch.manual_seed(seed)
            reads = []
            left = scope["run"](make_inputs(seed, "neuron"), k + 1, reads)
            values = {}
            for name, value in sorted(left.items()):
                host = torch.empty(value.shape, dtype=value.dtype).copy_(value)
                if host.is_floating_point():  # which of two NaNs a product hands on is nobody's promise
                    host[host.isnan()] = float("nan")
                values[name] = (host.dtype, tuple(host.shape), host.view(-1).view(torch.uint8).numpy().tobytes())
            results.append((values, reads))
    return results


def check(seed):
    source = programs.program(seed)
    expected = run(source, seed, "stepwise")
    for mode in ("per_op", "adaptive"):
        for k, (got, want) in enumerate(zip(run(source, seed, mode), expected, strict=True)):
            wrong = [name for name in want[0] if got[0].get(name) != want[0][name]]
            assert not wrong and got[1] == want[1], (
                f"seed {seed}, mode {mode}, round {k}: {wrong} differ from stepwise\n"
                f"{programs.inputs_of(seed)}\n{source}"
            )
    failures = backend.planner().failures
    assert not failures, f"seed {seed}: a window could not be fused: {failures}\n{source}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", range(0, SEEDS, 10))
def test_fixed_seeds(start):
    for seed in range(start, start + 10):
        check(seed)


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(0)
def test_for_as_long_as_told():
    check_new_seeds(check)
