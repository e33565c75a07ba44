"""One rank of a test: fits what its first argument names and leaves the result in the folder of its second."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import lapwing as lw
from lapwing.linalg.operators import distributed
from tests.network.networks import normal

N = 23  # no multiple of 2 or 3


class Breaking(nn.Module):
    """A linear layer that raises once rank 1 works on its share of the data, 12 of 23."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3).double()

    def forward(self, x):
        if len(x) == 12 and rank() == 1:
            raise ArithmeticError("the network of rank 1 has had enough")
        return torch.relu(self.layer(x))


class Ending(nn.Module):
    """A network that ends the process of rank 1, or waits to be ended, once two steps are kept in a folder."""

    def __init__(self, folder: Path, how: str):
        super().__init__()
        self.inner, self.folder, self.how = network(), folder, how

    def forward(self, x):
        if (self.folder / "step 2.safetensors").exists():
            if self.how == "ends" and rank() == 1:
                os._exit(3)
            time.sleep(1.0 if self.how == "waits" else 0.0)
        return self.inner(x)


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3)).double().eval()


def labelled(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and labels that the network often gets right."""
    inputs = normal(n, 4, seed=seed)
    with torch.no_grad():
        return inputs, (network()(inputs) + 0.5 * normal(n, 3, seed=seed + 1)).argmax(1)


def gaussian(**given):
    data = normal(N, 4, seed=1), normal(N, 3, seed=2)
    return lw.fit(network(), data, lw.Gaussian(), draws=5, seed=7, **given)


def labels(**given):
    return lw.fit(network(), labelled(N, 1), lw.Categorical(), draws=5, seed=7, **given)


def from_data_set():
    """Read datum by datum, in batches that no share is a multiple of."""
    data = torch.utils.data.DataLoader(list(zip(*labelled(N, 1), strict=True)), batch_size=5)
    return lw.fit(network(), data, lw.Categorical(), method=lw.Krylov(rtol=1e-8), draws=5, seed=7)


def several():
    """Two networks of different sizes, as one mixture: each fit is shared out."""
    data = normal(N, 4, seed=1), normal(N, 3, seed=2)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double().eval()
    return lw.fit([network(), other], data, lw.Gaussian(), draws=5, seed=7)


def kept(folder: Path):
    return gaussian(method=lw.Krylov(rtol=1e-8), checkpoint=folder)


def in_steps(folder: Path, how: str = "goes on"):
    """Three columns a step, so that there are many; by `infer`, which calls the network in each of them, as `fit` need not."""
    data = normal(N, 4, seed=1), normal(N, 3, seed=2)
    linear = lw.linearise(Ending(folder, how).eval(), data, lw.Gaussian(0.1), checkpoint=folder)
    options = {"prior": lw.Isotropic(0.1), "method": lw.Krylov(rtol=1e-8), "draws": 1, "seed": 7}
    return lw.infer(linear, checkpoint=folder, **options)


HELD_OUT = labelled(40, 5)
FITS = {
    "krylov": lambda: gaussian(method=lw.Krylov(rtol=1e-8)),
    "exact": gaussian,
    "by draws": lambda: gaussian(method=lw.Krylov(rtol=1e-8), shard="draws"),
    "labels, by draws": lambda: labels(method=lw.Krylov(rtol=1e-8), shard="draws"),
    "fewer data than ranks, by draws": lambda: lw.fit(
        network(),
        (normal(2, 4, seed=1), normal(2, 3, seed=2)),
        lw.Gaussian(0.1),
        method=lw.Krylov(rtol=1e-8),
        draws=5,
        seed=7,
        shard="draws",
    ),
    "cg": lambda: gaussian(method=lw.CG(rtol=1e-10), prior=lw.PerGroup("layer", 2.0)),
    "labels": lambda: labels(method=lw.Krylov(rtol=1e-8)),
    "labels, exact": labels,
    "held out": lambda: labels(method=lw.Krylov(rtol=1e-8), validation=HELD_OUT),
    "kfac": lambda: labels(method=lw.KFAC(), validation=HELD_OUT),
    "data set": from_data_set,
    "several": several,
    "fewer data than ranks": lambda: lw.fit(
        network(), (normal(2, 4, seed=1), normal(2, 3, seed=2)), lw.Gaussian(0.1), draws=5, seed=7
    ),
}


FEW = ("krylov", "fewer data than ranks", "by draws", "fewer data than ranks, by draws")


def found(posterior) -> dict:
    inputs = normal(7, 4, seed=9)
    predicted = posterior.predict(inputs, shard=True)
    outcome = predicted.probs if predicted.likelihood.has_classes else predicted.aleatoric_variance
    first = posterior.members[0] if isinstance(posterior, lw.Mixture) else posterior
    return {
        "predicted": torch.stack([predicted.mean, predicted.epistemic_variance, predicted.prior_variance, outcome]),
        "samples": predicted.samples.double(),
        "at fewer inputs than ranks": posterior.predict(inputs[:2], shard=True).epistemic_variance,
        "draws": first.draws,
        "functions": posterior.functions(inputs),
        "evidence": torch.tensor(first.log_evidence.value),
        "ranks": torch.tensor(posterior.diagnostics.ranks),
    }


def different() -> None:
    data = normal(N, 4, seed=rank()), normal(N, 3, seed=2)
    alone = lw.fit(network(), data, lw.Gaussian(), draws=2, shard=False)
    assert alone.diagnostics.ranks == 1
    lw.fit(network(), data, lw.Gaussian(), draws=2)


def broken() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Breaking().eval()
    lw.fit(model, (normal(N, 4, seed=1), normal(N, 3, seed=2)), lw.Gaussian(0.1), method=lw.Krylov(), draws=5)


def main(job: str, folder: Path, ranks: int) -> None:
    torch.set_num_threads(1)
    if job.startswith("group "):  # the caller's own group, made before
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meet-{job.split()[-1]}-{ranks}", rank=rank(), world_size=ranks
        )
    match job.removeprefix("group "):
        case "different":
            different()
        case "raises":
            broken()
        case "ends" | "waits" | "goes on" as how:
            torch.save(in_steps(folder / "steps", how).draws, folder / f"steps {rank()}.pt")
        case which:
            chosen = FITS if which == "all" else {name: FITS[name] for name in FEW}
            if which == "few":
                distributed.BUCKET_BYTES = 1300  # two of five columns
            torch.save({name: found(fit()) for name, fit in chosen.items()}, folder / f"{rank()}.pt")
            torch.save(kept(folder / "kept").draws, folder / f"kept {rank()}.pt")
            if which == "few":  # what others have left there
                torch.save(in_steps(folder / "steps").draws, folder / f"steps {rank()}.pt")
            if rank() == 0:  # afterwards a rank may go on alone
                labels(shard=False)
                gaussian(method=lw.Krylov(rtol=0.1), shard=False).at(precision=1e-3)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
