"""Saving, loading, copying and pickling: values, sharing, device and requires_grad survive."""

import copy
import io
import pickle

import pytest
import torch
from device_harness import output_of


def saved(value, **load_arguments):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **load_arguments)


def pending():
    """A tensor that is recorded and not yet computed."""
    return torch.arange(6.0, device="neuron").view(2, 3) * 2 + 1


EXPECTED = [[1, 3, 5], [7, 9, 11]]


def test_save_and_load(mode):
    loaded = saved(pending())
    assert loaded.device == torch.device("neuron:0") and loaded.tolist() == EXPECTED


@pytest.mark.parametrize("map_location", ["cpu", torch.device("cpu"), {"neuron:0": "cpu"}, lambda storage, _: storage])
def test_load_on_the_host(map_location):
    loaded = saved(pending(), map_location=map_location)
    assert loaded.device.type == "cpu" and loaded.tolist() == EXPECTED


@pytest.mark.parametrize("map_location", ["neuron", "neuron:0", torch.device("neuron")])
def test_load_a_host_tensor_on_the_device(map_location):
    loaded = saved(torch.tensor(EXPECTED), map_location=map_location)
    assert loaded.device == torch.device("neuron:0") and loaded.tolist() == EXPECTED


@pytest.mark.slow
def test_a_file_from_the_device_loads_where_there_is_none(tmp_path):
    torch.save({"x": pending()}, tmp_path / "x.pt")
    out = output_of(
        f"""
        import torch
        print(hasattr(torch, "neuron"), torch.load({str(tmp_path / "x.pt")!r}, map_location="cpu")["x"].tolist())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        timeout=120,
    )
    assert out == f"False {[[float(v) for v in row] for row in EXPECTED]}"


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64]
)
def test_every_dtype(dtype):
    x = torch.tensor([0, 1, 2]).to(dtype)
    loaded = saved(x.to("neuron"))
    assert loaded.dtype == dtype and loaded.cpu().equal(x)


def test_views_share_their_storage_after_loading():
    base = torch.zeros(4, 4, device="neuron")
    loaded = saved({"base": base, "view": base[1:, 2]})
    loaded["view"].add_(1)
    assert loaded["base"].sum().item() == 3
    assert loaded["base"].untyped_storage().data_ptr() == loaded["view"].untyped_storage().data_ptr()
    assert loaded["view"].stride() == (4,) and loaded["view"].storage_offset() == 6


def test_deepcopy(mode):
    x = pending()
    base = {"x": x, "again": x, "view": x[0]}
    other = copy.deepcopy(base)
    x.zero_()
    assert other["x"].tolist() == EXPECTED
    assert other["x"] is other["again"]
    other["view"].fill_(7)
    assert other["x"][0].tolist() == [7, 7, 7]


def test_deepcopy_of_a_model_is_a_model_of_its_own():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to("neuron")
    model(torch.ones(4, 3, device="neuron")).sum().backward()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model[0].weight.zero_()
    assert twin[0].weight.abs().sum().item() > 0
    assert type(twin[0].weight) is torch.nn.Parameter and twin[0].weight.requires_grad
    assert twin[1].num_batches_tracked.item() == 1


def test_pickle():
    x = pending().requires_grad_()
    loaded = pickle.loads(pickle.dumps(x))
    assert loaded.tolist() == EXPECTED and loaded.requires_grad and loaded.device.type == "neuron"
    assert pickle.loads(pickle.dumps(torch.device("neuron:0"))) == torch.device("neuron:0")


def test_state_dict_of_model_and_optimizer():
    def make():
        model = torch.nn.Linear(4, 3).to("neuron")
        return model, torch.optim.AdamW(model.parameters(), 0.1)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device="neuron")).square().sum().backward()
        optimizer.step()

    model, optimizer = make()
    step(model, optimizer)
    state = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, map_location="neuron")
    other, other_optimizer = make()
    other.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optimizer"])
    for m, o in ((model, optimizer), (other, other_optimizer)):
        step(m, o)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert a.cpu().equal(b.cpu())


def test_saving_is_a_snapshot():
    x = torch.ones(3, device="neuron")
    file = io.BytesIO()
    torch.save(x, file)
    x.add_(1)
    file.seek(0)
    assert torch.load(file).tolist() == [1, 1, 1]


def test_parameters_moved_in_place_keep_their_identity():
    model = torch.nn.Linear(2, 2)
    weight = model.weight
    model.to("neuron")
    assert model.weight is weight and weight.device.type == "neuron"
    model.cpu()
    assert model.weight is weight and weight.device.type == "cpu"


def test_numpy_and_dlpack_of_a_copy():
    assert pending().cpu().numpy().tolist() == EXPECTED
    assert torch.from_dlpack(pending().cpu()).tolist() == EXPECTED
