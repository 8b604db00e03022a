"""Trust: which directories kernels may be read from, and written to.

Kernels are machine code: whoever can write to a cache directory can run code in every program that uses it. So the
directory must belong to the user and be closed to everybody else; one that is only read may belong to root, as those of
images do. A symbolic link is refused, as others may have made it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path


class Refused(OSError):
    """A directory that must not be trusted; the text says why and what would be right."""


def make_private(directory: Path) -> None:
    """Makes the directory if it is missing, and checks that it may be written to and read from."""
    check_absolute(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise Refused(f"{error.filename} is not a directory") from None
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    check_trusted(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise Refused("it is not writable (chmod 700, or set ADAPTIVE_EAGER_CACHE=read-only)")


def check_absolute(directory: Path) -> None:
    """A relative path would be another directory for each program."""
    if not directory.is_absolute():
        raise Refused(f"{directory} is not an absolute path (is there a home directory? set ADAPTIVE_EAGER_CACHE_DIR)")


def check_trusted(directory: Path, read_only: bool = False) -> None:
    """Refuses a directory that somebody else could have put kernels into. Raises FileNotFoundError if there is none."""
    status = os.lstat(directory)
    if stat.S_ISLNK(status.st_mode):
        raise Refused("it is a symbolic link, need the directory itself (set ADAPTIVE_EAGER_CACHE_DIR to its target)")
    if not stat.S_ISDIR(status.st_mode):
        raise Refused("it is not a directory")
    _check_owner(status, read_only)
    forbidden = 0o022 if read_only else 0o077
    if status.st_mode & forbidden:
        raise Refused(f"its mode is {stat.S_IMODE(status.st_mode):04o}, need 0700 (chmod 700 {directory})")


def check_inside(folder: Path, files: Iterable[str], read_only: bool = False) -> None:
    """Refuses a folder of the directory, or one of its files, that somebody else made while the directory was still
    open to him: a journal changes the database that it lies beside. What is not there is fine."""
    for path in (folder, *(folder / file for file in files)):
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(path)
            plain, what = (stat.S_ISDIR, "folder") if path is folder else (stat.S_ISREG, "file")
            if not plain(status.st_mode):
                raise Refused(f"{path} is not a plain {what} (remove it)")
            _check_owner(status, read_only, f"{path} belongs")


def _check_owner(status: os.stat_result, read_only: bool, what: str = "it belongs") -> None:
    if status.st_uid not in ({os.geteuid(), 0} if read_only else {os.geteuid()}):
        raise Refused(f"{what} to user {status.st_uid}, need user {os.geteuid()}")
