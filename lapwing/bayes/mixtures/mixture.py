"""Several posteriors as one: each member is a Gaussian around a network of its own, and all count alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.likelihoods.spread import Link
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.mixtures import held_out
from lapwing.bayes.mixtures.description import described
from lapwing.bayes.mixtures.leave_one_out import left_out
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.posterior.leave_one_out import LeaveOneOut, Mean
from lapwing.bayes.posterior.posterior import Centre
from lapwing.bayes.predictive import Prediction, mixed


@final
@dataclass(frozen=True, eq=False)
class Mixture:
    """The mixture of several posteriors, with equal weights: made by `lapwing.fit([a, b, c], …)`, or of `members`.

    It predicts as a posterior does. Probabilities and densities are means over the members, the epistemic variance is
    that of the members, on average, plus that between them, and `functions` are draws of one member after the other.
    Members may be of different architectures, but they must predict the same thing.

    Parameters
    ----------
    members : tuple of Posterior
        Posteriors that predict the same thing.
    diagnostics : Diagnostics
        How they were found.

    Raises
    ------
    ValueError
        If there are no members, or they predict different things or have different numbers of draws.

    Examples
    --------
    >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
    >>> x, y = torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 5.0]]).double(), torch.tensor([1.0, 2.0, 3.5])
    >>> parts = [infer(LinearModel(part, y, Gaussian(1.0)), prior=Isotropic(2.0)) for part in (x, x)]
    >>> found = Mixture(tuple(parts)).predict(x)
    >>> torch.allclose(found.std, parts[0].predict(x).std), float(found.between_variance.max())
    (True, 0.0)
    """

    members: tuple[Posterior, ...]
    diagnostics: Diagnostics = field(default_factory=Diagnostics, repr=False)  # of the mixture as a whole

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError("a mixture needs at least one posterior")
        draws = {member.gaussian.deviations.shape[1] for member in self.members}
        if len(draws) > 1:
            raise ValueError(f"members have {sorted(draws)} draws: those of a mixture need as many each")
        kinds = {(type(member.given).__name__, member.map.outputs) for member in self.members}
        if len(kinds) > 1:
            named = ", ".join(f"{kind} of {outputs or 1} outputs" for kind, outputs in sorted(kinds, key=str))
            raise ValueError(f"members predict different things, {named}: expected one likelihood and as many outputs")

    @property
    def likelihood(self) -> Likelihood:
        """That of the first member; others may differ in the noise that was found for them."""
        return self.members[0].likelihood

    @property
    def seed(self) -> int:
        """That of the first member; each has one of its own."""
        return self.members[0].seed

    @property
    def link(self) -> Link:
        """How logits become probabilities."""
        return self.members[0].link

    def functions(self, inputs: Any) -> Tensor:  # (members · draws, *outputs)
        """Joint draws of the outputs, as many from each member, the same at every call.

        Their covariance is that of the mixture: within members, on average, and between them.

        Parameters
        ----------
        inputs : Tensor, or what the networks take
            New inputs.

        Returns
        -------
        Tensor
            (members · draws, *outputs).
        """
        return torch.cat([member.functions(inputs) for member in self.members])

    def predict(
        self, inputs: Any, *, batch_size: int | None = None, link: Link | None = None, bounds: bool = False,
        mean: Centre | None = None, shard: bool = False,
    ) -> Prediction:  # fmt: skip
        """The predictive distribution at new inputs: the mixture of what every member predicts, see there.

        What lies between members and within them is told apart in `between_variance`, `within_variance` and
        `between_information`.

        Parameters
        ----------
        inputs : Tensor, or what the networks take
            New inputs.
        batch_size : int, optional
            Inputs at a time. Chosen by memory by default.
        link : str, optional
            How logits become probabilities; as each member has it by default.
        bounds : bool
            Whether to find bounds on the variance.
        mean : str, optional
            Where predictions are centred, as in `Posterior.predict`.
        shard : bool
            Whether several processes share the inputs.

        Returns
        -------
        Prediction
            Of the mixture.
        """
        return mixed([
            member.predict(inputs, batch_size=batch_size, link=link, bounds=bounds, mean=mean, shard=shard)
            for member in self.members
        ])  # fmt: skip

    def tune(self, validation: Any, *, link: Link | None = None) -> Mixture:
        """The mixture that does best on held-out data.

        For labels and counts the candidates are the networks' own probabilities, averaged; the same with all logits
        over one temperature; the mixture at the precisions of its members; and that with all of them times one factor.
        Probabilities of classes average over them, by how well each does there.
        For numbers every member is tuned by itself, and all variances are then multiplied by one factor.

        Parameters
        ----------
        validation : (inputs, targets), Dataset, DataLoader or list of batches
            Data that no member was fitted to.
        link : str, optional
            How logits become probabilities; as each member has it by default.

        Returns
        -------
        Mixture
            A new one.

        Raises
        ------
        ValueError
            If the validation data do not fit the networks.
        """
        if len(self.members) == 1:
            alone = self.members[0].tune(validation, link=link)
            return replace(self, members=(alone,), diagnostics=alone.diagnostics)
        return held_out.tuned(self, validation, link)

    def at(self, precision: Any = None, noise_std: Any = None) -> Mixture:
        """The mixture with every member at another prior precision or noise.

        Parameters
        ----------
        precision : float or Tensor, optional
            Of the prior; as it is by default.
        noise_std : float or Tensor, optional
            Of the noise; as it is by default.

        Returns
        -------
        Mixture
            A new one.

        Raises
        ------
        ValueError
            If a precision or a noise is not positive.
        """
        return self._changed(lambda member: member.at(precision, noise_std))

    def update(self, data: Any, *, retune: bool = False) -> Mixture:
        """The mixture given more data: every member is updated, see `Posterior.update`.

        A choice between candidates on held-out data is forgotten: the mixture of the posteriors predicts.

        Parameters
        ----------
        data : (inputs, targets), Dataset, DataLoader or list of batches
            Further training data.
        retune : bool
            Whether to tune precisions again.

        Returns
        -------
        Mixture
            A new one.

        Raises
        ------
        ValueError
            If a member cannot be updated, see `Posterior.update`.
        """
        read = _read_once(data)
        return self._changed(lambda member: member.update(read, retune=retune))

    def remove(self, places: Any, data: Any = None, *, retune: bool = False) -> Mixture:
        """The mixture without some of its training data, by place: see `Posterior.remove`.

        Parameters
        ----------
        places : int, slice or list of int
            Which training data.
        data : (inputs, targets), Dataset, DataLoader or list of batches, optional
            Those data, where the members do not hold them.
        retune : bool
            Whether to tune precisions again.

        Returns
        -------
        Mixture
            A new one.

        Raises
        ------
        ValueError
            If the data are not known, see `Posterior.remove`.
        """
        read = None if data is None else _read_once(data)
        return self._changed(lambda member: member.remove(places, read, retune=retune))

    def leave_one_out(self, *, mean: Mean = "linear") -> LeaveOneOut:
        """What the mixture without each training datum says of it: the mixture of what its members say without it.

        Parameters
        ----------
        mean : str
            Where predictions are centred, as in `Posterior.leave_one_out`.

        Returns
        -------
        LeaveOneOut
            One row for each training datum.

        Raises
        ------
        ValueError
            If a member is not in closed form.
        """
        return left_out([member.leave_one_out(mean=mean) for member in self.members])

    def influence(self, inputs: Any, *, mean: Mean = "linear") -> Tensor:  # (n, *outputs)
        """What every training datum adds to the mean of the mixture at a few new inputs.

        Parameters
        ----------
        inputs : Tensor, or what the networks take
            New inputs.
        mean : str
            Where predictions are centred, as in `Posterior.influence`.

        Returns
        -------
        Tensor
            (n, *outputs).

        Raises
        ------
        ValueError
            If a member is not in closed form.
        """
        return torch.stack([member.influence(inputs, mean=mean) for member in self.members]).mean(0)

    def to(self, device: torch.device | str) -> Mixture:
        """The same with what every member stores on another device.

        Parameters
        ----------
        device : device or str
            Where to.

        Returns
        -------
        Mixture
            A new one.
        """
        return replace(self, members=tuple(member.to(device) for member in self.members))

    def save(self, path: Path | str) -> Path:
        """Write this mixture into a file that `lapwing.load(path, networks)` reads, the networks in the same order.

        Parameters
        ----------
        path : path
            Of the file.

        Returns
        -------
        Path
            Of the file.
        """
        from lapwing.bayes.mixtures.files import save

        return save(self, path)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return described(self)

    def _changed(self, change: Callable[[Posterior], Posterior]) -> Mixture:
        """With other members, and without what held-out data said of the present ones."""
        members = tuple(change(member) for member in self.members)
        return Mixture(members, diagnostics=replace(self.diagnostics, candidate=None, candidates=None, shares=None))


def _read_once(data: Any) -> Any:
    """Data that every member reads in the same order."""
    if isinstance(data, LinearModel) or (isinstance(data, tuple) and len(data) == 2):
        return data
    with torch.random.fork_rng(devices=[]):  # a loader draws a seed, and may shuffle
        return list(data)
