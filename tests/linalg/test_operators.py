import numpy as np
import pytest
import scipy.sparse
import torch

from lapwing.linalg.operators import (
    BlockDiagonal,
    Dense,
    Diagonal,
    LinearOperator,
    LowRank,
    Sparse,
    Stacked,
    as_operator,
    check_adjoint,
    row_blocks,
)
from tests.properties import check_operator


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


A, B, C = normal(5, 7), normal(7, 4, seed=1), normal(5, 7, seed=2)
LEFT, RIGHT, BLOCKS, DIAGONAL = normal(5, 2), normal(7, 2, seed=3), normal(3, 2, 4), normal(6)
HOLES = torch.where(normal(5, 7, seed=4) > 0, A, 0.0)

MEMBERS = {
    "dense": (Dense(A), A),
    "sparse": (as_operator(scipy.sparse.csc_matrix(HOLES.numpy())), HOLES),
    "torch sparse": (as_operator(HOLES.to_sparse()), HOLES),
    "diagonal": (Diagonal(DIAGONAL), torch.diag(DIAGONAL)),
    "low rank": (LowRank(LEFT, RIGHT), LEFT @ RIGHT.mT),
    "block diagonal": (BlockDiagonal(BLOCKS), torch.block_diag(*BLOCKS)),
    "sum": (Dense(A) + LowRank(LEFT, RIGHT), A + LEFT @ RIGHT.mT),
    "centred sparse": (as_operator(scipy.sparse.csr_array(HOLES.numpy())) + LowRank(LEFT, RIGHT), HOLES + LEFT @ RIGHT.mT),
    "difference": (Dense(A) - Dense(C), A - C),
    "product": (Dense(A) @ Dense(B), A @ B),
    "scaled rows": (Diagonal(A[:, 0]) @ Dense(A), A[:, :1] * A),
    "scaled columns": (Dense(A) @ Diagonal(A[0]), A * A[0]),
    "scaled both": (Diagonal(A[:, 0]) @ (Dense(A) @ Diagonal(A[0])), A[:, :1] * A * A[0]),
    "blocks times": (BlockDiagonal(BLOCKS[:, :, :2]) @ Diagonal(DIAGONAL), torch.block_diag(*BLOCKS[:, :, :2]) * DIAGONAL),
    "transpose": (Dense(A).T, A.mT),
    "scale": (-2.5 * Dense(A), -2.5 * A),
    "transposed product": ((Dense(A) @ Dense(B)).T, (A @ B).mT),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMBERS)
def test_operator_obeys_the_laws(name, generator):
    check_operator(*MEMBERS[name], generator)


def test_row_blocks_cover_every_row_once():
    torch.testing.assert_close(torch.cat(list(row_blocks(Dense(A), elements=2 * 7))), A, rtol=0, atol=0)


def test_rows_of_scaled_rows_do_not_multiply_the_whole_matrix():
    class Counting(LinearOperator):
        shape, like = A.shape, A

        def matmat(self, x):
            raise AssertionError("a block of rows must not need whole products")

        rmatmat = matmat

        def rows(self, start, stop):
            return A[start:stop]

    torch.testing.assert_close((Diagonal(A[:, 0]) @ Counting()).rows(1, 3), A[1:3, :1] * A[1:3], rtol=0, atol=0)


def test_sums_and_products_of_misfitting_shapes_are_refused():
    with pytest.raises(ValueError, match=r"cannot add operators of shapes \[\(5, 7\), \(7, 4\)\]"):
        Dense(A) + Dense(B)
    with pytest.raises(ValueError, match=r"cannot multiply operators of shapes \(5, 7\) and \(5, 7\)"):
        Dense(A) @ Dense(C)


def test_a_wrong_adjoint_is_named():
    class Wrong(LinearOperator):
        shape, like = A.shape, A

        def matmat(self, x):
            return A @ x

        def rmatmat(self, y):
            return 1.001 * A.mT @ y

    with pytest.raises(ValueError, match="Wrong of shape .* is not adjoint to its transpose"):
        check_adjoint(Wrong(), generator=torch.Generator().manual_seed(0))


def test_overflow_is_not_called_a_wrong_adjoint():
    huge = Dense(torch.full((3, 5), 1e30))
    with pytest.raises(ValueError, match=r"products of Product of shape \(3, 3\) .* are not finite in torch.float32"):
        check_adjoint(huge @ huge.T, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool, np.float32, np.float64, ">f8"])
def test_numbers_of_any_kind_become_floating_point(dtype):
    matrix = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    operator = as_operator(matrix)
    assert operator.like.dtype == (torch.float32 if dtype == np.float32 else torch.float64)
    assert operator.dense().tolist() == [[1, 0, 1], [0, 1, 1]]


def test_reversed_and_read_only_arrays_are_accepted():
    array = np.arange(6.0).reshape(2, 3)[:, ::-1]
    array.flags.writeable = False
    assert as_operator(array).dense().tolist() == [[2, 1, 0], [5, 4, 3]]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros(3), "reshape"),
        (np.zeros((2, 3, 4)), r"shape \(2, 3, 4\)"),
        (np.array([["a", "b"]]), "expected numbers"),
        (np.array([[1, None]]), "expected numbers"),
        (np.zeros((2, 3), dtype=np.float16), "too coarse"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), "too coarse"),
        (np.zeros((2, 3), dtype=complex), "expected numbers"),
    ],
)
def test_what_is_not_a_matrix_of_numbers_is_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        as_operator(matrix)


def test_sparse_shares_the_memory_of_the_matrix_it_was_given():
    matrix = scipy.sparse.random_array((5, 7), density=0.4, rng=0, format="csr")
    operator = as_operator(matrix)
    assert isinstance(operator, Sparse)
    assert np.shares_memory(operator.matrix.data, matrix.data)


ROWS = normal(11, 4, seed=6)


def streamed(matrix: torch.Tensor = ROWS, batches: type = list) -> Stacked:
    return Stacked(Dense, batches([(part,) for part in matrix.split((3, 6, 2))]), (3, 6, 2), 4, ROWS)


class Once:
    """Batches that can only be iterated, as a loader gives them."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


@pytest.mark.parametrize("batches", [list, Once])
def test_streamed_rows_obey_the_laws(batches, generator):
    check_operator(streamed(batches=batches), ROWS, generator)
    scaled = Diagonal(normal(11)) @ (streamed(batches=batches) @ Diagonal(normal(4))) * 2.0
    check_operator(scaled, 2 * normal(11)[:, None] * ROWS * normal(4), generator)
    assert [start for start, _ in scaled.parts()] == [0, 3, 9]


def test_a_normal_product_works_on_one_part_at_a_time():
    """Nothing with as many rows as the data: the largest block has those of a batch."""
    seen = []

    class Noted(LinearOperator):
        def __init__(self, matrix):
            self.matrix = matrix

        shape = property(lambda self: tuple(self.matrix.shape))
        like = property(lambda self: self.matrix)

        def matmat(self, x):
            seen.append(len(self.matrix))
            return self.matrix @ x

        def rmatmat(self, y):
            seen.append(-len(y))
            return self.matrix.mT @ y

    operator = Stacked(Noted, [(part,) for part in ROWS.split((3, 6, 2))], (3, 6, 2), 4, ROWS)
    x = normal(4, 5, seed=7)
    torch.testing.assert_close((operator.T @ operator) @ x, ROWS.mT @ (ROWS @ x), rtol=1e-12, atol=1e-12)
    assert seen == [3, -3, 6, -6, 2, -2]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("batches", [list, Once])
def test_a_product_that_is_not_finite_names_its_batch(scaled, batches):
    broken = ROWS.clone()
    broken[5, 2] = torch.nan
    operator: LinearOperator = streamed(broken, batches)
    operator = Diagonal(normal(11)) @ operator @ Diagonal(normal(4)) if scaled else operator
    where = r"Stacked with a finite block is not finite in 5 of 5 columns \(batch 2 of 3, rows 3–8\): look for missing"
    x, y = normal(4, 5), normal(11, 5)
    for product in (lambda: operator @ x, lambda: operator.T @ y, lambda: (operator.T @ operator) @ x):
        with pytest.raises(ValueError, match=where):
            product()
    assert not (operator @ (x * torch.nan)).isfinite().any()  # not the operator's doing


def test_a_batch_of_another_height_is_refused():
    operator = Stacked(Dense, [(ROWS[:3],), (ROWS[3:],)], (3, 7), 4, ROWS)
    with pytest.raises(ValueError, match=r"batch 2 of 2 has shape \(8, 4\), expected \(7, 4\)"):
        operator @ normal(4, 2)
