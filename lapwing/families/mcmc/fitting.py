"""fit: draws of a network's weights from their posterior by Markov chains."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

import torch
from torch import Generator, Tensor, nn
from torch.func import vmap

from lapwing.bayes.likelihoods import GammaHyperprior, Likelihood
from lapwing.bayes.noise import PRIOR, Noise
from lapwing.bayes.predictive import Prediction
from lapwing.families.mcmc.diagnostics import ess, r_hat
from lapwing.families.mcmc.samplers import HMC, SGLD, Chain, Length, Sampler, Target
from lapwing.families.networks import Networks, evaluated, values
from lapwing.network.input_tree import Sample, outputs_at
from lapwing.network.parameters import Layout, check_model
from lapwing.network.shuffling import Source
from lapwing.runtime.progress import Report, reporter
from lapwing.training import Weights, log_prob

Start = Literal["prior", "network"]
DEFAULT, VAGUE = HMC(), GammaHyperprior(1.0, 0.01)
WATCHED = 50  # training inputs whose outputs are watched for convergence


@final
@dataclass(frozen=True, eq=False)
class Chains:
    """Draws of the weights by several chains, and what they say of functions.

    R-hat and effective sample sizes are of the outputs at some training inputs. Those of the weights themselves are
    worse and matter less: hidden units may be exchanged without any change of the function.

    Parameters
    ----------
    networks : Networks
        One for each draw.
    layout : Layout
        Of the weights in a vector.
    positions : Tensor
        (chains, draws, p).
    prior_precision : Tensor
        (chains, draws), the same everywhere where it was given.
    noise_std : Tensor or None
        (chains, draws), where it was not given.
    watched : inputs of the network
        At which convergence is judged.
    about : dict
        How the chains ran.
    """

    networks: Networks
    layout: Layout
    positions: Tensor  # (chains, draws, p)
    prior_precision: Tensor  # (chains, draws), the same everywhere where it was given
    noise_std: Tensor | None  # (chains, draws), where it was not given
    watched: Sample  # inputs
    about: dict[str, Any]

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood, with the root mean square of the drawn noise where it was not given."""
        return self.networks.likelihood

    def functions(self, inputs: Any) -> Tensor:  # (chains · draws, *outputs)
        """The outputs of every draw, chain after chain."""
        return self.networks.functions(inputs)

    def predict(self, inputs: Any) -> Prediction:
        """The predictive distribution at new inputs; probabilities are averages over the draws."""
        return self.networks.predict(inputs)

    def _outputs(self) -> Tensor:  # (chains, draws, outputs)
        drawn = self.functions(self.watched)
        return drawn.reshape(*self.positions.shape[:2], -1)

    @property
    def r_hat(self) -> Tensor:  # (outputs watched,)
        """R-hat of the outputs; above 1.01 the chains have not met."""
        return r_hat(self._outputs())

    @property
    def ess(self) -> Tensor:  # (outputs watched,)
        """Effective sample sizes of the outputs."""
        return ess(self._outputs())

    @property
    def diagnostics(self) -> dict[str, Any]:
        """How the chains ran, as plain numbers."""
        outputs = self._outputs()
        found = {**self.about, "r_hat": float(r_hat(outputs).max()), "ess": float(ess(outputs).min())}
        found["r_hat_of_weights"] = float(r_hat(self.positions).median())
        found["prior_precision"] = float(self.prior_precision.mean())
        if self.noise_std is not None:
            found["noise_std"] = float(self.noise_std.square().mean().sqrt())
        return found


def fit(
    model: nn.Module, data: Any, likelihood: Likelihood, *, method: Sampler = DEFAULT,
    prior_precision: float | None = 1.0, chains: int = 4, warmup: int = 500, draws: int = 250, thin: int = 1,
    start: Start | Sequence[nn.Module] = "prior", hyperprior: GammaHyperprior = VAGUE, temperature: float = 1.0,
    seed: int = 0, progress: bool | Report | None = None,
) -> Chains:  # fmt: skip
    """Draws of all weights from p(w | data) under the prior N(0, 1 / prior_precision), by `HMC`, `Langevin` or `SGLD`.

    `draws` of each chain are kept, one in `thin`. Chains start at draws from the prior, so that R-hat can tell whether
    they met, or all at the network's own weights, or each at one of several networks, such as those of an ensemble,
    which saves the way from the prior and leaves R-hat its meaning. Where the prior precision is None, or the noise of
    a Gaussian is not given, the two have the hyperprior and are drawn by Gibbs steps between those of the weights (Neal
    1996). The draws are from p(w | data)^(1 / temperature): below one the posterior is cold, prior and likelihood alike
    (Wenzel et al. 2020). The network must be one that torch.func.vmap can run; a gradient of all chains is one pass
    over the data.

    Parameters
    ----------
    model : nn.Module
        A network; it is not changed.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    method : HMC, Langevin or SGLD
        How chains move.
    prior_precision : float or None
        Precision of a Gaussian prior on the weights; drawn too if None.
    chains : int
        Number of chains.
    warmup : int
        Transitions before draws are kept.
    draws : int
        Kept of each chain.
    thin : int
        Transitions for each draw that is kept.
    start : "prior", "network" or sequence of nn.Module
        Where chains start.
    hyperprior : GammaHyperprior
        Of precisions that are drawn.
    temperature : float
        Below one the posterior is cold.
    seed : int
        Of the order of the data and of all draws.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    Chains
        With `predict`, `r_hat` and `ess`.

    Raises
    ------
    ValueError
        If a number is out of range, or SGLD diverges.

    Examples
    --------
    >>> from lapwing import Gaussian
    >>> x = torch.linspace(-1, 1, 12).double()[:, None]
    >>> found = fit(nn.Linear(1, 1).double().eval(), (x, 2 * x), Gaussian(0.2), chains=2, warmup=60, draws=40)
    >>> found.functions(x).shape, found.diagnostics["divergences"]
    (torch.Size([80, 12, 1]), 0)
    """
    _check(model, prior_precision, chains, draws, thin, start)
    began, report = time.perf_counter(), reporter(progress)
    posterior = _WeightDensity.of(
        model, data, likelihood, prior_precision, hyperprior, chains, seed, method, temperature
    )
    if not temperature > 0 or (temperature != 1 and posterior.has_hyperparameters):
        raise ValueError(
            f"temperature is {temperature}: expected a positive number, and one where the prior precision or the noise "
            "is drawn too; give both to change it"
        )
    first = posterior.start(start, prior_precision)
    if posterior.has_hyperparameters:
        posterior.renewed(first)  # of the start, or its noise of one would drive the chains away from it
        posterior.log.clear()

    def told(done: int, total: int) -> None:
        if done % max(1, total // 200) == 0:
            left = (time.perf_counter() - began) / done * (total - done)
            report(f"step {done:,} of {total:,} of {chains} chains, {left:.0f} s left")

    renew = posterior.renewed if posterior.has_hyperparameters else None
    with torch.no_grad():
        chain = method.run(
            posterior.target, first, Length(warmup, draws, thin), posterior.generator, renew=renew, told=told
        )
    report("")
    return posterior.gathered(chain, thin, seed, {"method": repr(method), "seconds": time.perf_counter() - began})


@dataclass(eq=False)
class _WeightDensity:
    """The log density of the weights of several chains, with the hyperparameters of each."""

    model: nn.Module
    layout: Layout
    kept: Weights
    source: Source
    whole: tuple[Sample, Tensor]
    likelihood: Likelihood
    hyperprior: GammaHyperprior
    tuned: tuple[bool, bool]  # prior precision, noise
    precision: Tensor  # (chains,)
    noise_std: Tensor  # (chains,)
    generator: Generator
    batch_size: int | None
    temperature: float = 1.0
    log: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # the hyperparameters of every transition

    @staticmethod
    def of(
        model: nn.Module, data: Any, likelihood: Likelihood, prior_precision: float | None, hyperprior: GammaHyperprior,
        chains: int, seed: int, method: Sampler, temperature: float = 1.0,
    ) -> _WeightDensity:  # fmt: skip
        source, layout, like = Source.of(data), Layout.of(model), next(iter(model.parameters()))
        inputs, targets = next(source.pairs(source.size))
        if targets.is_floating_point():
            targets = targets.to(like.dtype)
        kept = {name: tensor for name, tensor in values(model).items() if name not in layout.names}
        unknown = likelihood.tunes_noise
        ones = torch.ones(chains, dtype=like.dtype)
        size = method.batch_size if isinstance(method, SGLD) else None
        return _WeightDensity(
            evaluated(model), layout, kept, source, (inputs, targets), likelihood, hyperprior,
            (prior_precision is None, unknown), ones * (prior_precision or 1.0), ones.clone(),
            Generator().manual_seed(seed), None if size is None or size >= source.size else size,
            temperature,
        )  # fmt: skip

    @property
    def has_hyperparameters(self) -> bool:
        """Whether there is anything for a Gibbs step."""
        return any(self.tuned)

    def start(self, where: Start | Sequence[nn.Module], prior_precision: float | None) -> Tensor:  # (chains, p)
        """Where the chains start: a vague prior would start them nowhere, so a tuned one counts as one."""
        chains, own = len(self.precision), self.layout.flatten(values(self.model))
        if not isinstance(where, str):
            return torch.stack([self.layout.flatten(values(model)) for model in where])
        if where == "network":
            return own.repeat(chains, 1)
        normals = torch.randn(chains, len(own), generator=self.generator, dtype=own.dtype)
        return normals * (prior_precision or 1.0) ** -0.5

    def target(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Log densities and gradients; of a random batch counted as all data, where batches were asked for."""
        inputs, targets, share = *self.whole, 1.0
        if self.batch_size is not None:
            rows = torch.randint(self.source.size, (self.batch_size,), generator=self.generator)
            inputs, targets, share = inputs[rows], targets[rows], self.source.size / self.batch_size

        def density(flat: Tensor, precision: Tensor, noise_std: Tensor) -> Tensor:
            fit = log_prob(self.likelihood, self._outputs(flat, inputs), targets, noise_std)
            return (share * fit - precision / 2 * flat.square().sum()) / self.temperature

        with torch.enable_grad():  # one backward pass for all chains: less overhead than a gradient inside vmap
            here = at.detach().requires_grad_()
            value = vmap(density)(here, self.precision, self.noise_std)
            (gradient,) = torch.autograd.grad(value.sum(), here)
        return value.detach(), gradient

    def _outputs(self, flat: Tensor, inputs: Sample) -> Tensor:
        return outputs_at(self.model, {**self.kept, **self.layout.unflatten(flat)}, inputs)

    def renewed(self, at: Tensor) -> Target:
        """The target after a Gibbs step: precisions are Gamma given everything else."""
        a, b = self.hyperprior.shape, self.hyperprior.rate
        if self.tuned[0]:
            self.precision = self._gamma(a + at.shape[1] / 2, b + at.square().sum(1) / 2)
        if self.tuned[1]:
            inputs, targets = self.whole
            outputs = vmap(lambda flat: self._outputs(flat, inputs))(at)
            errors = (outputs.reshape(len(at), -1) - targets.reshape(-1)).square().sum(1)
            self.noise_std = self._gamma(a + targets.numel() / 2, b + errors / 2).rsqrt()
        self.log.append((self.precision, self.noise_std))
        return self.target

    def _gamma(self, shape: float, rate: Tensor) -> Tensor:
        drawn = torch._standard_gamma(torch.full_like(rate, shape, dtype=torch.float64), generator=self.generator)
        return drawn.to(rate) / rate

    def gathered(self, chain: Chain, thin: int, seed: int, about: dict[str, Any]) -> Chains:
        """The result, with the hyperparameters that belong to each draw."""
        chains, draws, p = chain.positions.shape
        precision, noise = self._hyperparameters(chain, thin)
        likelihood = self.likelihood.with_tuned(noise.double().square().mean().sqrt())
        everything = chain.positions.reshape(-1, p)
        prior = Noise(seed, PRIOR).rows(0, p, min(len(everything), 200)).mT.to(everything)
        tempered = precision.reshape(-1, 1) / self.temperature  # the prior's share of p(w | data)^(1 / temperature)
        prior = prior * tempered[torch.arange(len(prior)) % (chains * draws)].rsqrt()
        networks = Networks(
            self.model, self._sets(everything), likelihood, self._sets(prior), seed=seed,
            diagnostics={"chains": chains, "draws": draws},
        )  # fmt: skip
        about = {**about, **chain.diagnostics, "chains": chains, "draws": draws, "temperature": self.temperature}
        watched = self.whole[0][:: max(1, self.source.size // WATCHED)][:WATCHED]
        return Chains(
            networks, self.layout, chain.positions, precision, noise if self.tuned[1] else None, watched, about
        )

    def _hyperparameters(self, chain: Chain, thin: int) -> tuple[Tensor, Tensor]:
        chains, draws, _ = chain.positions.shape
        if not self.log:
            return self.precision[:, None].expand(chains, draws), self.noise_std[:, None].expand(chains, draws)
        last = self.log[::-1][: draws * thin : thin][::-1]
        precision, noise = (torch.stack(parts, dim=1) for parts in zip(*last, strict=True))
        return precision, noise

    def _sets(self, rows: Tensor) -> Weights:
        kept = {name: tensor.expand(len(rows), *tensor.shape) for name, tensor in self.kept.items()}
        return {**kept, **self.layout.unflatten_each(rows)}


def _check(
    model: nn.Module, prior_precision: float | None, chains: int, draws: int, thin: int,
    start: Start | Sequence[nn.Module],
) -> None:  # fmt: skip
    check_model(model)
    if prior_precision is not None and not prior_precision > 0:
        raise ValueError(f"prior_precision is {prior_precision}, expected a positive number, or None to have it drawn")
    if chains < 1 or draws < 4 or thin < 1:
        raise ValueError(f"chains is {chains}, draws {draws} and thin {thin}: expected at least 1, 4 and 1")
    if isinstance(start, str) and start not in ("prior", "network"):
        raise ValueError(f"start is {start!r}, expected 'prior', 'network' or one network for each chain")
    if not isinstance(start, str) and len(start) != chains:
        raise ValueError(f"start has {len(start)} networks for {chains} chains: expected one for each")
