"""Trace: what a window says, as the extension hands it over on a miss (native/torch/planner_bridge.cpp).

A trace has no sizes, no scalar values, no addresses: whatever is planned from it serves every window of its signature.
Operands and scalars are numbered as they stand in the window, so a plan can name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

#: Codes of a dimension (native/torch/signature.h): rank of the stride in the low bits, and facts.
RANK, SIZE_ONE, STRIDE_ZERO, STRIDE_ONE, CHAINED = 0x0F, 0x10, 0x20, 0x40, 0x80


class Geometry(NamedTuple):
    """One way a storage is looked at. Equal `shape` numbers mean equal sizes; `codes` has one byte a dimension."""

    slot: int
    shape: int
    dtype: str
    contiguous: bool
    codes: bytes

    @property
    def rank(self) -> int:
        return len(self.codes)

    @property
    def layout(self) -> bytes:
        """Equal layouts of equal shapes are walked in the same order."""
        return b"" if self.contiguous else self.codes


class Operand(NamedTuple):
    """A tensor as a node sees it: its number in the window, and its geometry's number in the trace."""

    operand: int
    geometry: int


#: Ops that look elements of their first operand up, by the integers that the others hold: it is their *table*.
#: Its geometry has the sizes of the result, and says where the element of index 0 is. Their attrs are whether negative
#: indices wrap, then the dim that each index is of; each index is followed by two scalars: the dim's stride and size.
GATHERS = frozenset({"embedding", "gather", "index", "index_select", "nll_loss", "take"})

#: Operand numbers from here on are temporaries of the plan (native/torch/frame.h: kFirstTemporary).
FIRST_TEMPORARY = 1 << 24


class Temporary(NamedTuple):
    """A value that no tensor of the program holds: contiguous, of the sizes of window operand `like` in the dims of the
    mask `keep`, of size one in its others."""

    like: int
    keep: int
    dtype: str


class Scalar(NamedTuple):
    """A runtime scalar: number `number` of the window's; with `dims`, the number of points that operand `number` has in
    those dims (a mask)."""

    number: int
    dims: int = 0


@dataclass(frozen=True)
class Node:
    """One recorded op.

    args     "x" operand, "f" float scalar, "i" int scalar, "-" absent, a constant itself, in schema order (compiled
             kinds only)
    scalars  runtime scalars, in the order of the "f" and "i" args (then any that stand alone)
    attrs    structural arguments
    compute  dtype the op works in; `result` dtype it rounds to before it is stored
    recorded number of the recorded op in the window: its own, or that of the op it is a part of
    part     how many of the writes just before it to its output's storage it is known not to overlap
    origin   the user's "file:line", for messages alone
    """

    index: int
    op: str
    kind: str
    args: tuple[str | float, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scalars: tuple[Scalar, ...]
    attrs: tuple[int | str, ...]
    compute: str
    result: str
    recorded: int
    part: int = 0
    origin: str = ""

    @property
    def is_compiled(self) -> bool:
        return self.kind in ("map", "reduction")

    @property
    def is_gather(self) -> bool:
        return self.kind == "map" and self.op in GATHERS


@dataclass(frozen=True)
class Trace:
    nodes: tuple[Node, ...]
    geometries: tuple[Geometry, ...]
    live: tuple[bool, ...]
    signature: tuple[int, int]
    words: bytes
    temporaries: tuple[Temporary, ...] = ()


def read_trace(raw: dict[str, Any]) -> Trace:
    """The extension's description of a trace as a Trace."""
    geometries = [Geometry(*g) for g in raw["geometries"]]
    nodes = _with_tables([_read_node(index, node) for index, node in enumerate(raw["nodes"])], geometries)
    return Trace(
        nodes,
        tuple(geometries),
        tuple(raw["live"]),
        tuple(raw["signature"]),
        raw["words"],
    )


def _with_tables(nodes: list[Node], geometries: list[Geometry]) -> tuple[Node, ...]:
    """The nodes, with geometries of their own for tables. A gather reads all of its table, not what the geometry
    covers: that is never just what somebody wrote, even if it looks alike."""
    tables: dict[int, int] = {}
    for k, node in enumerate(nodes):
        if node.is_gather:
            table, *others = node.inputs
            if table.geometry not in tables:
                tables[table.geometry] = len(geometries)
                geometries.append(geometries[table.geometry])
            nodes[k] = replace(node, inputs=(table._replace(geometry=tables[table.geometry]), *others))
    return tuple(nodes)


def _read_node(index: int, raw: dict[str, Any]) -> Node:
    def operands(pairs: Sequence[tuple[int, int]]) -> tuple[Operand, ...]:
        return tuple(Operand(*pair) for pair in pairs)

    return Node(
        index,
        raw["op"],
        raw["kind"],
        tuple(raw["args"]),
        operands(raw["inputs"]),
        operands(raw["outputs"]),
        tuple(Scalar(number) for number in raw["scalars"]),
        tuple(raw["attrs"]),
        raw["compute"],
        raw["result"],
        index,
        raw["part"],
        raw.get("origin", ""),
    )
