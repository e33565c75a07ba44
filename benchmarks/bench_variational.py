"""Does the temperature η = τ p / N keep a wide network from collapsing to its prior, with one τ for every width?

Networks (1/N) Σ a_j relu(⟨b_j, x⟩ + c_j) with N hidden units, every weight with its own Gaussian, on MNIST: at η = 1, at a
fixed η of the literature (0.1), and at η = τ p / N over a grid of τ, N from 64 to 4,096. A small setting, so
that all cells fit in half an hour of one core: 6,000 training images, 12 epochs, one seed. τ is to be chosen by
`validation_nll` (2,000 other training images); the scores of the first 2,000 test images stand beside it. `nll` is of
the averaged predictive, `gibbs_nll` the average over single draws.
"""

import harness

EPOCHS = 12
TAUS = ("1e-6", "1e-5", "1e-4", "1e-3", "1e-2")
FIXED = ("1", "0.1")


def measure(data: str, hidden: int, tau: str | None, eta: str | None, epochs: int) -> dict:
    from benchmarks.tasks import temperature as study
    from lapwing.families import variational

    train, validation, test = study.pictures(data)
    temperature = float(eta) if tau is None else variational.Balanced(float(tau), units="hidden")
    posterior = study.by_variation(train, hidden, temperature, epochs=epochs)
    scores = {
        f"{name}_{key}": value
        for name, pairs in (("validation", validation), ("test", test))
        for key, value in variational.held_out(posterior, pairs).items()
    }
    return {
        "temperature": posterior.heat.eta,
        "tau": posterior.heat.eta * hidden / len(train[0]),
        "data": len(train[0]),
        "divergence": posterior.divergence,
        "divergence_per_unit": posterior.divergence / hidden,
        "loss": posterior.curve[-1].loss,
        **scores,
    }


def cells() -> dict[str, dict]:
    """The smallest on bundled digits, then MNIST by width: every τ, and every fixed η; the widest at three τ and η = 1."""
    found = {"digits, N = 16, τ = 1e-4": {"data": "digits", "hidden": 16, "tau": "1e-4", "eta": None, "epochs": 2}}
    for hidden in (64, 256, 1024, 4096):
        taus, fixed = (TAUS, FIXED) if hidden < 4096 else (TAUS[1:4], FIXED[:1])
        for tau in taus:
            arguments = {"data": "mnist", "hidden": hidden, "tau": tau, "eta": None, "epochs": EPOCHS}
            found[f"N = {hidden}, τ = {tau}"] = arguments
        for eta in fixed:
            arguments = {"data": "mnist", "hidden": hidden, "tau": None, "eta": eta, "epochs": EPOCHS}
            found[f"N = {hidden}, η = {eta}"] = arguments
    return found


CELLS = cells()

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
