"""Shared fixtures. Tests use a kernel cache of their own, so that a run starts cold and leaves nothing behind."""

import os
import sys
import tempfile

_CACHE = tempfile.TemporaryDirectory(prefix="adaptive-eager-tests-")
os.environ.setdefault("ADAPTIVE_EAGER_CACHE_DIR", os.path.join(_CACHE.name, "cache"))
# A plan is there when its window is hot, on any machine.
os.environ.setdefault("ADAPTIVE_EAGER_BACKGROUND", "off")

import pytest  # noqa: E402

MODES = ("adaptive", "per_op", "stepwise")


@pytest.fixture(autouse=True)
def seed():
    """A test meets the same random numbers whatever ran before it. (tests/native runs without torch.)"""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def every_window_fuses():
    """A window that cannot be fused runs op by op, with the right results: only this makes a test see it. What other
    tests spent of the budget of variants is forgotten."""
    backend = sys.modules.get("adaptive_eager.backend")
    planner = backend._planner if backend is not None else None
    if planner is not None:
        planner.variants = type(planner.variants)()
    yield
    backend = sys.modules.get("adaptive_eager.backend")
    planner = backend._planner if backend is not None else None
    if planner is not None:
        failures = dict(planner.failures)
        planner.failures.clear()
        assert not failures


@pytest.fixture(params=MODES)
def mode(request):
    """Runs the test in each mode."""
    import adaptive_eager as ae

    with getattr(ae, request.param)():
        yield request.param
