"""What theory and publications say of networks, on small ones where everything can be known."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import lapwing as lw
from benchmarks.networks import batchnorm_cnn
from lapwing import CG, Categorical, Exact, GPrior, Isotropic, Krylov, fit
from lapwing.bayes.evidence import ByFixedPoint
from lapwing.network.linearisation import linearise
from lapwing.studies.datasets import digits
from lapwing.training import adam, train
from tests.network.networks import NETWORKS
from tests.network.test_labels import class_problem, dense_loss


@pytest.fixture(scope="module")
def digits_network():
    x, y = (part[:120] for part in digits().train)
    model = train(batchnorm_cnn(width=4), (x, y), Categorical(), epochs=25, optimiser=adam(5e-3), progress=False)
    return model.double().eval(), x.double(), y


@pytest.mark.slow
def test_sampled_evidence_finds_the_precision_of_the_exact_one(digits_network):
    """Sampled EM on digits with a normalised CNN: 8 draws against exact eigenvalues, the same g-prior, within 5 %."""
    model, x, y = digits_network
    linear = linearise(model, (x, y), Categorical())
    by_point = {"method": Exact(), "curvature": "network", "tuning": ByFixedPoint()}  # which guards no training labels
    exact = lw.infer(linear, prior=GPrior(), draws=2, **by_point)
    sampled = fit(model, (x, y), Categorical(), prior=GPrior(), method=CG(rtol=1e-3), draws=8)
    assert float((sampled.prior.precision / exact.prior.precision).log().abs()) < 0.05
    assert exact.effective_dimension.value > 20  # the data determine something


def test_sampled_variances_follow_the_exact_ones(digits_network):
    """With many draws the variance from a Krylov space correlates with the closed form above 0.99, and is unbiased."""
    model, x, y = digits_network
    exact = fit(model, (x, y), Categorical(), prior=GPrior(1.0), method=Exact(), draws=2, curvature="network")
    drawn = fit(model, (x, y), Categorical(), prior=GPrior(1.0), method=Krylov(rtol=1e-4), draws=400)
    some = digits().test[0][:10].double()
    new = torch.cat([0.2 * some, some, 4 * some])  # dull, usual and glaring pictures
    ours, truth = drawn.predict(new).epistemic_variance.flatten(), exact.predict(new).epistemic_variance.flatten()
    assert float(torch.corrcoef(torch.stack([ours, truth]))[0, 1]) > 0.99
    z = (ours - truth) / (truth * (2 / 400) ** 0.5)
    assert float(z.abs().max()) < 4.5  # of 300 correlated values; 4.5 of independent ones is one in 500


@pytest.mark.parametrize("name", ["cnn", "tied"])
def test_the_optimum_is_stationary_in_precision_and_weights(name):
    """∂ evidence / ∂ log λ from autograd of the dense formula, and the gradient of the loss at the mode, are zero."""
    model, inputs, targets = class_problem(name)
    posterior = fit(model, (inputs, targets), Categorical(), prior=Isotropic(), draws=2, curvature="network")
    alpha = float(posterior.prior.precision)
    loss, jacobian, w = dense_loss(model, inputs, targets, alpha)
    mode = posterior.mean.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(mode), mode)
    assert float(gradient.norm()) < 1e-5
    probabilities = model(inputs).detach().softmax(1)
    blocks = torch.block_diag(*(torch.diag(p) - torch.outer(p, p) for p in probabilities))
    data = jacobian.mT @ blocks @ jacobian
    log_alpha = torch.tensor(alpha, dtype=torch.float64).log().requires_grad_()
    precision = log_alpha.exp()
    energy = -0.5 * precision * posterior.mean.square().sum()
    evidence = energy - 0.5 * torch.linalg.slogdet(torch.eye(len(w)).double() + data / precision)[1]
    (slope,) = torch.autograd.grad(evidence, log_alpha)
    assert abs(float(slope)) < 1e-5 * max(1.0, abs(float(energy.detach())))


def test_the_offset_keeps_the_network_at_its_own_weights():
    """h(w̄, x) = f(x): the linear model at the network's weights is the network, biases and norms among its features."""
    for name in NETWORKS:
        model, inputs = NETWORKS[name]()
        targets = torch.zeros(len(inputs), dtype=torch.long)
        linear = lw.linearise(model, (inputs, targets), Categorical())
        outputs = linear.features @ linear.point.weights + linear.offset
        torch.testing.assert_close(outputs.reshape(model(inputs).shape), model(inputs).detach(), rtol=1e-10, atol=1e-10)


def test_temperature_tuned_together_with_the_precision_is_no_worse(digits_network):
    """Both together contain temperature scaling (precision to infinity) and the posterior alone."""
    model, x, y = (digits_network[0], *(part[:50] for part in digits_network[1:]))
    held, labels = (part[120:220] for part in digits().train)
    for curvature in ("network", "expected"):
        posterior = fit(model, (x, y), Categorical(), validation=(held.double(), labels), draws=2, curvature=curvature)
        both = posterior.tune((held.double(), labels), temperature="tune")
        assert both.diagnostics.held_out >= posterior.diagnostics.held_out - 1e-6
        if curvature == "network":  # else a large precision is a linear model that knows nothing
            assert both.diagnostics.held_out >= posterior.diagnostics.temperature_scaling["held_out"] - 1e-4
    plain = float(cross_entropy(model(held.double()).detach(), labels))
    assert -posterior.diagnostics.temperature_scaling["held_out_plain"] == pytest.approx(plain, rel=1e-9)


def test_the_variance_does_not_depend_on_batch_mates(digits_network):
    model, x, y = digits_network
    posterior = fit(model, (x, y), Categorical(), prior=GPrior(1.0), draws=4)
    new = digits().test[0][:9].double()
    whole, parts = posterior.predict(new), [posterior.predict(part) for part in (new[:4], new[4:])]
    torch.testing.assert_close(torch.cat([part.probs for part in parts]), whole.probs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        torch.cat([part.draws for part in parts], dim=1), whole.draws, rtol=1e-9, atol=1e-9
    )  # fmt: skip
    torch.testing.assert_close(posterior.functions(new), whole.draws, rtol=1e-7, atol=1e-7)


def gap_data(seed: int):
    """A wave seen on both sides of a gap; test points from the same two sides."""
    generator = torch.Generator().manual_seed(seed)

    def side(count: int) -> torch.Tensor:
        x = 0.8 * torch.rand(count, 1, generator=generator, dtype=torch.float64) + 0.7
        return torch.where(torch.rand(count, 1, generator=generator) < 0.5, x, -x)

    def wave(x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return torch.sin(4 * x) + 0.1 * noise

    train_x, test_x = side(60), side(200)
    return (train_x, wave(train_x)), (test_x, wave(test_x))


@pytest.mark.slow
def test_evidence_at_the_linear_mode_gives_shorter_and_better_error_bars_than_at_the_weights():
    """MLPs with BatchNorm on data with a gap (Antorán et al. 2022), trained to fit: 8 of 10 seeds on both counts."""
    shorter, better = 0, 0
    for seed in range(10):
        data, (test_x, test_y) = gap_data(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = torch.nn.Sequential(
                torch.nn.Linear(1, 50), torch.nn.BatchNorm1d(50), torch.nn.ReLU(), torch.nn.Linear(50, 50),
                torch.nn.BatchNorm1d(50), torch.nn.ReLU(), torch.nn.Linear(50, 1),
            ).double()  # fmt: skip
        model = train(model, data, lw.Gaussian(0.1), epochs=500, batch_size=60, optimiser=adam(1e-2), progress=False)
        linear = lw.linearise(model, data, lw.Gaussian(0.1))
        at_mode, naive = (
            lw.infer(linear, prior=Isotropic(), draws=2),
            lw.infer(linear, prior=Isotropic(naive_precision(linear)), draws=2),
        )
        ours, theirs = (posterior.predict(test_x) for posterior in (at_mode, naive))
        shorter += bool(ours.epistemic_variance.mean() < theirs.epistemic_variance.mean())
        better += bool(ours.log_prob(test_y).mean() > theirs.log_prob(test_y).mean())
    assert shorter >= 8, shorter
    assert better >= 8, better


def naive_precision(linear: lw.LinearModel) -> float:
    """The precision that maximises −½ α ‖w̄‖² − ½ log det(I + M / α), by MacKay's step on dense eigenvalues."""
    values = torch.linalg.svdvals(linear.features.dense() / 0.1).square()
    energy, alpha = float(linear.point.weights.square().sum()), 1.0
    for _ in range(500):
        alpha = float((values / (values + alpha)).sum()) / energy
    return alpha


@pytest.mark.slow
def test_training_on_brings_the_two_evidences_together_without_normalisation():
    """The further a plain network is trained, the nearer its weights are to the linear mode, and λ to the naive λ."""
    data, _ = gap_data(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(1, 30), torch.nn.Tanh(), torch.nn.Linear(30, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1)
        ).double()
    gaps = []
    for epochs in (30, 300, 3000):  # each from the last, towards the mode of the penalised loss
        model = train(
            model, data, lw.Gaussian(0.1), epochs=epochs, batch_size=60, optimiser=adam(3e-3), prior_precision=1.0,
            progress=False,
        )  # fmt: skip
        linear = lw.linearise(model, data, lw.Gaussian(0.1))
        ours = float(lw.infer(linear, prior=Isotropic(), draws=2).prior.precision)
        gaps.append(abs(float(torch.tensor(ours / naive_precision(linear)).log())))
    assert gaps[0] > gaps[1] > gaps[2]
