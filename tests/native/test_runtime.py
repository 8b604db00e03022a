"""The runtime's life, its facts, threads and forks."""

import os
import random
import subprocess
import sys
import threading

import pytest
from alone import PRELUDE
from native_kernels import in_threads

from adaptive_eager.native.errors import DeadHandleError, NrtError, RuntimeLibraryError, Status, status_name
from adaptive_eager.native.library import ffi
from adaptive_eager.native.runtime import DeviceTensor, open_runtime

# -- Life -------------------------------------------------------------------------------------------------------------


def test_before_init_and_after_close(software_library):
    """In a process of its own: this state exists only once."""
    script = """
import sys
from adaptive_eager.native.library import ffi, open_library
lib = open_library(sys.argv[1])
count, out, size = ffi.new("uint32_t *"), ffi.new("void **"), ffi.new("size_t *")
tensor, model = ffi.new("nrt_tensor_t **"), ffi.new("nrt_model_t **")

def statuses():
    info, stats, array = ffi.new("nrt_instance_info_t *"), ffi.new("nrt_vnc_memory_stats_t *"), ffi.NULL
    name, number = ffi.new("nrtx_kernel_fn *"), ffi.new("nrt_model_info_t *")
    lib.nrt_tensor_free(tensor)
    lib.nrt_destroy_tensor_set(out)
    assert lib.nrt_tensor_get_size(ffi.NULL) == 0 and lib.nrt_tensor_get_va(ffi.NULL) == ffi.NULL
    return {
        lib.nrt_get_instance_info(info, 32), lib.nrt_get_vnc_memory_stats(0, stats, 16, size),
        lib.nrt_tensor_allocate(0, 0, 8, b"", tensor), lib.nrt_tensor_allocate_empty(b"", tensor),
        lib.nrt_tensor_allocate_slice(ffi.NULL, 0, 8, b"", tensor), lib.nrt_tensor_attach_buffer(ffi.NULL, ffi.NULL, 0),
        lib.nrt_tensor_read(ffi.NULL, ffi.NULL, 0, 0), lib.nrt_tensor_write(ffi.NULL, ffi.NULL, 0, 0),
        lib.nrt_tensor_copy(ffi.NULL, 0, ffi.NULL, 0, 0), lib.nrt_tensor_memset(ffi.NULL, 0, 0, 0),
        lib.nrt_tensor_read_batch(ffi.NULL, 0, False), lib.nrt_tensor_write_batch(ffi.NULL, 0, False),
        lib.nrt_allocate_tensor_set(out), lib.nrt_add_tensor_to_tensor_set(ffi.NULL, b"x", ffi.NULL),
        lib.nrt_get_tensor_from_tensor_set(ffi.NULL, b"x", tensor), lib.nrt_load(b"x", 1, 0, -1, model),
        lib.nrt_unload(ffi.NULL), lib.nrt_execute(ffi.NULL, ffi.NULL, ffi.NULL),
        lib.nrt_execute_repeat(ffi.NULL, ffi.NULL, ffi.NULL, 1), lib.nrt_get_model_vnc_count(ffi.NULL, count),
        lib.nrt_get_model_instance_count(ffi.NULL, count), lib.nrt_get_model_info(ffi.NULL, number, 4, size),
        lib.nrt_get_model_tensor_info(ffi.NULL, ffi.new("nrt_tensor_info_array_t **")),
        lib.nrt_free_model_tensor_info(ffi.NULL), lib.nrtx_model_entry(ffi.NULL, b"k", name),
    }

lib.nrt_close()  # not open: nothing happens
assert statuses() == {lib.NRT_UNINITIALIZED}, statuses()
assert lib.nrt_get_visible_vnc_count(count) == 0 and count[0] == 1
assert lib.nrt_init(1, b"", b"") == 0
lib.nrt_close()
assert statuses() == {lib.NRT_CLOSED}, statuses()
assert lib.nrt_get_total_vnc_count(count) == 0 and count[0] == 1
assert lib.nrt_init(1, b"", b"") == 0 and lib.nrt_allocate_tensor_set(out) == 0
# and exit while open
"""
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(software_library)], capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_init_arguments(lib):
    for framework in (0, 6, 99):
        assert lib.nrt_init(framework, b"", b"") == lib.NRT_INVALID
    assert lib.nrt_init(lib.NRT_FRAMEWORK_TYPE_NO_FW, ffi.NULL, ffi.NULL) == 0
    assert lib.nrt_init(lib.NRT_FRAMEWORK_TYPE_NO_FW, b"", b"") == lib.NRT_INVALID  # open already


def test_configure(lib):
    count = ffi.new("uint32_t *")
    for bad in (0, 65, 2**32 - 1):
        assert lib.nrtx_configure(bad, 0) == lib.NRT_INVALID
    assert lib.nrtx_configure(3, 1000) == 0
    names = ("total_vnc", "visible_vnc", "total_nc", "visible_nc")
    for function in [getattr(lib, f"nrt_get_{name}_count") for name in names]:
        assert (function(count), count[0]) == (0, 3)
        assert function(ffi.NULL) == lib.NRT_INVALID
    assert lib.nrt_init(1, b"", b"") == 0
    assert lib.nrtx_configure(1, 0) == lib.NRT_INVALID
    assert lib.nrtx_guard_enable(True) == lib.NRT_INVALID
    lib.nrt_close()
    assert (lib.nrt_get_total_vnc_count(count), count[0]) == (0, 3)


def test_open_close_open(lib):
    with open_runtime("software") as first:
        kept = first.allocate(0, 8, "kept")
        sets, where = first.tensor_set("sets"), first.library_path
        assert first.is_open
        assert first.is_software
    assert not first.is_open
    assert repr(first) == f"<neuron runtime '{where}', closed>"
    first.close()
    for use in (lambda: first.allocate(0, 8), lambda: first.memory_stats(0), first.instance_info, first.tensor_set):
        with pytest.raises(DeadHandleError, match="the neuron runtime was closed"):
            use()
    with pytest.raises(DeadHandleError, match="neuron tensor 'kept' was freed with its runtime"):
        kept.read()
    with open_runtime("software") as second:
        assert second.memory_stats(0).bytes_used == 0
        tensor = second.allocate(0, 8)
        with pytest.raises(DeadHandleError, match="neuron tensor set 'sets' was freed with its runtime"):
            sets.add("x", tensor)
        kept.free()
        sets.free()
        assert tensor.size == 8


def test_one_runtime_at_a_time(runtime):
    tensor = runtime.allocate(0, 8)
    with pytest.raises(NrtError, match="is a runtime open already"):
        open_runtime("software")
    assert tensor.size == 8


@pytest.mark.parametrize("settings", [{"devices": 0}, {"devices": 65}, {"devices": 2**40}, {"bytes_limit": -1}])
def test_settings_out_of_range(lib, settings):
    with pytest.raises(NrtError, match=r"NRT_INVALID\(2\): configuring"):
        open_runtime("software", **settings)


# -- Facts ------------------------------------------------------------------------------------------------------------


def test_facts(runtime):
    assert (runtime.device_count, runtime.total_device_count) == (2, 2)
    assert runtime.version[:2] == (2, 0)
    assert runtime.version.detail == "software NeuronCore"
    assert runtime.instance_info() == (0, 2, "software", "")
    with pytest.raises(NrtError, match="neuron:2"):
        runtime.memory_stats(2)


def test_the_default_limit_is_the_machines_memory(lib):
    with open_runtime("software") as opened:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
        assert opened.memory_stats(0).bytes_limit == physical


def test_structs_are_negotiated_by_size(open_lib):
    lib, size = open_lib, ffi.new("size_t *")
    memory = ffi.new("unsigned char[]", b"\xaa" * 256)
    stats = ffi.cast("nrt_vnc_memory_stats_t *", memory)
    assert (lib.nrt_get_vnc_memory_stats(0, stats, 256, size), size[0]) == (0, 16)
    assert memory[16] == 0xAA
    ffi.memmove(memory, b"\xaa" * 256, 256)
    assert (lib.nrt_get_vnc_memory_stats(0, stats, 8, size), size[0], memory[8]) == (0, 8, 0xAA)
    for arguments in [(2, stats, 16, size), (0, ffi.NULL, 16, size), (0, stats, 0, size), (0, stats, 16, ffi.NULL)]:
        assert lib.nrt_get_vnc_memory_stats(*arguments) == lib.NRT_INVALID

    version = ffi.cast("nrt_version_t *", memory)
    ffi.memmove(memory, b"\xaa" * 256, 256)
    assert (lib.nrt_get_version(version, 16), version.rt_major, memory[16]) == (0, 2, 0xAA)
    assert lib.nrt_get_version(version, 0) == lib.nrt_get_version(ffi.NULL, 16) == lib.NRT_INVALID

    info = ffi.cast("nrt_instance_info_t *", memory)
    ffi.memmove(memory, b"\xaa" * 256, 256)
    assert (lib.nrt_get_instance_info(info, 8), info.size, memory[8]) == (0, 2, 0xAA)
    assert lib.nrt_get_instance_info(info, 0) == lib.nrt_get_instance_info(ffi.NULL, 32) == lib.NRT_INVALID


def test_status_names(lib):
    codes = {name: code for name, code in ffi.typeof("NRT_STATUS").relements.items() if not name.endswith("_")}
    assert codes == {status.name: status.value for status in Status}
    for name, code in codes.items():
        assert ffi.string(lib.nrt_get_status_as_str(code)).decode() == status_name(code) == name
    assert ffi.string(lib.nrt_get_status_as_str(4242)) == b"NRT_UNKNOWN_STATUS"
    assert str(NrtError(4242, "trying")) == "NRT Error NRT_UNKNOWN_STATUS(4242): trying"
    assert NrtError(4242, "trying").status == 4242


def test_addresses(runtime):
    address = runtime.address_of("nrt_tensor_get_size")
    tensor = runtime.allocate(0, 123)
    assert ffi.cast("size_t(*)(const nrt_tensor_t *)", address)(tensor.pointer) == 123
    with pytest.raises(RuntimeLibraryError, match="has no function nrt_nonsense"):
        runtime.address_of("nrt_nonsense")


# -- Guarded memory ---------------------------------------------------------------------------------------------------


def test_guarded_memory(software_library):
    """Direct access is fine between open and close, and a fault outside."""
    script = """
import sys
from adaptive_eager.native.library import ffi
from adaptive_eager.native.runtime import DeviceTensor, open_runtime
with open_runtime("software", guard=True) as runtime:
    tensor = runtime.allocate(0, 5000)
    tensor.write(b"hello")
    assert tensor.read(0, 5) == b"hello"
    memory = ffi.cast("char *", tensor.va)
    runtime.guard_open()
    runtime.guard_open()
    runtime.guard_close()
    inside = runtime.allocate(0, 10)
    assert memory[0] == b"h"
    ffi.cast("char *", inside.va)[0] = b"x"
    runtime.guard_close()
    print("before", flush=True)
    if sys.argv[1] == "freed":
        tensor.free()
        runtime.guard_open()
    if sys.argv[1] != "none":
        memory[0]
    print("after", flush=True)
"""
    for how, survives in [("none", True), ("shut", False), ("freed", False)]:
        result = subprocess.run([sys.executable, "-c", PRELUDE + script, how], capture_output=True, text=True)
        assert result.stdout == ("before\nafter\n" if survives else "before\n"), result.stderr
        assert result.returncode == 0 or not survives


# -- Threads and forks ------------------------------------------------------------------------------------------------


def test_threads(runtime):
    """Allocating, slicing, moving and freeing from several threads at once loses nothing and mixes nothing up."""

    def work(seed):
        dice, mine = random.Random(seed), list[tuple[DeviceTensor, int]]()
        for step in range(200):
            if len(mine) > 8 or (mine and dice.random() < 0.4):
                tensor, fill = mine.pop(dice.randrange(len(mine)))
                data = tensor.read()
                assert data.count(fill) == len(data)
                tensor.free()
            else:
                tensor = runtime.allocate(seed % 2, dice.choice([1, 100, 5000, 3 << 20]), f"{seed}.{step}")
                tensor.memset(seed)
                if dice.random() < 0.5:
                    tensor = tensor.slice(0, (tensor.size + 1) // 2)
                mine.append((tensor, seed))

    in_threads(6, work)
    assert [runtime.memory_stats(device).bytes_used for device in range(2)] == [0, 0]


def test_threads_racing_for_the_limit(lib):
    """However the threads come, no more than the limit is handed out."""
    with open_runtime("software", bytes_limit=1000) as runtime:
        taken = []

        def work():
            for _ in range(50):
                try:
                    taken.append(runtime.allocate(0, 30))
                except NrtError as error:
                    assert error.status == Status.NRT_RESOURCE

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 33


def test_racing_frees_and_reads(open_lib):
    """One thread frees what another uses: each call succeeds or says so; memory in use is not pulled away."""
    lib, stop = open_lib, threading.Event()
    shared, statuses = [ffi.NULL], set()

    def read():
        buffer = ffi.new("char[]", 1 << 16)
        while not stop.is_set():
            statuses.add(lib.nrt_tensor_read(shared[0], buffer, 0, 1 << 16))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for thread in readers:
        thread.start()
    for _ in range(1000):
        box = ffi.new("nrt_tensor_t **")
        assert lib.nrt_tensor_allocate(0, 0, 1 << 16, b"", box) == 0
        shared[0] = box[0]
        lib.nrt_tensor_free(box)
    stop.set()
    for thread in readers:
        thread.join()
    assert statuses <= {0, lib.NRT_INVALID_HANDLE}


def test_fork_while_other_threads_hold_locks(runtime):
    """A child never meets a lock that a thread of the parent took with it."""
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            runtime.allocate(0, 64).free()

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        tensor = runtime.allocate(0, 8, "both")
        tensor.write(b"parent!!")
        for _ in range(50):
            pid = os.fork()
            if pid == 0:
                try:
                    assert tensor.read() == b"parent!!"
                    tensor.write(b"child!!!")
                    runtime.allocate(1, 64).free()
                    runtime.close()
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
        assert tensor.read() == b"parent!!"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_real_runtime_stays_with_its_process(runtime, monkeypatch):
    """Cores belong to a process: in a child the binding refuses before it reaches the library, and frees nothing."""
    tensor = runtime.allocate(0, 8, "x")
    monkeypatch.setattr(runtime, "is_software", False)
    monkeypatch.setattr(runtime, "_pid", 1)
    with pytest.raises(DeadHandleError, match=r"neuron tensor 'x' belongs to process 1: .*spawn"):
        tensor.read()
    with pytest.raises(DeadHandleError, match="the neuron runtime belongs to process 1"):
        runtime.allocate(0, 8)
    tensor.free()
    monkeypatch.undo()
    assert runtime.memory_stats(0).bytes_used == 8
