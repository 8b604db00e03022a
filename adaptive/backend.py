"""Puts the parts together, once a process: runtime, extension, kernels, planner, the torch device module."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_eager import MODES, params

if TYPE_CHECKING:
    from adaptive_eager.kernels import KernelCounters
    from adaptive_eager.planner import Planner

_lock = threading.RLock()
_loaded = False
_C: Any = None
_planner: Planner | None = None
_runtime: Any = None

_FALLBACKS = ("warn", "error", "quiet")
_EXTENSION_PARAMS = ("max_ops", "min_ops", "max_bytes", "hot_after", "trace_bytes", "parallel_grain")


def load() -> None:
    """Registers the device. Does nothing the second time. Raises RuntimeError with one clear line if it cannot."""
    global _loaded
    with _lock:
        if not _loaded:
            _register()
            _loaded = True


def _register() -> None:
    global _C, _runtime, _planner
    import torch

    params.apply_log_level()
    name = torch._C._get_privateuse1_backend_name()
    if name not in ("privateuseone", "neuron") or hasattr(torch, "neuron"):
        raise RuntimeError(f"another PrivateUse1 backend ({name!r}) is active already; adaptive-eager steps aside")

    from adaptive_eager.native.runtime import open_runtime

    runtime = open_runtime(params.get("runtime"), params.get("devices"), params.get("device_memory"))
    runtime.need_software(
        "running PyTorch (kernels are compiled for the software NeuronCore; set ADAPTIVE_EAGER_RUNTIME=software)"
    )

    from adaptive_eager.native import _C as extension

    _C, _runtime = extension, runtime
    symbols = (
        "nrt_tensor_allocate",
        "nrt_tensor_free",
        "nrt_tensor_get_va",
        "nrt_get_status_as_str",
        "nrt_get_vnc_memory_stats",
    )
    _C.attach_runtime({symbol: runtime.address_of(symbol) for symbol in symbols}, runtime.device_count)
    _C.set_library_folders([str(Path(torch.__file__).parent), str(Path(__file__).parent)])
    for param in _EXTENSION_PARAMS:
        _C.set_param(param, params.get(param))
    _C.set_fallback_policy(_FALLBACKS.index(params.get("fallback")))
    _C.set_planner(_LazyPlanner())

    from adaptive_eager import device

    device.install()
    _C.set_mode(MODES.index(params.get("mode")))
    from adaptive_eager.cache import forks  # noqa: F401  (its hooks come first: they run last before a fork)

    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _before_fork() -> None:
    try:
        _C.before_fork()  # may plan, so it comes first
    finally:
        if _planner is not None:
            _planner.background.pause()


def _after_fork_in_parent() -> None:
    if _planner is not None:
        _planner.background.resume()
    _C.after_fork(False)


def _after_fork_in_child() -> None:
    if _planner is not None:
        _planner.background.renew_in_child()
    _C.after_fork(True)


def wait_for_plans() -> None:
    if _planner is not None:
        _planner.background.wait()


class _LazyPlanner:
    """Stands in for the planner until the first miss: `import torch` should not load a compiler."""

    def __getattr__(self, name: str) -> Any:
        return getattr(planner(), name)


def planner() -> Planner:
    """This process's planner, made at its first use."""
    global _planner
    with _lock:
        if _planner is None:
            from adaptive_eager.cache.store import KernelStore
            from adaptive_eager.kernels import KernelService
            from adaptive_eager.planner import Planner

            store = KernelStore.from_params()
            _planner = Planner(KernelService(_runtime, store), store, _C.defer_interrupt)
        return _planner


def _counters() -> KernelCounters | None:
    return _planner.kernels.counters if _planner is not None else None


def stats() -> dict[str, Any]:
    from adaptive_eager.kernels import KernelCounters

    counters = _counters() or KernelCounters()
    native = _C.stats()
    return {
        **{k: v for k, v in native.items() if k != "flush_causes"},
        **asdict(counters),
        "plans_failed": len(_planner.failures) if _planner is not None else 0,
        "plans_deferred": _planner.variants.deferred if _planner is not None else 0,
        "not_fused": _planner.not_fused() if _planner is not None else {},
        "fallback_calls": sum(_C.fallback_counts().values()),
        "flush_causes": dict(native["flush_causes"]),
    }


def reset_stats() -> None:
    from adaptive_eager.kernels import KernelCounters

    _C.reset_stats()
    if _planner is not None:
        _planner.kernels.counters = KernelCounters()
        _planner.variants.deferred = 0


def runtime() -> Any:
    """The open runtime (adaptive_eager.native.runtime.Runtime)."""
    load()
    return _runtime
