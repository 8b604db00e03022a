"""adaptive-eager: the `neuron` device for PyTorch.

Importing torch loads it (entry point group `torch.backends`); importing this package does too. Programs use it as any
device: `torch.randn(8, device="neuron")`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "adaptive", "clear_fallback_ops", "flush", "get_fallback_ops", "mode", "per_op", "report", "reset_stats",
    "set_mode", "stats", "stepwise", "wait_for_plans",
]  # fmt: skip

#: In the order of the extension's numbers (native/torch/params.h).
MODES = ("adaptive", "per_op", "stepwise")


def mode() -> str:
    """How ops run.

    "adaptive": recorded, fused when hot; "per_op": recorded, one kernel an op; "stepwise": each op runs at its call.
    """
    return MODES[_backend()._C.mode()]


def set_mode(name: str) -> None:
    """Change the mode. What is recorded so far runs first."""
    if name not in MODES:
        raise ValueError(f"no mode {name!r}, need one of {', '.join(MODES)}")
    _backend()._C.set_mode(MODES.index(name))


@contextlib.contextmanager
def _as_mode(name: str) -> Iterator[None]:
    previous = mode()
    set_mode(name)
    try:
        yield
    finally:
        set_mode(previous)


def adaptive() -> contextlib.AbstractContextManager[None]:
    """Context manager: record, and fuse what is hot."""
    return _as_mode("adaptive")


def per_op() -> contextlib.AbstractContextManager[None]:
    """Context manager: record, one kernel an op."""
    return _as_mode("per_op")


def stepwise() -> contextlib.AbstractContextManager[None]:
    """Context manager: each op runs at its call."""
    return _as_mode("stepwise")


def flush() -> None:
    """Run everything recorded so far, on all devices."""
    _backend()._C.flush()


def wait_for_plans() -> None:
    """Wait until nothing is being compiled in the background. Plans are used from their windows' next sight on."""
    _backend().wait_for_plans()


def stats() -> dict[str, Any]:
    """Counters since the start or the last `reset_stats()`."""
    return _backend().stats()


def reset_stats() -> None:
    _backend().reset_stats()


def get_fallback_ops() -> dict[str, int]:
    """Ops that the device could not run and that ran on the host: name -> number of calls."""
    return dict(_backend()._C.fallback_counts())


def clear_fallback_ops() -> None:
    _backend()._C.clear_fallback_counts()


def report(file: Any = None) -> None:
    """Print what ran, as a table, to a file (standard output)."""
    from adaptive_eager import reporting

    print(reporting.text(stats(), get_fallback_ops()), file=file)


def _backend() -> Any:
    from adaptive_eager import backend

    backend.load()
    return backend


_tried = False


def _autoload() -> None:
    """Entry point of `torch.backends`: never lets `import torch` fail. Tries once, and says so once."""
    global _tried
    if _tried:
        return
    _tried = True
    try:
        _backend()
    except Exception as error:  # whatever it is, torch must come up
        # Of no source line: the one line says it all. Not even a program that makes errors of warnings loses torch.
        with contextlib.suppress(RuntimeWarning):
            warnings.warn_explicit(f"the neuron device is not available: {error}", RuntimeWarning, __name__, 0)


# Imported by torch (autoload) or by hand: either way the device is registered, once.
import torch  # noqa: E402, F401

_autoload()
