"""Jacobian products, and posteriors of networks, against dense Jacobians by torch.func.jacrev."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing import CG, Exact, Gaussian, GPrior, Isotropic, Krylov, fit, infer, linearise
from lapwing.bayes.noise import DATA, PRIOR, Noise
from tests import reference
from tests.network.networks import NETWORKS, normal


def dense_jacobian(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """(n · c, p), in the order of named_parameters; tied weights once."""
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    with sdpa_kernel(SDPBackend.MATH):
        jacobian = jacrev(lambda w: functional_call(model, w, (inputs,)), chunk_size=1)(weights)
    n, c = model(inputs).shape
    return torch.cat([part.reshape(n * c, -1) for part in jacobian.values()], dim=1).detach()


def flat_weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])


def problem(name: str):
    model, inputs = NETWORKS[name]()
    outputs = model(inputs).detach()
    return model, inputs, outputs + normal(*outputs.shape, seed=9)


@pytest.mark.parametrize("name", NETWORKS)
def test_features_are_the_dense_jacobian(name):
    """All products of such a Jacobian are tested in test_jacobian.py."""
    model, inputs, targets = problem(name)
    batches = [(inputs[:3], targets[:3]), (inputs[3:], targets[3:])]  # of different sizes
    linear = linearise(model, batches, Gaussian(1.0))
    torch.testing.assert_close(linear.features.dense(), dense_jacobian(model, inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", [Exact("primal"), Exact("dual"), Krylov(rtol=1e-9), CG(rtol=1e-10)], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_draws_equal_dense_perturb_and_solve(name, method):
    model, inputs, targets = problem(name)
    posterior = fit(model, (inputs, targets), Gaussian(0.7), prior=Isotropic(2.0), method=method, draws=4, seed=5)
    jacobian = dense_jacobian(model, inputs)
    noise = torch.full((len(jacobian),), 0.7**-2, dtype=torch.float64)
    prior = torch.full((jacobian.shape[1],), 2.0, dtype=torch.float64)
    xi, theta = Noise(5, DATA).rows(0, len(noise), 4), Noise(5, PRIOR).rows(0, len(prior), 4)
    expected = reference.perturb_and_solve(jacobian, noise, prior, xi, theta)
    assert float((posterior.gaussian.deviations - expected).norm() / expected.norm()) < 1e-6
    new = normal(4, *inputs.shape[1:], seed=20)
    functions = model(new).detach() + (dense_jacobian(model, new) @ expected).mT.reshape(4, 4, -1)
    torch.testing.assert_close(posterior.functions(new), functions, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_variance_evidence_and_tuned_precisions_agree_with_dense_references(name):
    model, inputs, targets = problem(name)
    posterior = fit(model, (inputs, targets), Gaussian(1.1), prior=Isotropic(), draws=2)
    jacobian, w = dense_jacobian(model, inputs), flat_weights(model)
    y = (targets - model(inputs).detach()).reshape(-1) + jacobian @ w  # the offset h = f − J w̄ + J θ kept
    noise = torch.full((len(y),), 1.1**-2, dtype=torch.float64)

    def evidence(precision: float) -> float:
        return reference.log_evidence_of_data(jacobian, y, noise, torch.full_like(w, precision))

    alpha = float(posterior.prior.precision)
    assert posterior.log_evidence.value == pytest.approx(evidence(alpha), rel=1e-9)
    assert evidence(alpha) >= max(evidence(alpha * 0.9), evidence(alpha * 1.1))
    mean, covariance = reference.posterior(jacobian, y, noise, torch.full_like(w, alpha))
    new = normal(4, *inputs.shape[1:], seed=20)
    rows = dense_jacobian(model, new)
    prediction, linear = posterior.predict(new), posterior.predict(new, mean="linear")
    variance = (rows @ covariance @ rows.mT).diagonal().reshape(prediction.mean.shape)
    torch.testing.assert_close(prediction.epistemic_variance, variance, rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(prediction.mean, model(new).detach(), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        linear.mean, model(new).detach() + (rows @ (mean - w)).reshape(4, -1), rtol=1e-7, atol=1e-8
    )


def test_fit_is_linearise_then_infer():
    model, inputs, targets = problem("cnn")
    together = fit(model, (inputs, targets), Gaussian(), draws=3, seed=2, validation=(inputs[:4], targets[:4]))
    apart = infer(
        linearise(model, (inputs, targets), Gaussian()), draws=3, seed=2, validation=(inputs[:4], targets[:4])
    )
    assert torch.equal(together.draws, apart.draws)


@pytest.mark.parametrize("kind", ["tensors", "dataset", "loader", "shuffling loader", "list of batches"])
def test_data_in_any_container_give_the_same_draws(kind):
    model, inputs, targets = problem("mlp")
    dataset = TensorDataset(inputs, targets)
    data = {
        "tensors": (inputs, targets),
        "dataset": dataset,
        "loader": DataLoader(dataset, batch_size=3),
        "shuffling loader": DataLoader(dataset, batch_size=2, shuffle=True),
        "list of batches": [(inputs[:5], targets[:5]), (inputs[5:], targets[5:])],
    }[kind]
    expected = fit(model, (inputs, targets), Gaussian(0.5), draws=3)
    posterior = fit(model, data, Gaussian(0.5), draws=3)
    torch.testing.assert_close(posterior.draws, expected.draws, rtol=1e-9, atol=1e-11)


def test_a_part_of_the_weights_is_that_part_of_the_jacobian():
    model, inputs, targets = problem("mlp")
    jacobian = dense_jacobian(model, inputs)
    names = [name for name, weight in model.named_parameters() for _ in range(weight.numel())]
    head = torch.tensor([name.startswith("2.") for name in names])
    matrices = torch.tensor([name.endswith("weight") for name in names])
    odd = torch.arange(len(names)) % 3 == 1
    choices = (lambda name: name.startswith("2."), lw.matrices_only(model), odd)
    for select, columns in zip(choices, (head, matrices, odd), strict=True):
        linear = linearise(model, (inputs, targets), Gaussian(1.0), select=select)
        torch.testing.assert_close(linear.features.dense(), jacobian[:, columns], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(linear.point.weights, flat_weights(model)[columns], rtol=0, atol=0)
    for weight in model[0].parameters():
        weight.requires_grad_(False)
    assert linearise(model, (inputs, targets), Gaussian(1.0)).features.shape[1] == int(head.sum())


def test_tied_weights_count_once():
    model, inputs, targets = problem("tied")
    assert linearise(model, (inputs, targets), Gaussian(1.0)).features.shape[1] == 15 + 5 + 15 + 3


def test_total_counts_the_whole_training_set():
    model, inputs, targets = problem("mlp")
    part = fit(model, (inputs, targets), Gaussian(0.5), prior=Isotropic(1.0), dataset_size=21, draws=0)
    thrice = fit(model, (inputs.repeat(3, 1), targets.repeat(3, 1)), Gaussian(0.5), prior=Isotropic(1.0), draws=0)
    torch.testing.assert_close(part.covariance, thrice.covariance, rtol=1e-9, atol=1e-11)
    assert part.log_evidence.value == pytest.approx(thrice.log_evidence.value, rel=1e-10)


@pytest.mark.parametrize("k", [0.1, 10.0])
def test_rescaling_batch_normalised_weights_changes_nothing_under_the_g_prior(k):
    """(W, μ, σ²) → (kW, kμ, k²σ²) leaves f as it is as ε → 0 and J_W → J_W / k: one precision suffices."""
    model, inputs, targets = problem("residual")
    for norm in (model.norm, model.inner_norm):
        norm.eps = 1e-14
    targets = model(inputs).detach() + normal(*targets.shape, seed=9)
    new = normal(4, *inputs.shape[1:], seed=20)
    before = fit(model, (inputs, targets), Gaussian(0.5), prior=GPrior(), draws=0)
    with torch.no_grad():
        model.inner.weight *= k
        model.inner_norm.running_mean *= k
        model.inner_norm.running_var *= k * k
    # the same targets in the tangent: those of y − f; the J w̄ part moves with w̄, so fix the precision at the one before
    after = fit(model, (inputs, targets), Gaussian(0.5), prior=GPrior(float(before.prior.precision)), draws=0)
    one, other = before.predict(new), after.predict(new)
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(one.epistemic_variance, other.epistemic_variance, rtol=1e-6, atol=0)
    isotropic = fit(model, (inputs, targets), Gaussian(0.5), prior=Isotropic(1.0), draws=0).predict(new)
    with torch.no_grad():
        model.inner.weight /= k
        model.inner_norm.running_mean /= k
        model.inner_norm.running_var /= k * k
    again = fit(model, (inputs, targets), Gaussian(0.5), prior=Isotropic(1.0), draws=0).predict(new)
    assert float((isotropic.epistemic_variance / again.epistemic_variance).log().abs().max()) > 0.05  # one λ does not


def test_the_model_is_read_never_written():
    model, inputs, targets = problem("residual")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.head.weight.grad = torch.ones_like(model.head.weight)
    posterior = fit(model, (inputs, targets), Gaussian(), draws=3)
    posterior.predict(inputs)
    with pytest.raises(ValueError, match="do not fit outputs"):
        fit(model, (inputs, targets[:, :2]), Gaussian())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert model.stem.weight.grad is None
    assert all(weight.requires_grad for weight in model.parameters())


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = NETWORKS["mlp"]()[0]
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return self.linear(x) + torch.randn(len(x), 2, generator=self.generator, dtype=torch.float64)


def frozen(model: nn.Module) -> nn.Module:
    for weight in model.parameters():
        weight.requires_grad_(False)
    return model


def broken(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    return model


def mlp() -> nn.Module:
    return NETWORKS["mlp"]()[0]


X, Y = normal(7, 3, seed=1), normal(7, 2, seed=2)


class Augmented(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        self.calls = getattr(self, "calls", 0) + 1
        return x + 0.01 * self.calls, y


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit(mlp().train(), (X, Y), Gaussian()), "training mode .*call model.eval"),
        (lambda: fit(Random().eval(), (X, Y), Gaussian()), "two calls of the network differ"),
        (lambda: fit(frozen(mlp()), (X, Y), Gaussian()), "no weight is selected"),
        (lambda: fit(mlp(), (X, Y), Gaussian(), select=lambda name: False), "no weight is selected"),
        (lambda: fit(mlp(), (X, Y), Gaussian(), select=torch.ones(5, dtype=torch.bool)), "a boolean mask over the 32"),
        (lambda: fit(broken(mlp()), (X, Y), Gaussian()), "0.weight holds NaN"),
        (lambda: fit(mlp().half(), (X, Y), Gaussian()), r"model.float\(\)"),
        (
            lambda: fit(mlp(), (X, Y[:, :1]), Gaussian()),
            r"targets of shape \(7, 1\) do not fit outputs of shape \(7, 2\)",
        ),
        (lambda: fit(mlp(), (X, Y[:5]), Gaussian()), "7 inputs and 5 targets"),
        (lambda: fit(mlp(), (X * float("nan"), Y), Gaussian()), "NaN or infinite"),
        (lambda: fit(mlp(), (X[:0], Y[:0]), Gaussian()), "the data are empty"),
        (lambda: fit(mlp(), [], Gaussian()), "the data are empty"),
        (lambda: fit(mlp(), Augmented(X, Y), Gaussian()), "two passes over the data differ"),
        (lambda: fit(mlp(), {"x": X}, Gaussian()), "the data have no targets"),
        (lambda: fit(mlp(), [(X, Y, X)], Gaussian()), "cannot read a batch that is"),
        (lambda: fit(mlp(), (X, Y), Gaussian(), dataset_size=3), "dataset_size is 3, less than the 7"),
        (lambda: fit(lambda x: x, (X, Y), Gaussian()), "expected a torch.nn.Module, got function"),
        (lambda: fit(mlp(), (X, Y), Gaussian(), select="last_layer"), "select is 'last_layer', expected a function"),
        (lambda: fit(mlp(), (X, Y), Gaussian(), select=["0.weight"]), "expected a function of a weight's name"),
        (lambda: fit(mlp(), (X, Y), Gaussian(), select=lw.last_layer), r"expected the network.*last_layer\(model\)"),
        (lambda: fit(mlp(), (X, Y), Gaussian(), method="kfac"), r"method is 'kfac', expected a value.*KFAC\(\)"),
        (lambda: fit(mlp(), (X, Y), Gaussian(), prior=Isotropic), r"expected a value, such as lapwing.Isotropic\(\)"),
        (lambda: fit(mlp(), {"rows": X, "label": Y}, Gaussian()), r"say which part is its input.*inputs='rows'"),
        (
            lambda: fit(nn.Sequential(mlp(), nn.Softmax(1)).eval(), (X, torch.arange(7) % 2), lw.Categorical()),
            "they are probabilities.*leave out the softmax",
        ),
    ],
)
def test_bad_input_gets_a_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_network_in_single_precision_has_the_evidence_of_its_double():
    """Its Jacobian is made in single precision; everything after that is not."""
    model, inputs, targets = problem("mlp")
    double = fit(model, (inputs, targets), Gaussian(0.3), prior=Isotropic(2.0), method=Exact(), draws=0)
    single = fit(
        model.float(), (inputs.float(), targets.float()), Gaussian(0.3), prior=Isotropic(2.0), method=Exact(), draws=0
    )
    # y − f + J w̄ is known to single precision, and so is J: a few 1e-7 of each, twice over the noise of 0.3
    assert single.log_evidence.value == pytest.approx(double.log_evidence.value, rel=1e-5)
