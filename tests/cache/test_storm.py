"""The storm of storm.py, for a minute: whatever happens to the cache, programs never notice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: What must have been injected at least once; the others need root, or a disk of their own.
ALWAYS = (
    "kill -9", "truncate a file", "flip bits of a file", "delete the directory, or a part of it", "change permissions",
    "disk full for one process", "fork", "stop a process for a while", "put a symbolic link in its place",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_minute_of_storm():
    storm = Path(__file__).with_name("storm.py")
    found = subprocess.run(
        [sys.executable, str(storm), "--seconds", "60"], capture_output=True, text=True, check=False, timeout=580
    )
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-5000:]
    told = json.loads(found.stdout[found.stdout.index("{") :])
    assert all(told["faults"].get(fault) for fault in ALWAYS), told["faults"]
    assert told["counts"]["programs compared"] > 20 and told["counts"]["kernels loaded"] > 0, told["counts"]
