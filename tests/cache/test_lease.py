"""Leases: one holder a key, freed however the holder ends, waited for no longer than asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from adaptive_eager.cache.lease import acquire, file_lock, lease

HOLDER = """
import sys, time
from pathlib import Path
from adaptive_eager.cache.lease import acquire
lock = acquire(Path(sys.argv[1]), 1)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Starts another process that holds the lease `key`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "key.lock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_lease_of_another_key_is_free(tmp_path, holder):
    with lease(tmp_path, "other", 0) as held:
        assert held


def test_wait_is_bounded(tmp_path, holder):
    start = time.monotonic()
    with lease(tmp_path, "key", 0.1) as held:
        assert not held
    assert 0.1 <= time.monotonic() - start < 2


def test_killed_holder_frees_it(tmp_path, holder):
    threading.Timer(0.1, holder.send_signal, [signal.SIGKILL]).start()
    with lease(tmp_path, "key", 20) as held:
        assert held


def test_threads_exclude_each_other(tmp_path):
    with lease(tmp_path, "key", 0) as held:
        assert held
        seen = []

        def try_it():
            with lease(tmp_path, "key", 0.02) as also:
                seen.append(also)

        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert seen == [False]


def test_freed_after_an_exception(tmp_path):
    with pytest.raises(KeyboardInterrupt), lease(tmp_path, "key", 0):
        raise KeyboardInterrupt
    with lease(tmp_path, "key", 0) as held:
        assert held


def test_no_file_stays_behind(tmp_path):
    with lease(tmp_path, "key", 0):
        assert (tmp_path / "key.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_lock_on_a_removed_file_does_not_count(tmp_path):
    # The waiter below has the file open before the owner removes it; what it then locks is nobody else's lock.
    path = tmp_path / "key.lock"
    owner = acquire(path, 0)
    got = []
    waiter = threading.Thread(target=lambda: got.append(acquire(path, 10)))
    waiter.start()
    time.sleep(0.05)
    path.unlink()
    owner.release()
    waiter.join()
    assert os.fstat(got[0].descriptor).st_ino == path.stat().st_ino
    assert acquire(path, 0) is None
    got[0].release()


def test_unusable_folder_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    with lease(tmp_path / "file" / "leases", "key", 0) as held:
        assert not held


def test_symlink_in_place_of_the_lock_file_is_not_followed(tmp_path):
    (tmp_path / "key.lock").symlink_to(tmp_path / "victim")
    with lease(tmp_path, "key", 0) as held:
        assert not held
    assert not (tmp_path / "victim").exists()


def test_forked_child_neither_keeps_nor_frees_it(tmp_path):
    with lease(tmp_path, "key", 0):
        child = os.fork()
        if child == 0:
            with lease(tmp_path, "key", 0) as held:
                os._exit(int(held))
        assert os.waitpid(child, 0)[1] == 0, "the child took a lease that its parent holds"
    with lease(tmp_path, "key", 0):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(read, 1)
            os._exit(0)
    with lease(tmp_path, "key", 0) as held:
        assert held, "the living child keeps the lease that its parent has freed"
    os.write(write, b".")
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)


def test_child_leaving_the_block_leaves_the_parents_lease_alone(tmp_path):
    with lease(tmp_path, "key", 0):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert (tmp_path / "key.lock").exists()
            assert acquire(tmp_path / "key.lock", 0) is None
    if child == 0:
        os._exit(0)


def test_file_lock_says_what_it_waited_for(tmp_path):
    path = tmp_path / "open.lock"
    with (
        file_lock(path, 0),
        pytest.raises(TimeoutError, match=r"open\.lock stayed locked for 0.01 s"),
        file_lock(path, 0.01),
    ):
        pass
    with file_lock(path, 0):
        assert path.exists()


def test_the_lock_file_says_who_holds_it(tmp_path):
    with lease(tmp_path, "a much longer key than a number", 0):
        (file,) = tmp_path.iterdir()
        assert file.read_text() == f"{os.getpid()}\n"


def test_a_folder_that_takes_no_leases_is_one_warning(tmp_path, caplog):
    (tmp_path / "leases").write_text("in the way")
    for key in ("one", "two"):
        with lease(tmp_path / "leases", key, 0) as held:
            assert not held
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert str(tmp_path / "leases") in told
