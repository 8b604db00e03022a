"""Relocations of both machines, as arithmetic on bytes: AArch64's can be tried on any machine."""

import ctypes
import struct
import subprocess
from pathlib import Path

import pytest

from adaptive_eager.native import library

SHIM = r"""
#include "relocation.h"
extern "C" int refers(uint16_t machine, uint32_t type) { return int(neuroncore::relocation_kind(machine, type).refers); }
extern "C" int width(uint16_t machine, uint32_t type) { return neuroncore::relocation_kind(machine, type).width; }
extern "C" bool relocate(uint16_t machine, uint32_t type, uint8_t* place, uint64_t address, uint64_t target, int64_t addend) {
  return neuroncore::relocate(machine, type, place, address, target, addend);
}
extern "C" void linkage(uint16_t machine, uint8_t* place, uint64_t target) {
  neuroncore::write_linkage(machine, place, target);
}
"""  # noqa: E501

X86_64, AARCH64 = 62, 183
UNKNOWN, NOTHING, SYMBOL, CALLEE, SLOT = range(5)
BASE = 0x7F1234567000


@pytest.fixture(scope="module")
def relocation(tmp_path_factory):
    folder, nrt = tmp_path_factory.mktemp("relocation"), Path(library.__file__).parent / "nrt"
    (folder / "shim.cpp").write_text(SHIM)
    command = [
        "g++",
        "-std=c++20",
        "-shared",
        "-fPIC",
        f"-I{nrt}",
        str(folder / "shim.cpp"),
        str(nrt / "relocation.cpp"),
    ]
    subprocess.run([*command, "-o", str(folder / "relocation.so")], check=True)
    loaded = ctypes.CDLL(str(folder / "relocation.so"))
    loaded.relocate.argtypes = (
        ctypes.c_uint16, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64,
    )  # fmt: skip
    loaded.relocate.restype = ctypes.c_bool
    loaded.linkage.argtypes = (ctypes.c_uint16, ctypes.c_char_p, ctypes.c_uint64)
    return loaded


def changed(relocation, machine, kind, before, address, target, addend=0):
    """The bytes afterwards; None if it does not fit (then nothing is changed)."""
    place = ctypes.create_string_buffer(before, len(before))
    if relocation.relocate(machine, kind, place, address, target, addend):
        return place.raw
    assert place.raw == before
    return None


@pytest.mark.parametrize(
    ("kind", "width", "target", "addend", "expected"),
    [
        (1, 8, BASE, 5, struct.pack("<Q", BASE + 5)),  # 64
        (24, 8, 0, 0, struct.pack("<q", -BASE)),  # PC64
        (2, 4, BASE + 100, -4, struct.pack("<i", 96)),  # PC32
        (2, 4, BASE + (1 << 31) - 1, 0, struct.pack("<i", (1 << 31) - 1)),
        (2, 4, BASE + (1 << 31), 0, None),
        (2, 4, BASE - (1 << 31), 0, struct.pack("<i", -(1 << 31))),
        (2, 4, BASE - (1 << 31) - 1, 0, None),
        (4, 4, BASE - 100, -4, struct.pack("<i", -104)),  # PLT32
        (41, 4, BASE + 8, -4, struct.pack("<i", 4)),  # GOTPCRELX
        (10, 4, (1 << 32) - 2, 1, struct.pack("<I", (1 << 32) - 1)),  # 32
        (10, 4, (1 << 32) - 1, 1, None),
        (10, 4, 0, -1, None),
        (11, 4, 0, -1, struct.pack("<i", -1)),  # 32S
        (11, 4, 1 << 31, 0, None),
    ],
)
def test_x86_64(relocation, kind, width, target, addend, expected):
    assert relocation.width(X86_64, kind) == width
    assert changed(relocation, X86_64, kind, b"\xaa" * width, BASE, target, addend) == expected


ADRP, ADD, LDR_Q, LDR_X, LDRB, BL, B = (
    0x90000001,
    0x91000021,
    0x3DC00020,
    0xF9400020,
    0x39400020,
    0x94000000,
    0x14000000,
)


@pytest.mark.parametrize(
    ("kind", "before", "address", "target", "addend", "expected"),
    [
        # Worked out from the encodings in Arm's manual.
        (275, ADRP, 0x400000, 0x401230, 0, 0xB0000001),  # adrp x1, one page on
        (275, ADRP, 0x400FFC, 0x400010, 0, 0x90000001),  # the same page
        (275, ADRP, 0x402000, 0x401FFF, 0, 0xF0FFFFE1),  # one page back
        (275, ADRP, BASE, BASE + (1 << 32) - 1, 0, 0xF07FFFE1),
        (275, ADRP, BASE, BASE + (1 << 32), 0, None),
        (275, ADRP, BASE, BASE - (1 << 32), 0, 0x90800001),
        (275, ADRP, BASE, BASE - (1 << 32) - 1, 0, None),
        (274, 0x10000001, 0x400000, 0x400013, 0, 0x70000081),  # adr x1, 19 bytes on
        (277, ADD, 0, 0x401238, 4, 0x9108F021),  # add x1, x1, #0x23c
        (278, LDRB, 0, 0x401FFF, 0, 0x397FFC20),
        (286, LDR_X, 0, 0x401238, 0, 0xF9411C20),  # ldr x0, [x1, #0x238]
        (286, LDR_X, 0, 0x401234, 0, None),  # not of its alignment
        (299, LDR_Q, 0, 0x401240, 0, 0x3DC09020),  # ldr q0, [x1, #0x240]
        (299, LDR_Q, 0, 0x401238, 0, None),
        (283, BL, 0x400000, 0x400100, 0, 0x94000040),
        (283, BL, 0x400000, 0x3FFFFC, 0, 0x97FFFFFF),
        (283, BL, BASE, BASE + (1 << 27) - 4, 0, 0x95FFFFFF),
        (283, BL, BASE, BASE + (1 << 27), 0, None),
        (283, BL, BASE, BASE - (1 << 27), 0, 0x96000000),
        (283, BL, BASE, BASE - (1 << 27) - 4, 0, None),
        (283, BL, BASE, BASE + 2, 0, None),
        (282, B, 0x400000, 0x400100, 0, 0x14000040),
        (261, 0xAAAAAAAA, BASE, BASE - 8, 4, 0xFFFFFFFC),  # PREL32
        (258, 0xAAAAAAAA, BASE, 0xFFFFFFFF, 0, 0xFFFFFFFF),  # ABS32
        (258, 0xAAAAAAAA, BASE, 1 << 32, 0, None),
    ],
)
def test_aarch64(relocation, kind, before, address, target, addend, expected):
    result = changed(relocation, AARCH64, kind, struct.pack("<I", before), address, target, addend)
    assert result == (None if expected is None else struct.pack("<I", expected))
    # What an instruction has in the field already does not matter, and what is beside it stays.
    if result is not None:
        assert changed(relocation, AARCH64, kind, result, address, target, addend) == result


def test_aarch64_words(relocation):
    for kind, expected in ((257, BASE + 3), (260, 3)):
        assert relocation.width(AARCH64, kind) == 8
        assert changed(relocation, AARCH64, kind, bytes(8), BASE, BASE, 3) == struct.pack("<Q", expected)


def test_what_is_known(relocation):
    assert [relocation.refers(X86_64, t) for t in (0, 2, 4, 9, 29, 18)] == [
        NOTHING,
        SYMBOL,
        CALLEE,
        SLOT,
        UNKNOWN,
        UNKNOWN,
    ]
    assert [relocation.refers(AARCH64, t) for t in (0, 275, 283, 311, 280)] == [NOTHING, SYMBOL, CALLEE, SLOT, UNKNOWN]
    assert relocation.refers(243, 1) == UNKNOWN


def test_linkage(relocation):
    """A jump through the address in its second half."""
    place = ctypes.create_string_buffer(16)
    relocation.linkage(AARCH64, place, BASE)
    assert place.raw == struct.pack("<IIQ", 0x58000050, 0xD61F0200, BASE)  # ldr x16, .+8; br x16
    relocation.linkage(X86_64, place, BASE)
    assert place.raw == bytes.fromhex("ff2502000000") + bytes.fromhex("6690") + struct.pack("<Q", BASE)
