"""A thousand op sequences, none of which ever comes back: the cost of recording what cannot get hot.

Each sequence is 10 to 40 random pointwise, reduction and matrix ops on small tensors. A different thousand runs
beforehand, so that the kernel of each single op is there; each round is a new thousand. All contenders get the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.contender import Contender

TITLE = "1,000 sequences of 10 to 40 ops, each used once"
UNIT = ("ms", 1e3)
CONTENDERS = ("cpu-plain", "cpu-tuned", "neuron")
ROUNDS = 7
#: At most 1.15 times as long as the CPU.
TARGETS = {"1000": {"cpu": 1 / 1.15}}

SIZE = 16
INPUTS = 3

Step = tuple[str, tuple[int, ...]]  # op, values it reads; the inputs are values 0 to 2


def cases() -> list[str]:
    return list(TARGETS)


def prepare(case: str, contender: Contender) -> Callable[[int], float]:
    import torch

    functions, synchronize = operations(), contender.synchronizer()
    inputs = [torch.randn(SIZE, SIZE).to(contender.device) for _ in range(INPUTS)]
    endless = sequences(random.Random(0))

    def measure(index: int) -> float:
        # Drawn and looked up before the clock starts: what is timed is running them.
        programs = [
            [(functions[name][1], reads) for name, reads in next(endless)] for _ in range(int(case))
        ]  # fmt: skip
        start = time.perf_counter()
        for program in programs:
            run(program, inputs)
            synchronize()
        return time.perf_counter() - start

    measure(-1)
    return measure


def run(program: list[tuple[Callable[..., Any], tuple[int, ...]]], inputs: list[Any]) -> Any:
    """Runs one sequence and keeps only its last value, as a function body would."""
    values = list(inputs)
    for function, reads in program:
        values.append(function(*[values[read] for read in reads]))
    return values[-1]


def operations() -> dict[str, tuple[int, Callable[..., Any]]]:
    """name -> (number of tensor operands, function). Values are square matrices, rows or columns."""
    import torch
    import torch.nn.functional as F

    return {
        "add": (2, torch.add),
        "sub": (2, torch.sub),
        "mul": (2, torch.mul),
        "maximum": (2, torch.maximum),
        "minimum": (2, torch.minimum),
        "where": (2, lambda a, b: torch.where(a > b, a, b)),
        "lerp": (2, lambda a, b: torch.lerp(a, b, 0.25)),
        "scale": (1, lambda a: a * 0.5),
        "shift": (1, lambda a: a + 1),
        "neg": (1, torch.neg),
        "abs": (1, torch.abs),
        "tanh": (1, torch.tanh),
        "sigmoid": (1, torch.sigmoid),
        "relu": (1, torch.relu),
        "gelu": (1, F.gelu),
        "silu": (1, F.silu),
        "clamp": (1, lambda a: a.clamp(-2, 2)),
        "exp": (1, lambda a: torch.exp(-a.abs())),
        "row_sum": (1, lambda a: a.sum(dim=-1, keepdim=True)),
        "row_mean": (1, lambda a: a.mean(dim=-1, keepdim=True)),
        "row_max": (1, lambda a: a.amax(dim=-1, keepdim=True)),
        "column_sum": (1, lambda a: a.sum(dim=0, keepdim=True)),
        "matmul": (2, lambda a, b: torch.mm(a.expand(SIZE, SIZE), b.expand(SIZE, SIZE))),
    }


def sequences(randomness: random.Random) -> Iterator[list[Step]]:
    """Endless random sequences, no two of them the same."""
    arities = {name: arity for name, (arity, _) in operations().items()}
    names = sorted(arities)
    seen: set[tuple[Step, ...]] = set()
    while True:
        steps: list[Step] = []
        for made in range(randomness.randint(10, 40)):
            name = randomness.choice(names)
            # Mostly recent values, as real code reads them.
            known = INPUTS + made
            reads = tuple(
                max(0, known - 1 - int(randomness.expovariate(0.5))) if randomness.random() < 0.8
                else randomness.randrange(known)
                for _ in range(arities[name])
            )  # fmt: skip
            steps.append((name, reads))
        if tuple(steps) not in seen:
            seen.add(tuple(steps))
            yield steps


if __name__ == "__main__":
    from bench import harness

    harness.main("single_use")
