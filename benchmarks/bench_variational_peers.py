"""How fast is an epoch of variational training beside bayesian-torch, on the same layers?

Its `dnn_to_bnn` turns the same network into one with random weights by reparametrisation, trained with Adam on its own
loss, mean cross-entropy plus its divergence over the batch size, as its README has it. Same batches, one sample a step,
one process, the two take turns. What it draws are weights, one draw for a batch; ours by default is a noise for every datum,
at the layers, which for convolutions is twice the work. So the convolutions are also compared like with like: with our noise in
the weights of convolutions, and with its Flipout, which has signs for every datum. Needs the environment of the peers, with
bayesian-torch 0.5.
"""

from copy import deepcopy
from statistics import median

import bench_variational_speed as speed
import harness
import peer_environment

THEIRS = {
    "prior_mu": 0.0, "prior_sigma": 0.2**0.5, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
    "moped_enable": False,
}  # fmt: skip


def their_epoch(model, data, batch_size: int, kind: str = "Reparameterization") -> None:
    """One epoch as their README trains."""
    import torch
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    model = deepcopy(model)
    dnn_to_bnn(model, {**THEIRS, "type": kind})
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(0))
    for rows in order.split(batch_size):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data[0][rows]), data[1][rows])
        (loss + get_kl_loss(model) / batch_size).backward()
        optimiser.step()


def measure(
    name: str, hidden: int, count: int, batch_size: int, repeats: int, local: str = "everywhere",
    kind: str = "Reparameterization",
) -> dict:  # fmt: skip
    from lapwing.bayes.likelihoods import Categorical
    from lapwing.families import variational

    model, data = speed.network(name, hidden), speed.pictures(count)

    def ours():
        variational.fit(
            model, data, Categorical(), temperature=1.0, epochs=1, batch_size=batch_size, progress=False,
            method=variational.BayesByBackprop(local=local),
        )  # fmt: skip

    def theirs():
        their_epoch(model, data, batch_size, kind)

    for call in (ours, theirs):
        call()  # warm up
    seconds = [(harness.timed(ours)[0], harness.timed(theirs)[0]) for _ in range(repeats)]
    our_seconds, their_seconds = (list(side) for side in zip(*seconds, strict=True))
    return {
        "our_seconds": our_seconds,
        "their_seconds": their_seconds,
        "speedup": median(their_seconds) / median(our_seconds),
    }


CNN = {**speed.CELLS["CNN, 16 and 32 channels"], "count": 2_500, "repeats": 3}
CELLS = {
    **speed.CELLS,
    "CNN, noise in the weights": {**CNN, "local": "exact"},
    "CNN, noise for every datum": {**CNN, "kind": "Flipout"},
}

if __name__ == "__main__":
    peer_environment.enter()
    harness.main(__file__, CELLS, measure)
