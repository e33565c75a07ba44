import pytest
import torch

from lapwing.linalg.operators import Dense
from lapwing.linalg.spectral import LARGE, decompose, eigh
from lapwing.runtime import memory

TALL = torch.randn(9, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("side", ["primal", "dual", "svd", None])
@pytest.mark.parametrize("matrix", [TALL, TALL.mT], ids=["tall", "wide"])
def test_spectrum_reconstructs_the_gram_matrix(matrix, side):
    spectrum = decompose(Dense(matrix), side)
    v, s = spectrum.vectors, spectrum.values
    torch.testing.assert_close(v * s @ v.mT, matrix.mT @ matrix, rtol=0, atol=1e-13 * float(s.max()))
    torch.testing.assert_close(v.mT @ v, torch.eye(len(s)).double(), rtol=0, atol=1e-12)
    assert torch.equal(spectrum.expand(torch.eye(len(s)).double()), v)
    assert spectrum.complete == (len(s) == matrix.shape[1])


@pytest.mark.parametrize("side", ["primal", "dual", "svd"])
def test_left_vectors_are_those_of_the_matrix(side):
    spectrum = decompose(Dense(TALL.mT), side)
    u = spectrum.left(Dense(TALL.mT), torch.eye(5).double()).mT  # (n, rank)
    kept = spectrum.determined > 0
    rebuilt = u * spectrum.values.sqrt() @ spectrum.vectors.mT
    torch.testing.assert_close(rebuilt, TALL.mT, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        spectrum.left_adjoint(Dense(TALL.mT), torch.eye(len(kept)).double()), u, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("side", ["primal", "dual", "svd"])
def test_rank_deficient_and_zero_matrices(side):
    doubled = torch.cat([TALL, TALL[:, :2], torch.zeros(9, 1).double()], dim=1)
    spectrum = decompose(Dense(doubled), side)
    assert int((spectrum.determined > 0).sum()) == 5
    assert float(decompose(Dense(torch.zeros(4, 3).double()), side).values.sum()) == 0


def test_what_does_not_fit_into_memory_is_refused_before_it_is_tried(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 50_000)
    message = "270 observations and 50 weights needs 90 kB, and 50 kB are available: use fewer columns"
    with pytest.raises(MemoryError, match=message):
        decompose(Dense(TALL.repeat(30, 10)), "primal")


def test_available_memory_is_a_plausible_number():
    assert 1e7 < memory.available_bytes() < 1e14
    assert memory.readable(5e15) == "5e+03 TB"


def test_large_symmetric_matrices_are_those_of_torch(generator):
    """By LAPACK's own driver: eigenvalues to round-off of the largest, vectors orthonormal, the matrix back."""
    root = torch.randn(LARGE + 40, LARGE + 3, generator=generator, dtype=torch.float64)
    matrix = root.mT @ root
    values, vectors = eigh(matrix.clone())
    largest = float(values.max())
    torch.testing.assert_close(values, torch.linalg.eigvalsh(matrix), rtol=0, atol=1e-13 * largest)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(LARGE + 3).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close((vectors * values) @ vectors.mT, matrix, rtol=0, atol=1e-12 * largest)
