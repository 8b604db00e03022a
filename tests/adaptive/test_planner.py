"""Planner: plans made, stored, found again, and what happens when something is wrong. Kernels are only numbers here."""

from __future__ import annotations

import gc
import json
import logging
import re
from pathlib import Path

import pytest
from row_calls import softmax
from traces import TraceBuilder

from adaptive_eager import params
from adaptive_eager.cache.key import KeyMaker
from adaptive_eager.cache.store import KernelStore
from adaptive_eager.compiler.codegen import CompileError
from adaptive_eager.kernels import LoadedKernel
from adaptive_eager.planner import Planner
from adaptive_eager.trace import FIRST_TEMPORARY

ROOT = Path(__file__).resolve().parents[2]


class FakeKernels:
    """What a planner uses of KernelService. `refuse` names ops that cannot be compiled."""

    def __init__(self, version="1"):
        self.keys = KeyMaker((), "no machine", versions=[("tests", version)])
        self.loaded: dict[str, LoadedKernel] = {}
        self.asked = 0
        self.refuse: set[str] = set()
        self.interrupts = 0
        self.broken = False

    def key_of(self, kernel):
        return self.keys.key("kernel", kernel.text())

    def get(self, kernel):
        self.asked += 1
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        for instr in kernel.program:
            if instr.op in self.refuse:
                raise CompileError(f"{instr.op}: refused")
        key = self.key_of(kernel)
        return self.loaded.setdefault(key, LoadedKernel(1000 + len(self.loaded), 64, 7))

    def get_stored(self, key):
        if self.broken:
            raise OSError("cannot be loaded")
        return self.loaded.get(key)


class Process:
    """One process's planner, over a cache directory."""

    def __init__(self, directory, kernels=None):
        self.kernels = kernels or FakeKernels()
        self.store = KernelStore(directory, strict=True)
        self.deferred = 0
        self.planner = Planner(self.kernels, self.store, self._defer)

    def _defer(self):
        self.deferred += 1

    def plan(self, raw, seen=2):
        return self.planner.plan_window(raw, seen)


@pytest.fixture
def process(tmp_path):
    return Process(tmp_path / "cache")


@pytest.fixture
def restart(process):
    """restart(kernels=None): a new process over the same cache; by default with all its kernels still there."""
    return lambda kernels=None: Process(process.store.directory, kernels or process.kernels)


def window():
    """A host op between two kernels."""
    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    h = t.host("mm", t.map("exp", t.map("mul", x, 2.0)), shape=("B", "B"))
    return t.raw(live=[t.reduce("mean", h, [1])])


def plain(steps):
    """As JSON would give it back."""
    return json.loads(json.dumps(steps))


def ops_of(plan):
    """Number of ops of each kernel, by strips; the number of a host node."""
    return [step if isinstance(step, int) else [launch["ops"] for launch in step] for step in plan["steps"]]


class TestPlans:
    def test_steps(self, process):
        plan = process.plan(window())
        (first,), host, (second,) = plan["steps"]
        assert plan["temporaries"] == []
        assert host == 2
        assert (first["kind"], first["ops"], first["nodes"][-1]) == ("map", 2, 1)
        assert (second["kind"], second["reduced"], second["ops"]) == ("inner", 1, 1)
        # The kernel itself, and what its launch needs.
        assert (first["address"], first["acc_bytes"], first["block"]) == (1000, 64, 7)
        assert second["address"] == 1001
        assert first["scalars"] == [[0, 0]] and second["scalars"] == [[1, 0]]

    def test_all_that_the_extension_reads(self, process):
        plan = process.plan(window())
        assert set(plan) == {"temporaries", "steps"}
        assert set(plan["steps"][0][0]) == {
            "kind", "reduced", "iteration", "loop_dims", "accesses", "scalars", "nodes", "ops", "cost", "address",
            "acc_bytes", "block",
        }  # fmt: skip

    def test_single_op(self, process):
        t = TraceBuilder()
        t.map("exp", t.input("f32", ("B", "N")))
        assert ops_of(process.planner.plan_op(t.raw())) == [[1]]
        assert process.store.keys("plan") == []  # plans of single ops are made too quickly to be stored

    def test_single_op_that_cannot_be_compiled(self, process):
        process.kernels.refuse = {"exp"}
        t = TraceBuilder()
        t.map("exp", t.input("f32", ("B", "N")))
        with pytest.raises(CompileError, match="refused"):
            process.planner.plan_op(t.raw())

    def test_nothing_to_do(self, process):
        t = TraceBuilder()
        t.map("exp", t.input("f32", ("B", "N")))
        assert process.plan(t.raw(live=[])) == {"temporaries": [], "steps": []}

    def test_row_program(self, process):
        """Its kernels are one strip; a recorded op stays one op whatever it is written as."""
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        h = t.host("mm", softmax(t, x, 1), shape=("B", "B"))
        plan = process.plan(t.raw(live=[h]))
        assert ops_of(plan) == [[1, 1, 1], 1]
        (strip, _) = plan["steps"]
        assert [launch["nodes"] for launch in strip] == [[0] * len(launch["nodes"]) for launch in strip]
        assert all(len(t) == 3 and t[2] == "f32" for t in plan["temporaries"])

    def test_host_nodes_are_numbered_as_recorded(self, process):
        t = TraceBuilder()
        y = softmax(t, t.input("f32", ("B", "N")), 1)
        h = t.host("mm", t.map("neg", y), shape=("B", "B"))
        assert [s for s in process.plan(t.raw(live=[h]))["steps"] if isinstance(s, int)] == [2]

    def test_numbers_of_temporaries_are_the_extensions(self):
        frame = (ROOT / "native/torch/frame.h").read_text()
        shift = int(re.search(r"kFirstTemporary = uint32_t\{1\} << (\d+)", frame).group(1))
        assert 1 << shift == FIRST_TEMPORARY


class TestDisk:
    def test_round_trip(self, process, restart):
        made = process.plan(window())
        asked = process.kernels.asked
        found = restart()
        assert found.plan(window(), seen=1) == plain(made)
        assert process.kernels.asked == asked  # no kernel was asked to be made

    def test_known_plans(self, process, restart):
        assert process.planner.known_plans() == []
        raw = window()
        process.plan(raw)
        assert process.planner.known_plans() == [raw["signature"]]
        assert restart().planner.known_plans() == [raw["signature"]]

    def test_plans_of_another_version_are_not_known(self, process, restart):
        process.plan(window())
        assert restart(FakeKernels("2")).planner.known_plans() == []

    def test_kernel_missing_from_disk(self, process, restart):
        process.plan(window())
        again = restart(FakeKernels())  # same version, no kernels
        plan = again.plan(window())
        assert again.kernels.asked == 2 and ops_of(plan) == [[2], 2, [1]]

    def test_another_trace_of_the_same_hash(self, process):
        process.plan(window())
        t = TraceBuilder()
        x = t.input("f32", ("B", "N"))
        t.map("neg", x)
        plan = process.plan({**t.raw(), "signature": window()["signature"]})
        assert ops_of(plan) == [[1]]

    def test_sizes_are_not_part_of_a_plan(self, process):
        def raw(b, n, scalar):
            t = TraceBuilder()
            x = t.input("f32", (b, n))
            return t.raw(live=[t.reduce("sum", t.map("mul", x, scalar), [1])])

        made = process.plan(raw(4, 6, 0.5))
        asked = process.kernels.asked
        assert process.plan(raw(40, 60, 2.5)) == plain(made) and process.kernels.asked == asked

    @pytest.mark.parametrize(
        "damage",
        [
            b"",
            b"not json",
            b"{}",
            b"[]",
            b'{"words": "%s", "temporaries": [], "steps": [[{"kind": "map"}]]}',
            b'{"words": "%s", "steps": [[]]}',
        ],
    )
    def test_damaged_plan_is_made_again(self, process, restart, damage):
        raw = window()
        made = process.plan(raw)
        (key,) = process.store.keys("plan")
        process.store.put("plan", key, damage.replace(b"%s", raw["words"].hex().encode()))
        assert plain(restart().plan(raw)) == plain(made)
        # And is whole afterwards.
        asked = process.kernels.asked
        assert plain(restart().plan(raw)) == plain(made) and process.kernels.asked == asked

    def test_stored_kernel_that_does_not_load(self, process, restart):
        process.plan(window())
        again = restart()
        again.kernels.broken = True
        assert ops_of(again.plan(window())) == [[2], 2, [1]]

    def test_plans_of_other_parameters_are_other_plans(self, process, restart):
        with params.override(max_kernel_ops=1):
            plan = restart().plan(window())
            assert ops_of(plan) == [[1], [1], 2, [1]]
        assert restart().planner.known_plans() == []
        assert ops_of(restart().plan(window())) == [[2], 2, [1]]


class TestFailures:
    def test_remembered_with_their_reason(self, process, caplog):
        raw = window()
        process.kernels.refuse = {"exp"}
        with caplog.at_level(logging.WARNING):
            assert process.plan(raw) is None
        assert "exp: refused" in process.planner.failures[raw["signature"]]
        assert "4 ops" in caplog.text and "refused" in caplog.text
        assert process.store.keys("plan") == []

    def test_asked_again_later(self, process):
        """Whoever asks decides how often; a plan may be made when the cause is gone."""
        process.kernels.refuse = {"exp"}
        assert process.plan(window(), 2) is None
        process.kernels.refuse = set()
        assert process.plan(window(), 4) is not None

    def test_whatever_the_reason(self, process, monkeypatch):
        monkeypatch.setattr(process.kernels, "get", lambda kernel: 1 / 0)
        assert process.plan(window()) is None
        assert "ZeroDivisionError" in next(iter(process.planner.failures.values()))

    def test_others_are_not_affected(self, process):
        process.kernels.refuse = {"exp"}
        process.plan(window())
        t = TraceBuilder()
        assert process.plan(t.raw(live=[t.map("neg", t.input("f32", ("N",)))])) is not None


class TestInterrupts:
    """A window has been taken from the program when its plan is asked for: the plan must come, whatever is pressed."""

    @pytest.mark.parametrize("presses", [1, 3])
    def test_plan_survives_an_interrupt(self, process, presses):
        process.kernels.interrupts = presses
        assert ops_of(process.plan(window())) == [[2], 2, [1]]
        assert process.deferred > 0  # delivered by the extension once the window has run
        assert process.planner.failures == {}

    def test_single_op(self, process):
        process.kernels.interrupts = 1
        t = TraceBuilder()
        t.map("exp", t.input("f32", ("B", "N")))
        assert ops_of(process.planner.plan_op(t.raw())) == [[1]] and process.deferred == 1

    def test_nobody_pressed(self, process):
        process.plan(window())
        assert process.deferred == 0


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_meanwhile(process, monkeypatch, enabled):
    """A finaliser could use the device while its window is being run."""
    seen, get = [], process.kernels.get
    monkeypatch.setattr(process.kernels, "get", lambda kernel: (seen.append(gc.isenabled()), get(kernel))[1])
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        process.plan(window())
        process.kernels.refuse = {"neg"}
        t = TraceBuilder()
        t.map("neg", t.input("f32", ("N",)))
        with pytest.raises(CompileError):
            process.planner.plan_op(t.raw())
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen and not any(seen)


@pytest.mark.parametrize(
    ("op", "kind", "compute", "supported"),
    [
        ("add", "map", "f32", True),
        ("add", "map", "i64", True),
        ("exp", "map", "f32", True),
        ("exp", "map", "i64", False),
        ("bitwise_and", "map", "f32", False),
        ("no_such_op", "map", "f32", False),
        ("sum", "reduction", "f32", True),
        ("linalg_vector_norm", "reduction", "f32", True),
        ("median", "reduction", "f32", False),
        ("_softmax", "row_program", "bf16", True),
        ("_softmax", "row_program", "i64", False),
        ("no_such_op", "row_program", "f32", False),
    ],
)
def test_supports(process, op, kind, compute, supported):
    assert process.planner.supports(op, kind, compute) is supported
