"""Cache keys: sha256 over an ordered list of named fields, each of which can be seen in the log.

A key must name everything that can change the generated code or the plan, and nothing else: no sizes, line numbers,
paths, process ids. When two processes disagree about a key, DEBUG logs of both show the field in which they differ.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

log = logging.getLogger("adaptive_eager.cache.key")

#: Version of the list of fields below and of what the payloads mean. Raise it when either changes.
FORMAT = 1

#: A named field of a key, and a key's fields in their order.
Field = tuple[str, str]
Fields = Sequence[Field]


def digest(fields: Iterable[tuple[str, str | bytes]]) -> str:
    """Hex sha256 of named fields. Lengths are hashed with the bytes, so no two lists run into the same text."""
    return _finish(_absorb(hashlib.sha256(), fields))


def source_hash(paths: Sequence[Path]) -> str:
    """Hex sha256 of source files: names and contents. A folder stands for the Python files below it.

    Names are taken relative to the folder that was given (or are the bare file name), so that a moved installation
    keeps its cache.
    """
    files: list[tuple[str, Path]] = []
    for path in paths:
        if path.is_dir():
            files += [(f"{path.name}/{file.relative_to(path).as_posix()}", file) for file in path.rglob("*.py")]
        elif path.is_file():
            files.append((path.name, path))
        else:
            raise FileNotFoundError(f"no generator source {path}: need the files whose change must change every key")
    return digest((name, file.read_bytes()) for name, file in sorted(files))


class KeyMaker:
    """Makes the keys of one generator for one target.

    sources  files and folders of the code generator; a change to any of them changes every key
    target   text that names the machine code: triple, CPU and features
    options  further (name, value) pairs that change what is generated
    versions (name, version) pairs of what the code is made with and linked to; by default llvmlite, LLVM and torch
    """

    def __init__(
        self,
        sources: Sequence[Path],
        target: str,
        options: Fields = (),
        versions: Fields | None = None,
    ) -> None:
        common: list[Field] = [("format", str(FORMAT)), ("generator", source_hash(sources)), ("target", target)]
        common += versions if versions is not None else tool_versions()
        common += options
        self._common = tuple(common)
        # The common fields are hashed once: a key then costs one copy of the state and its own text.
        self._absorbed = _absorb(hashlib.sha256(), common)

    def key(self, kind: str, text: str, options: Fields = ()) -> str:
        """Key of one entry. `text` is its canonical text: equal text means the same kernel (or plan)."""
        return _finish(_absorb(self._absorbed.copy(), _own(kind, text, options)))

    def fields(self, kind: str, text: str, options: Fields = ()) -> Fields:
        """All named fields that `key` hashes, in their order: `digest` of them is the key."""
        return (*self._common, *_own(kind, text, options))


def tool_versions(llvm: str | None = None) -> list[tuple[str, str]]:
    """Versions of what kernels are made with (llvmlite, LLVM) and linked to or measured by (torch).

    llvm: LLVM's version, for who knows it; otherwise LLVM is loaded and asked.
    """
    import torch

    if llvm is None:
        from adaptive_eager.compiler.target import ask_llvm

        llvm = ask_llvm().llvm
    return [("llvmlite", importlib.metadata.version("llvmlite")), ("llvm", llvm), ("torch", torch.__version__)]


def _own(kind: str, text: str, options: Fields) -> Fields:
    return (("kind", kind), *options, ("text", text))


def _absorb(state: hashlib._Hash, fields: Iterable[tuple[str, str | bytes]]) -> hashlib._Hash:
    for name, value in fields:
        data = value.encode() if isinstance(value, str) else value
        label = name.encode()
        state.update(b"%d:%s=%d:" % (len(label), label, len(data)))
        state.update(data)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: %s, so far %s", name, hashlib.sha256(data).hexdigest()[:16], state.hexdigest()[:16])
    return state


def _finish(state: hashlib._Hash) -> str:
    key = state.hexdigest()
    log.debug("key %s", key)
    return key
