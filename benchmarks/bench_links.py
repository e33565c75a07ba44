"""How far is each link from the integral it stands for?

Logits are Gaussian with a mean and a covariance; a link turns them into class probabilities without the integral. Means
are normal with a standard deviation of 3; covariances are those of random factors, all classes correlated, with this
standard deviation on average. The truth is the integral over the differences of logits: by the trapezoidal rule up to
three classes, and by two million draws beyond, whose standard error is given. An error is the largest difference of a
datum's probabilities from the true ones.
"""

import harness

NODES = 241
DRAWS = 2_000_000


def logits(n: int, classes: int, std: float, seed: int):
    """Means (n, c) and covariances (n, c, c)."""
    from problems import normals

    mean = 3 * normals(n, classes, seed=seed)
    factors = normals(n, classes, classes + 1, seed=seed + 1) * std / (classes + 1) ** 0.5
    return mean, factors @ factors.mT


def by_quadrature(mean, covariance, nodes: int = NODES):
    """E[softmax] of at most three classes, over a grid of differences to the last class."""
    import torch

    classes = mean.shape[1]
    contrast = torch.cat([torch.eye(classes - 1), -torch.ones(classes - 1, 1)], dim=1).double()
    z = torch.linspace(-8.5, 8.5, nodes, dtype=torch.float64)
    grid = torch.cartesian_prod(*[z] * (classes - 1)).reshape(-1, classes - 1)
    weights = (-0.5 * grid.square().sum(1)).softmax(0)
    found = []
    for m, s in zip(mean, covariance, strict=True):
        values, vectors = torch.linalg.eigh(contrast @ s @ contrast.mT)
        away = contrast @ m + grid @ (vectors * values.clamp_min(0).sqrt()).mT
        full = torch.cat([away, torch.zeros_like(away[:, :1])], dim=1)
        found.append(weights @ full.softmax(1))
    return torch.stack(found)


def by_draws(mean, covariance, draws: int = DRAWS):
    """E[softmax] by plain draws, and the largest standard error of a probability."""
    import torch

    generator = torch.Generator().manual_seed(9)
    root, found, errors = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(mean.shape[1])), [], []
    for m, r in zip(mean, root, strict=True):
        total, squares = torch.zeros_like(m), torch.zeros_like(m)
        for _ in range(draws // 200_000):
            p = (m + torch.randn(200_000, len(m), generator=generator, dtype=torch.float64) @ r.mT).softmax(1)
            total, squares = total + p.sum(0), squares + p.square().sum(0)
        average = total / draws
        found.append(average)
        errors.append(((squares / draws - average.square()) / draws).clamp_min(0).sqrt().max())
    return torch.stack(found), float(torch.stack(errors).max())


def measure(n: int, classes: int, std: float) -> dict:
    import torch

    import lapwing as lw
    from lapwing.bayes.likelihoods.spread import Spread

    mean, covariance = logits(n, classes, std, seed=classes)
    if classes <= 3:
        truth = by_quadrature(mean, covariance)
        own_error = float((truth - by_quadrature(mean, covariance, NODES // 2 + 1)).abs().max())
    else:
        truth, own_error = by_draws(mean, covariance)
    result = {"reference": "quadrature" if classes <= 3 else "draws", "reference_difference": own_error, "links": {}}
    spread = Spread(covariance.diagonal(dim1=1, dim2=2), covariance)
    tries = {link: lw.Categorical().probabilities(link, mean, spread) for link in lw.Categorical().links}
    tries["none"] = mean.softmax(1)
    if classes == 2:  # one logit, the difference of the two
        variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
        second = lw.Bernoulli().probabilities("quadrature", mean[:, 1] - mean[:, 0], Spread(variance, None))
        tries["quadrature"] = torch.stack([1 - second, second], dim=1)
    for link, found in tries.items():
        errors = (found - truth).abs().max(1).values
        result["links"][link] = {"mean_error": float(errors.mean()), "largest_error": float(errors.max())}
    return result


CELLS = {
    f"{classes} classes, std {std:g}": {"n": n, "classes": classes, "std": std}
    for classes, n in ((2, 300), (3, 300), (10, 20))
    for std in (0.5, 2.0, 6.0)
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
