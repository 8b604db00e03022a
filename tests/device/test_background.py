"""Kernels compiled in the background: the window runs op by op meanwhile, with the same bits."""

import pytest
from device_harness import output_of

PROGRAM = """
import os, sys, threading, time, torch
import adaptive_eager as ae

def step(x, i):
    for _ in range(12):
        x = torch.tanh(x * 1.25 + i) - torch.sigmoid(x)
    return x.sum()

x = torch.linspace(-1, 1, 1000, device="neuron")
ae.flush()
"""


@pytest.fixture
def run(tmp_path):
    """run(script): what it prints, with an empty cache."""
    return lambda script: output_of(
        PROGRAM + script,
        timeout=120,
        ADAPTIVE_EAGER_BACKGROUND="on",
        ADAPTIVE_EAGER_CACHE_DIR=tmp_path / "cache",
    )


def test_plans_come_while_the_program_runs(run):
    out = run(
        """
with ae.stepwise():
    expected = [step(x, i).item() for i in range(6)]
results = [step(x, i).item() for i in range(3)]
ae.wait_for_plans()
before = ae.stats()["plans_new"]
results += [step(x, i).item() for i in range(3, 6)]
print(results == expected, ae.stats()["plans_new"] - before >= 1, ae.stats()["plans_failed"])
"""
    )
    assert out == "True True 0"


def test_waiting_without_any_plan(run):
    assert run("ae.wait_for_plans(); print('done')") == "done"


@pytest.mark.parametrize("ending", ["sys.exit(0)", "pass", "threading.Thread(target=lambda: time.sleep(0.2)).start()"])
def test_exit_while_compiling(ending, run):
    out = run(
        f"""
for i in range(3):
    step(x, i).item()
(x * 3 + 1).exp().log1p().sqrt().sum().item()
print("end", flush=True)
{ending}
"""
    )
    assert out == "end"


def test_fork_while_compiling(run):
    """The child goes on with what was begun, and compiles windows of its own."""
    out = run(
        """
for i in range(2):
    parent = step(x, i).item()
for child in range(3):
    pid = os.fork()
    if pid == 0:
        ok = step(x, 1).item() == parent
        ae.wait_for_plans()
        before = ae.stats()["plans_new"] + ae.stats()["plans_hit"]
        ok &= step(x, 1).item() == parent
        ok &= ae.stats()["plans_new"] + ae.stats()["plans_hit"] == before + 1
        for i in range(3):
            (x * 3 + child).exp().log1p().sqrt().sum().item()
        ae.wait_for_plans()
        os._exit(0 if ok else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(step(x, 1).item() == parent)
"""
    )
    assert out.split() == ["0", "0", "0", "True"]


def test_interrupt_while_compiling(run):
    out = run(
        """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for i in range(100_000):
        y = torch.cat([x] * (i % 50 + 1)).mul(i).add(1).sum()
        for _ in range(i % 7):
            y = torch.tanh(y * 2)
        y.item()
except KeyboardInterrupt:
    print("interrupted")
ae.wait_for_plans()
print((x * 0 + 2).sum().item(), ae.stats()["plans_failed"])
"""
    )
    assert out.split() == ["interrupted", "2000.0", "0"]


def test_failure_in_the_background(run):
    out = run(
        """
from adaptive_eager import backend
with ae.stepwise():
    expected = step(x, 1).item()
service = backend.planner().kernels
service._compile = lambda kernel: 1 / 0
results = []
for _ in range(5):
    results.append(step(x, 1).item())
    ae.wait_for_plans()
print(set(results) == {expected}, ae.stats()["plans_failed"], list(ae.stats()["not_fused"]))
"""
    )
    assert out == "True 1 ['ZeroDivisionError: division by zero']"
