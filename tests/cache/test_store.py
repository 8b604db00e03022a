"""KernelStore: what is kept, what is shared, and that no trouble reaches the program."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from adaptive_eager import params
from adaptive_eager.cache import blob
from adaptive_eager.cache.store import CacheTrouble, KernelStore

KEY = "ab" * 32
BIG = bytes(range(256)) * 2000  # a blob that is a file of its own


@pytest.fixture
def store(directory):
    with_trouble_as_errors = KernelStore(directory, strict=True)
    yield with_trouble_as_errors
    with_trouble_as_errors.close()


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def rows(directory):
    return sqlite3.connect(directory / "v1" / "cache.db")


def value_files(directory):
    return list((directory / "v1").glob("*/*/*.val"))


# -- what is kept


@pytest.mark.parametrize("payload", [b"", b"code", BIG], ids=["empty", "small", "file"])
def test_kept_for_another_process(directory, store, payload):
    store.put("kernel", KEY, payload)
    other = KernelStore(directory, strict=True)
    assert other.get("kernel", KEY) == payload
    assert other.stats() == {"hits": 1, "misses": 0, "puts": 0, "bad_entries": 0}


def test_kinds_do_not_mix(store):
    store.put("kernel", KEY, b"k")
    assert store.get("plan", KEY) is None
    store.put("plan", KEY, b"p")
    assert (store.get("kernel", KEY), store.get("plan", KEY)) == (b"k", b"p")


def test_put_replaces(store):
    store.put("kernel", KEY, b"one")
    store.put("kernel", KEY, b"two")
    assert store.get("kernel", KEY) == b"two"


def test_keys_are_listed_by_kind(store):
    for number in range(250):  # more than diskcache reads at once
        store.put("kernel", f"{number:064x}", b"x")
    store.put("plan", KEY, b"x")
    assert store.keys("kernel") == [f"{number:064x}" for number in range(250)]
    assert store.keys("plan") == [KEY]


def test_unknown_kind_is_a_mistake_of_ours(store):
    with pytest.raises(ValueError, match="kind 'neff': need one of kernel, plan"):
        store.get("neff", KEY)


def test_info_and_counters(store):
    store.get("kernel", KEY)
    store.put("kernel", KEY, b"x")
    store.get("kernel", KEY)
    assert store.stats() == {"hits": 1, "misses": 1, "puts": 1, "bad_entries": 0}
    info = store.info()
    assert (info["state"], info["trouble"], info["entries"]) == ("on", None, {"kernel": 1, "plan": 0, "failure": 0})
    assert info["bytes"] > 0


def test_size_limit_drops_the_oldest(directory):
    store = KernelStore(directory, size_limit=1 << 20, strict=True)
    for number in range(100):
        store.put("kernel", f"{number:064x}", os.urandom(40_000))
    kept = store.keys("kernel")
    assert 10 < len(kept) < 40
    assert kept[-1] == f"{99:064x}"


def test_from_params(directory):
    with params.override(cache_dir=str(directory), cache="read-only", cache_wait=1.5):
        store = KernelStore.from_params()
    assert (store.directory, store.mode) == (directory, "read-only")


# -- opening


def test_nothing_happens_before_the_first_use(directory):
    KernelStore(directory)
    assert not directory.exists()


def test_importing_loads_no_database():
    code = "import sys, adaptive_eager.cache.store; sys.exit('diskcache' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_opening_is_quick(directory):
    KernelStore(directory, strict=True).put("kernel", KEY, b"x")
    times = []
    for _ in range(5):
        store = KernelStore(directory, strict=True)
        start = time.perf_counter()
        store.get("kernel", KEY)
        times.append(time.perf_counter() - start)
        store.close()
    assert min(times) < 0.03


def test_directory_is_private(directory, store):
    old = os.umask(0)
    try:
        store.put("kernel", KEY, b"x")
    finally:
        os.umask(old)
    assert directory.stat().st_mode & 0o777 == 0o700


def _start_and_fill(index, directory):
    store = KernelStore(directory, strict=True)
    for number in range(20):
        store.put("kernel", f"{number:064x}", b"%d" % number)
        store.put("plan", f"{index:032x}{number:032x}", b"p")
    assert store.get("kernel", f"{7:064x}") == b"7"
    return store.stats()


def test_eight_processes_start_on_an_empty_directory(directory, together):
    results = together(8, _start_and_fill, str(directory))
    assert [result["puts"] for result in results] == [40] * 8
    store = KernelStore(directory, strict=True)
    assert len(store.keys("kernel")) == 20
    assert len(store.keys("plan")) == 8 * 20


def _compile_all(index, directory, log):
    store = KernelStore(directory, strict=True)
    results = []
    for number in range(10):

        def build(number=number):
            with open(log, "ab") as file:
                file.write(b"%d\n" % number)  # one write of an O_APPEND file: never interleaved
            time.sleep(0.02)
            return b"code %d" % number

        results.append(store.compile_once("kernel", f"{number:064x}", build))
    return results


def test_each_key_is_compiled_once_on_the_machine(directory, together, tmp_path):
    log = tmp_path / "builds"
    results = together(6, _compile_all, str(directory), str(log))
    assert results == [[b"code %d" % number for number in range(10)]] * 6
    builds = sorted(int(line) for line in log.read_text().split())
    assert builds == list(range(10)), "the compiler ran more than once for a key"


# -- compile_once


def test_compile_once_counts_one_miss(store):
    assert store.compile_once("kernel", KEY, lambda: b"code") == b"code"
    assert store.compile_once("kernel", KEY, lambda: pytest.fail("compiled twice")) == b"code"
    assert store.stats() == {"hits": 1, "misses": 1, "puts": 1, "bad_entries": 0}


def test_compile_once_among_threads(store):
    runs = []

    def build():
        runs.append(1)
        time.sleep(0.05)
        return b"code"

    threads = [threading.Thread(target=store.compile_once, args=("kernel", KEY, build)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1


def test_failed_build_leaves_nothing(store):
    def build():
        raise ZeroDivisionError("no code")

    with pytest.raises(ZeroDivisionError):
        store.compile_once("kernel", KEY, build)
    assert store.compile_once("kernel", KEY, lambda: b"code") == b"code"


def test_hanging_compiler_elsewhere_is_not_waited_for(directory):
    from adaptive_eager.cache.lease import lease

    store = KernelStore(directory, wait=0.05, strict=True)
    store.get("kernel", KEY)
    with lease(directory / "v1" / "leases", f"kernel-{KEY}", 0) as held:
        assert held
        assert store.compile_once("kernel", KEY, lambda: b"mine") == b"mine"


# -- damaged entries


def test_flipped_bit_in_a_row(directory, store, caplog):
    store.put("kernel", KEY, b"machine code")
    with rows(directory) as database:
        (value,) = database.execute("SELECT value FROM Cache").fetchone()
        bad = bytearray(value)
        bad[-40] ^= 1
        database.execute("UPDATE Cache SET value = ?", (bytes(bad),))
    assert store.get("kernel", KEY) is None
    assert store.stats()["bad_entries"] == 1
    assert store.keys("kernel") == [], "a damaged entry stays"
    assert len(warnings_of(caplog)) == 1
    store.put("kernel", KEY, b"machine code")
    assert store.get("kernel", KEY) == b"machine code"


@pytest.mark.parametrize("length", [0, 1, 1000, len(BIG)])
def test_truncated_file(directory, store, length, caplog):
    store.put("kernel", KEY, BIG)
    (file,) = value_files(directory)
    os.truncate(file, length)
    assert store.get("kernel", KEY) is None
    assert store.stats()["bad_entries"] == 1
    assert value_files(directory) == []


def test_missing_file_is_a_plain_miss(directory, store):
    store.put("kernel", KEY, BIG)
    value_files(directory)[0].unlink()
    assert store.get("kernel", KEY) is None


def test_many_damaged_entries_are_one_warning(directory, store, caplog):
    for number in range(5):
        store.put("kernel", f"{number:064x}", b"x")
    with rows(directory) as database:
        database.execute("UPDATE Cache SET value = x'00'")
    assert [store.get("kernel", f"{number:064x}") for number in range(5)] == [None] * 5
    assert store.stats()["bad_entries"] == 5
    assert len(warnings_of(caplog)) == 1


def test_entry_under_another_key_is_refused(directory, store):
    store.put("kernel", KEY, b"x")
    with rows(directory) as database:
        database.execute("UPDATE Cache SET key = ?", ("kernel:" + "cd" * 32,))
    assert store.get("kernel", "cd" * 32) is None
    assert store.stats()["bad_entries"] == 1


class Poison:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("place", ["value", "file", "key"])
def test_nothing_is_unpickled(directory, store, tmp_path, place):
    victim = tmp_path / "victim"
    poison = pickle.dumps(Poison(victim))
    store.put("kernel", KEY, b"x")
    with rows(directory) as database:
        if place == "value":
            database.execute("UPDATE Cache SET mode = 4, value = ?", (poison,))
        elif place == "file":
            (directory / "v1" / "poison").write_bytes(poison)
            database.execute("UPDATE Cache SET mode = 4, value = NULL, filename = 'poison'")
        else:
            database.execute("UPDATE Cache SET raw = 0, key = ?", (poison,))
    assert store.get("kernel", KEY) is None
    assert store.keys("kernel") == []
    store.info()
    assert not victim.exists()
    pickle.loads(poison)
    assert victim.exists(), "the poison works, so the test can fail"


def test_nothing_is_pickled_either(store):
    store.get("kernel", KEY)
    with pytest.raises(TypeError, match="values are bytes, got dict"):
        store._database.write("kernel:x", {"a": 1})
    with pytest.raises(TypeError, match="names are str, got tuple"):
        store._database.write(("kernel", "x"), b"")


def test_row_that_names_a_foreign_file_does_not_remove_it(directory, store, tmp_path):
    victim = tmp_path / "precious"
    victim.write_text("keep")
    store.put("kernel", KEY, b"x")
    with rows(directory) as database:
        database.execute("UPDATE Cache SET mode = 2, value = NULL, filename = '../../precious'")
    assert store.get("kernel", KEY) is None
    assert victim.read_text() == "keep"
    assert store.keys("kernel") == []


# -- damaged or vanished databases


@pytest.mark.parametrize("damage", ["text", "half", "noise"])
def test_broken_database_is_replaced(directory, caplog, damage):
    store = KernelStore(directory)
    for number in range(200):
        store.put("kernel", f"{number:064x}", os.urandom(2000))
    store.close()
    path = directory / "v1" / "cache.db"
    data = path.read_bytes()
    if damage == "text":
        path.write_text("this is not a database, " * 100)
    elif damage == "half":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(data[:100] + os.urandom(len(data) - 100))
    other = KernelStore(directory)
    for number in range(200):
        other.get("kernel", f"{number:064x}")
    other.put("kernel", KEY, b"x")
    assert other.trouble is None
    assert len(warnings_of(caplog)) == 1
    assert "damaged" in warnings_of(caplog)[0]
    assert (directory / "v1" / "broken" / "cache.db").exists()
    assert KernelStore(directory, strict=True).get("kernel", KEY) == b"x"


def test_directory_deleted_under_a_live_process(directory, store):
    store.put("kernel", KEY, b"x")
    shutil.rmtree(directory)
    assert store.get("kernel", KEY) is None
    store.put("kernel", KEY, b"y")
    assert KernelStore(directory, strict=True).get("kernel", KEY) == b"y"


def test_directory_replaced_under_a_live_process(directory, store):
    store.put("kernel", KEY, b"x")
    shutil.rmtree(directory)
    KernelStore(directory, strict=True).put("kernel", "cd" * 32, b"other")
    assert store.get("kernel", "cd" * 32) == b"other"


# -- trouble


def expect_memory_only(store, caplog, cause):
    """The store works, in memory, after one warning that names the cause."""
    for number in range(3):
        store.put("kernel", f"{number:064x}", b"%d" % number)
        assert store.get("kernel", f"{number:064x}") == b"%d" % number
    assert store.get("kernel", KEY) is None
    assert store.compile_once("plan", KEY, lambda: b"p") == b"p"
    assert store.keys("kernel") == [f"{number:064x}" for number in range(3)]
    assert store.info()["state"] == "memory"
    (message,) = warnings_of(caplog)
    assert cause in message
    assert str(store.directory) in message
    assert "\n" not in message


def test_symlink_is_refused(directory, tmp_path, caplog):
    (tmp_path / "real").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "real")
    expect_memory_only(KernelStore(directory), caplog, "symbolic link")
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755])
def test_directory_open_to_others_is_refused(directory, caplog, mode):
    directory.mkdir()
    directory.chmod(mode)
    expect_memory_only(KernelStore(directory), caplog, f"its mode is {mode:04o}, need 0700 (chmod 700 {directory})")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_directory_of_another_user_is_refused(directory, caplog):
    directory.mkdir(mode=0o700)
    os.chown(directory, 65534, 65534)
    expect_memory_only(KernelStore(directory), caplog, "it belongs to user 65534")


def test_file_in_place_of_the_directory(directory, caplog):
    directory.write_text("")
    expect_memory_only(KernelStore(directory), caplog, "it is not a directory")


def test_directory_that_cannot_be_made(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    expect_memory_only(KernelStore(tmp_path / "file" / "cache"), caplog, "file is not a directory")


def test_relative_directory_is_refused(caplog):
    expect_memory_only(KernelStore("~/.cache/adaptive-eager"), caplog, "not an absolute path")


def test_unwritable_directory(directory, caplog):
    directory.mkdir(mode=0o700)
    if os.geteuid() != 0:
        directory.chmod(0o500)
        expect_memory_only(KernelStore(directory), caplog, "not writable")
        return
    # Root may write anywhere, so ask as somebody else, whom the directories above let pass.
    os.chown(directory, 65534, 65534)
    directory.chmod(0o500)
    for parent in [directory.parent, *directory.parents]:
        if parent.stat().st_uid == 0 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(65534)
            expect_memory_only(KernelStore(directory), caplog, "not writable")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_full_disk(directory, caplog, monkeypatch):
    store = KernelStore(directory)
    store.put("kernel", "cd" * 32, b"x")

    def full(name, blob):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store._database, "write", full)
    expect_memory_only(store, caplog, "database or disk is full")


def test_hanging_writer_is_not_waited_for_long(directory, caplog, monkeypatch):
    from adaptive_eager.cache import disk

    monkeypatch.setattr(disk, "_BUSY_SECONDS", 0.1)
    store = KernelStore(directory)
    store.get("kernel", KEY)
    writer = rows(directory)
    writer.isolation_level = None
    writer.execute("BEGIN IMMEDIATE")
    store.put("kernel", KEY, b"x")
    assert store.get("kernel", KEY) == b"x"
    assert "stayed locked" in warnings_of(caplog)[0]
    writer.execute("ROLLBACK")


def test_strict_store_raises_instead(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheTrouble, match="file is not a directory"):
        KernelStore(tmp_path / "file" / "cache", strict=True).get("kernel", KEY)


def test_memory_is_bounded(tmp_path, monkeypatch):
    from adaptive_eager.cache import store as module

    monkeypatch.setattr(module, "_MEMORY_BYTES", 10_000)
    store = KernelStore(tmp_path / "never", mode="off")
    for number in range(100):
        store.put("kernel", f"{number:064x}", bytes(1000))
    assert len(store.keys("kernel")) == 10
    assert store.get("kernel", f"{99:064x}") == bytes(1000)


# -- modes


def test_off_touches_no_disk(directory):
    store = KernelStore(directory, mode="off", strict=True)
    store.put("kernel", KEY, b"x")
    assert store.get("kernel", KEY) == b"x"
    assert store.compile_once("plan", KEY, lambda: b"p") == b"p"
    assert not directory.exists()
    assert store.info()["state"] == "off"


def snapshot(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.suffix == ".db"}


@pytest.mark.parametrize("payload", [b"x", BIG], ids=["row", "file"])
def test_read_only_reads_and_never_writes(directory, payload):
    writer = KernelStore(directory, strict=True)
    writer.put("kernel", KEY, payload)
    writer.close()
    before = snapshot(directory)
    store = KernelStore(directory, mode="read-only", strict=True)
    assert store.get("kernel", KEY) == payload
    store.put("kernel", "cd" * 32, b"y")
    assert store.get("kernel", "cd" * 32) == b"y", "kept for this process"
    assert store.compile_once("kernel", "ef" * 32, lambda: b"z") == b"z"
    assert store.info()["entries"]["kernel"] == 3
    store.close()
    assert snapshot(directory) == before
    assert KernelStore(directory, strict=True).keys("kernel") == [KEY]


def test_read_only_sees_entries_of_a_live_writer(directory, store):
    store.put("kernel", KEY, b"x")
    assert KernelStore(directory, mode="read-only", strict=True).get("kernel", KEY) == b"x"


def test_read_only_damaged_entry_is_a_miss(directory):
    writer = KernelStore(directory, strict=True)
    writer.put("kernel", KEY, b"x")
    with rows(directory) as database:
        database.execute("UPDATE Cache SET value = x'00'")
    store = KernelStore(directory, mode="read-only", strict=True)
    assert store.get("kernel", KEY) is None
    assert store.stats()["bad_entries"] == 1


def test_read_only_without_a_cache_says_so(directory, caplog):
    store = KernelStore(directory, mode="read-only")
    assert store.get("kernel", KEY) is None
    assert len(warnings_of(caplog)) == 1
    assert not directory.exists()


def test_unknown_mode_is_named(directory):
    with pytest.raises(ValueError, match="mode 'readonly': need one of on, off, read-only"):
        KernelStore(directory, mode="readonly")


# -- fork


def in_child(action):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_forked_child_opens_its_own_connection(directory, store):
    store.put("kernel", KEY, b"x")
    parents = store._database

    def child():
        assert store.get("kernel", KEY) == b"x"
        assert store._database is not parents
        store.put("kernel", "cd" * 32, b"child")

    in_child(child)
    assert store.get("kernel", "cd" * 32) == b"child"


def test_fork_while_another_thread_is_inside(directory, store):
    store.put("kernel", KEY, b"x")
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with store._lock:
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)
    try:
        in_child(lambda: store.put("kernel", "cd" * 32, b"child"))
    finally:
        leave.set()
        thread.join()
    assert store.get("kernel", "cd" * 32) == b"child"


def test_fork_inside_a_transaction(store, caplog, monkeypatch):
    from adaptive_eager.cache import disk

    monkeypatch.setattr(disk, "_BUSY_SECONDS", 0.1)
    store.put("kernel", KEY, b"x")
    store.strict = False

    def child():  # the parent waits for it inside its transaction, so the child must not wait for the parent
        start = time.monotonic()
        store.put("kernel", "cd" * 32, b"child")
        assert store.get("kernel", "cd" * 32) == b"child"
        assert time.monotonic() - start < 5
        assert "stayed locked" in warnings_of(caplog)[0]

    with store._database._cache.transact():
        in_child(child)
    store.put("kernel", KEY, b"y")
    assert store.get("kernel", KEY) == b"y"


def test_a_fresh_blob_is_what_is_on_disk(directory, store):
    store.put("kernel", KEY, b"payload")
    (value,) = rows(directory).execute("SELECT value FROM Cache").fetchone()
    assert blob.unpack(f"kernel:{KEY}", value) == b"payload"
