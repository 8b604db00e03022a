"""The report: what it says, and what it does not say when there is nothing to say."""

from __future__ import annotations

import io

import pytest

from adaptive_eager import reporting

STATS = {
    "ops_recorded": 12000,
    "windows": 100,
    "plans_hit": 90,
    "plans_new": 10,
    "kernels_compiled": 40,
    "kernels_from_disk": 10,
    "kernels_reused": 900,
    "launches": 2500,
    "fused_ops": 9000,
    "host_ops": 2000,
    "fallback_calls": 0,
    "compile_seconds": 0.14,
    "flush_causes": {"host_read": 60, "max_ops": 39, "fork": 0, "novel_cause": 1},
}


def lines(stats, fallback_ops=None):
    """{first words of a line: rest of the line} of the plain report."""
    result = {}
    for line in reporting.text(stats, fallback_ops).splitlines():
        what, _, rest = line.strip().partition("  ")
        result[what] = " ".join(rest.split())
    return result


def test_counters_and_ratios():
    said = lines(STATS)
    assert said["ops recorded"] == "12,000"
    assert said["windows run"] == "100 120.0 ops a window"
    assert said["found"] == "90 90.0% of all windows"
    assert said["compiled"] == "40 in 0.14 s, 3.5 ms each"
    assert said["loaded from disk"] == "10 20.0% of those needed"
    assert said["launches"] == "2,500 4.0 ops a launch"
    assert said["ops in fused kernels"] == "9,000 75.0% of all ops"
    assert said["host ops"].startswith("2,000")
    assert said["fallbacks"] == "none"


def test_groups_come_in_order():
    assert [title for title, _ in reporting.sections(STATS)] == ["Recording", "Plans", "Kernels", "Host", "Flushes"]


def test_flush_causes_by_number_with_words_and_without_zeros():
    flushes = dict(reporting.sections(STATS))["Flushes"]
    assert [(name, value) for name, value, _ in flushes] == [
        ("host_read", "60"),
        ("max_ops", "39"),
        ("novel_cause", "1"),
    ]
    assert flushes[0][2].startswith("a value was read")
    assert flushes[2][2] == ""


def test_fallback_ops_are_named_by_number():
    said = reporting.text(dict(STATS, fallback_calls=5), {"aten::cdist": 2, "aten::unique": 3})
    assert "fallbacks" in said
    assert said.index("aten::unique") < said.index("aten::cdist")
    assert lines(dict(STATS, fallback_calls=5), {"aten::unique": 5})["aten::unique"] == "5"


def test_every_cause_of_the_extension_has_words():
    import re
    from pathlib import Path

    header = Path(__file__).resolve().parents[2] / "native" / "torch" / "stats.h"
    names = re.findall(r'"([a-z_]+)"', header.read_text().split("kFlushCauseNames", 1)[1].split("}", 1)[0])
    assert names
    assert set(names) <= set(reporting.CAUSES)


@pytest.mark.parametrize("stats", [{}, dict.fromkeys(STATS, 0), dict(dict.fromkeys(STATS, 0), flush_causes={})])
def test_nothing_ran(stats):
    assert reporting.text(stats) == reporting.NOTHING + "\n"
    assert reporting.render(stats).plain == reporting.NOTHING


def test_missing_counters_count_as_zero():
    said = lines({"ops_recorded": 3})
    assert said["ops recorded"] == "3"
    assert said["windows run"] == "0"
    assert said["compiled"] == "0"


def test_rich_form_says_the_same():
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120)
    console.print(reporting.render(STATS, {"aten::[weird]": 1}))
    shown = console.file.getvalue()
    for what, value, remark in (row for _, rows in reporting.sections(STATS, {"aten::[weird]": 1}) for row in rows):
        assert what in shown
        assert value in shown
        assert remark in shown


def test_html_is_a_fragment():
    html = reporting.html(STATS)
    assert html.startswith("<pre>")
    assert "ops recorded" in html


def test_printing_to_a_file_is_plain_text(capsys):
    file = io.StringIO()
    reporting.print_report(STATS, file=file)
    assert file.getvalue() == reporting.text(STATS)
    reporting.print_report(STATS)
    assert capsys.readouterr().out == reporting.text(STATS)


def test_the_function_of_the_package_stays():
    import adaptive_eager

    assert callable(getattr(adaptive_eager, "report", print)), "a module named report has taken its place"


def test_inputs_are_left_alone():
    stats, ops = dict(STATS), {"aten::unique": 1}
    reporting.text(stats, ops)
    reporting.render(stats, ops)
    assert (stats, ops) == (STATS, {"aten::unique": 1})
