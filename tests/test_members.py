"""Networks trained side by side are those that would have been trained alone; they resume to the same networks."""

import pytest
import torch
from torch import nn

from lapwing.bayes.likelihoods import Categorical, Gaussian
from lapwing.network.shuffling import Source
from lapwing.training import Diverged, adam, members, train
from lapwing.training import side_by_side as module


def normals(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def data(n: int = 23, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = normals(n, 3, seed=seed)
    return x, torch.sin(2 * x[:, :2]) + 0.3 * normals(n, 2, seed=seed + 1)


def seeded(seed: int, *layers) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(*[layer() for layer in layers]).double()


def mlp(seed: int) -> nn.Module:
    return seeded(seed, lambda: nn.Linear(3, 5), nn.ReLU, lambda: nn.Linear(5, 2))


def normalised(seed: int) -> nn.Module:
    return seeded(seed, lambda: nn.Linear(3, 5), lambda: nn.BatchNorm1d(5), nn.Tanh, lambda: nn.Linear(5, 2))


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.05, momentum=0.9)


@pytest.mark.parametrize("make", [mlp, normalised])
@pytest.mark.parametrize("optimiser", [sgd, adam(0.02)])
def test_each_goes_where_it_would_have_gone_alone(make, optimiser):
    """With an order of the data, a decay and a best epoch of its own, buffers included."""
    held_out, precisions = data(9, seed=7), (0.0, 0.5, 2.0)
    options = {
        "epochs": 4,
        "batch_size": 7,
        "optimiser": optimiser,
        "schedule": lambda done: 1 - done,
        "progress": False,
    }
    found = members(make, data(), Gaussian(), 3, prior_precision=precisions, validation=held_out, seed=4, **options)
    for number, (model, precision) in enumerate(zip(found, precisions, strict=True)):
        seed = 4 + number
        alone = train(
            make(seed), data(), Gaussian(), prior_precision=precision, validation=held_out, seed=seed, **options
        )  # fmt: skip
        assert not model.training
        for name, tensor in model.state_dict().items():
            # a bias before BatchNorm has a gradient of round-off, 1e-16, which Adam divides by 1e-8: 16 steps of 0.02
            torch.testing.assert_close(tensor, alone.state_dict()[name], rtol=1e-9, atol=16 * 0.02 * 1e-8)
    assert len({float(model.state_dict()["0.weight"][0, 0]) for model in found}) == 3


def test_a_convolution_with_labels():
    def make(seed):
        return seeded(
            seed, lambda: nn.Conv2d(1, 2, 3), lambda: nn.BatchNorm2d(2), nn.ReLU, nn.Flatten, lambda: nn.Linear(18, 4)
        )

    pictures = normals(13, 1, 5, 5, seed=3), torch.arange(13) % 4
    options = {"epochs": 2, "batch_size": 5, "optimiser": adam(0.01), "progress": False}
    found = members(make, pictures, Categorical(), 3, **options)
    for seed, model in enumerate(found):
        alone = train(make(seed), pictures, Categorical(), seed=seed, **options)
        torch.testing.assert_close(model(pictures[0]), alone(pictures[0]), rtol=1e-9, atol=1e-10)


def test_masks_of_dropout_differ_between_networks_and_repeat():
    def make(seed):
        del seed  # one start for all: only the masks differ
        return seeded(0, lambda: nn.Linear(3, 6), lambda: nn.Dropout(0.5), lambda: nn.Linear(6, 2))

    def trained():
        return members(make, data(), Gaussian(), 2, epochs=1, batch_size=23, progress=False)

    state = torch.get_rng_state()
    first, again = trained(), trained()
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first[1][0].weight, again[1][0].weight)
    assert not torch.equal(first[0][0].weight, first[1][0].weight)


@pytest.mark.parametrize("layers", [(), (lambda: nn.Dropout(0.2),)])
def test_resumed_training_ends_in_the_same_networks(tmp_path, layers):
    def make(seed):
        return seeded(seed, lambda: nn.Linear(3, 5), lambda: nn.BatchNorm1d(5), *layers, lambda: nn.Linear(5, 2))

    options = {"batch_size": 7, "optimiser": adam(0.05), "validation": data(9, seed=7), "progress": False}
    whole = members(make, data(), Gaussian(), 3, epochs=6, **options)
    members(make, data(), Gaussian(), 3, epochs=2, checkpoint=tmp_path, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["members.pt"]
    resumed = members(make, data(), Gaussian(), 3, epochs=6, checkpoint=tmp_path, **options)
    for one, other in zip(whole, resumed, strict=True):
        for name, tensor in one.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name])
    with pytest.raises(ValueError, match="is of another run"):
        members(make, data(), Gaussian(), 2, epochs=6, checkpoint=tmp_path, **options)


class Refused(nn.Module):
    """A network that looks at its numbers, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if float(x.sum()) < 1e9 else self.layer(-x)


def test_what_cannot_be_mapped_is_trained_one_by_one_and_that_is_said(tmp_path):
    told: list[str] = []
    options = {"epochs": 2, "batch_size": 7}
    found = members(
        lambda seed: seeded(seed, Refused), data(), Gaussian(), 2, checkpoint=tmp_path, progress=told.append, **options
    )
    alone = train(seeded(1, Refused), data(), Gaussian(), seed=1, progress=False, **options)
    assert torch.equal(found[1][0].layer.weight, alone[0].layer.weight)
    assert any("one by one (vmap refuses this network" in phase for phase in told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["member-0.pt", "member-1.pt"]
    plan = module.TrainingPlan(Source.of(data()), Gaussian(), 1, 5, None, None, (0.0, 0.0), None, 0)
    assert module.obstacle([mlp(0), normalised(0)], plan) == "their architectures differ"
    assert module.obstacle([mlp(0), mlp(1)], plan) is None


def test_one_that_diverges_is_named_and_bad_arguments_are_refused():
    def make(seed):
        model = mlp(seed)
        if seed == 8:
            with torch.no_grad():
                model[2].weight.fill_(1e200)
        return model

    with pytest.raises(Diverged, match="the member with seed 8 diverged: the loss became"):
        members(make, data(), Gaussian(), 3, epochs=1, seed=7, progress=False)
    with pytest.raises(ValueError, match="count is 0"):
        members(mlp, data(), Gaussian(), 0, epochs=1)
    with pytest.raises(ValueError, match="one for all or one for each of 3"):
        members(mlp, data(), Gaussian(), 3, epochs=1, prior_precision=[1.0, 2.0])
