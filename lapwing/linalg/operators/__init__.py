"""Linear operators: matrices known by their products with blocks of columns."""

from lapwing.linalg.operators.batched import BatchSum, Stacked
from lapwing.linalg.operators.composed import Double, Product, Scaled, Sum, Transpose
from lapwing.linalg.operators.distributed import Sharded
from lapwing.linalg.operators.interface import (
    BLOCK_ELEMENTS,
    Blockwise,
    Costs,
    LinearOperator,
    OnRows,
    OverData,
    row_blocks,
    unit_columns,
)
from lapwing.linalg.operators.products import (
    Rows,
    check_adjoint,
    check_product,
    gram,
    normal_product,
    over_parts,
    row_gram,
    rows_of,
)
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
    "Blockwise",
    "Costs",
    "Dense",
    "Diagonal",
    "Double",
    "LinearOperator",
    "LowRank",
    "OnRows",
    "OverData",
    "Product",
    "Rows",
    "Scaled",
    "Sharded",
    "Sparse",
    "Stacked",
    "Sum",
    "Transpose",
    "as_operator",
    "as_tensor",
    "check_adjoint",
    "check_product",
    "gram",
    "normal_product",
    "over_parts",
    "row_blocks",
    "row_gram",
    "rows_of",
    "unit_columns",
]
