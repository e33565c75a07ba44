"""A callback of Lightning that fits a posterior when training ends.

Needs `pip install lapwing[lightning]`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, IterableDataset

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise ImportError("lapwing.lightning needs Lightning: pip install 'lapwing[lightning]'") from error

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.posterior import Posterior
from lapwing.facade import fit

FILE = "posterior.safetensors"


class PosteriorCallback(Callback):
    """Fits a posterior to the trained module at the end of `Trainer.fit`, and saves it.

    The training data are those of the trainer, in a fixed order. On validation data, where the trainer has some, the
    posterior is tuned, and for classes compared with temperature scaling. The module is read in eval mode and put back
    as it was.

    Parameters
    ----------
    likelihood : Likelihood
        Such as `Categorical()`.
    network : callable, optional
        The network inside the module, such as `lambda module: module.network`. By default the module itself, whose
        `forward` must return logits or values.
    path : path, optional
        File to save the posterior to. By default `posterior.safetensors` in the trainer's folder of checkpoints.
    options : dict, optional
        Further arguments of `fit`, such as `{"method": lw.KFAC()}`.

    Examples
    --------
    >>> import lapwing as lw
    >>> PosteriorCallback(lw.Categorical(), options={"draws": 8}).posterior is None
    True
    """

    def __init__(
        self, likelihood: Likelihood, *, network: Callable[[Any], nn.Module] | None = None,
        path: Path | str | None = None, options: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if isinstance(likelihood, str | type):
            raise ValueError(f"likelihood is {likelihood!r}, expected a value, such as lw.Categorical()")
        self.likelihood, self.network, self.path, self.options = likelihood, network, path, dict(options or {})
        self.posterior: Posterior | None = None
        self.saved: str | None = None

    @property
    def state_key(self) -> str:
        """By the likelihood: callbacks with different ones keep apart in a checkpoint."""
        return self._generate_state_key(likelihood=type(self.likelihood).__name__)

    def state_dict(self) -> dict[str, Any]:
        """Where the posterior was saved."""
        return {"saved": self.saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.saved = state_dict["saved"]

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Fit, and save from the first process."""
        network = pl_module if self.network is None else self.network(pl_module)
        if not isinstance(network, nn.Module):
            raise ValueError(f"network= returned a {type(network).__name__}, expected an nn.Module")
        data = _in_order(trainer.train_dataloader, "training")
        options = {"progress": False, **self.options}
        validation = trainer.val_dataloaders
        if validation is not None and "validation" not in options:
            options["validation"] = _in_order(validation, "validation")
        modes = {module: module.training for module in network.modules()}
        try:
            network.eval()
            self.posterior = fit(network, data, self.likelihood, **options)
        finally:
            for module, mode in modes.items():
                module.training = mode
        if trainer.is_global_zero:
            place = Path(self.path) if self.path is not None else Path(_folder(trainer)) / FILE
            self.saved = str(self.posterior.save(place))


def _in_order(loader: Any, which: str) -> DataLoader[Any]:
    """The data of a loader in a fixed order, each once: a posterior reads them more than once."""
    if not isinstance(loader, DataLoader):
        raise ValueError(f"the {which} data are a {type(loader).__name__}, expected one DataLoader")
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            f"the {which} data are an IterableDataset, expected one with places: a posterior reads it again"
        )
    size = loader.batch_size or 64
    return DataLoader(loader.dataset, batch_size=size, shuffle=False, collate_fn=loader.collate_fn)


def _folder(trainer: Any) -> str:
    callback = trainer.checkpoint_callback
    found = getattr(callback, "dirpath", None) if callback is not None else None
    return str(found or trainer.default_root_dir)
