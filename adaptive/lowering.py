"""Lowering: a trace node as instructions of the loop IR.

Most nodes are one instruction of the same name; norms and means are a few, in the accumulator's dtype, rounded once. So
are an optimizer's updates, which have several results (adaptive/updates.py).
"""

from __future__ import annotations

from adaptive_eager.compiler.conversion import FLOATS
from adaptive_eager.compiler.loop_ir import Instr
from adaptive_eager.trace import Node
from adaptive_eager.updates import UPDATES

#: Kind of the `reduce` instruction of each reduction op; norms are below.
_REDUCE_KINDS = {
    "sum": "sum", "mean": "sum", "prod": "prod", "amax": "amax", "amin": "amin", "max": "amax", "min": "amin",
    "any": "any", "all": "all", "argmax": "argmax", "argmin": "argmin", "non_finite": "any", "nansum": "sum",
    "count_nonzero": "sum",
}  # fmt: skip

#: linalg_vector_norm by order: the instruction made of |x|, and how its values are reduced.
_NORM_KINDS = {"0": "sum", "1": "sum", "2": "sum", "inf": "amax", "-inf": "amin", "p": "sum"}

#: Ops whose values depend on where the point is: on its row-major index, or on the indices along its last two dims.
COUNTED = {
    "arange": "linear", "tril": "dims", "triu": "dims", "is_index": "dim", "one_hot": "dim",
    **dict.fromkeys(("bernoulli", "uniform_", "normal_", "log_normal_", "exponential_"), "linear"),
    **dict.fromkeys(("geometric_", "cauchy_", "random_"), "linear"),
}  # fmt: skip

REDUCTION_OPS = (*_REDUCE_KINDS, "linalg_vector_norm", "aminmax")


class Lowering:
    """The program and epilogue of one kernel under construction. `nodes[v]` is the trace node that value `v` is of."""

    def __init__(self) -> None:
        self.program: list[Instr] = []
        self.epilogue: list[Instr] = []
        self.nodes: list[int] = []
        self._in_epilogue = False
        self._same: dict[tuple[object, ...], int] = {}  # instruction -> value
        self._reduced: dict[int, list[int]] = {}  # node -> values of its reduce instructions
        self._results: dict[int, list[tuple[int, str]]] = {}  # node -> values of its results, and their dtypes
        self._scalar_of: dict[int, list[int]] = {}  # node -> kernel scalars

    # -- instructions ------------------------------------------------------------------------------------------------

    def _emit(
        self,
        node: int,
        op: str,
        args: tuple[int, ...],
        compute: str,
        dtype: str,
        attrs: tuple[int | str | bool, ...] = (),
    ) -> int:
        key = self._in_epilogue, op, args, compute, dtype, attrs
        if key in self._same:
            return self._same[key]
        value = self._same[key] = len(self.nodes)
        # The ordinal that a kernel reports after a data error is the value's own number: `nodes` leads back to the op.
        instr = Instr(op, args, compute, dtype, attrs, ordinal=value)
        (self.epilogue if self._in_epilogue else self.program).append(instr)
        self.nodes.append(node)
        return value

    def load(self, access: int, dtype: str, node: int) -> int:
        return self._emit(node, "load", (), dtype, dtype, (access,))

    def _scalar(self, number: int, kind: str, node: int) -> int:
        dtype = "f64" if kind == "f" else "i64"
        return self._emit(node, "scalar", (), dtype, dtype, (number, kind))

    # -- nodes -------------------------------------------------------------------------------------------------------

    def map(self, node: Node, operands: list[int], scalars: list[int], stored: list[str]) -> list[int]:
        """Values of a pointwise node's results, each as the dtype of the tensor it is stored in."""
        args: list[int] = []
        next_operand, next_scalar = iter(operands), iter(scalars)
        for kind in node.args:
            if kind == "x":
                args.append(next(next_operand))
            elif kind == "-":
                args.append(-1)
            elif isinstance(kind, float):
                args.append(self._emit(node.index, "constant", (), "f64", "f64", (kind.hex(),)))
            else:
                args.append(self._scalar(next(next_scalar), kind, node.index))
        op = node.op
        if op == "bernoulli" and len(args) == 4:  # a dropout's mask names what it masks, to share its kernel
            args = args[1:]
        if op in COUNTED:
            args = self._indices(node) + args
        if op in UPDATES:

            def emit(op: str, operands: tuple[int, ...], dtype: str) -> int:
                return self._emit(node.index, op, operands, dtype, dtype)

            values = UPDATES[op](emit, args, node.attrs, node.compute)
        else:
            attrs = () if op == "div" and node.attrs == ("none",) else node.attrs
            values = [self._emit(node.index, op, tuple(args), node.compute, node.result, attrs)]
        return [self._as(v, node.result, dtype, node.index) for v, dtype in zip(values, stored, strict=True)]

    def gather(self, node: Node, table: int, indices: list[int], scalars: list[int], stored: str) -> int:
        """Value of a gather from the access `table`, as the dtype of the tensor it is stored in."""
        args = []
        for k, index in enumerate(indices):
            args += [index, *(self._scalar(s, "i", node.index) for s in scalars[2 * k : 2 * k + 2])]
        value = self._emit(node.index, "gather", tuple(args), "i64", node.result, (table, node.attrs[0]))
        return self._as(value, node.result, stored, node.index)

    def _indices(self, node: Node) -> list[int]:
        """Values of the indices that an op takes first. Their attrs are dims of the space, counted from the last one
        (none: the row-major index), until the loops are known (assemble)."""
        if COUNTED[node.op] == "linear":
            return [self._emit(node.index, "index", (), "i64", "i64")]
        dims = (int(node.attrs[0]),) if COUNTED[node.op] == "dim" else (-2, -1)
        return [self._emit(node.index, "index", (), "i64", "i64", (d,)) for d in dims]

    def _as(self, value: int, dtype: str, stored: str, node: int) -> int:
        return value if dtype == stored else self._emit(node, "copy", (value,), stored, stored)

    # -- reductions --------------------------------------------------------------------------------------------------

    def begin_reduction(self, node: Node, value: int, scalars: list[int], one_point: bool = False) -> None:
        """The part of a reduction at each point. `one_point`: it reduces dims of size one alone."""
        self._scalar_of[node.index] = scalars
        c, i = node.compute, node.index

        def reduce(kind: str, value: int = value, compute: str = c, dtype: str = node.result) -> int:
            return self._emit(i, "reduce", (value,), compute, dtype, (kind,))

        if node.op == "linalg_vector_norm":
            order = self._norm_order(node, one_point)
            value = self._norm_term(node, value, order)
            plain = order in ("0", "1", "inf", "-inf")
            values = [reduce(_NORM_KINDS[order], value, dtype=node.result if plain else c)]
        elif node.op == "aminmax":
            values = [reduce("amin"), reduce("amax")]
        elif len(node.outputs) == 2:  # an extremum and where it is
            values = [reduce("arg" + node.op, dtype="i64")]
        elif node.op in ("argmax", "argmin"):
            values = [reduce(node.op, dtype="i64")]
        elif node.op == "non_finite":  # x - x is zero for every other number
            value = self._emit(i, "copy", (self._emit(i, "sub", (value, value), c, c),), "bool", "bool")
            values = [reduce("any", value, "bool")]
        elif node.op == "count_nonzero":
            values = [reduce("sum", self._emit(i, "copy", (value,), "bool", "bool"), "i64")]
        elif node.op == "nansum" and c in FLOATS:
            zero = self._emit(i, "constant", (), "f64", "f64", ((0.0).hex(),))
            is_nan = self._emit(i, "isnan", (value,), c, "bool")
            values = [reduce("sum", self._emit(i, "where", (is_nan, zero, value), c, c))]
        else:
            values = [reduce(_REDUCE_KINDS[node.op], dtype=c if node.op == "mean" else node.result)]
        self._reduced[i] = values

    @staticmethod
    def _norm_order(node: Node, one_point: bool) -> str:
        """The order of a norm. Of one point it is |x| whatever the order, without powers that overflow."""
        order = str(node.attrs[2])
        return "inf" if one_point and order in ("2", "p") else order

    def _norm_term(self, node: Node, value: int, order: str) -> int:
        """What a norm makes of a point before it is reduced."""
        c, i = node.compute, node.index
        if order == "0":
            return self._emit(i, "copy", (value,), "bool", "bool")
        if order == "2":
            value = self._emit(i, "copy", (value,), c, c)
            return self._emit(i, "mul", (value, value), c, c)
        value = self._emit(i, "abs", (value,), c, c)
        if order == "p":
            value = self._emit(i, "pow", (value, self._scalar(self._scalar_of[i][0], "f", i)), c, c)
        return value

    def begin_epilogue(self) -> None:
        self._in_epilogue = True

    def finish_reduction(self, node: Node, one_point: bool = False) -> None:
        """The part of a reduction once a kept point."""
        values, c, i = self._reduced[node.index], node.compute, node.index
        value = values[0]
        results = [(v, node.result) for v in values]
        if node.op == "mean":
            count = self._scalar(self._scalar_of[i][0], "i", i)
            results = [(self._emit(i, "div", (value, count), c, node.result), node.result)]
        elif node.op == "linalg_vector_norm":
            order = self._norm_order(node, one_point)
            if order == "2":
                results = [(self._emit(i, "sqrt", (value,), c, node.result), node.result)]
            elif order == "p":
                power = self._emit(i, "reciprocal", (self._scalar(self._scalar_of[i][0], "f", i),), c, c)
                results = [(self._emit(i, "pow", (value, power), c, node.result), node.result)]
        elif node.op in ("max", "min") and len(node.outputs) == 2:
            results = [(self._emit(i, "extreme", (value,), c, node.result), node.result), (value, "i64")]
        self._results[i] = results

    def results_of(self, node: Node, stored: list[str]) -> list[int]:
        """Values of a reduction's results, each as the dtype of the tensor it is stored in."""
        pairs = zip(self._results[node.index], stored, strict=True)
        return [self._as(value, dtype, kept, node.index) for (value, dtype), kept in pairs]
