"""What a variational fit gives: draws of functions, predictions, the ELBO by parts, a file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn

from lapwing.bayes.likelihoods import Likelihood, restored
from lapwing.bayes.predictive import Prediction, from_draws
from lapwing.families.variational.mean_field import LOG_STD, MeanField
from lapwing.families.variational.temperature import Heat
from lapwing.linalg.estimators import Estimate
from lapwing.network.input_tree import Sample, as_inputs, outputs_at
from lapwing.network.shuffling import Source
from lapwing.runtime.atomic import write as write_atomically
from lapwing.runtime.journal import checksum
from lapwing.training import Epoch, Weights, log_prob

FORMAT = 1
MOST_DRAWS = 100_000  # that a file may ask for
BATCH = 1000


@final
@dataclass(frozen=True)
class Elbo:
    """Σ E log p(y | f) − η KL(q | prior): the first from draws of the weights, with its error, the second exact.

    Parameters
    ----------
    log_likelihood : lapwing.Estimate
        Σ E log p(y | f), from draws.
    divergence : float
        KL(q | prior), exact.
    temperature : float
        η.
    """

    log_likelihood: Estimate
    divergence: float
    temperature: float

    @property
    def value(self) -> Estimate:
        """The ELBO itself."""
        return Estimate(
            self.log_likelihood.value - self.temperature * self.divergence, self.log_likelihood.standard_error
        )


@final
@dataclass(frozen=True, eq=False)
class Variational:
    """A Gaussian with independent coordinates over the weights of a network.

    Parameters
    ----------
    network : MeanField
        The network with Gaussian weights.
    values : dict of Tensor
        Means, log standard deviations, and what is not random.
    likelihood : Likelihood
        Of the targets.
    heat : Heat
        The η that was used.
    curve : tuple of Epoch
        The loss.
    draws : int
        Of `functions` and `predict`.
    seed : int
        Of the draws.
    tuning : tuple of tuple of float
        τ and its validation NLL, where τ was tuned.
    """

    network: MeanField
    values: Weights  # means, log standard deviations, what is not random
    likelihood: Likelihood
    heat: Heat
    curve: tuple[Epoch, ...] = ()
    draws: int = 50
    seed: int = 0
    tuning: tuple[tuple[float, float], ...] = ()  # (τ, held-out NLL) where τ was tuned

    @property
    def divergence(self) -> float:
        """KL(q | prior), in closed form."""
        return self.network.divergence(self.values)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What was fitted and how, as plain numbers and words."""
        deterministic = [name for name in self.network.trainable() if not name.endswith(LOG_STD)]
        return {
            "temperature": self.heat.eta,
            "temperature_from": str(self.heat),
            "tau": self.heat.tau,
            "units": self.heat.units,
            "data": self.heat.data,
            "random_weights": self.network.size,
            "local_exactly": sorted(self.network.exact),
            "local_approximately": sorted(self.network.approximate),
            "never_local": sorted(set(self.network.random) - self.network.exact - self.network.approximate),
            "not_random": sorted(set(deterministic) - set(self.network.random)),
            "divergence": self.divergence,
            "divergence_per_unit": None if self.heat.units is None else self.divergence / self.heat.units,
            "prior_variance": self.network.prior_variance,
            "epochs": len(self.curve),
            "loss": self.curve[-1].loss if self.curve else None,
            "draws": self.draws,
            "seed": self.seed,
            "tuning": [list(pair) for pair in self.tuning],
            "tau_at_the_edge_of_the_grid": bool(self.tuning)
            and self.heat.tau in (self.tuning[0][0], self.tuning[-1][0]),
        }

    def functions(self, inputs: Any, draws: int | None = None) -> Tensor:  # (draws, *outputs)
        """Joint draws of the outputs, the same at every call and for every batch."""
        return self._functions(self.values, as_inputs(inputs), draws or self.draws)

    def predict(self, inputs: Any) -> Prediction:
        """The predictive distribution at new inputs, from the draws; probabilities are averages over them."""
        inputs = as_inputs(inputs)
        prior = self._functions(self.network.prior(self.values), inputs, self.draws)
        return from_draws(self.functions(inputs), self.likelihood, prior, seed=self.seed)

    def elbo(self, data: Any, draws: int = 16) -> Elbo:
        """The ELBO on some data, counted as often as the fit counted its own, with whole draws of the weights."""
        source, sums = Source.of(data), []
        model = self.network.evaluated()
        with torch.no_grad():
            for column in range(draws):
                weights = self.network.draw(self.values, self.seed, column)
                parts = [
                    log_prob(self.likelihood, outputs_at(model, weights, inputs), targets)
                    for inputs, targets in source.in_order(BATCH)
                ]
                sums.append(torch.stack(parts).double().sum())
        total = torch.stack(sums) * (self.heat.data / source.size)
        error = float(total.std()) / math.sqrt(draws) if draws > 1 else math.nan
        return Elbo(Estimate(float(total.mean()), error), self.divergence, self.heat.eta)

    def save(self, path: str | Path) -> None:
        """Write values and settings to one safetensors file, whole or not at all."""
        likelihood = {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in self.likelihood.saved().items()
        }
        about = {
            "format": FORMAT, "kind": "variational", "random": self.network.random, "heat": asdict(self.heat),
            "prior_variance": self.network.prior_variance,
            "exact": sorted(self.network.exact), "approximate": sorted(self.network.approximate), "draws": self.draws,
            "seed": self.seed, "curve": [asdict(epoch) for epoch in self.curve], "tuning": self.tuning,
            "likelihood": likelihood,
        }  # fmt: skip
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.values.items()}
        header = json.dumps(about)
        content = serialise(tensors, {"lapwing": header, "checksum": checksum(header, tensors)})
        write_atomically(Path(path), content)

    def _functions(self, values: Weights, inputs: Sample, draws: int) -> Tensor:
        model, found = self.network.evaluated(), []
        with torch.no_grad():
            for column in range(draws):
                weights = self.network.draw(values, self.seed, column)
                found.append(torch.cat([outputs_at(model, weights, part) for part in inputs.split(BATCH)]))
        return torch.stack(found)


def load(path: str | Path, model: nn.Module) -> Variational:
    """A fit that `save` wrote, for a network of the same architecture; its weights do not matter.

    Parameters
    ----------
    path : path
        A file that `save` wrote.
    model : nn.Module
        A network of the same architecture; its weights do not matter.

    Returns
    -------
    Variational
        As it was saved.

    Raises
    ------
    ValueError
        If the file is damaged, or not a variational fit.

    Examples
    --------
    >>> import tempfile
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> from lapwing.families import variational
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> network = nn.Linear(1, 1)
    >>> found = variational.fit(network, (x, x), Gaussian(0.1), epochs=1, temperature=1.0, progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found.save(f"{folder}/fit.safetensors")
    ...     again = load(f"{folder}/fit.safetensors", network)
    >>> torch.equal(again.functions(x), found.functions(x))
    True
    """
    try:
        return _loaded(path, model)
    except (SafetensorError, OSError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or not a variational fit: {error}") from None


def _loaded(path: str | Path, model: nn.Module) -> Variational:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        about = json.loads(metadata.get("lapwing", "{}"))
        if about.get("format") != FORMAT or about.get("kind") != "variational":
            raise ValueError(f"{path} is not a variational fit of format {FORMAT}: it was not written by save()")
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if "checksum" in metadata and metadata["checksum"] != checksum(metadata["lapwing"], values):
        raise ValueError(f"{path} is damaged: its contents do not have the checksum that was written with them")
    network = MeanField.restored(
        model,
        tuple(about["random"]),
        frozenset(about["exact"]),
        frozenset(about["approximate"]),
        about["prior_variance"],
    )
    expected = {name: tuple(tensor.shape) for name, tensor in network.start(1.0).items()}
    found = {name: tuple(tensor.shape) for name, tensor in values.items()}
    if expected != found:
        different = sorted(name for name in expected | found if expected.get(name) != found.get(name))
        raise ValueError(f"{path} was written for another network: {', '.join(different[:4])} differ")
    _check_sound(about, values)
    likelihood = restored(_described(about))
    curve = tuple(Epoch(**epoch) for epoch in about["curve"])
    tuning = tuple((tau, nll) for tau, nll in about["tuning"])
    return Variational(network, values, likelihood, Heat(**about["heat"]), curve, about["draws"], about["seed"], tuning)


def _described(about: dict[str, Any]) -> dict[str, Any]:
    """The likelihood of a file; older ones have its name, and a noise beside it."""
    found = about["likelihood"]
    if isinstance(found, dict):
        return found
    return {"name": found, "noise_std": about["noise_std"]} if found == "Gaussian" else {"name": found}


def _check_sound(about: dict[str, Any], values: Weights) -> None:
    """Refuse numbers that `save` never writes."""
    draws, seed = about["draws"], about["seed"]
    whole = type(draws) is int and 1 <= draws <= MOST_DRAWS and type(seed) is int and abs(seed) < 2**63
    numbers = [about["prior_variance"], *(value for value in about["heat"].values() if value is not None)]
    if not whole or not all(type(value) in (int, float) and 0 < value < math.inf for value in numbers):
        raise TypeError(f"draws {draws!r}, seed {seed!r} or its settings are not of the right kind")
    if not all(bool(value.isfinite().all()) for value in values.values() if value.is_floating_point()):
        raise TypeError("some of its values are NaN or infinite")
