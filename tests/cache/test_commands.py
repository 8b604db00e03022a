"""`adaptive-eager cache`: what each command says, does, and returns."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from adaptive_eager import cli, host, kernels, params
from adaptive_eager.cache.lease import acquire, lease
from adaptive_eager.cache.store import KernelStore
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import ask_llvm, host_target

OPS = ("neg", "abs", "sqrt")


def kernel(op):
    program = (Instr("load", (), "f32", "f32", (0,)), Instr(op, (0,), "f32", "f32"))
    return Kernel("k", (Access("f32", "c"), Access("f32", "c")), program, (Store(1, 1),))


def fill(directory, ops=OPS):
    """Real kernels, a plan of two of them, a plan that lacks its kernel, a failure. Returns the keys by name."""
    maker, store = kernels.key_maker(), KernelStore(directory, strict=True)
    keys = {}
    for op in ops:
        text = kernel(op).text()
        keys[op] = maker.key("kernel", text)
        payload = kernels.make_artifact(kernel(op), host_target())
        store.put("kernel", keys[op], payload, maker.fields("kernel", text), 0.25)
    for name, used in (("plan", ops[:2]), ("lost", ())):
        launches = [{"kernel": keys[op]} for op in used] or [{"kernel": "0" * 64}]
        keys[name] = f"{len(keys):032x}-{'1' * 32}"
        store.put(
            "plan", keys[name], json.dumps({"steps": [0, {"launches": launches}]}).encode(), maker.fields("plan", name)
        )
    keys["failure"] = f"{len(keys):032x}-{'1' * 32}"
    store.put("failure", keys["failure"], b'{"reason": "CompileError: no such op"}', maker.fields("failure", "3"))
    store.close()
    return keys


@pytest.fixture
def command(directory):
    """command(*arguments): the result of `adaptive-eager cache ARGUMENTS` on the directory (or `dirs`)."""

    def run(*arguments, dirs=None, code=0):
        with params.override(cache_dir=str(dirs or directory)):
            result = CliRunner().invoke(cli.main, ["cache", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result.output

    return run


def change(directory, statement, *values):
    with sqlite3.connect(directory / "v2" / "cache.db") as database:
        database.execute(statement, values)
    database.close()


EVERY = [["stats"], ["ls"], ["show", "ab"], ["verify"], ["prune"], ["clear", "--yes"], ["export", "FILE"], ["doctor"]]


@pytest.mark.parametrize("arguments", EVERY, ids=lambda arguments: arguments[0])
def test_without_a_cache(command, directory, tmp_path, arguments):
    arguments = [str(tmp_path / "file") if argument == "FILE" else argument for argument in arguments]
    command(*arguments, code=int(arguments[0] in ("show", "export")))
    assert arguments[0] in ("prune", "clear") or not directory.exists()


@pytest.mark.parametrize("arguments", EVERY, ids=lambda arguments: arguments[0])
def test_a_directory_that_is_not_trusted(command, directory, tmp_path, arguments):
    fill(directory)
    directory.chmod(0o777)
    arguments = [str(tmp_path / "file") if argument == "FILE" else argument for argument in arguments]
    told = command(*arguments, code=1)
    assert "its mode is 0777, need 0700" in told
    assert "Traceback" not in told
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("name", ["stats", "ls", "show", "verify", "prune", "clear", "export", "import", "doctor"])
def test_help(name):
    result = CliRunner().invoke(cli.main, ["cache", name, "--help"])
    assert result.exit_code == 0 and len(result.output) > 150


def test_stats(command, directory):
    keys = fill(directory)
    for _ in range(3):
        store = KernelStore(directory)
        assert store.get("kernel", keys["neg"]) and store.get("plan", keys["plan"])
        store.close()
    found = json.loads(command("stats", "--json"))
    (layer,) = found.pop("layers")
    assert layer.pop("bytes") > 1000
    assert layer == {
        "directory": str(directory), "entries": {"failure": 1, "kernel": 3, "plan": 2}, "of_other_versions": 0,
        "hits": {"kernel": 3, "plan": 3}, "compile_seconds_saved": 0.75,
    }  # fmt: skip
    assert found == {
        "made": {"failure": 1, "kernel": 3, "plan": 2}, "compile_seconds": 0.75, "compile_seconds_saved": 0.75,
        "hit_rate": {"kernel": 0.5, "plan": 0.6},
    }  # fmt: skip
    told = command("stats")
    assert "1 failures, 3 kernels, 2 plans" in told and "50.0% of kernels, 60.0% of plans" in told


def test_stats_by_layer(command, directory, tmp_path):
    keys = fill(tmp_path / "image")
    dirs = f"{directory}{os.pathsep}{tmp_path / 'image'}"
    store = KernelStore(dirs.split(os.pathsep))
    store.get("kernel", keys["neg"])
    store.put("kernel", "f" * 64, b"x")
    store.close()
    first, second = json.loads(command("stats", "--json", dirs=dirs))["layers"]
    assert (first["hits"], second["hits"], second["compile_seconds_saved"]) == ({}, {"kernel": 1}, 0.25)
    assert (first["entries"], second["entries"]["kernel"]) == ({"kernel": 1}, 3)


def test_ls(command, directory):
    keys = fill(directory)
    found = {one["key"]: one for one in json.loads(command("ls", "--json"))}
    assert set(found) == set(keys.values())
    one = found[keys["neg"]]
    assert (one["kind"], one["ops"], one["seconds"], one["differs"]) == ("kernel", ["neg"], 0.25, [])
    assert one["size"] > 500 and abs(one["made"] - time.time()) < 60 and one["used"] >= one["made"]
    assert found[keys["plan"]]["ops"] == ["host op 0", f"{keys['neg'][:12]} + {keys['abs'][:12]}"]
    assert found[keys["failure"]]["ops"] == ["CompileError: no such op"]
    assert len(json.loads(command("ls", "--json", "--kind", "plan"))) == 2
    heading, *lines = command("ls", "--kind", "kernel").splitlines()
    assert heading.split() == ["key", "kind", "size", "took", "age", "last", "use", "computes"]
    assert sorted(line.split()[-1] for line in lines) == sorted(OPS)


def test_ls_says_what_is_not_used_here(command, directory, monkeypatch):
    fill(directory)
    monkeypatch.setattr("adaptive_eager.cache.verification.current", lambda: {"torch": "9.9", "kind?": ""})
    assert all(one["differs"] for one in json.loads(command("ls", "--json")))
    assert "[torch, kind?]" in command("ls")


def test_show(command, directory):
    keys = fill(directory)
    told = command("show", keys["neg"][:10])
    for words in (keys["neg"], "neg (%0) [] f32 -> f32", "define void @k(", "generator ", "250.0 ms", "llvmlite "):
        assert words in told
    assert "define" not in command("show", keys["neg"], "--no-llvm")
    assert f"{keys['neg'][:12]} + {keys['abs'][:12]}" in command("show", keys["plan"])
    assert "CompileError: no such op" in command("show", keys["failure"])
    assert "no entry whose key starts with 'xyz'" in command("show", "xyz", code=1)
    assert "entries have keys that start with ''" in command("show", "", code=1)


def test_verify(command, directory):
    fill(directory)
    told = command("verify")
    assert "4 entries are right, 0 are wrong, 0 are damaged" in told
    assert "1 skipped: 1 of its kernels are not there" in told


def test_what_is_remembered_of_a_host(command, directory):
    store = KernelStore(directory, strict=True)
    host.recall(store)
    (key,) = store.keys("host")
    (document,) = json.loads(command("ls", "--kind", "host", "--json"))
    assert (document["key"], document["differs"], document["ops"]) == (key, [], [ask_llvm().cpu])
    for words in ("llvmlite ", "processor ", f"triple               {ask_llvm().triple}"):
        assert words in command("show", key)
    assert "1 entries are right, 0 are wrong" in command("verify")
    store.put("host", key, store.get("host", key).replace(b'"llvm": "', b'"llvm": "0.'), host.fields())
    assert "LLVM says otherwise of this machine" in command("verify", code=1)
    store.put("host", "f" * 64, b"{}", [("llvmlite", "0"), ("processor", "another")])
    store.close()
    assert "of another machine" in command("verify", code=1)
    assert "dropped 1 of 2" in command("prune", "--other-versions")


def test_verify_finds_a_damaged_entry(command, directory):
    keys = fill(directory)
    change(directory, "UPDATE Cache SET value = x'00' WHERE key = ?", f"kernel:{keys['neg']}")
    told = command("verify", code=1)
    assert f"damaged  kernel:{keys['neg']}" in told and "1 are damaged" in told


@pytest.mark.parametrize("how", ["other code", "another key"])
def test_verify_finds_a_wrong_kernel(command, directory, how):
    """Its digest is right: what it holds is not what its key stands for."""
    keys, maker = fill(directory), kernels.key_maker()
    store = KernelStore(directory, strict=True)
    code = kernels.make_artifact(kernel("abs"), host_target())
    text = kernel("neg" if how == "other code" else "abs").text()
    store.put("kernel", keys["neg"], code, maker.fields("kernel", text))
    store.close()
    told = command("verify", code=1)
    why = "a new compilation gives other bytes" if how == "other code" else "its fields do not make its key"
    assert f"wrong    kernel:{keys['neg']}: {why}" in told and "1 are wrong" in told


def test_prune_by_size(command, directory):
    store = KernelStore(directory, strict=True)
    for number in range(100):
        store.put("kernel", f"{number:064x}", os.urandom(20_000))
    store.close()
    change(directory, "UPDATE Cache SET access_time = access_time + 1000 WHERE key = ?", f"kernel:{0:064x}")
    command("prune", "--max-size", "500K")
    kept = [int(key, 16) for key in KernelStore(directory).keys("kernel")]
    assert 0 in kept and 99 in kept and 10 < len(kept) < 30
    assert (directory / "v2" / "cache.db").stat().st_size <= 512_000


def test_prune_by_age(command, directory):
    keys = fill(directory)
    for op in ("neg", "plan"):
        change(directory, "UPDATE Cache SET access_time = access_time - 7200 WHERE key LIKE ?", f"%{keys[op]}")
    # The time that an entry was made counts as a use, and these are new.
    assert "dropped 0 of 6" in command("prune", "--max-age", "1h")
    assert "dropped 6 of 6" in command("prune", "--max-age", "0s")


def test_prune_of_other_versions(command, directory):
    fill(directory)
    store = KernelStore(directory)
    store.put("kernel", "e" * 64, b"x", [("generator", "old")])
    store.close()
    assert "dropped 1 of 7" in command("prune", "--other-versions")


def test_prune_tidies_up(command, directory):
    fill(directory)
    leases = directory / "v2" / "leases"
    leases.mkdir(exist_ok=True)
    (leases / "kernel-dead.lock").write_text("999999999\n")
    (directory / "v2" / "broken").mkdir()
    (directory / "v2" / "broken" / "x.entry").write_text("")
    with lease(leases, "kernel-alive", 0):
        assert "removed 1 stale leases and 1 damaged files" in command("prune")
        assert [path.name for path in leases.iterdir()] == ["kernel-alive.lock"]


@pytest.mark.parametrize("arguments", [["--max-size", "many"], ["--max-size", "-1"], ["--max-age", "1y"]])
def test_prune_that_is_not_understood(command, arguments):
    command("prune", *arguments, code=2)


def test_clear(command, directory):
    fill(directory)
    live = KernelStore(directory, strict=True)
    command("clear", code=1)  # asks, and gets no answer
    assert len(live.keys("kernel")) == 3
    assert "dropped 6 entries" in command("clear", "--yes")
    assert live.keys("kernel") == []
    live.put("kernel", "a" * 64, b"x")
    assert live.get("kernel", "a" * 64) == b"x"
    assert json.loads(command("stats", "--json"))["compile_seconds"] == 0


def test_export_and_import(command, directory, tmp_path):
    keys = fill(directory)
    warm, other = tmp_path / "warm", tmp_path / "other"
    assert "5 entries" in command("export", warm)  # failures stay at home
    assert "5 entries, 5 of them new" in command("import", warm, dirs=other)
    one, two = KernelStore(directory, strict=True), KernelStore(other, strict=True)
    assert all(one.get("kernel", keys[op]) == two.get("kernel", keys[op]) for op in OPS)
    assert "5 entries, 0 of them new" in command("import", warm, dirs=other)
    made = {one["key"]: one["made"] for one in json.loads(command("ls", "--json"))}
    assert all(one["made"] == made[one["key"]] for one in json.loads(command("ls", "--json", dirs=other)))


def test_import_replaces_what_is_damaged(command, directory, tmp_path):
    keys = fill(directory)
    command("export", tmp_path / "warm")
    with sqlite3.connect(directory / "v2" / "cache.db") as connection:
        connection.execute("UPDATE Cache SET value = x'00' WHERE key = ?", (f"kernel:{keys['neg']}",))
    connection.close()
    assert "5 entries, 1 of them new" in command("import", tmp_path / "warm")
    assert KernelStore(directory, mode="read-only", strict=True).get("kernel", keys["neg"])


def test_export_of_what_is_usable(command, directory, tmp_path):
    fill(directory)
    store = KernelStore(directory)
    store.put("kernel", "e" * 64, b"x", [("generator", "old")])
    store.close()
    assert "6 entries" in command("export", tmp_path / "all")
    assert "1 are of another version" in command("import", tmp_path / "all", dirs=tmp_path / "other")
    assert "5 entries" in command("export", tmp_path / "usable", "--usable")


def test_import_of_something_else(command, tmp_path, directory):
    (tmp_path / "file").write_text("not an archive")
    assert "not an exported kernel cache" in command("import", tmp_path / "file", code=1)
    assert not directory.exists()


def test_doctor_is_content(command, directory):
    fill(directory)
    told = command("doctor")
    for words in ("written to, 6 entries", "mode 0700", "sound", "none is held", "Everything is in order."):
        assert words in told


HOLDER = """
import sys, time
from pathlib import Path
from adaptive_eager.cache.lease import acquire
lock = acquire(Path(sys.argv[1]), 1)
print("held", flush=True)
time.sleep(60)
"""


def test_doctor_names_who_holds_a_lock(command, directory):
    fill(directory)
    leases = directory / "v2" / "leases"
    leases.mkdir(exist_ok=True)
    path = leases / "kernel-abc.lock"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        held = rf"kernel-abc\.lock, for \d s, by pid {process.pid} \(\w+\): {re.escape(sys.executable)}"
        assert re.search(held, command("doctor"))  # how long and in what state depends on what else runs
        os.utime(path, (time.time() - 100,) * 2)
        assert "FAIL lock" in command("doctor", code=1)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    told = command("doctor")
    assert f"1 leases of processes that were killed, the last one pid {process.pid}, which is gone" in told


def test_doctor_finds_what_is_wrong(command, directory):
    keys = fill(directory)
    change(directory, "UPDATE Cache SET value = x'00' WHERE key = ?", f"kernel:{keys['neg']}")
    assert "1 damaged entries" in command("doctor", code=1)
    (directory / "v2" / "cache.db").write_bytes(b"no database " * 400)
    assert "not a database" in command("doctor", code=1)


def test_doctor_waits_for_nobody(command, directory):
    fill(directory)
    lock = acquire(directory / "open.lock", 0)
    start = time.monotonic()
    assert "open.lock" in command("doctor")
    assert time.monotonic() - start < 5
    lock.release()


def test_show_of_several_directories_is_what_programs_use(command, tmp_path):
    for name in ("first", "second"):
        KernelStore(tmp_path / name, strict=True).put("failure", "a" * 64, b'{"reason": "%s"}' % name.encode())
    told = command("show", "a" * 64, dirs=f"{tmp_path / 'first'}{os.pathsep}{tmp_path / 'second'}")
    assert f"in {tmp_path / 'first'}," in told and "reason\n  first" in told


def test_show_of_a_key_of_two_kinds(command, directory):
    store = KernelStore(directory, strict=True)
    store.put("failure", "a" * 64, b'{"reason": "none"}')
    store.put("plan", "a" * 64, b'{"steps": []}')
    store.close()
    assert f"plan:{'a' * 64}" in command("show", "a" * 64, code=1)
    assert f"plan {'a' * 64}" in command("show", f"plan:{'a' * 64}")
