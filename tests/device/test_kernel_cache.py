"""The kernel cache as programs meet it: a second process compiles nothing; where none may, a cold one says why."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from adaptive_eager.cache.store import KernelStore
from adaptive_eager.native import artifact

PROGRAM = """
import json, os, torch
import adaptive_eager as ae

x = torch.arange(1000.0).to("neuron") / 1000
for step in range(3):
    y = torch.tanh(x * 1.5 + step)
    z = torch.exp(-torch.relu(y - x)).{reduction}()
    value = z.item()
stats = ae.stats()
print(json.dumps({{"value": value, **{{k: stats[k] for k in ("kernels_compiled", "kernels_from_disk", "plans_new")}}}}))
"""


@pytest.fixture
def run(tmp_path):
    """run(reduction="mean", **variables): what the program printed, as (results or None, standard error)."""

    def start(reduction="mean", **variables):
        import os

        environment = {
            **os.environ, "ADAPTIVE_EAGER_CACHE_DIR": str(tmp_path / "cache"), "ADAPTIVE_EAGER_BACKGROUND": "off",
            **{f"ADAPTIVE_EAGER_{name.upper()}": value for name, value in variables.items()},
        }  # fmt: skip
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(reduction=reduction)],
            env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        return (json.loads(found.stdout) if found.returncode == 0 else None), found.stderr

    return start


def test_a_second_process_compiles_nothing(run):
    first, _ = run()
    assert first["kernels_compiled"] > 5
    second, errors = run(cache="assert-warm")
    assert errors == ""
    assert (second["kernels_compiled"], second["value"]) == (0, first["value"])
    assert second["plans_new"] == 1


def test_assert_warm_ends_a_program_that_would_compile(run):
    run()
    result, errors = run("sum", cache="assert-warm")
    assert result is None
    last = errors.strip().splitlines()
    assert any(
        "NotWarm: the kernel cache is not warm: kernel " in line and "differs in `text`" in line for line in last
    )


def test_assert_warm_holds_for_fused_kernels_too(run):
    """All its ops have kernels, but not fused: nothing is swallowed by running the window op by op."""
    run(mode="per_op")
    result, errors = run(cache="assert-warm")
    assert result is None
    assert "the kernel cache is not warm" in errors and "[neuron." in errors


def test_without_its_directory_nothing_is_missing(run, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    result, errors = run()
    assert result["kernels_compiled"] > 5
    (line,) = errors.strip().splitlines()
    assert "it is not a directory" in line


@pytest.fixture
def stored(tmp_path):
    """The store that the programs of `run` have filled."""
    return KernelStore(tmp_path / "cache", strict=True)


def test_kernels_of_another_processor_are_refused(run, stored):
    """Under the keys of this one: only their own words say what they are for."""
    first, _ = run()
    for key in stored.keys("kernel"):
        code = artifact.unpack(stored.get("kernel", key))
        alien = artifact.pack("avx512|znver9|+avx1024", code.entries, code.code, code.tensors, code.metadata)
        stored.put("kernel", key, alien)
    stored.close()
    second, errors = run()
    assert (second["kernels_compiled"], second["value"]) == (first["kernels_compiled"], first["value"])
    (line,) = errors.strip().splitlines()
    assert "compiled anew" in line and "it is for the target avx512|znver9|+avx1024" in line
    third, errors = run(cache="assert-warm")
    assert (third["kernels_compiled"], errors) == (0, "")


@pytest.mark.parametrize("spoil", ["magic", "format", "code"])
def test_kernels_that_are_no_artefacts_are_refused(run, stored, spoil):
    """Entries that are as they were put, with something in them that nrt_load must not take."""
    first, _ = run()
    for key in stored.keys("kernel"):
        blob = bytearray(stored.get("kernel", key))
        at = {"magic": 0, "format": len(artifact.MAGIC), "code": len(blob) - 1}[spoil]
        blob[at] ^= 0xFF
        stored.put("kernel", key, bytes(blob))
    stored.close()
    second, errors = run()
    assert (second["kernels_compiled"], second["value"]) == (first["kernels_compiled"], first["value"])
    (line,) = errors.strip().splitlines()
    assert "compiled anew" in line
