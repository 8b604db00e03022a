"""Models: loading, linking through Python, executing, unloading."""

import gc
import struct
import threading

import pytest
from adaptive_eager.native.artifact import DTYPES, TensorSpec
from adaptive_eager.native.errors import DeadHandleError, NrtError, Status
from adaptive_eager.native.launch import Chunks, launch_block, scalar_bits
from adaptive_eager.native.library import ffi
from adaptive_eager.native.runtime import open_runtime
from native_kernels import BUMP_SOURCE, ECHO_SOURCE, TARGET, Linker, object_code, scale_artifact


@pytest.fixture
def linker(runtime):
    linker = Linker()
    runtime.set_loader(linker.link, linker.unlink, [TARGET])
    yield linker
    gc.collect()
    runtime.close()
    assert linker.linked == 0  # every link was undone


@pytest.fixture
def model(runtime, linker):
    with runtime.load(scale_artifact(), 0, "scale") as loaded:
        yield loaded


class Call:
    """The tensors and sets of one execution of the `scale` kernel over 3 x 4 floats."""

    def __init__(self, runtime, device=0, block=None):
        self.a, self.out = runtime.allocate(device, 48, "a"), runtime.allocate(device, 48, "out")
        self.inputs, self.outputs = runtime.tensor_set("inputs"), runtime.tensor_set("outputs")
        self.a.write(struct.pack("<12f", *range(12)))
        self.out.memset(0)
        self.launch = runtime.allocate_host(256, "launch")
        self.set_block(block or launch_block(0, 12, [3, 4], [[4, 1], [4, 1]], [2.5]))
        self.inputs.add("a", self.a)
        self.inputs.add("launch", self.launch)
        self.outputs.add("out", self.out)

    def set_block(self, block):
        self.launch.memset(0)
        self.launch.write(block)

    def result(self):
        return list(struct.unpack("<12f", self.out.read()))


def status_of(function, *arguments):
    with pytest.raises(NrtError) as caught:
        function(*arguments)
    return caught.value.status


# -- Loading ----------------------------------------------------------------------------------------------------------


def test_facts(model, runtime):
    assert (model.device, model.device_count, model.instance_count) == (0, 1, 1)
    names = [(info.name, info.usage, info.dtype, info.size, info.shape) for info in model.tensor_info()]
    assert names == [
        ("a", "input", DTYPES["float32"], 0, ()),
        ("out", "output", DTYPES["float32"], 0, ()),
        ("launch", "input", DTYPES["uint8"], 0, ()),
    ]
    assert runtime.load(scale_artifact(), 1).device == 1


def test_entry(model):
    kernel = ffi.cast("nrtx_kernel_fn", model.entry("bump"))
    numbers = ffi.new("int64_t[4]", [1, 2, 3, 4])
    args = ffi.new("nrtx_kernel_args *")
    pointers, strides = ffi.new("char *[1]", [ffi.cast("char *", numbers)]), ffi.new("int64_t[1]", [1])
    args.ptrs, args.strides = pointers, strides
    kernel(args, 1, 3)
    assert list(numbers) == [1, 3, 4, 4]
    assert status_of(model.entry, "nothing") == Status.NRT_INVALID


def test_unload(runtime, linker):
    model = runtime.load(scale_artifact(), 0, "scale")
    assert linker.linked == 1
    stale = model.pointer
    model.unload()
    model.unload()
    assert linker.linked == 0
    with pytest.raises(DeadHandleError, match="neuron model 'scale' was unloaded"):
        model.entry("k")
    lib, count, size = runtime.lib, ffi.new("uint32_t *"), ffi.new("size_t *")
    other = ffi.cast("nrt_model_t *", runtime.allocate(0, 8).pointer)
    for bad in (stale, ffi.NULL, ffi.cast("nrt_model_t *", 0x1230), other):
        assert lib.nrt_unload(bad) == lib.NRT_INVALID_HANDLE
        assert lib.nrtx_model_entry(bad, b"k", ffi.new("nrtx_kernel_fn *")) == lib.NRT_INVALID_HANDLE
        assert lib.nrt_execute(bad, ffi.NULL, ffi.NULL) == lib.NRT_INVALID_HANDLE
        assert lib.nrt_get_model_vnc_count(bad, count) == lib.NRT_INVALID_HANDLE
        assert lib.nrt_get_model_instance_count(bad, count) == lib.NRT_INVALID_HANDLE
        assert lib.nrt_get_model_info(bad, ffi.new("nrt_model_info_t *"), 4, size) == lib.NRT_INVALID_HANDLE
        infos = ffi.new("nrt_tensor_info_array_t **")
        assert lib.nrt_get_model_tensor_info(bad, infos) == lib.NRT_INVALID_HANDLE


def test_null_results(runtime, model):
    lib, handle, size = runtime.lib, model.pointer, ffi.new("size_t *")
    info = ffi.new("nrt_model_info_t *")
    assert lib.nrt_get_model_vnc_count(handle, ffi.NULL) == lib.NRT_INVALID
    assert lib.nrt_get_model_instance_count(handle, ffi.NULL) == lib.NRT_INVALID
    assert lib.nrt_get_model_info(handle, ffi.NULL, 4, size) == lib.NRT_INVALID
    assert lib.nrt_get_model_info(handle, info, 4, ffi.NULL) == lib.NRT_INVALID
    assert lib.nrt_get_model_info(handle, info, 0, size) == lib.NRT_INVALID
    assert lib.nrt_get_model_tensor_info(handle, ffi.NULL) == lib.NRT_INVALID
    assert lib.nrtx_model_entry(handle, ffi.NULL, ffi.new("nrtx_kernel_fn *")) == lib.NRT_INVALID
    assert lib.nrtx_model_entry(handle, b"k", ffi.NULL) == lib.NRT_INVALID
    assert lib.nrt_load(ffi.NULL, 8, 0, -1, ffi.new("nrt_model_t **")) == lib.NRT_INVALID
    assert lib.nrt_load(b"x", 1, 0, -1, ffi.NULL) == lib.NRT_INVALID


def test_tensor_info_is_freed_once(runtime, model):
    lib, infos = runtime.lib, ffi.new("nrt_tensor_info_array_t **")
    assert lib.nrt_get_model_tensor_info(model.pointer, infos) == 0
    model.unload()
    assert infos[0].tensor_count == 3  # good after the model
    assert lib.nrt_free_model_tensor_info(infos[0]) == 0
    assert lib.nrt_free_model_tensor_info(infos[0]) == lib.NRT_INVALID_HANDLE
    assert lib.nrt_free_model_tensor_info(ffi.NULL) == lib.NRT_INVALID_HANDLE


def test_where_models_load(runtime, linker):
    lib, data, out = runtime.lib, scale_artifact(), ffi.new("nrt_model_t **")

    def load(vnc, vnc_count):
        status = lib.nrt_load(data, len(data), vnc, vnc_count, out)
        if status == 0:
            lib.nrt_unload(out[0])
        return status

    assert [load(-1, -1), load(0, 1), load(1, -1)] == [0, 0, 0]
    assert load(0, 3) == load(1, 2) == lib.NRT_LOAD_NOT_ENOUGH_NC
    for vnc, vnc_count in [(2, -1), (-2, -1), (0, 0), (0, -2), (0, 2)]:
        assert load(vnc, vnc_count) == lib.NRT_INVALID
    assert status_of(runtime.load, data, 2) == Status.NRT_INVALID
    assert status_of(runtime.load, data, -1) == Status.NRT_INVALID


def test_wrong_target(runtime, linker):
    data = scale_artifact(target="another machine")
    with pytest.raises(
        NrtError, match=r"NRT_UNSUPPORTED_NEFF_VERSION\(10\): loading a model of \d+ bytes on neuron:0 'm'"
    ):
        runtime.load(data, 0, "m")
    runtime.set_loader(linker.link, linker.unlink)  # any target
    runtime.load(data, 0).unload()


def test_no_loader(runtime):
    assert status_of(runtime.load, scale_artifact(), 0) == Status.NRT_FAILURE


def test_link_errors_are_the_cause(runtime):
    class BadCodeError(Exception):
        pass

    def link(code, entries):
        raise BadCodeError("no such relocation")

    runtime.set_loader(link, lambda handle: None)
    with pytest.raises(NrtError, match=r"NRT_FAILURE.*loading a model of") as caught:
        runtime.load(scale_artifact(), 0, "m")
    assert isinstance(caught.value.__cause__, BadCodeError)

    runtime.set_loader(lambda code, entries: ([], None), lambda handle: None)
    with pytest.raises(NrtError) as caught:
        runtime.load(scale_artifact(), 0)
    assert "0 addresses for 2 entries" in str(caught.value.__cause__)

    def interrupt(code, entries):
        raise KeyboardInterrupt

    runtime.set_loader(interrupt, lambda handle: None)
    with pytest.raises(KeyboardInterrupt):
        runtime.load(scale_artifact(), 0)
    # Nothing is left over for the next call.
    with pytest.raises(NrtError) as caught:
        runtime.load(b"damaged", 0)
    assert caught.value.__cause__ is None


def test_link_without_addresses_is_undone(runtime):
    unlinked = []
    runtime.set_loader(lambda code, entries: ([0] * len(entries), "handle"), unlinked.append)
    assert status_of(runtime.load, scale_artifact(), 0) == Status.NRT_INVALID
    assert unlinked == ["handle"]


def test_unlink_errors_are_raised(runtime):
    def unlink(handle):
        raise ValueError("cannot")

    runtime.set_loader(lambda code, entries: ([4096] * len(entries), None), unlink)
    model = runtime.load(scale_artifact(), 0, "m")
    with pytest.raises(NrtError, match="unlinking neuron model 'm'") as caught:
        model.unload()
    assert isinstance(caught.value.__cause__, ValueError)
    assert not model.is_alive


def test_models_keep_the_loader_that_linked_them(runtime, linker):
    model = runtime.load(scale_artifact(), 0)
    runtime.set_loader(lambda code, entries: ([], None), lambda handle: pytest.fail("not mine"))
    model.unload()
    assert linker.linked == 0


def test_closing_unlinks_and_forgets_the_loader(lib):
    linker = Linker()
    with open_runtime("software") as first:
        first.set_loader(linker.link, linker.unlink)
        model = first.load(scale_artifact(), 0)
    assert linker.linked == 0
    assert not model.is_alive
    with open_runtime("software") as second:
        assert status_of(second.load, scale_artifact(), 0) == Status.NRT_FAILURE


def test_raw_loaders(lib):
    assert lib.nrtx_set_loader(ffi.NULL) == 0
    assert lib.nrtx_set_loader(ffi.new("nrtx_loader_t *")) == lib.NRT_INVALID


# -- Executing --------------------------------------------------------------------------------------------------------


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


def test_chunk_fields_and_phase(runtime, linker):
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


def test_repeat(runtime, linker):
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


def test_bad_tensors(runtime, linker, model):
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


def test_no_generic_entry(runtime, linker):
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


def test_unloading_during_an_execution(runtime, linker):
    """The code stays until the execution that uses it is over."""
    failures: list = []
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
    assert linker.linked == 0


def test_many_threads_execute(runtime, model):
    failures: list = []

    def work():
        try:
            call = Call(runtime)
            for _ in range(50):
                call.out.memset(0)
                model.execute(call.inputs, call.outputs)
                assert call.result()[11] == 27.5
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


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
