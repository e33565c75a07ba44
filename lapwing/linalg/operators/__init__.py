"""Linear operators: matrices known by their products with blocks of columns."""

from lapwing.linalg.operators.composed import BatchSum, Product, Scaled, Sum, Transpose
from lapwing.linalg.operators.interface import BLOCK_ELEMENTS, LinearOperator, row_blocks, unit_columns
from lapwing.linalg.operators.products import check_adjoint, gram, row_gram, rows_of
from lapwing.linalg.operators.stored import (
    BlockDiagonal,
    Dense,
    Diagonal,
    LowRank,
    Sparse,
    as_operator,
    as_tensor,
)

__all__ = [
    "BLOCK_ELEMENTS",
    "BatchSum",
    "BlockDiagonal",
    "Dense",
    "Diagonal",
    "LinearOperator",
    "LowRank",
    "Product",
    "Scaled",
    "Sparse",
    "Sum",
    "Transpose",
    "as_operator",
    "as_tensor",
    "check_adjoint",
    "gram",
    "row_blocks",
    "row_gram",
    "rows_of",
    "unit_columns",
]
