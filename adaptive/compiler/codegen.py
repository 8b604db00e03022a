"""Codegen: from a kernel to LLVM IR text, and on to an object file.

The IR is explicit vector code that needs no optimiser: no IR passes run, and machine code is made at level 0 but with
the optimising register allocator. That gives the speed of level 1 at less than half its time (level 0's own allocator
spills; levels 2 and 3 take longer for the same code).
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import llvmlite.binding as llvm

from adaptive_eager.compiler.builder import Builder, CompileError
from adaptive_eager.compiler.loop_ir import Kernel
from adaptive_eager.compiler.map_kernel import emit_map
from adaptive_eager.compiler.reduce_kernel import accumulator_bytes, column_block, emit_reduction
from adaptive_eager.compiler.target import Target
from adaptive_eager.compiler.tile import TILE, emit_tile

__all__ = ["CompileError", "CompiledKernel", "compile_kernel", "emit_ir"]

#: Symbol of every kernel.
ENTRY_POINT = "k"
#: LLVM code generation level.
OPT_LEVEL = 0


@dataclass(frozen=True)
class CompiledKernel:
    """Object code of one kernel.

    object_code  relocatable object file; its undefined symbols are SLEEF's
    entry        symbol of the function (native/nrt/kernel_abi.h: nrtx_kernel_fn)
    acc_bytes    bytes of one chunk's accumulators in `partials`, a multiple of 64; 0 for a map kernel
    block        columns of one item of an outer reduction; points of a tile along each of its dims; 1 otherwise
    """

    object_code: bytes
    entry: str
    acc_bytes: int
    block: int


def emit_ir(kernel: Kernel, target: Target) -> str:
    """LLVM IR of a kernel. Raises CompileError for an op, dtype or form the compiler does not know."""
    b = Builder(target)
    emit = emit_reduction if kernel.is_reduction else emit_tile if kernel.is_tiled else emit_map
    functions = emit(kernel, b)
    parts = [
        f'target triple = "{target.triple}"',
        *b.declarations.values(),
        *b.helpers.values(),
        *functions,
        f"attributes #0 = {{ {target.function_attributes} }}",
    ]
    return "\n".join(parts) + "\n"


def compile_kernel(kernel: Kernel, target: Target) -> CompiledKernel:
    """Compile a kernel for a target. Raises CompileError as `emit_ir` does."""
    object_code = emit_object(emit_ir(kernel, target), target)
    if not kernel.is_reduction:
        return CompiledKernel(object_code, ENTRY_POINT, 0, TILE if kernel.is_tiled else 1)
    return CompiledKernel(
        object_code, ENTRY_POINT, accumulator_bytes(kernel, target.lanes), column_block(kernel, target.lanes)
    )


def emit_object(ir: str, target: Target) -> bytes:
    """Object file of a module's text. Raises CompileError if LLVM refuses it (a fault of this package)."""
    machine = _machine(target)
    try:
        with llvm.parse_assembly(ir) as module, _machine_lock:
            return machine.emit_object(module)
    except RuntimeError as error:
        raise CompileError(f"LLVM refused generated code: {error}") from error


_machine_lock = threading.Lock()


@functools.cache
def _machine(target: Target) -> llvm.TargetMachine:
    """The code generator of a target. Position independent, small code model: one object's sections stay together."""
    initialize()
    description = llvm.Target.from_triple(target.triple)
    return description.create_target_machine(
        cpu=target.cpu, features=target.features, opt=OPT_LEVEL, reloc="pic", codemodel="default", jit=True
    )


@functools.cache
def initialize() -> None:
    """Prepare LLVM's native code generator, once a process."""
    # An option of the whole process; others who use LLVM at levels 1 to 3 have this allocator already.
    llvm.set_option("adaptive-eager", "-optimize-regalloc=true")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
