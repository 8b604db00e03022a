"""Row programs: ops over rows, each written as pointwise ops and reductions (see `expansion`).

Formulas are the textbook ones. Values between the parts are kept in the compute dtype, float32 for half types, and
rounded where they are stored. Importing this package fills the registry.
"""

from adaptive_eager.row_programs import (  # noqa: F401  (imported for their programs)
    activation,
    loss,
    moments,
    normalisation,
    softmax,
)
from adaptive_eager.row_programs.registry import ROW_PROGRAMS

__all__ = ["ROW_PROGRAMS"]
