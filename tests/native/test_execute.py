"""Execution of models through tensor sets and launch blocks."""

import struct
import threading

import pytest
from native_kernels import (
    BUMP_SOURCE,
    ECHO_SOURCE,
    Call,
    code_mappings,
    in_threads,
    object_code,
    scale_artifact,
    status_of,
)

from adaptive_eager.native.artifact import TensorSpec
from adaptive_eager.native.errors import DeadHandleError, NrtError, Status
from adaptive_eager.native.launch import Chunks, launch_block, scalar_bits
from adaptive_eager.native.library import ffi


def test_execute(runtime, model):
    call = Call(runtime)
    model.execute(call.inputs, call.outputs)
    assert call.result() == [2.5 * i for i in range(12)]


def test_execute_part_and_strided(runtime, model):
    call = Call(runtime)
    call.set_block(launch_block(2, 5, [3, 4], [[4, 1], [4, 1]], [1.0]))
    model.execute(call.inputs, call.outputs)
    assert call.result() == [0, 0, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0]
    call.set_block(launch_block(0, 12, [4, 3], [[1, 4], [3, 1]], [1.0]))  # transposed
    model.execute(call.inputs, call.outputs)
    assert call.result() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    call.set_block(launch_block(0, 0, [0, 4], [[4, 1], [4, 1]], [1.0]))  # nothing
    model.execute(call.inputs, call.outputs)


def test_execute_slices(runtime, model):
    call = Call(runtime)
    whole = runtime.allocate(0, 1000, "whole")
    whole.memset(0)
    part = whole.slice(100, 48)
    call.outputs.add("out", part)
    model.execute(call.inputs, call.outputs)
    assert struct.unpack("<12f", part.read()) == tuple(2.5 * i for i in range(12))
    assert whole.read(0, 100) == bytes(100)
    assert whole.read(148) == bytes(852)


def test_chunk_fields_and_phase(runtime):
    tensors = [TensorSpec("out", "output", "int64", 64)]
    model = runtime.load(scale_artifact(entries=["k"], code=object_code(ECHO_SOURCE), tensors=tensors), 0)
    out, inputs, outputs = runtime.allocate(0, 64), runtime.tensor_set(), runtime.tensor_set()
    block = launch_block(3, 7, [8], [[1]], [], Chunks(11, 12, 13, 14))
    launch = runtime.allocate(0, len(block))
    launch.write(block)
    inputs.add("launch", launch)
    outputs.add("out", out)
    model.execute(inputs, outputs)
    assert struct.unpack("<8q", out.read()) == (0, 11, 12, 13, 14, 3, 7, 0)


def test_repeat(runtime):
    tensors = [TensorSpec("out", "output", "int64")]
    model = runtime.load(scale_artifact(entries=["k"], code=object_code(BUMP_SOURCE), tensors=tensors), 0)
    call = Call(runtime, block=launch_block(0, 6, [6], [[1]]))
    model.execute(call.inputs, call.outputs, repeat=5)
    assert struct.unpack("<6q", call.out.read()) == (5,) * 6
    for repeat in (0, -1):
        assert status_of(model.execute, call.inputs, call.outputs, repeat) == Status.NRT_INVALID


def test_data_errors(runtime, model):
    call = Call(runtime)
    call.a.write(struct.pack("<f", -1.0), 16)
    assert status_of(model.execute, call.inputs, call.outputs) == Status.NRT_EXEC_COMPLETED_WITH_ERR
    assert call.result()[4:6] == [-2.5, 12.5]  # the outputs are there


def test_bad_tensors(runtime, model):
    bad = Status.NRT_EXEC_BAD_INPUT
    for missing in ("a", "launch", "out"):
        call = Call(runtime)
        fresh = runtime.tensor_set()
        for name in {"a", "launch"} - {missing}:
            fresh.add(name, getattr(call, name))
        outputs = runtime.tensor_set() if missing == "out" else call.outputs
        assert status_of(model.execute, fresh, outputs) == bad

    call = Call(runtime)
    call.outputs.add("out", runtime.allocate(1, 48))  # another core
    assert status_of(model.execute, call.inputs, call.outputs) == bad
    call.outputs.add("out", runtime.allocate(0, 47))  # too small
    assert status_of(model.execute, call.inputs, call.outputs) == bad

    exact = [TensorSpec("a", "input", "float32", 52), TensorSpec("out", "output", "float32")]
    call = Call(runtime)
    assert status_of(runtime.load(scale_artifact(tensors=exact), 0).execute, call.inputs, call.outputs) == bad

    call.a.free()
    assert status_of(model.execute, call.inputs, call.outputs) == Status.NRT_INVALID_HANDLE
    lib = runtime.lib
    assert lib.nrt_execute(model.pointer, ffi.NULL, call.outputs.pointer) == lib.NRT_INVALID_HANDLE
    assert lib.nrt_execute(model.pointer, call.inputs.pointer, ffi.NULL) == lib.NRT_INVALID_HANDLE


def test_no_generic_entry(runtime):
    call = Call(runtime)
    model = runtime.load(scale_artifact(entries=["bump"]), 0)
    assert status_of(model.execute, call.inputs, call.outputs) == Status.NRT_INVALID


HUGE = 2**62
SQUARE = [[4, 1], [4, 1]]


@pytest.mark.parametrize(
    ("begin", "end", "sizes", "strides"),
    [
        (-1, 12, [3, 4], SQUARE),
        (5, 4, [3, 4], SQUARE),
        (0, 13, [3, 4], SQUARE),  # more items than points
        (0, 12, [-3, -4], SQUARE),
        (0, 12, [3, 4], [[5, 1], [4, 1]]),  # beyond the input
        (0, 12, [3, 4], [[4, 1], [4, 2]]),  # beyond the output
        (0, 12, [3, 4], [[4, -1], [4, 1]]),
        (0, 12, [3, 4], [[HUGE, 1], [4, 1]]),
        (0, 12, [3, 4], [[HUGE - 1, HUGE], [4, 1]]),
        (0, 12, [HUGE, HUGE], [[0, 0], [0, 0]]),
        (0, 12, [3, 4], [[4, 1]]),  # one access too few
        (0, 12, [3, 4], [*SQUARE, [4, 1]]),
        (0, 1, [1] * 65, [[0] * 65] * 2),
    ],
)
def test_bad_blocks(runtime, model, begin, end, sizes, strides):
    call = Call(runtime)
    call.launch = runtime.allocate_host(4096)
    call.set_block(launch_block(begin, end, sizes, strides, [1.0]))
    call.inputs.add("launch", call.launch)
    assert status_of(model.execute, call.inputs, call.outputs) == Status.NRT_EXEC_BAD_INPUT
    assert call.result() == [0] * 12


def test_truncated_blocks(runtime, model):
    call = Call(runtime)
    block = launch_block(0, 12, [3, 4], [[4, 1], [4, 1]], [1.0])
    for size in range(1, len(block)):
        call.inputs.add("launch", call.launch.slice(0, size))
        assert status_of(model.execute, call.inputs, call.outputs) == Status.NRT_EXEC_BAD_INPUT
    for position in range(6, 9):  # counts that no block has room for
        for count in (-1, 2**31, 2**63 - 1, -(2**63)):
            damaged = bytearray(block)
            struct.pack_into("<q", damaged, position * 8, count)
            call.set_block(bytes(damaged))
            call.inputs.add("launch", call.launch)
            assert status_of(model.execute, call.inputs, call.outputs) == Status.NRT_EXEC_BAD_INPUT


def test_unloading_during_an_execution(runtime):
    """The code stays until the execution that uses it is over."""
    failures: list = []
    before = code_mappings()
    for _ in range(20):
        model, call = runtime.load(scale_artifact(), 0), Call(runtime)
        started = threading.Event()

        def run(model=model, call=call, started=started):
            started.set()
            try:
                model.execute(call.inputs, call.outputs, repeat=20000)
            except (NrtError, DeadHandleError):
                pass  # unloaded before it began
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        started.wait()
        model.unload()
        thread.join()
    assert failures == []
    assert code_mappings() == before


def test_many_threads_execute(runtime, model):
    def work(number):
        call = Call(runtime)
        for _ in range(50):
            call.out.memset(0)
            model.execute(call.inputs, call.outputs)
            assert call.result()[11] == 27.5

    in_threads(4, work)


# -- The launch block -------------------------------------------------------------------------------------------------


def test_launch_block_layout():
    block = launch_block(1, 2, [3, 4], [[5, 6], [7, 8]], [1.5, -1, True], Chunks(9, 10, 11, 12))
    numbers = struct.unpack(f"<{len(block) // 8}q", block)
    assert numbers[:15] == (1, 2, 9, 10, 11, 12, 2, 2, 3, 3, 4, 5, 6, 7, 8)
    assert struct.unpack("<d", struct.pack("<q", numbers[15]))[0] == 1.5
    assert numbers[16:] == (-1, 1)
    assert ffi.sizeof("nrtx_launch_t") == 9 * 8
    assert scalar_bits(-1) == 2**64 - 1
    with pytest.raises(ValueError, match="each access needs 2 strides"):
        launch_block(0, 1, [1, 1], [[1]])
