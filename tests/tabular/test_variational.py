"""Training by the bound: its value, its slopes, and batches that are trained as their members alone are."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lapwing.tabular.labels import Labels, Softmax
from lapwing.tabular.networks import initial
from lapwing.tabular.training import penalty
from lapwing.tabular.variational import Priors, SpreadModel, SpreadState, begin, looked_at, stepped, train, tuned
from tests.tabular import reference
from tests.tabular.problems import FEW, MANY, MEMBERS

COLUMNS = torch.tensor([0, 1, 1, 2])
WIDTHS = torch.tensor([3.0, 10.0, 5.0], dtype=torch.float64)
LENT = torch.tensor([0.0, 1e9, 3.0], dtype=torch.float64)


def quiet(phase: str) -> None:
    del phase


@dataclass(frozen=True)
class Case:
    state: SpreadState
    data: Labels
    priors: Priors

    def prior(self, precision: Tensor) -> Tensor:  # (groups,) to (p,)
        parts = self.priors.groups.spread(precision[None])
        layers = self.state.networks.of
        return torch.cat(
            [part[:, None, :].expand(1, *layer.shape[1:]).flatten() for part, layer in zip(parts, layers, strict=True)]
        )

    @property
    def shapes(self):
        return [tuple(layer.shape[1:]) for layer in self.state.networks.of]


def problem(n: int, classes: int = 3, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    sizes = (4, 5, classes - 1)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    labels = ((x[:, 0] > 0).long() + (x[:, 1] * x[:, 2] > 0.2).long()) % classes
    weights = 0.5 + torch.rand(n, generator=generator, dtype=torch.float64)
    data = Labels(x, labels, weights, Softmax.of(classes, 32))
    priors = Priors.of(COLUMNS, sizes, LENT)
    networks = initial(sizes, [torch.Generator().manual_seed(seed + k) for k in range(MEMBERS)])
    state = begin(networks, data, priors, WIDTHS)
    noise = torch.randn(MEMBERS, priors.groups.count, generator=generator, dtype=torch.float64)
    return Case(replace(state, precision=noise.exp()), data, priors)


def dense_bound(case: Case, member: int, curvature: Tensor, precision: Tensor) -> Tensor:
    """E log p − KL, by the dense matrices; differentiable in the precisions."""
    weights = case.state.networks.flat()[member]
    k = case.data.outputs
    J = reference.jacobian(weights, case.shapes, case.data.inputs).reshape(-1, k, len(weights))
    A = case.prior(precision)
    W = case.data.weights[:, None, None] * curvature
    covariance = torch.linalg.inv(A.diag() + torch.einsum("nkp,nkl,nlq->pq", J, W, J))
    root = torch.linalg.cholesky(J @ covariance @ J.mT)
    softmax = case.data.softmax
    values = reference.output(weights, case.shapes, case.data.inputs)
    logits = (values[:, None] + softmax.points @ root.mT) @ softmax.contrasts.mT
    own = logits.log_softmax(2)[torch.arange(len(values)), :, case.data.labels] @ softmax.shares
    p = len(weights)
    divergence = (A * weights**2).sum() + (A * covariance.diagonal()).sum() - p
    divergence = divergence - torch.linalg.slogdet(covariance)[1] - A.log().sum()
    return case.data.weights @ own - 0.5 * divergence


def settled(case: Case, rounds: int = 60) -> tuple[SpreadState, SpreadModel, object, Tensor]:
    """Spread and curvature that agree with each other, for networks and precisions as they are; and that curvature."""
    state = case.state
    for _ in range(rounds):
        before = SpreadModel.of(state, case.data)
        state, here, known, _ = looked_at(state, case.data, before, case.priors)
    return state, here, known, before.averages.curvature


@pytest.mark.parametrize("n", [FEW, MANY])
def test_the_bound_is_that_of_the_dense_formula(n):
    case = problem(n)
    before = SpreadModel.of(case.state, case.data)
    state, *_ = looked_at(case.state, case.data, before, case.priors)
    for member in range(MEMBERS):
        truth = dense_bound(case, member, before.averages.curvature[member], case.state.precision[member])
        torch.testing.assert_close(state.log_evidence[member], truth, rtol=1e-7, atol=1e-7)  # of the jitter of roots


@pytest.mark.parametrize("n", [FEW, MANY])
def test_the_update_goes_where_the_bound_has_no_slope(n):
    """Where curvature and spread agree the slope in log α_g is ½ (γ_g − α_g ‖w_g‖²): with γ held, the update is its zero.

    For two classes, whose averages are exact to round-off.
    """
    case = problem(n, classes=2)
    state, _, known, curvature = settled(case)
    gamma = case.priors.groups.summed(known.determined())
    new = tuned(state, gamma, case.priors)
    member = 0  # to whose columns nothing is lent
    log_precision = state.precision[member].log().requires_grad_()
    dense_bound(case, member, curvature[member], log_precision.exp()).backward()
    ratio = state.precision[member] / new.precision[member]  # α ‖w‖² / γ
    free = new.precision[member] > case.priors.groups.least
    assert free.sum() >= 4
    slope = 0.5 * gamma[member] * (1 - ratio)
    torch.testing.assert_close(log_precision.grad[free], slope[free], rtol=1e-4, atol=1e-5)


def test_columns_that_lend_share_a_precision():
    case = problem(MANY)
    determined = looked_at(case.state, case.data, SpreadModel.of(case.state, case.data), case.priors).determined
    found = tuned(case.state, determined, case.priors).precision[:, : case.priors.columns]
    assert (found[1].max() / found[1].min()).log() < 1e-6
    assert (found[0].max() / found[0].min()).log() > 0.5
    assert (found[2].max() / found[2].min()).log() < (found[0].max() / found[0].min()).log()


def test_steps_follow_the_gradient_of_the_average():
    case = problem(MANY)
    state, here, *_ = looked_at(case.state, case.data, SpreadModel.of(case.state, case.data), case.priors)
    found = here.gradient(state.networks, state.variances(case.priors), case.data).flat()
    softmax = case.data.softmax
    for member in range(MEMBERS):
        weights = state.networks.flat()[member].clone().requires_grad_()
        values = reference.output(weights, case.shapes, case.data.inputs)
        logits = (values[:, None] + softmax.points @ state.roots[member].mT) @ softmax.contrasts.mT
        own = logits.log_softmax(2)[torch.arange(len(values)), :, case.data.labels] @ softmax.shares
        prior = case.prior(state.precision[member])
        (0.5 * (prior * weights**2).sum() - case.data.weights @ own).backward()
        torch.testing.assert_close(found[member], weights.grad, rtol=1e-8, atol=1e-10)


def test_the_loss_never_rises_while_spread_and_precisions_are_held():
    case = problem(MANY)
    state, *_ = looked_at(case.state, case.data, SpreadModel.of(case.state, case.data), case.priors)
    losses = []
    for _ in range(20):
        here = SpreadModel.of(state, case.data)
        pulled = penalty(state.networks, state.variances(case.priors))
        losses.append(pulled - here.averages.log_density @ case.data.weights)
        state = stepped(state, case.data, here, case.priors)
    assert (torch.stack(losses).diff(dim=0) <= 0).all()
    assert (losses[-1] < losses[0] - 1).all()


@pytest.mark.parametrize("n", [FEW, MANY])
def test_a_batch_is_trained_as_its_members_alone(n):
    """To round-off, which twenty steps enlarge: products of other batch sizes are summed in another order."""
    case = problem(n)
    together = train(case.state, case.data, case.priors, max_iter=20, tol=0.0, report=quiet)
    for member in range(MEMBERS):
        one = torch.tensor([member])
        alone = train(case.state[one], case.data, case.priors[one], max_iter=20, tol=0.0, report=quiet)
        torch.testing.assert_close(
            alone.state.networks.flat()[0], together.state.networks.flat()[member], rtol=1e-6, atol=1e-7
        )


def test_the_bound_rises_until_it_is_settled():
    case = problem(MANY)
    first, *_ = looked_at(case.state, case.data, SpreadModel.of(case.state, case.data), case.priors)
    trained = train(case.state, case.data, case.priors, max_iter=200, tol=0.05, report=quiet)
    assert trained.converged.all()
    assert (trained.iterations < 200).all()
    assert (trained.state.log_evidence > first.log_evidence + 5).all()


def test_weights_count_rows():
    """A row of weight two is two rows."""
    case = problem(FEW)
    times = torch.tensor([1, 2, 1, 3, 0, 1, 2])
    softmax = case.data.softmax
    weighted = Labels(case.data.inputs, case.data.labels, times.double(), softmax)
    repeated = Labels(
        case.data.inputs.repeat_interleave(times, 0), case.data.labels.repeat_interleave(times), torch.ones(10).double(),
        softmax,
    )  # fmt: skip
    ends = [
        train(
            begin(case.state.networks, data, case.priors, WIDTHS), data, case.priors, max_iter=10, tol=0.0, report=quiet
        )
        for data in (weighted, repeated)
    ]
    torch.testing.assert_close(ends[0].state.networks.flat(), ends[1].state.networks.flat(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ends[0].state.log_evidence, ends[1].state.log_evidence)


def test_an_interrupt_keeps_what_there_is():
    case = problem(FEW)

    def impatient(phase: str) -> None:
        if phase.startswith("iteration 7"):
            raise KeyboardInterrupt

    stopped = train(case.state, case.data, case.priors, max_iter=50, tol=0.0, report=impatient)
    whole = train(case.state, case.data, case.priors, max_iter=7, tol=0.0, report=quiet)
    assert stopped.interrupted
    assert not stopped.converged.any()
    assert torch.equal(stopped.state.networks.flat(), whole.state.networks.flat())
