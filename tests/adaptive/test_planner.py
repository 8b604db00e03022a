"""Planner: plans made, stored, found again, and what happens when something is wrong. Kernels are only numbers here."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import threading
import time
from pathlib import Path

import pytest
from row_calls import softmax
from traces import TraceBuilder

from adaptive_eager import params, planner
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

    def missing(self, kernel):
        return self.get_stored(self.key_of(kernel)) is None

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
        """The plan, or what is said instead."""
        return self.planner.plan_window(raw, seen, 0, lambda lo, hi: 0)


@pytest.fixture
def process(tmp_path):
    return Process(tmp_path / "cache")


@pytest.fixture
def restart(process):
    """restart(kernels=None): a new process over the same cache; by default with all its kernels still there."""
    return lambda kernels=None: Process(process.store.directory, kernels or process.kernels)


def window(more=0):
    """A host op between two kernels, of which the first has `more` ops than two."""
    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    for _ in range(more):
        x = t.map("tanh", x)
    h = t.host("mm", t.map("exp", t.map("mul", x, 2.0)), shape=("B", "B"))
    return t.raw(live=[t.reduce("mean", h, [1])])


def plain(steps):
    """As JSON would give it back."""
    return json.loads(json.dumps(steps))


def ops_of(plan):
    """Number of ops of each kernel, by strips; the number of a host node."""
    return [step if isinstance(step, int) else [launch["ops"] for launch in step["launches"]] for step in plan["steps"]]


class TestPlans:
    def test_steps(self, process):
        plan = process.plan(window())
        one, host, other = plan["steps"]
        (first,), (second,) = one["launches"], other["launches"]
        assert all((strip["scratch"], strip["batch"]) == ([], 1) for strip in (one, other))
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
        strip = plan["steps"][0]
        assert set(strip) == {"launches", "scratch", "batch"}
        assert set(strip["launches"][0]) == {
            "kind", "reduced", "iteration", "loop_dims", "accesses", "scalars", "nodes", "ops", "cost", "address",
            "acc_bytes", "block",
        }  # fmt: skip

    def test_single_op(self, process, restart):
        t = TraceBuilder()
        t.map("exp", t.input("f32", ("B", "N")))
        plan = process.planner.plan_op(t.raw())
        assert ops_of(plan) == [[1]]
        again = restart()
        asked = again.kernels.asked
        assert plain(again.planner.plan_op(t.raw())) == plain(plan)
        assert again.kernels.asked == asked  # found: neither planned nor compiled

    def test_single_op_whose_stored_plan_is_damaged(self, process, restart, caplog):
        t = TraceBuilder()
        t.map("exp", t.input("f32", ("B", "N")))
        plan = process.planner.plan_op(t.raw())
        (key,) = process.store.keys("plan")
        process.store.put("plan", key, b"[]")
        assert plain(restart().planner.plan_op(t.raw())) == plain(plan)
        assert "a stored plan cannot be used and is made anew" in caplog.text
        assert plain(restart().planner.plan_op(t.raw())) == plain(plan)

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
        assert {node for launch in strip["launches"] for node in launch["nodes"]} == {0}
        assert strip["scratch"] != []
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

    @pytest.mark.parametrize("damage", ["x" * 32, "-" + "1" * 31, "", "1" * 31 + "\u00e9"])
    def test_name_that_was_damaged_is_not_known(self, process, restart, damage):
        raw = window()
        process.plan(raw)
        (key,) = process.planner.store.keys("plan")
        process.planner.store.put("plan", damage + key[32:], b"{}")
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
            b'{"words": "%s", "temporaries": [], "steps": []}',
            b'{"words": "%s", "temporaries": [], "steps": [-1]}',
            b'{"words": "%s", "temporaries": [], "steps": [0, 2]}',
            b'{"words": "%s", "temporaries": [], "steps": [2, 1000000000000000000000]}',
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

    def test_damaged_plans_are_one_warning(self, process, restart, caplog):
        windows = [window(n) for n in range(3)]
        for raw in windows:
            process.plan(raw)
        for key in process.store.keys("plan"):
            process.store.put("plan", key, b"{}")
        again = restart()
        for raw in windows:
            again.plan(raw)
        assert caplog.text.count("a stored plan cannot be used and is made anew") == 1

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
            assert isinstance(process.plan(raw), int)
        assert "exp: refused" in process.planner.failures[raw["signature"]]
        assert "4 ops" in caplog.text and "refused" in caplog.text
        assert process.store.keys("plan") == []
        assert process.planner.not_fused() == {"CompileError: exp: refused": 1}

    def test_asked_again_ever_less_often(self, process, caplog):
        process.kernels.refuse = {"exp"}
        assert [process.plan(window(), seen) for seen in (2, 4, 8, 1024, 5000)] == [4, 8, 16, 2048, 6024]
        assert caplog.text.count("cannot be fused") == 1
        process.kernels.refuse = set()  # the cause is gone
        assert isinstance(process.plan(window(), 6024), dict)

    def test_whatever_the_reason(self, process, monkeypatch):
        monkeypatch.setattr(process.kernels, "get", lambda kernel: 1 / 0)
        assert process.plan(window()) == 4
        assert "ZeroDivisionError" in next(iter(process.planner.failures.values()))

    def test_others_are_not_affected(self, process):
        process.kernels.refuse = {"exp"}
        process.plan(window())
        t = TraceBuilder()
        assert isinstance(process.plan(t.raw(live=[t.map("neg", t.input("f32", ("N",)))])), dict)

    def test_another_process_does_not_try(self, process, restart):
        process.kernels.refuse = {"exp"}
        process.plan(window())
        process.kernels.refuse, asked = set(), process.kernels.asked
        again = restart()
        assert again.plan(window()) == 2 + 1024 and process.kernels.asked == asked
        assert again.planner.not_fused() == {"CompileError: exp: refused": 1}

    def test_another_version_tries(self, process, restart):
        process.kernels.refuse = {"exp"}
        process.plan(window())
        assert isinstance(restart(FakeKernels("2")).plan(window()), dict)

    @pytest.mark.parametrize(("age", "tries"), [(-5, True), (0, False), (3000, False), (4000, True)])
    def test_tried_again_after_a_time(self, process, restart, monkeypatch, age, tries):
        process.kernels.refuse = {"exp"}
        process.plan(window())
        process.kernels.refuse = set()
        now = time.time()
        monkeypatch.setattr(planner.time, "time", lambda: now + age)
        with params.override(failure_age=3600.0):
            assert isinstance(restart().plan(window()), dict) is tries

    @pytest.mark.parametrize("error", [MemoryError("no memory"), OSError("no file"), TimeoutError("too slow")])
    def test_what_is_of_the_moment_is_not_stored(self, process, restart, monkeypatch, error):
        get = process.kernels.get
        monkeypatch.setattr(process.kernels, "get", lambda kernel: (_ for _ in ()).throw(error))
        assert process.plan(window()) == 4
        assert process.store.keys("failure") == []
        monkeypatch.setattr(process.kernels, "get", get)
        assert isinstance(restart().plan(window()), dict)

    @pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"words": "%s"}', b'{"words": "%s", "time": "x"}'])
    def test_damaged_failure_is_none(self, process, restart, damage):
        process.kernels.refuse = {"exp"}
        raw = window()
        process.plan(raw)
        (key,) = process.store.keys("failure")
        process.store.put("failure", key, damage.replace(b"%s", raw["words"].hex().encode()))
        process.kernels.refuse = set()
        assert isinstance(restart().plan(raw), dict)

    def test_few_are_kept(self, process, monkeypatch):
        monkeypatch.setattr(planner, "MOST_FAILURES", 3)
        for i in range(5):
            process.planner.note_failure({"signature": (i, 0), "nodes": []}, f"reason {i}")
        assert list(process.planner.failures) == [(2, 0), (3, 0), (4, 0)]


class TestBackground:
    @pytest.fixture(autouse=True)
    def on(self, process, monkeypatch):
        """The background is on, and a kernel that is asked for waits for `go`."""
        go, get = threading.Event(), process.kernels.get
        process.go = go
        monkeypatch.setattr(process.kernels, "get", lambda kernel: (go.wait(20), get(kernel))[1])
        with params.override(background="on"):
            yield
            go.set()
            process.planner.background.stop()

    def test_the_plan_comes_later(self, process):
        raw = window()
        signature = tuple(raw["signature"])
        assert process.plan(raw) is None and not process.planner.ready(signature)
        assert process.plan(raw) is None  # asked all the same
        process.go.set()
        process.planner.background.wait()
        assert process.planner.ready(signature)
        assert ops_of(process.plan(raw)) == [[2], 2, [1]]
        assert len(process.store.keys("plan")) == 1

    def test_nothing_to_compile(self, process):
        process.go.set()
        process.plan(window())
        process.planner.background.wait()
        process.plan(window())
        process.store.close()
        assert isinstance(Process(process.store.directory, process.kernels).plan(window()), dict)

    def test_failure(self, process):
        process.kernels.refuse = {"exp"}
        process.go.set()
        assert process.plan(window()) is None
        process.planner.background.wait()
        assert process.plan(window(), 3) == 6
        assert "exp: refused" in next(iter(process.planner.failures.values()))
        process.kernels.refuse = set()
        assert process.plan(window(), 6) is None  # compiled in the background again
        process.planner.background.wait()
        assert isinstance(process.plan(window(), 7), dict)

    def test_fork(self, process):
        """A child does what the parent had begun."""
        assert process.plan(window()) is None
        background = process.planner.background
        process.go.set()
        background.pause()
        pid = os.fork()
        if pid == 0:
            background.renew_in_child()
            background.wait()
            os._exit(0 if isinstance(process.plan(window()), dict) else 1)
        background.resume()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        background.wait()
        assert isinstance(process.plan(window()), dict)


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
