"""Models: loading, unloading, and what they say of themselves."""

import pytest
from native_kernels import TARGET, code_mappings, scale_artifact, status_of

from adaptive_eager.native.artifact import DTYPES
from adaptive_eager.native.errors import DeadHandleError, NrtError, Status
from adaptive_eager.native.library import ffi
from adaptive_eager.native.runtime import open_runtime


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


def test_unload(runtime):
    before = code_mappings()
    model = runtime.load(scale_artifact(), 0, "scale")
    assert code_mappings() == before + 1
    stale = model.pointer
    model.unload()
    model.unload()
    assert code_mappings() == before
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


def test_where_models_load(runtime):
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


def test_wrong_target(runtime):
    data = scale_artifact(target="another machine")
    with pytest.raises(NrtError, match=r"NRT_UNSUPPORTED_NEFF_VERSION\(10\): loading a model of \d+ bytes") as caught:
        runtime.load(data, 0, "m")
    assert str(caught.value).endswith("on neuron:0 'm': it is for the target another machine")
    runtime.set_loader([TARGET, "another machine"])
    runtime.load(data, 0).unload()
    runtime.set_loader()  # any target
    runtime.load(data, 0).unload()


def test_no_such_entry(runtime):
    before = code_mappings()
    with pytest.raises(NrtError, match=r"NRT_INVALID.*it has no function nothing"):
        runtime.load(scale_artifact(entries=["k", "nothing"]), 0)
    assert code_mappings() == before


def test_an_error_says_why_once(runtime):
    lib, out = runtime.lib, ffi.new("nrt_model_t **")
    with pytest.raises(NrtError, match="not a sound artefact of this version"):
        runtime.load(b"damaged", 0)
    data = scale_artifact()
    assert lib.nrt_load(data, len(data), 0, -1, out) == 0
    assert ffi.string(lib.nrtx_load_error()) == b""


def test_libraries_must_be_loaded(runtime):
    with pytest.raises(NrtError, match=r"NRT_INVALID.*the library /nonexistent/library.so is not loaded"):
        runtime.set_loader([], ["/nonexistent/library.so"])
    runtime.load(scale_artifact(), 0).unload()  # the loader of before stays


def test_closing_unloads_and_forgets_the_loader(lib):
    before = code_mappings()
    with open_runtime("software") as first:
        first.set_loader([TARGET])
        model = first.load(scale_artifact(), 0)
        assert code_mappings() == before + 1
        assert status_of(first.load, scale_artifact(target="another"), 0) == Status.NRT_UNSUPPORTED_NEFF_VERSION
    assert code_mappings() == before
    assert not model.is_alive
    with open_runtime("software") as second:
        second.load(scale_artifact(target="another"), 0)


def test_raw_loaders(lib, open_lib):
    assert lib.nrtx_set_loader(ffi.NULL, 0, ffi.NULL, 0) == 0
    for targets, libraries in [(1, 0), (0, 1)]:
        assert lib.nrtx_set_loader(ffi.NULL, targets, ffi.NULL, libraries) == lib.NRT_INVALID
        texts = ffi.new("char *[]", [ffi.NULL])
        assert lib.nrtx_set_loader(texts, targets, texts, libraries) == lib.NRT_INVALID
    lib.nrt_close()
    assert lib.nrtx_set_loader(ffi.NULL, 0, ffi.NULL, 0) == lib.NRT_CLOSED
