"""Updates: the ops with which torch.optim changes all tensors of one parameter at once, as instructions.

A node of such an op stands for one parameter. Its args are the op's, in the order of the schema, lists by their
element; its outputs are the tensors it changes, in the same order. Formulas follow ATen/native/cpu/Fused*Kernel.cpp:
factors that the points share are computed in float64, once a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: emit(op, value numbers of the operands, dtype) -> value number
Emit = Callable[[str, tuple[int, ...], str], int]
#: update(emit, args, attrs, compute) -> value of each output
Update = Callable[[Emit, Sequence[int], Sequence[int | str], str], list[int]]


class _Body:
    """Emits instructions in the compute dtype, or in float64 for what is the same at every point."""

    def __init__(self, emit: Emit, compute: str):
        self._emit, self._compute = emit, compute

    def __call__(self, op: str, *operands: int) -> int:
        return self._emit(op, operands, self._compute)

    def uniform(self, op: str, *operands: int) -> int:
        return self._emit(op, operands, "f64")

    def gradient(self, grad: int, scale: int, maximize: bool) -> tuple[int, int]:
        """The gradient without the scale of a GradScaler, and the same as the step to take follows it."""
        if scale >= 0:
            grad = self("div", grad, scale)
        return grad, self("neg", grad) if maximize else grad

    def results(self, found_inf: int, changes: list[tuple[int, int]]) -> list[int]:
        """New values of (old, new) pairs: the old ones if a gradient was not finite. Absent tensors are left out."""
        present = [(old, new) for old, new in changes if old >= 0]
        return [self("where", found_inf, old, new) if found_inf >= 0 else new for old, new in present]


def _adam(decoupled: bool) -> Update:
    def update(emit: Emit, args: Sequence[int], attrs: Sequence[int | str], compute: str) -> list[int]:
        param, grad, average, square, peak, step, lr, beta1, beta2, decay, eps, scale, found_inf = args
        decays, _amsgrad, maximize = attrs
        b = _Body(emit, compute)
        unscaled, slope = b.gradient(grad, scale, bool(maximize))
        start = param
        if decays and decoupled:
            start = b("mul", param, b.uniform("complement", b.uniform("mul", lr, decay)))
        elif decays:
            slope = b("add", slope, param, decay)
        new_average = b("lerp", average, slope, b.uniform("complement", beta1))
        rest = b.uniform("complement", beta2)
        new_square = b("addcmul", b("mul", square, beta2), slope, slope, rest)
        new_peak = b("maximum", peak, new_square) if peak >= 0 else new_square
        correction = b.uniform("complement", b.uniform("pow", beta1, step))
        correction2 = b.uniform("complement", b.uniform("pow", beta2, step))
        spread = b("add", eps, b("sqrt", new_peak), b.uniform("rsqrt", correction2))
        new_param = b("addcdiv", start, new_average, spread, b.uniform("neg", b.uniform("div", lr, correction)))
        changes = [(param, new_param), (average, new_average), (square, new_square), (peak, new_peak)]
        if scale >= 0:
            changes.insert(1, (grad, unscaled))
        return b.results(found_inf, changes)

    return update


def _sgd(emit: Emit, args: Sequence[int], attrs: Sequence[int | str], compute: str) -> list[int]:
    param, grad, buffer, decay, momentum, lr, dampening, scale, found_inf = args
    decays, nesterov, maximize, first = attrs
    b = _Body(emit, compute)
    unscaled, slope = b.gradient(grad, scale, bool(maximize))
    if decays:
        slope = b("add", slope, param, decay)
    changes = [(grad, unscaled)] if scale >= 0 else []
    if buffer >= 0:
        new_buffer = slope
        if not first:
            new_buffer = b("add", b("mul", buffer, momentum), slope, b.uniform("complement", dampening))
        changes.append((buffer, new_buffer))
        slope = b("add", slope, new_buffer, momentum) if nesterov else new_buffer
    changes.insert(0, (param, b("sub", param, slope, lr)))
    return b.results(found_inf, changes)


def _adagrad(emit: Emit, args: Sequence[int], attrs: Sequence[int | str], compute: str) -> list[int]:
    param, grad, total, step, lr, lr_decay, decay, eps, scale, found_inf = args
    decays, maximize = attrs
    b = _Body(emit, compute)
    unscaled, slope = b.gradient(grad, scale, bool(maximize))
    if decays:
        slope = b("add", slope, param, decay)
    # lr / (1 + (step - 1) * lr_decay)
    slowing = b.uniform("complement", b.uniform("mul", b.uniform("complement", step), lr_decay))
    rate = b.uniform("div", lr, slowing)
    new_total = b("add", total, slope, slope)
    new_param = b("addcdiv", param, slope, b("add", b("sqrt", new_total), eps), b.uniform("neg", rate))
    changes = [(param, new_param), (total, new_total)]
    if scale >= 0:
        changes.insert(1, (grad, unscaled))
    return b.results(found_inf, changes)


UPDATES: dict[str, Update] = {
    "_fused_adam_": _adam(decoupled=False),
    "_fused_adamw_": _adam(decoupled=True),
    "_fused_sgd_": _sgd,
    "_fused_adagrad_": _adagrad,
}
