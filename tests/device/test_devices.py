"""Several devices in one process. Each script runs in a process of its own, with two software devices."""

import textwrap

import pytest
from device_harness import output_of


def on_two(script):
    return output_of("import torch\n" + textwrap.dedent(script), ADAPTIVE_EAGER_DEVICES=2).splitlines()


@pytest.mark.slow
def test_count_current_and_context():
    assert on_two(
        """
        print(torch.neuron.device_count(), torch.neuron.current_device())
        with torch.neuron.device(1):
            print(torch.neuron.current_device(), torch.empty(1, device="neuron").device)
        torch.neuron.set_device("neuron:1")
        print(torch.ones(2).to("neuron").device, torch.accelerator.current_device_index())
        with torch.neuron.device(0):
            print(torch.empty(1, device="neuron").device)
        print(torch.neuron.current_device())
        """
    ) == ["2 0", "1 neuron:1", "neuron:1 1", "neuron:0", "1"]


def test_copies_between_devices_are_ordered():
    assert on_two(
        """
        a = torch.arange(4.0, device="neuron:0") + 1
        b = a.to("neuron:1")
        a.zero_()
        c = b * 2
        d = torch.empty(2, 2, device="neuron:0").t()
        d.copy_(c.view(2, 2))
        c.zero_()
        print(b.tolist(), b.device)
        print(d.tolist(), d.device, a.tolist())
        for i in range(5):
            b = (b.to(f"neuron:{i % 2}") + 1)
        print(b.tolist(), b.device)
        """
    ) == [
        "[1.0, 2.0, 3.0, 4.0] neuron:1",
        "[[2.0, 4.0], [6.0, 8.0]] neuron:0 [0.0, 0.0, 0.0, 0.0]",
        "[6.0, 7.0, 8.0, 9.0] neuron:0",
    ]


@pytest.mark.slow
def test_ops_run_on_the_device_of_their_tensors():
    assert on_two(
        """
        x = torch.ones(3, device="neuron:1")
        y = (x * 2 + 1).sum()
        print(y.device, y.item(), (x @ x).device, x.new_zeros(2).device, torch.zeros_like(x).device)
        print(torch.linalg.inv(torch.eye(2, device="neuron:1")).device, torch.neuron.current_device())
        """
    ) == ["neuron:1 9.0 neuron:1 neuron:1 neuron:1", "neuron:1 0"]


@pytest.mark.slow
def test_mixing_devices_is_an_error():
    assert on_two(
        """
        a, b = torch.ones(3, device="neuron:0"), torch.ones(3, device="neuron:1")
        for f in (lambda: a + b, lambda: a @ b, lambda: torch.cat([a, b]), lambda: a.add_(b)):
            try:
                f()
                print("no error")
            except RuntimeError as error:
                print("device" in str(error), "neuron:1" in str(error))
        print((a + b.to(a.device)).tolist(), (a + torch.tensor(2.0)).tolist())
        """
    ) == ["True True"] * 4 + ["[2.0, 2.0, 2.0] [3.0, 3.0, 3.0]"]


@pytest.mark.slow
def test_each_device_has_its_memory_and_its_generator():
    assert on_two(
        """
        x = torch.empty(1 << 20, device="neuron:1")
        print(torch.neuron.memory_allocated(0), torch.neuron.memory_allocated(1) >= 4 << 20)
        torch.neuron.manual_seed_all(3)
        a, b = torch.rand(4, device="neuron:0"), torch.rand(4, device="neuron:1")
        print(a.tolist() == b.tolist(), torch.neuron.get_rng_state(0).equal(torch.neuron.get_rng_state(1)))
        torch.rand(4, device="neuron:1")
        print(torch.neuron.get_rng_state(0).equal(torch.neuron.get_rng_state("neuron:1")))
        """
    ) == ["0 True", "True True", "False"]


def test_training_on_the_second_device_and_a_model_over_both():
    assert on_two(
        """
        torch.manual_seed(0)
        first, second = torch.nn.Linear(4, 8).to("neuron:0"), torch.nn.Linear(8, 1).to("neuron:1")
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
        losses = []
        for _ in range(5):
            loss = second(first(torch.ones(2, 4, device="neuron:0")).tanh().to("neuron:1")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(losses[-1] < losses[0], first.weight.grad.device, second.weight.grad.device)
        """
    ) == ["True neuron:0 neuron:1"]


@pytest.mark.slow
def test_saving_keeps_the_index():
    assert on_two(
        """
        import copy, io
        x = torch.ones(2, device="neuron:1")
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        print(torch.load(file).device, copy.deepcopy(x).device)
        file.seek(0)
        print(torch.load(file, map_location="neuron:0").device)
        """
    ) == ["neuron:1 neuron:1", "neuron:0"]


@pytest.mark.slow
def test_streams_and_events_of_each_device():
    assert on_two(
        """
        stream = torch.neuron.Stream("neuron:1")
        x = torch.ones(2, device="neuron:1") + 1
        torch.neuron.synchronize(1)
        stream.synchronize()
        print(stream.device, torch.neuron.current_stream(0).device, x.tolist())
        """
    ) == ["neuron:1 neuron:0 [2.0, 2.0]"]


@pytest.mark.slow
@pytest.mark.parametrize("use", ["torch.neuron.set_device(2)", "torch.empty(1, device='neuron:2')"])
def test_a_device_that_is_not_there(use):
    (line,) = on_two(
        f"""
        try:
            {use}
        except RuntimeError as error:
            print(str(error).splitlines()[0])
        """
    )
    assert "neuron:2" in line and "2 neuron devices" in line


def test_properties():
    """The names that programs written for torch.cuda look for."""
    import torch

    properties = torch.neuron.get_device_properties("neuron:0")
    assert properties == torch.neuron.get_device_properties(torch.device("neuron", 0))
    assert properties.name == torch.neuron.get_device_name() == "software NeuronCore 0"
    assert (properties.major, properties.minor) == torch.neuron.get_device_capability(0)
    assert properties.total_memory > 1 << 20
    assert properties.multi_processor_count == torch.get_num_threads()
    assert "software NeuronCore 0" in repr(properties)
    for ask in (torch.neuron.get_device_properties, torch.neuron.get_device_name, torch.neuron.mem_get_info):
        with pytest.raises(RuntimeError, match="neuron:7"):
            ask(7)
        with pytest.raises(ValueError, match="neuron"):
            ask("cpu")


@pytest.mark.parametrize(
    "use",
    [
        "a[i1]",
        "a.__setitem__(i1, 5.0)",
        "a.index_put_((i0,), torch.ones(1, device='neuron:1'))",
        "a.index_put_((i0,), torch.ones(1))",
        "torch.bernoulli(a, generator=torch.Generator())",
        "torch.randn(3, device='neuron', generator=torch.Generator())",
    ],
)
def test_devices_are_not_mixed_in_indexing_and_drawing(use):
    line = output_of(
        f"""
        import torch
        a = torch.ones(3, device="neuron:0")
        i0, i1 = (torch.tensor([0], device=f"neuron:{{k}}") for k in (0, 1))
        try:
            print("accepted:", {use})
        except RuntimeError as error:
            print(str(error).splitlines()[0])
        assert a[torch.tensor([0, 2])].tolist() == [1, 1]  # indices on the host are fine
        """,
        ADAPTIVE_EAGER_DEVICES=2,
    )
    assert "at least two devices" in line or "Expected a 'neuron' device type for generator" in line
