"""Keys: every field counts, nothing runs together, and a difference can be found in the log."""

from __future__ import annotations

import logging
import re

import pytest

from adaptive_eager.cache import key
from adaptive_eager.cache.key import KeyMaker, digest, source_hash

VERSIONS = (("llvmlite", "1"), ("torch", "2"))


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "compiler"
    folder.mkdir()
    (folder / "emit.py").write_text("a = 1\n")
    (folder / "loops.py").write_text("b = 2\n")
    fusion = tmp_path / "fusion.py"
    fusion.write_text("c = 3\n")
    return [folder, fusion]


def maker(sources, target="x86 znver3 +avx2", options=(), versions=VERSIONS):
    return KeyMaker(sources, target, options, versions)


def test_a_key_is_64_hex_digits_and_repeatable(sources):
    first = maker(sources).key("kernel", "add f32")
    assert first == maker(sources).key("kernel", "add f32")
    assert len(first) == 64
    assert set(first) <= set("0123456789abcdef")


def test_making_a_key_leaves_the_common_part_alone(sources):
    keys = maker(sources)
    first = keys.key("kernel", "add f32")
    keys.key("kernel", "mul f32")
    assert keys.key("kernel", "add f32") == first


def test_every_field_counts(sources):
    base = maker(sources).key("kernel", "add f32")
    others = [
        maker(sources, target="x86 znver4 +avx512f").key("kernel", "add f32"),
        maker(sources, options=[("width", "16")]).key("kernel", "add f32"),
        maker(sources, versions=[("llvmlite", "2"), ("torch", "2")]).key("kernel", "add f32"),
        maker(sources).key("plan", "add f32"),
        maker(sources).key("kernel", "add f64"),
        maker(sources).key("kernel", "add f32", [("max_kernel_ops", "3")]),
    ]
    assert len({base, *others}) == len(others) + 1


def test_format_counts(sources, monkeypatch):
    base = maker(sources).key("kernel", "add f32")
    monkeypatch.setattr(key, "FORMAT", key.FORMAT + 1)
    assert maker(sources).key("kernel", "add f32") != base


@pytest.mark.parametrize("change", ["edit", "edit single", "add", "rename"])
def test_generator_sources_count(sources, change):
    base = source_hash(sources)
    folder, fusion = sources
    if change == "edit":
        (folder / "emit.py").write_text("a = 1 \n")
    elif change == "edit single":
        fusion.write_text("c = 4\n")
    elif change == "add":
        (folder / "sub").mkdir()
        (folder / "sub" / "more.py").write_text("")
    else:
        (folder / "emit.py").rename(folder / "emits.py")
    assert source_hash(sources) != base


def test_place_of_the_installation_does_not_count(sources, tmp_path):
    base = source_hash(sources)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    assert source_hash([path.rename(moved / path.name) for path in sources]) == base


def test_missing_source_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"planner\.py"):
        source_hash([tmp_path / "planner.py"])


@pytest.mark.parametrize(
    "one, other",
    [
        ([("a", "bc")], [("ab", "c")]),
        ([("a", "b"), ("c", "d")], [("a", "b1:c=1:d")]),
        ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")]),
        ([("a", "")], []),
    ],
)
def test_fields_do_not_run_together(one, other):
    assert digest(one) != digest(other)


def test_text_and_bytes_of_the_same_field_agree():
    assert digest([("a", "é")]) == digest([("a", "é".encode())])


def test_the_log_shows_where_two_keys_part(sources, caplog):
    caplog.set_level(logging.DEBUG, "adaptive_eager.cache.key")
    logs = []
    for text in ("add f32", "add f64"):
        caplog.clear()
        maker(sources).key("kernel", text)
        logs.append([record.getMessage() for record in caplog.records])
    parted = [(one.split(":")[0], other.split(":")[0]) for one, other in zip(*logs, strict=True) if one != other]
    assert parted[0][0] == "text"
    assert {"format", "generator", "target", "kind"} <= {line.split(":")[0] for line in logs[0]}


def test_a_key_is_the_digest_of_its_named_fields(sources):
    keys = maker(sources, options=[("width", "16")])
    fields = keys.fields("kernel", "add f32", [("max_kernel_ops", "3")])
    assert digest(fields) == keys.key("kernel", "add f32", [("max_kernel_ops", "3")])
    names = [name for name, _ in fields]
    assert names == ["format", "generator", "target", "llvmlite", "torch", "width", "kind", "max_kernel_ops", "text"]


#: Parameters that are in no key, and why no kernel and no plan depends on them.
NOT_IN_KEYS = {
    "mode": "says which plans are made, not how",
    "runtime": "the software NeuronCore runs what the target says; another runtime has other targets",
    "devices": "a kernel runs on any",
    "device_memory": "limits tensors",
    "max_ops": "cuts windows: what a window says is its signature",
    "min_ops": "cuts windows",
    "max_bytes": "cuts windows",
    "hot_after": "says when a plan is made",
    "background": "says where a kernel is compiled",
    "max_variants": "says when a plan is made",
    "variant_seconds": "says when a plan is made",
    "trace_bytes": "memory of traces",
    "failure_age": "says how long a failure is believed",
    "fallback": "what is said of ops that are in no window",
    "cache": "the cache itself",
    "cache_dir": "the cache itself",
    "cache_size": "the cache itself",
    "cache_wait": "the cache itself",
    "log_level": "what is said",
}


def test_no_parameter_is_forgotten():
    """Whoever adds one says whether plans depend on it: in its row, or here with the reason."""
    from adaptive_eager import params

    keyed = {row.name for row in params.table() if row.keyed}
    assert keyed == {name for name, _ in params.keyed()}
    assert not keyed & NOT_IN_KEYS.keys()
    assert {row.name for row in params.table()} - keyed == NOT_IN_KEYS.keys()


def test_the_generator_reads_no_parameter_that_is_not_in_the_key():
    """By its sources: each `params.get` of what makes kernels and plans names a row that is keyed."""
    from adaptive_eager import params
    from adaptive_eager.kernels import GENERATOR_SOURCES

    keyed = {name for name, _ in params.keyed()}
    read = set()
    for source in GENERATOR_SOURCES:
        for file in source.rglob("*.py") if source.is_dir() else [source]:
            text = file.read_text()
            assert "environ" not in text, f"{file} reads the environment"
            read |= set(re.findall(r"params\.get\(\s*\"(\w+)\"", text))
    #: Read by the planner, for when and where it plans.
    assert read - {"background", "failure_age"} <= keyed
    assert keyed & read, "the pattern finds nothing"


def test_default_versions_name_the_tools():
    import torch

    versions = dict(key.tool_versions())
    assert versions["torch"] == torch.__version__
    assert versions["llvm"].count(".") == 2
    assert set(versions) == {"llvmlite", "llvm", "torch"}
