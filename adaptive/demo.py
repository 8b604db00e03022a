"""The demo: trains a small GPT on the neuron device, writes text with it, and repeats the same steps on the CPU."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from adaptive_eager.gpt import Corpus, Shape, Training

PROMPT = "The "
SAMPLE_LENGTH = 240
#: Share of the steps that counts as warming up: first sights, compiling, filling caches.
WARM_SHARE = 0.2


@dataclass
class Run:
    """What training on one device gave."""

    device: str
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    training: Training | None = None

    @property
    def first(self) -> float:
        return self.seconds[0]

    @property
    def steady(self) -> float:
        """Median time of a step, in seconds, after the warm-up."""
        return statistics.median(self.seconds[int(len(self.seconds) * WARM_SHARE) :])

    @property
    def final_loss(self) -> float:
        """Mean loss of the last tenth of the steps: one batch says little."""
        return statistics.fmean(self.losses[-max(1, len(self.losses) // 10) :])


def run(
    steps: int = 200,
    device: str = "neuron",
    baseline: str | None = "cpu",
    console: Console | None = None,
    shape: Shape | None = None,
) -> tuple[Run, Run | None]:
    """Trains on `device`, then on `baseline` (None: not at all), and prints what there is to see."""
    from adaptive_eager.gpt import Corpus, Shape

    if steps < 1:
        raise ValueError(f"steps: got {steps}, need at least 1")
    console = console or Console(highlight=False, emoji=False, soft_wrap=True)
    shape = shape or Shape()
    started = time.perf_counter()
    corpus = Corpus()
    console.print(
        f"A GPT of {shape.layers} layers, width {shape.width}, on {len(corpus.tokens):,} characters of Python's own "
        f"documentation; {steps} steps of {shape.batch} x {shape.context} characters, AdamW."
    )
    ours = _train(console, device, steps, shape, corpus)
    with _phase(console, "generating text"):
        assert ours.training is not None
        tokens = ours.training.generate(corpus.encode(PROMPT), SAMPLE_LENGTH)
    _print_sample(console, corpus.decode(tokens))
    if device == "neuron":
        _print_kernels(console)
    other = None
    if baseline is not None:
        other = _train(console, baseline, steps, shape, corpus)
    _print_comparison(console, [ours] if other is None else [ours, other])
    if device == "neuron":
        _print_report(console)
    console.print(f"The whole demo took {time.perf_counter() - started:.0f} s.")
    return ours, other


def _train(console: Console, device: str, steps: int, shape: Shape, corpus: Corpus) -> Run:
    from adaptive_eager.gpt import Training

    result = Run(device)
    with _phase(console, f"training on {device}"), _progress(console, device, steps) as show:
        result.training = Training(device, shape, corpus)
        for _ in range(steps):
            start = time.perf_counter()
            # Reading the loss runs everything that is pending, the optimizer's part too.
            loss = result.training.step().item()
            result.seconds.append(time.perf_counter() - start)
            result.losses.append(loss)
            show(loss)
    return result


@contextlib.contextmanager
def _phase(console: Console, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    console.print(f"({name}: {time.perf_counter() - start:.1f} s)", style="dim")


@contextlib.contextmanager
def _progress(console: Console, device: str, steps: int) -> Iterator[Callable[[float], None]]:
    """show(loss) after each step: a bar on a terminal, a line now and then elsewhere."""
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("step {task.completed}/{task.total}  loss {task.fields[loss]:.3f}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(f"training on {device}", total=steps, loss=float("nan"))
            yield lambda loss: progress.update(task, advance=1, loss=loss)
        return
    done = 0
    every = max(1, steps // 5)

    def show(loss: float) -> None:
        nonlocal done
        done += 1
        if done == 1 or done % every == 0 or done == steps:
            console.print(f"{device} step {done}/{steps}  loss {loss:.3f}")

    yield show


def _print_sample(console: Console, text: str) -> None:
    console.print("What it writes now:", style="bold")
    console.print("\n".join("    " + line for line in text.splitlines()), markup=False)


def _print_comparison(console: Console, runs: list[Run]) -> None:
    console.print("Training, side by side:", style="bold")
    console.print(f"    {'':<8} {'first step':>12} {'steady step':>12} {'first loss':>11} {'final loss':>11}")
    for each in runs:
        console.print(
            f"    {each.device:<8} {each.first * 1e3:>9.0f} ms {each.steady * 1e3:>9.1f} ms "
            f"{each.losses[0]:>11.3f} {each.final_loss:>11.3f}"
        )
    if len(runs) == 2:
        ours, other = runs
        apart = max(abs(one - two) for one, two in zip(ours.losses, other.losses, strict=True))
        console.print(
            f"    A step on {ours.device} is {other.steady / ours.steady:.2f} times as fast as on {other.device}; "
            f"the losses of a step differ by {apart:.1e} at most (each draws a dropout of its own)."
        )
        console.print(f"    ({other.device} is timed as it comes; `make bench` also tunes it.)", style="dim")


def _print_kernels(console: Console) -> None:
    import adaptive_eager

    stats = adaptive_eager.stats()
    compiled, loaded = stats["kernels_compiled"], stats["kernels_from_disk"]
    console.print(
        f"Kernels: {compiled} compiled"
        + (f" in {stats['compile_seconds']:.2f} s" if compiled else "")
        + f", {loaded} loaded from the disk cache."
    )


def _print_report(console: Console) -> None:
    import adaptive_eager
    from adaptive_eager import reporting

    stats, fallback_ops = adaptive_eager.stats(), adaptive_eager.get_fallback_ops()
    if console.is_terminal:
        console.print(reporting.render(stats, fallback_ops), soft_wrap=False)
    else:
        console.print(reporting.text(stats, fallback_ops), end="", markup=False, soft_wrap=True)
