"""Loop text: kernels come back from their text as they were."""

from __future__ import annotations

import pytest

from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store
from adaptive_eager.compiler.loop_text import parse

LOAD = Instr("load", (), "f32", "f32", (0,))
KERNELS = {
    "no dims": Kernel("", (Access("f32", ""), Access("f32", "")), (LOAD,), (Store(0, 1),)),
    "attributes": Kernel(
        "kk", (Access("f32", "sc"), Access("bool", "cs")),
        (
            LOAD, Instr("scalar", (), "f64", "f64", (0, "f")), Instr("constant", (), "f64", "f64", ("0x1.8p+0",)),
            Instr("index", (), "i64", "i64", (1, 0)),
            Instr("gelu", (0,), "f32", "f32", ("tanh", True, False, -3, "it's", "two words", "a ] b")),
            Instr("clamp", (4, -1, 1), "f32", "bool"),
        ),
        (Store(5, 1), Store(4, 0)),
    ),
    "reduction": Kernel(
        "kr", (Access("bf16", "sc"), Access("f32", "c0")),
        (Instr("load", (), "bf16", "bf16", (0,)), Instr("reduce", (0,), "f32", "f32", ("sum",))),
        (Store(0, 0),), (Instr("sqrt", (1,), "f32", "f32"),), (Store(2, 1), Store(1, 1)),
    ),
    "reduction without an epilogue": Kernel(
        "r", (Access("f32", "c"), Access("f32", "0")),
        (LOAD, Instr("reduce", (0,), "f32", "f32", ("amax",))), (), (), (Store(1, 1),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_round_trip(name):
    assert parse(KERNELS[name].text()) == KERNELS[name]


@pytest.mark.parametrize("text", ["", "dims k\nneg %0 f32", "dims k\n\naccess f32 c", "access f32 c"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="not the text of a kernel"):
        parse(text)
