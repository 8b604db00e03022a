"""Runs an unmodified script on the device, as `python SCRIPT` would run it."""

from __future__ import annotations

import atexit
import builtins
import io
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Sequence


def run(path: str, arguments: Sequence[str], device: str = "neuron", show_report: bool = True) -> None:
    """Runs the script (or folder, or zip file, with a `__main__.py`) with `device` as torch's default device.

    What the script raises is shown with the script's own frames only, and ends the process with Python's exit code.
    The report goes to stderr when everything of the script has ended, its atexit functions too.
    """
    import torch

    if show_report and device == "neuron":
        # Registered before the script registers anything, so it runs after all of that.
        atexit.register(_report_of, os.getpid())
    torch.set_default_device(device)
    sys.argv = [path, *arguments]
    path = os.path.abspath(path)
    try:
        if os.path.isdir(path) or zipfile.is_zipfile(path):
            runpy.run_path(path, run_name="__main__")
        else:
            _run_file(path)
    except SystemExit:
        raise
    except BaseException as error:
        error = error.with_traceback(_frames_of(path, error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def _run_file(path: str) -> None:
    """Runs a file as the module `__main__`, which stays: its atexit functions and pickles need it to the end."""
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _frames_of(path: str, traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback from the script's first frame on: ours and runpy's say nothing to the user."""
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name == path or name.startswith(path.rstrip(os.sep) + os.sep):
            break
        traceback = traceback.tb_next
    return traceback


def _report_of(pid: int) -> None:
    if os.getpid() != pid:  # a forked child inherits the registration
        return
    import adaptive_eager
    from adaptive_eager import reporting

    adaptive_eager.flush()
    reporting.print_report(adaptive_eager.stats(), adaptive_eager.get_fallback_ops(), file=sys.stderr)
