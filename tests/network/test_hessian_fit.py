"""Posteriors of small networks by the true Hessian and the empirical Fisher, against dense autodiff of the whole loss."""

from math import log, pi

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing import EmpiricalFisher, Exact, Gaussian, Hessian, Isotropic, PerGroup, fit
from lapwing.network.hessian import LARGEST
from tests.network.networks import normal, seeded
from tests.network.test_hessian import flat_loss, problem
from tests.network.test_linearisation import dense_jacobian
from tests.properties import check_covariance

KINDS = ["gaussian", "categorical", "bernoulli"]
STIFF = 60.0  # above what the Hessians of these untrained networks lack
P = 32  # weights of the perceptron


def dense_hessian(model: nn.Module, x: Tensor, y: Tensor, likelihood) -> Tensor:
    return torch.autograd.functional.hessian(*flat_loss(model, x, y, likelihood))


def dense_fisher(model: nn.Module, x: Tensor, y: Tensor, likelihood) -> Tensor:
    rows = [
        torch.autograd.functional.jacobian(*flat_loss(model, x[i : i + 1], y[i : i + 1], likelihood))
        for i in range(len(x))
    ]
    return sum(torch.outer(row, row) for row in rows)


DENSE = {"hessian": (Hessian(), dense_hessian), "fisher": (EmpiricalFisher(), dense_fisher)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DENSE)
def test_posteriors_are_those_of_the_dense_matrix(name, kind):
    method, dense = DENSE[name]
    model, x, y, likelihood = problem("mlp", kind)
    matrix = dense(model, x, y, likelihood)
    lowest = float(torch.linalg.eigvalsh(matrix)[0])
    assert (lowest < -0.1) == (name == "hessian")  # so that negative eigenvalues are seen
    precision = STIFF if name == "hessian" else 0.7
    posterior = fit(model, (x, y), likelihood, prior=Isotropic(precision), method=method, draws=4000, progress=False)
    whole = matrix + precision * torch.eye(P).double()
    covariance = torch.linalg.inv(whole)
    torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-9, atol=1e-12)
    check_covariance(posterior.gaussian.deviations, covariance)
    check_covariance((posterior.sample(4000) - posterior.mean).mT, covariance)
    gamma = (covariance @ matrix).trace()
    assert posterior.effective_dimension.value == pytest.approx(float(gamma), rel=1e-9)
    loss, flat = flat_loss(model, x, y, likelihood)
    occam = torch.linalg.slogdet(whole).logabsdet - P * log(precision)
    expected = -loss(flat) - 0.5 * precision * flat.square().sum() - 0.5 * occam
    assert posterior.log_evidence.value == pytest.approx(float(expected), rel=1e-10)
    torch.testing.assert_close(posterior.mean, flat)
    new = normal(5, 3, seed=11)
    rows = dense_jacobian(model, new)
    found = posterior.predict(new).epistemic_variance
    torch.testing.assert_close(found.flatten(), (rows * (rows @ covariance)).sum(1), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(posterior.predict(new).mean, model(new).detach())


@pytest.mark.parametrize("name", DENSE)
def test_one_precision_per_layer_turns_the_eigenvectors(name):
    method, dense = DENSE[name]
    model, x, y, likelihood = problem("mlp", "categorical")
    prior = PerGroup("layer", precision={"0": STIFF, "2": 2 * STIFF})
    posterior = fit(model, (x, y), likelihood, prior=prior, method=method, draws=4000, progress=False)
    precisions = torch.cat([torch.full((20,), STIFF), torch.full((12,), 2 * STIFF)]).double()
    covariance = torch.linalg.inv(dense(model, x, y, likelihood) + torch.diag(precisions))
    torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-9, atol=1e-12)
    check_covariance(posterior.gaussian.deviations, covariance)


@pytest.mark.parametrize("name", DENSE)
def test_counts_batches_and_selections(name):
    """A datum counted twice is there twice, whatever the batches; a mask takes a block."""
    method, dense = DENSE[name]
    model, x, y, likelihood = problem("mlp", "categorical")
    matrix = dense(model, x, y, likelihood)
    mask = torch.arange(P) % 3 > 0
    options = {"prior": Isotropic(2 * STIFF), "method": method, "progress": False}
    posterior = fit(
        model, [(x[:3], y[:3]), (x[3:], y[3:])], likelihood, select=mask, dataset_size=2 * len(x), **options
    )
    truth = torch.linalg.inv(2 * matrix[mask][:, mask] + 2 * STIFF * torch.eye(int(mask.sum())).double())
    torch.testing.assert_close(posterior.covariance, truth, rtol=1e-9, atol=1e-12)
    twice = fit(model, (x.repeat(2, 1), y.repeat(2)), likelihood, select=mask, **options)
    torch.testing.assert_close(posterior.covariance, twice.covariance, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "power"), [("hessian", 1), ("fisher", 2)])
def test_another_noise_is_that_of_another_fit(name, power):
    """A Hessian grows with the noise precision, an empirical Fisher with its square."""
    method, dense = DENSE[name]
    model, x, y, likelihood = problem("mlp", "gaussian")
    posterior = fit(model, (x, y), likelihood, prior=Isotropic(STIFF), method=method, progress=False)
    moved = posterior.at(noise_std=1.4, precision=STIFF / 2)
    matrix = dense(model, x, y, likelihood) * 0.5 ** (2 * power)
    truth = torch.linalg.inv(matrix + STIFF / 2 * torch.eye(P).double())
    torch.testing.assert_close(moved.covariance, truth, rtol=1e-9, atol=1e-12)
    again = fit(model, (x, y), Gaussian(1.4), prior=Isotropic(STIFF / 2), method=method, progress=False)
    torch.testing.assert_close(moved.gaussian.deviations, again.gaussian.deviations, rtol=1e-8, atol=1e-10)


def test_a_hessian_that_is_not_positive_says_what_would_suffice():
    model, x, y, likelihood = problem("mlp", "gaussian")
    lowest = float(torch.linalg.eigvalsh(dense_hessian(model, x, y, likelihood))[0])
    with pytest.raises(
        ValueError, match=rf"smallest eigenvalue is {lowest:.4g} .* give a precision above {-lowest:.4g}"
    ):
        fit(model, (x, y), likelihood, prior=Isotropic(-0.9 * lowest), method=Hessian(), progress=False)
    enough = fit(model, (x, y), likelihood, prior=Isotropic(-1.01 * lowest), method=Hessian(), progress=False)
    assert enough.gaussian.deviations.isfinite().all()
    with pytest.raises(ValueError, match="not positive definite"):
        enough.at(precision=-0.9 * lowest)
    with pytest.raises(ValueError, match="times as large"):
        fit(model, (x, y), likelihood, prior=PerGroup("layer", precision=0.1), method=Hessian(), progress=False)


def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """A network at the minimum of a penalised loss, where its Hessian has small negative eigenvalues."""
    model, x = problem("mlp", "gaussian")[0], normal(30, 3, seed=3)
    y = torch.stack([torch.sin(x.sum(1)), x[:, 0] * x[:, 1]], dim=1)
    weights = list(model.parameters())
    optimiser = torch.optim.LBFGS(weights, max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure() -> Tensor:
        optimiser.zero_grad()
        energy = sum(weight.square().sum() for weight in weights)
        loss = 0.5 * (model(x) - y).square().sum() / 0.3**2 + 0.5 * energy
        loss.backward()
        return loss

    optimiser.step(closure)
    return model, x, y


def objective(matrix: Tensor, flat: Tensor, precision: float) -> float:
    occam = torch.linalg.slogdet(torch.eye(P).double() + matrix / precision).logabsdet
    return float(-0.5 * precision * flat.square().sum() - 0.5 * occam)


def test_the_evidence_is_maximised_from_above():
    """A local maximum of the dense objective; nearer to the lowest eigenvalue it would grow without bound."""
    model, x, y = trained()
    likelihood = Gaussian(0.3)
    matrix, (_, flat) = dense_hessian(model, x, y, likelihood), flat_loss(model, x, y, likelihood)
    lowest = float(torch.linalg.eigvalsh(matrix)[0])
    assert lowest < -1e-3
    posterior = fit(model, (x, y), likelihood, prior=Isotropic(), method=Hessian(), progress=False)
    best = float(posterior.prior.precision)
    assert best > -lowest
    here, step = objective(matrix, flat, best), 1e-3
    around = [objective(matrix, flat, best * factor) for factor in (1 - step, 1 + step)]
    assert here >= max(around)
    slope = (around[1] - around[0]) / (2 * step)  # in log λ, zero to second order
    assert abs(slope) < 1e-4
    assert posterior.curve.best_precision == pytest.approx(best, rel=1e-3)


def test_a_noise_is_tuned_with_it():
    model, x, y = trained()
    posterior = fit(model, (x, y), Gaussian(), prior=Isotropic(), method=Hessian(), progress=False)
    found = posterior.log_evidence.value
    noise = posterior.likelihood.noise_std
    matrix = dense_hessian(model, x, y, Gaussian(noise))
    _, flat = flat_loss(model, x, y, Gaussian(noise))
    fitted = -0.5 * float((model(x).detach() - y).square().sum() / noise**2) - y.numel() * (
        float(noise.log()) + 0.5 * log(2 * pi)
    )
    assert found == pytest.approx(fitted + objective(matrix, flat, float(posterior.prior.precision)), rel=1e-8)
    for factor in (0.97, 1.03):
        assert posterior.at(noise_std=factor * noise).log_evidence.value < found
        assert posterior.at(precision=factor * float(posterior.prior.precision)).log_evidence.value < found


def test_an_evidence_without_a_maximum_is_refused_and_held_out_data_serve():
    model, x, y, likelihood = problem("mlp", "gaussian")
    for prior in (Isotropic(), PerGroup("layer")):
        with pytest.raises(ValueError, match=r"pass validation="):
            fit(model, (x, y), likelihood, prior=prior, method=Hessian(), progress=False)


@pytest.mark.parametrize(("noise", "edge"), [(0.1, "stiffest"), (0.85, None), (3.0, "widest")])
def test_held_out_data_choose_among_the_precisions_that_are_allowed(noise, edge):
    model, x, y, likelihood = problem("mlp", "gaussian")
    new = normal(13, 3, seed=12)
    held = (new, model(new).detach() + noise * normal(13, 2, seed=13))
    lowest = -float(torch.linalg.eigvalsh(dense_hessian(model, x, y, likelihood))[0])
    posterior = fit(model, (x, y), likelihood, prior=Isotropic(), method=Hessian(), validation=held, progress=False)
    best = float(posterior.prior.precision)
    assert best > lowest
    assert posterior.diagnostics.edge_of_range == edge
    if edge is None:
        around = [posterior.at(precision=factor * best).predict(new) for factor in (0.95, 1.0, 1.05)]
        scores = [float(one.log_prob(held[1]).sum()) for one in around]
        assert scores[1] == max(scores)


def test_labels_are_tuned_on_held_out_data():
    model, x, y, likelihood = problem("mlp", "categorical")
    held = (normal(13, 3, seed=12), torch.arange(13) % 2)
    posterior = fit(model, (x, y), likelihood, prior=Isotropic(), method=Hessian(), validation=held, progress=False)
    own = float(posterior.predict(held[0], mean="network").log_prob(held[1]).mean())
    told = posterior.diagnostics
    assert own == pytest.approx(told.held_out, rel=1e-3)
    assert told.candidates[told.candidate] == max(told.candidates.values()) >= told.held_out
    assert sum(told.shares.values()) == pytest.approx(1)


def test_files_and_single_precision(tmp_path):
    model, x, y, likelihood = problem("mlp", "categorical")
    posterior = fit(model, (x, y), likelihood, prior=Isotropic(STIFF), method=Hessian(), progress=False)
    again = lw.load(posterior.save(tmp_path / "posterior"), model).at(precision=2 * STIFF)
    torch.testing.assert_close(again.covariance, posterior.at(precision=2 * STIFF).covariance, rtol=1e-12, atol=1e-14)
    single = fit(model.float(), (x.float(), y), likelihood, prior=Isotropic(STIFF), method=Hessian(), progress=False)
    torch.testing.assert_close(single.covariance, posterior.covariance, rtol=1e-4, atol=1e-7)  # weights were rounded


def test_a_linear_network_has_one_curvature():
    model, x = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), normal(9, 3, 2, seed=1))
    y = normal(9, 2, seed=2)
    newton, whole = (
        fit(model, (x, y), Gaussian(0.5), prior=Isotropic(0.3), method=method, progress=False)
        for method in (Exact(), Hessian())
    )
    torch.testing.assert_close(whole.covariance, newton.covariance, rtol=1e-9, atol=1e-12)


def test_what_is_too_large_or_not_known_is_refused():
    model, x, y, likelihood = problem("mlp", "gaussian")
    with pytest.raises(ValueError, match="does not scale with a noise"):
        fit(model, (x, y), Gaussian(), method=EmpiricalFisher(), progress=False)
    wide, _ = seeded(lambda: nn.Linear(3, LARGEST // 3), x)
    with pytest.raises(ValueError, match=f"at most {LARGEST:,}"):
        fit(wide, (x, wide(x).detach()), likelihood, prior=Isotropic(1.0), method=Hessian(), progress=False)
    with pytest.raises(ValueError, match="needs a network"):
        lw.infer(lw.LinearModel(x, y[:, 0], Gaussian(1.0)), method=Hessian())
