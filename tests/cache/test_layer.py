"""Layer: damaged entries, damaged and vanished databases, and trouble that never reaches the program."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adaptive_eager.cache import disk
from adaptive_eager.cache import entry as module
from adaptive_eager.cache.store import CacheTrouble, KernelStore

KEY, OTHER = "ab" * 32, "cd" * 32


def rows(directory):
    return sqlite3.connect(directory / "v2" / "cache.db")


# -- damaged entries


def test_flipped_bit(directory, store, warnings_of):
    store.put("kernel", KEY, b"machine code")
    with rows(directory) as database:
        (value,) = database.execute("SELECT value FROM Cache").fetchone()
        bad = bytearray(value)
        bad[-40] ^= 1
        database.execute("UPDATE Cache SET value = ?", (bytes(bad),))
    assert store.get("kernel", KEY) is None
    assert store.stats()["bad_entries"] == 1
    assert store.keys("kernel") == [], "a damaged entry stays"
    assert len(warnings_of()) == 1
    (kept,) = (directory / "v2" / "broken").iterdir()
    assert kept.read_bytes() == bytes(bad), "it can be looked at"
    store.put("kernel", KEY, b"machine code")
    assert store.get("kernel", KEY) == b"machine code"


def damage_all(directory, value):
    with rows(directory) as database:
        database.execute("UPDATE Cache SET value = ?", (value,))


def test_many_damaged_entries_are_one_warning_and_few_files(directory, store, warnings_of):
    for number in range(40):
        store.put("kernel", f"{number:064x}", b"x")
    damage_all(directory, b"\0")
    assert [store.get("kernel", f"{number:064x}") for number in range(40)] == [None] * 40
    assert store.stats()["bad_entries"] == 40
    assert len(warnings_of()) == 1
    assert len(list((directory / "v2" / "broken").iterdir())) == 16


def test_entry_under_another_key_is_refused(directory, store):
    store.put("kernel", KEY, b"x")
    with rows(directory) as database:
        database.execute("UPDATE Cache SET key = ?", (f"kernel:{OTHER}",))
    assert store.get("kernel", OTHER) is None
    assert store.stats()["bad_entries"] == 1


def test_wrong_magic(directory, store, warnings_of):
    store.put("kernel", KEY, b"x")
    damage_all(directory, b"AEold..\n" + module.pack(f"kernel:{KEY}", b"x")[8:])
    assert store.compile_once("kernel", KEY, lambda: b"mine") == b"mine"
    (message,) = warnings_of()
    assert "does not start as an entry does" in message and "\n" not in message


def test_newer_format(directory, store, warnings_of, monkeypatch):
    store.put("kernel", KEY, b"x")
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", 7)
        damage_all(directory, module.pack(f"kernel:{KEY}", b"x"))
    assert store.compile_once("kernel", KEY, lambda: b"mine") == b"mine"
    (message,) = warnings_of()
    assert "its format is 7, need 2" in message and "\n" not in message


class Poison:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("place", ["value", "file", "key", "text"])
def test_nothing_is_unpickled(directory, store, tmp_path, place, warnings_of):
    victim = tmp_path / "victim"
    poison = pickle.dumps(Poison(victim), 0 if place == "text" else 4)
    store.put("kernel", KEY, b"x")
    with rows(directory) as database:
        if place == "value":
            database.execute("UPDATE Cache SET mode = 4, value = ?", (poison,))
        elif place == "file":
            (directory / "v2" / "poison").write_bytes(poison)
            database.execute("UPDATE Cache SET mode = 4, value = NULL, filename = 'poison'")
        elif place == "text":
            database.execute("UPDATE Cache SET mode = 4, value = ?", (poison.decode(),))
        else:
            database.execute("UPDATE Cache SET raw = 0, key = ?", (poison,))
    assert store.get("kernel", KEY) is None
    store.info()
    store.put("kernel", KEY, b"y")
    store.layers[0].shrink(0)
    store.layers[0].clear()
    assert not victim.exists()
    assert len(warnings_of()) == (place != "key")
    pickle.loads(poison)
    assert victim.exists(), "the poison works, so the test can fail"


def test_nothing_is_pickled_either(store):
    store.put("kernel", KEY, b"x")
    with pytest.raises(TypeError, match="values are bytes, got dict"):
        store.layers[0]._writer.write("kernel:x", {"a": 1})
    with pytest.raises(TypeError, match="names are str, got tuple"):
        store.layers[0]._writer.write(("kernel", "x"), b"")


@pytest.mark.parametrize("action", ["get", "put", "shrink", "clear"])
def test_row_that_names_a_foreign_file_does_not_remove_it(directory, store, tmp_path, action):
    victim = tmp_path / "precious"
    victim.write_text("keep")
    store.put("kernel", KEY, b"x")
    with rows(directory) as database:
        database.execute("UPDATE Cache SET mode = 2, value = NULL, filename = '../../precious'")
    if action == "get":
        assert store.get("kernel", KEY) is None
    elif action == "put":
        store.put("kernel", KEY, b"y")
    elif action == "shrink":
        store.layers[0].shrink(0)
    else:
        store.layers[0].clear()
    assert victim.read_text() == "keep"
    assert store.get("kernel", KEY) == (b"y" if action == "put" else None)


# -- damaged or vanished databases


def fill(directory):
    store = KernelStore(directory)
    for number in range(200):
        store.put("kernel", f"{number:064x}", os.urandom(2000))
    store.close()
    return directory / "v2" / "cache.db"


def ruin(path, damage):
    data = path.read_bytes()
    if damage == "text":
        path.write_text("this is not a database, " * 100)
    elif damage == "half":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "nothing":
        path.write_bytes(b"")
    else:
        path.write_bytes(data[:100] + os.urandom(len(data) - 100))


@pytest.mark.parametrize("damage", ["text", "half", "nothing", "noise"])
@pytest.mark.parametrize("when", ["before it is opened", "while it is open"])
def test_broken_database_is_replaced(directory, warnings_of, damage, when):
    path = fill(directory)
    other = KernelStore(directory)
    if when == "while it is open":
        assert other.get("kernel", f"{0:064x}") is not None
        other.put("kernel", OTHER, b"y")
    ruin(path, damage)
    for number in range(200):
        other.get("kernel", f"{number:064x}")
    other.put("kernel", KEY, b"x")
    assert other.trouble is None
    assert len(warnings_of()) == (damage != "nothing" or when == "while it is open")
    if damage != "nothing":
        assert "damaged" in warnings_of()[0]
        assert (directory / "v2" / "broken" / "cache.db").exists()
    assert KernelStore(directory, strict=True).get("kernel", KEY) == b"x"


def test_what_damages_it_on_and_on_wins(directory, warnings_of):
    """A few times a process makes a new database; then it stays in memory."""
    store = KernelStore(directory)
    for number in range(20):
        path = directory / "v2" / "cache.db"
        if path.exists():
            ruin(path, "text")
        store.put("kernel", f"{number:064x}", b"%d" % number)
        assert store.get("kernel", f"{number:064x}") in (b"%d" % number, None)
    assert store.trouble is not None
    assert len(warnings_of()) == 2  # damaged; not used any more
    store.put("kernel", KEY, b"x")
    assert store.get("kernel", KEY) == b"x"


def test_only_one_of_many_replaces_it(directory):
    path = fill(directory)
    stores = [KernelStore(directory) for _ in range(4)]
    for store in stores:
        store.get("kernel", KEY)
    ruin(path, "text")
    for number, store in enumerate(stores):
        assert store.get("kernel", KEY) is None
        store.put("kernel", f"{number:064x}", b"new")
    assert [len(store.keys("kernel")) for store in stores] == [4] * 4
    assert sum(store.layers[0].repairs for store in stores) == 1


def test_directory_deleted_under_a_live_process(directory, store):
    store.put("kernel", KEY, b"x")
    shutil.rmtree(directory)
    assert store.get("kernel", KEY) is None
    store.put("kernel", KEY, b"y")
    assert KernelStore(directory, strict=True).get("kernel", KEY) == b"y"


def test_directory_replaced_under_a_live_process(directory, store):
    store.put("kernel", KEY, b"x")
    shutil.rmtree(directory)
    KernelStore(directory, strict=True).put("kernel", OTHER, b"other")
    assert store.get("kernel", OTHER) == b"other"


DYING = """
import os, sys
from adaptive_eager.cache.store import KernelStore
store = KernelStore(sys.argv[1])
store.put("kernel", "ab" * 32, b"x")
connection = store.layers[0]._writer._cache._con
connection.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE Cache SET value = zeroblob(200000)")
os.kill(os.getpid(), 9)
"""


def test_a_writer_that_dies_within_its_transaction(directory, warnings_of):
    """The half-written journal is rolled back by whoever comes next, also one that only reads."""
    for reader in ({}, {"mode": "read-only"}):
        found = subprocess.run([sys.executable, "-c", DYING, str(directory)], check=False)
        assert found.returncode == -signal.SIGKILL
        assert (directory / "v2" / "cache.db-journal").stat().st_size > 0
        store = KernelStore(directory, **reader)
        assert store.get("kernel", KEY) in (b"x", None) if reader else store.get("kernel", KEY) == b"x"
        assert store.trouble is None
        store.close()
        if not reader:
            shutil.rmtree(directory)


# -- trouble: one warning that names the cause, then memory


@pytest.fixture
def expect_memory_only(warnings_of):
    """expect_memory_only(store, cause): the store works, in memory, after one warning that names the cause."""

    def expect(store, cause):
        for number in range(3):
            store.put("kernel", f"{number:064x}", b"%d" % number)
            assert store.get("kernel", f"{number:064x}") == b"%d" % number
        assert store.get("kernel", KEY) is None
        assert store.compile_once("plan", KEY, lambda: b"p") == b"p"
        assert store.keys("kernel") == [f"{number:064x}" for number in range(3)]
        (message,) = warnings_of()
        assert cause in message
        assert str(store.directory) in message
        assert "\n" not in message

    return expect


def test_directory_that_cannot_be_made(tmp_path, expect_memory_only):
    (tmp_path / "file").write_text("")
    store = KernelStore(tmp_path / "file" / "cache")
    expect_memory_only(store, "file is not a directory")


def test_relative_directory_is_refused(expect_memory_only):
    expect_memory_only(KernelStore("~/.cache/adaptive-eager"), "not an absolute path")


def as_somebody_else(directory, action):
    """Runs `action` in a child that is user 65534 if we are root, who may write anywhere."""
    if os.geteuid() == 0:
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, 65534, 65534)
        for parent in directory.parents:
            if parent.stat().st_uid == 0 and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_unwritable_directory(directory, expect_memory_only):
    directory.mkdir(mode=0o700)
    directory.chmod(0o500)
    as_somebody_else(directory, lambda: expect_memory_only(KernelStore(directory), "not writable"))


def test_what_cannot_be_written_is_read_on(directory, warnings_of):
    KernelStore(directory, strict=True).put("kernel", KEY, b"x")
    (directory / "v2").chmod(0o500)
    (directory / "v2" / "cache.db").chmod(0o400)

    def child():
        store = KernelStore(directory)
        store.put("kernel", OTHER, b"y")
        assert (store.get("kernel", KEY), store.get("kernel", OTHER)) == (b"x", b"y")
        store.put("kernel", OTHER, b"z")
        (message,) = warnings_of()
        assert f"{directory} is not written to" in message

    try:
        as_somebody_else(directory, child)
    finally:
        (directory / "v2").chmod(0o700)


def test_full_disk(directory, in_child, warnings_of):
    """Past the limit a write fails as on a full disk: what is there is read on, what is new is kept in memory."""
    writer = KernelStore(directory)
    writer.put("kernel", KEY, b"x")
    writer.close()
    size = (directory / "v2" / "cache.db").stat().st_size

    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10_000, size + 10_000))
        store = KernelStore(directory)
        for number in range(5):
            store.put("kernel", f"{number:064x}", bytes(8000))
        assert all(store.get("kernel", f"{number:064x}") == bytes(8000) for number in range(5))
        assert store.get("kernel", KEY) == b"x"
        assert store.compile_once("kernel", OTHER, lambda: b"y") == b"y"
        (message,) = warnings_of()
        assert f"{directory} is not written to" in message
        assert f"this process may make files of at most {size + 10_000} bytes" in message

    in_child(child)
    assert KernelStore(directory, strict=True).get("kernel", KEY) == b"x"


def test_hanging_writer_is_not_waited_for_long(directory, warnings_of, monkeypatch):
    monkeypatch.setattr(disk, "BUSY_SECONDS", 0.1)
    store = KernelStore(directory)
    store.put("kernel", OTHER, b"y")
    writer = rows(directory)
    writer.isolation_level = None
    writer.execute("BEGIN IMMEDIATE")
    store.put("kernel", KEY, b"x")
    assert store.get("kernel", KEY) == b"x"
    assert store.get("kernel", OTHER) == b"y"
    (message,) = warnings_of()
    assert "stayed locked" in message
    writer.execute("ROLLBACK")


def test_hanging_reader_of_all_is_not_waited_for_long(directory, warnings_of, monkeypatch):
    monkeypatch.setattr(disk, "BUSY_SECONDS", 0.1)
    KernelStore(directory).put("kernel", KEY, b"x")
    writer = rows(directory)
    writer.isolation_level = None
    writer.execute("BEGIN EXCLUSIVE")
    store = KernelStore(directory)
    assert store.compile_once("kernel", KEY, lambda: b"mine") == b"mine"
    assert store.get("kernel", KEY) == b"mine"
    (message,) = warnings_of()
    assert "locked" in message
    writer.execute("ROLLBACK")


@pytest.mark.parametrize("still_open", [False, True])
def test_write_ahead_log_is_not_waited_for_long(directory, warnings_of, monkeypatch, still_open):
    """diskcache would try for a minute to be rid of it."""
    monkeypatch.setattr(disk, "BUSY_SECONDS", 0.1)
    KernelStore(directory, strict=True).put("kernel", KEY, b"good")
    other = sqlite3.connect(directory / "v2" / "cache.db")
    other.execute("PRAGMA journal_mode = wal")
    other.execute("SELECT * FROM Settings").fetchall()
    if not still_open:
        other.close()
        (directory / "v2" / "cache.db-wal").write_bytes(b"garbage" * 1000)
    start = time.monotonic()
    store = KernelStore(directory)
    assert store.get("kernel", KEY) == b"good"
    assert store.compile_once("kernel", "f" * 64, lambda: b"made") == b"made"
    assert time.monotonic() - start < 5
    assert [message.partition("has a")[2][:16] for message in warnings_of()] == [" write-ahead log"] * still_open
    other.close()


def test_strict_store_raises_instead(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheTrouble, match="file is not a directory"):
        KernelStore(tmp_path / "file" / "cache", strict=True).put("kernel", KEY, b"")
