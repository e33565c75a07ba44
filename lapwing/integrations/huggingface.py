"""Posteriors at the end of training with Hugging Face's `Trainer`.

Needs `pip install lapwing[hf]`. `fit` itself takes models of sequence and token classification as they are, and
`lora(model)` the adapters of PEFT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

try:
    from transformers import TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise ImportError("lapwing.huggingface needs transformers: pip install 'lapwing[hf]'") from error

from lapwing.bayes.likelihoods import Categorical, Likelihood
from lapwing.bayes.posterior import Posterior
from lapwing.facade import fit

FILE = "posterior.safetensors"


class PosteriorCallback(TrainerCallback):
    """Fits a posterior when `Trainer` has finished, and saves it beside the last checkpoint.

    The training data are read once more, in order and without dropping any; if `Trainer` has an `eval_dataset` and
    `validation` is true, the precision is tuned on that. The file is `posterior.safetensors`, in the folder of the last
    checkpoint, or in `output_dir` where no checkpoint was saved. `lapwing.load(callback.path, model)` reads it.

    Parameters
    ----------
    likelihood : Likelihood, optional
        By default `Categorical()`.
    select : callable, optional
        Makes the choice of weights from the trained model, as `lapwing.lora` and `lapwing.last_layer` do. By
        default all weights that take gradients.
    validation : bool
        Whether the evaluation data serve as `validation` of `fit`.
    **options
        As for `fit`.

    Attributes
    ----------
    posterior : Posterior or None
        What was fitted.
    path : Path or None
        Where it was saved.

    Examples
    --------
    >>> import lapwing as lw
    >>> callback = PosteriorCallback(select=lw.lora, draws=16)
    >>> callback.posterior is None  # before trainer.train(), with Trainer(…, callbacks=[callback])
    True
    """

    def __init__(
        self, likelihood: Likelihood | None = None, *, select: Callable[[nn.Module], Any] | None = None,
        validation: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        self.likelihood = Categorical() if likelihood is None else likelihood
        self.select = select
        self.validation = validation
        self.options = options
        self.posterior: Posterior | None = None
        self.path: Path | None = None

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None, train_dataloader: Any = None,
        eval_dataloader: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        """Fit and save; called by `Trainer`."""
        del control
        if model is None or train_dataloader is None:
            raise ValueError("on_train_end was called without a model or without training data: give it to Trainer")
        held_out = in_order(eval_dataloader) if self.validation and eval_dataloader is not None else None
        with evaluating(model):
            chosen = None if self.select is None else self.select(model)
            data = in_order(train_dataloader)
            self.posterior = fit(model, data, self.likelihood, select=chosen, validation=held_out, **self.options)
        if state.is_world_process_zero:
            self.path = self.posterior.save(folder_of(args, state) / FILE)


def in_order(loader: Any) -> DataLoader:
    """The data of a loader, each once and in order."""
    return DataLoader(loader.dataset, batch_size=loader.batch_size or 32, collate_fn=loader.collate_fn)


def folder_of(args: Any, state: Any) -> Path:
    """That of the last checkpoint, or that of all output."""
    last = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
    return last if last.is_dir() else Path(args.output_dir)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The network in eval mode, and afterwards every layer in the mode that it had."""
    before = {layer: layer.training for layer in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for layer, mode in before.items():
            layer.training = mode
