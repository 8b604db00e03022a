"""A random program: statements of plain torch, and the conditions it runs under; and the script that repeats it."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass, field, replace

import prelude
import torch

#: Of the script's helpers, in the order they are printed.
HELPERS = (
    prelude.fill, prelude.index, prelude.run, prelude.told, prelude.look, prelude.difference, prelude.look_bits,
)  # fmt: skip


#: Tunables of a program that does not say otherwise: windows are fused at once, not when a background thread is done.
DEFAULTS = {"background": "off"}


@dataclass(frozen=True)
class Thread:
    """What one thread does: `setup`, then `rounds` times `body` with k = 0, 1, ...; each statement may be a block."""

    setup: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    rounds: int = 1

    def source(self, name: str) -> str:
        """A function of the device that returns what was read, what was kept, and its variables."""
        lines = ["reads, kept = [], []", *self.setup]
        if self.body:
            if self.rounds > 1:
                lines += [f"for k in range({self.rounds}):", *(textwrap.indent(s, "    ") for s in self.body)]
            else:
                lines += ["k = 0", *self.body]
        lines.append("return reads, kept, locals()")
        return f"def {name}(dev):\n" + "\n".join(textwrap.indent(line, "    ") for line in lines) + "\n"


@dataclass(frozen=True)
class Run:
    """One way to run a program on the device."""

    mode: str
    num_threads: int = 1
    together: bool = True

    def __str__(self) -> str:
        return f'run(threads, "{self.mode}", num_threads={self.num_threads}, together={self.together})'


@dataclass(frozen=True)
class Program:
    """The threads; `limits`, tunables of adaptive/params.py; and the threads that kernels run on, at most."""

    threads: tuple[Thread, ...]
    limits: dict[str, int | str] = field(default_factory=dict)
    num_threads: int = 1

    def with_thread(self, i: int, thread: Thread) -> Program:
        return replace(self, threads=(*self.threads[:i], thread, *self.threads[i + 1 :]))

    def functions(self) -> list:
        """The threads' functions, ready to be called with a device."""
        scope = namespace()
        for i, thread in enumerate(self.threads):
            exec(compile(thread.source(f"thread_{i}"), f"<thread {i}>", "exec"), scope)
        return [scope[f"thread_{i}"] for i in range(len(self.threads))]

    def body(self) -> str:
        return "\n\n".join(thread.source(f"thread_{i}") for i, thread in enumerate(self.threads))

    def script(self, checks: str) -> str:
        """A script of its own that runs the program and then `checks`."""
        variables = {
            f"ADAPTIVE_EAGER_{name.upper()}": str(value) for name, value in {**DEFAULTS, **self.limits}.items()
        }
        variables |= {"ADAPTIVE_EAGER_CACHE": "off", "ADAPTIVE_EAGER_FALLBACK": "quiet"}
        names = ", ".join(f"thread_{i}" for i in range(len(self.threads)))
        helpers = "\n\n".join(inspect.getsource(helper) for helper in HELPERS)
        return (
            f"import os\nimport threading\n\nos.environ.update({variables!r})\n\n"
            "import torch\nimport torch.nn.functional as F\n\nimport adaptive_eager as ae\n\n\n"
            f"{self.body()}\n\n{helpers}\n\n"
            f"threads = [{names}]\n{checks}\n"
        )


def namespace() -> dict:
    """The names that statements may use."""
    return {
        "torch": torch,
        "F": torch.nn.functional,
        "fill": prelude.fill,
        "index": prelude.index,
    }
