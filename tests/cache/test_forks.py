"""Forks: a child opens its own connections, and waits for nobody that is not there."""

from __future__ import annotations

import os
import threading
import time

from adaptive_eager.cache import disk, forks
from adaptive_eager.cache.store import KernelStore

KEY, OTHER = "ab" * 32, "cd" * 32


def test_forked_child_opens_its_own_connections(store, in_child):
    store.put("kernel", KEY, b"x")
    store.get("kernel", KEY)
    layer = store.layers[0]
    parents = layer._reader, layer._writer
    assert None not in parents

    def child():
        assert store.stats()["puts"] == 0
        assert store.get("kernel", KEY) == b"x"
        store.put("kernel", OTHER, b"child")
        assert layer._reader is not parents[0] and layer._writer is not parents[1]

    in_child(child)
    assert store.get("kernel", OTHER) == b"child"


def test_a_fork_waits_for_a_thread_that_is_inside(store, in_child):
    """SQLite's own locks would be held for ever in the child."""
    store.put("kernel", KEY, b"x")
    inside = threading.Event()

    def be_inside():
        with store._lock:
            inside.set()
            time.sleep(0.2)
            inside.clear()

    thread = threading.Thread(target=be_inside)
    thread.start()
    inside.wait()

    def child():
        assert not inside.is_set(), "forked while the thread was inside"
        store.put("kernel", OTHER, b"child")

    in_child(child)
    thread.join()
    assert store.get("kernel", OTHER) == b"child"


def test_a_fork_does_not_wait_for_ever(store, in_child, monkeypatch):
    """The child of a process whose thread hangs inside the database stays away from it."""
    monkeypatch.setattr(forks, "_SECONDS", 0.05)
    store.put("kernel", KEY, b"x")
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with store._lock:
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)

    def child():
        store.put("kernel", OTHER, b"child")
        assert (store.get("kernel", OTHER), store.get("kernel", KEY)) == (b"child", None)
        assert store.layers[0]._reader is store.layers[0]._writer is None

    try:
        in_child(child)
    finally:
        leave.set()
        thread.join()
    assert store.get("kernel", KEY) == b"x"


def test_fork_inside_a_transaction(store, in_child, warnings_of, monkeypatch):
    monkeypatch.setattr(disk, "BUSY_SECONDS", 0.1)
    store.put("kernel", KEY, b"x")
    store.strict = False

    def child():  # the parent waits for it inside its transaction, so the child must not wait for the parent
        start = time.monotonic()
        store.put("kernel", OTHER, b"child")
        assert store.get("kernel", OTHER) == b"child"
        assert time.monotonic() - start < 5
        assert "locked" in warnings_of()[0]

    with store.layers[0]._writer._cache.transact():
        in_child(child)
    store.put("kernel", KEY, b"y")
    assert store.get("kernel", KEY) == b"y"


def test_children_fork_children(directory, in_child):
    store = KernelStore(directory)

    def generation(depth):
        store.put("kernel", f"{depth:064x}", b"%d" % depth)
        if depth:
            in_child(lambda: generation(depth - 1))

    generation(4)
    assert [store.get("kernel", f"{depth:064x}") for depth in range(5)] == [b"%d" % depth for depth in range(5)]


def test_threads_that_use_it_while_others_fork(store):
    """No child hangs, and the parent's threads go on."""
    stop, errors = threading.Event(), []

    def use(number):
        try:
            while not stop.is_set():
                store.put("kernel", f"{number:064x}", b"x" * 1000)
                assert store.get("kernel", f"{number:064x}") == b"x" * 1000
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        children = []
        for number in range(15):
            child = os.fork()
            if child == 0:
                store.strict = False
                store.put("kernel", f"{100 + number:064x}", b"child")
                os._exit(store.get("kernel", f"{100 + number:064x}") != b"child")
            children.append(child)
        deadline = time.monotonic() + 60
        for child in children:
            while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(child, 9)
                time.sleep(0.005)
            assert found[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
