"""Streams, events and the torch.accelerator interface: one in-order stream a device, of which streams are handles."""

import pytest
import torch

import adaptive_eager as ae


def test_the_accelerator_is_this_device():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.device_count() == torch.neuron.device_count() >= 1
    assert torch.accelerator.current_device_index() == torch.neuron.current_device() == 0
    torch.accelerator.synchronize()
    torch.accelerator.set_device_index(0)


def test_device_module():
    assert torch.neuron.is_available() and torch.neuron.is_initialized()
    assert torch.get_device_module("neuron") is torch.neuron
    assert torch.neuron.is_bf16_supported()
    assert isinstance(torch.neuron.get_device_name(), str)
    assert torch.ones(2, device="neuron").is_neuron
    assert torch.ones(2).neuron().device == torch.device("neuron:0")
    assert torch.nn.Linear(2, 2).neuron().weight.is_neuron


def test_default_device():
    with torch.device("neuron"):
        assert torch.ones(2).device.type == "neuron"
    torch.set_default_device("neuron")
    try:
        assert torch.randn(3).device.type == "neuron"
    finally:
        torch.set_default_device(None)


def test_synchronize_runs_what_is_recorded():
    with ae.adaptive():
        ae.flush()
        x = torch.ones(4, device="neuron") + 1
        before = ae.stats()["windows"]
        torch.neuron.synchronize()
        assert ae.stats()["windows"] == before + 1
        torch.neuron.synchronize()
        assert ae.stats()["windows"] == before + 1, "there is nothing left to run"
    assert x.tolist() == [2, 2, 2, 2]


def test_streams_keep_one_order():
    stream = torch.neuron.Stream()
    x = torch.zeros(3, device="neuron")
    with torch.neuron.stream(stream):
        assert torch.neuron.current_stream() == stream
        x += 1
    x *= 5
    stream.synchronize()
    assert torch.neuron.current_stream() == torch.neuron.default_stream()
    assert x.tolist() == [5, 5, 5]
    assert stream.query()


def test_stream_waits():
    a, b = torch.neuron.Stream(), torch.neuron.Stream()
    assert a.device == torch.device("neuron:0") and a != b
    event = torch.neuron.Event()
    with torch.neuron.stream(a):
        x = torch.ones(3, device="neuron") * 2
        event.record(a)
    b.wait_event(event)
    b.wait_stream(a)
    with torch.neuron.stream(b):
        y = x + 1
    b.synchronize()
    assert y.tolist() == [3, 3, 3]
    x.record_stream(b)


def test_events():
    event = torch.neuron.Event()
    assert event.query(), "an event that was never recorded is done"
    event.record()
    event.synchronize()
    assert event.query()


def test_elapsed_time_is_that_of_the_work_between():
    def timed(rounds):
        start, end = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
        start.record()
        kept = [(x.mul(2).exp(), a @ a) for _ in range(rounds)]  # what nobody keeps is not computed
        end.record()
        end.synchronize()
        assert len(kept) == rounds
        return start.elapsed_time(end)

    x, a = torch.ones(1 << 18, device="neuron"), torch.ones(300, 300, device="neuron")
    timed(2)
    few, many = min(timed(1) for _ in range(3)), min(timed(30) for _ in range(3))
    assert 0 < few < many


def test_elapsed_time_wants_events_with_timing():
    a, b = torch.neuron.Event(), torch.neuron.Event()
    a.record()
    b.record()
    with pytest.raises((RuntimeError, ValueError)):
        a.elapsed_time(b)


def test_elapsed_time_wants_recorded_events():
    a, b = (torch.neuron.Event(enable_timing=True) for _ in range(2))
    with pytest.raises((RuntimeError, ValueError)):
        a.elapsed_time(b)


def test_generic_stream_and_event():
    stream, event = torch.Stream(device="neuron"), torch.Event(device="neuron")
    with stream:
        x = torch.ones(2, device="neuron") + 1
        event.record(stream)
    event.synchronize()
    assert x.tolist() == [2, 2]


def test_non_blocking_copies_are_ordered():
    host = torch.ones(1000)
    x = host.to("neuron", non_blocking=True)
    host.zero_()  # an upload takes the bytes at the call
    y = (x * 2).to("cpu", non_blocking=True)
    torch.neuron.synchronize()
    assert x.sum().item() == 1000 and y.sum().item() == 2000


def test_autocast():
    a = torch.randn(4, 4, device="neuron")
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        assert torch.nn.functional.softmax(a, -1).dtype == torch.float32
    assert (a @ a).dtype == torch.float32
