"""The bindings without the package around them.

Importing `adaptive_eager` registers the torch device, which opens the runtime and keeps it. These tests open and close
it at will, so they need a process in which the package is only a name.
"""

import importlib.util
import sys
import types
from pathlib import Path

#: First lines of a script that is to use the bindings alone.
PRELUDE = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import alone; alone.isolate()\n"


def isolate():
    """Puts an empty package in the place of `adaptive_eager`. False if the real one is imported already."""
    if "adaptive_eager" not in sys.modules:
        package = types.ModuleType("adaptive_eager")
        package.__path__ = list(importlib.util.find_spec("adaptive_eager").submodule_search_locations)
        package.is_empty = True
        sys.modules["adaptive_eager"] = package
    return hasattr(sys.modules["adaptive_eager"], "is_empty")
