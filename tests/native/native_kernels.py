"""What the model tests share: small kernels, compiled from C, and one call of such a kernel."""

import struct
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from adaptive_eager.native import library
from adaptive_eager.native.artifact import TensorSpec, pack
from adaptive_eager.native.errors import NrtError
from adaptive_eager.native.launch import launch_block

SOURCE = r"""
#include "kernel_abi.h"

// out = a * scalar over a 2-d nest; a data error where a is negative.
void k(const nrtx_kernel_args* args, int64_t begin, int64_t end) {
  double factor = *(const double*)&args->scalars[0];
  for (int64_t i = begin; i < end; ++i) {
    int64_t row = i / args->sizes[1], column = i % args->sizes[1];
    const float* in = (const float*)args->ptrs[0] + row * args->strides[0] + column * args->strides[1];
    float* out = (float*)args->ptrs[1] + row * args->strides[2] + column * args->strides[3];
    if (*in < 0) *args->error = 1;
    *out = (float)(*in * factor);
  }
}

// out += 1, over one dim
void bump(const nrtx_kernel_args* args, int64_t begin, int64_t end) {
  int64_t* out = (int64_t*)args->ptrs[0];
  for (int64_t i = begin; i < end; ++i) out[i * args->strides[0]] += 1;
}
"""

# out[i] = what the kernel was told: phase and chunk fields.
ECHO_SOURCE = r"""
#include "kernel_abi.h"
void k(const nrtx_kernel_args* args, int64_t begin, int64_t end) {
  int64_t* out = (int64_t*)args->ptrs[0];
  out[0] = args->phase; out[1] = args->n_chunks; out[2] = args->chunks_per_o;
  out[3] = args->o_per_chunk; out[4] = args->n_per_chunk; out[5] = begin; out[6] = end;
  out[7] = args->partials != 0;
}
"""

BUMP_SOURCE = SOURCE.replace("void k(", "void unused(").replace("void bump(", "void k(")

TARGET = "test-target"
SCALE_TENSORS = (TensorSpec("a", "input", "float32"), TensorSpec("out", "output", "float32"))
_compiled: dict[tuple[str, tuple[str, ...]], bytes] = {}


def object_code(source: str = SOURCE, flags: tuple[str, ...] = ("-fPIC",)) -> bytes:
    """An object file of C source."""
    if (source, flags) not in _compiled:
        include = Path(library.__file__).parent / "nrt"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.c"
            path.write_text(source)
            subprocess.run(["gcc", "-c", "-O1", *flags, f"-I{include}", str(path), "-o", f"{path}.o"], check=True)
            _compiled[source, flags] = Path(f"{path}.o").read_bytes()
    return _compiled[source, flags]


def scale_artifact(**changes) -> bytes:
    parts = {"target": TARGET, "entries": ["k", "bump"], "code": object_code(), "tensors": SCALE_TENSORS, **changes}
    return pack(**parts)


def code_mappings() -> int:
    """Executable pieces of this process's memory that are of no file: loaded models, and what others make."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return sum("x" in fields[1] and fields[4] == "0" and len(fields) == 5 for fields in lines)


class Call:
    """The tensors and sets of one execution of the `scale` kernel over 3 x 4 floats."""

    def __init__(self, runtime, device=0, block=None):
        self.a, self.out = runtime.allocate(device, 48, "a"), runtime.allocate(device, 48, "out")
        self.inputs, self.outputs = runtime.tensor_set("inputs"), runtime.tensor_set("outputs")
        self.a.write(struct.pack("<12f", *range(12)))
        self.out.memset(0)
        self.launch = runtime.allocate_host(256, "launch")
        self.set_block(block or launch_block(0, 12, [3, 4], [[4, 1], [4, 1]], [2.5]))
        self.inputs.add("a", self.a)
        self.inputs.add("launch", self.launch)
        self.outputs.add("out", self.out)

    def set_block(self, block):
        self.launch.memset(0)
        self.launch.write(block)

    def result(self):
        return list(struct.unpack("<12f", self.out.read()))


def status_of(function, *arguments):
    with pytest.raises(NrtError) as caught:
        function(*arguments)
    return caught.value.status


def in_threads(count, work):
    """Runs work(number) in so many threads at once; none may raise."""
    failures = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
