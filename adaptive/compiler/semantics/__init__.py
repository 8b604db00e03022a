"""Scalar semantics: what each ATen op does to one element, as vector IR. Importing this package fills the registry."""

from adaptive_eager.compiler.semantics import (  # noqa: F401  (imported for their rows)
    activation,
    arithmetic,
    backward,
    comparison,
    integer,
    loss,
    position,
    random,
    special,
)
from adaptive_eager.compiler.semantics.registry import OPS, Op, lookup

__all__ = ["OPS", "Op", "lookup"]
