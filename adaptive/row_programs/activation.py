"""Activation: activation functions of more than one tensor, and gradients that are more than one tensor."""

from __future__ import annotations

from adaptive_eager.expansion import Parts
from adaptive_eager.row_programs.registry import row_program


@row_program("glu", "log_sigmoid_forward", "log_sigmoid_backward")
def _pointwise(p: Parts) -> None:
    """One result. Inputs of glu: the two halves."""
    (result,) = p.results(1)
    assert result is not None
    p.map({"log_sigmoid_forward": "log_sigmoid"}.get(p.op, p.op), *p.inputs, into=result)


@row_program("glu_backward")
def _glu_backward(p: Parts) -> None:
    """Gradients of the two halves, which are parts of one tensor. Inputs: the gradient and the halves."""
    first, second = p.results(2)
    p.map("glu_backward_first", p.input(0), p.input(2), into=first)
    p.map("glu_backward_second", *p.inputs, into=second, part=1)


@row_program("_prelu_kernel_backward")
def _prelu_backward(p: Parts) -> None:
    """Gradients of the input and, at each point, of the weight. Inputs: gradient, input, weight."""
    grad_x, grad_weight = p.results(2)
    if grad_x is not None:
        p.map("prelu_backward_input", *p.inputs, into=grad_x)
    if grad_weight is not None:
        p.map("prelu_backward_weight", p.input(0), p.input(1), into=grad_weight)
