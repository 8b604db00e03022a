"""Random windows: ops over a few small tensors and views of them, for properties that hold for every trace."""

from __future__ import annotations

import hypothesis.strategies as st
from row_calls import batch_norm, group_norm, layer_norm, softmax, softmax_backward
from traces import Tensor, TraceBuilder

SHAPES = ((), (2,), (3,), (3, 2), (3, 3), (1, 3), (3, 1), (2, 1, 3), (2, 3, 2))


def fits(x: Tensor, sizes: tuple[int, ...]) -> bool:
    """Whether a tensor broadcasts to these sizes."""
    own = (1,) * (len(sizes) - len(x.sizes)) + x.sizes
    return len(own) == len(sizes) and all(a in (1, b) for a, b in zip(own, sizes, strict=True))


def may_write(out: Tensor, *reads: Tensor) -> bool:
    """Whether torch lets an op write `out` while it reads the others: no element twice, no partial overlap."""
    places = out.places()
    return len(set(places)) == len(places) and all(
        x == out or x.storage != out.storage or not set(x.places()) & set(places) for x in reads
    )


@st.composite
def windows(draw: st.DrawFn) -> tuple[TraceBuilder, list[Tensor]]:
    """A window of random ops over a few small tensors and views of them, and the tensors still held at its end."""
    t = TraceBuilder()
    pool = [t.input("f32", shape) for shape in draw(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=4))]
    for kind in draw(st.lists(st.sampled_from(_RANDOM_OPS), min_size=1, max_size=12)):
        x, y = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        made = None
        if kind == "view":
            made = _random_view(draw, x)
        elif kind == "fill":
            made = t.map("fill", draw(st.integers(0, 9)), shape=draw(st.sampled_from(SHAPES)))
        elif kind == "host":
            made = t.host("twice", x)
        elif kind == "arange" and may_write(x):
            made = t.map("arange", 1, 2, out=x)
        elif kind == "tril" and len(x.sizes) > 1:
            made = t.map("tril", x, draw(st.integers(-1, 1)))
        elif kind == "host in place" and may_write(x):
            t.host("draw", out=x)
        elif kind == "map":
            other = y if fits(y, x.sizes) else draw(st.integers(0, 9))
            made = t.map(draw(st.sampled_from(("add", "mul", "sub"))), x, other)
        elif kind == "in place" and fits(y, x.sizes) and may_write(x, y):
            t.map(draw(st.sampled_from(("add", "mul", "sub"))), x, y, out=x)
        elif kind == "overwrite" and fits(y, x.sizes) and may_write(x, y):
            t.map("copy", y, out=x)
        elif kind in ("reduce", "reduce out"):
            dims = draw(st.sets(st.integers(0, len(x.sizes) - 1))) if x.sizes else set()
            keepdim = draw(st.booleans())
            op = draw(st.sampled_from(("sum", "amax", "argmax") if len(dims) == 1 else ("sum", "amax")))
            if kind == "reduce":
                made = t.reduce(op, x, sorted(dims), keepdim)
            else:
                sizes = tuple(1 if d in dims else s for d, s in enumerate(x.sizes) if keepdim or d not in dims)
                if y.sizes == sizes and may_write(y, x):
                    t.reduce(op, x, sorted(dims), keepdim, out=y)
        elif kind == "gather" and x.sizes:
            made = _random_gather(draw, t, x, pool)
        elif kind == "row" and x.sizes:
            made = _random_row_program(draw, t, x, y)
        if made is not None:
            pool.append(made)
    return t, [x for x in pool if draw(st.booleans())]


_RANDOM_OPS = (
    "map", "map", "map", "in place", "in place", "overwrite", "reduce", "reduce", "reduce out", "view", "view", "fill",
    "host", "host in place", "arange", "tril", "row", "row", "gather", "gather",
)  # fmt: skip


def _random_gather(draw: st.DrawFn, t: TraceBuilder, x: Tensor, pool: list[Tensor]) -> Tensor | None:
    """Elements of `x` at the numbers that other tensors hold, whatever these are."""
    dims = draw(st.lists(st.integers(0, len(x.sizes) - 1), min_size=1, max_size=2, unique=True))
    sizes = tuple(draw(st.integers(1, 3)) if d in dims else s for d, s in enumerate(x.sizes))
    fitting = [y for y in pool if len(y.sizes) == len(sizes) and fits(y, sizes)]
    if not fitting:
        return None
    indices = [draw(st.sampled_from(fitting)) for _ in dims]
    given = [1 if d in dims else s for d, s in enumerate(x.sizes)]
    for d, n in enumerate(sizes):
        given[d] = max([given[d], *(y.sizes[d] for y in indices)])
        if d not in dims and given[d] != n:
            return None
    return t.gather(x, *zip(dims, indices, strict=True))


def _random_row_program(draw: st.DrawFn, t: TraceBuilder, x: Tensor, y: Tensor) -> Tensor | None:
    """A row program over `x`; `y` stands in where its shape fits."""
    dim = draw(st.integers(0, len(x.sizes) - 1))
    kind = draw(
        st.sampled_from(("softmax", "softmax out", "softmax backward", "layer norm", "batch norm", "group norm"))
    )
    if kind == "softmax":
        return softmax(t, x, dim, draw(st.sampled_from(("_softmax", "_log_softmax"))))
    if kind == "softmax out" and y.sizes == x.sizes and may_write(y, x):
        softmax(t, x, dim, out=y)
    elif kind == "softmax backward" and y.sizes == x.sizes:
        return softmax_backward(t, x, y, dim)
    elif kind == "layer norm":
        weight = y if y.sizes == x.sizes[dim:] else None
        return layer_norm(t, x, len(x.sizes) - dim, weight, eps=1, statistics=draw(st.booleans()))[0]
    elif kind == "batch norm" and len(x.sizes) > 1:
        mean = y if y.sizes == x.sizes[1:2] and may_write(y, x) else None
        training = mean is None or draw(st.booleans())
        return batch_norm(t, x, None, None, mean, mean if not training else None, training, eps=1)[0]
    elif kind == "group norm" and len(x.sizes) > 1:
        return group_norm(t, x, 1, eps=1, statistics=draw(st.booleans()))[0]
    return None


def _random_view(draw: st.DrawFn, x: Tensor) -> Tensor:
    if not x.sizes:
        return x.expand(3)
    how, dim = draw(st.sampled_from(("permute", "slice", "select", "expand"))), draw(st.integers(0, len(x.sizes) - 1))
    if how == "permute":
        return x.permute(*reversed(range(len(x.sizes))))
    if how == "slice":
        start = draw(st.integers(0, x.sizes[dim] - 1))
        return x.slice(dim, start, x.sizes[dim], draw(st.integers(1, 2)))
    if how == "select":
        return x.select(dim, draw(st.integers(0, x.sizes[dim] - 1)))
    return x.expand(*(3 if s == 1 else s for s in x.sizes))
