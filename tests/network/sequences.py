"""Networks whose inputs, outputs or data are more than one tensor, in double precision and eval mode."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.network.networks import normal, seeded


@dataclass
class Returned:
    """As libraries of language models return what they found."""

    loss: Tensor | None
    logits: Tensor
    hidden: Tensor


class Tagger(nn.Module):
    """A class for every token: embeddings, a masked mean as context, a linear head."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None):
        x = self.embed(input_ids)
        kept = torch.ones_like(x[..., :1]) if attention_mask is None else attention_mask[..., None].to(x)
        context = (kept * x).sum(1, keepdim=True) / kept.sum(1, keepdim=True)
        hidden = torch.tanh(self.mix(x) + context)
        return Returned(None, self.head(hidden), hidden)


class Bilinear(nn.Module):
    """Two inputs of different sizes."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.tanh(self.one(left) + self.two(right)))


class WholeDictionary(nn.Module):
    """Takes its batch as it is."""

    def __init__(self):
        super().__init__()
        self.inner = Bilinear()

    def forward(self, batch: dict) -> Tensor:
        return self.inner(batch["left"], batch["right"])


def tagger():
    return seeded(Tagger, None)[0]


def tokens(n: int = 6, length: int = 5):
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(7, (n, length), generator=generator)
    mask = torch.arange(length) < torch.randint(2, length + 1, (n, 1), generator=generator)
    labels = torch.where(mask, torch.randint(3, (n, length), generator=generator), -100)
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


def bilinear():
    return seeded(Bilinear, None)[0], (normal(9, 3, seed=1), normal(9, 2, seed=2)), normal(9, 2, seed=3)


def dense_rows(model: nn.Module, outputs, *args, **kwargs) -> Tensor:
    """The Jacobian of chosen outputs (flattened as they are) by reverse mode, (rows, p)."""
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    with sdpa_kernel(SDPBackend.MATH):
        found = jacrev(lambda w: outputs(functional_call(model, w, args, kwargs)).reshape(-1), chunk_size=1)(weights)
    return torch.cat([part.reshape(len(part), -1) for part in found.values()], dim=1).detach()
