"""lapwing's models as surrogates for BoTorch: joint posteriors, gradients, fantasies and pathwise Thompson sampling.

Needs `pip install lapwing[botorch]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

try:
    from botorch.models.model import FantasizeMixin, Model
    from botorch.posteriors.gpytorch import GPyTorchPosterior
    from botorch.sampling.pathwise.paths import SamplePath
    from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
    from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
except ImportError as error:
    raise ImportError("lapwing.botorch needs BoTorch: pip install 'lapwing[botorch]'") from error

from lapwing.integrations.processes import HalfCircles, Process, TableProcess, on_half_circles, process_of
from lapwing.tabular import BayesianMLPRegressor

JITTER = 1e-9  # of the mean variance at some inputs, so that their covariance has a Cholesky factor


class Surrogate(Model, FantasizeMixin):
    """A fitted `BayesianMLPRegressor`, or a network with its posterior, as a BoTorch model.

    The posterior at b × q × d inputs has the joint covariance of each of the b sets, and can be differentiated. Of
    several networks it has the mean and the covariance of their mixture. New observations are conditioned on without
    training: exactly, for each linearised network.

    Parameters
    ----------
    fitted : BayesianMLPRegressor, Posterior or Mixture
        A fitted estimator, or what `fit(network, data, Gaussian())` returns.

    Examples
    --------
    >>> import torch
    >>> from lapwing.tabular import BayesianMLPRegressor
    >>> X = torch.rand(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> fitted = BayesianMLPRegressor(members=2).fit(X.numpy(), X.sum(1).numpy())
    >>> posterior = Surrogate(fitted).posterior(X[:6].reshape(2, 3, 2))
    >>> posterior.mean.shape, posterior.distribution.covariance_matrix.shape
    (torch.Size([2, 3, 1]), torch.Size([2, 3, 3]))
    """

    def __init__(self, fitted: Any) -> None:
        super().__init__()
        self.process: Process = process_of(fitted)
        self.observed: tuple[Tensor, Tensor] | None = None  # inputs (…, n, d) and targets (…, n, c)
        self.chosen = list(range(self.process.outputs))

    @classmethod
    def construct_inputs(cls, training_data: Any, **options: Any) -> dict[str, Any]:
        """What the surrogate of a data set is made of: a `BayesianMLPRegressor` with these options, fitted."""
        targets = training_data.Y.detach().cpu().numpy()
        estimator = BayesianMLPRegressor(**options)
        return {"fitted": estimator.fit(training_data.X.detach().cpu().numpy(), _as_one(targets))}

    @property
    def num_outputs(self) -> int:
        """Of the model."""
        return len(self.chosen)

    @property
    def batch_shape(self) -> torch.Size:
        """That of the observations that were conditioned on."""
        return torch.Size() if self.observed is None else self.observed[1].shape[:-2]

    def subset_output(self, idcs: list[int]) -> Surrogate:
        """The same with some of the outputs."""
        return self._with(chosen=[self.chosen[place] for place in idcs])

    def posterior(
        self, X: Tensor, output_indices: list[int] | None = None, observation_noise: bool | Tensor = False,
        posterior_transform: Any = None, **_: Any,
    ) -> Any:  # fmt: skip
        """The joint posterior of the outputs at X (…, q, d), with the noise of an observation if that is asked for."""
        self._check(X)
        self.eval()
        mean, features, shared = self._located(self.transform_inputs(X))
        places = self.chosen if output_indices is None else [self.chosen[place] for place in output_indices]
        c = mean.shape[-1]
        taken = None if shared is None else _of_outputs(shared, c, places)
        mean = mean[..., places]
        found = _mixed(mean, _of_outputs(features, c, places), taken)
        if isinstance(observation_noise, Tensor):
            found = _noisy(found, observation_noise.to(mean))
        elif observation_noise:
            found = _noisy(found, self._noise(X)[..., places].mean(0))
        posterior = GPyTorchPosterior(found)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **_: Any) -> Surrogate:
        """The surrogate given more observations, without training."""
        self._check(X)
        if Y.shape[-2:] != (X.shape[-2], self.process.outputs):
            raise ValueError(
                f"Y has shape {tuple(Y.shape)}, expected (…, {X.shape[-2]}, {self.process.outputs}) for X of shape "
                f"{tuple(X.shape)}"
            )
        batch = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2])
        inputs, targets = X.expand(*batch, *X.shape[-2:]), Y.expand(*batch, *Y.shape[-2:])
        if self.observed is not None:
            known_x, known_y = self.observed
            batch = torch.broadcast_shapes(batch, known_y.shape[:-2])
            inputs, known_x = (part.expand(*batch, *part.shape[-2:]) for part in (inputs, known_x))
            targets, known_y = (part.expand(*batch, *part.shape[-2:]) for part in (targets, known_y))
            inputs, targets = torch.cat([known_x, inputs], dim=-2), torch.cat([known_y, targets], dim=-2)
        return self._with(observed=(inputs, targets.double()))

    def fantasize(self, X: Tensor, sampler: Any, observation_noise: Any = None, **_: Any) -> Surrogate:
        """The surrogates that observations at X would make, one for each draw of these."""
        noise = True if observation_noise is None else observation_noise
        return self.condition_on_observations(X, sampler(self.posterior(X, observation_noise=noise)))

    def functions(self, count: int, seed: int = 0) -> Functions:
        """Draws of the function: each of a member that is drawn, and of its posterior."""
        return Functions(self, count, seed)

    def _with(self, **parts: Any) -> Surrogate:
        fresh = Surrogate.__new__(Surrogate)
        Model.__init__(fresh)
        fresh.process, fresh.observed, fresh.chosen = self.process, self.observed, self.chosen
        for name, part in parts.items():
            setattr(fresh, name, part)
        return fresh

    def _check(self, X: Tensor) -> None:
        if X.ndim < 2 or X.shape[-1] != self.process.inputs:
            raise ValueError(f"X has shape {tuple(X.shape)}, expected (…, q, {self.process.inputs})")
        if not X.is_floating_point():
            raise ValueError(f"X is {X.dtype}, expected floating point numbers")

    def _given(self) -> Observations | None:
        """What the observations say of the features of every member."""
        if self.observed is None:
            return None
        inputs, targets = self.observed
        known, seen = self._prior(inputs)
        rows = seen.flatten(-3, -2)
        noise = self._noise(inputs).flatten(-2)
        factor = torch.linalg.cholesky(rows @ rows.mT + torch.diag_embed(noise))
        away = torch.linalg.solve_triangular(factor, (targets - known).flatten(-2)[..., None], upper=False)
        return Observations(torch.linalg.solve_triangular(factor, rows, upper=False), away, factor, noise)

    def _located(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean (members, …, q, c) of every member, its features (members, …, q · c, p), and what to take from them.

        The covariance is φ φᵀ − s sᵀ.
        """
        mean, features = self._prior(X)
        flat, given = features.flatten(-3, -2), self._given()
        if given is None:
            return mean, flat, None
        axes = max(flat.ndim, given.rows.ndim)
        flat, rows, away = (_with_axes(part, axes) for part in (flat, given.rows, given.away))
        shared = flat @ rows.mT
        pulled = (shared @ away)[..., 0].unflatten(-1, mean.shape[-2:])
        return _with_axes(mean, axes) + pulled, flat, shared

    def _prior(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The same before those observations."""
        flat, shape = X.reshape(-1, X.shape[-1]), X.shape[:-1]
        mean, features = self.process.mean(flat), self.process.features(flat)
        return mean.unflatten(1, shape), features.unflatten(1, shape)

    def _noise(self, X: Tensor) -> Tensor:  # (members, …, q, c)
        found = self.process.noise_variance(X.detach().reshape(-1, X.shape[-1]))
        return found.unflatten(1, X.shape[:-1])


@final
@dataclass(frozen=True, eq=False)
class Observations:
    """Observations of n outputs, by a Cholesky factor L of their covariance."""

    rows: Tensor  # (members, …, n, p), L⁻¹ φ
    away: Tensor  # (members, …, n, 1), L⁻¹ (y − mean)
    factor: Tensor  # (members, …, n, n)
    noise: Tensor  # (members, …, n)


def fit_surrogate(X: Tensor, Y: Tensor, bounds: Tensor, **options: Any) -> Surrogate:
    """The surrogate of observations in a box: a `BayesianMLPRegressor` fitted to every input's place on a half circle.

    The regressor reads cos πu and sin πu of each input, where u runs from 0 to 1 between the bounds. From few
    observations a network learns little more than a linear function. One of the inputs themselves is largest in a
    corner of the box, where acquisition functions then evaluate again and again; one of cosines and sines can be
    largest anywhere.

    Parameters
    ----------
    X : Tensor
        Inputs of the observations, (n, d).
    Y : Tensor
        What was observed, (n, outputs).
    bounds : Tensor
        The lowest and highest value of each input, (2, d).
    **options
        As for `BayesianMLPRegressor`, such as `noise=0.0` for a function without noise.

    Returns
    -------
    Surrogate
        A BoTorch model.

    Raises
    ------
    ValueError
        If shapes do not fit, bounds are the wrong way round, or inputs lie outside.

    Examples
    --------
    >>> import torch
    >>> X = torch.rand(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    >>> surrogate = fit_surrogate(X, X.sum(1, keepdim=True), bounds, members=2, noise=0.0)
    >>> surrogate.posterior(X[:6].reshape(2, 3, 2)).mean.shape
    torch.Size([2, 3, 1])
    """
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y) or bounds.shape != (2, X.shape[1]):
        raise ValueError(
            f"X, Y and bounds have the shapes {tuple(X.shape)}, {tuple(Y.shape)} and {tuple(bounds.shape)}, expected "
            "(n, d), (n, outputs) and (2, d)"
        )
    low, high = bounds.double()
    if not bool((low < high).all()):
        raise ValueError(f"bounds are {bounds.tolist()}, expected all low ends below the high ends")
    outside = (X.double().clamp(low, high) != X).any(1)
    if bool(outside.any()):
        raise ValueError(f"{int(outside.sum())} of {len(X)} rows of X are outside bounds, expected none")
    placed = on_half_circles(X, bounds.double()).detach().cpu().numpy()
    estimator = BayesianMLPRegressor(**{"verbose": False, **options})
    fitted = estimator.fit(placed, _as_one(Y.detach().cpu().numpy()))
    return Surrogate(HalfCircles(TableProcess.of(fitted), bounds.double()))


class Functions(torch.nn.Module):
    """Draws of functions: of X (…, q, d) they give (draws, …, q), or with several outputs (draws, …, q, c)."""

    def __init__(self, surrogate: Surrogate, count: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        process, given = surrogate.process, surrogate._given()
        if surrogate.batch_shape:
            raise ValueError(f"functions are drawn of one posterior, this one has a batch of {surrogate.batch_shape}")
        self.surrogate = surrogate
        self.member = torch.randint(process.members, (count,), generator=generator)
        size = process.features(torch.zeros(1, process.inputs, dtype=torch.float64)).shape[-1]
        self.normals = torch.randn(count, size, generator=generator, dtype=torch.float64)
        if given is not None:  # what is observed of each, with noise of its own, is taken back (Matheron)
            rows, factor = given.rows[self.member], given.factor[self.member]
            noise = given.noise[self.member].sqrt() * torch.randn(
                count, rows.shape[-2], generator=generator, dtype=torch.float64
            )
            seen = (rows @ self.normals[..., None]) + torch.linalg.solve_triangular(
                factor, noise[..., None], upper=False
            )
            self.normals = self.normals - (rows.mT @ seen)[..., 0]

    def forward(self, X: Tensor) -> Tensor:
        """All functions at X."""
        found = self.of_each(X.unsqueeze(-3)).movedim(-3, 0)
        return found[..., 0] if found.shape[-1] == 1 else found

    def of_each(self, X: Tensor) -> Tensor:  # (…, draws or 1, q, d) -> (…, draws, q, c)
        """Each function at its own inputs, or all at the same."""
        mean, features, _ = self.surrogate._located(X)
        axis = X.ndim - 2  # of draws, behind that of members
        own = self._own(features.unflatten(-2, mean.shape[-2:]), axis)  # (draws, …, q, c, p)
        steps = self.normals.reshape(len(self.normals), *[1] * (own.ndim - 3), -1, 1)
        found = self._own(mean, axis) + (own @ steps)[..., 0]
        return found[..., self.surrogate.chosen].movedim(0, -3)

    def _own(self, values: Tensor, axis: int) -> Tensor:  # (members, …, draws or 1, q, …) -> (draws, …, q, …)
        """What the member of each draw says at the inputs of that draw."""
        by_draw = values.movedim(axis, 0)
        by_draw = by_draw.expand(len(self.member), *by_draw.shape[1:])
        return by_draw[torch.arange(len(self.member)), self.member]


def _with_axes(values: Tensor, axes: int) -> Tensor:  # (members, …, a, b)
    """With so many axes: those of a batch that are missing come behind that of the members."""
    return values.reshape(len(values), *[1] * (axes - values.ndim), *values.shape[1:])


def _of_outputs(rows: Tensor, outputs: int, places: list[int]) -> Tensor:  # (…, q · c, p)
    """The rows of some outputs."""
    return rows.unflatten(-2, (-1, outputs))[..., places, :].flatten(-3, -2)


def _mixed(mean: Tensor, features: Tensor, shared: Tensor | None) -> Any:
    """Mean and covariance of the mixture, as a distribution."""
    centre, count = mean.mean(0), len(mean)
    between = (mean - centre).flatten(-2)
    covariance = (features @ features.mT).mean(0) + torch.einsum("m...i,m...j->...ij", between, between) / count
    if shared is not None:
        covariance = covariance - (shared @ shared.mT).mean(0)
    level = covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-12)
    covariance = covariance + (JITTER * level)[..., None, None] * torch.eye(covariance.shape[-1]).to(covariance)
    if mean.shape[-1] == 1:
        return MultivariateNormal(centre[..., 0], covariance)
    return MultitaskMultivariateNormal(centre, covariance)


class Paths(SamplePath):
    """The same draws as BoTorch calls them: with X (…, draws or 1, q, d).

    They give (…, draws, q); with several outputs X has one more axis of length 1 there, and they give (…, draws, c, q).
    """

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = functions

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing changes: each draw is of one member."""

    def forward(self, X: Tensor) -> Tensor:
        """The draws at X."""
        several = self.functions.surrogate.num_outputs > 1
        at = X.squeeze(-3) if several else X
        found = self.functions.of_each(at[None] if at.ndim == 2 else at)
        return found.mT if several else found[..., 0]


@DrawMatheronPaths.register(Surrogate)  # type: ignore[untyped-decorator]
def _draw_paths(model: Surrogate, sample_shape: torch.Size, **_: Any) -> Paths:
    """For `PathwiseThompsonSampling`: draws are functions already."""
    seed = int(torch.randint(2**31 - 1, (1,)))
    return Paths(model.functions(sample_shape.numel(), seed))


def _noisy(found: Any, variance: Tensor) -> Any:
    """A distribution with the noise of observations, (…, q, c)."""
    several = isinstance(found, MultitaskMultivariateNormal)
    like = found.mean if several else found.mean[..., None]
    noise = variance.expand(like.shape)
    covariance = found.covariance_matrix + torch.diag_embed(noise.flatten(-2))
    return (
        MultitaskMultivariateNormal(found.mean, covariance) if several else MultivariateNormal(found.mean, covariance)
    )


def _as_one(targets: Any) -> Any:
    """A single column of targets as a vector, as scikit-learn has it."""
    return targets[:, 0] if targets.shape[1] == 1 else targets
