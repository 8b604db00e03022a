"""Makes a failing program small: fewer threads, rounds, statements and limits, shorter code, smaller inputs.

`fails(program)` says whether a candidate still shows the same kind of fault. Each step is kept if it does, and steps
are repeated until none helps or the time is over.
"""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from program import Program, Thread, namespace

FILL = re.compile(r"fill\((\w+), (\([^()]*\)), ([\w.]+)(, wild=True)?\)")


def shrink(program: Program, fails: Callable[[Program], bool], seconds: float = 60) -> Program:
    """The smallest program found that fails."""
    shrinker = Shrinker(program, fails, time.monotonic() + seconds)
    before = None
    while before != shrinker.program and not shrinker.over():
        before = shrinker.program
        shrinker.conditions()
        shrinker.drop()
        shrinker.unwrap()
        shrinker.replace_by_inputs()
        shrinker.simplify()
        shrinker.resize()
    return shrinker.program


class Shrinker:
    """`program` is the smallest one so far. Each step goes through it once, from the end: what comes later depends on
    what comes before."""

    def __init__(self, program: Program, fails: Callable[[Program], bool], end: float) -> None:
        self.program = program
        self.fails = fails
        self.end = end
        self.tried: set[str] = set()

    def over(self) -> bool:
        return time.monotonic() > self.end

    def takes(self, candidate: Program) -> bool:
        """Whether the candidate fails too; it is the program then."""
        key = repr(candidate)
        if key in self.tried or candidate == self.program or self.over():
            return False
        self.tried.add(key)
        if not self.fails(candidate):
            return False
        self.program = candidate
        return True

    def parts(self) -> list[tuple[int, str]]:
        return [(i, part) for i in range(len(self.program.threads)) for part in ("body", "setup")]

    def code(self, i: int, part: str) -> tuple[str, ...]:
        return getattr(self.program.threads[i], part)

    def takes_code(self, i: int, part: str, code: tuple[str, ...]) -> bool:
        return self.takes(self.program.with_thread(i, replace(self.program.threads[i], **{part: code})))

    def takes_statements(self, i: int, part: str, at: int, *statements: str) -> bool:
        code = self.code(i, part)
        return self.takes_code(i, part, (*code[:at], *statements, *code[at + 1 :]))

    def positions(self) -> Iterator[tuple[int, str, int, str]]:
        """(thread, field, position, statement), from the end, of the program as it is by then."""
        for i, part in self.parts():
            for at in range(len(self.code(i, part)) - 1, -1, -1):
                if at < len(self.code(i, part)):
                    yield i, part, at, self.code(i, part)[at]

    # -- steps -------------------------------------------------------------------------------------------------------

    def conditions(self) -> None:
        """Fewer threads, limits and rounds."""
        while len(self.program.threads) > 1 and any(
            self.takes(replace(self.program, threads=(t,))) for t in self.program.threads
        ):
            pass
        for i in range(len(self.program.threads) - 1, -1, -1):
            if len(self.program.threads) > 1:
                self.takes(replace(self.program, threads=self.program.threads[:i] + self.program.threads[i + 1 :]))
        self.takes(replace(self.program, limits={}))
        for name in list(self.program.limits):
            self.takes(replace(self.program, limits={n: v for n, v in self.program.limits.items() if n != name}))
        self.takes(replace(self.program, num_threads=1))
        for i in range(len(self.program.threads)):
            for fewer in range(1, self.program.threads[i].rounds):
                if self.takes(self.program.with_thread(i, replace(self.program.threads[i], rounds=fewer))):
                    break
            thread = self.program.threads[i]
            if thread.rounds == 1 and thread.setup:
                self.takes(self.program.with_thread(i, Thread((), (*thread.setup, *thread.body), 1)))

    def drop(self) -> None:
        """Fewer statements: runs of them, then single ones, then one and all that use what it makes."""
        for i, part in self.parts():
            size = len(self.code(i, part)) // 2
            while size >= 1:
                start = len(self.code(i, part)) - size
                while start > -size:
                    code = self.code(i, part)
                    self.takes_code(i, part, code[: max(start, 0)] + code[start + size :])
                    start -= size
                size //= 2
        for i, _, _, statement in self.positions():
            for name in made(statement):
                uses, thread = re.compile(rf"\b{name}\b"), self.program.threads[i]
                setup = tuple(s for s in thread.setup if not uses.search(s))
                body = tuple(s for s in thread.body if not uses.search(s))
                self.takes(self.program.with_thread(i, replace(thread, setup=setup, body=body)))

    def unwrap(self) -> None:
        """Blocks without their first line, or without one of their lines."""
        for i, part, at, statement in self.positions():
            lines = statement.split("\n")
            if len(lines) < 2:
                continue
            inner = textwrap.dedent("\n".join(line for line in lines[1:] if line.startswith(" "))).split("\n")
            if self.takes_statements(i, part, at, *inner):
                continue
            for j in range(len(lines) - 1, 0, -1):
                if len(lines) > 2 and self.takes_statements(i, part, at, "\n".join(lines[:j] + lines[j + 1 :])):
                    break

    def replace_by_inputs(self) -> None:
        """New inputs instead of computed tensors, of the same sizes and dtype."""
        for i, part, at, statement in self.positions():
            match = re.fullmatch(r"(\w+) = (.+)", statement)
            if match and "fill(" not in match[2]:
                found = shapes_of(self.program.threads[i]).get(statement, {}).get(match[1])
                if found:
                    shape, dtype, grad = found
                    code = f"{match[1]} = fill(1, {shape}, {dtype}).to(dev)" + ".requires_grad_()" * grad
                    self.takes_statements(i, part, at, code)

    def simplify(self) -> None:
        """Plainer code: ordinary values, float32, no keyword arguments, operands instead of results."""
        for pattern, plain in PLAINER:
            for i, part, at, statement in self.positions():
                self.takes_statements(i, part, at, re.sub(pattern, plain, statement))

    def resize(self) -> None:
        """Smaller inputs: a number in all sizes at once, then one input alone."""
        code = [s for t in self.program.threads for s in (*t.setup, *t.body)]
        numbers = {int(n) for s in code for m in FILL.finditer(s) for n in re.findall(r"\d+", m[2])}
        for n in sorted(numbers, reverse=True):
            for smaller in sorted({1, 2, 3, n // 2}):
                if smaller < n:
                    threads = tuple(resized(t, n, smaller) for t in self.program.threads)
                    if self.takes(replace(self.program, threads=threads)):
                        break
        for i, part, at, statement in self.positions():
            for m in FILL.finditer(statement):
                for shape in ("()", "(3,)", re.sub(r"\b\d+\b", "2", m[2]), re.sub(r"\d+, ", "", m[2], count=1)):
                    smaller = statement.replace(m[2], shape, 1)
                    if len(shape) <= len(m[2]) and self.takes_statements(i, part, at, smaller):
                        break


#: What plainer code is tried.
PLAINER = (
    (r", wild=True", ""),
    (r"torch\.(float64|bfloat16|float16|int64|int32|uint8|bool)\b", "torch.float32"),
    (r"n = \(.*", "n = 3"),
    (r", \w+=(True|False|[\d.]+)\)", ")"),
    (r"\((2, 0\.5, True)\)\[k % 3\]", "2"),
    (r"\bk\b", "2"),
    (r" = (\w+)\.\w+\(\)$", r" = \1"),
    (r" = \S+\((\w+)\)$", r" = \1"),
    (r" = \S+\((\w+), (\w+)\)$", r" = \1 + \2"),
    (r"^(\w+) = .*\b([tp]\d+)\b.*$", r"\1 = \2"),
    (r"^(\w+) = .*?\b([tp]\d+)\b.*$", r"\1 = \2"),
)


# ---- help ----------------------------------------------------------------------------------------------------------


def made(statement: str) -> list[str]:
    """The variables that a statement makes."""
    match = re.match(r"((?:\w+, )*\w+) = ", statement)
    return match[1].split(", ") if match else []


def resized(thread: Thread, n: int, smaller: int) -> Thread:
    def change(statement: str) -> str:
        return FILL.sub(lambda m: m[0].replace(m[2], re.sub(rf"\b{n}\b", str(smaller), m[2]), 1), statement)

    return replace(thread, setup=tuple(map(change, thread.setup)), body=tuple(map(change, thread.body)))


def shapes_of(thread: Thread) -> dict[str, dict[str, tuple]]:
    """statement -> {variable: (shape, dtype, whether it needs a gradient)} after its first run, on the CPU."""
    scope = {**namespace(), "dev": "cpu", "reads": [], "kept": [], "k": 0}
    found: dict[str, dict[str, tuple]] = {}
    for statement in (*thread.setup, *thread.body):
        try:
            exec(statement, scope)
        except Exception:
            continue
        names = [n for n in made(statement) if isinstance(scope.get(n), torch.Tensor)]
        found[statement] = {n: (tuple(scope[n].shape), scope[n].dtype, scope[n].requires_grad) for n in names}
    return found
