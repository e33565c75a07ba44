"""Monte-Carlo dropout (Gal & Ghahramani 2016): a network whose dropout stays on, one mask for each drawn function.

A mask is shared by all inputs, so a draw is a function: the same at every call, for every batch, and joint between
inputs. Normalisation layers stay in eval mode; only dropout is random.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.noise import SAMPLE, Noise
from lapwing.bayes.predictive import Prediction, from_draws
from lapwing.families.networks import BATCH, NO_PRIOR, evaluated, with_noise
from lapwing.network.input_tree import Sample, as_inputs, call
from lapwing.network.parameters import check_model
from lapwing.network.shuffling import Source

__all__ = ["Dropout", "fit", "insert"]

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
ELEMENTS = {functional.dropout, functional.alpha_dropout}
CHANNELS = {functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.feature_alpha_dropout}
SATURATED = -1.7580993408473766  # where SELU is lost: −λα, the value that alpha dropout sets (Klambauer et al. 2017)


def insert(model: nn.Module, rate: float, *, inputs: bool = False) -> nn.Module:
    """A copy of a network with dropout in front of every linear layer and convolution but the first.

    With `inputs` in front of the first too, as in the experiments of Gal & Ghahramani. The layers are those in the
    order of `named_modules`; their weights have new names, the old one with `1.` before its last part.

    Parameters
    ----------
    model : nn.Module
        A network; it is not changed.
    rate : float
        Share of inputs that a layer drops, strictly between 0 and 1.
    inputs : bool
        Whether to put dropout in front of the first layer too.

    Returns
    -------
    nn.Module
        A copy with dropout.

    Raises
    ------
    ValueError
        If the rate is out of range, or there is no second layer.

    Examples
    --------
    >>> insert(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), 0.1)[2]
    Sequential(
      (0): Dropout(p=0.1, inplace=False)
      (1): Linear(in_features=3, out_features=1, bias=True)
    )
    """
    if not 0 < rate < 1:
        raise ValueError(f"a dropout rate lies strictly between 0 and 1, not {rate}")
    copy = deepcopy(model)
    places = [name for name, module in copy.named_modules() if isinstance(module, LAYERS)]
    chosen = places if inputs else places[1:]
    if not chosen or "" in chosen:
        raise ValueError(
            f"{type(model).__name__} has no second linear layer or convolution, so there is nowhere to put dropout: "
            "write it into the network, or use inputs=True"
        )
    for name in chosen:
        parent, _, last = name.rpartition(".")
        owner, layer = copy.get_submodule(parent), copy.get_submodule(name)
        setattr(owner, last, nn.Sequential(nn.Dropout(rate), layer).train(layer.training))
    return copy


@final
@dataclass(frozen=True, eq=False)
class Dropout:
    """A network that is drawn by its dropout masks.

    Parameters
    ----------
    model : nn.Module
        A trained network with dropout.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    draws : int
        Number of masks.
    seed : int
        Of the masks.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> network = nn.Sequential(nn.Linear(2, 9), nn.Dropout(0.5), nn.Linear(9, 1)).eval()
    >>> Dropout(network, Gaussian(0.1), draws=4).functions(torch.ones(3, 2)).shape
    torch.Size([4, 3, 1])
    """

    model: nn.Module
    likelihood: Likelihood
    draws: int = 50
    seed: int = 0

    def functions(self, inputs: Any) -> Tensor:  # (draws, *outputs)
        """The outputs with every one of the masks.

        Parameters
        ----------
        inputs : Tensor or any input of the network
            New inputs.

        Returns
        -------
        Tensor
            (draws, *outputs).

        Raises
        ------
        ValueError
            If no dropout was met on the way through the network.
        """
        known, found = as_inputs(inputs), []
        with torch.no_grad():
            for draw in range(self.draws):
                parts = []
                for part in known.split(BATCH):
                    with Masks(Noise(self.seed, SAMPLE), draw) as masks:
                        arguments, named = call(self.model, part)
                        parts.append(self.model(*arguments, **named))
                if not masks.used:
                    raise ValueError(
                        "no dropout was met on the way through the network: put nn.Dropout layers into it before "
                        "training, or use insert(model, rate)"
                    )
                found.append(torch.cat(parts))
        return torch.stack(found)

    def predict(self, inputs: Any) -> Prediction:
        """The predictive distribution at new inputs; probabilities are averages over the masks.

        Parameters
        ----------
        inputs : Tensor or any input of the network
            New inputs.

        Returns
        -------
        Prediction
            An average over the masks.
        """
        return from_draws(self.functions(inputs), self.likelihood, NO_PRIOR, mixture=False, seed=self.seed)


def fit(
    model: nn.Module, data: Any, likelihood: Likelihood, *, validation: Any = None, draws: int = 50, seed: int = 0
) -> Dropout:
    """A trained network with dropout layers, or calls of `functional.dropout`, left on.

    The noise of a Gaussian, where it is not given, is the best for these draws on `validation` or the training data.

    Parameters
    ----------
    model : nn.Module
        A trained network with dropout, in eval mode; it is not changed.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    validation : (inputs, targets), Dataset, DataLoader or list of batches, optional
        Validation data.
    draws : int
        Number of masks.
    seed : int
        Of the order of the data and of all draws.

    Returns
    -------
    Dropout
        With `predict` and `functions`.

    Raises
    ------
    ValueError
        If there are fewer than two draws.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> model = nn.Sequential(nn.Linear(2, 9), nn.ReLU(), nn.Dropout(0.2), nn.Linear(9, 1)).eval()
    >>> x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    >>> found = fit(model, (x, x[:, :1]), Gaussian(0.1), draws=7)
    >>> found.functions(x).shape, bool((found.predict(x).epistemic_variance > 0).any())
    (torch.Size([7, 5, 1]), True)
    """
    check_model(model)
    if draws < 2:
        raise ValueError(f"draws is {draws}, expected at least 2")
    found = Dropout(evaluated(model), likelihood, draws, seed)
    found.functions(_first(data))
    return replace(found, likelihood=with_noise(found, data if validation is None else validation))


class Masks(TorchFunctionMode):
    """Inside it, dropout multiplies by the masks of one draw, in training mode or not."""

    def __init__(self, noise: Noise, draw: int) -> None:
        super().__init__()
        self.noise, self.draw, self.used = noise, draw, 0

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Dropout with our masks, anything else as it is."""
        kwargs = kwargs or {}
        if function not in ELEMENTS | CHANNELS:
            return function(*args, **kwargs)
        return self._dropped(function, *args, **kwargs)

    def _dropped(self, function: Callable, input: Tensor, p: float = 0.5, *_: Any, **__: Any) -> Tensor:  # noqa: A002
        one = input.shape[1:]  # of a datum; the mask is the same for all
        shape = one if function in ELEMENTS else torch.Size([one[0], *[1] * (len(one) - 1)])
        normals = self.noise.rows(self.used, self.used + shape.numel(), 1, first_column=self.draw)
        self.used += shape.numel()
        keep = (torch.special.ndtr(normals) >= p).to(input).reshape(shape)
        if function in (functional.alpha_dropout, functional.feature_alpha_dropout):
            size = (1 - p) * (1 + p * SATURATED**2)
            return (input * keep + SATURATED * (1 - keep) - p * SATURATED) / size**0.5
        return input * keep / (1 - p) if p < 1 else torch.zeros_like(input)


def _first(data: Any) -> Sample:
    return Source.of(data).first(2).inputs
