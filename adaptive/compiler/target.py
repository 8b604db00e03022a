"""Target: the CPU that kernels are generated for, and its vector width in elements.

The lane count is a property of the target alone. It never depends on what a kernel computes, because the order in which
a reduction adds its elements depends on it. It counts elements, whatever their type: LLVM legalises `<8 x i64>` to two
AVX2 registers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

#: Instruction sets beyond which a host counts as the named target, and the lanes of each.
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c")
_AVX2 = ("avx2", "fma", "f16c")
_LANES = {"avx512": 16, "avx2": 8, "generic": 4}


@dataclass(frozen=True)
class Target:
    """What code is generated for.

    name      family: "avx512", "avx2" or "generic"; it selects the vector mathematics library calls
    triple    LLVM target triple
    cpu       LLVM processor name
    features  LLVM feature string ("+avx2,+fma,..."), or ""
    lanes     elements a vector, for every dtype
    """

    name: str
    triple: str
    cpu: str
    features: str
    lanes: int

    def key(self) -> str:
        """Text that identifies the generated code's requirements, for cache keys."""
        return "|".join((self.name, self.triple, self.cpu, self.features, str(self.lanes)))

    @classmethod
    def from_key(cls, text: str) -> Target:
        """The target whose `key` is `text`. Raises ValueError."""
        name, triple, cpu, features, lanes = text.split("|")
        return cls(name, triple, cpu, features, int(lanes))

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith(("x86_64", "i386", "i686"))

    @property
    def has_f16c(self) -> bool:
        """Whether half <-> float conversions are single instructions (otherwise LLVM would call a library)."""
        return self.name in ("avx512", "avx2")

    @property
    def has_fma(self) -> bool:
        """Whether a fused multiply-add is one instruction (otherwise LLVM would call a library, an element a call)."""
        return self.name in ("avx512", "avx2")

    def masks_loads(self, bits: int) -> bool:
        """Whether a load of some lanes of a vector of elements of this width is one instruction."""
        return self.name == "avx512" or (self.name == "avx2" and bits in (32, 64))

    @property
    def masks_stores(self) -> bool:
        """Whether a store of some lanes of a vector is one fast instruction: before AVX-512 it may be microcode."""
        return self.name == "avx512"

    @functools.cached_property
    def function_attributes(self) -> str:
        """LLVM attributes of every function: 512-bit vectors must be legal, or they travel in the wrong registers."""
        if self.name != "avx512":
            return "nounwind"
        return 'nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512"'


@dataclass(frozen=True)
class Host:
    """What LLVM says of this machine.

    llvm      LLVM's version
    triple    LLVM target triple of this process
    cpu       LLVM processor name
    features  LLVM feature string, of all features that LLVM knows: "+avx2,-avx512f,..."
    """

    llvm: str
    triple: str
    cpu: str
    features: str

    @property
    def family(self) -> str:
        """Name of the widest target family that the host can run."""
        flags = set(self.features.split(","))
        for name, needed in (("avx512", _AVX512), ("avx2", _AVX2)):
            if all(f"+{feature}" in flags for feature in needed):
                return name
        return "generic"

    def target(self) -> Target:
        """The target of the machine: its own processor and features, at its widest family."""
        flags = self.features + (",-prefer-256-bit" if self.family == "avx512" else "")
        return Target(self.family, self.triple, self.cpu, flags, _LANES[self.family])


@functools.cache
def ask_llvm() -> Host:
    """This machine, in LLVM's own words."""
    import llvmlite.binding as llvm

    version = ".".join(str(part) for part in llvm.llvm_version_info)
    features = llvm.get_host_cpu_features().flatten()
    return Host(version, llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


def host_target() -> Target:
    """The target of this machine. Loads LLVM."""
    return ask_llvm().target()


@functools.cache
def named_target(name: str) -> Target:
    """The baseline processor of a family. Raises ValueError for a name that is not a family. Loads LLVM."""
    if name not in _LANES:
        raise ValueError(f"unknown target {name!r}, need one of {', '.join(_LANES)}")
    if name == "generic":
        triple = ask_llvm().triple
        cpu = "x86-64" if triple.startswith("x86_64") else "generic"
        return Target(name, triple, cpu, "", _LANES[name])
    cpu = {"avx512": "x86-64-v4", "avx2": "x86-64-v3"}[name]
    features = "-prefer-256-bit" if name == "avx512" else ""
    return Target(name, "x86_64-unknown-linux-gnu", cpu, features, _LANES[name])


def host_can_run(target: Target) -> bool:
    """Whether this machine can execute code of `target`. Loads LLVM."""
    order, host = list(_LANES), ask_llvm()
    if target.name == "generic":
        return target.triple.split("-")[0] == host.triple.split("-")[0]
    return order.index(host.family) <= order.index(target.name)
