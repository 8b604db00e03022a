"""Random programs: plain torch, written as source, so that a failing one can be printed and run by hand."""

import random

UNARY = ("neg", "abs", "tanh", "sigmoid", "relu", "exp", "sin", "sqrt", "floor", "sign", "reciprocal", "isnan")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "atan2")
COMPARE = ("lt", "ge", "eq", "ne")
REDUCE = ("sum", "mean", "amax", "amin", "prod")
IN_PLACE = ("add_", "mul_", "sub_", "clamp_min_")
VIEWS = ("[..., 1:]", "[..., ::2]", ".t()", ".reshape(-1)", ".unsqueeze(0)", ".transpose(0, -1)", ".flip(0)")
DTYPES = ("float32", "float32", "float32", "bfloat16", "float64", "float16", "int64", "int32")
SHAPES = ((7,), (4, 5), (5, 4), (1, 5), (4, 1), (3, 4, 5), (2, 1, 5), (33,), (0, 5), (2, 70))


class Writer:
    """Writes one program: a list of statements over tensors t0, t1, ... of known shape kind."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.count = 0
        self.names = []

    def new(self, expression):
        name = f"t{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {expression}")
        self.names.append(name)
        return name

    def any(self):
        recent = self.names[-6:]
        return self.random.choice(recent if self.random.random() < 0.7 else self.names)

    def scalar(self):
        return self.random.choice(("0.5", "2", "-1.25", "3", "k", "0.1 * k"))

    def statement(self):
        r, draw = self.random, self.random.random()
        x, y = self.any(), self.any()
        if draw < 0.22:
            self.new(f"torch.{r.choice(UNARY)}({x})")
        elif draw < 0.40:
            self.new(f"torch.{r.choice(BINARY)}({x}, {y})")
        elif draw < 0.52:
            self.new(f"{x} {r.choice('+-*/')} {self.scalar()}")
        elif draw < 0.58:
            self.new(f"torch.where(torch.{r.choice(COMPARE)}({x}, {y}), {x}, {y})")
        elif draw < 0.68:
            dim = r.choice(("0", "-1", "-1"))
            self.new(f"{x}.{r.choice(REDUCE)}(dim={dim}, keepdim={r.choice((True, False))})")
        elif draw < 0.72:
            self.new(f"{x}.sum()")
        elif draw < 0.80:
            self.lines.append(f"{x}.{r.choice(IN_PLACE)}({self.scalar()})")
        elif draw < 0.84:
            self.lines.append(f"{x}.mul_({y})")
        elif draw < 0.90:
            self.new(f"{x}{r.choice(VIEWS)}")
        elif draw < 0.93:
            self.new(f"{x}.to(torch.{r.choice(DTYPES)})")
        elif draw < 0.95:
            self.new(f"torch.nn.functional.dropout({x}.float(), 0.3)")
        elif draw < 0.97:
            self.lines.append(f"reads.append(({x}.sum() > 0).item())")
        else:
            self.lines.append(f"del {x}")
            self.names.remove(x)
            if len(self.names) < 3:
                self.new("inputs[0] * 1")


def program(seed, statements=30):
    """Source of `run(inputs, k, reads)`, which returns every tensor that is left.

    A statement that raises is skipped, as it is in every mode alike.
    """
    w = Writer(seed)
    for i in range(3):
        w.new(f"inputs[{i}]")
    for _ in range(statements):
        w.statement()
    body = []
    for line in w.lines:
        body += ["    try:", f"        {line}"]
        body += ["    except (RuntimeError, IndexError, TypeError, NameError):", "        pass"]
    left = "    return {n: v for n, v in locals().items() if n[0] == 't'}"
    return "\n".join(["def run(inputs, k, reads):", *body, left])


def inputs_of(seed):
    """Three (shape, dtype, order) descriptions of input tensors."""
    r = random.Random(seed * 7 + 1)
    shape = r.choice(SHAPES)
    shapes = [shape, shape if r.random() < 0.6 else r.choice(SHAPES), shape]
    return [(s, r.choice(DTYPES), r.random() < 0.3) for s in shapes]
