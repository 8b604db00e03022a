"""Archive: a warm cache as one file, whole or not at all."""

from __future__ import annotations

import os

import pytest

from adaptive_eager.cache import archive
from adaptive_eager.cache.archive import Archive, ArchiveError
from adaptive_eager.cache.entry import pack

BLOBS = [pack(f"kernel:{letter * 64}", letter.encode() * 5000, (("target", "znver3"),), 0.5) for letter in "abc"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "warm"
    assert archive.write(path, BLOBS) == 3
    return path


def test_round_trip(file):
    opened = Archive(file)
    assert [blob for _, blob in opened] == BLOBS
    assert [entry.key[0] for entry, _ in opened] == ["a", "b", "c"]
    opened.close()


def test_empty(tmp_path):
    archive.write(tmp_path / "warm", [])
    assert list(Archive(tmp_path / "warm")) == []


def test_every_truncation_and_flipped_byte_is_noticed(file):
    good = file.read_bytes()
    for position in [*range(0, len(good), 97), *range(len(good) - 60, len(good))]:
        file.write_bytes(good[:position])
        with pytest.raises(ArchiveError):
            Archive(file)
        file.write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
        with pytest.raises(ArchiveError):
            Archive(file)


def test_what_fails_leaves_the_old_one(file, tmp_path):
    good = file.read_bytes()

    def blobs():
        yield BLOBS[0]
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        archive.write(file, blobs())
    assert file.read_bytes() == good
    assert os.listdir(tmp_path) == ["warm"]


def test_nothing_but_a_file_is_replaced(tmp_path):
    """As root would replace /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArchiveError, match="not a plain file"):
        archive.write(tmp_path / "pipe", BLOBS)
    assert (tmp_path / "pipe").is_fifo()


def test_link_stays(tmp_path, file):
    (tmp_path / "link").symlink_to(file)
    archive.write(tmp_path / "link", BLOBS[:1])
    assert (tmp_path / "link").is_symlink()
    assert Archive(file).count == 1


def test_newer_format_is_named(file, monkeypatch):
    monkeypatch.setattr(archive, "FORMAT", 9)
    archive.write(file, BLOBS)
    monkeypatch.undo()
    with pytest.raises(ArchiveError, match="its format is 9, need 1"):
        Archive(file)


def test_others_may_not_have_written_it(file):
    file.chmod(0o666)
    with pytest.raises(ArchiveError, match="others can write to it"):
        Archive(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_it_may_not_belong_to_others(file):
    os.chown(file, 65534, 65534)
    with pytest.raises(ArchiveError, match=r"others can write to it \(user 65534"):
        Archive(file)
