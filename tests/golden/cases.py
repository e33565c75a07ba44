"""Fits and predictions whose numbers must outlive any change of names and layouts: public API only.

A case returns arrays by name. What a redesign is expected to rename or lay out anew goes through the helpers at the
top, so that only those change with it. Diagnostics and other internals stay out.
"""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.families import mackay
from lapwing.linear import BayesianLogisticRegression, BayesianRidge

Values = dict[str, Any]  # of Tensor, np.ndarray or float
DRAWS = 6

# ---------------------------------------------------------------- what is likely to be renamed or laid out anew


def draws_of(posterior: Any) -> Tensor:  # (draws, d)
    return posterior.draws


def sample_of(posterior: Any, count: int) -> Tensor:  # (count, d)
    return posterior.sample(count)


def novelty_of(prediction: Any) -> Tensor:  # outputs' shape
    return (prediction.epistemic_variance / prediction.prior_variance).clamp(0, 1)


def g_prior_each(each: str, precision: float | None = None) -> Any:
    return lw.GPrior(precision, scale_per=each)


def gamma(shape: float, rate: float) -> Any:
    return lw.GammaHyperprior(shape, rate)


def of_total(total: int) -> dict[str, Any]:
    """The argument of `fit` that says how large the whole training set is."""
    return {"dataset_size": total}


# ---------------------------------------------------------------- data and networks


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(make: Callable[[], nn.Module], seed: int = 7) -> nn.Module:
    """A network whose weights come from a generator of its own, in eval mode."""
    with torch.random.fork_rng():  # layers initialise themselves from the global generator
        model = make().double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(0.5 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
            if name.endswith("weight") and tensor.ndim == 1:
                tensor.copy_(1 + tensor.abs())
    return model.eval()


def mlp(outputs: int = 4) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)))


def elsewhere(model: nn.Module, by: float = 0.5) -> nn.Module:
    """A network with other weights: held-out data from it need error bars, so the best precision is inside its range."""
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for number, tensor in enumerate(moved.parameters()):
            tensor += by * normal(*tensor.shape, seed=200 + number)
    return moved


def cnn() -> nn.Module:
    """Images (2, 5, 6) to three outputs, with a normalisation layer."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d((3, 2)), nn.Flatten(), nn.Linear(8, 3)
        )
    )


def numbers(model: nn.Module, x: Tensor, noise: float = 0.4, seed: int = 11) -> Tensor:
    """The network's outputs with noise and a little of what it does not know."""
    with torch.no_grad():
        outputs = model(x)
    return outputs + noise * normal(*outputs.shape, seed=seed) + 0.2 * torch.sin(2 * x.reshape(len(x), -1)[:, :1])


def classes(model: nn.Module, x: Tensor, seed: int = 12) -> Tensor:
    with torch.no_grad():
        logits = model(x)
    return (logits - (-uniform(*logits.shape, seed=seed).log()).log()).argmax(-1)


def design(n: int, d: int, m: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Correlated features of different sizes, (n · m, d), and their noiseless targets, (n,) or (n, m)."""
    mix = normal(d, d, seed=seed) / d**0.5 * torch.logspace(-1, 0.5, d, dtype=torch.float64)
    features = normal(n * m, d, seed=seed + 1) @ mix
    targets = features @ normal(d, seed=seed + 2)
    return features, targets if m == 1 else targets.reshape(n, m)


# ---------------------------------------------------------------- what is asked of a posterior and of a prediction


def told(prediction: Any, y: Any = None, *, probs: bool = False, gaussian: bool = False) -> Values:
    """The fields that such a prediction has.

    The mutual information of labels is by Monte Carlo, and its points turn with the signs of eigenvectors: should it
    alone differ, by some percent, look there first. Of labels (n,) it is left out: there it raises today.
    """
    found: Values = {
        "mean": prediction.mean,
        "epistemic_variance": prediction.epistemic_variance,
        "novelty": novelty_of(prediction),
    }
    if gaussian:
        found["aleatoric_variance"] = prediction.aleatoric_variance
        found["interval"] = torch.stack(prediction.interval(0.8))
        found["samples"] = prediction.samples[:2].double()
    if probs:
        found["probs"] = prediction.probs
    if gaussian or (probs and prediction.mean.ndim > 1):
        found["mutual_information"] = prediction.mutual_information
    if y is not None:
        found["log_prob"] = prediction.log_prob(y)
    return found


def asked(posterior: Any, *, closed: bool = True, noise: bool = False, evidence: bool = True) -> Values:
    found: Values = {
        "mean": posterior.mean,
        "draws": draws_of(posterior)[:3],
        "precision": posterior.prior.precision,
        "effective_dimension": posterior.effective_dimension.value,
    }
    if evidence:
        found["log_evidence"] = posterior.log_evidence.value
    if closed:
        found["sample"] = sample_of(posterior, 2)
        found["covariance"] = posterior.covariance[:4]
    if noise:
        found["noise_std"] = posterior.likelihood.noise_std
    return found


def joined(**parts: Values) -> Values:
    return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}


def left_out(of: Any) -> Values:
    fields = ("leverage", "mean", "epistemic_variance", "log_density", "pull", "distance")
    return {name: getattr(of, name) for name in fields}


# ---------------------------------------------------------------- the cases


@dataclass(frozen=True)
class Case:
    make: Callable[[], Values]
    tolerance: float  # of every number, relative to the largest of its array


CASES: dict[str, Case] = {}

# Closed forms: round-off of decompositions of condition up to about 1e5.
CLOSED = 1e-9
# Modes of labels at a given precision end at 1e-14 nats over the minimum, so at √(2e-14) = 1.4e-7 posterior standard
# deviations from it, in whichever direction; Newton's last step makes it much less in practice.
MODE = 3e-7
# The same with steps by an expected curvature: 1e-10 nats, 1.4e-5 standard deviations.
FISHER_MODE = 3e-5
# Evidence by L-BFGS-B: gradients end at 1e-9 N nats, or where the line search sees round-off of the objective, 1e-15
# of 1e2 nats, that is at √(2e-13 / ½γ) = 3e-7 of a log precision.
EVIDENCE = 2e-6
# The bounded search over the log ratio ends at xatol = 1e-5 (SciPy's default), from either side: two searches differ by
# 2e-5. Means, variances and noise move by no more than that, relatively; the log evidence by ½γ times that, in nats, of
# tens; a precision with a tuned noise by both.
HELD_OUT = 6e-5
# Evidence of labels with several precisions ends at a gradient of 0.02 nats, with curvatures of about one nat for each
# that the data determine.
GROUPS_OF_LABELS = 3e-2
# MacKay's fixed point by secants ends at a step of 1e-2 in log α, and the space that it is known in adds little.
KRYLOV_LABELS = 2e-2


def case(tolerance: float) -> Callable[[Callable[[], Values]], Callable[[], Values]]:
    def noted(make: Callable[[], Values]) -> Callable[[], Values]:
        CASES[make.__name__] = Case(make, tolerance)
        return make

    return noted


# ---- linear models, Gaussian noise


@case(CLOSED)
def exact_primal() -> Values:
    """Isotropic prior and noise given, data weights; `functions`, `joint`, leave-one-out, influence."""
    phi, y = design(23, 7)
    y, at = y + 0.5 * normal(23, seed=5), normal(9, 7, seed=6)
    model = lw.LinearModel(phi, y, lw.Gaussian(0.5), weights=0.3 + uniform(23, seed=4))
    posterior = lw.infer(model, prior=lw.Isotropic(1.7), method=lw.Exact("primal"), draws=DRAWS, seed=3)
    joint = posterior.joint(at, [0, 3, 8])
    return joined(
        posterior=asked(posterior, noise=True),
        prediction=told(posterior.predict(at), normal(9, seed=8), gaussian=True),
        left_out=left_out(posterior.leave_one_out()),
        more={
            "functions": posterior.functions(at),
            "influence": posterior.influence(at[:2]),
            "joint_mean": joint.mean,
            "joint_covariance": joint.covariance,
        },
    )


@case(CLOSED)
def exact_dual() -> Values:
    """More weights than observed outputs, three outputs a datum, weights of every target, the g-prior given."""
    phi, y = design(5, 31, 3, seed=20)
    y, at = y + 0.5 * normal(5, 3, seed=25), normal(12, 31, seed=26)
    model = lw.LinearModel(phi, y, lw.Gaussian([0.4, 0.5, 0.7]), weights=0.3 + uniform(5, 3, seed=4))
    posterior = lw.infer(model, prior=lw.GPrior(0.3), method=lw.Exact("dual"), draws=DRAWS)
    return joined(
        posterior=asked(posterior),
        prediction=told(posterior.predict(at), normal(4, 3, seed=8), gaussian=True),
        left_out=left_out(posterior.leave_one_out()),
        more={"influence": posterior.influence(at[:3])},
    )


# Beside a noise of 1e-7 the round-off of features, 1e-16 of 10, is amplified by up to 1e7.
@case(1e-7)
def exact_by_singular_values() -> Values:
    """Noise so small that a Gram matrix would not do."""
    phi, y = design(19, 6, seed=30)
    posterior = lw.infer(
        lw.LinearModel(phi, y + 1e-7 * normal(19, seed=31), lw.Gaussian(1e-7)), prior=lw.Isotropic(1.0), draws=DRAWS
    )
    return joined(posterior=asked(posterior), prediction=told(posterior.predict(phi[:4] + 0.1), y[:4], gaussian=True))


@case(EVIDENCE)
def evidence_isotropic() -> Values:
    """Precision and noise by evidence; then `at` other ones, `update` and `remove`, with and without retuning."""
    phi, y = design(29, 8, seed=40)
    y, at = y + 0.6 * normal(29, seed=41), normal(5, 8, seed=42)
    model = lw.LinearModel(phi[:24], y[:24], lw.Gaussian())
    posterior = lw.infer(model, prior=lw.Isotropic(), draws=DRAWS)
    more = posterior.update((phi[24:], y[24:]))
    return joined(
        posterior=asked(posterior, noise=True),
        at=asked(posterior.at(precision=2.5, noise_std=0.8), noise=True),
        updated=asked(more),
        updated_and_retuned=asked(posterior.update((phi[24:], y[24:]), retune=True), noise=True),
        removed=asked(more.remove([1, 26])),
        removed_and_retuned=asked(more.remove([1, 26], retune=True), noise=True),
        prediction=told(more.predict(at), gaussian=True),
    )


@case(EVIDENCE)
def evidence_groups_and_noises() -> Values:
    """A precision for each of two groups, a noise for each of three outputs; `at` others."""
    phi, y = design(17, 8, 3, seed=50)
    y = y + torch.tensor([0.3, 0.6, 1.1], dtype=torch.float64) * normal(17, 3, seed=51)
    prior = lw.PerGroup({"first": slice(0, 5), "last": slice(5, 8)})
    posterior = lw.infer(lw.LinearModel(phi, y, lw.Gaussian(per_output=True)), prior=prior, draws=DRAWS)
    at = posterior.at(precision={"first": 3.0, "last": 0.5})
    return joined(
        posterior=asked(posterior, noise=True),
        at=asked(at),
        prediction=told(at.predict(normal(12, 8, seed=52)), normal(4, 3, seed=53), gaussian=True),
    )


@case(EVIDENCE)
def evidence_with_hyperpriors() -> Values:
    """Gamma hyperpriors on precision and noise; the g-prior."""
    phi, y = design(14, 9, seed=60)
    y = y + 0.6 * normal(14, seed=61)
    posterior = lw.infer(
        lw.LinearModel(phi, y, lw.Gaussian(hyperprior=gamma(3.0, 2.0))),
        prior=lw.GPrior(hyperprior=gamma(2.0, 0.5)),
        draws=DRAWS,
    )
    return joined(posterior=asked(posterior, noise=True), prediction=told(posterior.predict(phi[:5] + 0.2)))


@case(HELD_OUT)
def noise_per_datum() -> Values:
    """A noise for every datum, held-out data with theirs."""
    phi, y = design(26, 7, seed=70)
    std = 0.3 + uniform(26, seed=71)
    y = y + std * normal(26, seed=72)
    model = lw.LinearModel(phi[:18], y[:18], lw.Gaussian(std[:18]))
    given = lw.infer(model, prior=lw.Isotropic(0.8), draws=DRAWS)
    tuned = lw.infer(model, prior=lw.Isotropic(), validation=(phi[18:], y[18:], std[18:]), draws=DRAWS)
    with_noise = given.predict(phi[18:]).with_noise(std[18:])
    return joined(
        given=asked(given), tuned=asked(tuned), prediction=told(with_noise, y[18:], gaussian=True),
        left_out=left_out(given.leave_one_out()),
    )  # fmt: skip


@case(HELD_OUT)
def held_out_linear() -> Values:
    """Precision and noise of a linear model on held-out data, by `validation` and by `tune`; saved and loaded."""
    phi, y = design(33, 8, seed=80)
    y = y + 0.6 * normal(33, seed=81)
    held = (phi[21:], y[21:])
    model = lw.LinearModel(phi[:21], y[:21], lw.Gaussian())
    posterior = lw.infer(model, prior=lw.GPrior(), validation=held, draws=DRAWS)
    again = lw.infer(model, prior=lw.GPrior(3.0), draws=DRAWS).tune(held)
    with tempfile.TemporaryDirectory() as folder:
        loaded = lw.load(posterior.save(Path(folder) / "posterior.safetensors"))
    return joined(
        posterior=asked(posterior, noise=True),
        tuned=asked(again, noise=True),
        loaded=asked(loaded, noise=True),
        prediction=told(loaded.predict(phi[:5] + 0.2), y[:5], gaussian=True),
    )


# A space to rtol has draws within that of the exact ones on the data, and precisions tuned in it as close: rtol = 1e-6,
# and where the space is whole, round-off. Twenty times for weights that the data determine less.
@case(2e-5)
def krylov_primal() -> Values:
    phi, y = design(90, 41, seed=90)
    y = y + 0.6 * normal(90, seed=91)
    posterior = lw.infer(
        lw.LinearModel(phi, y, lw.Gaussian()), prior=lw.Isotropic(), method=lw.Krylov(rtol=1e-6), draws=DRAWS
    )
    return joined(
        posterior=asked(posterior, closed=False, noise=True),
        at=asked(posterior.at(precision=9.0), closed=False),
        prediction=told(posterior.predict(phi[:5] + 0.2), y[:5], gaussian=True),
    )


# As above, and the precision from held-out data.
@case(HELD_OUT)
def krylov_dual() -> Values:
    """A sparse matrix with more columns than rows; held-out data."""
    matrix = scipy.sparse.random(70, 110, density=0.1, random_state=3, format="csr")
    y = torch.from_numpy(matrix @ normal(110, seed=95).numpy()) + 0.3 * normal(70, seed=96)
    model = lw.LinearModel(matrix[:48], y[:48], lw.Gaussian())
    given = lw.infer(model, prior=lw.Isotropic(4.0), method=lw.Krylov(rtol=1e-6), draws=DRAWS)
    tuned = lw.infer(
        model, prior=lw.Isotropic(), method=lw.Krylov(rtol=1e-6), draws=DRAWS, validation=(matrix[48:], y[48:])
    )
    return joined(
        given=asked(given, closed=False, noise=True),
        tuned=asked(tuned, closed=False, noise=True),
        prediction=told(tuned.predict(matrix[60:66]), y[60:66], gaussian=True),
    )


# Solves to rtol = 1e-10, in weights up to the condition of the system times that.
@case(1e-7)
def conjugate_gradients() -> Values:
    """Several precisions and noises, given; `at`."""
    phi, y = design(20, 13, 2, seed=100)
    y = y + 0.6 * normal(20, 2, seed=101)
    prior = lw.PerGroup({"first": slice(0, 9), "last": slice(9, 13)}, {"first": 2.0, "last": 0.7})
    posterior = lw.infer(
        lw.LinearModel(phi, y, lw.Gaussian([0.5, 0.8])), prior=prior, method=lw.CG(rtol=1e-10), draws=DRAWS
    )
    return joined(
        posterior=asked(posterior, closed=False),
        at=asked(posterior.at(precision=[1.0, 3.0]), closed=False),
        prediction=told(posterior.predict(phi[:10] + 0.2), y[:5], gaussian=True),
    )


# MacKay's fixed point on draws ends at a step that is small beside their Monte-Carlo error; the number of its steps and
# their warm starts are part of the method, so this is looser than the solves of rtol = 1e-10 within.
@case(1e-3)
def conjugate_gradients_by_evidence() -> Values:
    phi, y = design(40, 12, seed=110)
    y = y + 0.6 * normal(40, seed=111)
    prior = lw.PerGroup({"even": slice(0, 12, 2), "odd": slice(1, 12, 2)})
    posterior = lw.infer(lw.LinearModel(phi, y, lw.Gaussian()), prior=prior, method=lw.CG(rtol=1e-10), draws=DRAWS)
    return joined(
        posterior=asked(posterior, closed=False, noise=True), prediction=told(posterior.predict(phi[:5] + 0.2), y[:5])
    )


# Minibatches and noise come from the seed. Measured: the same bits between runs and between one and two threads, 2e-15
# where inputs move by round-off. A change in the order of sums may be amplified while steps are long: a million times that.
@case(1e-8)
def stochastic_gradients() -> Values:
    phi, y = design(60, 9, seed=120)
    y = y + 0.6 * normal(60, seed=121)
    model = lw.LinearModel(phi, y, lw.Gaussian(0.6))
    found = {
        {"L": "targets", "mixed": "mixed"}[objective]: lw.infer(
            model, prior=lw.Isotropic(1.5), draws=DRAWS, method=lw.SGD(objective, batch_size=16, steps=300)
        )
        for objective in ("L", "mixed")
    }
    return joined(
        **{name: asked(posterior, closed=False) for name, posterior in found.items()},
        prediction=told(found["mixed"].predict(phi[:5] + 0.2), y[:5], gaussian=True),
    )


# ---- networks, Gaussian noise


@case(CLOSED)
def network_exact() -> Values:
    """Everything given; leave-one-out and influence by both means, joint outputs, the network's own draws."""
    model, x, at = mlp(), normal(17, 3, seed=1), normal(6, 3, seed=2)
    posterior = lw.fit(model, (x, numbers(model, x)), lw.Gaussian(0.4), prior=lw.Isotropic(2.0), draws=DRAWS)
    joint = posterior.joint(at, [(0, 1), (0, 3), (5, 2)])
    return joined(
        posterior=asked(posterior, noise=True),
        prediction=told(posterior.predict(at), numbers(model, at), gaussian=True),
        linear=told(posterior.predict(at, mean="linear"), gaussian=True),
        left_out=left_out(posterior.leave_one_out()),
        left_out_network=left_out(posterior.leave_one_out(mean="network")),
        more={
            "functions": posterior.functions(at),
            "influence": posterior.influence(at[:2]),
            "joint_mean": joint.mean,
            "joint_covariance": joint.covariance,
        },
    )


@case(EVIDENCE)
def network_by_evidence() -> Values:
    """The default prior, then layers of a normalised network with a precision each, and data weights by `total`."""
    model, x, at = mlp(), normal(23, 3, seed=1), normal(6, 3, seed=2)
    posterior = lw.fit(model, (x, numbers(model, x)), lw.Gaussian(), draws=DRAWS)
    images, x_image = cnn(), normal(19, 2, 5, 6, seed=3)
    layers = lw.fit(
        images, (x_image, numbers(images, x_image)), lw.Gaussian(0.5), prior=lw.PerGroup("layer"), draws=DRAWS,
        **of_total(50),
    )  # fmt: skip
    return joined(
        posterior=asked(posterior, noise=True),
        prediction=told(posterior.predict(at), numbers(model, at), gaussian=True),
        layers=asked(layers),
        layers_prediction=told(layers.predict(x_image[:4] + 0.1), gaussian=True),
    )


@case(HELD_OUT)
def network_held_out() -> Values:
    """Held-out data with a noise that is tuned too; the g-prior of every weight; saved and loaded; `tune` after it."""
    model, x = mlp(), normal(34, 3, seed=1)
    y = numbers(elsewhere(model), x)
    held = (x[19:], y[19:])
    posterior = lw.fit(
        model, (x[:19], y[:19]), lw.Gaussian(), prior=g_prior_each("weight"), validation=held, draws=DRAWS
    )
    with tempfile.TemporaryDirectory() as folder:
        loaded = lw.load(posterior.save(Path(folder) / "posterior.safetensors"), model)
    return joined(
        posterior=asked(posterior, noise=True),
        loaded=asked(loaded.at(precision=7.0), noise=True),
        tuned=asked(loaded.at(precision=70.0).tune(held), noise=True),
        prediction=told(loaded.predict(x[30:]), y[30:], gaussian=True),
    )


# 30 × 32 features are almost square, so eigenvalues of the Gram matrix reach down to its round-off: measured 1e-9.
@case(1e-7)
def network_update_and_remove() -> Values:
    model, x = mlp(2), normal(21, 3, seed=4)
    y = numbers(model, x)
    some = lw.fit(model, (x[:15], y[:15]), lw.Gaussian(0.5), prior=g_prior_each("tensor", 0.4), draws=DRAWS)
    more = some.update((x[15:], y[15:]))
    less = more.remove([0, 4, 18])
    return joined(some=asked(some), more=asked(more), less=asked(less), prediction=told(less.predict(x[:4] + 0.1)))


# Structures are closed forms in eigenvectors of factors, and the mode of the linear model is by least squares.
def structure(method: Any, make: Callable[[], nn.Module], x: Tensor, **options: Any) -> Values:
    model = make()
    posterior = lw.fit(
        model, (x, numbers(model, x)), lw.Gaussian(0.5), prior=lw.Isotropic(1.5), method=method, draws=DRAWS, **options
    )
    at = x[:5] + 0.2
    return joined(
        posterior=asked(posterior),
        at=asked(posterior.at(precision=6.0)),
        prediction=told(posterior.predict(at), numbers(model, at), gaussian=True),
    )


@case(CLOSED)
def structures_of_an_mlp() -> Values:
    """Diagonal, KFAC, EKFAC; Hessian and empirical Fisher under a prior that makes them positive definite."""
    x = normal(18, 3, seed=1)
    methods = {"diagonal": lw.Diagonal(), "kfac": lw.KFAC(), "ekfac": lw.EKFAC()}
    found = {name: structure(method, mlp, x) for name, method in methods.items()}
    model = mlp()
    for name, method in {"hessian": lw.Hessian(), "empirical fisher": lw.EmpiricalFisher()}.items():
        posterior = lw.fit(
            model, (x, numbers(model, x)), lw.Gaussian(0.5), prior=lw.Isotropic(60.0), method=method, draws=DRAWS
        )
        found[name] = joined(posterior=asked(posterior), prediction=told(posterior.predict(x[:5] + 0.2), gaussian=True))
    return joined(**found)


# Directions without data have eigenvalues k of round-off in place of zero, and draws move with √k = 1.5e-8: measured 3e-9.
@case(1e-7)
def structures_of_a_cnn() -> Values:
    """Shared weights: expand and reduce; an exact block of a normalisation layer."""
    x = normal(16, 2, 5, 6, seed=2)
    methods = {
        "expand": lw.KFAC("expand"),
        "reduce": lw.KFAC("reduce"),
        "ekfac": lw.EKFAC("expand"),
        "probes": lw.KFAC(probes=2),
        "diagonal": lw.Diagonal(),
    }
    return joined(**{name: structure(method, cnn, x) for name, method in methods.items()})


# Leading pairs to a residual of rtol = 1e-8, of the largest eigenvalue.
@case(1e-6)
def low_rank() -> Values:
    """Some of the pairs, and all of them with the evidence at the network's weights."""
    x = normal(18, 3, seed=1)
    return joined(
        some=structure(lw.LowRank(11, rtol=1e-8), mlp, x),
        weights=structure(lw.LowRank(44, rtol=1e-8, evidence_at="weights"), mlp, x),
    )


@case(EVIDENCE)
def structures_by_evidence() -> Values:
    """Precision and noise, at the mode and at the weights; the g-prior, and groups by the normalised matrices, one of them pruned."""
    model, x = cnn(), normal(19, 2, 5, 6, seed=3)
    y, found = numbers(model, x), {}
    for name, prior in {"g": lw.GPrior(), "normalised": lw.PerGroup("normalised")}.items():
        for place in ("mode", "weights"):
            posterior = lw.fit(
                model, (x, y), lw.Gaussian(), prior=prior, method=lw.KFAC(evidence_at=place), draws=DRAWS
            )
            found[f"{name} {place}"] = asked(posterior, noise=True)
    return joined(**found)


# A Krylov space of all directions that there are, products through the network.
@case(2e-5)
def network_krylov() -> Values:
    model, x = cnn(), normal(19, 2, 5, 6, seed=3)
    posterior = lw.fit(
        model, (x, numbers(model, x)), lw.Gaussian(), prior=lw.GPrior(), method=lw.Krylov(rtol=1e-6), draws=DRAWS
    )
    return joined(
        posterior=asked(posterior, closed=False, noise=True),
        prediction=told(posterior.predict(x[:4] + 0.1), gaussian=True),
    )


@case(CLOSED)
def last_layer() -> Values:
    model, x = mlp(), normal(17, 3, seed=1)
    posterior = lw.fit(
        model, (x, numbers(model, x)), lw.Gaussian(0.4), prior=lw.Isotropic(2.0), select=lw.last_layer(model),
        draws=DRAWS,
    )  # fmt: skip
    return joined(posterior=asked(posterior), prediction=told(posterior.predict(x[:5] + 0.2), gaussian=True))


# ---- labels


@case(MODE)
def categorical() -> Values:
    """A network, everything given; leave-one-out, influence, `at`, update and remove, every link."""
    model, x, at = mlp(), normal(40, 3, seed=1), normal(6, 3, seed=2)
    y, y_at = classes(model, x), classes(model, at)
    given = {"prior": lw.Isotropic(2.0), "draws": DRAWS, "curvature": "network"}
    posterior = lw.fit(model, (x[:31], y[:31]), lw.Categorical(), **given)
    prediction, more = posterior.predict(at), posterior.update((x[31:], y[31:]))
    return joined(
        posterior=asked(posterior),
        prediction={**told(prediction, y_at, probs=True), "samples": prediction.samples.double()},
        probit={"probs": posterior.predict(at, link="probit").probs},
        monte_carlo={"probs": posterior.predict(at, link="monte carlo").probs},
        at=asked(posterior.at(precision=0.7)),
        updated=asked(more),
        removed=asked(more.remove([2, 35])),
        left_out=left_out(posterior.leave_one_out()),
        left_out_network=left_out(posterior.leave_one_out(mean="network")),
        more={"functions": posterior.functions(at)[:3], "influence": posterior.influence(at[:2])[:9]},
    )


@case(EVIDENCE)
def categorical_by_evidence() -> Values:
    """One precision at the mode, exact."""
    model, x = mlp(), normal(60, 3, seed=1)
    posterior = lw.fit(
        model, (x, classes(model, x)), lw.Categorical(), prior=lw.Isotropic(), draws=DRAWS, curvature="network"
    )
    return joined(posterior=asked(posterior), prediction=told(posterior.predict(x[:5] + 0.2), probs=True))


@case(HELD_OUT)
def categorical_held_out() -> Values:
    """The g-prior; `tune`, saved and loaded; a structure; a Krylov space. Predictions are the posteriors' own."""
    model, x = mlp(), normal(70, 3, seed=1)
    y = classes(model, x)
    data, held = (x[:41], y[:41]), (x[41:], y[41:])
    posterior = lw.fit(model, data, lw.Categorical(), validation=held, draws=DRAWS, curvature="network")
    with tempfile.TemporaryDirectory() as folder:
        loaded = lw.load(posterior.save(Path(folder) / "posterior.safetensors"), model)
    kfac = lw.fit(model, data, lw.Categorical(), validation=held, method=lw.KFAC(), draws=DRAWS)
    krylov = lw.fit(model, data, lw.Categorical(), validation=held, method=lw.Krylov(rtol=1e-6), draws=DRAWS)
    given = lw.fit(model, data, lw.Categorical(), prior=lw.GPrior(0.2), draws=DRAWS, curvature="network")
    tuned = given.tune(held)
    at, y_at = x[:6] + 0.2, y[:6]
    return joined(
        posterior=asked(posterior),
        tuned=asked(tuned),
        kfac=asked(kfac),
        krylov=asked(krylov, closed=False),
        prediction=told(loaded.predict(at, mean="network"), y_at, probs=True),
        kfac_prediction=told(kfac.predict(at, mean="network"), y_at, probs=True),
        krylov_prediction=told(krylov.predict(at, mean="network"), y_at, probs=True),
    )


@case(GROUPS_OF_LABELS)
def labels_by_groups() -> Values:
    """A precision for each layer by the evidence at the mode and, by KFAC, at the weights."""
    model, x = mlp(), normal(230, 3, seed=1)
    y, prior = classes(model, x), lw.PerGroup("layer")
    found = {
        place: lw.fit(
            model, (x, y), lw.Categorical(), prior=prior, method=lw.KFAC(evidence_at=place), draws=DRAWS
        )
        for place in ("mode", "weights")
    }  # fmt: skip
    return joined(**{place: asked(posterior) for place, posterior in found.items()})


@case(KRYLOV_LABELS)
def labels_by_krylov() -> Values:
    model, x = mlp(), normal(60, 3, seed=1)
    posterior = lw.fit(
        model, (x, classes(model, x)), lw.Categorical(), prior=lw.Isotropic(), method=lw.Krylov(rtol=1e-6), draws=DRAWS
    )
    return joined(posterior=asked(posterior, closed=False), prediction=told(posterior.predict(x[:5] + 0.2), probs=True))


@case(MODE)
def labels_of_structures() -> Values:
    """Precision given: Diagonal, KFAC, EKFAC and LowRank at the mode; Hessian and empirical Fisher."""
    model, x = mlp(), normal(60, 3, seed=1)
    y, found = classes(model, x), {}
    methods = {"diagonal": lw.Diagonal(), "kfac": lw.KFAC(), "ekfac": lw.EKFAC(), "low rank": lw.LowRank(44, 1e-8)}
    for name, method in {**methods, "hessian": lw.Hessian(), "empirical fisher": lw.EmpiricalFisher()}.items():
        posterior = lw.fit(model, (x, y), lw.Categorical(), prior=lw.Isotropic(15.0), method=method, draws=DRAWS)
        found[name] = {
            **asked(posterior, closed=name != "low rank"), **joined(at=told(posterior.predict(x[:5] + 0.2), probs=True))
        }  # fmt: skip
    return joined(**found)


@case(MODE)
def bernoulli() -> Values:
    """A linear model with data weights; a network with two labels a datum."""
    phi, logits = design(30, 7, seed=130)
    y = (uniform(30, seed=131) < logits.sigmoid()).double()
    linear = lw.infer(
        lw.LinearModel(phi, y, lw.Bernoulli(), weights=0.5 + uniform(30, seed=132)), prior=lw.Isotropic(0.9),
        draws=DRAWS, curvature="mode",
    )  # fmt: skip
    model, x = mlp(2), normal(26, 3, seed=1)
    labels = (uniform(26, 2, seed=133) < model(x).detach().sigmoid()).double()
    several = lw.fit(model, (x, labels), lw.Bernoulli(), prior=lw.GPrior(0.2), draws=DRAWS, curvature="network")
    return joined(
        linear=asked(linear),
        linear_prediction=told(linear.predict(phi[:5] + 0.2), y[:5], probs=True),
        linear_left_out=left_out(linear.leave_one_out()),
        several=asked(several),
        several_prediction=told(several.predict(x[:5] + 0.2), labels[:5], probs=True),
        several_left_out=left_out(several.leave_one_out()),
    )


@case(EVIDENCE)
def bernoulli_by_evidence() -> Values:
    """A linear model, the curvature at its mode."""
    phi, logits = design(50, 7, seed=130)
    y = (uniform(50, seed=131) < logits.sigmoid()).double()
    model = lw.LinearModel(phi, y, lw.Bernoulli())
    posterior = lw.infer(model, prior=lw.Isotropic(), draws=DRAWS, curvature="mode")
    return joined(posterior=asked(posterior), prediction=told(posterior.predict(phi[:5] + 0.2), y[:5], probs=True))


# The interval of counts and their densities are by quadrature and bisection, far below.
@case(MODE)
def poisson() -> Values:
    model, x = mlp(2), normal(24, 3, seed=1)
    counts = torch.from_numpy(np.random.default_rng(0).poisson(model(x).detach().exp().numpy())).double()
    posterior = lw.fit(model, (x, counts), lw.Poisson(), prior=lw.Isotropic(1.4), draws=DRAWS, curvature="network")
    prediction = posterior.predict(x[:5] + 0.2)
    return joined(
        posterior=asked(posterior),
        prediction={
            **told(prediction, counts[:5]),
            "expectation": prediction.expectation,
            "interval": torch.stack(prediction.interval(0.8)),
            "samples": prediction.samples[:3],
        },
        left_out=left_out(posterior.leave_one_out()),
    )


@case(FISHER_MODE)
def heteroscedastic() -> Values:
    """Two targets a datum, four outputs."""
    model, x = mlp(4), normal(50, 3, seed=1)
    mean, log_variance = model(x).detach().chunk(2, dim=1)
    y = mean + (0.5 * log_variance).exp() * normal(50, 2, seed=140)
    posterior = lw.fit(
        model, (x[:30], y[:30]), lw.HeteroscedasticGaussian(), prior=lw.Isotropic(1.4), draws=DRAWS
    )  # fmt: skip
    return joined(posterior=asked(posterior), prediction=told(posterior.predict(x[:5] + 0.2), y[:5], gaussian=True))


@case(HELD_OUT)
def heteroscedastic_held_out() -> Values:
    model, x = mlp(4), normal(50, 3, seed=1)
    mean, log_variance = elsewhere(model, 0.25)(x).detach().chunk(2, dim=1)
    y = mean + (0.5 * log_variance).exp() * normal(50, 2, seed=140)
    posterior = lw.fit(
        model, (x[:30], y[:30]), lw.HeteroscedasticGaussian(), validation=(x[30:], y[30:]), draws=DRAWS
    )  # fmt: skip
    return joined(posterior=asked(posterior), prediction=told(posterior.predict(x[:5] + 0.2), y[:5], gaussian=True))


@case(MODE)
def own_likelihood() -> Values:
    """Waiting times, the output being the logarithm of their rate."""
    waiting = lw.likelihood(
        lambda f, y: f - y * f.exp(),
        mean=lambda f: (-f).exp(),
        sample=lambda f, u: -(-f).exp() * (1 - u).log(),
        valid=lambda y: y >= 0,
    )
    model, x = mlp(2), normal(24, 3, seed=1)
    y = -(-model(x).detach()).exp() * (1 - uniform(24, 2, seed=150)).log()
    posterior = lw.fit(model, (x, y), waiting, prior=lw.Isotropic(1.4), draws=DRAWS, curvature="network")
    prediction = posterior.predict(x[:5] + 0.2)
    return joined(
        posterior=asked(posterior),
        prediction={
            **told(prediction, y[:5]), "expectation": prediction.expectation, "samples": prediction.samples[:3]
        },
        left_out=left_out(posterior.leave_one_out()),
    )  # fmt: skip


# ---- the textbook, and estimators


# The fixed point of α and β ends at steps of 1e-10, halved each time.
@case(CLOSED)
def textbook() -> Values:
    """mackay.fit with three curvatures, precision and noise at the fixed point, and labels."""
    model, x = mlp(2), normal(40, 3, seed=1)
    y, at = numbers(model, x), x[:5] + 0.2

    def of(found: Any, **which: bool) -> Values:
        return {
            "precision": found.precision,
            "log_evidence": found.log_evidence,
            "effective_dimension": found.effective_dimension,
            "covariance": found.covariance[:4],
            **joined(prediction=told(found.predict(at), **which)),
        }

    tuned = mackay.fit(model, (x, y), lw.Gaussian())
    hessian = mackay.fit(model, (x, y), lw.Gaussian(0.5), curvature="hessian", precision=90.0)
    fisher = mackay.fit(model, (x, y), lw.Gaussian(0.5), curvature="empirical fisher", precision=2.0)
    labels = mackay.fit(mlp(), (x, classes(mlp(), x)), lw.Categorical())
    found = joined(ggn=of(tuned), hessian=of(hessian), fisher=of(fisher), labels=of(labels, probs=True))
    return {**found, "ggn.noise_std": tuned.likelihood.noise_std}


def table(n: int, d: int, targets: int | None = None, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, d)) * np.logspace(-0.5, 0.5, d) + rng.normal(size=d)
    truth = rng.normal(size=(d,) if targets is None else (d, targets))
    clean = features @ truth
    return features, 1.5 + clean + 0.7 * rng.normal(size=clean.shape)


def ridge(model: Any, at: Any, y: Any, closed: bool = True) -> Values:
    mean, std = model.predict(at, return_std=True)
    found = {
        "coef": model.coef_[..., :300],
        "intercept": model.intercept_,
        "alpha": model.alpha_,
        "lambda": model.lambda_,
        "mean": mean,
        "std": std,
        "sample": model.sample(2)[..., :100],
        "log_predictive_density": model.log_predictive_density(at, y),
    }
    if closed:
        fields = ("leverage", "residual", "mean", "std")
        found["sigma"] = model.sigma_[..., :4, :]
        found |= joined(left_out={name: getattr(model.leave_one_out_, name) for name in fields})
    return found


@case(EVIDENCE)
def bayesian_ridge() -> Values:
    """Dense, with weights, several targets, sparse, more columns than rows, without intercept."""
    x, y = table(31, 6)
    many, three = table(27, 5, 3, seed=1)
    sparse = scipy.sparse.random(40, 9, density=0.3, random_state=4, format="csr")
    y_sparse = sparse @ np.arange(9.0) + np.random.default_rng(5).normal(size=40)
    wide, y_wide = table(13, 22, seed=2)
    weights = 0.5 + np.random.default_rng(3).random(31)
    return joined(
        dense=ridge(BayesianRidge().fit(x, y), x[:4] + 0.1, y[:4]),
        weighted=ridge(BayesianRidge().fit(x, y, sample_weight=weights), x[:4] + 0.1, y[:4]),
        targets=ridge(BayesianRidge().fit(many, three), many[:4] + 0.1, three[:4]),
        sparse=ridge(BayesianRidge().fit(sparse, y_sparse), sparse[:4], y_sparse[:4]),
        wide=ridge(BayesianRidge(fit_intercept=False).fit(wide, y_wide), wide[:4] + 0.1, y_wide[:4]),
        hyperpriors=ridge(
            BayesianRidge(alpha_1=2.0, alpha_2=1.0, lambda_1=3.0, lambda_2=0.5).fit(x, y), x[:4] + 0.1, y[:4]
        ),
    )


# The Krylov space of the estimator ends at rtol = 1e-3.
@case(3e-3)
def bayesian_ridge_matrix_free() -> Values:
    x = scipy.sparse.random(1511, 1523, density=0.003, random_state=6, format="csr")
    rng = np.random.default_rng(7)
    y = x @ rng.normal(size=1523) + 0.5 * rng.normal(size=1511)
    return ridge(BayesianRidge().fit(x, y), x[:30], y[:30], closed=False)


def logistic(model: Any, at: Any) -> Values:
    logits, std = model.logits(at, return_std=True)
    coefficients, intercepts = model.sample(2, return_intercept=True)
    return {
        "coef": model.coef_[..., :300],
        "intercept": model.intercept_,
        "lambda": model.lambda_,
        "log_evidence": model.log_evidence_.value,
        "effective_dimension": model.effective_dimension_.value,
        "logits": logits,
        "logits_std": std,
        "probs": model.predict_proba(at),
        "decision": model.decision_function(at),
        "sample": coefficients[..., :100],
        "sample_intercept": intercepts,
    }


@case(MODE)
def bayesian_logistic_regression() -> Values:
    """Precision given: binary, with weights, multinomial, sparse."""
    x, y = table(43, 6, seed=8)
    weights = 0.5 + np.random.default_rng(3).random(43)
    three = np.digitize(y, np.quantile(y, [0.3, 0.7]))
    sparse = scipy.sparse.random(50, 9, density=0.4, random_state=4, format="csr")
    y_sparse = sparse @ np.arange(9.0) + np.random.default_rng(5).normal(size=50) > 4
    given = BayesianLogisticRegression(prior_precision=0.8, curvature="mode")
    return joined(
        binary=logistic(given.fit(x, y > y.mean(), sample_weight=weights), x[:4] + 0.1),
        multinomial=logistic(given.fit(x, three), x[:5] + 0.1),
        sparse=logistic(given.fit(sparse, y_sparse), sparse[:4]),
    )


# The bounded search over the log precision ends at xatol = 1e-3.
@case(2e-3)
def bayesian_logistic_regression_by_evidence() -> Values:
    x, y = table(43, 6, seed=8)
    y = y + 3 * np.random.default_rng(9).normal(size=43)
    three = np.digitize(y, np.quantile(y, [0.3, 0.7]))
    return joined(
        binary=logistic(BayesianLogisticRegression(curvature="mode").fit(x, y > y.mean()), x[:4] + 0.1),
        multinomial=logistic(BayesianLogisticRegression(curvature="mode").fit(x, three), x[:5] + 0.1),
    )


# The Krylov space at the mode ends at rtol = 1e-2.
@case(2e-2)
def bayesian_logistic_regression_matrix_free() -> Values:
    x = scipy.sparse.random(1511, 1523, density=0.003, random_state=6, format="csr")
    rng = np.random.default_rng(7)
    y = x @ rng.normal(size=1523) + 0.3 * rng.normal(size=1511) > 0
    return logistic(BayesianLogisticRegression(prior_precision=1.0).fit(x, y), x[:30])
