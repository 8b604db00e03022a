"""Trust: directories that others could have put kernels into are refused with one clear line; the program goes on."""

from __future__ import annotations

import os

import pytest

from adaptive_eager.cache.store import KernelStore

KEY = "ab" * 32
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(params=["empty", "with a cache"])
def made(request, directory):
    """The directory, without and with a cache in it that looks good."""
    if request.param == "empty":
        directory.mkdir(mode=0o700)
    else:
        KernelStore(directory, strict=True).put("kernel", KEY, b"planted")
    return directory


@pytest.fixture
def expect_refused(warnings_of):
    """expect_refused(directory, cause): nothing of it is used, in any mode; one line names the cause."""

    def expect(directory, cause, modes=("on", "read-only")):
        for count, mode in enumerate(modes, 1):
            store = KernelStore(directory, mode=mode)
            assert store.get("kernel", KEY) is None
            assert store.compile_once("kernel", KEY, lambda: b"mine") == b"mine"
            assert store.get("kernel", KEY) == b"mine"
            assert len(warnings_of()) == count
            message = warnings_of()[-1]
            assert cause in message and str(directory) in message and "\n" not in message

    return expect


def test_symlink(made, tmp_path, expect_refused):
    link = tmp_path / "link"
    link.symlink_to(made)
    before = sorted(made.rglob("*"))
    expect_refused(link, "symbolic link")
    assert sorted(made.rglob("*")) == before


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_writable_by_others(made, expect_refused, mode):
    made.chmod(mode)
    expect_refused(made, f"its mode is {mode:04o}, need 0700 (chmod 700 {made})")


def test_readable_by_others(made, expect_refused, warnings_of):
    """Fine for one that is only read, such as an image's; our own is closed."""
    made.chmod(0o755)
    if (made / "v2").exists():
        assert KernelStore(made, mode="read-only", strict=True).get("kernel", KEY) == b"planted"
    expect_refused(made, "its mode is 0755, need 0700", modes=("on",))


@root_only
def test_of_another_user(made, expect_refused):
    os.chown(made, 65534, 65534)
    expect_refused(made, "it belongs to user 65534")


@root_only
def test_database_of_another_user(directory, expect_refused):
    """Made while the directory was still open to him."""
    KernelStore(directory, strict=True).put("kernel", KEY, b"planted")
    os.chown(directory / "v2" / "cache.db", 65534, 65534)
    expect_refused(directory, "cache.db belongs to user 65534")


def test_database_that_is_a_link(directory, tmp_path, expect_refused):
    KernelStore(directory, strict=True).put("kernel", KEY, b"planted")
    (directory / "v2" / "cache.db").rename(tmp_path / "elsewhere.db")
    (directory / "v2" / "cache.db").symlink_to(tmp_path / "elsewhere.db")
    expect_refused(directory, "cache.db is not a plain file")


@root_only
@pytest.mark.parametrize("place", ["v2", "v2/cache.db-journal", "v2/cache.db-wal"])
def test_what_another_user_left_beside_the_database(directory, expect_refused, place):
    KernelStore(directory, strict=True).put("kernel", KEY, b"planted")
    (directory / place).exists() or (directory / place).write_bytes(b"planted")
    os.chown(directory / place, 65534, 65534)
    expect_refused(directory, f"{place} belongs to user 65534")


def test_folder_that_is_a_link(directory, tmp_path, expect_refused):
    KernelStore(directory, strict=True).put("kernel", KEY, b"planted")
    (directory / "v2").rename(tmp_path / "elsewhere")
    (directory / "v2").symlink_to(tmp_path / "elsewhere")
    expect_refused(directory, "v2 is not a plain folder")


def test_journal_that_is_a_pipe(directory, expect_refused):
    """SQLite would wait for its other end for ever."""
    KernelStore(directory, strict=True).put("kernel", KEY, b"planted")
    (directory / "v2" / "cache.db-journal").unlink(missing_ok=True)
    os.mkfifo(directory / "v2" / "cache.db-journal")
    expect_refused(directory, "cache.db-journal is not a plain file")


def test_file_in_place_of_the_directory(directory, expect_refused):
    directory.write_text("")
    expect_refused(directory, "it is not a directory")


def test_a_second_layer_is_checked_too(directory, made, tmp_path, warnings_of):
    made.chmod(0o777)
    store = KernelStore([tmp_path / "mine", made])
    assert store.get("kernel", KEY) is None
    (message,) = warnings_of()
    assert "its mode is 0777" in message and "in memory" not in message
    store.put("kernel", KEY, b"mine")
    assert KernelStore(tmp_path / "mine", strict=True).get("kernel", KEY) == b"mine"
