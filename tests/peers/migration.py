"""What laplace-torch 0.3 does where the migration page says that we differ, run in its own environment: writes one file."""

import inspect
import io
import json
import re
import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "from_laplace_torch.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```python {kind}\n(.*?)```", PAGE.read_text(), flags=re.S)


def page() -> dict:
    """Every block of theirs runs, in order."""
    names: dict = {}
    for code in [*blocks("setup"), *blocks("theirs")]:
        exec(code, names)
    return {"shape of probabilities": list(names["probs"].shape), "blocks": len(blocks("theirs"))}


def differences() -> dict:
    from laplace import Laplace
    from laplace.baselaplace import BaseLaplace

    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(1)
    x, noise = torch.randn(60, 3, generator=generator), torch.randn(60, 2, generator=generator)
    y = torch.stack([x[:, 0].sin(), x[:, 1]], 1) + 0.3 * noise
    classes = (x[:, 0] + noise[:, 0] > 0).long() + (x[:, 1] > 0).long()

    def network(outputs, seed=0):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))

    def loader(targets, part=slice(0, 40), **options):
        return DataLoader(TensorDataset(x[part], targets[part]), **{"batch_size": 20, **options})

    def fitted(outputs, likelihood, targets, subset="all", structure="full", **options):
        la = Laplace(network(outputs), likelihood, subset_of_weights=subset, hessian_structure=structure, **options)
        la.fit(loader(targets))
        return la

    def refuses(call) -> bool:
        try:
            call()
        except ValueError:
            return True
        return False

    found: dict = {}
    model = network(2).train()
    Laplace(model, "regression", subset_of_weights="all", hessian_structure="full").fit(loader(y))
    found["training mode after fit"] = model.training
    la = fitted(2, "regression", y)
    la.log_marginal_likelihood(prior_precision=torch.tensor(7.0))
    found["prior after asking for evidence at 7"] = float(la.prior_precision)
    la = fitted(2, "regression", y)
    la.optimize_prior_precision(method="marglik")
    found["noise after tuning"] = float(la.sigma_noise)
    la = fitted(2, "regression", y, sigma_noise=10.0)
    found["largest variance at noise 10"] = float(la(x[:5])[1].diagonal(dim1=1, dim2=2).max())
    found["shapes"] = [list(la(x[:5])[1].shape), list(la(x[:5], pred_type="nn", link_approx="mc")[1].shape)]
    la = fitted(2, "regression", y)
    la.optimize_prior_precision(method="gridsearch", val_loader=loader(y, slice(40, 60)), pred_type="glm")
    found["regression metric"] = "MeanSquaredError" in inspect.getsource(BaseLaplace.optimize_prior_precision)
    means = []
    for precision in (1e-4, 1e4):
        la.prior_precision = precision
        means.append(la(x[:5])[0].detach())
    found["regression mean moves with the precision"] = not torch.equal(*means)
    found |= _grid_search(network, loader, x, classes)
    la = fitted(3, "classification", classes)
    twice = [la(x[:5], link_approx="mc", generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    found["generator repeats"] = torch.equal(*twice)
    la = fitted(2, "regression", y)
    draws = la.functional_samples(x[:2], pred_type="glm", n_samples=20_000, generator=torch.Generator().manual_seed(3))
    joint = la(x[:2], joint=True)[1].reshape(2, 2, 2, 2)[:, 0, :, 0].detach()
    empirical = torch.cov(draws[:, :, 0].mT).detach()
    error = ((joint[0, 1] ** 2 + joint[0, 0] * joint[1, 1]) / 20_000).sqrt()
    found["z of the covariance between inputs"] = float((empirical[0, 1] - joint[0, 1]) / error)
    la = Laplace(network(2), "regression", subset_of_weights="all", hessian_structure="full")
    la.fit(loader(y, batch_size=7, drop_last=True))
    found["data counted of 35 seen"] = la.n_data
    one = Laplace(network(1), "regression", subset_of_weights="all", hessian_structure="full")
    found["targets (n,) refused"] = refuses(lambda: one.fit(loader(y[:, 0])))
    state = fitted(3, "classification", classes, "last_layer", "kron").state_dict()
    found["last layer keeps data"] = any(
        torch.is_tensor(part) and part.shape[1:] == (3,) and torch.isin(part, x).all().item()
        for part in _flat(state["data"])
    )
    la = fitted(3, "classification", classes, structure="kron")
    other = Laplace(network(3, seed=5), "classification", subset_of_weights="all", hessian_structure="kron")
    found["another network refused"] = refuses(lambda: other.load_state_dict(la.state_dict()))
    buffer = io.BytesIO()
    torch.save(la.state_dict(), buffer)
    buffer.seek(0)
    found["weights_only"] = "mean" in torch.load(buffer, weights_only=True)
    found["last layer override refused"] = refuses(
        lambda: fitted(3, "classification", classes, "last_layer", "kron").fit(loader(classes), override=False)
    )
    for structure in ("full", "kron", "diag"):
        la = fitted(2, "regression", y, structure=structure)
        torch.manual_seed(0)
        samples = (la.sample(20_000) - la.mean).detach()
        true = {
            "full": lambda la=la: la.posterior_covariance,
            "kron": lambda la=la: la.posterior_precision.to_matrix(exponent=-1),
            "diag": lambda la=la: torch.diag(la.posterior_variance),
        }[structure]().detach()  # fmt: skip
        variance = true.diagonal()
        error = ((true.square() + torch.outer(variance, variance)) / 20_000).sqrt()
        found[f"z of {structure} samples"] = float(((samples.mT @ samples / 20_000 - true) / error).abs().max())
    return found


def _grid_search(network, loader, x, classes) -> dict:
    """What is chosen for an overconfident network, beside the best of scores made afresh and of their running means."""
    from laplace import Laplace

    model = network(3)
    with torch.no_grad():
        model[2].weight *= 8
    la = Laplace(model, "classification", subset_of_weights="all", hessian_structure="full")
    la.fit(loader(classes))
    grid = {"log_prior_prec_min": -3, "log_prior_prec_max": 3, "grid_size": 31}
    la.optimize_prior_precision(
        method="gridsearch", pred_type="glm", link_approx="probit", val_loader=loader(classes, slice(40, 60)), **grid
    )
    chosen, scores = float(la.prior_precision), []
    for precision in torch.logspace(-3, 3, 31):
        la.prior_precision = precision
        probs = la(x[40:], link_approx="probit").detach()
        scores.append(-probs.log().gather(1, classes[40:, None]).mean())
    running = torch.stack(scores).cumsum(0) / torch.arange(1, 32)
    best = [float(torch.logspace(-3, 3, 31)[int(value.argmin())]) for value in (torch.stack(scores), running)]
    return {"grid search": chosen, "best afresh": best[0], "best of running means": best[1]}


def _flat(value):
    if isinstance(value, list | tuple):
        for part in value:
            yield from _flat(part)
    else:
        yield value


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    Path(sys.argv[1]).write_text(json.dumps({"page": page(), "differences": differences()}))
