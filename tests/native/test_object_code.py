"""Object code: what it is linked to and where it lies, and that nothing damaged is loaded, or crashes."""

import contextlib
import ctypes
import math
import mmap
import random
import struct
import subprocess
from pathlib import Path

import pytest
from native_kernels import TARGET, code_mappings, in_threads, object_code

from adaptive_eager.native import library
from adaptive_eager.native.artifact import pack
from adaptive_eager.native.errors import NrtError
from adaptive_eager.native.library import ffi

# Tables, variables, addresses of functions and of data, and calls of the C library.
SOURCE = r"""
#include <math.h>
#include <string.h>
#include "kernel_abi.h"
extern char** environ;
static const double table[8] __attribute__((aligned(64))) = {1, 2, 3, 4, 5, 6, 7, 8};
static int64_t calls;
static int64_t start = 40;
static double half(double x) { return x / 2; }
static double twice(double x) { return 2 * x; }
static double (*const functions[])(double) = {half, twice, exp};
void k(const nrtx_kernel_args* args, int64_t begin, int64_t end) {
  double* out = (double*)args->ptrs[0];
  out[0] = table[begin];
  out[1] = (double)(start + ++calls);
  out[2] = functions[end](3.0);
  out[3] = sin(out[0]);
  memcpy(out + 4, out, sizeof *out);
  out[5] = (uintptr_t)table % 64 + (environ == 0);
}
"""
BIG_SOURCE = SOURCE.replace("static int64_t calls;", "static int64_t calls; char big[40 << 20];")


def artifact_of(code: bytes, entries=("k",)) -> bytes:
    return pack(TARGET, entries, code)


def run(model, begin=2, end=1) -> list[float]:
    out = ffi.new("double[6]")
    pointers, args = ffi.new("char *[1]", [ffi.cast("char *", out)]), ffi.new("nrtx_kernel_args *")
    args.ptrs = pointers
    ffi.cast("nrtx_kernel_fn", model.entry("k"))(args, begin, end)
    return list(out)


EXPECTED = [3.0, 41.0, 6.0, math.sin(3.0), 3.0, 0.0]


@pytest.mark.parametrize(
    "flags",
    [
        ("-fPIC",),
        ("-fPIC", "-fno-plt"),
        ("-fno-pic", "-mcmodel=large"),
        ("-fPIC", "-ffunction-sections", "-fdata-sections", "-g"),
    ],
    ids=" ".join,
)
def test_code_runs(runtime, flags):
    model = runtime.load(artifact_of(object_code(SOURCE, flags)))
    assert run(model) == EXPECTED
    assert run(model, 0, 2) == [1.0, 42.0, math.exp(3.0), math.sin(1.0), 1.0, 0.0]
    other = runtime.load(artifact_of(object_code(SOURCE, flags)))
    assert run(other) == EXPECTED  # its variables are its own


@contextlib.contextmanager
def only_far_memory(size):
    """Whatever of at least `size` bytes is mapped in here lies out of a near call's reach of the C library.

    (A multiple of a huge page would be aligned to one, and leave holes that others fit into.)
    """
    libc, taken = ctypes.CDLL(None), []
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def reserve(length):
        taken.append((libc.mmap(None, length, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0), length))
        return taken[-1][0]

    reserve(8 << 30)
    while abs(reserve(size) - address_of_sin()) < 3 << 30:  # still between the libraries
        assert len(taken) < 10_000
    libc.munmap(*taken.pop())
    try:
        yield
    finally:
        for reservation in taken:
            libc.munmap(*reservation)


def address_of_sin() -> int:
    return ctypes.cast(ctypes.CDLL("libm.so.6").sin, ctypes.c_void_p).value


@pytest.mark.parametrize("flags", [("-fPIC",), ("-fPIC", "-fno-plt")], ids=" ".join)
def test_calls_reach_any_distance(runtime, flags):
    with only_far_memory((40 << 20) - mmap.PAGESIZE):
        model = runtime.load(artifact_of(object_code(BIG_SOURCE, flags)))
        assert abs(model.entry("k") - address_of_sin()) > 1 << 31
        assert run(model) == EXPECTED
        model.unload()


def test_libraries_are_looked_through(runtime, tmp_path):
    (tmp_path / "a.c").write_text("double seven(void) { return 7; }  double sin(double x) { return 99; }")
    path = tmp_path / "liba.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-fno-builtin", str(tmp_path / "a.c"), "-o", str(path)], check=True)
    source = SOURCE.replace("extern", "double seven(void);\nextern", 1).replace("out[2] =", "out[2] = seven() +")
    data = artifact_of(object_code(source))
    with pytest.raises(NrtError, match=r"NRT_UNSUPPORTED_NEFF_VERSION.*it needs seven, which no library has"):
        runtime.load(data)
    kept = ctypes.CDLL(str(path))
    runtime.set_loader([TARGET], [str(path)])
    del kept
    assert run(runtime.load(data))[2:4] == [13.0, math.sin(3.0)]  # the C library comes first


def protections(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return line.split()[1]
    raise AssertionError(f"nothing at {address:#x}")


def test_memory_is_never_writable_and_executable(runtime):
    model = runtime.load(artifact_of(object_code(SOURCE)))
    assert protections(model.entry("k")) == "r-xp"
    page = mmap.PAGESIZE
    assert protections((model.entry("k") // page + 1) * page) == "r--p"  # the tables
    assert all("wx" not in line.split()[1] for line in Path("/proc/self/maps").read_text().splitlines())


def test_unloading_gives_the_memory_back(runtime):
    data, before = artifact_of(object_code(BIG_SOURCE)), code_mappings()
    for _ in range(3000):  # 120 GB, were it kept
        runtime.load(data).unload()
    assert code_mappings() == before


def test_threads(runtime):
    data = artifact_of(object_code(SOURCE))

    def work(number):
        for _ in range(50):
            with runtime.load(data) as model:
                assert run(model) == EXPECTED

    in_threads(4, work)


# -- What a debugger sees ----------------------------------------------------------------------------------------------


class Entry(ctypes.Structure):
    pass


Entry._fields_ = (
    ("next", ctypes.POINTER(Entry)),
    ("previous", ctypes.POINTER(Entry)),
    ("object", ctypes.c_void_p),
    ("size", ctypes.c_uint64),
)


class Descriptor(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("action", ctypes.c_uint32),
        ("changed", ctypes.POINTER(Entry)),
        ("first", ctypes.POINTER(Entry)),
    )


def objects_for_debuggers() -> list[bytes]:
    """What gdb would read, newest first."""
    descriptor = Descriptor.in_dll(ctypes.CDLL(str(library.SOFTWARE_LIBRARY)), "__jit_debug_descriptor")
    assert descriptor.version == 1
    found, entry, previous = [], descriptor.first, None
    while entry:
        assert (ctypes.addressof(entry[0].previous[0]) if entry[0].previous else None) == previous
        found.append(ctypes.string_at(entry[0].object, entry[0].size))
        previous, entry = ctypes.addressof(entry[0]), entry[0].next
    return found


def test_debuggers_know_where_kernels_are(runtime):
    assert objects_for_debuggers() == []
    models = [runtime.load(artifact_of(object_code(source))) for source in (SOURCE, BIG_SOURCE, SOURCE)]
    assert len(objects_for_debuggers()) == 3
    for model, seen in zip(models, reversed(objects_for_debuggers()), strict=True):
        elf = Elf(seen)
        symbol = elf.symbol("k")
        section = elf.get("symbol", symbol, "st_shndx")
        address = elf.get("section", section, "sh_addr") + elf.get("symbol", symbol, "st_value")
        assert address == model.entry("k")
    models[1].unload()
    assert len(objects_for_debuggers()) == 2
    models[0].unload()
    models[2].unload()
    assert objects_for_debuggers() == []


# -- Damage -----------------------------------------------------------------------------------------------------------

#: Field -> (offset, struct format), of each kind of record.
FIELDS = {
    "header": {
        "class": (4, "B"), "data": (5, "B"), "ident_version": (6, "B"), "e_type": (16, "H"), "e_machine": (18, "H"),
        "e_version": (20, "I"), "e_shoff": (40, "Q"), "e_shentsize": (58, "H"), "e_shnum": (60, "H"),
    },
    "section": {
        "sh_type": (4, "I"), "sh_flags": (8, "Q"), "sh_addr": (16, "Q"), "sh_offset": (24, "Q"), "sh_size": (32, "Q"),
        "sh_link": (40, "I"), "sh_info": (44, "I"), "sh_addralign": (48, "Q"), "sh_entsize": (56, "Q"),
    },
    "symbol": {"st_name": (0, "I"), "st_info": (4, "B"), "st_shndx": (6, "H"), "st_value": (8, "Q")},
    "relocation": {"r_offset": (0, "Q"), "type": (8, "I"), "symbol": (12, "I"), "r_addend": (16, "q")},
}  # fmt: skip
SYMTAB, RELA, NOBITS, PROGBITS = 2, 4, 8, 1
WRITE, ALLOC, EXEC, TLS, COMPRESSED = 1, 2, 4, 0x400, 0x800
HUGE = (1 << 64) - 8


class Elf:
    """An object file, to be read and changed by field."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def _at(self, kind: str, number: int) -> int:
        if kind == "header":
            return 0
        if kind == "section":
            return self.get("header", 0, "e_shoff") + 64 * number
        table = self.section(SYMTAB) if kind == "symbol" else self.relocations
        return self.get("section", table, "sh_offset") + 24 * number

    def get(self, kind: str, number: int, field: str) -> int:
        offset, form = FIELDS[kind][field]
        return struct.unpack_from("<" + form, self.data, self._at(kind, number) + offset)[0]

    def set(self, kind: str, number: int, field: str, value: int) -> None:
        offset, form = FIELDS[kind][field]
        struct.pack_into("<" + form, self.data, self._at(kind, number) + offset, value)

    def section(self, kind: int, flags: int = 0) -> int:
        """The first section of a type, with at least these flags."""
        for number in range(self.get("header", 0, "e_shnum")):
            found = self.get("section", number, "sh_flags")
            if self.get("section", number, "sh_type") == kind and found & flags == flags:
                return number
        raise LookupError(kind)

    @property
    def text(self) -> int:
        return self.section(PROGBITS, EXEC)

    @property
    def relocations(self) -> int:
        """The section of the relocations of the code."""
        return next(
            n
            for n in range(self.get("header", 0, "e_shnum"))
            if self.get("section", n, "sh_type") == RELA and self.get("section", n, "sh_info") == self.text
        )

    def symbol(self, name: str) -> int:
        table = self.section(SYMTAB)
        names = self.get("section", self.get("section", table, "sh_link"), "sh_offset")
        for number in range(self.get("section", table, "sh_size") // 24):
            start = names + self.get("symbol", number, "st_name")
            if self.data[start : self.data.index(0, start)].decode() == name:
                return number
        raise LookupError(name)

    def relocation_by(self, name: str) -> int:
        count = self.get("section", self.relocations, "sh_size") // 24
        return next(n for n in range(count) if self.get("relocation", n, "symbol") == self.symbol(name))


def complaint(runtime, code: bytes) -> str:
    before = code_mappings()
    with pytest.raises(NrtError) as caught:
        runtime.load(artifact_of(bytes(code)))
    assert code_mappings() == before
    return str(caught.value)


DAMAGED, UNSUPPORTED = "NRT_INVALID(2)", "NRT_UNSUPPORTED_NEFF_VERSION(10)"


@pytest.mark.parametrize(
    ("where", "value", "status", "words"),
    [
        (("header", "class"), 1, UNSUPPORTED, "need 64 bits"),
        (("header", "data"), 2, UNSUPPORTED, "little-endian"),
        (("header", "ident_version"), 0, DAMAGED, "its version is unknown"),
        (("header", "e_version"), 7, DAMAGED, "its version is unknown"),
        (("header", "e_type"), 3, UNSUPPORTED, "of type 3, need an object"),
        (("header", "e_machine"), 243, UNSUPPORTED, "object code of machine 243"),
        (("header", "e_shoff"), HUGE, DAMAGED, "its section table leaves it"),
        (("header", "e_shoff"), 0, DAMAGED, ""),
        (("header", "e_shnum"), 0xFFFF, DAMAGED, "its section table leaves it"),
        (("header", "e_shnum"), 0, DAMAGED, "no symbol table"),
        (("header", "e_shentsize"), 40, DAMAGED, "its section headers"),
        (("text", "sh_offset"), HUGE, DAMAGED, "leaves it"),
        (("text", "sh_size"), HUGE, DAMAGED, "leaves it"),
        (("text", "sh_size"), 1 << 20, DAMAGED, "leaves it"),
        (("text", "sh_size"), 1, DAMAGED, "a relocation leaves its section"),
        (("text", "sh_flags"), ALLOC | EXEC | WRITE, UNSUPPORTED, "both writable and executable"),
        (("text", "sh_flags"), ALLOC | EXEC | TLS, UNSUPPORTED, "thread-local"),
        (("text", "sh_flags"), ALLOC | EXEC | COMPRESSED, UNSUPPORTED, "compressed"),
        (("text", "sh_flags"), ALLOC, DAMAGED, "a function outside of the code"),
        (("text", "sh_flags"), 0, DAMAGED, ""),
        (("text", "sh_type"), 14, UNSUPPORTED, "a section of type 14"),  # constructors
        (("text", "sh_addralign"), 48, DAMAGED, "no power of two"),
        (("text", "sh_addralign"), 1 << 40, UNSUPPORTED, "aligned to more than a page"),
        (("bss", "sh_size"), HUGE, UNSUPPORTED, "more than 64 MiB"),
        (("bss", "sh_size"), 1 << 30, UNSUPPORTED, "more than 64 MiB"),
        (("symbols", "sh_entsize"), 16, DAMAGED, "its symbols are of an unknown size"),
        (("symbols", "sh_size"), 25, DAMAGED, "its symbols are of an unknown size"),
        (("symbols", "sh_size"), 24, DAMAGED, "a relocation by an unknown symbol"),
        (("symbols", "sh_link"), 999, DAMAGED, "its symbols have no names"),
        (("symbols", "sh_link"), 1, DAMAGED, "its symbols have no names"),
        (("symbols", "sh_type"), PROGBITS, DAMAGED, "no symbol table"),
        (("names", "sh_size"), 1, DAMAGED, "leaves the names"),
        (("names", "sh_size"), 0, DAMAGED, "its names have no end"),
        (("relocations", "sh_type"), SYMTAB, DAMAGED, "two symbol tables"),
        (("relocations", "sh_type"), 9, UNSUPPORTED, "relocations without addends"),
        (("relocations", "sh_info"), 999, DAMAGED, "relocations of no section"),
        (("relocations", "sh_link"), 1, DAMAGED, "by an unknown symbol table"),
        (("relocations", "sh_entsize"), 16, DAMAGED, "its relocations are of an unknown size"),
        (("relocations", "sh_size"), 23, DAMAGED, "its relocations are of an unknown size"),
        (("call of sin", "r_offset"), HUGE, DAMAGED, "a relocation leaves its section"),
        (("call of sin", "r_offset"), "end", DAMAGED, "a relocation leaves its section"),
        (("call of sin", "type"), 199, UNSUPPORTED, "relocations of type 199"),
        (("call of sin", "symbol"), 1 << 20, DAMAGED, "a relocation by an unknown symbol"),
        (("call of sin", "symbol"), 0, DAMAGED, "a symbol without a name"),
        (("call of sin", "r_addend"), 1 << 40, UNSUPPORTED, "cannot reach sin"),
        (("sin", "st_name"), 1 << 30, DAMAGED, "a symbol's name leaves the names"),
        (("sin", "st_name"), "k", UNSUPPORTED, "it needs k, which no library has"),
        (("sin", "st_shndx"), 0xFFF2, UNSUPPORTED, "symbols in section 65522"),
        (("sin", "st_shndx"), 200, DAMAGED, "a symbol is in no section"),
        (("sin", "st_shndx"), "symbols", DAMAGED, "a section that is not loaded"),
        (("sin", "st_info"), 0x16, UNSUPPORTED, "symbols of type 6"),
        (("sin", "st_info"), 0x1A, UNSUPPORTED, "symbols of type 10"),
        (("k", "st_value"), HUGE, DAMAGED, "a function outside of the code"),
        (("k", "st_value"), "end", DAMAGED, "a function outside of the code"),
        (("k", "st_info"), 0x02, DAMAGED, "it has no function k"),  # local
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else str(value)[:24],
)
def test_damage(runtime, where, value, status, words):
    elf = Elf(object_code(SOURCE))
    table = elf.section(SYMTAB)
    records = {
        "header": ("header", 0), "text": ("section", elf.text), "bss": ("section", elf.section(NOBITS)),
        "symbols": ("section", table), "names": ("section", elf.get("section", table, "sh_link")),
        "relocations": ("section", elf.relocations), "call of sin": ("relocation", elf.relocation_by("sin")),
        "sin": ("symbol", elf.symbol("sin")), "k": ("symbol", elf.symbol("k")),
    }  # fmt: skip
    words_of_value = {
        "end": elf.get("section", elf.text, "sh_size") - (3 if where[0] == "call of sin" else 0),
        "k": elf.get("symbol", elf.symbol("k"), "st_name"),
        "symbols": table,
    }
    elf.set(*records[where[0]], where[1], words_of_value.get(value, value))
    text = complaint(runtime, elf.data)
    assert status in text and words in text


def test_relocations_that_are_not_known(runtime):
    text = complaint(runtime, object_code(SOURCE, ("-fPIC", "-mcmodel=large")))
    assert UNSUPPORTED in text and "relocations of type 29" in text  # R_X86_64_GOTPC64


def test_addresses_out_of_reach(runtime):
    text = complaint(runtime, object_code(SOURCE, ("-fno-pic",)))  # 32 bits for an address
    assert UNSUPPORTED in text and "a relocation of type 11 that cannot reach" in text


def test_a_far_call_into_the_middle_of_a_function(runtime):
    """A jump leads to a function's beginning only."""
    elf = Elf(object_code(BIG_SOURCE))
    call = elf.relocation_by("sin")
    elf.set("relocation", call, "r_addend", elf.get("relocation", call, "r_addend") + 4)
    with only_far_memory((40 << 20) - mmap.PAGESIZE):
        assert "cannot reach sin" in complaint(runtime, elf.data)


def test_not_an_object(runtime):
    assert "it is shorter than its header" in complaint(runtime, b"x")
    assert "it is not an ELF file" in complaint(runtime, b"not an object" * 10)
    assert "of type 3, need an object" in complaint(runtime, library.SOFTWARE_LIBRARY.read_bytes())


def test_every_truncation(runtime):
    code = object_code(SOURCE)
    for size in range(1, len(code)):
        assert DAMAGED in complaint_of_load(runtime, code[:size])


def complaint_of_load(runtime, code: bytes) -> str:
    """ "" if the code can be loaded; it is not run."""
    try:
        runtime.load(artifact_of(code)).unload()
    except NrtError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_never_crash(runtime, seed):
    """Damage is loaded (an instruction is as good as another) or refused, and leaves nothing behind."""
    code, dice, before = (
        object_code(SOURCE, ("-fPIC", "-g") if seed % 2 else ("-fPIC",)),
        random.Random(seed),
        code_mappings(),
    )
    table = Elf(code).get("header", 0, "e_shoff")
    outcomes = {"": 0, DAMAGED: 0, UNSUPPORTED: 0}
    for _ in range(5000):
        damaged = bytearray(code)
        for _ in range(dice.choice([1, 1, 2, 8])):
            # Half of it where the numbers are that lead to others.
            position = dice.choice([dice.randrange(len(code)), dice.randrange(64), dice.randrange(table, len(code))])
            damaged[position] ^= 1 << dice.randrange(8)
        text = complaint_of_load(runtime, bytes(damaged))
        outcomes[next(status for status in (DAMAGED, UNSUPPORTED, "") if status in text)] += 1
        assert not text or DAMAGED in text or UNSUPPORTED in text
    assert min(outcomes.values()) > 100
    assert code_mappings() == before
    assert objects_for_debuggers() == []


def test_a_failed_load_is_no_model(runtime):
    with pytest.raises(NrtError):
        runtime.load(artifact_of(object_code(SOURCE), ("k", "j")))
    assert run(runtime.load(artifact_of(object_code(SOURCE)))) == EXPECTED
