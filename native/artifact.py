"""Artefact: a compiled software kernel as bytes, for `nrt_load` and for the kernel cache.

Layout, little-endian; text is a 32-bit length and that many bytes of UTF-8:

    8 bytes     magic "AENC\\r\\n\\x1a\\n" (a transfer that changes line ends breaks it)
    u32         format version
    32 bytes    sha256 of everything that follows
    text        target: what machine the code is for, as the compiler names it
    u32 n, n x  text                              entry points
    u32 n, n x  text, u32 usage, u32 dtype, u64 size   tensors, in the order of the kernel's accesses; size 0 is any
    u32 n, n x  text key, text value              metadata of the compiler
    u64 n, n    object code: an ELF relocatable object
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAGIC = b"AENC\r\n\x1a\n"
FORMAT_VERSION = 1
_CHECKSUM = slice(12, 44)
_PAYLOAD = 44

INPUT, OUTPUT = "input", "output"
_USAGES = (INPUT, OUTPUT)

# Codes of nrt_dtype_t, and the software core's own from 0x40 on. "unknown" has no element size, so nothing is checked.
DTYPES = {
    "unknown": 0x0,
    "uint64": 0x1,
    "int8": 0x2,
    "uint8": 0x3,
    "int16": 0x4,
    "uint16": 0x5,
    "bfloat16": 0x6,
    "float16": 0x7,
    "int32": 0x8,
    "uint32": 0x9,
    "float32": 0xA,
    "fp32r": 0xB,
    "int64": 0xC,
    "fp8_e3": 0xD,
    "fp8_e4": 0xE,
    "fp8_e5": 0xF,
    "float64": 0x40,
    "bool": 0x41,
}
_DTYPE_NAMES = {code: name for name, code in DTYPES.items()}


class ArtifactError(ValueError):
    """The bytes are not an artefact of this version, or a part cannot be put into one."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a kernel works on. `size` is in bytes, 0 for any."""

    name: str
    usage: str
    dtype: str
    size: int = 0


@dataclass(frozen=True)
class Artifact:
    target: str
    entries: tuple[str, ...]
    code: bytes = field(repr=False)
    tensors: tuple[TensorSpec, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


def pack(
    target: str,
    entries: Iterable[str],
    code: bytes,
    tensors: Iterable[TensorSpec] = (),
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The artefact as bytes. The same arguments give the same bytes: metadata is sorted by key."""
    entries, tensors, metadata = tuple(entries), tuple(tensors), dict(metadata or {})
    _check_names("entry", entries)
    _check_names("tensor", [tensor.name for tensor in tensors], taken="launch")
    if not entries or not code:
        raise ArtifactError("an artefact needs at least one entry, and object code")

    parts = [_text(target), struct.pack("<I", len(entries)), *map(_text, entries)]
    parts += [struct.pack("<I", len(tensors)), *map(_tensor, tensors)]
    parts += [struct.pack("<I", len(metadata))]
    parts += [_text(key) + _text(metadata[key]) for key in sorted(metadata)]
    parts += [struct.pack("<Q", len(code)), code]
    payload = b"".join(parts)
    return MAGIC + struct.pack("<I", FORMAT_VERSION) + hashlib.sha256(payload).digest() + payload


def unpack(data: bytes) -> Artifact:
    """The parts of an artefact, or ArtifactError. Checks what the software core checks, and that text is UTF-8."""
    if not data.startswith(MAGIC):
        raise ArtifactError("not an artefact: wrong magic")
    if len(data) < _PAYLOAD:
        raise ArtifactError(f"truncated: {len(data)} bytes")
    version = struct.unpack_from("<I", data, len(MAGIC))[0]
    if version != FORMAT_VERSION:
        raise ArtifactError(f"format version {version}, and this needs {FORMAT_VERSION}")
    if hashlib.sha256(data[_PAYLOAD:]).digest() != data[_CHECKSUM]:
        raise ArtifactError("damaged: wrong checksum")

    reader = _Reader(data, _PAYLOAD)
    target = reader.text()
    entries = tuple(reader.text() for _ in range(reader.number("<I")))
    tensors = tuple(reader.tensor() for _ in range(reader.number("<I")))
    metadata = {reader.text(): reader.text() for _ in range(reader.number("<I"))}
    code = reader.take(reader.number("<Q"))
    if reader.position != len(data):
        raise ArtifactError(f"{len(data) - reader.position} bytes too many")
    _check_names("entry", entries)
    _check_names("tensor", [tensor.name for tensor in tensors], taken="launch")
    if not entries or not code:
        raise ArtifactError("no entry or no object code")
    return Artifact(target, entries, code, tensors, metadata)


def _check_names(kind: str, names: Iterable[str], taken: str = "") -> None:
    """Names are C strings of at most 255 bytes, and unique; `taken` is not free."""
    seen = {taken}
    for name in names:
        if not name or "\0" in name or len(_encoded(name)) > 255:
            raise ArtifactError(f"{kind} name {name[:80]!r} is empty, has a zero byte or is longer than 255 bytes")
        if name in seen:
            raise ArtifactError(f"{kind} name {name!r} is taken")
        seen.add(name)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ArtifactError(f"cannot be written as UTF-8: {text[:80]!r}") from error


def _text(text: str) -> bytes:
    encoded = _encoded(text)
    return struct.pack("<I", len(encoded)) + encoded


def _tensor(tensor: TensorSpec) -> bytes:
    if tensor.usage not in _USAGES:
        raise ArtifactError(f"tensor {tensor.name!r}: usage {tensor.usage!r} is neither {INPUT!r} nor {OUTPUT!r}")
    if tensor.dtype not in DTYPES:
        raise ArtifactError(f"tensor {tensor.name!r}: unknown dtype {tensor.dtype!r}")
    if not 0 <= tensor.size < 1 << 64:
        raise ArtifactError(f"tensor {tensor.name!r}: size {tensor.size} is out of range")
    return _text(tensor.name) + struct.pack("<IIQ", _USAGES.index(tensor.usage), DTYPES[tensor.dtype], tensor.size)


class _Reader:
    """A cursor that never leaves the data."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position

    def take(self, count: int) -> bytes:
        start, end = self.position, self.position + count
        if end > len(self._data):
            raise ArtifactError(f"truncated: {count} bytes wanted at {start} of {len(self._data)}")
        self.position = end
        return self._data[start:end]

    def number(self, form: str) -> int:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        try:
            return self.take(self.number("<I")).decode()
        except UnicodeDecodeError as error:
            raise ArtifactError(f"damaged text: {error}") from error

    def tensor(self) -> TensorSpec:
        name, usage, dtype, size = self.text(), self.number("<I"), self.number("<I"), self.number("<Q")
        if usage >= len(_USAGES) or dtype not in _DTYPE_NAMES:
            raise ArtifactError(f"tensor {name!r}: unknown usage {usage} or dtype {dtype:#x}")
        return TensorSpec(name, _USAGES[usage], _DTYPE_NAMES[dtype], size)
