"""A network's outputs, refused with the reason where a posterior cannot be built on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lapwing.network.batches import Inputs, check_finite_batch, untouched_random_state
from lapwing.network.input_tree import InputTree, Sample, call, leaves, outline
from lapwing.network.jacobian import Network

ROUNDED = 1e-4  # of a sum of probabilities in single precision


def checked_outputs(network: Network, inputs: Sample, number: int = 0) -> Tensor:
    """The network's outputs on one batch, after two passes that must agree to the bit.

    `number` is that of the batch, for messages. Wrong devices, dtypes and NaN are refused, the last with the name of
    the first layer whose output has one.
    """
    _check_kind(network, inputs)
    check_finite_batch(inputs, None, number=number)
    with untouched_random_state():
        outputs, again = run_network(network, inputs), network.outputs(inputs)
    if outputs.ndim == 0 or len(outputs) != len(inputs):
        raise ValueError(
            f"the network returns {tuple(outputs.shape)} for {len(inputs)} inputs: expected one row per input"
        )
    weights = network.fixed[network.layout.names[0]]
    if outputs.dtype != weights.dtype:
        raise ValueError(
            f"the network's outputs are {outputs.dtype} and its weights {weights.dtype}: turn autocast off inside it"
        )
    if not bool(outputs.isfinite().all()):
        where = first_broken_layer(network.model, network.fixed, inputs)
        raise ValueError(
            f"the network's outputs are NaN or infinite for some inputs of batch {number}; the first layer to give "
            f"such a value is {where}"
        )
    if not torch.equal(outputs, again):
        raise ValueError("two calls of the network differ: it is random, and a posterior needs a function")
    return outputs


def check_purpose(model: nn.Module) -> None:
    """Refuse Hugging Face's models that generate text: their labels are shifted inside, and their outputs words."""
    if bool(getattr(model, "can_generate", bool)()):
        raise ValueError(
            f"{type(model).__name__} generates text, with an output for each word of its vocabulary at each place; a "
            "posterior is for models of sequence or token classification and for rewards, such as those of "
            "AutoModelForSequenceClassification"
        )


def check_logits(outputs: Tensor) -> None:
    """Refuse probabilities where logits are expected."""
    if outputs.shape[-1] > 1 and bool((outputs >= 0).all() and ((outputs.sum(-1) - 1).abs() < ROUNDED).all()):
        raise ValueError(
            "the network's outputs are positive and sum to one, so they are probabilities, and a likelihood of classes "
            "takes logits: leave out the softmax at its end"
        )


def run_network(network: Network, inputs: Sample, fitted: Inputs | None = None, axes: int | None = None) -> Tensor:
    """The network's outputs, or what shape of inputs it does not take and which one it was fitted with.

    `axes` are those of its outputs there.
    """
    try:
        outputs = network.outputs(inputs)
    except torch.OutOfMemoryError:
        raise
    except TypeError as error:
        if not isinstance(inputs, InputTree) or not isinstance(inputs.parts, Mapping):
            raise
        raise ValueError(
            f"the network does not take {outline(inputs)}: say which part is its input, as in DataSpec(data, "
            f"inputs={next(iter(leaves(inputs)))!r})"
        ) from error
    except (RuntimeError, IndexError, ValueError) as error:  # the last by normalisation layers
        _check_kind(network, inputs)
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the network does not take inputs of {_told(inputs, fitted)} ({reason})") from error
    if axes is not None and outputs.ndim != axes:
        raise ValueError(
            f"the network returns {tuple(outputs.shape)}, not one row per input, for inputs of {_told(inputs, fitted)}"
        )
    return outputs


def _told(inputs: Sample, fitted: Inputs | None) -> str:
    """The shape of some inputs, that of those of the fit where they are known, and what to do."""
    given = outline(inputs).removeprefix("Tensor ")
    if fitted is None:
        return f"shape {given}: expected many along the first axis, each as in its training; one is inputs[None]"
    before = next(iter(fitted))
    known = outline(before).removeprefix("Tensor ")
    if isinstance(inputs, Tensor) and isinstance(before, Tensor):
        each = tuple(before.shape[1:])
        if tuple(inputs.shape) == each:
            return f"shape {given}, which is that of a single one: pass inputs[None], or a batch of them"
        known = str(("n", *each)).replace("'n'", "n")
    return f"shape {given}: expected {known}, as in the data that it was fitted with"


def first_broken_layer(model: nn.Module, fixed: dict[str, Tensor], inputs: Sample) -> str:
    """The name and type of the first module, in the order of the forward pass, whose output is not finite."""
    found: list[str] = []

    def watch(name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not bool(output.isfinite().all()):
                found.append(f"{name or 'the network itself'} ({type(module).__name__})")

        return module.register_forward_hook(hook)

    handles = [watch(name, module) for name, module in model.named_modules()]
    try:
        with torch.no_grad(), untouched_random_state():
            functional_call(model, fixed, *call(model, inputs))
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "none that is a module of its own"


def _check_kind(network: Network, inputs: Sample) -> None:
    weights = network.fixed[network.layout.names[0]]
    for leaf in leaves(inputs).values():
        if leaf.device != weights.device:
            raise ValueError(
                f"the inputs are on {leaf.device} and the network on {weights.device}: move one to the other"
            )
        if leaf.is_floating_point() and leaf.dtype != weights.dtype:
            raise ValueError(
                f"the inputs are {leaf.dtype} and the network's weights {weights.dtype}: convert one to the other's "
                "dtype"
            )
    if torch.is_autocast_enabled(weights.device.type):
        raise ValueError("autocast is on, and half precision is too coarse for a posterior: leave its context first")
