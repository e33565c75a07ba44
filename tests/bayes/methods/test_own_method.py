"""A method that the package has never heard of works in `infer`, `predict`, `tune`, `save` and `load`."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.evidence import EvidenceParts, Optimum, Precisions
from lapwing.bayes.fits import fit_of
from lapwing.bayes.methods import Method, WeightPosterior
from lapwing.bayes.methods.interface import Evidence
from lapwing.bayes.methods.outputs import of_deviations
from lapwing.linalg.estimators import Estimate

N, D, DRAWS = 30, 4, 500


@dataclass(frozen=True)
class Inverse(Method):
    """The covariance as the inverse of a matrix: six lines of textbook algebra."""

    def solve(self, model, prior, run):
        on = run.prior_on(prior, model)
        fit = fit_of(model, on)
        told = replace(
            run.described(model, on, Optimum(Precisions(on.precision, torch.ones(1)), 0, True)), method="inverse"
        )
        return Inverted(fit, on, torch.ones(1, dtype=torch.float64), run.noise.seed, run.draws, told)


@dataclass(frozen=True, eq=False)
class Inverted(WeightPosterior):
    fit: object
    prior: object
    noise_precision: Tensor
    seed: int
    count: int
    diagnostics: Diagnostics = field(default_factory=Diagnostics)

    @property
    def covariance_matrix(self) -> Tensor:
        rows = self.fit.gaussian_surrogate.features.dense()
        return torch.linalg.inv(self.noise_precision * rows.mT @ rows + torch.diag(self.prior.std.pow(-2)))

    def at(self, prior, noise_precision):
        return replace(self, prior=prior, noise_precision=noise_precision, fit=self.fit.at(prior, noise_precision))

    @property
    def mean(self):
        rows, targets = self.fit.gaussian_surrogate.features.dense(), self.fit.gaussian_surrogate.targets
        return self.fit.mean(lambda: self.noise_precision * self.covariance_matrix @ rows.mT @ targets)

    @property
    def deviations(self):
        generator = torch.Generator().manual_seed(self.seed)
        normals = torch.randn(len(self.prior.scale), self.count, generator=generator, dtype=torch.float64)
        return torch.linalg.cholesky(self.covariance_matrix) @ normals

    @property
    def effective_dimension(self):
        return Estimate(
            float(len(self.prior.scale) - (self.covariance_matrix * torch.diag(self.prior.std.pow(-2))).sum())
        )

    def spread(self, features, shape, *, full, batch_size=None):
        return of_deviations(self.prior.std, features, shape, self.deviations, self.prior_noise, full=full)

    def evidence(self):
        log_det = -torch.logdet(self.covariance_matrix) - self.prior.log_det()
        parts = EvidenceParts(0.0, 0.0, -0.5 * float(log_det), 0.0, 0.0)
        return Evidence(parts, Estimate(parts.total))

    def pack(self):
        return None


@pytest.fixture(scope="module")
def numbers():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0]).double() + 0.3 * torch.randn(
        N, generator=generator, dtype=torch.float64
    )
    return x, y


def test_it_infers_and_predicts_what_the_closed_form_does(numbers):
    x, y = numbers
    model = lw.LinearModel(x, y, lw.Gaussian(0.3))
    ours = lw.infer(model, prior=lw.Isotropic(2.0), method=Inverse(), draws=DRAWS)
    exact = lw.infer(model, prior=lw.Isotropic(2.0), draws=DRAWS)
    torch.testing.assert_close(ours.mean, exact.mean, rtol=1e-10, atol=1e-12)
    assert ours.diagnostics.method == "inverse"
    assert ours.effective_dimension.value == pytest.approx(exact.effective_dimension.value, rel=1e-10)
    told, truth = ours.predict(x[:5]), exact.predict(x[:5])
    torch.testing.assert_close(told.mean, truth.mean, rtol=1e-10, atol=1e-12)
    # a variance from k draws has a relative standard error of √(2 / k): five of them
    assert ((told.epistemic_variance / truth.epistemic_variance - 1).abs() < 5 * (2 / DRAWS) ** 0.5).all()


def test_it_is_tuned_on_held_out_data(numbers):
    """Solved for one precision after another, since it says nothing of whole curves."""
    x, y = numbers
    posterior = lw.infer(
        lw.LinearModel(x[:20], y[:20], lw.Gaussian(0.3)),
        prior=lw.Isotropic(),
        method=Inverse(),
        validation=(x[20:], y[20:]),
    )
    curve = posterior.curve
    assert posterior.diagnostics.tuned_by == "held-out density"
    best = curve.precision[int(curve.held_out.argmax())]
    assert float(posterior.prior.precision) == pytest.approx(float(best))
    at_best, elsewhere = (posterior.at(precision=float(best) * often).predict(x[20:]) for often in (1.0, 100.0))
    assert at_best.log_prob(y[20:]).mean() > elsewhere.log_prob(y[20:]).mean()


@pytest.mark.parametrize("likelihood", [lw.Gaussian(0.3), lw.Categorical()])
def test_it_fits_a_network_and_comes_back_from_a_file(tmp_path, likelihood):
    """As draws alone, which is what it said to keep."""
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double().eval()
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    y = model(x).detach() if likelihood.constant_curvature else torch.arange(N) % 4
    posterior = lw.fit(model, (x, y), likelihood, prior=lw.Isotropic(3.0), method=Inverse(), draws=DRAWS)
    loaded = lw.load(posterior.save(tmp_path / "own.safetensors"), model)
    before, after = posterior.predict(x[:6]), loaded.predict(x[:6])
    torch.testing.assert_close(after.mean, before.mean, rtol=0, atol=0)
    torch.testing.assert_close(after.epistemic_variance, before.epistemic_variance, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="holds only draws"):
        loaded.at(precision=1.0)
