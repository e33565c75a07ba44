"""Features made batch by batch: no block of all rows is ever in memory, the answer is the same, Ctrl-C is harmless."""

import sys
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lapwing import CG, SGD, Exact, Gaussian, GPrior, Isotropic, Krylov, LinearModel, infer
from lapwing.linalg.operators import Dense, LinearOperator, Stacked
from tests.problems import linear

DATA = linear(531, 1, 23, noise_std=1.0, seed=3)
HEIGHTS = (100, 100, 100, 100, 100, 31)
METHODS = {
    "exact": Exact(),
    "krylov": Krylov(rtol=1e-8),
    "cg": CG(rtol=1e-10),
    "nystrom": CG(rtol=1e-10, rank=7),
    "sgd": SGD(batch_size=50, steps=300, em_steps=2),
}


def streamed(matrix: Tensor = DATA.features) -> Stacked:
    return Stacked(Dense, [(part,) for part in matrix.split(HEIGHTS)], HEIGHTS, 23, matrix)


class Widest(TorchDispatchMode):
    """The most columns of any tensor made with as many rows as there are data, or rows of one with such columns."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.columns = n, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor) and self.n in tensor.shape:
                self.columns = max(self.columns, tensor.numel() // self.n)
        return result


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("likelihood", [Gaussian(), Gaussian(0.7)], ids=["noise tuned", "noise given"])
def test_streamed_features_need_no_block_of_all_rows(name, likelihood):
    with Widest(531) as seen:
        streaming = infer(
            LinearModel(streamed(), DATA.targets, likelihood), prior=GPrior(), method=METHODS[name], draws=4
        )
    assert seen.columns == 1
    stored = infer(LinearModel(DATA.features, DATA.targets, likelihood), prior=GPrior(), method=METHODS[name], draws=4)
    if name != "sgd":  # the others are told how to draw their batches
        assert float((streaming.draws - stored.draws).norm() / stored.draws.norm()) < 1e-6
    assert max(streaming.diagnostics.residuals) < (0.5 if name == "sgd" else 1e-6)


def test_the_law_can_fail():
    with Widest(531) as seen:
        infer(LinearModel(DATA.features, DATA.targets, Gaussian()), method=Krylov(), draws=4)
    assert seen.columns > 4


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_that_is_not_finite_is_named_by_every_method(name):
    broken = DATA.features.clone()
    broken[250, 3] = torch.inf
    model = LinearModel(streamed(broken), DATA.targets, Gaussian(1.0))
    with pytest.raises(ValueError, match=r"\(batch 3 of 6, rows 200–299\)"):
        infer(model, prior=Isotropic(1.0), method=METHODS[name], draws=4)


@dataclass(eq=False)
class Interrupted(LinearOperator):
    """Someone presses Ctrl-C during a product."""

    matrix: Tensor
    allowed: int
    made: int = field(default=0)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.shape[0], self.matrix.shape[1])

    @property
    def like(self) -> Tensor:
        return self.matrix

    def _count(self) -> None:
        self.made += 1
        if self.made > self.allowed:
            raise KeyboardInterrupt

    def matmat(self, x: Tensor) -> Tensor:
        self._count()
        return self.matrix @ x

    def rmatmat(self, y: Tensor) -> Tensor:
        self._count()
        return self.matrix.mT @ y

    def rows(self, start: int, stop: int) -> Tensor:
        self._count()
        return self.matrix[start:stop]


@pytest.mark.parametrize("name", METHODS)
def test_ctrl_c_ends_cleanly_wherever_it_comes(name, capsys, monkeypatch):
    matrix, targets, weights = DATA.features.clone(), DATA.targets.clone(), torch.linspace(0.5, 2, 531).double()
    before = [x.clone() for x in (matrix, targets, weights)]
    operator = Interrupted(matrix, 10**9)
    model = LinearModel(operator, targets, Gaussian(), weights=weights)
    state, hook = torch.get_rng_state(), sys.excepthook
    expected = infer(model, prior=Isotropic(), method=METHODS[name], draws=4).draws
    total, shown = operator.made, []
    assert total > 3
    for allowed in sorted({0, 1, total // 4, total - 1}):
        operator.made, operator.allowed = 0, allowed
        with pytest.raises(KeyboardInterrupt):
            infer(model, prior=Isotropic(), method=METHODS[name], draws=4, progress=shown.append)
        assert operator.made == allowed + 1  # nothing is tried again
        assert not shown or shown[-1] == ""
    operator.made, operator.allowed = 0, total // 2
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with pytest.raises(KeyboardInterrupt):
        infer(model, prior=Isotropic(), method=METHODS[name], draws=4, progress=True)
    assert capsys.readouterr().err.endswith("\r\033[K")  # the line is wiped, the cursor at its start
    assert all(torch.equal(x, y) for x, y in zip(before, (matrix, targets, weights), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert sys.excepthook is hook
    operator.made, operator.allowed = 0, 10**9
    assert torch.equal(infer(model, prior=Isotropic(), method=METHODS[name], draws=4).draws, expected)


def test_rows_that_are_not_finite_are_named_where_a_gram_matrix_is_made():
    broken = DATA.features.clone()
    broken[250, 3] = torch.nan
    model = LinearModel(Interrupted(broken, 10**9), DATA.targets, Gaussian(1.0))
    with pytest.raises(ValueError, match=r"Interrupted of shape \(531, 23\) .* in 1 of 23 columns \(rows 0–530\)"):
        infer(model, prior=Isotropic(1.0), method=Exact(), draws=4)
