"""A part of the training data that stands for all of them, with the gradient of the rest."""

from functools import partial

import pytest
import torch
from scipy.optimize import lsq_linear
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.bayes.fits.newton import NewtonSteps
from lapwing.bayes.methods import Exact
from lapwing.network.linearisation import linearise
from tests.bayes.fits.labelled import Labelled, bound, normal

D, WIDTH, PART, REST, PRECISION = 4, 6, 23, 31, 0.7
OF = {"labels": lw.Bernoulli(), "classes": lw.Categorical()}
TIGHT = Exact(newton=NewtonSteps(1e-13, 400))
KINDS = pytest.mark.parametrize("kind", OF)
ALL_WEIGHTS, LAST = None, "2."


def network(kind: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = nn.Linear(D, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1 if kind == "labels" else 3)
    return nn.Sequential(*layers).double().eval()


def data(kind: str, n: int, seed: int) -> tuple[Tensor, Tensor]:
    x, noise = normal(n, D, seed=seed), normal(n, 3, seed=seed + 1)
    if kind == "labels":
        return x, (x[:, :1] - x[:, 1:2] + noise[:, :1] > 0).double()
    return x, (x[:, :3] + noise).argmax(1)


def trained(model: nn.Module, *parts: tuple[Tensor, Tensor]) -> nn.Module:
    x, y = (torch.cat(both) for both in zip(*parts, strict=True))
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=150)

    def loss() -> Tensor:
        optimiser.zero_grad()
        total = -density("labels" if y.ndim == 2 else "classes", model(x), y).sum()
        total = total + 0.5 * sum(weight.square().sum() for weight in model.parameters())
        total.backward()
        return total

    optimiser.step(loss)
    return model.eval()


def chosen(select: str | None):
    return None if select is None else lambda name: name.startswith(select)


def jacobian(model: nn.Module, x: Tensor, select: str | None) -> Tensor:  # (n, m, d)
    weights = {
        name: value.detach()
        for name, value in model.named_parameters()
        if chosen(select) is None or chosen(select)(name)
    }
    parts = jacrev(lambda given: functional_call(model, given, (x,)))(weights)
    return torch.cat([part.detach().flatten(2) for part in parts.values()], 2)


def density(kind: str, f: Tensor, y: Tensor) -> Tensor:  # (n,)
    if kind == "labels":
        return (y * f - nn.functional.softplus(f))[:, 0]
    return -nn.functional.cross_entropy(f, y, reduction="none")


def first_order(kind: str, model: nn.Module, of: tuple[Tensor, Tensor], select: str | None) -> tuple[Tensor, Tensor]:
    """log p of a model through zero at weights θ as level + pullᵀθ, by autograd alone."""
    f = model(of[0]).detach().requires_grad_()
    total = density(kind, f, of[1]).sum()
    slopes = torch.autograd.grad(total, f)[0]
    pull = torch.einsum("nm,nmd->d", slopes, jacobian(model, of[0], select))
    return total.detach() - (slopes * f.detach()).sum(), pull


def remainder(kind: str, model: nn.Module, part, rest, times: float, each: float, select: str | None):
    mine, theirs = first_order(kind, model, part, select), first_order(kind, model, rest, select)
    return tuple(each * b - (times - 1) * a for a, b in zip(mine, theirs, strict=True))


@pytest.fixture(params=OF)
def problem(request):
    kind = request.param
    return kind, network(kind), data(kind, PART, 10), data(kind, REST, 20)


def by_labels(rows: Tensor, y: Tensor, pull: Tensor) -> Tensor:  # (n, d), (n,), (d,)
    """The nearest gradient that labels between 0 and 1 have, by another's program."""
    found = lsq_linear(rows.mT.numpy(), pull.numpy(), bounds=(-y.numpy() - 1e-300, 1 - y.numpy() + 1e-300), tol=1e-15)
    return rows.mT @ torch.from_numpy(found.x)


class TestAgainstDenseFormulas:
    @pytest.mark.parametrize("size", [None, 100])
    def test_what_is_left_of_all_data(self, problem, size):
        kind, model, part, rest = problem
        total = size or PART + REST
        found = linearise(model, part, OF[kind], rest=rest, dataset_size=size)
        times, each = total / PART, (total - PART) / REST
        level, pull = remainder(kind, model, part, rest, times, each, ALL_WEIGHTS)
        torch.testing.assert_close(found.rest.pull, pull, rtol=1e-10, atol=1e-12)
        assert found.rest.level == pytest.approx(float(level), rel=1e-10)
        torch.testing.assert_close(found.weights, torch.full((PART,), times, dtype=torch.float64), rtol=1e-12, atol=0)
        assert found.point.stands_for == pytest.approx(times)

    @pytest.mark.parametrize("select", [LAST, ALL_WEIGHTS])
    def test_mean_and_covariance_are_at_the_top_of_the_bound(self, select):
        """Of labels the bound is known to round-off; the gradient is the nearest that some labels of the part have."""
        model, part, rest = network("labels"), data("labels", PART, 10), data("labels", REST, 20)
        posterior = lw.fit(
            model, part, lw.Bernoulli(), rest=rest, select=chosen(select), prior=lw.Isotropic(PRECISION), method=TIGHT,
        )  # fmt: skip
        times, J = (PART + REST) / PART, jacobian(model, part[0], select)
        level, pull = remainder("labels", model, part, rest, times, 1.0, select)
        pull = by_labels(times * J[:, 0], part[1][:, 0], pull)
        of = Labelled("labels", J, part[1][:, 0], torch.full((PART,), times, dtype=torch.float64))
        mean = posterior.mean.clone().requires_grad_()
        covariance = posterior.covariance.clone().requires_grad_()
        value = bound(of, torch.full_like(pull, PRECISION), mean, covariance) + level + pull @ mean
        assert float(posterior.log_evidence.value) == pytest.approx(float(value.detach()), abs=1e-6)
        by_mean, by_covariance = torch.autograd.grad(value, (mean, covariance))
        assert float(by_mean.abs().max()) < 1e-4
        assert float((by_covariance + by_covariance.mT).abs().max()) < 1e-4

    def test_classes_follow_the_gradient_of_all(self):
        """A m = d + Σ N/n Φᵀ E[y − p], the average by independent normal numbers, within four standard errors.

        d is the nearest gradient that labels of the part have: from there none of their corners lies towards the target.
        """
        part, rest = data("classes", PART, 10), data("classes", REST, 20)
        model = network("classes")
        posterior = lw.fit(
            model, part, lw.Categorical(), rest=rest, select=chosen(LAST), prior=lw.Isotropic(PRECISION), method=TIGHT
        )
        times, J = (PART + REST) / PART, jacobian(model, part[0], LAST)
        _, wanted = remainder("classes", model, part, rest, times, 1.0, LAST)
        search = posterior.gaussian.fit.search
        pull = search.columns.expand(search.rows.rest.pull[:, None])[:, 0]
        own = nn.functional.one_hot(part[1], 3).double()
        corners = torch.eye(3).double()[:, None] - own  # (label, n, m)
        uphill = times * torch.einsum("lnm,nmd,d->ln", corners, J, wanted - pull).max(0).values.sum()
        assert float(uphill) == pytest.approx(float((wanted - pull) @ pull), abs=1e-4 * float(wanted.square().sum()))
        draws = (
            posterior.mean.detach()
            + normal(200_000, len(pull), seed=9) @ torch.linalg.cholesky(posterior.covariance).mT
        )
        slopes = []
        for some in draws.split(20_000):
            p = torch.einsum("nmd,sd->snm", J, some).softmax(2)
            slopes.append(torch.einsum("snm,nmd->sd", own - p, J))
        each = torch.cat(slopes)
        error = times * each.std(0) / len(each) ** 0.5
        off = PRECISION * posterior.mean - pull - times * each.mean(0)
        assert float((off.abs() - 4 * error).max()) < 2e-3 * float(pull.abs().max())  # points are not normal numbers

    def test_the_precision_is_where_that_bound_is_largest(self):
        model, part, rest = network("labels"), data("labels", PART, 10), data("labels", REST, 20)
        linear = linearise(model, part, lw.Bernoulli(), rest=rest)
        tuned = lw.infer(linear, prior=lw.Isotropic(), draws=2)
        best = float(tuned.prior.precision[0])
        around = [
            lw.infer(linear, prior=lw.Isotropic(best * ratio), draws=2).log_evidence.value for ratio in (0.9, 1.1)
        ]
        assert float(tuned.log_evidence.value) > max(float(value) for value in around)


class TestInUse:
    def test_a_rest_that_repeats_the_part_changes_nothing(self, problem):
        """Each datum counts twice then, and their gradient is known already."""
        kind, model, part, _ = problem
        given = {"prior": lw.Isotropic(PRECISION), "curvature": "expected", "draws": 3}
        twice = lw.fit(model, part, OF[kind], rest=part, **given)
        plain = lw.fit(model, part, OF[kind], dataset_size=2 * PART, **given)
        torch.testing.assert_close(twice.mean, plain.mean, rtol=1e-6, atol=1e-8)
        assert float(twice.log_evidence.value) == pytest.approx(float(plain.log_evidence.value), abs=1e-6)

    def test_a_loader_is_read_in_batches(self, problem):
        kind, model, part, rest = problem
        loader = DataLoader(TensorDataset(*rest), batch_size=7)
        one, other = (linearise(model, part, OF[kind], rest=given).rest for given in (rest, loader))
        torch.testing.assert_close(one.pull, other.pull, rtol=1e-12, atol=1e-13)

    def test_a_file_and_other_precisions_keep_it(self, problem, tmp_path):
        kind, model, part, rest = problem
        x = normal(5, D, seed=40)
        fit = partial(lw.fit, model, part, OF[kind], rest=rest, method=TIGHT)
        posterior = fit(prior=lw.Isotropic(PRECISION))
        posterior.save(tmp_path / "a.lapwing")
        loaded = lw.load(tmp_path / "a.lapwing", model)
        for precision in (PRECISION, 3.0):
            fresh = fit(prior=lw.Isotropic(precision))
            for one in (posterior.at(precision), loaded.at(precision)):
                torch.testing.assert_close(one.predict(x).probs, fresh.predict(x).probs, rtol=0, atol=1e-5)

    def test_it_is_nearly_as_good_as_all_data(self):
        """Two classes of a network in two dimensions: without the gradient of the rest the mean sees the part alone."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1300, 2, generator=generator).double()
        y = (x[:, :1] + (2 * x[:, 1:]).sin() + 0.7 * torch.randn(1300, 1, generator=generator) > 0).double()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 1)).double()
        model = trained(model, (x[:300], y[:300]))
        part, rest, test = (x[:15], y[:15]), (x[15:300], y[15:300]), (x[300:], y[300:])
        of, given = lw.Bernoulli(), {"prior": lw.Isotropic(), "draws": 2}

        def loss(posterior: lw.Posterior) -> float:
            return -float(posterior.predict(test[0]).log_prob(test[1]).mean())

        whole = loss(lw.fit(model, (x[:300], y[:300]), of, **given))
        alone = loss(lw.fit(model, part, of, dataset_size=300, curvature="expected", **given))
        together = loss(lw.fit(model, part, of, rest=rest, **given))
        assert alone > whole + 0.5
        assert together < whole + 0.03

    @KINDS
    def test_what_would_make_nothing_of_it_says_so(self, kind):
        model, part, rest = network(kind), data(kind, PART, 10), data(kind, REST, 20)
        with pytest.raises(ValueError, match="leave rest= out and give dataset_size= alone"):
            lw.fit(model, part, OF[kind], rest=rest, method=lw.KFAC())
        with pytest.raises(ValueError, match="takes it at one point"):
            lw.fit(model, part, OF[kind], rest=rest, curvature="network")
        with pytest.raises(ValueError, match=f"the {PART} data given and the {REST} of rest="):
            lw.fit(model, part, OF[kind], rest=rest, dataset_size=PART + REST - 1)
        numbers = part[0], part[0][:, : 1 if kind == "labels" else 3]
        with pytest.raises(ValueError, match="not for Gaussian"):
            lw.fit(model, numbers, lw.Gaussian(), rest=numbers)
