"""KernelStore: what is kept, what is shared, who compiles, modes and layers."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from adaptive_eager import params
from adaptive_eager.cache import entry
from adaptive_eager.cache.store import KernelStore, NotWarm

KEY, OTHER = "ab" * 32, "cd" * 32
BIG = bytes(range(256)) * 8000


def rows(directory):
    return sqlite3.connect(directory / "v2" / "cache.db")


def filled(directory, **payloads):
    """A closed cache with kernels by key letter: filled(directory, a=b"code")."""
    store = KernelStore(directory, strict=True)
    for letter, payload in payloads.items():
        store.put("kernel", letter * 64, payload)
    store.close()
    return directory


# -- what is kept


@pytest.mark.parametrize("payload", [b"", b"code", BIG], ids=["empty", "small", "big"])
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
    for number in range(250):
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
    assert (info["state"], info["trouble"]) == ("on", None)
    assert info["entries"] == {"kernel": 1, "plan": 0, "failure": 0, "host": 0}
    assert info["bytes"] > 0


def test_from_params(directory, tmp_path):
    both = f"{directory}{os.pathsep}{tmp_path / 'image'}"
    with params.override(cache_dir=both, cache="read-only", cache_wait=1.5):
        store = KernelStore.from_params()
    assert [layer.directory for layer in store.layers] == [directory, tmp_path / "image"]
    assert (store.directory, store.mode) == (directory, "read-only")


def test_a_fresh_blob_is_what_is_on_disk(directory, store):
    store.put("kernel", KEY, b"payload", [("target", "znver3")], 0.5)
    mode, filename, value = rows(directory).execute("SELECT mode, filename, value FROM Cache").fetchone()
    assert (mode, filename) == (1, None), "values are rows, not files"
    found = entry.unpack(f"kernel:{KEY}", value)
    assert (found.payload, found.fields, found.seconds) == (b"payload", {"target": "znver3"}, 0.5)


# -- opening


def test_nothing_happens_before_the_first_use(directory):
    KernelStore(directory)
    assert not directory.exists()


def test_looking_for_an_entry_makes_no_directory(directory):
    assert KernelStore(directory, strict=True).get("kernel", KEY) is None
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


# -- compile_once


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
    store.put("kernel", OTHER, b"")
    with lease(directory / "v2" / "leases", f"kernel-{KEY}", 0) as held:
        assert held
        assert store.compile_once("kernel", KEY, lambda: b"mine") == b"mine"


# -- memory


def test_memory_is_bounded(tmp_path, monkeypatch):
    from adaptive_eager.cache import store as module

    monkeypatch.setattr(module, "_MEMORY_BYTES", 10_000)
    store = KernelStore(tmp_path / "never", mode="off")
    for number in range(100):
        store.put("kernel", f"{number:064x}", bytes(1000))
    assert len(store.keys("kernel")) == 10
    assert store.get("kernel", f"{99:064x}") == bytes(1000)


# -- size, and what was used


def access_times(directory):
    return dict(rows(directory).execute("SELECT key, access_time FROM Cache"))


def test_a_hit_writes_nothing(directory):
    filled(directory, a=b"x", b=b"y")
    before = (directory / "v2" / "cache.db").stat().st_mtime_ns, access_times(directory)
    store = KernelStore(directory, strict=True)
    for _ in range(3):
        store.get("kernel", "a" * 64)
        store.get("kernel", "c" * 64)
    assert ((directory / "v2" / "cache.db").stat().st_mtime_ns, access_times(directory)) == before
    assert {path.name for path in (directory / "v2").iterdir()} <= {"cache.db", "cache.db-journal"}
    assert "diskcache" not in store.layers[0].__dict__ and store.layers[0]._writer is None
    store.close()
    after = access_times(directory)
    assert after[f"kernel:{'a' * 64}"] > before[1][f"kernel:{'a' * 64}"], "the end of a process says what it used"
    assert after[f"kernel:{'b' * 64}"] == before[1][f"kernel:{'b' * 64}"]


def test_the_least_used_go_first(directory):
    """Not the oldest: the first ten kernels are used all the time, by a process of its own."""
    store = KernelStore(directory, size_limit=1 << 20, strict=True)
    for number in range(150):
        store.put("kernel", f"{number:064x}", os.urandom(40_000))
        if number >= 9:
            user = KernelStore(directory, strict=True)
            assert all(user.get("kernel", f"{used:064x}") is not None for used in range(10)), number
            user.close()
    kept = [int(key, 16) for key in store.keys("kernel")]
    assert set(range(10)) <= set(kept) and 149 in kept
    assert 15 < len(kept) < 40
    assert store.info()["bytes"] < 2 << 20


def test_uses_are_added_up(directory):
    writer = KernelStore(directory, strict=True)
    writer.put("kernel", KEY, b"x", (), 0.5)
    writer.put("plan", KEY, b"x")
    writer.close()
    for _ in range(3):
        reader = KernelStore(directory, strict=True)
        reader.get("kernel", KEY)
        reader.close()
    uses = {(source, kind): (number, seconds) for source, kind, number, seconds in writer.layers[0].uses()}
    assert uses == {
        ("made", "kernel"): (1, 0.5), ("made", "plan"): (1, 0.0), (str(directory), "kernel"): (3, 1.5),
    }  # fmt: skip


def test_the_end_of_a_process_notes_its_uses(directory):
    filled(directory, a=b"x")
    code = (
        "import sys; from adaptive_eager.cache.store import KernelStore\n"
        f"store = KernelStore(sys.argv[1]); assert store.get('kernel', '{'a' * 64}') == b'x'"
    )
    subprocess.run([sys.executable, "-c", code, str(directory)], check=True)
    assert (str(directory), "kernel", 1, 0.0) in KernelStore(directory).layers[0].uses()


def test_a_long_process_notes_its_uses_with_a_put(directory, monkeypatch):
    from adaptive_eager.cache import store as module

    store = KernelStore(filled(directory, a=b"x"), strict=True)
    store.get("kernel", "a" * 64)
    store.put("kernel", KEY, b"y")
    assert (str(directory), "kernel", 1, 0.0) not in store.layers[0].uses(), "not with each"
    monkeypatch.setattr(module, "_NOTING_SECONDS", 0)
    store.put("kernel", OTHER, b"y")
    assert (str(directory), "kernel", 1, 0.0) in store.layers[0].uses()


def test_noting_never_waits_long_and_never_fails(directory):
    store = KernelStore(filled(directory, a=b"x"), strict=True)
    store.get("kernel", "a" * 64)
    writer = rows(directory)
    writer.isolation_level = None
    writer.execute("BEGIN EXCLUSIVE")
    start = time.monotonic()
    store.note_uses()
    assert time.monotonic() - start < 2
    writer.execute("ROLLBACK")


# -- modes


def test_off_touches_no_disk(directory):
    store = KernelStore(directory, mode="off", strict=True)
    store.put("kernel", KEY, b"x")
    assert store.get("kernel", KEY) == b"x"
    assert store.compile_once("plan", KEY, lambda: b"p") == b"p"
    assert not directory.exists()
    assert store.info()["state"] == "off"


def snapshot(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("payload", [b"x", BIG], ids=["small", "big"])
def test_read_only_reads_and_never_writes(directory, payload):
    filled(directory, a=payload)
    before = snapshot(directory)
    store = KernelStore(directory, mode="read-only", strict=True)
    assert store.get("kernel", "a" * 64) == payload
    store.put("kernel", OTHER, b"y")
    assert store.get("kernel", OTHER) == b"y", "kept for this process"
    assert store.compile_once("kernel", "ef" * 32, lambda: b"z") == b"z"
    assert store.info()["entries"]["kernel"] == 3
    store.close()
    assert snapshot(directory) == before
    assert KernelStore(directory, strict=True).keys("kernel") == ["a" * 64]


def test_read_only_sees_entries_of_a_live_writer(directory, store):
    store.put("kernel", KEY, b"x")
    reader = KernelStore(directory, mode="read-only", strict=True)
    assert reader.get("kernel", KEY) == b"x"
    store.put("kernel", OTHER, b"y")
    assert reader.get("kernel", OTHER) == b"y"


def test_read_only_damaged_entry_is_a_miss(directory):
    filled(directory, a=b"x")
    with rows(directory) as database:
        database.execute("UPDATE Cache SET value = x'00'")
    store = KernelStore(directory, mode="read-only", strict=True)
    assert store.get("kernel", "a" * 64) is None
    assert store.stats()["bad_entries"] == 1


def test_read_only_without_a_cache_says_so(directory, warnings_of):
    store = KernelStore(directory, mode="read-only")
    assert store.get("kernel", KEY) is None
    (message,) = warnings_of()
    assert "there is no" in message and "cache.db" in message
    assert not directory.exists()


def test_unknown_mode_is_named(directory):
    with pytest.raises(ValueError, match="mode 'readonly': need one of on, read-only, off, assert-warm"):
        KernelStore(directory, mode="readonly")


FIELDS = (("target", "znver3"), ("torch", "2.13"), ("kind", "kernel"), ("text", "dims k\nadd f32"))


def test_assert_warm_names_the_field_that_differs(directory):
    writer = KernelStore(directory, strict=True)
    writer.put("kernel", KEY, b"x", FIELDS)
    writer.close()
    before = snapshot(directory)
    store = KernelStore(directory, mode="assert-warm", strict=True)
    assert store.compile_once("kernel", KEY, lambda: pytest.fail("compiled")) == b"x"
    newer = [(name, "2.14" if name == "torch" else value) for name, value in FIELDS]
    with pytest.raises(NotWarm, match=r"differs in `torch` \(stored '2.13', now '2.14'\)"):
        store.compile_once("kernel", OTHER, lambda: pytest.fail("compiled"), lambda: newer)
    store.close()
    assert snapshot(directory) == before


def test_assert_warm_says_when_the_cache_cannot_be_read(directory, warnings_of):
    store = KernelStore(directory, mode="assert-warm")
    with pytest.raises(NotWarm, match=f"neither is any other kernel; {directory} is not read: .*there is no"):
        store.compile_once("kernel", KEY, lambda: b"x")


def test_a_miss_is_explained_in_the_log(directory, store, caplog):
    store.put("kernel", KEY, b"x", FIELDS)
    caplog.set_level("DEBUG", "adaptive_eager.cache")
    other = [(name, "dims k\nadd f64" if name == "text" else value) for name, value in FIELDS]
    store.compile_once("kernel", OTHER, lambda: b"y", lambda: other)
    assert f"the nearest, {KEY[:12]}, differs in `text` (line 2: stored 'add f32', now 'add f64')" in caplog.text


# -- layers


@pytest.fixture
def image(tmp_path):
    """A warm cache that is only read: kernels a and b."""
    directory = filled(tmp_path / "image", a=b"image a", b=b"image b")
    for path in directory.rglob("*"):
        path.chmod(0o444 if path.is_file() else 0o555)
    directory.chmod(0o555)
    yield directory
    directory.chmod(0o755)


def test_the_first_is_written_to_and_all_are_read(directory, image):
    before = snapshot(image)
    store = KernelStore([directory, image], strict=True)
    assert store.get("kernel", "a" * 64) == b"image a"
    assert store.compile_once("kernel", "b" * 64, lambda: pytest.fail("compiled")) == b"image b"
    store.put("kernel", "c" * 64, b"mine")
    assert store.keys("kernel") == ["a" * 64, "b" * 64, "c" * 64]
    store.close()
    assert snapshot(image) == before
    assert KernelStore(directory, strict=True).keys("kernel") == ["c" * 64]
    uses = {(source, kind): number for source, kind, number, _ in KernelStore(directory).layers[0].uses()}
    assert uses == {(str(image), "kernel"): 2, ("made", "kernel"): 1}


def test_the_first_that_has_an_entry_gives_it(directory, image):
    store = KernelStore([filled(directory, a=b"mine"), image], strict=True)
    assert [store.get("kernel", letter * 64) for letter in "abc"] == [b"mine", b"image b", None]


def test_a_damaged_image_is_left_alone(directory, image, warnings_of):
    (image / "v2" / "cache.db").chmod(0o644)
    with rows(image) as database:
        database.execute("UPDATE Cache SET value = x'00'")
    (image / "v2" / "cache.db").chmod(0o444)
    before = snapshot(image)
    store = KernelStore([directory, image])
    assert store.compile_once("kernel", "a" * 64, lambda: b"mine") == b"mine"
    assert snapshot(image) == before
    assert len(warnings_of()) == 1
    assert KernelStore([directory, image]).get("kernel", "a" * 64) == b"mine"


def test_a_layer_that_cannot_be_read_does_not_hide_the_next(directory, image, warnings_of):
    missing = directory.parent / "missing"
    store = KernelStore([directory, missing, image])
    assert store.get("kernel", "a" * 64) == b"image a"
    (message,) = warnings_of()
    assert f"{missing} is not used: " in message
    store.put("kernel", KEY, b"x")
    assert KernelStore(directory, strict=True).get("kernel", KEY) == b"x"


def test_all_layers_are_only_read_in_read_only_mode(directory, image):
    filled(directory, c=b"c")
    before = snapshot(directory)
    store = KernelStore([directory, image], mode="read-only", strict=True)
    assert [store.get("kernel", letter * 64) for letter in "abc"] == [b"image a", b"image b", b"c"]
    store.put("kernel", KEY, b"x")
    store.close()
    assert snapshot(directory) == before
