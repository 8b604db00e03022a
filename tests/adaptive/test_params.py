"""The table of tunables: reading, checking, documenting."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from adaptive_eager import params

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for variable in [name for name in os.environ if name.startswith(params.PREFIX)]:
        monkeypatch.delenv(variable)
    params.reload()
    yield
    monkeypatch.undo()
    params.reload()


def test_document_is_generated():
    assert (ROOT / "docs" / "params.md").read_text() == params.document(), (
        "docs/params.md is not the generated table; run: python -m adaptive_eager.params > docs/params.md"
    )


def test_no_other_code_reads_the_environment():
    readers = [
        str(path.relative_to(ROOT))
        for folder in ("adaptive", "native", "cache")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".h") and re.search(r"os\.environ|getenv", path.read_text())
    ]
    assert readers == ["adaptive/params.py"]


@pytest.mark.parametrize("row", params.table(), ids=lambda row: row.name)
def test_every_default_is_a_right_value(row):
    assert row.parse(str(params.default(row.name))) == params.default(row.name)


def test_names_are_unique():
    names = [row.name for row in params.table()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("max_ops", "12", 12),
        ("max_bytes", "64M", 64 << 20),
        ("max_bytes", "1 GiB", 1 << 30),
        ("max_bytes", "4096", 4096),
        ("device_memory", "0", 0),
        ("mode", "Stepwise", "stepwise"),
        ("cache", " read-only ", "read-only"),
        ("cache_wait", "0.5", 0.5),
        ("runtime", "/opt/lib/libnrt.so.1", "/opt/lib/libnrt.so.1"),
        ("cache_dir", "/var/cache/kernels", "/var/cache/kernels"),
        ("cache_dir", "/a::/b:", "/a:/b"),
    ],
)
def test_environment_is_read(monkeypatch, name, text, value):
    monkeypatch.setenv(params.PREFIX + name.upper(), text)
    assert params.get(name) == value


@pytest.mark.parametrize(
    "name, text, right",
    [
        ("max_ops", "many", "a whole number, at least 1"),
        ("max_ops", "0", "a whole number, at least 1"),
        ("max_bytes", "64 parsecs", "a number of bytes"),
        ("max_bytes", "", "a number of bytes"),
        ("mode", "fast", "one of adaptive, per_op, stepwise"),
        ("cache_dir", "relative/path", "an absolute path"),
        ("cache_wait", "inf", "seconds"),
        ("cache_wait", "nan", "seconds"),
        ("runtime", "", "auto, software or a path"),
    ],
)
def test_bad_value_is_one_warning_and_the_default(monkeypatch, caplog, name, text, right):
    variable = params.PREFIX + name.upper()
    monkeypatch.setenv(variable, text)
    assert params.get(name) == params.default(name)
    params.get(name)
    (record,) = caplog.records
    assert variable in record.getMessage()
    assert repr(text) in record.getMessage()
    assert right in record.getMessage()
    assert str(params.default(name)) in record.getMessage()


def test_misspelt_variable_is_named_once(monkeypatch, caplog):
    monkeypatch.setenv("ADAPTIVE_EAGER_MAX_OPPS", "3")
    params.get("max_ops")
    params.get("min_ops")
    (record,) = caplog.records
    assert "ADAPTIVE_EAGER_MAX_OPPS" in record.getMessage()
    assert "ADAPTIVE_EAGER_MAX_OPS" in record.getMessage().split("mean")[1]


def test_unknown_name_suggests_the_near_one():
    with pytest.raises(KeyError, match="did you mean 'max_ops'"):
        params.get("max_op")


def test_values_are_read_once(monkeypatch):
    assert params.get("max_ops") == 256
    monkeypatch.setenv("ADAPTIVE_EAGER_MAX_OPS", "12")
    assert params.get("max_ops") == 256
    params.reload()
    assert params.get("max_ops") == 12


def test_override_holds_inside_the_block_only():
    with params.override(max_ops=7, mode="per_op"):
        assert (params.get("max_ops"), params.get("mode")) == (7, "per_op")
        assert params.changed() == {"max_ops": 7, "mode": "per_op"}
    assert params.changed() == {}


def test_override_checks_its_values():
    with pytest.raises(ValueError, match=r"mode: got 'fast', need one of adaptive"), params.override(mode="fast"):
        pass


def test_plan_keys_name_what_changes_plans():
    assert {name for name, _ in params.keyed()} == {"max_kernel_ops", "max_kernel_accesses", "parallel_grain"}
    # Everything else: decides when, where or whether a plan runs, never what is in it.
    assert {row.name for row in params.table() if not row.keyed} == {
        "mode", "runtime", "devices", "device_memory", "max_ops", "min_ops", "max_bytes", "hot_after", "background",
        "max_variants", "variant_seconds", "trace_bytes", "failure_age",
        "fallback", "cache", "cache_dir", "cache_size", "cache_wait", "log_level",
    }  # fmt: skip
