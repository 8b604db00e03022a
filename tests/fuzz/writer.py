"""Writes random programs. The same seed writes the same program.

The writer runs each statement on the CPU as it writes it, and keeps only what torch takes; so it knows every variable's
sizes and dtype, and a program has no statement that raises. Each program leaves out some groups of templates and
prefers others, so that programs differ from one another more than draws from one mixture would.
"""

from __future__ import annotations

import random
import re
import warnings
from dataclasses import replace

import torch
from program import Program, Thread, namespace
from templates import EXPRESSIONS, OPTIMIZERS, STATEMENTS

DTYPES = ("float32",) * 6 + ("float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool")
NUMBERS = ("2", "0.5", "-1.25", "3", "0", "k", "0.1 * k", "1 / (k + 1)", "-k", "(2, 0.5, True)[k % 3]", "1e-3")
DIMS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
#: Tunables and what they are drawn from.
LIMITS = {
    "max_ops": (2, 3, 5, 8, 13, 24, 50),
    "min_ops": (1, 2, 4, 8),
    "max_bytes": (1, 100, 1000, 20000),
    "hot_after": (1, 2, 3),
    "max_kernel_ops": (1, 2, 3, 5, 9),
    "max_kernel_accesses": (4, 6, 9),
    "parallel_grain": (1, 16, 300),
}
BIG = 20_000  # elements of the largest tensor
TAME = 1e4  # larger numbers are not for the CPU's tolerances

KINDS = {
    "x": lambda t: True,
    "f": lambda t: t.is_floating_point(),
    "i": lambda t: not t.is_floating_point() and t.dtype != torch.bool,
    "b": lambda t: t.dtype == torch.bool,
    "g": lambda t: t.requires_grad,
    "leaf": lambda t: t.requires_grad and t.is_leaf,
}
HOLE = re.compile(r"\{([^{}]*)\}")


class Unfit(Exception):
    """There is no tensor for a template."""


class ThreadWriter:
    """Writes one thread."""

    def __init__(self, draw: random.Random, several: bool) -> None:
        self.random = draw
        self.scope = {**namespace(), "dev": "cpu", "reads": [], "kept": [], "k": 0}
        self.setup: list[str] = []
        self.body: list[str] = []
        self.count = 0
        self.wild = draw.random() < 0.2
        groups = {**EXPRESSIONS, **STATEMENTS}
        if several:  # threads draw from one generator in an order of their own
            groups = {g: v for g, v in groups.items() if "random" not in g}
        weights = {g: w * draw.choice((0, 0.3, 1, 1, 1, 3)) for g, (w, _) in groups.items()}
        weights["input"] = max(weights["input"], 1)
        self.groups, self.weights = list(weights), list(weights.values())
        self.templates = {g: t for g, (_, t) in groups.items()}
        dims = [draw.choice(DIMS) for _ in range(3)]
        self.sizes = [str(d) for d in dims] + ["1"]
        self.dtypes = draw.choices(DTYPES, k=draw.choice((1, 2, 4, 8)))
        if draw.random() < 0.4:
            self.dtypes = ["float32"]
        self.changing = f"n = ({', '.join(str(draw.choice(DIMS)) for _ in range(3))})[k % 3]"

    # -- drawing -----------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, torch.Tensor]:
        return {n: v for n, v in self.scope.items() if isinstance(v, torch.Tensor) and not spoilt(v)}

    def pick(self, fits: object) -> str:
        names = [n for n, t in self.tensors().items() if fits(t)]
        if not names:
            raise Unfit
        return self.random.choice(names[-5:] if self.random.random() < 0.6 else names)

    def new(self) -> str:
        if self.count > 6 and self.random.random() < 0.25:
            names = [n for n, t in self.tensors().items() if re.fullmatch(r"t\d+", n)]
            if names:
                return self.random.choice(names)
        self.count += 1
        return f"t{self.count - 1}"

    def fill(self, template: str) -> str:
        """The template as code."""
        r, bound, first = self.random, {}, []

        def tensor() -> torch.Tensor:
            if not first:
                raise Unfit
            return self.scope[first[0]]

        def broadcasts(t: torch.Tensor) -> bool:
            try:
                torch.broadcast_shapes(t.shape, tensor().shape)
            except RuntimeError:
                return False
            return True

        def hole(match: re.Match) -> str:
            key = match[1]
            if key in bound:
                return bound[key]
            if key in KINDS:
                bound[key] = self.pick(KINDS[key])
                first.append(bound[key])
                return bound[key]
            if key in ("y", "fy", "iy"):
                return self.pick(lambda t: KINDS[key[:-1] or "x"](t) and broadcasts(t))
            if key == "same":
                like = tensor()
                return self.pick(lambda t: t.shape == like.shape and t.dtype == like.dtype)
            if key == "d":
                bound["d"] = str(r.randrange(-tensor().dim(), max(tensor().dim(), 1)))
                return bound["d"]
            if key == "f2":
                bound[key] = self.new()
                return bound[key]
            if key in ("weight", "channels"):
                if tensor().dim() < 2:
                    raise Unfit
                d = -1 if key == "weight" else 1
                like = tensor()
                fits = [n for n, t in self.tensors().items() if t.shape == like.shape[d:][:1] and t.dtype == like.dtype]
                return r.choice(fits or [f"fill({r.randrange(99)}, ({first[0]}.size({d}),), {first[0]}.dtype).to(dev)"])
            simple = {
                "e": lambda: str(r.randrange(-tensor().dim(), max(tensor().dim(), 1))),
                "s": lambda: r.choice(NUMBERS),
                "m": lambda: r.choice("1233"),
                "q": lambda: r.choice(("True", "False")),
                "seed": lambda: str(r.randrange(100)),
                "dt": lambda: "torch." + r.choice(self.dtypes if r.random() < 0.7 else DTYPES),
                "shape": self.shape,
                "wild": lambda: ", wild=True" if self.wild else "",
                "new": self.new,
                "loss": lambda: r.choice(("", ", reduction='sum'", ", reduction='none'")),
                "classes": lambda: (
                    f"index({r.randrange(99)}, ({first[0]}.size(0), *{first[0]}.shape[2:]), {first[0]}.size(1)).to(dev)"
                ),
                "matrix": lambda: (
                    f"fill({r.randrange(99)}, ({r.choice('348')}, {first[0]}.size(-1)), {first[0]}.dtype).to(dev)"
                ),
            }
            if key in simple:
                return simple[key]()
            return r.choice(key.split("|"))

        return HOLE.sub(hole, template)

    def shape(self) -> str:
        r = self.random
        n = r.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 4))
        sizes = self.sizes + (["n"] * 2 if "n" in self.scope else [])
        dims = [r.choice(sizes) if r.random() < 0.97 else "0" for _ in range(n)]
        return f"({', '.join(dims)}{',' if n == 1 else ''})"

    # -- trying ------------------------------------------------------------------------------------------------------

    def takes(self, statement: str) -> bool:
        """Runs a statement on the CPU; what it did is undone if torch or the writer does not want it."""
        before = {n: (v, v.detach().clone()) for n, v in self.tensors().items()}
        scope, lengths = dict(self.scope), {n: len(self.scope[n]) for n in ("reads", "kept")}
        try:
            exec(statement, self.scope)
            if all(self.fit(v) for v in self.scope.values() if isinstance(v, torch.Tensor)):
                return True
        except Exception:
            pass
        self.scope.clear()
        self.scope.update(scope)
        for name, length in lengths.items():
            del self.scope[name][length:]
        for value, old in before.values():
            if value.shape == old.shape and value.dtype == old.dtype:
                value.data.copy_(old) if 0 not in value.stride() and not value._is_zerotensor() else None
        return False

    def fit(self, t: torch.Tensor) -> bool:
        """Whether a tensor is not too large, and, in a tame program, its numbers are not."""
        if t.numel() > BIG or t.dim() > 5 or t.is_sparse or t.is_complex() or spoilt(t):
            return False
        if self.wild or not t.is_floating_point() or not t.numel():
            return True
        return bool((t.detach().abs() < TAME).all())

    def write(self, into: list[str]) -> None:
        """Adds one statement."""
        for _ in range(40):
            group = self.random.choices(self.groups, self.weights)[0]
            template = self.random.choice(self.templates[group])
            try:
                code = self.fill(template)
            except Unfit:
                continue
            if group in EXPRESSIONS and "{new}" not in template:
                code = f"{self.new()} = {code}"
            elif group in ("in place", "out", "foreach") and self.random.random() < 0.15:
                code = "with torch.no_grad():\n    " + code
            if self.takes(code):
                into.append(code)
                return

    # -- a thread ----------------------------------------------------------------------------------------------------

    def thread(self, statements: int, rounds: int) -> Thread:
        r = self.random
        optimizer = None
        if r.random() < 0.3:
            optimizer = self.parameters()
        for _ in range(r.randrange(1, 5)):
            self.add(self.setup, f"{self.new()} = {self.fill('fill({seed}, {shape}, {dt}{wild}).to(dev)')}")
        if r.random() < 0.4:
            self.add(self.body, self.changing)
        elif r.random() < 0.5:
            self.add(self.body, f"{self.new()} = {self.fill('fill(k, {shape}, {dt}{wild}).to(dev)')}")
        at = r.randrange(statements)
        for i in range(statements):
            self.write(self.body)
            if optimizer and i == at:
                self.step(optimizer)
        return Thread(tuple(self.setup), tuple(self.body), rounds)

    def add(self, into: list[str], code: str) -> bool:
        if self.takes(code):
            into.append(code)
            return True
        return False

    def parameters(self) -> tuple[str, list[str]] | None:
        """Parameters and their optimizer, and a loss that uses them all."""
        r = self.random
        names = [f"p{i}" for i in range(r.randrange(1, 5))]
        shapes = ["(4, 4)", "(4,)", "(3, 4)", "(4, 1, 4)", "()", "(1,)", "(33, 4)"]
        for i, name in enumerate(names):
            dtype = "torch." + r.choice(("float32",) * 5 + ("float64", "bfloat16"))
            self.add(self.setup, f"{name} = fill({i}, {r.choice(shapes)}, {dtype}).to(dev).requires_grad_()")
        source = (
            r.choice(OPTIMIZERS).replace("{p}", f"[{', '.join(names)}]").replace("{q}", r.choice(("True", "False")))
        )
        self.add(self.setup, f"opt = {source}")
        return ("opt", names) if "opt" in self.scope else None

    def step(self, optimizer: tuple[str, list[str]]) -> None:
        r = self.random
        _, names = optimizer
        terms = [r.choice((f"({n} * {n}).sum()", f"{n}.tanh().mean()", f"({n} - 1).abs().sum()")) for n in names]
        if r.random() < 0.3 and len(terms) > 1:
            terms.pop()  # a parameter without a gradient
        self.add(self.body, f"loss = {' + '.join(f'{t}.float()' for t in terms)}")
        self.add(self.body, "loss.backward()")
        if r.random() < 0.3:
            self.add(self.body, f"torch.nn.utils.clip_grad_norm_([{', '.join(names)}], 0.5)")
        if r.random() < 0.3:
            self.add(self.body, "opt.param_groups[0]['lr'] = 0.1 / (k + 1)")
        self.add(self.body, "opt.step()")
        if r.random() < 0.7:
            self.add(self.body, f"opt.zero_grad(set_to_none={r.choice(('True', 'False'))})")
        if r.random() < 0.5:
            self.add(self.body, "reads.append(loss.item())")


def spoilt(t: torch.Tensor) -> bool:
    """Whether autograd refuses to look at a tensor: one of several views whose base was changed."""
    try:
        return t.is_leaf and not t.is_leaf
    except RuntimeError:
        return True


def refused(thread: Thread) -> list[str]:
    """The statements that raise on the CPU in any round."""
    scope = {**namespace(), "dev": "cpu", "reads": [], "kept": []}
    found = []
    for statement in (*thread.setup, *(s for k in range(thread.rounds) for s in (f"k = {k}", *thread.body))):
        try:
            exec(statement, scope)
        except Exception:
            found.append(statement)
        if any(isinstance(v, torch.Tensor) and (v.numel() > 8 * BIG or spoilt(v)) for v in scope.values()):
            found.append(statement)
            break
    return found


def without_refused(thread: Thread) -> Thread:
    """The thread without what the CPU refuses, in all rounds."""
    while bad := refused(thread):
        thread = replace(
            thread,
            setup=tuple(s for s in thread.setup if s not in bad),
            body=tuple(s for s in thread.body if s not in bad),
        )
    return thread


def write(seed: int) -> Program:
    """The program of a seed."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    n = draw.choice((1, 1, 1, 1, 1, 2, 2, 3))
    threads = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message=".*on expanded tensors is deprecated")
        for _ in range(n):
            writer = ThreadWriter(draw, n > 1)
            statements = draw.choice((5, 10, 20, 30, 40)) // n
            threads.append(without_refused(writer.thread(max(statements, 3), draw.choice((1, 2, 3, 3, 4, 5)))))
        often = draw.choice((0.1, 0.3, 0.6))  # small limits cut windows short
        limits = {name: draw.choice(choices) for name, choices in LIMITS.items() if draw.random() < often}
        if draw.random() < 0.1:
            limits["background"] = "on"
    return Program(tuple(threads), limits, draw.choice((1, 2)))
