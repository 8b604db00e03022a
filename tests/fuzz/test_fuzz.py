"""Differential fuzzing with fixed seeds, and the fuzzer itself: it finds a planted fault and shrinks it to a few lines.

`make fuzz` runs new seeds for as long as FUZZ_SECONDS says; FUZZ_SEED=n repeats one.
"""

import os
import subprocess
import sys
from pathlib import Path

import fuzz
import pytest
import writer
from program import Program, Thread
from runs import Fault, Run, check

SEEDS = 180
PROGRAM = Program(
    (Thread(("t0 = fill(1, (3, 4)).to(dev)",), ("t1 = (t0 * 2 + k).sum(-1)", "t0 = t0 - 1"), 3),), {"max_ops": 3}, 2
)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, SEEDS, 6))
def test_fixed_seeds(start):
    for seed in range(start, start + 6):
        found = fuzz.check_seed(seed)
        assert not found, found


def test_a_seed_writes_one_program():
    assert [writer.write(seed) for seed in range(5)] == [writer.write(seed) for seed in range(5)]


def run_script(script, **environment):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=280, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("kind", ["bits", "error", "cpu", "unfused", "memory"])
def test_the_script_of_a_sound_program_runs(kind):
    assert check(PROGRAM) is None
    done = run_script(PROGRAM.script(Fault(kind, Run("adaptive", 2), "").checks()))
    assert done.returncode == 0, done.stderr


#: Fused kernels add where they should multiply or subtract. It is for a process of its own: what it compiles is wrong.
WRONG_WHEN_FUSED = """
from dataclasses import replace
from adaptive_eager import planner

plan = planner.Planner._plan_window

def wrong(self, trace, *others):
    swapped = {"mul": "add", "sub": "add"}
    nodes = tuple(replace(n, op=swapped.get(n.op, n.op)) for n in trace.nodes)
    return plan(self, replace(trace, nodes=nodes), *others)

planner.Planner._plan_window = wrong
"""
#: A compiled op whose values are not torch's, in every mode alike.
WRONG_ROW = """
from adaptive_eager.compiler import semantics
semantics.OPS["mul"] = semantics.lookup("maximum")
"""
SEARCH = """
import sys
sys.path.insert(0, {folder!r})
import fuzz, writer
for seed in range(60):
    found = fuzz.check_seed(seed, 200)
    if {kind!r} in found:
        print(found)
        break
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"), [(WRONG_WHEN_FUSED, 'bits: run(threads, "adaptive"'), (WRONG_ROW, "cpu: against")]
)
def test_a_planted_fault_is_found_and_shrunk(fault, kind):
    search = SEARCH.format(folder=str(Path(__file__).parent), kind=kind)
    done = run_script(fault + search, ADAPTIVE_EAGER_CACHE="off", OMP_WAIT_POLICY="passive")
    assert kind in done.stdout, done.stdout + done.stderr
    script = done.stdout[done.stdout.index("import os") :]
    body = script.split("def thread_0(dev):\n")[1].split("return reads")[0].strip().split("\n")
    assert len(body) <= 8 and "def thread_1" not in script, script
    # The script shows the fault as it stands, and shows none where there is none.
    marker = "import adaptive_eager as ae\n"
    planted = run_script(script.replace(marker, marker + fault, 1))
    assert planted.returncode == 1 and "AssertionError" in planted.stderr, planted.stderr
    assert run_script(script).returncode == 0
