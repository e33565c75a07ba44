"""A network that scores one input, called with two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lapwing.network.input_tree import Output, call, chosen, nested


class Pairs(nn.Module):
    """A reward network for pairs: its rewards of both, (n, 2), as `BradleyTerry()` takes them.

    The network is shared, not copied, and its weights are called `network.…` here. Inputs are a pair, each part in
    the form that the network takes: a tensor, or a dictionary such as `{"input_ids": …, "attention_mask": …}`.

    Parameters
    ----------
    network : nn.Module
        Returns one reward for each input, (n,) or (n, 1), or a value that holds it as `logits`.
    output : str, int or callable, optional
        Which tensor is the reward, where the network returns several.

    Raises
    ------
    ValueError
        When it is called, if the network returns more than one number for an input.

    Examples
    --------
    >>> rewards = Pairs(nn.Linear(3, 1)).eval()
    >>> rewards(torch.zeros(5, 3), torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, network: nn.Module, output: Output = None) -> None:
        super().__init__()
        self.network = network
        self.output = output
        self.train(network.training)

    def forward(self, first: Any, second: Any) -> Tensor:  # (n, 2)
        """The rewards of the first of each pair, and of the second."""
        return torch.stack([self._reward(first), self._reward(second)], dim=1)

    def _reward(self, inputs: Any) -> Tensor:  # (n,)
        given = nested(inputs)
        positional, named = call(self.network, given)
        found = chosen(self.network(*positional, **named), self.output)
        if found.shape not in ((len(given),), (len(given), 1)):
            raise ValueError(
                f"the reward network returns {tuple(found.shape)} for {len(given)} inputs: expected one reward each "
                "(in Hugging Face's configurations num_labels=1)"
            )
        return found.reshape(-1)
