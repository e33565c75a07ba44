"""Groups of weights: found by trying out, and what one precision per normalised group makes invariant."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn.utils.parametrizations import weight_norm

from lapwing import Gaussian, GPrior, Isotropic, LinearModel, PerGroup, infer, linearise
from lapwing.network.groups import REST, weight_groups
from lapwing.network.jacobian import Network
from tests.network.networks import Residual, normal, seeded
from tests.network.test_linearisation import dense_jacobian

X = normal(40, 3, seed=1)
PICTURES = normal(9, 2, 5, 6, seed=3)


class ResidualSum(nn.Module):
    """LayerNorm of a sum of two branches: neither alone can be stretched."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.norm, self.head = nn.Linear(3, 5), nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.one(x) + self.two(x))))


class TiedIntoNorm(nn.Module):
    """One matrix before a norm and again after it: its scale is not removed."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.again = nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3)
        self.again.weight = self.stem.weight
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(self.norm(self.stem(x)))))


def flat(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), norm, nn.Tanh(), nn.Linear(6, 2))


def pictures(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(4 * 3 * 4, 3))


KINDS = {
    "layer norm": (lambda: flat(nn.LayerNorm(6)), X, {"0": ("0.weight", "0.bias")}),
    "rms norm": (lambda: flat(nn.RMSNorm(6)), X, {"0": ("0.weight", "0.bias")}),
    "group norm": (lambda: pictures(nn.GroupNorm(2, 4)), PICTURES, {"0": ("0.weight", "0.bias")}),
    "batch norm": (lambda: pictures(nn.BatchNorm2d(4)), PICTURES, {"0": ("0.weight", "0.bias")}),
    "residual": (Residual, PICTURES, {"stem": ("stem.weight",), "inner": ("inner.weight",)}),
    "weight norm": (
        lambda: nn.Sequential(weight_norm(nn.Linear(3, 6)), nn.Tanh(), nn.Linear(6, 2)),
        X,
        {"0.parametrizations.weight": ("0.parametrizations.weight.original1",)},
    ),
    "no norm": (lambda: flat(nn.Identity()), X, {}),
    "residual sum": (ResidualSum, X, {}),
    "tied": (TiedIntoNorm, X, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_normalised_group_is_what_feeds_one_normalisation(kind):
    make, inputs, expected = KINDS[kind]
    model, _ = seeded(make, inputs)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    network = Network.of(model)
    groups = weight_groups(network, "normalised", inputs)
    starts = dict(zip(network.layout.names, torch.tensor([0, *network.layout.sizes]).cumsum(0).tolist(), strict=False))
    sizes = dict(zip(network.layout.names, network.layout.sizes, strict=True))
    for name, members in expected.items():
        indices = torch.cat([torch.arange(starts[m], starts[m] + sizes[m]) for m in members])
        assert torch.equal(groups.pop(name).sort().values, indices.sort().values)
    assert list(groups) == [REST]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_bias_of_zero_does_not_pass_for_one_that_is_normalised():
    model, _ = seeded(KINDS["weight norm"][0], X)
    with torch.no_grad():
        model[0].bias.zero_()
    groups = weight_groups(Network.of(model), "normalised", X)
    assert len(groups["0.parametrizations.weight"]) == 18


@pytest.mark.parametrize("kind", ["layer norm", "rms norm", "group norm", "weight norm"])
def test_euler(kind):
    """J″ θ″ = 0 where stretching θ″ alone changes nothing; BatchNorm in eval mode is left out."""
    make, inputs, expected = KINDS[kind]
    model, _ = seeded(make, inputs)
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = 1e-14
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    ((_, members),) = expected.items()
    jacobian = jacrev(lambda w: functional_call(model, {**weights, **w}, (inputs,)), chunk_size=1)(
        {name: weights[name] for name in members}
    )
    moved = sum(torch.tensordot(jacobian[name], weights[name], weights[name].ndim) for name in members)
    assert float(moved.abs().max()) < 1e-6


def stretched(kind: str, k: float) -> tuple[nn.Module, Tensor]:
    """The same function at another scale of its normalised group."""
    make, inputs, expected = KINDS[kind]
    model, _ = seeded(make, inputs)
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = 1e-14
    ((_, members),) = expected.items()
    state = model.state_dict()
    for name in members:
        state[name] *= k
    if kind == "batch norm":
        state["1.running_mean"] *= k
        state["1.running_var"] *= k * k
    model.load_state_dict(state)
    return model, inputs


def telling(kind: str) -> Tensor:
    """Targets that say something about the group and about the rest: a step in all weights, seen by the tangent."""
    model, inputs = stretched(kind, 1.0)
    outputs, jacobian = model(inputs).detach(), dense_jacobian(model, inputs)
    step = jacobian @ normal(jacobian.shape[1], 2, seed=5)[:, 0]
    return outputs + step.reshape(outputs.shape) + 0.1 * normal(*outputs.shape, seed=9)


@pytest.mark.parametrize("kind", ["layer norm", "group norm", "batch norm", "weight norm"])
def test_one_precision_per_normalised_group_does_not_depend_on_its_scale(kind):
    """For k ∈ {0.1, 1, 10}; tuned precisions go as k⁻², and predictive variances stay."""
    predictions, precisions = [], []
    for k in (1.0, 0.1, 10.0):
        model, inputs = stretched(kind, k)
        targets = telling(kind)
        linear = linearise(model, (inputs, targets), Gaussian(0.1))
        if kind == "batch norm":  # there J w̄ of the group is not zero, and moves with k: keep the data of the tangent
            linear = LinearModel(
                linear.features, targets, Gaussian(0.1), features_at=linear.features_at, blocks=linear.blocks,
                groups=linear.groups,
            )  # fmt: skip
        posterior = infer(linear, prior=PerGroup("normalised"), draws=0)
        assert len(posterior.prior.names) == 2
        assert bool(posterior.prior.precision.isfinite().all())
        precisions.append(posterior.prior.precision)
        predictions.append(posterior.predict(normal(4, *inputs.shape[1:], seed=20)).epistemic_variance)
    for k, variance, precision in zip((0.1, 10.0), predictions[1:], precisions[1:], strict=True):
        torch.testing.assert_close(variance, predictions[0], rtol=1e-6, atol=0)
        torch.testing.assert_close(precision[0] * k * k, precisions[0][0] + 0 * precision[0], rtol=1e-5, atol=0)
        torch.testing.assert_close(precision[1], precisions[0][1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", ["layer norm", "group norm", "weight norm"])
@pytest.mark.parametrize("k", [0.1, 10.0])
def test_the_g_prior_does_not_depend_on_the_scale_either_and_one_precision_does(kind, k):
    """The one precision shows that the test would notice."""

    def variance(k: float, prior) -> Tensor:
        model, inputs = stretched(kind, k)
        targets = stretched(kind, 1.0)[0](inputs).detach() + 0.3
        linear = linearise(model, (inputs, targets), Gaussian(0.3))
        return infer(linear, prior=prior, draws=0).predict(normal(4, *inputs.shape[1:], seed=20)).epistemic_variance

    torch.testing.assert_close(variance(k, GPrior(3.0)), variance(1.0, GPrior(3.0)), rtol=1e-6, atol=0)
    change = (variance(k, Isotropic(3.0)) / variance(1.0, Isotropic(3.0))).log().abs().max()
    assert float(change) > 0.05


def test_layers_by_name_and_where_names_mean_nothing():
    model, inputs = seeded(Residual, PICTURES)
    targets = model(inputs).detach() + normal(9, 3, seed=9)
    posterior = infer(linearise(model, (inputs, targets), Gaussian(0.5)), prior=PerGroup("layer", 2.0), draws=0)
    assert posterior.prior.names == ("stem", "norm", "inner", "inner_norm", "head")
    with pytest.raises(ValueError, match="'layer' is for networks"):
        infer(LinearModel(normal(5, 3, seed=1), normal(5, seed=2), Gaussian()), prior=PerGroup("layer"))
    with pytest.raises(ValueError, match="'layer' or 'normalised', got 'tensor'"):
        PerGroup("tensor")
