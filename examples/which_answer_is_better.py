# %% [markdown]
# # Which answer is better, and how sure is that?
# A reward network learns from pairs of which one was preferred. Only a small adapter and the head are trained, as with
# LoRA, and only they are uncertain. People differ: the network has learnt some of the chance in their answers by heart,
# and the posterior takes most of that back.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw
from lapwing.training import adam, train


class Adapted(nn.Module):
    """A layer that stays as it is, and a matrix of low rank that is trained, under the names that PEFT gives them."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, layer.out_features, bias=False)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer with its adapter."""
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class Head(nn.Module):
    """A layer that is trained beside the adapter."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.modules_to_save = nn.ModuleDict({"default": nn.Linear(inputs, 1)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Its reward."""
        return self.modules_to_save["default"](x)


# %%
generator = torch.Generator().manual_seed(0)
torch.manual_seed(0)
pairs = 6 * torch.rand(2, 1100, 1, generator=generator) - 3
likelier = (3 * (pairs[0].sin() - pairs[1].sin()))[:, 0].sigmoid()
preferred = (torch.rand(1100, generator=generator) > likelier).long()  # 0: the first
first, second, answers = pairs[0, :100], pairs[1, :100], preferred[:100]
base = nn.Linear(1, 32).requires_grad_(False)
reward = nn.Sequential(base, nn.Tanh(), Adapted(nn.Linear(32, 32), rank=3), nn.Tanh(), Head(32))
network = lw.Pairs(reward)
options = {"epochs": 200, "batch_size": 50, "optimiser": adam(0.01), "progress": False}
network = train(network, ((first, second), answers), lw.BradleyTerry(), **options)
posterior = lw.fit(network, ((first, second), answers), lw.BradleyTerry(), select=lw.lora(network))

# %%
new, labels = (pairs[0, 100:], pairs[1, 100:]), preferred[100:]
raw = -network(*new).log_softmax(1).gather(1, labels[:, None]).mean()
print(f"NLL of 1,000 new pairs: raw {raw:.3f}, posterior {-posterior.predict(new).log_prob(labels).mean():.3f}")
line = torch.linspace(-3, 3, 121)[:, None]
against = torch.zeros_like(line)

# %%
figure = Figure(figsize=(6, 3.4), layout="constrained")
axes = figure.subplots()
axes.plot(line, (3 * line.sin()).sigmoid(), color="black", ls=":", label="truth")
axes.plot(line, network(line, against).softmax(1)[:, 0].detach(), color="#D55E00", ls="--", label="raw network")
axes.plot(line, posterior.predict((line, against)).probs[:, 0], color="#0072B2", label="posterior")
axes.set(xlabel="x", ylabel="probability that x is preferred to 0", ylim=(0, 1.05))
axes.legend(frameon=False, fontsize=8)
figure.savefig("which_answer_is_better.png", dpi=100)
print("picture: which_answer_is_better.png")
