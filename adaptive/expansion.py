"""Expansion: the row programs of a trace written out as maps and reductions.

A row program (softmax, a normalisation, ...) is recorded as one op. Before anything is planned, its node is replaced
by the pointwise ops and reductions that `row_programs` defines it by, so that fusion, layout and code generation know
those two kinds only, and a program's neighbours fuse into it. Values between the parts are temporaries of the plan.

The parts depend on the node alone, so an op is computed by the same parts fused and unfused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from adaptive_eager.compiler.conversion import opmath
from adaptive_eager.trace import FIRST_TEMPORARY, SIZE_ONE, Geometry, Node, Operand, Scalar, Temporary, Trace


class Count(NamedTuple):
    """The number of points that an operand has in the dims of a mask: a runtime integer."""

    of: Operand
    dims: int


class Runtime(NamedTuple):
    """A runtime float of the op."""

    scalar: Scalar


#: An argument of a map: a tensor, a runtime scalar, a constant, None where absent.
Arg = Operand | Count | Runtime | float | None


#: Ops with a bool result.
_PREDICATES = ("is_index", "eq", "ne")


class Parts:
    """The parts of one op, being written.

    op       its name
    rank     dims of its first input
    compute  dtype the parts work in, which a program may set: half types in float32
    """

    def __init__(self, expander: Expander, node: Node):
        self._expander = expander
        self._node = node
        operands = iter(node.inputs)
        self._inputs = [next(operands) if kind == "x" else None for kind in node.args if kind in ("x", "-")]
        self._n_results = 0
        self.op = node.op
        self.compute = opmath(node.compute)
        self.rank = expander.geometries[node.inputs[0].geometry].rank

    # -- the op --------------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> list[Operand | None]:
        """Tensor arguments; None where absent."""
        return self._inputs

    def input(self, k: int) -> Operand:
        """Tensor argument `k`, which is never absent."""
        found = self._inputs[k]
        assert found is not None
        return found

    def scalar(self, k: int) -> Runtime:
        return Runtime(self._node.scalars[k])

    @property
    def n_scalars(self) -> int:
        return len(self._node.scalars)

    def attr(self, k: int) -> int:
        return int(self._node.attrs[k])

    def dtype(self, operand: Operand) -> str:
        return self._expander.geometries[operand.geometry].dtype

    def results(self, n: int) -> list[Operand | None]:
        """The `n` results; None for one that is not asked for. What the op writes besides follows in `written`."""
        made = int(self._node.attrs[-1])
        outputs = iter(self._node.outputs)
        self._n_results = made.bit_count()
        return [next(outputs) if made >> (n - 1 - k) & 1 else None for k in range(n)]

    def written(self) -> list[Operand]:
        """Outputs after the results: tensors among the inputs that the op writes."""
        return list(self._node.outputs[self._n_results :])

    # -- parts ---------------------------------------------------------------------------------------------------------

    def map(
        self,
        op: str,
        *args: Arg,
        into: Operand | None = None,
        shape: Operand | None = None,
        compute: str = "",
        attrs: tuple[int, ...] = (),
        part: int = 0,
    ) -> Operand:
        """A pointwise op. Its result goes `into` an output, or is a temporary of the shape of `shape`, by default that
        of the largest operand. It works in `compute`, by default the dtype of the parts. `part`: how many of the parts
        just before it write to its output's storage, elsewhere."""
        operands = [a for a in args if isinstance(a, Operand)]
        scalars = []
        kinds: list[str | float] = []
        for arg in args:
            if isinstance(arg, Operand):
                kinds.append("x")
            elif isinstance(arg, float) or arg is None:
                kinds.append("-" if arg is None else arg)
            else:
                kinds.append("f" if isinstance(arg, Runtime) else "i")
                scalars.append(arg.scalar if isinstance(arg, Runtime) else Scalar(arg.of.operand, arg.dims))
        if into is None:
            result = "bool" if op in _PREDICATES else compute or self.compute
            into = self._expander.temporary_like([shape] if shape is not None else operands, result)
        self._add("map", op, kinds, operands, into, scalars, attrs, compute or self.compute, part)
        return into

    def reduce(self, op: str, x: Operand, dims: int, into: Operand | None = None) -> Operand:
        """A reduction over the dims of a mask, which stay as dims of size one."""
        if into is None:
            into = self._expander.reduced(x, dims, self.compute)
        else:
            self.declare(x, dims, into)
        if dims == 0 and op == "mean":
            op = "sum"  # of the one point
        scalars = [Scalar(x.operand, dims)] if op == "mean" else []
        self._add("reduction", op, ["x"], [x], into, scalars, (dims, 1), self.compute)
        return into

    def declare(self, x: Operand, dims: int, result: Operand) -> None:
        """Says that a result has the shape of `x` reduced over some dims, before anything is."""
        self._expander.declare_reduced(x, dims, result)

    def deliver(self, value: Operand, into: Operand) -> None:
        """Copies a value to an output."""
        self.map("copy", value, into=into)

    def exact(self, output: Operand | None) -> Operand | None:
        """`output`, if it holds values of the compute dtype as they are; else None: a temporary is needed."""
        return output if output is not None and self.dtype(output) == self.compute else None

    def _add(
        self,
        kind: str,
        op: str,
        args: list[str | float],
        inputs: list[Operand],
        output: Operand,
        scalars: list[Scalar],
        attrs: tuple[int, ...],
        compute: str,
        part: int = 0,
    ) -> None:
        nodes = self._expander.nodes
        nodes.append(
            Node(
                len(nodes),
                op,
                kind,
                tuple(args),
                tuple(inputs),
                (output,),
                tuple(scalars),
                attrs,
                compute,
                self.dtype(output),
                self._node.recorded,
                part,
                origin=self._node.origin,
            )
        )


class Expander:
    """The nodes and geometries of an expanded trace, being made."""

    def __init__(self, trace: Trace):
        self.nodes: list[Node] = []
        self.geometries = list(trace.geometries)
        self.live = list(trace.live)
        self.temporaries: list[Temporary] = []
        self._origin: dict[int, tuple[int, int]] = {}  # temporary -> (like, keep)
        self._reduced: dict[tuple[int, int], int] = {}  # (shape, reduced dims) -> shape
        self._n_shapes = 1 + max((g.shape for g in trace.geometries), default=-1)

    def temporary_like(self, operands: list[Operand], dtype: str) -> Operand:
        """A new temporary of the shape of that operand which has most dims of a size other than one."""

        def moving(operand: Operand) -> int:
            return sum(not code & SIZE_ONE for code in self.geometries[operand.geometry].codes)

        largest = max(operands, key=moving)
        like, keep = self._shape_of(largest)
        return self._temporary(like, keep, self.geometries[largest.geometry], dtype)

    def reduced(self, x: Operand, dims: int, dtype: str) -> Operand:
        """A new temporary of the shape of `x` with size one in the dims of a mask."""
        like, keep = self._shape_of(x)
        geometry = self.geometries[x.geometry]
        codes = bytes(code | SIZE_ONE if dims >> d & 1 else code for d, code in enumerate(geometry.codes))
        shape = self._reduced_shape(geometry, dims)
        return self._temporary(like, keep & ~dims, geometry._replace(shape=shape, codes=codes), dtype)

    def declare_reduced(self, x: Operand, dims: int, result: Operand) -> None:
        """Says that `result` has the shape of `x` reduced over some dims."""
        key = self.geometries[x.geometry].shape, self._moving(self.geometries[x.geometry], dims)
        self._reduced.setdefault(key, self.geometries[result.geometry].shape)

    def _moving(self, geometry: Geometry, dims: int) -> int:
        return sum(1 << d for d, code in enumerate(geometry.codes) if dims >> d & 1 and not code & SIZE_ONE)

    def _reduced_shape(self, geometry: Geometry, dims: int) -> int:
        moving = self._moving(geometry, dims)
        if not moving:
            return geometry.shape
        key = geometry.shape, moving
        if key not in self._reduced:
            self._reduced[key] = self._n_shapes
            self._n_shapes += 1
        return self._reduced[key]

    def _shape_of(self, operand: Operand) -> tuple[int, int]:
        if operand.operand >= FIRST_TEMPORARY:
            temporary = self.temporaries[operand.operand - FIRST_TEMPORARY]
            return temporary.like, temporary.keep
        return operand.operand, (1 << self.geometries[operand.geometry].rank) - 1

    def _temporary(self, like: int, keep: int, geometry: Geometry, dtype: str) -> Operand:
        """A contiguous temporary of a geometry's shape."""
        codes = bytes(code & SIZE_ONE for code in geometry.codes)
        self.geometries.append(Geometry(len(self.live), geometry.shape, dtype, True, codes))
        self.live.append(False)
        self.temporaries.append(Temporary(like, keep, dtype))
        return Operand(FIRST_TEMPORARY + len(self.temporaries) - 1, len(self.geometries) - 1)


def expand(trace: Trace) -> Trace:
    """The trace with its row programs written out."""
    from adaptive_eager.row_programs import ROW_PROGRAMS

    if all(node.kind != "row_program" for node in trace.nodes):
        return trace
    expander = Expander(trace)
    for node in trace.nodes:
        if node.kind == "row_program":
            ROW_PROGRAMS[node.op](Parts(expander, node))
        else:
            expander.nodes.append(replace(node, index=len(expander.nodes)))
    return replace(
        trace,
        nodes=tuple(expander.nodes),
        geometries=tuple(expander.geometries),
        live=tuple(expander.live),
        temporaries=tuple(expander.temporaries),
    )
