"""Runs made up for the tests of the page: a classification with everything, a regression, a failure, hostile strings."""

import numpy as np
from scipy.special import softmax
from scipy.stats import entropy, t

from lapwing.app import records

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'&"


def classifier(n: int = 600, seed: int = 0, name: str = "Digits") -> records.Record:
    """A classifier whose logits are three times too large, and what others make of them; class numbers can be learnt."""
    rng = np.random.default_rng(seed)
    images, everything = pictures(n, rng), {}
    for place, (title, blur) in enumerate({"test": 1.0, "rotated 30°": 2.0, "rotated 60°": 3.5}.items()):
        targets = rng.integers(5, size=n)
        logits = 2.6 * np.eye(5)[targets] / blur + rng.normal(size=(n, 5))
        methods = {
            "lapwing": softmax(2.4 * logits / blur, 1),
            "MAP": softmax(6 * logits, 1),
            "temperature scaling": softmax(2.6 * logits, 1),
        }
        novelty = {"lapwing": {"novelty": rng.beta(2, 6 - 1.2 * place, size=n)}}
        everything[title] = records.classification(
            title, targets, methods, scores=novelty, images=images if place == 0 else None
        )
    noise = 0.8 * rng.normal(size=(n // 2, 5))
    strange = {
        "lapwing": softmax(noise, 1),
        "MAP": softmax(5 * noise, 1),
        "temperature scaling": softmax(2.6 * noise, 1),
    }
    everything["letters"] = records.classification(
        "letters", None, strange, scores={"lapwing": {"novelty": rng.beta(6, 2, size=n // 2)}}
    )
    precision = np.logspace(-3, 4, 61)
    curve = records.Curve(
        precision, 16.0, -300 - 9 * np.log10(precision / 0.6) ** 2, -0.3 - 0.02 * np.log10(precision / 16) ** 2
    )
    density = -rng.exponential(0.4, size=400)
    return records.Record(
        name, "classification", tuple(everything.values()), curve=curve, seed=seed, command="lapwing fit …",
        data=records.Data("digits.npz", "6f1e0a9b3c5d7e21", {"train": 400, "validation": 200, "test": n}, "1 × 8 × 8 numbers", "digit", classes=("zero", "one", "two", "three", "four")),
        network=records.Network("Small", 5_418, 5_418, "9a0b1c2d3e4f5061"),
        choices=(records.Choice("likelihood", "Categorical", "targets are whole numbers from 0 to 4"), records.Choice("prior", "g-prior", "the default"), records.Choice("precision", "16", "best density of 200 held-out points")),
        solve=records.Solve(
            "exact, dual", "5,418 weights, 2,000 observed outputs", "held-out density", True, "", 3, None, 32, np.geomspace(1e-12, 1e-10, 33), {"all": 16.0}, (), 2.3,
            records.Measured(-312.4, 0.0), {"fit": -101.2, "size of the weights": -33.0, "log determinant": -178.2}, records.Measured(187.3, 0.0),
        ),
        layers=(records.Layer("conv1", 80, 0.12), records.Layer("conv2", 1168, 0.31), records.Layer("head", 4170, 0.62), records.Layer("bias", 5, -0.05)),
        influence=records.Influence(rng.beta(1, 6, size=400), density, rng.integers(5, size=400), rng.integers(5, size=400)),
        suspects=records.Suspects(np.array([217, 3, 90]), np.array([0, 3, 1]), np.array([4, 1, 2]), np.array([0.0012, 0.034, 0.21]), 400, records.Measured(11.7, 3.6)),
        seconds={"read": 0.2, "linearise": 1.3, "solve": 4.1, "tune": 0.4, "evaluate": 1.9}, peak_bytes=812 * 2**20,
    )  # fmt: skip


def pictures(n: int, rng: np.random.Generator) -> np.ndarray:
    """Blobs in random places, (n, 8, 8)."""
    grid, centre = np.arange(8), rng.uniform(1, 6, size=(n, 2, 1))
    across, down = (np.exp(-((grid - centre[:, axis]) ** 2) / 3) for axis in (0, 1))
    return across[:, None, :] * down[:, :, None]


def wave(n: int = 400, seed: int = 0, width: float = 1.15) -> records.Record:
    """A regression over one input with a gap in its data; error bars are `width` times what they should be."""
    rng = np.random.default_rng(seed)
    x = np.sort(np.concatenate([rng.uniform(-3, -0.5, n // 2), rng.uniform(1.0, 3.0, n - n // 2)]))
    epistemic, noise = 0.05 + 0.25 * np.exp(-((x - 0.25) ** 2) / 0.4), 0.2
    std = np.hypot(epistemic, noise)
    y = np.sin(2 * x) + std * rng.normal(size=n)
    test = records.regression(
        "test",
        y,
        {"lapwing": (np.sin(2 * x), width * std), "MAP": (np.sin(2 * x), np.full(n, noise))},
        epistemic_std={"lapwing": width * epistemic},
        inputs=x,
    )
    precision = np.logspace(-4, 2, 50)
    return records.Record(
        "Wave", "regression", (test,), curve=records.Curve(precision, 0.02, -150 - 6 * np.log(precision / 0.02) ** 2),
        data=records.Data("wave.csv", "00ff", {"train": 200, "test": n}, "1 number", "height", "m"), solve=records.Solve("shared Krylov space, dual", "both sides are large", "evidence", False, "steps", 12, 0.03, 32),
        seconds={"fit": 2.0},
    )  # fmt: skip


def failed() -> records.Record:
    """A run that broke down."""
    return records.Record(
        "Broken", "regression", status="failed", error="the network's outputs are NaN or infinite for some inputs"
    )


def hostile() -> records.Record:
    """Every string that comes from a user's files tries to run."""
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(3), size=40)
    sets = [
        records.classification(
            HOSTILE + str(i),
            rng.integers(3, size=40) if i < 2 else None,
            {"lapwing": probs, HOSTILE: probs},
            scores={"lapwing": {HOSTILE: rng.random(40)}},
            images=rng.random((40, 4, 4)),
            members={HOSTILE: probs, "other": probs},
        )
        for i in range(3)
    ]
    return records.Record(
        HOSTILE, "classification", tuple(sets), command=HOSTILE, device=HOSTILE, created=HOSTILE, versions={HOSTILE: HOSTILE, "lapwing": HOSTILE},
        data=records.Data(HOSTILE, HOSTILE, {HOSTILE: 3}, HOSTILE, HOSTILE, HOSTILE, (HOSTILE,) * 3), network=records.Network(HOSTILE, 3, 3, HOSTILE), choices=(records.Choice(HOSTILE, HOSTILE, HOSTILE),),
        solve=records.Solve(HOSTILE, HOSTILE, HOSTILE, False, HOSTILE, precision={HOSTILE: 1.0}, evidence_parts={HOSTILE: 1.0}), layers=(records.Layer(HOSTILE, 1, 1.0),), relevance={HOSTILE: 1.0},
        influence=records.Influence(rng.random(9), rng.random(9), rng.integers(3, size=9), rng.integers(3, size=9)), seconds={HOSTILE: 1.0},
    )  # fmt: skip


def houses(n: int = 300, seed: int = 0, name: str = "area") -> records.Record:
    """A table whose networks were trained here: errors with longer tails than a Gaussian's, and five columns."""
    rng = np.random.default_rng(seed)
    area, tails = rng.uniform(30, 200, size=n), t(5)
    area[::40] = np.nan
    mean = 3 * np.nan_to_num(area, nan=115.0) + 40 * rng.normal(size=n)
    std = 20 + 0.1 * np.nan_to_num(area, nan=115.0)
    scale = std / tails.std()
    targets = mean + scale * tails.rvs(n, random_state=rng)
    test = records.regression(
        "test", targets, {"lapwing": (mean, std)}, epistemic_std={"lapwing": 0.4 * std},
        densities={"lapwing": (tails.cdf((targets - mean) / scale), tails.logpdf((targets - mean) / scale) - np.log(scale))},
        intervals={"lapwing": (mean + tails.ppf(0.05) * scale, mean + tails.ppf(0.95) * scale)}, inputs=area, input_name=name,
    )  # fmt: skip
    return records.Record(
        "Houses", "regression", (test,), data=records.Data("houses.csv", "0a1b", {"train": 900, "test": n}, "5 columns", "price" if name == "area" else name, "1,000 €"),
        network=records.Network("BayesianMLPRegressor, 5 networks", 1505, 1505), relevance={"rooms": 0.2, name: 0.55, "a column with quite a long name": 0.2, "colour": 0.0499, "noise": 1e-4},
        solve=records.Solve("linearised networks, exact", "small networks on all rows", "tuned by marginal likelihood", noise_std=(18.0,), log_evidence=records.Measured(-1034.5, 2.1)),
        influence=records.Influence(rng.beta(1, 9, size=900), -rng.exponential(1.0, size=900), rng.normal(300, 80, size=900), rng.normal(300, 80, size=900)),
        choices=(records.Choice("column 'area'", "numbers, 22 missing ones filled with their mean and marked", "relevance 55%"),),
    )  # fmt: skip


def committee(n: int = 500, seed: int = 0) -> records.Record:
    """Three classifiers as one mixture, two of them good, and letters that they disagree about."""
    rng = np.random.default_rng(seed)
    sets = []
    for name, signal in (("test", 2.4), ("letters", 0.0)):
        targets = rng.integers(4, size=n)
        each = [softmax(signal * np.eye(4)[targets] * size + rng.normal(size=(n, 4)), 1) for size in (1.0, 0.9, 0.2)]
        joint = np.mean(each, 0)
        between = entropy(joint, axis=1) - np.mean([entropy(one, axis=1) for one in each], 0)
        within = rng.gamma(2, 0.02, size=n)
        sets.append(records.classification(
            name, targets if signal else None, {"lapwing": joint, "networks averaged": joint**1.2 / (joint**1.2).sum(1, keepdims=True)},
            scores={"lapwing": {"novelty": rng.beta(2, 5, size=n), "between networks": between, "mutual information": within + between}},
            members={f"network {place}": one for place, one in enumerate(each, 1)},
        ))  # fmt: skip
    return records.Record(
        "Committee", "classification", tuple(sets), data=records.Data("pictures", "77aa", {"train": 900, "validation": 200, "test": n}, "1 × 8 × 8 numbers", "kind", classes=("boot", "coat", "dress", "shirt")),
        network=records.Network("Small", 5_000, 5_000), layers=(records.Layer("0 (Conv2d)", 80, 0.2), records.Layer("3 (Linear)", 4920, 0.8)),
    )  # fmt: skip
