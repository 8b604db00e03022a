"""Row programs in traces made by hand, recorded as the extension records them (native/torch/normalization.cpp)."""

from __future__ import annotations

from dataclasses import replace

from traces import Tensor, TraceBuilder, strides_of


def spread(x: Tensor | None, space: tuple[int, ...], dims: int) -> Tensor | None:
    """A tensor of some dims of a space (those of the mask), as one that broadcasts to it."""
    if x is None:
        return None
    own = iter(zip(x.sizes, x.strides, strict=True))
    pairs = [next(own) if dims >> d & 1 else (1, 1) for d in range(len(space))]
    return replace(x, sizes=tuple(s for s, _ in pairs), strides=tuple(s for _, s in pairs))


def split_channels(x: Tensor, groups: int) -> Tensor:
    """(N, C, ...) as (N, groups, C / groups, ...)."""
    each = x.sizes[1] // groups
    sizes = (x.sizes[0], groups, each, *x.sizes[2:])
    strides = (x.strides[0], x.strides[1] * each, x.strides[1], *x.strides[2:])
    return replace(x, sizes=sizes, strides=strides)


def _all(x: Tensor) -> int:
    return (1 << len(x.sizes)) - 1


def _made(t: TraceBuilder, sizes: tuple[int, ...], dtype: str, wanted: bool = True) -> Tensor | None:
    return t.result(sizes, dtype) if wanted else None


def softmax(t: TraceBuilder, x: Tensor, dim: int, op: str = "_softmax", out: Tensor | None = None) -> Tensor:
    """`_softmax` or `_log_softmax`."""
    out = out or t.result(x.sizes, x.dtype, x)
    t.row(op, [x], [out], attrs=[dim, 0])
    return out


def softmax_backward(t: TraceBuilder, grad: Tensor, y: Tensor, dim: int, op: str = "_softmax_backward_data") -> Tensor:
    out = t.result(grad.sizes, grad.dtype, grad)
    t.row(op, [grad, y], [out], attrs=[dim, 6])
    return out


def layer_norm(t, x, n_dims, weight=None, bias=None, eps=1e-5, statistics=True):
    """Over the last dims. Returns (y, mean, rstd); without `statistics` only y is asked for."""
    reduced = _all(x) & ~((1 << len(x.sizes) - n_dims) - 1)
    return _forward(t, "native_layer_norm", x, x, reduced, reduced, weight, bias, eps, statistics)


def group_norm(t, x, groups, weight=None, bias=None, eps=1e-5, statistics=True):
    space = split_channels(x, groups)
    if weight is not None:
        weight = replace(weight, sizes=space.sizes[1:3], strides=strides_of(space.sizes[1:3]))
    if bias is not None:
        bias = replace(bias, sizes=space.sizes[1:3], strides=strides_of(space.sizes[1:3]))
    return _forward(t, "native_group_norm", x, space, _all(space) & ~3, 6, weight, bias, eps, statistics, groups)


def _forward(t, op, x, space, reduced, parameters, weight, bias, eps, statistics, groups=0, rest=(), written=()):
    kept = _all(space) & ~reduced
    own = weight or bias
    dtype = own.dtype if own is not None else x.dtype
    y = t.result(x.sizes, x.dtype)
    kept_sizes = tuple(s for d, s in enumerate(space.sizes) if kept >> d & 1)
    mean, rstd = _made(t, kept_sizes, dtype, statistics), _made(t, kept_sizes, dtype, statistics)
    t.row(
        op,
        [space, *(spread(p, space.sizes, parameters) for p in (weight, bias)), *rest],
        [split_channels(y, groups) if groups else y, *(spread(s, space.sizes, kept) for s in (mean, rstd))],
        written=written,
        scalars=[eps, *((2, 3) if op == "native_batch_norm" else ())],
        attrs=[reduced],
    )
    return y, mean, rstd


def batch_norm(t, x, weight=None, bias=None, mean=None, variance=None, training=True, eps=1e-5):
    """Returns (y, mean, rstd); the statistics are None in evaluation. Momentum 2, and the sample's
    variance 3 times the batch's: whole numbers, for the machine."""
    given = [spread(s, x.sizes, 2) for s in (mean, variance)]
    if training:
        written = [s for s in given if s is not None]
        return _forward(
            t, "native_batch_norm", x, x, _all(x) & ~2, 2, weight, bias, eps, True, rest=given, written=written
        )
    y = t.result(x.sizes, x.dtype)
    inputs = [x, *(spread(p, x.sizes, 2) for p in (weight, bias)), *given]
    t.row("native_batch_norm", inputs, [y], scalars=[eps], attrs=[0])
    return y, None, None


def normalize_backward(t, op, grad, x, mean, rstd, weight, reduced, parameters, constant=False, wanted=(1, 1, 1)):
    """Gradients of x, weight and bias; None where not `wanted`. Tensors are as the op arranges them: all broadcast to
    `x`, whose dims the masks are of."""
    sizes = tuple(s if parameters >> d & 1 else 1 for d, s in enumerate(x.sizes))
    dtype = weight.dtype if weight is not None else x.dtype
    made = (
        _made(t, x.sizes, x.dtype, wanted[0]), _made(t, sizes, dtype, wanted[1]), _made(t, sizes, dtype, wanted[2])
    )  # fmt: skip
    attrs = [reduced, _all(x) & ~parameters, int(constant)]
    t.row(op, [grad, x, mean, rstd, weight], list(made), attrs=attrs)
    return made
