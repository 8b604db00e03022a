"""Device tensors: contents, ranges, slices, buffers, limits, and every way to use a handle wrongly."""

import gc
import random

import pytest

from adaptive_eager.native.errors import DeadHandleError, NrtError, Status
from adaptive_eager.native.library import ffi

MEBIBYTE = 1 << 20
LIMIT = 64 * MEBIBYTE
BEYOND = [(101, 0), (100, 1), (0, 101), (2**64 - 1, 2), (1, 2**64 - 1), (2**64 - 1, 2**64 - 1), (2**63, 2**63)]


@pytest.fixture
def make(open_lib):
    """Makes a raw tensor: make(size) -> nrt_tensor_t*."""

    def allocate(size=100, vnc=0, placement=0):
        result = ffi.new("nrt_tensor_t **")
        assert open_lib.nrt_tensor_allocate(placement, vnc, size, b"raw", result) == 0
        return result[0]

    return allocate


def free(lib, tensor):
    lib.nrt_tensor_free(ffi.new("nrt_tensor_t **", tensor))


# -- The Python object ------------------------------------------------------------------------------------------------


def test_write_and_read(runtime):
    tensor = runtime.allocate(0, 100, "x")
    assert tensor.size == 100
    tensor.memset(7)
    tensor.write(b"hello", 10)
    assert tensor.read(8, 9) == b"\7\7hello\7\7"
    target = bytearray(5)
    tensor.read_into(target, 10)
    assert target == b"hello"
    assert tensor.read(100) == b""
    tensor.write(b"", 100)
    assert ffi.buffer(ffi.cast("char *", tensor.va), 100)[10:15] == b"hello"


def test_copy(runtime):
    a, b = runtime.allocate(0, 26), runtime.allocate(0, 26)
    a.write(b"abcdefghijklmnopqrstuvwxyz")
    b.copy_from(a)
    assert b.read() == a.read()
    b.copy_from(a, offset=20, source_offset=0, size=6)
    assert b.read(18) == b"stabcdef"
    a.copy_from(a, offset=1, size=25)  # overlapping
    assert a.read() == b"aabcdefghijklmnopqrstuvwxy"


def test_copies_stay_on_their_core(runtime):
    here, there, host = runtime.allocate(0, 8, "here"), runtime.allocate(1, 8, "there"), runtime.allocate_host(8)
    with pytest.raises(NrtError, match="copying 8 bytes from neuron tensor 'here' to neuron tensor 'there'"):
        there.copy_from(here)
    here.write(b"12345678")
    host.copy_from(here)
    there.copy_from(host)
    assert there.read() == b"12345678"


def test_alignment(runtime):
    for size in (1, 63, 64, 65, 4096, 2 * MEBIBYTE - 1):
        assert runtime.allocate(0, size).va % 64 == 0
    for size in (2 * MEBIBYTE, 2 * MEBIBYTE + 1, 5 * MEBIBYTE - 3):
        tensor = runtime.allocate(0, size)
        assert tensor.va % (2 * MEBIBYTE) == 0
        tensor.memset(1)
        assert tensor.read(size - 1) == b"\1"


def test_slices_share_and_keep_the_storage(runtime):
    tensor = runtime.allocate(0, 100, "base")
    middle = tensor.slice(10, 50, "middle")
    inner = middle.slice(5, 10, "inner")
    assert inner.va == tensor.va + 15
    assert inner.size == 10
    tensor.write(bytes(range(100)))
    tensor.free()
    middle.free()
    gc.collect()
    assert inner.read() == bytes(range(15, 25))
    assert runtime.memory_stats(0).bytes_used == 100
    inner.free()
    assert runtime.memory_stats(0).bytes_used == 0
    with pytest.raises(NrtError, match=r"slicing 10 bytes at 95 of neuron tensor 'b', which has 100 bytes"):
        runtime.allocate(0, 100, "b").slice(95, 10)


def test_attached_buffers_are_borrowed_and_kept(runtime):
    tensor = runtime.allocate_empty("host")
    assert (tensor.size, tensor.va, tensor.read()) == (0, 0, b"")
    buffer = bytearray(b"0123456789")
    tensor.attach(buffer)
    assert tensor.size == 10
    tensor.write(b"AB", 2)
    assert buffer == b"01AB456789"
    part = tensor.slice(2, 2)
    tensor.free()
    with pytest.raises(BufferError):
        buffer.append(0)  # the slice still uses it
    assert part.read() == b"AB"
    part.free()
    buffer.append(0)
    assert runtime.memory_stats(0).bytes_used == 0


def test_attaching_frees_owned_storage(runtime):
    tensor = runtime.allocate(0, MEBIBYTE, "x")
    part = tensor.slice(0, 4)
    tensor.attach(bytearray(16))
    assert tensor.size == 16
    assert runtime.memory_stats(0).bytes_used == MEBIBYTE
    part.free()
    assert runtime.memory_stats(0).bytes_used == 0


def test_python_ranges(runtime):
    tensor = runtime.allocate(0, 100, "x")
    for offset, size in [*BEYOND, (-1, 4), (0, -1)]:
        for call in (
            tensor.read,
            tensor.slice,
            lambda o, s: tensor.memset(0, o, s),
            lambda o, s: tensor.copy_from(tensor, o, 0, s),
        ):
            with pytest.raises(NrtError) as caught:
                call(offset, size)
            assert caught.value.status == Status.NRT_INVALID
    with pytest.raises(NrtError, match=r"NRT_INVALID\(2\): writing 2 bytes at 99 of neuron tensor 'x', which has 100"):
        tensor.write(b"12", 99)
    with pytest.raises((TypeError, BufferError, ValueError)):
        tensor.read_into(b"read-only")
    for device, nbytes in [(0, 0), (0, -1), (0, 2**64), (2, 8), (-1, 8), (2**40, 8)]:
        with pytest.raises(NrtError) as caught:
            runtime.allocate(device, nbytes, "x")
        assert caught.value.status == Status.NRT_INVALID


def test_the_limit(runtime):
    assert runtime.memory_stats(0) == (0, LIMIT)
    big = runtime.allocate(0, LIMIT - 100)
    with pytest.raises(
        NrtError, match=r"^NRT Error NRT_RESOURCE\(4\): allocating 101 bytes on neuron:0 'more'$"
    ) as caught:
        runtime.allocate(0, 101, "more")
    assert caught.value.status == Status.NRT_RESOURCE
    exact = runtime.allocate(0, 100)
    assert runtime.memory_stats(0) == (LIMIT, LIMIT)
    other = runtime.allocate(1, LIMIT)  # each core has its own
    host = runtime.allocate_host(LIMIT)  # and the host none
    big.free()
    assert runtime.memory_stats(0).bytes_used == 100
    for tensor in (exact, other, host):
        tensor.free()
    for size in (LIMIT + 1, 2**40, 2**63, 2**64 - 1):
        with pytest.raises(NrtError) as caught:
            runtime.allocate(0, size)
        assert caught.value.status == Status.NRT_RESOURCE
    for size in (2**62, 2**63 - 1, 2**64 - 1):
        with pytest.raises(NrtError) as caught:
            runtime.allocate_host(size)
        assert caught.value.status == Status.NRT_RESOURCE
    assert runtime.memory_stats(0).bytes_used == 0


def test_free_and_use_after_free(runtime):
    tensor = runtime.allocate(0, 8, "x")
    assert tensor.is_alive
    with tensor:
        pass
    tensor.free()
    assert not tensor.is_alive
    assert repr(tensor) == "<neuron tensor 'x', freed>"
    other = runtime.allocate(0, 8, "y")
    for use in (
        tensor.read,
        lambda: tensor.write(b""),
        lambda: tensor.memset(0),
        lambda: tensor.slice(0, 1),
        lambda: tensor.attach(bytearray(1)),
        lambda: other.copy_from(tensor),
        lambda: tensor.copy_from(other),
        lambda: tensor.va,
        lambda: tensor.size,
    ):
        with pytest.raises(DeadHandleError, match="neuron tensor 'x' was freed"):
            use()


def test_collected_tensors_are_freed(runtime):
    runtime.allocate(0, 8)
    gc.collect()
    assert runtime.memory_stats(0).bytes_used == 0


# -- The C functions --------------------------------------------------------------------------------------------------


def test_raw_ranges(open_lib, make):
    lib, tensor, other, buffer = open_lib, make(), make(), ffi.new("char[]", 100)
    out = ffi.new("nrt_tensor_t **")
    for offset, size in BEYOND:
        assert lib.nrt_tensor_read(tensor, buffer, offset, size) == lib.NRT_INVALID
        assert lib.nrt_tensor_write(tensor, buffer, offset, size) == lib.NRT_INVALID
        assert lib.nrt_tensor_memset(tensor, offset, 0, size) == lib.NRT_INVALID
        assert lib.nrt_tensor_copy(tensor, offset, other, 0, size) == lib.NRT_INVALID
        assert lib.nrt_tensor_copy(other, 0, tensor, offset, size) == lib.NRT_INVALID
        assert lib.nrt_tensor_allocate_slice(tensor, offset, size, b"", out) == lib.NRT_INVALID
        op = ffi.new("nrt_tensor_batch_op_t *", {"offset": offset, "size": size, "buffer": buffer})
        batch = ffi.new("nrt_tensor_batch_t *", {"tensor": tensor, "ops": op, "num_ops": 1})
        assert lib.nrt_tensor_read_batch(batch, 1, False) == lib.NRT_INVALID
        assert lib.nrt_tensor_write_batch(batch, 1, False) == lib.NRT_INVALID
    for offset, size in [(0, 100), (100, 0), (99, 1)]:
        assert lib.nrt_tensor_read(tensor, buffer, offset, size) == 0
        assert lib.nrt_tensor_memset(tensor, offset, 0, size) == 0


def test_raw_arguments(open_lib, make):
    lib, tensor, out = open_lib, make(), ffi.new("nrt_tensor_t **")
    assert lib.nrt_tensor_allocate(0, 0, 8, ffi.NULL, out) == 0  # a name may be null
    for placement, vnc, size in [(0, 0, 0), (0, 2, 8), (0, -1, 8), (2, 0, 8), (3, 0, 8)]:
        assert lib.nrt_tensor_allocate(placement, vnc, size, b"", out) == lib.NRT_INVALID
    assert lib.nrt_tensor_allocate(0, 0, 8, b"", ffi.NULL) == lib.NRT_INVALID
    assert lib.nrt_tensor_allocate_empty(b"", ffi.NULL) == lib.NRT_INVALID
    assert lib.nrt_tensor_allocate_slice(tensor, 0, 8, b"", ffi.NULL) == lib.NRT_INVALID
    assert lib.nrt_tensor_allocate_slice(tensor, 0, 0, b"", out) == lib.NRT_INVALID
    assert lib.nrt_tensor_read(tensor, ffi.NULL, 0, 1) == lib.NRT_INVALID
    assert lib.nrt_tensor_write(tensor, ffi.NULL, 0, 1) == lib.NRT_INVALID
    assert lib.nrt_tensor_read(tensor, ffi.NULL, 0, 0) == 0
    assert lib.nrt_tensor_attach_buffer(tensor, ffi.NULL, 8) == lib.NRT_INVALID
    assert lib.nrt_tensor_attach_buffer(tensor, ffi.new("char[1]"), 0) == lib.NRT_INVALID


def test_raw_batches(open_lib, make):
    lib, tensors = open_lib, [make(), make()]
    source, target = ffi.new("char[]", b"abcdef"), ffi.new("char[]", 6)

    kept = []  # cffi does not keep what a struct points to

    def batch_of(buffer):
        ops = [
            ffi.new("nrt_tensor_batch_op_t[]", [(0, 2, buffer), (98, 2, buffer + 2)]),
            ffi.new("nrt_tensor_batch_op_t[]", [(50, 2, buffer + 4)]),
        ]
        kept.append(ops)
        return ffi.new("nrt_tensor_batch_t[]", [(tensors[0], ops[0], 2), (tensors[1], ops[1], 1)])

    assert lib.nrt_tensor_write_batch(batch_of(source), 2, True) == 0
    assert lib.nrt_tensor_read_batch(batch_of(target), 2, False) == 0
    assert ffi.buffer(target)[:] == b"abcdef"
    assert lib.nrt_tensor_write_batch(ffi.NULL, 0, False) == 0
    assert lib.nrt_tensor_write_batch(ffi.NULL, 1, False) == lib.NRT_INVALID
    no_ops = ffi.new("nrt_tensor_batch_t *", {"tensor": tensors[0], "ops": ffi.NULL, "num_ops": 1})
    assert lib.nrt_tensor_read_batch(no_ops, 1, False) == lib.NRT_INVALID

    # A bad second tensor: nothing of the first is written either.
    before = bytes(100)
    assert lib.nrt_tensor_write(tensors[0], before, 0, 100) == 0
    free(lib, tensors[1])
    assert lib.nrt_tensor_write_batch(batch_of(source), 2, False) == lib.NRT_INVALID_HANDLE
    buffer = ffi.new("char[]", 100)
    assert lib.nrt_tensor_read(tensors[0], buffer, 0, 100) == 0
    assert ffi.buffer(buffer)[:] == before


def check_dead(lib, handle, good):
    """Every function refuses `handle`."""
    buffer, out = ffi.new("char[]", 8), ffi.new("nrt_tensor_t **")
    assert lib.nrt_tensor_read(handle, buffer, 0, 1) == lib.NRT_INVALID_HANDLE
    assert lib.nrt_tensor_write(handle, buffer, 0, 1) == lib.NRT_INVALID_HANDLE
    assert lib.nrt_tensor_memset(handle, 0, 0, 1) == lib.NRT_INVALID_HANDLE
    assert lib.nrt_tensor_copy(handle, 0, good, 0, 1) == lib.NRT_INVALID_HANDLE
    assert lib.nrt_tensor_copy(good, 0, handle, 0, 1) == lib.NRT_INVALID_HANDLE
    assert lib.nrt_tensor_allocate_slice(handle, 0, 1, b"", out) == lib.NRT_INVALID_HANDLE
    assert lib.nrt_tensor_attach_buffer(handle, buffer, 8) == lib.NRT_INVALID_HANDLE
    assert lib.nrt_tensor_get_size(handle) == 0
    assert lib.nrt_tensor_get_va(handle) == ffi.NULL
    batch = ffi.new("nrt_tensor_batch_t *", {"tensor": handle, "num_ops": 0})
    assert lib.nrt_tensor_read_batch(batch, 1, False) == lib.NRT_INVALID_HANDLE
    free(lib, handle)


def test_raw_bad_handles(open_lib, make):
    good, stale = make(), make()
    free(open_lib, stale)
    tensor_set = ffi.new("nrt_tensor_set_t **")
    assert open_lib.nrt_allocate_tensor_set(tensor_set) == 0
    for bad in (ffi.NULL, ffi.cast("nrt_tensor_t *", 0x1234), ffi.cast("nrt_tensor_t *", ffi.new("char[64]")), stale):
        check_dead(open_lib, bad, good)
    check_dead(open_lib, ffi.cast("nrt_tensor_t *", tensor_set[0]), good)  # another kind of object
    assert open_lib.nrt_tensor_get_size(good) == 100


def test_raw_free_nulls_and_forgives(open_lib, make):
    box = ffi.new("nrt_tensor_t **", make())
    open_lib.nrt_tensor_free(box)
    assert box[0] == ffi.NULL
    open_lib.nrt_tensor_free(box)
    open_lib.nrt_tensor_free(ffi.NULL)


def test_a_stale_handle_never_comes_alive_again(open_lib, make):
    """Memory is used again at the same address all the time; handles are not."""
    stale = [make() for _ in range(100)]
    for tensor in stale:
        free(open_lib, tensor)
    fresh = [make() for _ in range(1000)]
    assert not set(map(int, (ffi.cast("uintptr_t", t) for t in stale))) & {int(ffi.cast("uintptr_t", t)) for t in fresh}
    for tensor in random.Random(0).sample(stale, 20):
        check_dead(open_lib, tensor, fresh[0])


def test_handles_die_with_the_session(lib, open_lib, make):
    stale = make()
    lib.nrt_close()
    buffer, out = ffi.new("char[]", 8), ffi.new("nrt_tensor_t **")
    assert lib.nrt_tensor_allocate(0, 0, 8, b"", out) == lib.NRT_CLOSED
    assert lib.nrt_tensor_allocate_empty(b"", out) == lib.NRT_CLOSED
    assert lib.nrt_tensor_read(stale, buffer, 0, 1) == lib.NRT_CLOSED
    assert lib.nrt_tensor_write(stale, buffer, 0, 1) == lib.NRT_CLOSED
    assert lib.nrt_tensor_get_va(stale) == ffi.NULL
    assert lib.nrt_init(1, b"", b"") == 0
    check_dead(lib, stale, make())
