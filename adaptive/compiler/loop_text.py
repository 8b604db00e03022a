"""Loop text: a kernel from its canonical text (`Kernel.text()`), for what has been stored."""

from __future__ import annotations

import ast
import re

from adaptive_eager.compiler.loop_ir import Access, Instr, Kernel, Store

_ACCESS = re.compile(r"access (\S+) (\S*)")
_INSTR = re.compile(r"(\S+) \((.*?)\) \[(.*)\] (\S+) -> (\S+)")
_STORE = re.compile(r"store %(\d+) -> (\d+)")
_ATTR = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\S+")


def parse(text: str) -> Kernel:
    """The kernel of a text. Raises ValueError if `Kernel.text()` would not have written it."""
    accesses: list[Access] = []
    programs: list[list[Instr]] = [[], []]
    stores: list[list[Store]] = [[], []]
    head, *lines = text.split("\n")
    part = 0
    for line in lines:
        if match := _ACCESS.fullmatch(line):
            accesses.append(Access(match[1], match[2]))
        elif match := _STORE.fullmatch(line):
            stores[part].append(Store(int(match[1]), int(match[2])))
        elif match := _INSTR.fullmatch(line):
            programs[part].append(_instr(*match.groups()))
        elif line == "epilogue":
            part = 1
    kernel = Kernel(
        head.removeprefix("dims "), tuple(accesses), tuple(programs[0]), tuple(stores[0]), tuple(programs[1]),
        tuple(stores[1]),
    )  # fmt: skip
    if kernel.text() != text:
        raise ValueError("this is not the text of a kernel of this version")
    return kernel


def _instr(op: str, args: str, attrs: str, compute: str, dtype: str) -> Instr:
    operands = tuple(-1 if arg == "-" else int(arg.removeprefix("%")) for arg in args.split())
    return Instr(op, operands, compute, dtype, tuple(ast.literal_eval(attr) for attr in _ATTR.findall(attrs)))
