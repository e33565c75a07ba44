"""Training by the evidence: its value, its fixed point, and batches that are trained as their members alone are."""

from dataclasses import replace

import pytest
import torch

from lapwing.tabular import training
from lapwing.tabular.curvature import Workspace
from lapwing.tabular.networks import initial, linearised
from lapwing.tabular.training import Groups, LocalModel, TrainingData, log_evidence, start, stepped, train, updated
from tests.tabular import reference
from tests.tabular.problems import FEW, MANY, MEMBERS, problem


def quiet(phase: str) -> None:
    del phase


def parts(case):
    here = LocalModel.of(case.state.networks, case.data, Workspace())
    return here, here.curved.at(case.state.variances(case.groups))


def evidence_of(case, member, log_precision, log_noise):
    """By the reference, as a function of what the update changes."""
    own, shapes, x, y, row_weights, *_, row_noise = case.at(member)
    state = replace(
        case.state,
        precision=log_precision.exp().expand(MEMBERS, -1),
        noise_precision=log_noise.exp().expand(MEMBERS),
    )
    prior = replace(case, state=state).prior_precision()[member]
    return reference.log_evidence(own, shapes, x, y, row_weights, prior, log_noise.exp(), row_noise)


def test_blocks_of_rows_give_the_sums_of_dense_rows(monkeypatch):
    """Seven rows a block, the last of which is smaller: gradient, misfit and Gauss-Newton matrix of all of them."""
    case = problem(MANY)
    networks = case.state.networks
    monkeypatch.setattr(training, "BLOCK_ELEMENTS", 7 * MEMBERS * networks.weights)
    assert [len(block.inputs) for block in case.data.blocks(networks)] == [7, 7, 7, 7, 7, 5]
    here = LocalModel.of(networks, case.data, Workspace())
    values, jacobian = linearised(networks, case.data.inputs)
    rows = case.data.rows(jacobian).dense()
    residuals = case.data.residuals(values)
    torch.testing.assert_close(here.misfit, 0.5 * residuals.square().sum(1), rtol=1e-13, atol=0)
    torch.testing.assert_close(case.data.misfit(networks), here.misfit, rtol=1e-13, atol=0)
    torch.testing.assert_close(here.pull.flat(), (rows.mT @ residuals[:, :, None])[:, :, 0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(here.curved.gram.tril(), (rows.mT @ rows).tril(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n", [FEW, MANY])
def test_the_evidence_is_that_of_the_dense_formula(n):
    case = problem(n)
    here, known = parts(case)
    found = log_evidence(case.state, case.groups, case.data, known, here.misfit)
    for member in range(MEMBERS):
        torch.testing.assert_close(found[member], reference.log_evidence(*case.at(member)), rtol=1e-10, atol=0)


@pytest.mark.parametrize("n", [FEW, MANY])
def test_the_update_goes_where_the_evidence_has_no_slope(n):
    """The slope of the evidence in log α_g is ½ (γ_g − α_g ‖w_g‖²): with γ held, the update is its zero."""
    case = problem(n)
    here, known = parts(case)
    gamma = case.groups.summed(known.determined())
    new = updated(case.state, case.groups, case.data, known, here.misfit)
    for member in range(MEMBERS):
        log_precision = case.state.precision[member].log().requires_grad_()
        log_noise = case.state.noise_precision[member].log().requires_grad_()
        evidence_of(case, member, log_precision, log_noise).backward()
        ratio = case.state.precision[member] / new.precision[member]  # α ‖w‖² / γ
        torch.testing.assert_close(log_precision.grad, 0.5 * gamma[member] * (1 - ratio), rtol=1e-7, atol=1e-9)
        left = case.data.count - gamma[member].sum()
        ratio = case.state.noise_precision[member] / new.noise_precision[member]  # β ‖r‖² / (N − γ)
        torch.testing.assert_close(log_noise.grad, 0.5 * left * (1 - ratio), rtol=1e-7, atol=1e-9)


def test_at_the_end_the_slopes_of_loss_and_evidence_are_zero():
    case = problem(MANY)
    trained = train(case.state, case.groups, case.data, max_iter=3000, tol=1e-10, report=quiet)
    assert trained.converged.all()
    end = replace(case, state=trained.state)
    for member in range(MEMBERS):
        weights, shapes, x, y, row_weights, prior, noise, row_noise = end.at(member)
        weights = weights.clone().requires_grad_()
        squares = ((row_weights / row_noise)[:, None] * (y - reference.output(weights, shapes, x)) ** 2).sum()
        (0.5 * noise * squares + 0.5 * (prior * weights**2).sum()).backward()
        curved = reference.precision(weights.detach(), shapes, x, row_weights, prior, noise, row_noise)
        # a step from a point whose loss is 1e-10 nats above its minimum does not lead further away
        assert weights.grad @ torch.linalg.solve(curved, weights.grad) <= 2e-10
        log_precision = end.state.precision[member].log().requires_grad_()
        log_noise = end.state.noise_precision[member].log().requires_grad_()
        evidence_of(end, member, log_precision, log_noise).backward()
        found = end.state.precision[member]
        free = (found > case.groups.least) & (found < training.LARGEST_PRECISION)
        assert free.sum() >= 4
        assert log_precision.grad[free].abs().max() <= 1e-4
        assert (log_precision.grad[found == case.groups.least] <= 0).all()  # at the bound, which it would cross
        assert log_noise.grad.abs() <= 1e-4


@pytest.mark.parametrize("n", [FEW, MANY])
def test_a_batch_is_trained_as_its_members_alone(n):
    """To round-off, which thirty steps enlarge: products of other batch sizes are summed in another order."""
    case = problem(n)
    together = train(case.state, case.groups, case.data, max_iter=30, tol=0.0, report=quiet)
    for member in range(MEMBERS):
        one = torch.tensor([member])
        alone = train(case.state[one], case.groups, case.data[one], max_iter=30, tol=0.0, report=quiet)
        torch.testing.assert_close(
            alone.state.networks.flat()[0], together.state.networks.flat()[member], rtol=1e-6, atol=1e-7
        )
        torch.testing.assert_close(alone.state.precision[0], together.state.precision[member], rtol=1e-6, atol=0)


def test_the_loss_never_rises_at_fixed_precisions():
    case = problem(MANY)
    losses = []
    for _ in range(25):
        here, _ = parts(case)
        penalty = training.penalty(case.state.networks, case.state.variances(case.groups))
        losses.append(here.misfit + penalty)
        case = replace(case, state=stepped(case.state, case.groups, case.data, here))
    assert (torch.stack(losses).diff(dim=0) <= 0).all()
    assert (losses[-1] < losses[0]).all()


def test_weights_count_rows():
    """A row of weight two is two rows."""
    case = problem(FEW)
    times = torch.tensor([1, 2, 1, 3, 0, 1, 2])
    weighted = TrainingData.of(case.data.inputs, case.data.targets, times.double())
    repeated = TrainingData.of(
        case.data.inputs.repeat_interleave(times, 0),
        case.data.targets.repeat_interleave(times, 1),
        torch.ones(10).double(),
    )
    ends = [
        train(case.state, case.groups, data, max_iter=10, tol=0.0, report=quiet).state for data in (weighted, repeated)
    ]
    torch.testing.assert_close(ends[0].networks.flat(), ends[1].networks.flat(), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(ends[0].precision, ends[1].precision, rtol=1e-7, atol=0)


def test_a_column_without_use_is_switched_off(generator):
    x = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(80, generator=generator, dtype=torch.float64)
    targets = (torch.sin(2 * x[:, 0]) + 0.5 * x[:, 2] + noise)[None, :, None].expand(2, -1, -1)
    sizes = (3, 8, 1)
    groups = Groups.by_column(torch.arange(3), sizes)
    networks = initial(sizes, [torch.Generator().manual_seed(k) for k in range(2)])
    data = TrainingData.of(x, targets, torch.ones(80, dtype=torch.float64))
    end = train(start(networks, groups), groups, data, max_iter=200, tol=1e-4, report=quiet).state
    assert (end.precision[:, 1] > 30 * end.precision[:, 0]).all()
    assert (end.noise_precision.rsqrt() > 0.07).all()
    assert (end.noise_precision.rsqrt() < 0.13).all()


def test_an_interrupt_keeps_what_there_is():
    case = problem(FEW)

    def impatient(phase: str) -> None:
        if phase.startswith("iteration 7"):
            raise KeyboardInterrupt

    stopped = train(case.state, case.groups, case.data, max_iter=50, tol=0.0, report=impatient)
    whole = train(case.state, case.groups, case.data, max_iter=7, tol=0.0, report=quiet)
    assert stopped.interrupted
    assert not stopped.converged.any()
    assert torch.equal(stopped.state.networks.flat(), whole.state.networks.flat())


def test_a_step_that_does_not_fall_is_tried_again_with_more_damping(monkeypatch):
    """Undamped steps from a random start overshoot where the prior is weak; the same Gauss-Newton matrix serves others."""
    case = problem(MANY)
    state = replace(case.state, damping=torch.full((MEMBERS,), 1e-3).double(), precision=case.state.precision * 1e-3)

    def loss(after):
        penalty = training.penalty(after.networks, state.variances(case.groups))
        return case.data.misfit(after.networks) + penalty

    here = LocalModel.of(state.networks, case.data, Workspace())
    monkeypatch.setattr(training, "TRIES", 1)
    once = stepped(state, case.groups, case.data, here)
    stuck = loss(once) == loss(state)
    assert stuck.any()
    monkeypatch.setattr(training, "TRIES", 40)
    often = stepped(state, case.groups, case.data, here)
    assert (loss(often) < loss(state)).all()
    assert torch.equal(often.networks.flat()[~stuck], once.networks.flat()[~stuck])
    raised = torch.log2(often.damping[stuck] / state.damping[stuck])
    assert (raised >= 2).all()
