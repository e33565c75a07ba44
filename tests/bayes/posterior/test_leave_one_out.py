"""Leave-one-out predictions and influence against really leaving out: dense, by loops, with its own formulas."""

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.bayes.likelihoods import HeteroscedasticGaussian, Poisson, likelihood

PRECISION = 0.8


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labelled(kind: str, n: int = 23, d: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Features (n, m, d), targets and uneven counts."""
    m = {"classes": 3, "labels": 2, "one label": 1, "counts": 2}[kind]
    features = normal(n, m, d, seed=1)
    if kind == "one label":
        features = features[:, 0]
    logits = features @ normal(d, seed=2)
    noisy = logits + normal(*logits.shape, seed=3)
    targets = noisy.argmax(1) if kind == "classes" else (noisy > 0).double()
    targets = noisy.exp().clamp_max(9).round() if kind == "counts" else targets
    return features, targets, 0.5 + torch.rand(n, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def log_probs(kind: str, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,)
    if kind == "classes":
        return -nn.functional.cross_entropy(outputs, targets, reduction="none")
    if kind == "counts":
        return (targets * outputs - outputs.exp()).sum(1)
    each = -nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return each.reshape(len(targets), -1).sum(1)


def loss(kind, features, targets, counts, keep):
    """−log p over the data kept, plus the prior, as a function of the weights."""
    keep = list(keep)

    def value(theta: Tensor) -> Tensor:
        each = log_probs(kind, features[keep] @ theta, targets[keep])
        return 0.5 * PRECISION * theta @ theta - counts[keep] @ each

    return value


def newton(value, theta: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        hessian, gradient = torch.func.hessian(value)(theta), torch.func.grad(value)(theta)
        theta = theta - torch.linalg.solve(hessian, gradient)
    return theta


KINDS = ["classes", "labels", "one label", "counts"]


def inferred(kind, features, targets, counts, curvature=None):
    likelihood = {"classes": lw.Categorical(), "counts": Poisson()}.get(kind, lw.Bernoulli())
    model = lw.LinearModel(features.reshape(-1, features.shape[-1]), targets, likelihood, weights=counts)
    return lw.infer(model, prior=lw.Isotropic(PRECISION), curvature=curvature)


@pytest.mark.parametrize("d", [5, 41], ids=["more data", "more weights"])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_left_out_by_one_newton_step(kind, d):
    features, targets, counts = labelled(kind, n=13 if d > 13 else 23, d=d)
    n = len(features)
    found = inferred(kind, features, targets, counts, "mode").leave_one_out()
    mode = newton(loss(kind, features, targets, counts, range(n)), torch.zeros(d).double(), 12)
    for i in (0, 4, n - 1):
        rest = loss(kind, features, targets, counts, [k for k in range(n) if k != i])
        stepped = newton(rest, mode, 1)
        covariance = torch.linalg.inv(torch.func.hessian(rest)(mode))
        rows = features[i].reshape(-1, d)
        torch.testing.assert_close(found.mean[i].reshape(-1), rows @ stepped, rtol=1e-7, atol=1e-8)
        expected = rows @ covariance @ rows.mT
        torch.testing.assert_close(
            found.epistemic_variance[i].reshape(-1), expected.diagonal(), rtol=1e-7, atol=0
        )  # the mode is known to 1e-14 nats, its outputs to the root of that
        whole = torch.func.hessian(loss(kind, features, targets, counts, range(n)))(mode)
        moved = ((mode - stepped) @ whole @ (mode - stepped)).sqrt()
        assert float(found.distance[i]) == pytest.approx(float(moved), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_one_step_is_nearer_to_the_refit_than_none(kind):
    """Half of the error that is left in the logits is removed in the median datum, and much more of a gentle one."""
    features, targets, counts = labelled(kind)
    n, d = len(features), features.shape[-1]
    found = inferred(kind, features, targets, counts, "mode").leave_one_out()
    mode = newton(loss(kind, features, targets, counts, range(n)), torch.zeros(d).double(), 12)
    left, before = [], []
    for i in range(n):
        refit = newton(loss(kind, features, targets, counts, [k for k in range(n) if k != i]), mode, 5)
        left.append(float((found.mean[i] - features[i] @ refit).norm()))
        before.append(float((features[i] @ (mode - refit)).norm()))
    ratio = torch.tensor(left) / torch.tensor(before)
    assert float(ratio.max()) < 0.9
    assert float(ratio.median()) < 0.25


@pytest.mark.parametrize("d", [5, 41], ids=["more data", "more weights"])
@pytest.mark.parametrize("kind", KINDS)
def test_leaving_out_of_the_best_gaussian_is_nearer_to_the_refit_than_leaving_it(kind, d):
    """With gradient and curvature averaged over the posterior; variances come near to those of the refit too."""
    features, targets, counts = labelled(kind, n=13 if d > 13 else 23, d=d)
    n = len(features)
    posterior = inferred(kind, features, targets, counts, "expected")
    found = posterior.leave_one_out()
    left, before, widths = [], [], []
    for i in range(0, n, 2):
        keep = torch.arange(n) != i
        refit = inferred(kind, features[keep], targets[keep], counts[keep], "expected")
        rows = features[i].reshape(-1, d)
        left.append(float((found.mean[i].reshape(-1) - rows @ refit.mean).norm()))
        before.append(float((rows @ (posterior.mean - refit.mean)).norm()))
        variance = (rows @ refit.covariance @ rows.mT).diagonal()
        widths.append(float((found.epistemic_variance[i].reshape(-1) / variance).log().abs().max()))
    ratio = torch.tensor(left) / torch.tensor(before)
    assert float(ratio.max()) < 0.9
    assert float(ratio.median()) < 0.25
    assert max(widths) < 0.25
    assert float(found.leverage.sum()) == pytest.approx(posterior.effective_dimension.value, rel=1e-7)


def test_leverages_of_labels_sum_to_the_dimension_at_the_mode():
    features, targets, counts = labelled("classes")
    found = inferred("classes", features, targets, counts, "mode").leave_one_out()
    value = loss("classes", features, targets, counts, range(len(features)))
    mode = newton(value, torch.zeros(5).double(), 12)
    hessian = torch.func.hessian(value)(mode)
    expected = 5 - PRECISION * float(torch.linalg.inv(hessian).diagonal().sum())
    assert float(found.leverage.sum()) == pytest.approx(expected, rel=1e-7)
    assert bool((found.leverage > 0).all())


def test_the_density_of_a_label_is_that_of_the_posterior_without_it():
    """One label: its probability is the integral of a sigmoid, here on a fine grid; the link is good to 0.02."""
    features, targets, counts = labelled("one label")
    found = inferred("one label", features, targets, counts).leave_one_out()
    grid = torch.linspace(-8, 8, 4001).double()
    weights = torch.exp(-0.5 * grid.square()) / torch.exp(-0.5 * grid.square()).sum()
    logits = found.mean[:, None] + found.epistemic_variance.sqrt()[:, None] * grid
    integral = (logits.sigmoid() * weights).sum(1)
    expected = torch.where(targets > 0, integral, 1 - integral)
    torch.testing.assert_close(found.log_density.exp(), expected, rtol=0, atol=0.02)
    torch.testing.assert_close(found.prediction.probs, integral, rtol=0, atol=0.02)


def network(outputs: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double().eval()


def test_numbers_of_a_network_are_left_out_exactly():
    model, x, y = network(2), normal(17, 3, seed=5), normal(17, 2, seed=6)
    options = {"prior": lw.Isotropic(2.0)}
    found = lw.fit(model, (x, y), lw.Gaussian(0.7), **options).leave_one_out()
    for i in (0, 11):
        rest = torch.arange(17) != i
        alone = lw.fit(model, (x[rest], y[rest]), lw.Gaussian(0.7), **options).predict(x[i : i + 1], mean="linear")
        torch.testing.assert_close(found.mean[i], alone.mean[0], rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(found.residual[i], y[i] - alone.mean[0], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.mean + found.residual, y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_from_the_network_the_step_starts_at_its_own_weights(kind):
    model, x = network(3), normal(17, 3, seed=5)
    y = normal(17, 3, seed=6)
    likelihood, targets = (lw.Gaussian(0.7), y) if kind == "numbers" else (lw.Categorical(), y.argmax(1))
    posterior = lw.fit(model, (x, targets), likelihood, prior=lw.Isotropic(2.0), curvature="network")
    found = posterior.leave_one_out(mean="network")
    weights = dict(model.named_parameters())
    jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(model, w, (x,)))(weights)
    J = torch.cat([part.reshape(17, 3, -1) for part in jacobian.values()], 2).detach()
    outputs = model(x).detach()
    if kind == "numbers":
        B = torch.eye(3).double().expand(17, 3, 3) / 0.49
        slope = (y - outputs) / 0.49
    else:
        p = outputs.softmax(1)
        B = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        slope = nn.functional.one_hot(targets, 3) - p
    H = 2.0 * torch.eye(J.shape[2]).double() + torch.einsum("nap,nab,nbq->pq", J, B, J)
    for i in (0, 9, 16):
        rest = H - J[i].mT @ B[i] @ J[i]
        step = torch.linalg.solve(rest, J[i].mT @ slope[i])
        torch.testing.assert_close(found.mean[i], outputs[i] - J[i] @ step, rtol=1e-8, atol=1e-9)
        expected = J[i] @ torch.linalg.inv(rest) @ J[i].mT
        torch.testing.assert_close(found.epistemic_variance[i], expected.diagonal(), rtol=1e-8, atol=0)
        assert float(found.distance[i]) == pytest.approx(float((step @ H @ step).sqrt()), rel=1e-8)


@pytest.mark.parametrize("d", [5, 41], ids=["more data", "more weights"])
def test_influence_of_numbers_is_what_a_refit_says(d):
    features, targets, new = normal(19, d, seed=1), normal(19, seed=2), normal(4, d, seed=3)
    noise, counts = torch.linspace(0.4, 0.9, 19).double(), torch.linspace(0.5, 2, 19).double()

    def inferred(keep):
        model = lw.LinearModel(features[keep], targets[keep], lw.Gaussian(noise[keep]), weights=counts[keep])
        return lw.infer(model, prior=lw.Isotropic(PRECISION))

    every = torch.ones(19, dtype=torch.bool)
    posterior = inferred(every)
    found, loo = posterior.influence(new), posterior.leave_one_out()
    distances = torch.zeros(19).double()
    for i in range(19):
        without = inferred(every & (torch.arange(19) != i))
        expected = posterior.predict(new).mean - without.predict(new).mean
        torch.testing.assert_close(found[i], expected, rtol=1e-7, atol=1e-10)
        change = posterior.mean - without.mean
        distances[i] = (change @ torch.linalg.solve(posterior.covariance, change)).sqrt()
    torch.testing.assert_close(loo.distance, distances, rtol=1e-6, atol=0)
    assert torch.equal(loo.most_influential(3), distances.argsort(descending=True)[:3])


@pytest.mark.parametrize("d", [5, 41], ids=["more data", "more weights"])
@pytest.mark.parametrize("kind", ["classes", "one label"])
def test_influence_of_labels_is_one_newton_step(kind, d):
    features, targets, counts = labelled(kind, n=11, d=d)
    new = normal(2, 3, d, seed=9) if kind == "classes" else normal(2, d, seed=9)
    found = inferred(kind, features, targets, counts, "mode").influence(new.reshape(-1, d))
    mode = newton(loss(kind, features, targets, counts, range(11)), torch.zeros(d).double(), 12)
    for i in (0, 7):
        stepped = newton(loss(kind, features, targets, counts, [k for k in range(11) if k != i]), mode, 1)
        torch.testing.assert_close(found[i], new @ (mode - stepped), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", [lw.Krylov(), lw.CG(rtol=1e-9)], ids=["Krylov", "CG"])
@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_influence_without_leverages_is_the_slope_in_the_weight_of_a_datum(kind, method):
    features, targets, counts = labelled("classes", n=11, d=7)
    likelihood = lw.Categorical() if kind == "classes" else lw.Gaussian(0.6)
    targets = targets if kind == "classes" else normal(11, 3, seed=4)
    rows, new = features.reshape(-1, 7), normal(2, 3, 7, seed=9)

    def inferred(weights, method):
        model = lw.LinearModel(rows, targets, likelihood, weights=weights)
        return lw.infer(model, prior=lw.Isotropic(PRECISION), method=method, curvature="mode")

    found = inferred(counts, method).influence(new.reshape(-1, 7))
    assert found.shape == (11, 2, 3)
    for i in (0, 7):
        step = 1e-3 * counts[i] * (torch.arange(11) == i)
        ends = [inferred(counts + sign * step, lw.Exact()).mean for sign in (1, -1)]
        torch.testing.assert_close(found[i], new @ (ends[0] - ends[1]) / 2e-3, rtol=1e-5, atol=1e-6)


def test_influence_from_the_network_has_the_shape_of_its_outputs():
    model, x = network(3), normal(17, 3, seed=5)
    given = {"prior": lw.Isotropic(2.0), "curvature": "network"}
    posterior = lw.fit(model, (x, normal(17, 3, seed=6).argmax(1)), lw.Categorical(), **given)
    own, loo = posterior.influence(x, mean="network"), posterior.leave_one_out(mean="network")
    assert own.shape == (17, 17, 3)
    torch.testing.assert_close(
        own[torch.arange(17), torch.arange(17)], model(x).detach() - loo.mean, rtol=1e-8, atol=1e-9
    )


def test_mean_and_variance_heads_are_left_out_by_one_step_of_the_fisher_information():
    model, x, y = network(2), normal(17, 3, seed=5), normal(17, seed=6)
    posterior = lw.fit(model, (x, y), HeteroscedasticGaussian(), prior=lw.Isotropic(2.0))
    found = posterior.leave_one_out(mean="network")
    weights = dict(model.named_parameters())
    jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(model, w, (x,)))(weights)
    J = torch.cat([part.reshape(17, 2, -1) for part in jacobian.values()], 2).detach()
    mean, log_variance = model(x).detach().unbind(1)
    B = torch.diag_embed(torch.stack([(-log_variance).exp(), torch.full_like(mean, 0.5)], 1))
    error = (y - mean) * (-log_variance).exp()
    slope = torch.stack([error, 0.5 * ((y - mean) * error - 1)], 1)
    H = 2.0 * torch.eye(J.shape[2]).double() + torch.einsum("nap,nab,nbq->pq", J, B, J)
    for i in (0, 9):
        step = torch.linalg.solve(H - J[i].mT @ B[i] @ J[i], J[i].mT @ slope[i])
        torch.testing.assert_close(found.mean[i], model(x[i]).detach() - J[i] @ step, rtol=1e-8, atol=1e-9)
    assert found.prediction.mean.shape == (17,)
    assert bool(found.log_density.isfinite().all())


def test_a_likelihood_of_your_own_is_left_out_as_the_one_it_equals():
    features, targets, counts = labelled("one label")
    own = likelihood(lambda f, y: -nn.functional.softplus(f) + y * f)
    given = {"prior": lw.Isotropic(PRECISION)}
    one, other = (
        lw.infer(lw.LinearModel(features, targets, of, weights=counts), **given).leave_one_out()
        for of in (own, lw.Bernoulli())
    )
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(one.leverage, other.leverage, rtol=1e-6, atol=0)
    torch.testing.assert_close(one.log_density.exp(), other.log_density.exp(), rtol=0, atol=0.02)  # the links differ


def test_a_datum_of_weight_zero_changes_nothing():
    features, targets, counts = labelled("classes")
    counts[3] = 0
    found = inferred("classes", features, targets, counts).leave_one_out()
    assert float(found.leverage[3]) == 0
    assert float(found.distance[3]) == 0


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda p: p.leave_one_out(mean="network"), "linear itself"),
        (lambda p: p.leave_one_out().label_errors(0), "expected at least 1"),
        (lambda p: p.leave_one_out().most_influential(-2), "count is -2"),
    ],
)
def test_what_cannot_be_asked_is_said(ask, message):
    posterior = inferred("classes", *labelled("classes"))
    with pytest.raises(ValueError, match=message):
        ask(posterior)


@pytest.mark.parametrize("method", [lw.Krylov(), lw.CG(), lw.LowRank(3)], ids=["krylov", "cg", "low rank"])
def test_methods_without_exact_leverages_refuse(method):
    model = lw.LinearModel(normal(19, 5, seed=1), normal(19, seed=2), lw.Gaussian(0.5))
    with pytest.raises(ValueError, match=r"leverages of"):
        lw.infer(model, method=method).leave_one_out()


def planted(count: int, size: int):
    """Digits of which some have another label."""
    from sklearn.datasets import load_digits

    images, truth = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(images), generator=generator)[:size]
    x, labels = torch.from_numpy(images[chosen] / 16.0), torch.from_numpy(truth[chosen]).long()
    flipped = torch.randperm(size, generator=generator)[:count]
    labels[flipped] = (labels[flipped] + torch.randint(1, 10, (count,), generator=generator)) % 10
    return x, labels, flipped


def test_flipped_labels_planted_in_digits_are_found():
    """Of 15 suspects 12 or more are flipped; by chance it would be one."""
    x, labels, flipped = planted(15, size=300)
    posterior = lw.infer(
        lw.LinearModel(torch.kron(x, torch.eye(10).double()), labels, lw.Categorical()), prior=lw.Isotropic(0.1)
    )
    suspects = posterior.leave_one_out().label_errors(15)
    assert int(torch.isin(suspects, flipped).sum()) >= 12
