"""Outputs of many axes: classes of pixels and tokens on any axis, variances without a Jacobian, chosen covariances."""

import pytest
import torch
from torch import Tensor, nn

from lapwing import Bernoulli, Categorical, Exact, Gaussian, GPrior, Isotropic, Krylov, fit, linearise
from lapwing.network.jacobian import Jacobian, jacobian, products
from tests.network.networks import normal, seeded
from tests.network.sequences import dense_rows

ALPHA = 1.3


class Pixels(nn.Module):
    """Classes of pixels, (n, 3, 4, 5), or with them last."""

    def __init__(self, last: bool = False):
        super().__init__()
        self.inner, self.outer, self.last = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 1), last

    def forward(self, x: Tensor) -> Tensor:
        found = self.outer(torch.tanh(self.inner(x)))
        return found.movedim(1, -1) if self.last else found


def pixels(last: bool = False) -> nn.Module:
    return seeded(lambda: Pixels(last), None)[0]


X, NEW = normal(6, 2, 4, 5, seed=1), normal(2, 2, 4, 5, seed=2)
LABELS = torch.randint(3, (6, 4, 5), generator=torch.Generator().manual_seed(3))


def weights_of(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def dense_of(model: Pixels, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The posterior covariance of the weights, and rows of the new outputs with their classes last."""
    p = weights_of(model)

    def rows(x: Tensor) -> Tensor:
        found = dense_rows(model, lambda out: out if model.last else out.movedim(1, -1), x)
        return found.reshape(len(x), 4, 5, 3, p)

    outputs = model(X).detach() if model.last else model(X).detach().movedim(1, -1)
    probs = outputs.softmax(-1)
    blocks = torch.diag_embed(probs) - probs[..., None] * probs[..., None, :]
    kept = (targets != -100).double()
    curvature = torch.einsum("nhwap,nhwab,nhw,nhwbq->pq", rows(X), blocks, kept, rows(X))
    return torch.linalg.inv(curvature + ALPHA * torch.eye(p, dtype=torch.float64)), rows(NEW)


@pytest.mark.parametrize(("last", "dim"), [(False, 1), (False, -3), (True, -1), (True, 3)], ids=str)
def test_classes_on_any_axis_have_the_dense_posterior(last, dim):
    model, targets = pixels(last), LABELS.clone()
    assert weights_of(model) == 2 * 3 * 9 + 3 + 9 + 3
    targets[0, 1:3] = -100
    given = {"prior": Isotropic(ALPHA), "method": Exact(), "draws": 2, "curvature": "network"}
    posterior = fit(model, (X, targets), Categorical(dim=dim), **given)
    covariance, rows = dense_of(model, targets)
    torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-7, atol=1e-9)
    prediction = posterior.predict(NEW)
    expected = torch.einsum("nhwap,pq,nhwbq->nhwab", rows, covariance, rows)
    torch.testing.assert_close(prediction.observation.spread.covariance, expected, rtol=1e-7, atol=1e-9)
    variance = expected.diagonal(dim1=3, dim2=4)
    shown = prediction.epistemic_variance if last else prediction.epistemic_variance.movedim(1, -1)
    torch.testing.assert_close(shown, variance, rtol=1e-7, atol=1e-9)
    centre = torch.eye(3).double() - 1 / 3
    left = (centre @ expected @ centre).diagonal(dim1=3, dim2=4).sum((1, 2, 3))  # over all places of a picture
    prior = (centre @ rows).square().sum((1, 2, 3, 4)) / ALPHA
    torch.testing.assert_close(prediction.novelty, left / prior, rtol=1e-7, atol=0)
    torch.testing.assert_close(prediction[1:].novelty, prediction.novelty[1:])
    assert prediction.mean.shape == prediction.probs.shape == model(NEW).shape
    assert prediction.entropy.shape == prediction.mutual_information.shape == (2, 4, 5)
    assert prediction.samples.shape == (2, 2, 4, 5)
    torch.testing.assert_close(prediction.probs.sum(dim), torch.ones(2, 4, 5).double())
    moved = (rows @ posterior.gaussian.deviations).movedim(-1, 0)
    functions = posterior.functions(NEW) - model(NEW)
    functions = functions if last else functions.movedim(2, -1)
    torch.testing.assert_close(functions.detach(), moved, rtol=1e-7, atol=1e-9)


def test_where_the_classes_lie_changes_nothing():
    options = {"prior": GPrior(5.0), "method": Krylov(rtol=1e-8), "draws": 3}
    first = fit(pixels(), (X, LABELS), Categorical(dim=1), **options)
    last = fit(pixels(last=True), (X, LABELS), Categorical(), **options)
    torch.testing.assert_close(first.draws, last.draws, rtol=1e-7, atol=1e-9)
    one, other = first.predict(NEW), last.predict(NEW)
    torch.testing.assert_close(one.probs.movedim(1, -1), other.probs, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(one.samples, other.samples)
    torch.testing.assert_close(one.mutual_information, other.mutual_information, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(one[1:].probs, one.probs[1:])
    held = LABELS[:2]
    torch.testing.assert_close(one.log_prob(held), other.log_prob(held), rtol=1e-7, atol=1e-9)
    tuned = [posterior.tune((NEW, held)) for posterior in (first, last)]
    torch.testing.assert_close(tuned[0].curve.held_out, tuned[1].curve.held_out, rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="one row per datum"):
        one.to_frame()


@pytest.mark.parametrize("method", ["KFAC", "EKFAC", "Diagonal"])
def test_structures_take_classes_of_pixels(method):
    """One datum and one linear layer: a Kronecker structure that "expands" over places is not exact, its diagonal is."""
    import lapwing as lw

    model = pixels()
    posterior = fit(
        model, (X, LABELS), Categorical(dim=1), prior=Isotropic(ALPHA), method=getattr(lw, method)(), draws=2
    )
    prediction = posterior.predict(NEW)
    assert prediction.probs.shape == (2, 3, 4, 5)
    centre, spread = torch.eye(3).double() - 1 / 3, prediction.observation.spread
    left = (centre @ spread.covariance @ centre).diagonal(dim1=3, dim2=4).sum((1, 2, 3))
    torch.testing.assert_close(prediction.score_variance, left / 60, rtol=1e-10, atol=0)
    assert ((prediction.novelty > 0) & (prediction.novelty < 1)).all()
    if method == "Diagonal":
        covariance, _ = dense_of(model, LABELS)
        diagonal = 1 / torch.linalg.inv(covariance).diagonal()
        torch.testing.assert_close(posterior.covariance.diagonal(), diagonal, rtol=1e-7, atol=1e-10)


def test_a_loaded_posterior_keeps_its_classes_where_they_were(tmp_path):
    import lapwing as lw

    model = pixels()
    posterior = fit(model, (X, LABELS), Categorical(dim=1), prior=Isotropic(ALPHA), method=Exact(), draws=2)
    again = lw.load(posterior.save(tmp_path / "posterior.safetensors"), model)
    one, other = posterior.predict(NEW), again.predict(NEW)
    torch.testing.assert_close(other.epistemic_variance, one.epistemic_variance, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(other.probs, one.probs, rtol=1e-9, atol=1e-12)
    unlinearised = posterior.predict_unlinearised(NEW)
    assert unlinearised.probs.shape == (2, 3, 4, 5)
    torch.testing.assert_close(unlinearised.probs.sum(1), torch.ones(2, 4, 5).double())
    with pytest.raises(ValueError, match="fit all data together"):
        posterior.update((NEW, LABELS[:2]))


class Wide(nn.Module):
    """One number, or logit, for each of 12 × 24 pixels: more outputs than rows are made of."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Conv2d(2, 3, 3, padding=1), nn.ConvTranspose2d(3, 1, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)))[:, 0]


WIDE_X, WIDE_NEW = normal(3, 2, 6, 12, seed=5), normal(2, 2, 6, 12, seed=6)


def wide() -> nn.Module:
    return seeded(Wide, None)[0]


@pytest.fixture
def no_rows(monkeypatch):
    """Any block of rows of a Jacobian is an error."""

    def refuse(*_):
        raise AssertionError("rows of a Jacobian were made")

    monkeypatch.setattr(Jacobian, "rows", refuse)
    for module in (jacobian, products):
        monkeypatch.setattr(module, "rows_of_datum", refuse)


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Bernoulli()], ids=lambda one: type(one).__name__)
def test_variances_of_many_outputs_come_without_a_jacobian(likelihood, no_rows):
    model = wide()
    y = model(WIDE_X).detach() + 0.3 * normal(3, 12, 24, seed=7)
    y = (y > 0).double() if isinstance(likelihood, Bernoulli) else y
    posterior = fit(model, (WIDE_X, y), likelihood, prior=Isotropic(50.0), method=Krylov(rtol=1e-9), draws=400)
    prediction = posterior.predict(WIDE_NEW)
    rows, new = (dense_rows(model, lambda out: out, x) for x in (WIDE_X, WIDE_NEW))
    p = model(WIDE_X).detach().sigmoid().reshape(-1)
    noise = p * (1 - p) if isinstance(likelihood, Bernoulli) else torch.full((864,), 0.3**-2, dtype=torch.float64)
    precision = rows.mT @ (noise[:, None] * rows) + 50.0 * torch.eye(rows.shape[1], dtype=torch.float64)
    expected = (new @ torch.linalg.inv(precision) * new).sum(1).reshape(2, 12, 24)
    assert prediction.standard_error is not None
    score = (prediction.epistemic_variance - expected) / (expected * (2 / 400) ** 0.5)
    assert score.abs().max() < 5
    prior = (new.square().sum(1) / 50.0).reshape(2, 12, 24)
    assert ((prediction.prior_variance - prior) / (prior * (2 / 400) ** 0.5)).abs().max() < 5
    drawn = (new @ posterior.gaussian.deviations).square().mean(1).reshape(2, 12, 24)
    torch.testing.assert_close(prediction.epistemic_variance, drawn, rtol=1e-9, atol=1e-12)


def test_a_closed_form_posterior_predicts_many_outputs_from_its_draws_too(monkeypatch):
    model = wide()
    y = model(WIDE_X).detach() + 0.3 * normal(3, 12, 24, seed=7)
    posterior = fit(model, (WIDE_X, y), Gaussian(0.3), prior=Isotropic(50.0), method=Exact(), draws=5)
    monkeypatch.setattr(Jacobian, "rows", lambda *_: pytest.fail("rows of a Jacobian were made"))
    prediction = posterior.predict(WIDE_NEW)
    new = dense_rows(model, lambda out: out, WIDE_NEW)
    drawn = (new @ posterior.gaussian.deviations).square().mean(1).reshape(2, 12, 24)
    torch.testing.assert_close(prediction.epistemic_variance, drawn, rtol=1e-8, atol=1e-12)
    tuned = posterior.tune((WIDE_NEW, model(WIDE_NEW).detach()))  # over a whole curve, without rows either
    assert tuned.curve.held_out.isfinite().all()


@pytest.mark.parametrize("fewer_weights", [True, False])
def test_rows_of_many_outputs_are_still_right_where_they_are_asked_for(fewer_weights):
    model = wide() if fewer_weights else seeded(lambda: nn.Sequential(nn.Linear(5, 300)), None)[0]
    x = WIDE_X if fewer_weights else normal(3, 5, seed=8)
    features = linearise(model, (x, model(x).detach()), Gaussian(0.3)).features
    rows = dense_rows(model, lambda out: out, x)
    start, stop = 250, len(rows) - 100
    torch.testing.assert_close(features.rows(start, stop), rows[start:stop], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(features.rows(7, 19), rows[7:19], rtol=1e-9, atol=1e-11)


class TestJoint:
    PLACES = ((0, 1, 2, 3), (0, 2, 2, 3), (1, 0, 3, 4), (0, 1, 0, 0))

    def posterior(self, method, draws: int = 2):
        given = {"prior": Isotropic(ALPHA), "method": method, "draws": draws, "curvature": "network"}
        return fit(pixels(), (X, LABELS), Categorical(dim=1), **given)

    def expected(self) -> Tensor:
        covariance, rows = dense_of(pixels(), LABELS)
        chosen = torch.stack([rows[n, h, w, c] for n, c, h, w in self.PLACES])
        return chosen @ covariance @ chosen.mT

    def test_chosen_outputs_have_their_dense_covariance(self):
        found, mean = self.posterior(Exact()).joint(NEW, self.PLACES), pixels()(NEW).detach()
        torch.testing.assert_close(found.covariance, self.expected(), rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(found.mean, torch.stack([mean[place] for place in self.PLACES]))
        torch.testing.assert_close(found.correlation.diagonal(), torch.ones(4).double())
        mask = torch.zeros(2, 3, 4, 5, dtype=torch.bool)
        mask[0, 1, 0, 0] = mask[1, 0, 3, 4] = True
        both = self.posterior(Exact()).joint(NEW, mask)
        torch.testing.assert_close(both.covariance, self.expected()[[3, 2]][:, [3, 2]], rtol=1e-7, atol=1e-10)

    def test_from_draws_it_is_within_its_standard_error(self):
        found = self.posterior(Krylov(rtol=1e-8), draws=300).joint(NEW, self.PLACES)
        assert ((found.covariance - self.expected()) / found.standard_error).abs().max() < 4.5

    @pytest.mark.parametrize(
        ("outputs", "message"),
        [
            ([(0, 1)], "4 indices each"),
            ([(0, 1, 2, 9)], "outside outputs of shape"),
            (torch.ones(3, dtype=torch.bool), r"mask of shape \(3,\)"),
            (torch.zeros(2, 3, 4, 5, dtype=torch.bool), "0 outputs chosen"),
        ],
    )
    def test_places_that_do_not_fit_are_refused(self, outputs, message):
        with pytest.raises(ValueError, match=message):
            self.posterior(Exact()).joint(NEW, outputs)


class TestTooManyRows:
    def model(self) -> nn.Module:
        """1,600 outputs a datum."""
        return seeded(
            lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 3, padding=1)), None
        )[0]

    def data(self) -> tuple[Tensor, Tensor]:
        return normal(3, 1, 40, 40, seed=4), normal(3, 1, 40, 40, seed=5)

    def test_another_route_is_chosen_and_said(self):
        posterior = fit(self.model(), self.data(), Gaussian(0.5), prior=Isotropic(100.0), draws=2)
        assert "Krylov" in posterior.diagnostics.method
        assert (
            "4,800 observed outputs: outputs a datum are too many to make their Jacobian" in posterior.diagnostics.why
        )

    def test_an_exact_posterior_that_cannot_fit_is_refused_before_any_row_is_made(self, no_rows, monkeypatch):
        monkeypatch.setattr("lapwing.runtime.memory.available_bytes", lambda: 2**26)
        with pytest.raises(MemoryError, match=r"dual \(77 weights.*use Krylov\(\)"):
            fit(self.model(), self.data(), Gaussian(0.5), prior=Isotropic(100.0), method=Exact("dual"), draws=2)

    def test_a_prediction_that_cannot_fit_is_refused(self, monkeypatch):
        posterior = fit(self.model(), self.data(), Gaussian(0.5), prior=Isotropic(100.0), draws=2)
        needed = posterior.predict_bytes(self.data()[0])
        assert needed > 2 * 2 * 4800 * 8
        monkeypatch.setattr("lapwing.runtime.memory.available_bytes", lambda: int(needed / 2))
        with pytest.raises(MemoryError, match="3 data with 1,600 outputs each.*predict fewer of them at a time"):
            posterior.predict(self.data()[0])

    def test_kronecker_roots_that_are_too_large_are_refused(self):
        import lapwing as lw

        model = seeded(lambda: nn.Conv2d(1, 2, 3, padding=1), None)[0]
        y = torch.zeros(2, 70, 70).long()
        y[:, 0] = 1
        with pytest.raises(ValueError, match="4,900 places with 2 classes .* use Krylov"):
            fit(
                model,
                (normal(2, 1, 70, 70, seed=1), y),
                Categorical(dim=1),
                prior=Isotropic(1.0),
                method=lw.KFAC(),
                draws=2,
            )
