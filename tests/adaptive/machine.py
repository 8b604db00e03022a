"""A machine for traces: memory of whole numbers, and every way to run a window over it.

Ops are stood for by functions on whole numbers modulo a prime, in which no order of a sum can be seen: what is left is
which value is read from where, and when.
"""

from __future__ import annotations

import itertools
from math import prod
from random import Random
from typing import Any

from traces import Tensor, TraceBuilder, strides_of

from adaptive_eager.assemble import LaunchRecipe
from adaptive_eager.design import design
from adaptive_eager.expansion import expand
from adaptive_eager.trace import FIRST_TEMPORARY, Node, Scalar, Trace

PRIME = 10007

#: Memory of a kernel's accesses, by number, that nobody else sees.
Scratch = dict[int, list[int]]


def scalar_op(op, args):
    """An op on whole numbers. Those without a meaning there are functions that tell their arguments apart."""
    if op in ("copy", "fill"):
        return args[0]
    if op == "arange":
        index, start, step = args
        return (start + step * index) % PRIME
    if op == "tril":
        line, column, x, diagonal = args
        return x if column - line <= diagonal else 0
    if len(args) == 1:
        (a,) = args
        return (a * a + 3 * a + sum(op.encode())) % PRIME
    if op == "lerp":
        start, end, weight = args
        return (start + weight * (end - start)) % PRIME
    a, b = args
    return {"add": a + b, "sub": a - b, "mul": a * b, "div": 31 * a + 7 * b}[op] % PRIME


def place_in_table(steps, indices):
    """Elements from the start of a table. `steps`: stride and size of each index; any number is an index here."""
    return sum(stride * (i % size) for i, stride, size in zip(indices, steps[::2], steps[1::2], strict=True))


def reduced(kind, values):
    if kind == "argmax":
        return values.index(max(values))
    return max(values) if kind == "amax" else sum(values) % PRIME


class Machine:
    """Memory of a window: storages of its tensors, then of the plan's temporaries, which hold nothing of use at first.

    `backwards` takes the kept points of a kernel from the last to the first, as a second thread might.
    """

    def __init__(self, t: TraceBuilder, trace: Trace, backwards: bool = False):
        self.t = t
        self.memory = [[(7 * k + 31 * s) % 97 for k in range(n)] for s, n in enumerate(t.sizes)]
        self.backwards = backwards
        self.temporaries = []
        for k, temporary in enumerate(trace.temporaries):
            like = t.operands[temporary.like].sizes
            sizes = tuple(s if temporary.keep >> d & 1 else 1 for d, s in enumerate(like))
            self.temporaries.append(Tensor(len(t.sizes) + k, sizes, strides_of(sizes), temporary.dtype))
            self.memory.append([-1000 - k] * prod(sizes))

    def tensor(self, operand: int) -> Tensor:
        if operand >= FIRST_TEMPORARY:
            return self.temporaries[operand - FIRST_TEMPORARY]
        return self.t.operands[operand]

    def scalar(self, scalar: Scalar):
        if not scalar.dims:
            return self.t.scalars[scalar.number]
        return prod(s for d, s in enumerate(self.tensor(scalar.number).sizes) if scalar.dims >> d & 1)

    def read(self, x: Tensor, sizes=None):
        return [self.memory[x.storage][p] for p in (x.expand(*sizes) if sizes else x).places()]

    # -- op by op ------------------------------------------------------------------------------------------------------

    def run_node(self, node: Node) -> None:
        """One op, whole tensors at once."""
        out = self.tensor(node.outputs[0].operand)
        ins = [self.tensor(o.operand) for o in node.inputs]
        if node.kind == "reduction":
            values = self.reduce(node, ins[0])
        elif node.is_gather:
            table, indices = ins[0], [self.read(x, out.sizes) for x in ins[1:]]
            steps = [self.scalar(s) for s in node.scalars]
            columns = [[place_in_table(steps, at) for at in zip(*indices, strict=True)], table.places()]
            values = [self.memory[table.storage][a + b] for a, b in zip(*columns, strict=True)]
        elif node.op == "draw":
            values = [(v + 1000 * (node.recorded + 1)) % PRIME for v in self.read(out)]
        elif node.op == "twice":
            values = [2 * v % PRIME for v in self.read(ins[0])]
        else:
            columns = [self.read(x, out.sizes) for x in ins]
            places = list(itertools.product(*map(range, out.sizes)))
            if node.op == "arange":
                columns.insert(0, list(range(len(places))))
            if node.op == "tril":
                columns[:0] = [[p[-2] for p in places], [p[-1] for p in places]]
            columns += [[self.scalar(s)] * prod(out.sizes) for s in node.scalars]
            values = [scalar_op(node.op, args) for args in zip(*columns, strict=True)]
        for place, value in zip(out.places(), values, strict=True):
            self.memory[out.storage][place] = value

    def reduce(self, node: Node, x: Tensor):
        mask = int(node.attrs[0])
        kept = [d for d in range(len(x.sizes)) if not mask >> d & 1]
        values: dict = {}
        for place, index in zip(x.places(), itertools.product(*map(range, x.sizes)), strict=True):
            values.setdefault(tuple(index[d] for d in kept), []).append(self.memory[x.storage][place])
        results = [reduced(node.op, values[key]) for key in sorted(values)]
        if node.op == "mean":
            return [scalar_op("div", (r, self.scalar(node.scalars[0]))) for r in results]
        return results

    # -- kernels -------------------------------------------------------------------------------------------------------

    def sizes(self, recipe: LaunchRecipe) -> list[int]:
        shape = self.tensor(recipe.iteration).sizes
        return [prod(shape[d] for d in loop) for loop in recipe.loop_dims]

    def items(self, recipe: LaunchRecipe) -> int:
        """Kept points of a kernel, in the order of its loops."""
        return prod(n for n, kind in zip(self.sizes(recipe), recipe.kernel.dims, strict=True) if kind == "k")

    def run_kernel(self, recipe: LaunchRecipe, items: range | None = None, scratch: Scratch | None = None) -> None:
        """One kernel, or some of its items, point by point; every store is seen by the points after it. Accesses of
        `scratch` go to memory of its own."""
        kernel = recipe.kernel
        sizes = self.sizes(recipe)
        everything = (*kernel.program, *kernel.epilogue)

        def place(access, index):
            operand, dims = recipe.accesses[access]
            x, letters = self.tensor(operand), kernel.accesses[access].moves
            at = x.offset
            for i, d, letter, size in zip(index, dims, letters, sizes, strict=True):
                assert (letter == "0") == (d < 0) or size == 1
                assert letter != "c" or d < 0 or size == 1 or x.strides[d] == 1
                at += i * x.strides[d] if d >= 0 else 0
            if scratch and access in scratch:
                return scratch[access], at
            return self.memory[x.storage], at

        def evaluate(values, numbers, index):
            for number in numbers:
                i = everything[number]
                if i.op == "load":
                    memory, at = place(i.attrs[0], index)
                    values[number] = memory[at]
                elif i.op == "gather":
                    memory, at = place(i.attrs[0], index)
                    steps = [values[a] for k, a in enumerate(i.args) if k % 3]
                    values[number] = memory[at + place_in_table(steps, [values[a] for a in i.args[::3]])]
                elif i.op == "scalar":
                    values[number] = self.scalar(recipe.scalars[i.attrs[0]])
                elif i.op == "index":
                    values[number] = 0
                    for d in i.attrs:
                        values[number] = values[number] * sizes[d] + index[d]
                elif i.op == "reduce":
                    values.setdefault(number, []).append(values[i.args[0]])
                else:
                    values[number] = scalar_op(i.op, [values[a] for a in i.args])

        def store(stores, values, index):
            for s in stores:
                memory, at = place(s.access, index)
                memory[at] = values[s.value]

        kept = [range(n) if kind == "k" else range(1) for n, kind in zip(sizes, kernel.dims, strict=True)]
        inner = [range(1) if kind == "k" else range(n) for n, kind in zip(sizes, kernel.dims, strict=True)]
        points = list(itertools.product(*kept))
        if items is not None:
            points = points[items.start : items.stop]
        for point in reversed(points) if self.backwards else points:
            values: dict = {}
            for step in itertools.product(*inner):
                index = [a + b for a, b in zip(point, step, strict=True)]
                evaluate(values, range(len(kernel.program)), index)
                store(kernel.stores, values, index)
            if kernel.is_reduction:
                for number, i in enumerate(kernel.program):
                    if i.op == "reduce":
                        values[number] = reduced(i.attrs[0], values[number])
                evaluate(values, range(len(kernel.program), len(everything)), point)
                store(kernel.final_stores, values, point)

    # -- strips --------------------------------------------------------------------------------------------------------

    def run_strip(self, strip: Any, random: Random) -> None:
        """Kernels of a strip, a few rows at a time: blocks of rows in any order, each as far as it happens to get and
        with scratch memory of its own, as on many threads (native/torch/strip.cpp)."""
        recipes = strip.recipes
        if len(recipes) == 1:
            return self.run_kernel(recipes[0])
        counts = [self.items(r) for r in recipes]
        (rows,) = {n for n, r in zip(counts, recipes, strict=True) if r.kind == "inner"}
        assert all(r.kind in ("map", "inner") for r in recipes)
        assert all(n == 0 if rows == 0 else n % rows == 0 for n in counts), "a kernel of a strip without whole rows"
        blocks, at = [], 0
        while at < rows:
            end = min(rows, at + random.randint(1, max(1, rows // 2)))
            blocks.append((range(at, end), self._scratch(strip), iter(enumerate(zip(recipes, counts, strict=True)))))
            at = end
        while blocks:
            block = blocks[random.randrange(len(blocks))]
            items, scratch, left = block
            k, (recipe, n) = next(left, (-1, (None, 0)))
            if recipe is None:
                blocks.remove(block)
            else:
                self.run_kernel(recipe, range(items.start * n // rows, items.stop * n // rows), scratch[k])

    def _scratch(self, strip: Any) -> list[Scratch]:
        """Scratch of each kernel of a strip, with nothing of use in it."""
        found: list[Scratch] = [{} for _ in strip.recipes]
        shared: dict[int, list[int]] = {}
        for launch, access, number in strip.scratch:
            x = self.tensor(strip.recipes[launch].accesses[access][0])
            found[launch][access] = shared.setdefault(number, [-5000] * len(self.memory[x.storage]))
        return found


def in_some_order(steps: list[Any], random: Random) -> list[Any]:
    """Steps as they may run: those of a batch in any order."""
    ordered, at = [], 0
    while at < len(steps):
        batch = steps[at : at + (1 if isinstance(steps[at], int) else steps[at].batch)]
        ordered += random.sample(batch, len(batch))
        at += len(batch)
    return ordered


def run_both(t: TraceBuilder, live, random: Random | None = None, backwards: bool = False):
    """(memory after the ops one by one, memory after the plan): storages that can still be seen."""
    recorded = t.build(live)
    trace = expand(recorded)
    one_by_one, by_plan = Machine(t, trace), Machine(t, trace, backwards)
    for node in trace.nodes:
        one_by_one.run_node(node)
    random = random or Random(0)
    for step in in_some_order(design(recorded).steps, random):
        if isinstance(step, int):
            by_plan.run_node(recorded.nodes[step])
        else:
            by_plan.run_strip(step, random)
    seen = {x.storage for x in live} | {s for s, before in enumerate(t.from_before) if before}
    return [{s: m.memory[s] for s in sorted(seen)} for m in (one_by_one, by_plan)]
