"""Every tunable of the project, one row each, and the only code that reads the environment.

A row named `max_ops` is set by `ADAPTIVE_EAGER_MAX_OPS`. Values are read once, at first use. A value that makes no
sense is reported in one line and the default is used: `import torch` loads this package, which must not make it fail.

`python -m adaptive_eager.params` prints the table that is in docs/params.md.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PREFIX = "ADAPTIVE_EAGER_"

log = logging.getLogger("adaptive_eager")


@dataclass(frozen=True)
class Param:
    """One tunable.

    kind     "int", "seconds", "bytes" (takes K, M, G suffixes, powers of 1024), "choice", "text" or "paths"
    choices  the values of a "choice", or the words a "text" understands besides a path
    keyed    whether plans made under another value are different plans: part of every plan's cache key
    minimum  smallest value of a number
    """

    name: str
    default: Any
    kind: str
    unit: str
    meaning: str
    keyed: bool = False
    choices: tuple[str, ...] = ()
    minimum: int = 1

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def expects(self) -> str:
        """What a right value looks like, for error messages and the table."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "text":
            return ", ".join(self.choices) + " or a path"
        if self.kind == "paths":
            return f"an absolute path, or several separated by '{os.pathsep}'"
        what = {"int": "a whole number", "bytes": "a number of bytes such as 67108864 or 64M", "seconds": "seconds"}
        return f"{what[self.kind]}, at least {self.minimum}"

    def parse(self, text: str) -> Any:
        """The value of `text`; ValueError says what would be right."""
        text = text.strip()
        try:
            value = _PARSERS[self.kind](text)
        except ValueError:
            raise ValueError(self.expects) from None
        if self.kind == "choice" and value not in self.choices:
            raise ValueError(self.expects)
        if self.kind == "paths" and not all(os.path.isabs(path) for path in value.split(os.pathsep)):
            raise ValueError(self.expects)
        if self.kind == "text" and not value:
            raise ValueError(self.expects)
        if self.kind in ("int", "bytes", "seconds") and value < self.minimum:
            raise ValueError(self.expects)
        return value


_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_bytes(text: str) -> int:
    """The number in a text such as "67108864" or "64M". Raises ValueError."""
    number = text.upper().removesuffix("IB").removesuffix("B").strip()
    scale = _SUFFIXES.get(number[-1:], 1)
    return int(number[:-1] if scale > 1 else number) * scale


def _parse_seconds(text: str) -> float:
    value = float(text)
    if not value < float("inf"):
        raise ValueError
    return value


_PARSERS: dict[str, Any] = {
    "int": int,
    "seconds": _parse_seconds,
    "bytes": parse_bytes,
    "choice": str.lower,
    "text": str,
    "paths": lambda text: os.pathsep.join(os.path.expanduser(path) for path in text.split(os.pathsep) if path),
}

_MIB = 1 << 20
_USER_CACHE = 'user_cache_dir("adaptive-eager")'

_ROWS = (
    Param(
        "mode",
        "adaptive",
        "choice",
        "",
        "How ops run: adaptive (recorded, fused when they repeat), per_op (recorded, one kernel an op), "
        "stepwise (each op at its call).",
        choices=("adaptive", "per_op", "stepwise"),
    ),
    Param(
        "runtime",
        "auto",
        "text",
        "",
        "Neuron Runtime library: auto (libnrt.so.1 when a Neuron device is present, else the software NeuronCore), "
        "software, or the path of a library.",
        choices=("auto", "software"),
    ),
    Param("devices", 1, "int", "devices", "Number of software NeuronCores."),
    Param(
        "device_memory",
        0,
        "bytes",
        "bytes",
        "Memory of one software NeuronCore; 0: as much as the host has.",
        minimum=0,
    ),
    Param("max_ops", 256, "int", "ops", "A window with more pending ops than this is cut."),
    Param("min_ops", 32, "int", "ops", "A full window is cut no earlier than after this many ops."),
    Param(
        "max_bytes",
        32 * _MIB,
        "bytes",
        "bytes",
        "A window that keeps more memory than this from being used again (nobody else holds it) is run.",
    ),
    Param("hot_after", 2, "int", "sights", "A window is fused from this sight on; before, it runs op by op."),
    Param(
        "background",
        "auto",
        "choice",
        "",
        "Where the kernels of a hot window are compiled: on (in a thread of low priority, while the window goes on "
        "running op by op), off (at once), auto (on when there are more processors than torch has threads).",
        choices=("auto", "on", "off"),
    ),
    Param(
        "max_variants",
        8,
        "int",
        "plans",
        "Plans of the same ops, in other layouts or with other arguments, that did not come back before a further one "
        "must be seen twice as often to be made (at twice as many, four times as often, and so on).",
    ),
    Param(
        "variant_seconds",
        2.0,
        "seconds",
        "seconds",
        "Time spent on making plans of the same ops that did not come back, with the same effect.",
    ),
    Param("trace_bytes", 64 * _MIB, "bytes", "bytes", "Memory of traces and their plans; what was used last is kept."),
    Param(
        "failure_age",
        7 * 24 * 3600.0,
        "seconds",
        "seconds",
        "A window that could not be compiled is tried again after this time, or by another version of the package.",
        minimum=0,
    ),
    Param("max_kernel_ops", 64, "int", "ops", "Most ops of one fused kernel.", keyed=True),
    Param("max_kernel_accesses", 24, "int", "accesses", "Most loads and stores of one fused kernel.", keyed=True),
    Param("parallel_grain", 32768, "int", "elements", "A kernel over fewer stays on one thread.", keyed=True),
    Param(
        "fallback",
        "warn",
        "choice",
        "",
        "What an op that the device cannot run does: warn (once an op, and run on the host), error, "
        "or quiet (run on the host and be counted).",
        choices=("warn", "error", "quiet"),
    ),
    Param(
        "cache",
        "on",
        "choice",
        "",
        "Disk cache of kernels and plans: on, read-only (never written: a warm cache made beforehand), off (this "
        "process only), assert-warm (read-only, and any compilation is an error that says what differs).",
        choices=("on", "read-only", "off", "assert-warm"),
    ),
    Param(
        "cache_dir",
        _USER_CACHE,
        "paths",
        "",
        "Directory of the disk cache, mode 0700; several, separated as in PATH: the first is written to, all are read. "
        "Whoever can write to one can run code in your programs.",
    ),
    Param(
        "cache_size",
        512 * _MIB,
        "bytes",
        "bytes",
        "Size above which the disk cache drops the entries that were not used for longest.",
    ),
    Param(
        "cache_wait",
        20.0,
        "seconds",
        "seconds",
        "Longest wait for another process that compiles the same kernel; then it is compiled here too.",
        minimum=0,
    ),
    Param(
        "log_level",
        "warning",
        "choice",
        "",
        "What the package's logger says; debug explains cache keys.",
        choices=("debug", "info", "warning", "error"),
    ),
)

_BY_NAME = {row.name: row for row in _ROWS}
_values: dict[str, Any] = {}
_overrides: dict[str, Any] = {}
_names_checked = False


def get(name: str) -> Any:
    """Value of the tunable `name`: what `override` says, else its environment variable, else its default."""
    if name in _overrides:
        return _overrides[name]
    if name not in _values:
        _values[name] = _read(_row(name))
    return _values[name]


@contextlib.contextmanager
def override(**values: Any) -> Iterator[None]:
    """Sets tunables inside a `with` block, for tests and benches. Code that read one before keeps what it read."""
    for name, value in values.items():
        row = _row(name)
        try:
            row.parse(str(value))
        except ValueError as error:
            raise ValueError(f"parameter {name}: got {value!r}, need {error}") from None
    saved = dict(_overrides)
    _overrides.update(values)
    try:
        yield
    finally:
        _overrides.clear()
        _overrides.update(saved)


def reload() -> None:
    """Forgets what was read, so that the next `get` reads the environment again."""
    global _names_checked
    _values.clear()
    _names_checked = False


def table() -> tuple[Param, ...]:
    """All rows, in the order of the documentation."""
    return _ROWS


def default(name: str) -> Any:
    """Value that `name` has when nobody sets it."""
    row = _row(name)
    if row.default is not _USER_CACHE:
        return row.default
    import platformdirs

    return platformdirs.user_cache_dir("adaptive-eager", appauthor=False)


def changed() -> dict[str, Any]:
    """Rows whose value differs from the default."""
    return {row.name: get(row.name) for row in _ROWS if get(row.name) != default(row.name)}


def keyed() -> list[tuple[str, str]]:
    """(name, value) of the rows that plans depend on, for their cache keys."""
    return [(row.name, str(get(row.name))) for row in _ROWS if row.keyed]


def apply_log_level() -> None:
    """Gives the package's logger the level `log_level`; below warning also a handler, as nobody may have set one up."""
    level = getattr(logging, get("log_level").upper())
    log.setLevel(level)
    if level < logging.WARNING and not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        log.addHandler(handler)


def markdown_table() -> str:
    """The table as Markdown; docs/params.md holds exactly this below its heading."""
    lines = ["| variable | default | unit | values | meaning |", "|---|---|---|---|---|"]
    for row in _ROWS:
        lines.append(f"| `{row.variable}` | `{row.default}` | {row.unit} | {row.expects} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def document() -> str:
    """Full text of docs/params.md."""
    return (
        "# Parameters\n\n"
        "Set by environment variables, read once at first use. Generated by `python -m adaptive_eager.params`.\n\n"
        + markdown_table()
    )


def _row(name: str) -> Param:
    row = _BY_NAME.get(name)
    if row is None:
        near = difflib.get_close_matches(name, _BY_NAME, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise KeyError(f"no parameter {name!r}{hint}")
    return row


def _read(row: Param) -> Any:
    _check_names()
    text = os.environ.get(row.variable)
    if text is None:
        return default(row.name)
    try:
        return row.parse(text)
    except ValueError as error:
        fallback = default(row.name)
        log.warning("%s=%r is ignored: need %s. Using %s.", row.variable, text, error, fallback)
        return fallback


def _check_names() -> None:
    """A misspelt variable would be ignored in silence, so name those that no row has; once."""
    global _names_checked
    if _names_checked:
        return
    _names_checked = True
    known = {row.variable for row in _ROWS}
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and variable not in known:
            near = difflib.get_close_matches(variable, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; `adaptive-eager params` lists all"
            log.warning("%s is ignored: there is no such parameter%s", variable, hint)


if __name__ == "__main__":
    print(document(), end="")
