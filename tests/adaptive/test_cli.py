"""The command line: scripts run as python runs them, and every subcommand says what it should.

Scripts run on the CPU here where the device makes no difference: what is tested is the launching.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from adaptive_eager import cli, demo, doctor, params
from adaptive_eager.gpt import Corpus, Shape, Training

TINY = Shape(layers=1, width=16, heads=2, context=8, batch=2)


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors: a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def command():
    """command(*args): what `adaptive-eager ARGS` printed and returned, in this process."""
    return lambda *args: CliRunner().invoke(cli.main, args)


@pytest.fixture
def run(tmp_path):
    """run(source, *args): runs the source as a script, once through python and once through us."""

    def both(source, *args, stdin=None):
        script = tmp_path / "folder" / "script.py"
        script.parent.mkdir()
        script.write_text(source)
        script.with_name("sibling.py").write_text("value = 42")
        ours = [sys.executable, "-m", "adaptive_eager.cli", "run", "--device", "cpu"]
        return [
            subprocess.run(
                [*start, "folder/script.py", *args],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                input=stdin,
                check=False,
            )
            for start in ([sys.executable], ours)
        ]

    return both


LOOK_AROUND = """
import atexit, pickle, sys
import __main__, sibling

class A: pass

value = 3
print(sys.argv, sys.path[0], __name__, __file__, __main__.value, sibling.value)
print(sys.stdin.read(), type(pickle.loads(pickle.dumps(A()))).__name__)
atexit.register(lambda: print("later", value))
"""


def test_a_script_sees_what_python_shows_it(run):
    plain, ours = run(LOOK_AROUND, "one", "--two", "-h", "--device", "x", stdin="input")
    assert "input A" in plain.stdout
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, 0)


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit(7)",
        "import sys; sys.exit('a message')",
        "def f():\n    raise KeyError('no such')\nf()",
        "import click; raise click.ClickException('mine')",
        "this is no program",
    ],
)
def test_a_script_ends_as_under_python(run, source):
    plain, ours = run(source)
    assert plain.returncode
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, plain.returncode)


def test_interrupt_is_the_shell_s_exit_code(run):
    _, ours = run("raise KeyboardInterrupt")
    assert ours.returncode == 130
    assert "KeyboardInterrupt" in ours.stderr


def test_folder_with_a_main_runs(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "__main__.py").write_text(
        "import helper, sys, torch; print(helper.value, sys.argv[1:], torch.zeros(1).device)"
    )
    (folder / "helper.py").write_text("value = 5")
    ours = subprocess.run(
        [sys.executable, "-m", "adaptive_eager.cli", "run", "--device", "cpu", str(folder), "x"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ours.stdout == "5 ['x'] cpu\n"


def test_missing_script_is_named(command):
    result = command("run", "nowhere.py")
    assert result.exit_code == 2
    assert "nowhere.py" in result.output


def test_params_lists_every_row(command, monkeypatch):
    monkeypatch.setenv("ADAPTIVE_EAGER_MAX_OPS", "77")
    params.reload()
    try:
        result = command("params")
    finally:
        monkeypatch.undo()
        params.reload()
    assert result.exit_code == 0
    for row in params.table():
        assert row.variable in result.output
    (line,) = [line for line in result.output.splitlines() if "ADAPTIVE_EAGER_MAX_OPS" in line]
    assert line.split()[1:3] == ["77", "256"]


def test_doctor_turns_an_error_into_a_finding(monkeypatch, capsys):
    def broken():
        raise OSError("no such\n  library")
        yield

    monkeypatch.setattr(doctor, "_CHECKS", (("runtime", broken), ("CPU", doctor._cpu)))
    assert not doctor.examine()
    shown = capsys.readouterr().out
    assert "FAIL runtime  OSError: no such library" in shown
    assert " ok  CPU" in shown
    assert "1 of 2 are wrong." in shown


def test_doctor_names_an_untrusted_cache(tmp_path):
    tmp_path.chmod(0o777)
    with params.override(cache_dir=str(tmp_path)):
        (finding,) = doctor._cache()
    assert not finding.good
    assert "0777, need 0700" in finding.found


@pytest.mark.parametrize(
    "version, right", [("2.13.0+cpu", True), ("2.13.1", True), ("2.130.0", False), ("2.12.9", False), ("2.13", True)]
)
def test_doctor_compares_versions(version, right):
    assert doctor._satisfies(version, "torch==2.13.*") is right


@pytest.mark.parametrize("terminal", [False, True])
def test_demo_prints_both_sides(terminal):
    console = Console(record=True, width=100, force_terminal=terminal, file=open("/dev/null", "w"))  # noqa: SIM115
    ours, other = demo.run(steps=6, device="cpu", baseline="cpu", console=console, shape=TINY)
    console.file.close()
    assert other is not None
    assert len(ours.losses) == len(other.seconds) == 6
    assert ours.losses == other.losses, "the same seed gives the same steps"
    shown = console.export_text()
    assert "What it writes now:" in shown
    assert "Training, side by side:" in shown
    assert f"{ours.final_loss:.3f}" in shown
    if not terminal:
        assert "cpu step 6/6" in shown
        assert "\x1b" not in shown


def test_demo_alone():
    ours, other = demo.run(steps=1, device="cpu", baseline=None, console=Console(quiet=True), shape=TINY)
    assert (len(ours.losses), other) == (1, None)


def test_demo_needs_a_step():
    with pytest.raises(ValueError, match="steps: got 0, need at least 1"):
        demo.run(steps=0, device="cpu")


def test_loss_falls():
    training = Training("cpu", Shape(layers=1, width=32, heads=2, context=16, batch=8), Corpus())
    losses = [training.step().item() for _ in range(40)]
    assert sum(losses[-5:]) / 5 < losses[0] - 1


def test_generating_leaves_training_on():
    corpus = Corpus()
    training = Training("cpu", TINY, corpus)
    text = corpus.decode(training.generate(corpus.encode("The "), 20))
    assert text.startswith("The ")
    assert len(text) == 24
    assert training.model.training


def test_corpus_round_trip():
    corpus = Corpus()
    assert corpus.decode(corpus.encode("The with statement").tolist()) == "The with statement"
