"""Training by the evidence: what it calls evidence is the dense formula, what it calls its maximum is one."""

from copy import deepcopy

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import nn
from torch.func import functional_call, jacrev

from lapwing import KFAC, SGD, Diagonal, Exact, GPrior, Isotropic, Krylov, LowRank, PerGroup, fit
from lapwing.bayes.likelihoods import Bernoulli, Categorical, Gaussian
from lapwing.families.evidence_training import train_with_evidence
from lapwing.training import adam, train

N, D = 19, 3 * 4 + 4 + 4 * 2 + 2


def problem(likelihood):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    if isinstance(likelihood, Categorical):
        return model, x, (x[:, 0] > 0).long()
    if isinstance(likelihood, Bernoulli):
        return model, x, (x[:, :2] > 0).double()
    y = torch.sin(x[:, :2]) + 0.3 * torch.randn(N, 2, generator=generator, dtype=torch.float64)
    return model, x, y


def dense(model, x, y, likelihood, noise_std):
    """log p(y | w), the Gauss-Newton matrix of the data and the flat weights, by autodiff."""
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    rows = jacrev(lambda w: functional_call(model, w, (x,)))(weights)
    jacobian = torch.cat([part.reshape(len(x), 2, -1) for part in rows.values()], dim=2)
    outputs = model(x).detach()
    if isinstance(likelihood, Categorical):
        p = outputs.softmax(1)
        curvature, fitted = torch.diag_embed(p) - p[:, :, None] * p[:, None, :], p.log().gather(1, y[:, None]).sum()
    elif isinstance(likelihood, Bernoulli):
        p = outputs.sigmoid()
        curvature, fitted = torch.diag_embed(p * (1 - p)), (y * p.log() + (1 - y) * (1 - p).log()).sum()
    else:
        curvature = torch.eye(2).double().expand(len(x), 2, 2) / noise_std**2
        fitted = torch.distributions.Normal(outputs, noise_std).log_prob(y).sum()
    ggn = torch.einsum("nap,nab,nbq->pq", jacobian, curvature, jacobian)
    return float(fitted), ggn, torch.cat([weight.reshape(-1) for weight in weights.values()])


def dense_evidence(fitted, ggn, weights, precision):
    """log p(y | w) + log N(w; 0, 1/λ) − ½ log det(M + λ) + ½ d log 2π."""
    determinant = torch.linalg.slogdet(ggn + torch.diag(precision)).logabsdet
    return fitted + 0.5 * float(precision.log().sum() - (precision * weights.square()).sum() - determinant)


LIKELIHOODS = {
    "gaussian": Gaussian(0.4), "noise tuned": Gaussian(), "categorical": Categorical(), "bernoulli": Bernoulli(),
}  # fmt: skip
SHAPES = {"exact": Exact(), "low rank": LowRank(D, rtol=1e-10), "krylov": Krylov(rtol=1e-9), "diagonal": Diagonal()}


def shaped(ggn, method):
    return torch.diag(ggn.diagonal()) if isinstance(method, Diagonal) else ggn


@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_evidence_of_an_epoch_is_the_dense_formula(kind, name):
    likelihood, method = LIKELIHOODS[kind], SHAPES[name]
    model, x, y = problem(likelihood)
    prior = Isotropic() if name == "krylov" else PerGroup("layer")
    found = train_with_evidence(
        model, (x, y), likelihood, epochs=1, prior=prior, method=method, batch_size=5, seed=2, start_precision=0.7,
        progress=False,
    )  # fmt: skip
    (step,) = found.curve
    fitted, ggn, weights = dense(found.model, x, y, likelihood, step.noise_std or 0.4)
    values = torch.tensor(list(step.precision.values()), dtype=torch.float64)
    each = values.expand(D) if name == "krylov" else values.repeat_interleave(torch.tensor([16, 10]))
    truth = dense_evidence(fitted, shaped(ggn, method), weights, each)
    # a Krylov space knows determinants from probes: no more than their spread is claimed
    error = 5 * found.posterior.log_evidence.standard_error if name == "krylov" else 0
    assert step.log_evidence == pytest.approx(truth, abs=1e-8 * abs(truth) + error)
    gamma = torch.linalg.solve(shaped(ggn, method) + torch.diag(each), shaped(ggn, method)).trace()
    if name != "krylov":
        assert step.effective_dimension == pytest.approx(float(gamma), rel=1e-8)
        if not isinstance(method, Exact):  # whose posterior has its evidence at the mode
            assert found.posterior.log_evidence.value == pytest.approx(step.log_evidence, rel=1e-8)


@pytest.mark.parametrize("kind", ["noise tuned", "categorical"])
def test_a_step_without_a_limit_ends_at_the_maximum_of_the_dense_evidence(kind):
    likelihood = LIKELIHOODS[kind]
    model, x, y = problem(likelihood)
    found = train_with_evidence(
        model, (x, y), likelihood, epochs=2, burn_in=1, method=Exact(), batch_size=5, largest_step=50.0, progress=False
    )
    (step,) = found.curve
    sizes = torch.tensor([16, 10])

    def negative(logs):
        noise_std = float(np.exp(logs[2])) if kind == "noise tuned" else 1.0
        fitted, ggn, weights = dense(found.model, x, y, likelihood, noise_std)
        return -dense_evidence(fitted, ggn, weights, torch.tensor(logs[:2]).exp().repeat_interleave(sizes))

    best = scipy.optimize.minimize(negative, np.zeros(3 if kind == "noise tuned" else 2), method="Nelder-Mead",
                                   options={"xatol": 1e-7, "fatol": 1e-12, "maxiter": 4000})  # fmt: skip
    ours = [*np.log(list(step.precision.values())), *([np.log(step.noise_std)] if step.noise_std else [])]
    assert ours == pytest.approx(best.x, abs=1e-4)
    assert step.log_evidence == pytest.approx(-best.fun, abs=1e-7)
    assert step.at_largest_step == ()


def test_a_step_goes_no_further_than_asked_and_says_so():
    model, x, y = problem(Categorical())
    found = train_with_evidence(
        model, (x, y), Categorical(), epochs=1, start_precision=1e5, largest_step=0.5, progress=False
    )
    assert found.curve[0].precision == pytest.approx({"0": 1e5 * np.exp(-0.5), "2": 1e5 * np.exp(-0.5)})
    assert found.curve[0].at_largest_step == ("0", "2")


def test_given_precisions_make_it_maximum_a_posteriori_training():
    model, x, y = problem(Gaussian(0.4))
    options = {"epochs": 3, "batch_size": 5, "seed": 4, "optimiser": adam(0.05), "progress": False}
    ours = train_with_evidence(model, (x, y), Gaussian(0.4), prior=Isotropic(2.0), frequency=3, burn_in=2, **options)
    plain = train(model, (x, y), Gaussian(0.4), prior_precision=2.0, **options)
    assert ours.best == 3
    for one, other in zip(ours.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    assert ours.curve[0].precision == {"all": pytest.approx(2.0, rel=1e-12)}


def test_kfac_evidence_is_that_of_a_fit_at_the_weights():
    model, x, y = problem(Categorical())
    found = train_with_evidence(model, (x, y), Categorical(), epochs=2, batch_size=5, progress=False)
    again = fit(
        found.model, (x, y), Categorical(), prior=PerGroup("layer", found.assessment.precision),
        method=KFAC(evidence_at="weights"),
    )  # fmt: skip
    assert again.log_evidence.value == pytest.approx(found.assessment.log_evidence, rel=1e-9)
    torch.testing.assert_close(again.covariance, found.posterior.covariance)


def test_a_subset_counts_for_all_data():
    """Of data that are all alike, any subset has the evidence of the whole."""
    model, x, y = problem(Categorical())
    x, y = x[:1].expand(N, 3).clone(), y[:1].expand(N).clone()
    options = {"epochs": 1, "prior": Isotropic(1.3), "method": Exact(), "batch_size": N, "progress": False}
    whole = train_with_evidence(model, (x, y), Categorical(), **options)
    part = train_with_evidence(model, (x, y), Categorical(), subset=5, **options)
    assert part.curve[0].log_evidence == pytest.approx(whole.curve[0].log_evidence, rel=1e-9)
    assert part.curve[0].effective_dimension == pytest.approx(whole.curve[0].effective_dimension, rel=1e-9)


def test_it_goes_on_from_a_checkpoint_to_the_same_curve(tmp_path):
    model, x, y = problem(Gaussian())
    options = {"batch_size": 5, "frequency": 2, "seed": 1, "optimiser": adam(0.02), "progress": False}
    straight = train_with_evidence(model, (x, y), Gaussian(), epochs=7, **options)
    path = tmp_path / "run.pt"
    train_with_evidence(model, (x, y), Gaussian(), epochs=4, checkpoint=path, **options)
    resumed = train_with_evidence(model, (x, y), Gaussian(), epochs=7, checkpoint=path, **options)
    assert [step.epoch for step in resumed.curve] == [1, 3, 5, 7]
    assert resumed.curve == straight.curve
    assert resumed.epochs == straight.epochs
    for one, other in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="frequency differ"):
        train_with_evidence(model, (x, y), Gaussian(), epochs=7, checkpoint=path, **{**options, "frequency": 3})


def test_the_epoch_with_the_largest_evidence_is_kept_and_patience_ends_the_run():
    model, x, y = problem(Categorical())
    shown = []
    found = train_with_evidence(
        model, (x, y), Categorical(), epochs=40, method=Exact(), batch_size=3, optimiser=adam(0.3), patience=3,
        progress=shown.append,
    )  # fmt: skip
    values = [step.log_evidence for step in found.curve]
    assert found.best == 1 + int(np.argmax(values))
    assert len(found.epochs) == found.best + 3 < 40
    assert "−evidence per datum" in shown[0]


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


def test_batch_norm_trains_in_train_mode_and_is_assessed_in_eval_mode():
    _, x, y = problem(Categorical())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Normed().double()
    before, state = deepcopy(model.state_dict()), torch.get_rng_state()
    found = train_with_evidence(model, (x, y), Categorical(), epochs=3, batch_size=7, method=Exact(), progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not found.model.training
    assert int(found.model.norm.num_batches_tracked) == 3 * found.best
    assert not torch.equal(found.model.norm.running_mean, before["norm.running_mean"])
    fitted, ggn, weights = dense(found.model, x, y, Categorical(), 1.0)
    sizes = torch.tensor([16, 8, 10])
    each = torch.tensor(list(found.assessment.precision.values()), dtype=torch.float64).repeat_interleave(sizes)
    truth = dense_evidence(fitted, ggn, weights, each)
    assert found.assessment.log_evidence == pytest.approx(truth, rel=1e-8)


def test_evidence_finds_a_decay_that_generalises_where_none_overfits():
    generator = torch.Generator().manual_seed(0)
    x, new = (torch.randn(size, 5, generator=generator, dtype=torch.float64) for size in (30, 500))
    y, new_y = (
        torch.tanh(part[:, :1]) + 0.3 * torch.randn(len(part), 1, generator=generator, dtype=torch.float64)
        for part in (x, new)
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    options = {"epochs": 150, "batch_size": 30, "optimiser": adam(0.02), "progress": False}
    ours = train_with_evidence(model, (x, y), Gaussian(), frequency=5, **options)
    plain = train(model, (x, y), Gaussian(), **options)
    error, other = (float((net(new) - new_y).square().mean().detach()) for net in (ours.model, plain))
    assert error < 0.75 * other
    assert ours.assessment.noise_std == pytest.approx(0.3, rel=0.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": GPrior()}, "would move with the weights"),
        ({"method": SGD()}, "knows no determinant"),
        ({"burn_in": 3}, "burn_in is 3 and frequency 1 of 3 epochs"),
        ({"frequency": 0}, "frequency 0"),
        ({"largest_step": 0.0}, "largest_step 0.0"),
        ({"subset": 20}, "subset is 20, expected 1 to 19"),
        ({"patience": 0}, "patience is 0"),
    ],
)
def test_what_cannot_be_done_is_said(options, message):
    model, x, y = problem(Categorical())
    with pytest.raises(ValueError, match=message):
        train_with_evidence(model, (x, y), Categorical(), epochs=3, progress=False, **options)


def test_noise_needs_targets_that_differ():
    model, x, y = problem(Gaussian())
    with pytest.raises(ValueError, match="all targets are equal"):
        train_with_evidence(model, (x, 0 * y), Gaussian(), epochs=1, progress=False)
    with pytest.raises(ValueError, match="one noise for all outputs"):
        train_with_evidence(model, (x, y), Gaussian(per_output=True), epochs=1, progress=False)


def test_a_kronecker_block_needs_one_precision():
    model, x, y = problem(Categorical())
    groups = {"odd": torch.arange(D) % 2 == 1, "even": torch.arange(D) % 2 == 0}
    with pytest.raises(ValueError, match="the weights of '0' are in several groups"):
        train_with_evidence(model, (x, y), Categorical(), epochs=1, prior=PerGroup(groups), progress=False)
    found = train_with_evidence(
        model, (x, y), Categorical(), epochs=1, prior=PerGroup(groups), method=Diagonal(), progress=False
    )
    assert set(found.assessment.precision) == {"odd", "even"}
