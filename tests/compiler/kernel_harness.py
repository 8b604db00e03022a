"""Harness: runs compiled kernels on torch CPU tensors through ctypes."""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
from dataclasses import dataclass, field

import torch

from adaptive_eager import backend
from adaptive_eager.compiler.codegen import CompiledKernel, compile_kernel
from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.target import Target, host_can_run, host_target, named_target
from adaptive_eager.native import artifact

# The tensors are small: threads would only wait for each other.
torch.set_num_threads(1)

DTYPES = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip
NAMES = {v: k for k, v in DTYPES.items()}


class KernelArgs(ctypes.Structure):
    """nrtx_kernel_args."""

    _fields_ = (
        ("ptrs", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("partials", ctypes.c_void_p),
        ("phase", ctypes.c_int64),
        ("n_chunks", ctypes.c_int64),
        ("chunks_per_o", ctypes.c_int64),
        ("o_per_chunk", ctypes.c_int64),
        ("n_per_chunk", ctypes.c_int64),
    )


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def runnable_targets() -> list[Target]:
    """Every target family this machine can execute: the host's own first, then the narrower ones."""
    others = [named_target(n) for n in ("avx512", "avx2", "generic") if n != host_target().name]
    return [host_target(), *(t for t in others if host_can_run(t))]


_models = []  # loaded to stay: runners hold their addresses


def load(code: CompiledKernel) -> int:
    """Address of a kernel. Whoever compiles for a target that is not the host's knows that the host can run it."""
    service = backend.planner().kernels
    model = service.runtime.load(artifact.pack(service.target.key(), [code.entry], code.object_code))
    _models.append(model)
    return model.entry(code.entry)


def scalar_bits(value: float | int) -> int:
    if isinstance(value, float):
        return struct.unpack("<Q", struct.pack("<d", value))[0]
    return int(value) & 0xFFFFFFFFFFFFFFFF


@dataclass
class Chunks:
    """How the launcher cuts a reduction (kernel_abi.h)."""

    n_chunks: int = 1
    chunks_per_o: int = 1
    o_per_chunk: int = 1
    n_per_chunk: int = 0


def chunks_of(kernel: Kernel, sizes: tuple[int, ...]) -> Chunks:
    reduced = [s for s, kind in zip(sizes, kernel.dims, strict=True) if kind == "r"]
    o = 1
    if kernel.dims.endswith("r"):
        limit, n = 2048, reduced[-1]
        for s in reduced[:-1]:
            o *= s
        if n >= limit:
            per_o = -(-n // limit)
            return Chunks(max(1, o * per_o), per_o, 1, limit)
        per_chunk = max(1, limit // max(n, 1))
        return Chunks(max(1, -(-o // per_chunk)), 1, per_chunk, n)
    for s in reduced:
        o *= s
    return Chunks(max(1, -(-o // 128)), 1, 128, 0)


@dataclass
class Runner:
    """A compiled kernel, ready to run."""

    kernel: Kernel
    target: Target
    compiled: CompiledKernel = field(init=False)
    function: object = field(init=False)

    def __post_init__(self) -> None:
        self.compiled = compile_kernel(self.kernel, self.target)
        self.function = _FUNCTION(load(self.compiled))

    def items(self, sizes: tuple[int, ...]) -> int:
        """Work items of phase 0 (or 2)."""
        kept = [s for s, kind in zip(sizes, self.kernel.dims, strict=True) if kind == "k"]
        if self.kernel.is_reduction and self.kernel.dims.endswith("k"):
            kept[-1] = -(-kept[-1] // self.compiled.block)
        total = 1
        for s in kept:
            total *= s
        return total

    def run(self, tensors, sizes, scalars=(), splits=None, phases=False, items=None) -> int:
        """Run over every item. `splits`: inner boundaries between calls; `phases`: as phases 1 and 2; `items`: their
        number, if it does not follow from the kept sizes. Returns the error word. Tensors are already expanded to the
        loop's shape (same number of dims as the kernel)."""
        rank = len(self.kernel.dims)
        ptrs = (ctypes.c_void_p * max(1, len(tensors)))(*(t.data_ptr() for t in tensors))
        size_array = (ctypes.c_int64 * max(1, rank))(*sizes)
        strides = [
            0 if m == "0" else t.stride(d)
            for t, a in zip(tensors, self.kernel.accesses, strict=True)
            for d, m in enumerate(a.moves)
        ]
        stride_array = (ctypes.c_int64 * max(1, len(strides)))(*strides)
        scalar_array = (ctypes.c_uint64 * max(1, len(scalars)))(*(scalar_bits(s) for s in scalars))
        error = ctypes.c_int64(0)
        chunks = chunks_of(self.kernel, tuple(sizes)) if self.kernel.is_reduction else Chunks()
        items = self.items(tuple(sizes)) if items is None else items
        partials = torch.empty(max(1, items * chunks.n_chunks * self.compiled.acc_bytes // 8 + 8), dtype=torch.int64)
        aligned = (partials.data_ptr() + 63) & ~63
        args = KernelArgs(
            ctypes.addressof(ptrs), ctypes.addressof(size_array), ctypes.addressof(stride_array),
            ctypes.addressof(scalar_array), ctypes.addressof(error), aligned, 0, chunks.n_chunks, chunks.chunks_per_o,
            chunks.o_per_chunk, chunks.n_per_chunk,
        )  # fmt: skip
        for phase, count in ((1, items * chunks.n_chunks), (2, items)) if phases else ((0, items),):
            args.phase = phase
            bounds = sorted({0, count, *(s for s in (splits or ()) if s < count)})
            for begin, end in itertools.pairwise(bounds):
                self.function(ctypes.addressof(args), begin, end)
        return error.value


@functools.cache
def runner(kernel: Kernel, target: Target) -> Runner:
    return Runner(kernel, target)


def moves_of(tensor: torch.Tensor) -> str:
    """Layout class of a tensor already expanded to the loop's shape."""
    letters = ""
    for d in range(tensor.dim()):
        if tensor.stride(d) == 0:
            letters += "0"
        elif d == tensor.dim() - 1 and tensor.stride(d) == 1:
            letters += "c"
        else:
            letters += "s"
    return letters


def pointwise(op, args, compute, dtype, attrs=(), target=None, out=None, splits=None):
    """Apply one op to tensors (broadcast together) and Python scalars; None is an absent operand. Returns the result
    and the error flag."""
    shape = torch.broadcast_shapes(*(a.shape for a in (*args, out) if isinstance(a, torch.Tensor)))
    if out is None:
        out = torch.empty(shape, dtype=DTYPES[dtype])
    accesses, program, numbers, tensors, scalars = [], [], [], [], []
    for a in args:
        if a is None:
            numbers.append(-1)
            continue
        numbers.append(len(program))
        if isinstance(a, torch.Tensor):
            a = a.expand(shape)
            program.append(Instr("load", (), NAMES[a.dtype], NAMES[a.dtype], (len(accesses),)))
            accesses.append(Access(NAMES[a.dtype], moves_of(a)))
            tensors.append(a)
        else:
            kind, ty = ("f", "f64") if isinstance(a, float) else ("i", "i64")
            program.append(Instr("scalar", (), ty, ty, (len(scalars), kind)))
            scalars.append(a)
    program.append(Instr(op, tuple(numbers), compute, dtype, tuple(attrs), ordinal=6))
    accesses.append(Access(dtype, moves_of(out)))
    tensors.append(out)
    kernel = Kernel("k" * len(shape), tuple(accesses), tuple(program), (Store(len(program) - 1, len(accesses) - 1),))
    error = runner(kernel, target or host_target()).run(tensors, tuple(shape), scalars, splits)
    return out, error
