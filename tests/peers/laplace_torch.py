"""Curvature, evidence and predictions of laplace-torch and curvlinops, run in their own environment: writes one file."""

import sys
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.peers.problems import LOSSES, PRECISION, PROBLEMS


def curvatures(model, loss, inputs, targets) -> dict:
    from curvlinops import EKFACLinearOperator, KFACLinearOperator

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    p = sum(weight.numel() for weight in weights)
    options = {"fisher_type": "type-2", "separate_weight_and_bias": False, "check_deterministic": False}
    data = [(inputs, targets)]
    made = {
        f"kfac {form}": KFACLinearOperator(model, loss, weights, data, kfac_approx=form, **options)
        for form in ("expand", "reduce")
    }
    made["ekfac"] = EKFACLinearOperator(model, loss, weights, data, **options)
    return {name: torch.as_tensor(operator @ torch.eye(p)) for name, operator in made.items()}


def laplace(model, likelihood, inputs, targets, new) -> dict:
    from laplace import Laplace

    loader, found = DataLoader(TensorDataset(inputs, targets), batch_size=len(inputs)), {}
    for structure in ("full", "diag", "kron"):
        for subset in ("all", "last_layer"):
            la = Laplace(
                model, likelihood, subset_of_weights=subset, hessian_structure=structure, prior_precision=PRECISION
            )
            la.fit(loader)
            mean, variance = la._glm_predictive_distribution(new)
            found[f"{subset} {structure}"] = {
                "evidence": la.log_marginal_likelihood().detach(),
                "mean": mean.detach(),
                "variance": variance.detach(),
            }
    return found


def main(path: str) -> None:
    warnings.filterwarnings("ignore")
    torch.set_default_dtype(torch.float64)
    results = {}
    for name, make in PROBLEMS.items():
        for kind, loss in LOSSES.items():
            model, inputs, targets, new = make(kind)
            results[f"{name} {kind} curvature"] = curvatures(model, loss, inputs, targets)
            if name.endswith("without biases"):
                likelihood = "classification" if kind == "categorical" else "regression"
                results[f"{name} {kind} laplace"] = laplace(model, likelihood, inputs, targets, new)
    torch.save(results, path)


if __name__ == "__main__":
    main(sys.argv[1])
