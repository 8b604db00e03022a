"""The command `adaptive-eager`. Each subcommand imports what it needs."""

from __future__ import annotations

import sys

import click

from adaptive_eager.cache.commands import cache


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="adaptive-eager")
def main() -> None:
    """PyTorch's `neuron` device: adaptive eager execution with fused kernels and a persistent kernel cache."""


@main.command()
@click.option("--steps", default=200, show_default=True, type=click.IntRange(min=1), help="Training steps.")
@click.option("--device", default="neuron", show_default=True, help="Device to train on.")
@click.option("--device-only", is_flag=True, help="Do not repeat the steps on the CPU.")
def demo(steps: int, device: str, device_only: bool) -> None:
    """Train a small GPT on the device, then the same steps on the CPU, and compare."""
    from adaptive_eager import demo as the_demo

    if device == "neuron":
        _need_device()
    the_demo.run(steps=steps, device=device, baseline=None if device_only else "cpu")


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--device", default="neuron", show_default=True, help="Default device of the script.")
@click.option("--quiet", is_flag=True, help="No report at the end.")
@click.argument("script", type=click.Path(exists=True, dir_okay=True))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(device: str, quiet: bool, script: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT as `python SCRIPT ARGUMENTS...` would, with `neuron` as torch's default device."""
    from adaptive_eager import script as the_script

    if device == "neuron":
        _need_device()
    the_script.run(script, arguments, device, show_report=not quiet)


@main.command()
def doctor() -> None:
    """Look at everything the device needs and say what is wrong; exit code 1 when something is."""
    from adaptive_eager import doctor as the_doctor

    sys.exit(0 if the_doctor.examine() else 1)


@main.command()
def params() -> None:
    """Print every parameter: variable, value now, default, meaning."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from adaptive_eager import params as the_params

    table = Table("variable", "value", "default", "meaning", box=None, pad_edge=False)
    for row in the_params.table():
        value, default = the_params.get(row.name), the_params.default(row.name)
        table.add_row(
            Text(row.variable), Text(str(value), style="" if value == default else "bold"), Text(str(default)),
            Text(f"{row.meaning} Takes {row.expects}."),
        )  # fmt: skip
    # Not on a terminal there is no width to fit: one line a row, for grep.
    console = Console()
    if not console.is_terminal:
        console = Console(width=400)
    console.print(table)


main.add_command(cache)


def _need_device() -> None:
    """Ends the command with one line when the device is not there; torch's own message would not say why."""
    import torch

    if not hasattr(torch, "neuron"):
        import adaptive_eager  # noqa: F401  (registers the device when autoloading was off or stepped aside)
    if not (hasattr(torch, "neuron") and torch.neuron.is_available()):
        raise click.ClickException("the neuron device is not available; `adaptive-eager doctor` says why")


if __name__ == "__main__":
    main()
