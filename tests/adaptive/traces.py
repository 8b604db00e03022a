"""Traces made by hand: what the extension would hand to the planner for a window, written down op by op.

    t = TraceBuilder()
    x = t.input("f32", ("B", "N"))
    y = t.map("add", x, x)
    s = t.reduce("sum", y, dims=[1])
    trace = t.build(live=[s])

Sizes are numbers or names; a name is one size everywhere, and two names are two sizes. Geometries, their codes and the
words of the signature are made as native/torch/signature.cpp makes them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from adaptive_eager.compiler.loop_ir import ITEMSIZE
from adaptive_eager.trace import CHAINED, SIZE_ONE, STRIDE_ONE, STRIDE_ZERO, Trace, read_trace

FLOATS = ("f16", "bf16", "f32", "f64")
#: Size of each name: primes, so that no product of some is a product of others.
NAMES = {"A": 2, "B": 3, "C": 5, "D": 7, "H": 11, "W": 13, "N": 17, "M": 19}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "isnan")

Size = int | str
Number = float | int | bool


@dataclass(frozen=True)
class Tensor:
    """A storage, and a geometry over it."""

    storage: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    offset: int = 0

    def permute(self, *dims: int) -> Tensor:
        return replace(self, sizes=tuple(self.sizes[d] for d in dims), strides=tuple(self.strides[d] for d in dims))

    def t(self) -> Tensor:
        return self.permute(1, 0)

    def expand(self, *sizes: Size) -> Tensor:
        """As torch: sizes of one become any, new dims come first."""
        new = sizes_of(sizes)
        extra = len(new) - len(self.sizes)
        strides = [0] * extra + [
            st if size == new[extra + d] else 0
            for d, (size, st) in enumerate(zip(self.sizes, self.strides, strict=True))
        ]
        return replace(self, sizes=new, strides=tuple(strides))

    def slice(self, dim: int, start: int, stop: int, step: int = 1) -> Tensor:
        sizes, strides = list(self.sizes), list(self.strides)
        sizes[dim] = len(range(start, stop, step))
        strides[dim] *= step
        return replace(self, sizes=tuple(sizes), strides=tuple(strides), offset=self.offset + start * self.strides[dim])

    def select(self, dim: int, index: int) -> Tensor:
        kept = [d for d in range(len(self.sizes)) if d != dim]
        return replace(self.permute(*kept), offset=self.offset + index * self.strides[dim])

    @property
    def contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size == 1:
                continue
            if stride != expected:
                return prod(self.sizes) == 0
            expected *= size
        return True

    @property
    def dense(self) -> bool:
        """No gaps and no overlaps: some order of its dims is contiguous."""
        order = sorted((d for d, s in enumerate(self.sizes) if s != 1), key=lambda d: -self.strides[d])
        return self.permute(*order).contiguous

    def places(self) -> list[int]:
        """Element of the storage at each point, row by row."""
        places = [self.offset]
        for size, stride in zip(self.sizes, self.strides, strict=True):
            places = [p + k * stride for p in places for k in range(size)]
        return places


def sizes_of(shape: Sequence[Size]) -> tuple[int, ...]:
    return tuple(NAMES[s] if isinstance(s, str) else s for s in shape)


def strides_of(sizes: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Strides without gaps; `order` names the dims from the outermost in memory to the innermost."""
    strides, step = [0] * len(sizes), 1
    for d in reversed(order if order is not None else range(len(sizes))):
        strides[d] = step
        step *= max(1, sizes[d])
    return tuple(strides)


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    result = tuple(next((s for s in column if s != 1), 1) for column in zip(*padded, strict=True))
    assert all(s in (1, r) for shape in padded for s, r in zip(shape, result, strict=True)), f"shapes differ: {shapes}"
    return result


def codes(tensor: Tensor) -> bytes:
    """A byte a dim (native/torch/signature.cpp: stride_codes)."""
    if tensor.contiguous:
        return bytes(SIZE_ONE if s == 1 else 0 for s in tensor.sizes)
    result, moving = [0] * len(tensor.sizes), []
    for d, (size, stride) in enumerate(zip(tensor.sizes, tensor.strides, strict=True)):
        if size == 1:
            result[d] = SIZE_ONE
        elif stride == 0:
            result[d] = STRIDE_ZERO
        else:
            result[d] = STRIDE_ONE if stride == 1 else 0
            moving.append(d)
    moving.sort(key=lambda d: -tensor.strides[d])
    for rank, d in enumerate(moving):
        result[d] |= rank
        if rank + 1 < len(moving):
            inner = moving[rank + 1]
            if tensor.strides[d] == tensor.strides[inner] * tensor.sizes[inner]:
                result[d] |= CHAINED
    return bytes(result)


def accumulator(dtype: str) -> str:
    return "f32" if dtype in ("f16", "bf16") else dtype


class TraceBuilder:
    """A window being recorded. `operands` and `scalars` are the window's, by number."""

    def __init__(self) -> None:
        self.operands: list[Tensor] = []
        self.scalars: list[Number] = []
        self.nodes: list[dict[str, Any]] = []
        self.sizes: list[int] = []  # elements of each storage
        self.from_before: list[bool] = []  # per storage: made before the window
        self._geometries: list[Tensor] = []
        self._slots: list[int] = []  # storage of each slot

    # -- tensors -----------------------------------------------------------------------------------------------------

    def _storage(self, sizes: Sequence[int], from_before: bool) -> int:
        self.sizes.append(prod(sizes))
        self.from_before.append(from_before)
        return len(self.sizes) - 1

    def input(self, dtype: str, shape: Sequence[Size], order: Sequence[int] | None = None) -> Tensor:
        """A tensor from before the window. `order`: see strides_of; channels_last is (0, 2, 3, 1)."""
        sizes = sizes_of(shape)
        return Tensor(self._storage(sizes, True), sizes, strides_of(sizes, order), dtype)

    def _fresh(self, sizes: tuple[int, ...], dtype: str, like: Sequence[Tensor] = ()) -> Tensor:
        """A result: its dims lie in memory as those of the first full operand without gaps, as torch does it."""
        model = next((x for x in like if x.sizes == sizes and x.dense and not x.contiguous), None)
        if any(x.sizes == sizes and x.contiguous for x in like):
            model = None
        strides = model.strides if model is not None else strides_of(sizes)
        return Tensor(self._storage(sizes, False), sizes, strides, dtype)

    # -- ops ---------------------------------------------------------------------------------------------------------

    def map(
        self,
        op: str,
        *args: Tensor | Number | None,
        out: Tensor | None = None,
        shape: Sequence[Size] = (),
        dtype: str | None = None,
        attrs: Sequence[int | str] = (),
        part: int = 0,
    ) -> Tensor:
        """A pointwise op. `out` is written in place; `shape` and `dtype` say what tensors do not; `part` is the
        node's."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        shapes = [x.sizes for x in (*tensors, *([out] if out is not None else []))]
        sizes = broadcast(shapes) if shapes else sizes_of(shape)
        compute = dtype or (tensors[0].dtype if tensors else "f32")
        result = "bool" if op in COMPARISONS else compute
        if out is None:
            out = self._fresh(sizes, result, tensors)
        assert out.sizes == sizes, "an in-place op must not change a shape"
        kinds = [
            "x" if isinstance(a, Tensor) else "-" if a is None else "f" if isinstance(a, float) else "i" for a in args
        ]
        scalars = [a for a in args if a is not None and not isinstance(a, Tensor)]
        self._record(op, "map", tensors, [out], kinds, scalars, attrs, compute, result, part=part)
        return out

    def gather(self, table: Tensor, *indices: tuple[int, Tensor]) -> Tensor:
        """Elements of a table. Indices, of a dim each, broadcast to the result, which has the table's other sizes."""
        dims = [dim for dim, _ in indices]
        own = tuple(1 if d in dims else s for d, s in enumerate(table.sizes))
        sizes = broadcast([own, *(index.sizes for _, index in indices)])
        assert len(sizes) == len(own)
        assert all(s == n for d, (s, n) in enumerate(zip(own, sizes, strict=True)) if d not in dims)
        strides = tuple(0 if d in dims else s for d, s in enumerate(table.strides))
        walked = replace(table, sizes=sizes, strides=strides)
        out = self._fresh(sizes, table.dtype)
        kinds = ["x"] + ["x", "i", "i"] * len(dims)
        scalars = [n for d in dims for n in (table.strides[d], table.sizes[d])]
        tensors = [walked, *(index for _, index in indices)]
        self._record("gather", "map", tensors, [out], kinds, scalars, [0, *dims], table.dtype, table.dtype)
        return out

    def reduce(
        self,
        op: str,
        x: Tensor,
        dims: Sequence[int] | None = None,
        keepdim: bool = False,
        out: Tensor | None = None,
        ord: str | float = "2",
    ) -> Tensor:
        """A reduction. `ord` is the order of linalg_vector_norm: "0", "1", "2", "inf", "-inf", or a number."""
        rank = len(x.sizes)
        reduced = {d % rank for d in dims} if dims is not None else set(range(rank))
        if op in ("argmax", "argmin"):
            result, compute = "i64", x.dtype
        elif op in ("any", "all"):
            result = compute = "bool"
        elif op in ("amax", "amin", "max", "min"):
            result = compute = x.dtype
        else:
            result = x.dtype if x.dtype in FLOATS else "i64"
            compute = accumulator(result)
        kept = [1 if d in reduced else s for d, s in enumerate(x.sizes) if keepdim or d not in reduced]
        if out is None:
            out = self._fresh(tuple(kept), result)
        assert out.sizes == tuple(kept)
        attrs: list[int | str] = [sum(1 << d for d in reduced), int(keepdim)]
        scalars: list[Number] = []
        kinds = ["x"]
        if op == "mean":
            scalars.append(prod(x.sizes[d] for d in reduced))
            kinds.append("i")
        if op == "linalg_vector_norm":
            attrs.append(ord if isinstance(ord, str) else "p")
            if not isinstance(ord, str):
                scalars.append(float(ord))
                kinds.append("f")
        self._record(op, "reduction", [x], [out], kinds, scalars, attrs, compute, result)
        return out

    def empty(self, dtype: str, shape: Sequence[Size]) -> Tensor:
        """A tensor made in the window, by nobody."""
        return self._fresh(sizes_of(shape), dtype)

    def host(self, op: str, *inputs: Tensor, shape: Sequence[Size] = (), out: Tensor | None = None) -> Tensor:
        """A host op. One that writes `out` reads it too, as an argument."""
        if out is not None:
            inputs = (out, *inputs)
        else:
            out = self._fresh(sizes_of(shape) or inputs[0].sizes, inputs[0].dtype if inputs else "f32")
        self._record(op, "host", list(inputs), [out], [], [], [], out.dtype, out.dtype)
        return out

    def result(self, sizes: tuple[int, ...], dtype: str, like: Tensor | None = None) -> Tensor:
        """A tensor that an op of the window makes: contiguous, or with its dims in memory as those of `like`."""
        return self._fresh(sizes, dtype, [like] if like is not None else [])

    def row(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        results: Sequence[Tensor | None],
        written: Sequence[Tensor] = (),
        scalars: Sequence[float] = (),
        attrs: Sequence[int] = (),
    ) -> None:
        """A row program (native/torch/record_compiled.cpp). `written`: inputs that it writes besides its results."""
        made = 0
        for result in results:
            made = made << 1 | (result is not None)
        given = [x for x in inputs if x is not None]
        outputs = [*(x for x in results if x is not None), *written]
        kinds = ["-" if x is None else "x" for x in inputs] + ["f"] * len(scalars)
        dtype = given[0].dtype
        self._record(op, "row_program", given, outputs, kinds, scalars, [*attrs, made], dtype, outputs[0].dtype)

    def _record(
        self,
        op: str,
        kind: str,
        inputs: list[Tensor],
        outputs: list[Tensor],
        args: list[str],
        scalars: Sequence[Number],
        attrs: Sequence[int | str],
        compute: str,
        result: str,
        part: int = 0,
    ) -> None:
        def operands(tensors: list[Tensor]) -> list[tuple[int, int]]:
            pairs = []
            for x in tensors:
                pairs.append((len(self.operands), self._geometry(x)))
                self.operands.append(x)
            return pairs

        self.nodes.append(
            {
                "op": op, "kind": kind, "args": args, "inputs": operands(inputs),
                "outputs": operands(outputs), "scalars": [len(self.scalars) + k for k in range(len(scalars))],
                "attrs": list(attrs), "compute": compute, "result": result, "part": part,
            }
        )  # fmt: skip
        self.scalars += scalars

    def _geometry(self, x: Tensor) -> int:
        if x not in self._geometries:
            self._geometries.append(x)
            if x.storage not in self._slots:
                self._slots.append(x.storage)
        return self._geometries.index(x)

    # -- the trace ---------------------------------------------------------------------------------------------------

    def raw(self, live: Sequence[Tensor] | None = None) -> dict[str, Any]:
        """What the extension hands over. `live`: tensors made in the window that the program still holds (None: all);
        it always holds those from before."""
        held = {x.storage for x in live} if live is not None else set(range(len(self.sizes)))
        alive = [s in held or self.from_before[s] for s in self._slots]
        shapes: list[tuple[int, ...]] = []
        geometries = []
        for x in self._geometries:
            if x.sizes not in shapes:
                shapes.append(x.sizes)
            slot, shape = self._slots.index(x.storage), shapes.index(x.sizes)
            geometries.append((slot, shape, x.dtype, x.contiguous, codes(x)))
        words = self._words(geometries, alive)
        digest = hashlib.blake2b(words, digest_size=16).digest()
        return {
            "nodes": self.nodes, "geometries": geometries, "live": alive,
            "signature": struct.unpack("<QQ", digest), "words": words,
        }  # fmt: skip

    def build(self, live: Sequence[Tensor] | None = None) -> Trace:
        return read_trace(self.raw(live))

    def _words(self, geometries: list[tuple[int, int, str, bool, bytes]], alive: list[bool]) -> bytes:
        """All that a plan may depend on, and no size, scalar or address."""
        dtypes = list(ITEMSIZE)
        words: list[int] = []
        for node in self.nodes:
            words.append(_hash(f"{node['kind']} {node['op']}"))
            words.append(sum(("_xfi-".index(kind)) << 4 * k for k, kind in enumerate(node["args"])))
            words.append(node["part"] << 40 | len(node["inputs"]) << 32 | len(node["outputs"]) << 24)
            words[-1] |= len(node["attrs"]) << 16
            words[-1] |= dtypes.index(node["compute"]) << 8 | dtypes.index(node["result"])
            words += [_hash(a) if isinstance(a, str) else a & (1 << 64) - 1 for a in node["attrs"]]
            words += [g for _, g in (*node["inputs"], *node["outputs"])]
        for slot, shape, dtype, contiguous, code in geometries:
            words.append(slot << 32 | shape << 16 | len(code) << 9 | contiguous << 8 | dtypes.index(dtype))
            words.append(int.from_bytes(code.ljust(8, b"\0"), "little"))
        words.append(sum(bit << k for k, bit in enumerate(alive)) & (1 << 64) - 1)
        return struct.pack(f"<{len(words)}Q", *words)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
