"""The training loop: the right optimum, seeded batches, resume to the same curve, divergence, best weights."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

from lapwing.bayes.likelihoods import Bernoulli, Categorical, Gaussian
from lapwing.network.shuffling import Source
from lapwing.training import Descent, Diverged, adam, log_prob, loop, train


def problem(n=30, p=4, m=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, p, generator=generator, dtype=torch.float64)
    w = torch.randn(m, p, generator=generator, dtype=torch.float64)
    return x, x @ w.mT + 0.3 * torch.randn(n, m, generator=generator, dtype=torch.float64)


def network(*layers):
    """Layers with weights of their own seed, whatever the global state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(*[layer() for layer in layers]).double()


def linear(p=4, m=3):
    return network(lambda: nn.Linear(p, m, bias=False))


def test_train_finds_the_posterior_mode_of_a_linear_model():
    """(XᵀX / σ² + α) W = Xᵀ Y / σ², solved densely; Adam with a falling rate gets there from above."""
    x, y = problem()
    noise_std, precision = 0.5, 7.0
    trained = train(
        linear(), (x, y), Gaussian(noise_std), epochs=1500, batch_size=30, optimiser=adam(0.05),
        schedule=lambda done: (1 - done) ** 2, prior_precision=precision, progress=False,
    )  # fmt: skip
    exact = torch.linalg.solve(x.mT @ x / noise_std**2 + precision * torch.eye(4).double(), x.mT @ y / noise_std**2)
    assert torch.allclose(trained[0].weight.mT, exact, atol=1e-6)


def test_the_model_and_the_global_random_state_are_untouched():
    model = network(
        lambda: nn.Linear(4, 6), lambda: nn.BatchNorm1d(6), lambda: nn.Dropout(0.5), lambda: nn.Linear(6, 3)
    )
    model.eval()
    before = copy.deepcopy(model.state_dict())
    trained = train(model, problem(), Gaussian(0.5), epochs=2, batch_size=7, progress=False)
    assert not model.training
    assert not trained.training
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert all(weight.grad is None for weight in model.parameters())
    assert not torch.equal(trained[1].running_mean, model[1].running_mean)
    assert trained[1].num_batches_tracked == 2 * 5


def test_a_seed_gives_one_result_and_another_seed_another():
    model, data = network(lambda: nn.Linear(4, 6), lambda: nn.Dropout(0.5), lambda: nn.Linear(6, 3)), problem()

    def weight(seed):
        return train(model, data, Gaussian(1.0), epochs=2, batch_size=7, seed=seed, progress=False)[2].weight

    assert torch.equal(weight(3), weight(3))
    assert not torch.equal(weight(3), weight(4))


@pytest.mark.parametrize("kind", ["arrays", "dataset", "loader", "list", "own dataset"])
def test_all_kinds_of_data_are_the_same_data(kind):
    x, y = problem()

    class Own(Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, index):
            return x[index], y[index]

    data = {
        "arrays": (x.numpy(), y.numpy()),
        "dataset": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True),
        "list": [(x[:11], y[:11]), (x[11:], y[11:])],
        "own dataset": Own(),
    }[kind]
    one = train(linear(), (x, y), Gaussian(1.0), epochs=2, batch_size=7, progress=False)
    other = train(linear(), data, Gaussian(1.0), epochs=2, batch_size=7, progress=False)
    assert torch.equal(one[0].weight, other[0].weight)


def test_batches_hold_every_datum_once_in_another_order_every_time(generator):
    x, y = torch.arange(23), torch.arange(23) * 2
    first, second = ([*Source.of((x, y)).shuffled(5, generator)] for _ in range(2))
    assert [len(inputs) for inputs, _ in first] == [5, 5, 5, 5, 3]
    assert all(torch.equal(targets, 2 * inputs) for inputs, targets in first)
    orders = [torch.cat([inputs for inputs, _ in batches]) for batches in (first, second)]
    assert all(torch.equal(order.sort().values, x) for order in orders)
    assert not torch.equal(*orders)


class Interrupt(Exception):
    pass


def noisy(weights, inputs, targets, generator):
    """A loss that draws from the generator and from the global state, as dropout does."""
    noise = torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype) + torch.rand_like(inputs)
    return ((inputs + 0.1 * noise) @ weights["w"] - targets).square().mean()


@pytest.mark.parametrize("stop", [1, 4])
def test_a_killed_run_resumes_to_the_same_curve(tmp_path, stop):
    x, y = problem()
    calls = []

    def score(weights):
        calls.append(1)
        return abs(float(weights["w"].sum()) - 1)

    def run(path, interrupt_at=None):
        learner = Descent(noisy, {"w": torch.zeros(4, 3).double()}, adam(0.1))

        def watched(weights):
            if len(calls) == interrupt_at:
                raise Interrupt
            return score(weights)

        return loop(learner, (x, y), epochs=6, batch_size=7, seed=5, score=watched, checkpoint=path, progress=False)

    whole = run(None)
    calls.clear()
    with pytest.raises(Interrupt):
        run(tmp_path / "deep" / "run.pt", interrupt_at=stop)
    resumed = run(tmp_path / "deep" / "run.pt")
    assert resumed.curve == whole.curve
    assert resumed.best == whole.best
    assert torch.equal(resumed.weights["w"], whole.weights["w"])
    assert len(calls) == 6  # finished epochs were not run again
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["run.pt"]


def test_a_finished_run_can_be_given_more_epochs(tmp_path):
    x, y = problem()

    def run(epochs, path):
        learner = Descent(noisy, {"w": torch.zeros(4, 3).double()})
        return loop(learner, (x, y), epochs=epochs, batch_size=7, checkpoint=path, progress=False)

    run(2, tmp_path / "run.pt")
    assert run(5, tmp_path / "run.pt").curve == run(5, None).curve
    with pytest.raises(ValueError, match="5 epochs old and 3 were asked for"):
        run(3, tmp_path / "run.pt")


def test_a_checkpoint_of_another_run_or_a_broken_one_is_refused(tmp_path):
    path, data = tmp_path / "run.pt", problem()
    train(linear(), data, Gaussian(1.0), epochs=1, checkpoint=path, progress=False)
    with pytest.raises(ValueError, match=r"of another run: batch_size, seed differ \(\[128, 0\] there, \[9, 1\] here"):
        train(linear(), data, Gaussian(1.0), epochs=2, batch_size=9, seed=1, checkpoint=path, progress=False)
    path.write_bytes(b"half")
    with pytest.raises(ValueError, match="cannot read the checkpoint .* delete it to start anew"):
        train(linear(), data, Gaussian(1.0), epochs=2, checkpoint=path, progress=False)


def test_divergence_stops_names_the_step_and_keeps_the_last_good_state(tmp_path):
    x, y = problem()
    steps = []

    def loss(weights, inputs, targets, generator):
        steps.append(weights["w"].detach().clone())
        value = (inputs @ weights["w"] - targets).square().mean()
        return value * math.nan if len(steps) == 13 else value

    learner = Descent(loss, {"w": torch.zeros(4, 3).double()})
    with pytest.raises(
        Diverged, match=r"loss became nan at step 13, in epoch 3: .* after epoch 2 are in last_good"
    ) as e:
        loop(learner, (x, y), epochs=4, batch_size=7, checkpoint=tmp_path / "run.pt", progress=False)
    assert e.value.step == 13
    assert torch.equal(e.value.last_good["w"], steps[10])  # the weights that the first step of epoch 3 saw
    kept = torch.load(tmp_path / "run.pt", weights_only=True)
    assert torch.equal(kept["learner"]["weights"]["w"], steps[10])


def test_weights_that_become_infinite_in_the_last_step_are_noticed():
    x, y = problem()
    learner = Descent(noisy, {"w": torch.zeros(4, 3).double()}, lambda w: torch.optim.SGD(w, lr=1e308))
    with pytest.raises(Diverged, match="w became NaN or infinite by step 1, the end of epoch 1") as error:
        loop(learner, (x, 1e10 * y), epochs=3, batch_size=30, progress=False)
    assert torch.equal(error.value.last_good["w"], torch.zeros(4, 3).double())


def test_the_best_weights_by_the_validation_score_are_kept():
    scores, seen = iter([3.0, 1.0, 2.0, 1.0]), []

    def score(weights):
        seen.append(weights["w"])
        return next(scores)

    learner = Descent(noisy, {"w": torch.zeros(4, 3).double()})
    found = loop(learner, problem(), epochs=4, batch_size=7, score=score, progress=False)
    assert [epoch.score for epoch in found.curve] == [3, 1, 2, 1]
    assert found.best == 2
    assert torch.equal(found.weights["w"], seen[1])


def test_train_with_validation_keeps_the_epoch_with_the_best_held_out_density():
    x, y = problem(60)
    data, validation = (x[:20], y[:20]), (x[20:], y[20:])
    model = network(lambda: nn.Linear(4, 50), nn.Tanh, lambda: nn.Linear(50, 3))
    shown = []
    arguments = {"epochs": 40, "optimiser": adam(0.03), "batch_size": 5}
    trained = train(model, data, Gaussian(0.3), validation=validation, progress=shown.append, **arguments)
    last = train(model, data, Gaussian(0.3), progress=False, **arguments)
    held_out = [
        float(-log_prob(Gaussian(0.3), net(validation[0]).detach(), validation[1]) / 40) for net in (trained, last)
    ]
    scores = [float(line.split("validation ")[1].split(",")[0]) for line in shown if line]
    assert held_out[0] == pytest.approx(min(scores), rel=1e-3)
    assert held_out[0] < held_out[1]


def test_progress_says_the_epoch_the_loss_and_the_time_left():
    shown = []
    train(linear(), problem(), Gaussian(1.0), epochs=2, progress=shown.append)
    assert shown[0].startswith("epoch 1 of 2, loss ")
    assert shown[0].endswith(" s left")
    assert shown[-1] == ""


@pytest.mark.parametrize("likelihood", ["gaussian", "one noise per output", "bernoulli", "categorical"])
def test_log_prob_is_the_sum_that_torch_gives(likelihood, generator):
    outputs = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    classes, labels = torch.arange(7) % 3, (torch.arange(21) % 2).reshape(7, 3)
    std = torch.tensor([0.5, 1.0, 2.0]).double()
    d = torch.distributions
    ours, theirs = {
        "gaussian": (log_prob(Gaussian(0.5), outputs, outputs + 1), d.Normal(outputs, 0.5).log_prob(outputs + 1)),
        "one noise per output": (
            log_prob(Gaussian(std), outputs, outputs + 1),
            d.Normal(outputs, std).log_prob(outputs + 1),
        ),
        "bernoulli": (log_prob(Bernoulli(), outputs, labels), d.Bernoulli(logits=outputs).log_prob(labels.double())),
        "categorical": (log_prob(Categorical(), outputs, classes), d.Categorical(logits=outputs).log_prob(classes)),
    }[likelihood]
    assert torch.allclose(ours, theirs.sum(), rtol=1e-14)


def test_one_output_and_flat_targets_belong_together(generator):
    outputs, targets = (torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = torch.distributions.Normal(outputs, 0.5).log_prob(targets).sum()
    assert torch.allclose(log_prob(Gaussian(0.5), outputs[:, None], targets), expected)
    assert torch.allclose(log_prob(Gaussian(0.5), outputs, targets[:, None]), expected)


def test_digits_are_learnt_by_a_small_cnn():
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target)
    model = network(
        lambda: nn.Conv2d(1, 8, 3, padding=1), nn.ReLU, lambda: nn.MaxPool2d(2), nn.Flatten, lambda: nn.Linear(128, 10)
    ).float()
    trained = train(
        model, (x[:1200], y[:1200]), Categorical(), epochs=8, batch_size=32, optimiser=adam(0.01), progress=False
    )
    assert (trained(x[1200:]).argmax(1) == y[1200:]).double().mean() > 0.9


BAD = {
    "no epochs": ({"epochs": 0}, "epochs is 0 and batch_size 128: expected at least one"),
    "negative precision": ({"prior_precision": -1.0}, "prior_precision is -1.0, expected zero or more"),
    "too few targets": ({"data": (torch.zeros(3, 4), torch.zeros(2, 3))}, "3 inputs and 2 targets"),
    "no data": ({"data": (torch.zeros(0, 4), torch.zeros(0, 3))}, "the data are empty"),
    "NaN": ({"data": (torch.full((3, 4), math.nan), torch.zeros(3, 3))}, "contain NaN or infinite values"),
    "wrong type": ({"data": "mnist"}, "cannot read data of type str"),
    "wrong shape": ({"data": (torch.zeros(3, 4).double(), torch.zeros(3))}, r"targets of shape \(3,\) do not fit outputs"),
    "noise per datum": ({"likelihood": Gaussian(np.ones((30, 1)))}, "noise_std of shape .30, 1. cannot be used with batches"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_with_a_message(change, message):
    arguments = {"data": problem(), "likelihood": Gaussian(1.0), "epochs": 1, "progress": False, **change}
    with pytest.raises(ValueError, match=message):
        train(linear(), arguments.pop("data"), arguments.pop("likelihood"), **arguments)


def test_a_network_without_trainable_weights_is_refused():
    with pytest.raises(ValueError, match="no weights that require gradients"):
        train(linear().requires_grad_(False), problem(), Gaussian(1.0), epochs=1)


def test_a_run_ends_where_it_is_told_to_and_stays_ended(tmp_path):
    x, y = problem()

    def run(stop, epochs=9):
        learner = Descent(lambda w, x, y, _: (x @ w["w"] - y).square().mean(), {"w": torch.zeros(4, 3).double()})
        return loop(
            learner, (x, y), epochs=epochs, batch_size=10, stop=stop, checkpoint=tmp_path / "run.pt", progress=False
        )

    assert len(run(lambda epoch: epoch.number == 4).curve) == 4
    assert len(run(lambda epoch: epoch.number == 4).curve) == 4
    assert len(run(None).curve) == 9


def test_a_sampler_of_a_part_is_refused_and_a_subset_is_not():
    data = TensorDataset(torch.arange(7.0)[:, None], torch.arange(7.0))
    with pytest.raises(ValueError, match="reads 3 of 7 data.*Subset"):
        Source.of(DataLoader(data, batch_size=2, sampler=SubsetRandomSampler([0, 2, 4])))
    assert Source.of(DataLoader(Subset(data, [0, 2, 4]), batch_size=2, shuffle=True)).size == 3


def test_tensors_in_memory_are_not_copied():
    x, y = problem()
    source = Source.of((x, y))
    x[0], y[0] = 7.0, 8.0
    batch = source.first(3)
    assert torch.equal(batch.inputs, x[:3])
    assert torch.equal(batch.targets, y[:3])
