"""Threads that record at once: one window per device, in the order of its lock; each thread sees its own values."""

import threading

import pytest
import torch

import adaptive_eager as ae


def in_threads(*functions):
    """Runs the functions at the same time, and raises what one of them raised."""
    results, errors = [None] * len(functions), []
    ready = threading.Barrier(len(functions))

    def run(i, function):
        try:
            ready.wait(20)
            results[i] = function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i, f), daemon=True) for i, f in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


def work(seed, rounds=60, read_every=None):
    """A loop whose result is known: each thread has its own numbers."""

    def run():
        x = torch.full((50,), float(seed), device="neuron")
        seen = []
        for i in range(rounds):
            x = x * 0.5 + seed
            x[::2] += 1
            if read_every and i % read_every == 0:
                seen.append(x.sum().item())
        return x.cpu(), seen

    return run


def alone(seed, rounds=60, read_every=None):
    x, seen = torch.full((50,), float(seed)), []
    for i in range(rounds):
        x = x * 0.5 + seed
        x[::2] += 1
        if read_every and i % read_every == 0:
            seen.append(x.sum().item())
    return x, seen


@pytest.mark.parametrize("read_every", [None, 1, 7])
def test_two_threads_record_at_once(mode, read_every):
    for _ in range(4):
        first, second = in_threads(work(1, read_every=read_every), work(2, read_every=read_every))
        for seed, (x, seen) in ((1, first), (2, second)):
            expected, expected_seen = alone(seed, read_every=read_every)
            torch.testing.assert_close(x, expected)
            assert seen == pytest.approx(expected_seen)


def test_many_threads_flush_at_once():
    def flushing(seed):
        def run():
            total = 0.0
            for i in range(100):
                x = torch.full((8,), float(seed), device="neuron") + i
                if i % 3 == 0:
                    ae.flush()
                if i % 5 == 0:
                    torch.neuron.synchronize()
                total += x.sum().item()
            return total

        return run

    totals = in_threads(*(flushing(seed) for seed in range(4)))
    assert totals == [sum(8.0 * (seed + i) for i in range(100)) for seed in range(4)]


def test_a_tensor_recorded_in_one_thread_is_read_in_another():
    x = torch.arange(6.0, device="neuron") * 2

    def read():
        return (x + 1).tolist()

    assert in_threads(read, read) == [[1, 3, 5, 7, 9, 11]] * 2


def test_an_error_in_one_thread_leaves_the_other_alone():
    zeros = torch.zeros(4, dtype=torch.int64, device="neuron")
    zeros.cpu()

    def failing():
        caught = 0
        for _ in range(20):
            with pytest.raises(RuntimeError):
                torch.ones(3, device="neuron") + torch.ones(4, device="neuron")
            caught += 1
        return caught

    results = in_threads(failing, work(3, read_every=3))
    assert results[0] == 20
    torch.testing.assert_close(results[1][0], alone(3, read_every=3)[0])


def test_backward_in_the_calling_thread_and_in_another():
    """Backward runs where it is called: a second pool of OpenMP threads would slow down every kernel."""
    where = []

    def step():
        x = torch.randn(20, device="neuron", requires_grad=True)
        y = (x * 2).tanh()
        y.register_hook(lambda g: where.append(threading.current_thread().name))
        y.sum().backward()
        return x.grad.cpu(), (2 * (1 - y.detach() ** 2)).cpu(), threading.current_thread().name

    for gradient, expected, _ in [step(), *in_threads(step, step)]:
        torch.testing.assert_close(gradient, expected)
    assert "MainThread" in where and len(set(where)) == 3


def test_backward_of_a_graph_made_in_another_thread():
    x = torch.arange(5.0, device="neuron").requires_grad_()

    def forward():
        return (x * x).sum()

    (loss,) = in_threads(forward)
    loss.backward()
    assert x.grad.tolist() == [0, 2, 4, 6, 8]


def test_modes_change_while_another_thread_records():
    def switching():
        for _ in range(20):
            for name in ("per_op", "stepwise", "adaptive"):
                ae.set_mode(name)

    before = ae.mode()
    try:
        _, (x, _) = in_threads(switching, work(2, rounds=100, read_every=5))
    finally:
        ae.set_mode(before)
    torch.testing.assert_close(x, alone(2, rounds=100)[0])


def test_a_data_loader_thread_feeds_the_device():
    """Uploads from a thread pool, as data loaders with pinned memory do them."""
    batches = torch.arange(40.0).view(10, 4)
    uploaded = [None] * 10

    def upload(first):
        def run():
            for i in range(first, 10, 2):
                uploaded[i] = batches[i].to("neuron", non_blocking=True) * 2

        return run

    in_threads(upload(0), upload(1))
    assert torch.stack(uploaded).cpu().equal(batches * 2)
