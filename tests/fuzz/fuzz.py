"""One seed of the fuzzer: write, check, shrink, print."""

from __future__ import annotations

import re
import textwrap
import warnings

import writer
from program import Program
from runs import Fault, check
from shrink import shrink

#: Errors that were reported: the same one again is not shrunk again.
known: set[str] = set()


def check_program(program: Program, seconds: float = 60) -> str:
    """A report of what is wrong with a program, with the script of its smallest form; "" if nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fault = check(program)
        if fault is None:
            return ""
        if fault.kind in ("error", "unfused"):
            text = re.sub(r"\d+", "n", fault.text[:80])
            if text in known:
                return f"{fault.kind}: {fault.run} (seen before)\n{fault.text}"
            known.add(text)
        small = shrink(program, lambda candidate: same_fault(candidate, fault), seconds)
        return report(small, again(small, fault) or fault)


def again(program: Program, fault: Fault) -> Fault | None:
    """The fault of a candidate, looked for where the first one was found."""
    runs = () if fault.run is None or (fault.run.mode == "stepwise" and fault.kind == "error") else (fault.run,)
    try:
        return check(program, runs, cpu=fault.kind == "cpu")
    except Exception:  # the CPU or the reference refuses the candidate
        return None


def same_fault(program: Program, fault: Fault) -> bool:
    if fault.kind == "error" and any(writer.refused(thread) for thread in program.threads):
        return False
    found = again(program, fault)
    if found is None or found.kind != fault.kind:
        return False
    return fault.kind != "error" or found.text[:30] == fault.text[:30]


def report(program: Program, fault: Fault) -> str:
    text = textwrap.indent(fault.text, "  ")
    return f"{fault.kind}: {fault.run or 'against the CPU'}\n{text}\n\n{program.script(fault.checks())}"


def check_seed(seed: int, seconds: float = 60) -> str:
    found = check_program(writer.write(seed), seconds)
    return f"seed {seed}: {found}" if found else ""
