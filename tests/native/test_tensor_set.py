"""Tensor sets."""

import gc

import pytest

from adaptive_eager.native.errors import DeadHandleError, NrtError, Status
from adaptive_eager.native.library import ffi


@pytest.fixture
def raw_set(open_lib):
    result = ffi.new("nrt_tensor_set_t **")
    assert open_lib.nrt_allocate_tensor_set(result) == 0
    return result


@pytest.fixture
def raw_tensor(open_lib):
    result = ffi.new("nrt_tensor_t **")
    assert open_lib.nrt_tensor_allocate(0, 0, 64, b"t", result) == 0
    return result


def test_add_replace_and_get(runtime):
    a, b, tensors = runtime.allocate(0, 8, "a"), runtime.allocate(0, 8, "b"), runtime.tensor_set("inputs")
    tensors.add("x", a)
    assert tensors.get("x") is a
    tensors.add("x", b)
    assert tensors.get("x") is b
    with pytest.raises(NrtError, match=r"NRT_INVALID\(2\): looking up 'y' in neuron tensor set 'inputs'"):
        tensors.get("y")


def test_a_set_keeps_its_tensors(runtime):
    tensors = runtime.tensor_set()
    tensors.add("x", runtime.allocate(0, 8, "a"))
    gc.collect()
    tensors.get("x").write(b"12345678")
    assert runtime.memory_stats(0).bytes_used == 8
    tensors.free()
    gc.collect()
    assert runtime.memory_stats(0).bytes_used == 0


def test_a_freed_tensor_is_found_out(runtime):
    a, tensors = runtime.allocate(0, 8, "a"), runtime.tensor_set("s")
    tensors.add("x", a)
    a.free()
    with pytest.raises(NrtError) as caught:
        tensors.get("x")
    assert caught.value.status == Status.NRT_INVALID_HANDLE
    with pytest.raises(DeadHandleError, match="neuron tensor 'a' was freed"):
        tensors.add("y", a)


def test_use_after_destroy(runtime):
    a, tensors = runtime.allocate(0, 8), runtime.tensor_set("s")
    tensors.free()
    tensors.free()
    with pytest.raises(DeadHandleError, match="neuron tensor set 's' was destroyed"):
        tensors.add("x", a)


def test_raw_bad_handles(open_lib, raw_set, raw_tensor):
    lib, out = open_lib, ffi.new("nrt_tensor_t **")
    stale = raw_set[0]
    for bad in (ffi.NULL, ffi.cast("void *", 0x1234), raw_tensor[0], raw_tensor):
        assert lib.nrt_add_tensor_to_tensor_set(bad, b"x", raw_tensor[0]) == lib.NRT_INVALID_HANDLE
        assert lib.nrt_get_tensor_from_tensor_set(bad, b"x", out) == lib.NRT_INVALID_HANDLE
    assert lib.nrt_add_tensor_to_tensor_set(stale, b"x", ffi.cast("nrt_tensor_t *", stale)) == lib.NRT_INVALID_HANDLE
    for name in (ffi.NULL, b""):
        assert lib.nrt_add_tensor_to_tensor_set(stale, name, raw_tensor[0]) == lib.NRT_INVALID
    assert lib.nrt_get_tensor_from_tensor_set(stale, ffi.NULL, out) == lib.NRT_INVALID
    assert lib.nrt_get_tensor_from_tensor_set(stale, b"x", ffi.NULL) == lib.NRT_INVALID
    assert lib.nrt_allocate_tensor_set(ffi.NULL) == lib.NRT_INVALID

    lib.nrt_destroy_tensor_set(raw_set)
    assert raw_set[0] == ffi.NULL
    again = ffi.new("nrt_tensor_set_t **", stale)
    lib.nrt_destroy_tensor_set(again)  # a second time: ignored
    lib.nrt_destroy_tensor_set(raw_set)
    lib.nrt_destroy_tensor_set(ffi.NULL)
    assert lib.nrt_add_tensor_to_tensor_set(stale, b"x", raw_tensor[0]) == lib.NRT_INVALID_HANDLE


def test_raw_phases(lib):
    result, out = ffi.new("nrt_tensor_set_t **"), ffi.new("nrt_tensor_t **")
    lib.nrt_init(1, b"", b"")
    lib.nrt_close()
    assert lib.nrt_allocate_tensor_set(result) == lib.NRT_CLOSED
    assert lib.nrt_add_tensor_to_tensor_set(ffi.NULL, b"x", ffi.NULL) == lib.NRT_CLOSED
    assert lib.nrt_get_tensor_from_tensor_set(ffi.NULL, b"x", out) == lib.NRT_CLOSED
