"""Row programs computed by torch on the CPU: each part of an expansion as the torch op of its name."""

from __future__ import annotations

import torch
from traces import Tensor, TraceBuilder

from adaptive_eager.expansion import expand
from adaptive_eager.trace import FIRST_TEMPORARY, Node, Trace

DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "bool": torch.bool,
    "i64": torch.int64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Window:
    """A window whose inputs are torch tensors."""

    def __init__(self) -> None:
        self.t = TraceBuilder()
        self._values: dict[int, torch.Tensor] = {}  # storage -> its elements

    def input(self, value: torch.Tensor | None) -> Tensor | None:
        """A tensor from before the window, with the values, sizes and strides of `value`."""
        if value is None:
            return None
        elements = value.untyped_storage().nbytes() // value.element_size()
        x = self.t.input(NAMES[value.dtype], (elements,))
        self._values[x.storage] = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).clone()
        return Tensor(x.storage, tuple(value.shape), value.stride(), x.dtype, value.storage_offset())

    def run(self) -> Trace:
        """Runs the parts of every op recorded, in order."""
        trace = expand(self.t.build())
        temporaries = []
        for temporary in trace.temporaries:
            like = self.t.operands[temporary.like].sizes
            sizes = tuple(s if temporary.keep >> d & 1 else 1 for d, s in enumerate(like))
            temporaries.append(torch.full(sizes, float("nan"), dtype=DTYPES[temporary.dtype]))

        def value_of(operand: int) -> torch.Tensor:
            if operand >= FIRST_TEMPORARY:
                return temporaries[operand - FIRST_TEMPORARY]
            return self.value(self.t.operands[operand])

        for node in trace.nodes:
            inputs = [value_of(o.operand) for o in node.inputs]
            scalars = [
                self.t.scalars[s.number] if not s.dims else points(value_of(s.number), s.dims) for s in node.scalars
            ]
            out = value_of(node.outputs[0].operand)
            result = part(node, inputs, scalars, out.shape)
            # A temporary has the shape that the plan says, and nothing is broadcast into it.
            assert result.shape == out.shape, (node, result.shape, out.shape)
            out.copy_(result)
        return trace

    def value(self, x: Tensor | None) -> torch.Tensor | None:
        if x is None:
            return None
        if x.storage not in self._values:
            self._values[x.storage] = torch.full((self.t.sizes[x.storage],), float("nan"), dtype=DTYPES[x.dtype])
        return self._values[x.storage].as_strided(x.sizes, x.strides, x.offset)


def points(x: torch.Tensor, dims: int) -> int:
    return torch.Size(n for d, n in enumerate(x.shape) if dims >> d & 1).numel()


def part(node: Node, inputs: list[torch.Tensor], scalars: list[float], shape: torch.Size) -> torch.Tensor:
    """One part: computed in its compute dtype, rounded to its result's."""
    inputs = [x.to(DTYPES[node.compute]) for x in inputs]
    if node.kind == "reduction":
        dims = [d for d in range(inputs[0].dim()) if int(node.attrs[0]) >> d & 1]
        if not dims:
            result = inputs[0].clone()
        elif node.op == "amax" and inputs[0].numel() == 0:  # torch refuses it
            sizes = [1 if d in dims else n for d, n in enumerate(inputs[0].shape)]
            result = torch.full(sizes, float("-inf"), dtype=inputs[0].dtype)
        elif node.op == "mean":
            assert scalars[0] == points(inputs[0], int(node.attrs[0]))
            result = inputs[0].sum(dims, keepdim=True) / scalars[0]
        else:
            result = getattr(torch, node.op)(inputs[0], dims, keepdim=True)
    else:
        operands, numbers = iter(inputs), iter(scalars)
        args = [next(operands) if a == "x" else a if isinstance(a, float) else next(numbers) for a in node.args]
        if node.op == "copy":
            (value,) = args
            constant = not isinstance(value, torch.Tensor)
            result = torch.full(shape, value, dtype=DTYPES[node.compute]) if constant else value.clone()
        elif node.op == "where":
            result = torch.where(args[0].bool(), *args[1:])
        elif node.op == "is_index":  # whether a point's index along a dim is the value
            dim = int(node.attrs[0])
            along = [-1 if d == dim % len(shape) else 1 for d in range(len(shape))]
            result = (torch.arange(shape[dim]).view(along) == args[0]).expand(shape)
        else:
            result = getattr(torch, node.op)(*args)
    return result.to(DTYPES[node.result])
