"""The main job on bundled data: fit, predict with error bars, check them on held-out data, draw them.

Run by `make demo`. Diabetes: a plain regression. Digits: the lower half of each picture from its upper half, every
pixel with its own noise and prior.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split

from lapwing.linear import BayesianRidge

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LEVELS = np.array([0.5, 0.68, 0.8, 0.9, 0.95, 0.99])
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # safe for colour-blind readers


def main(folder: Path = Path("runs/demo")) -> None:
    """Fit both data sets, print the tables and write the plots."""
    started, console = time.perf_counter(), Console()
    folder.mkdir(parents=True, exist_ok=True)
    with console.status("diabetes: 442 patients, 10 features"):
        table, numbers = diabetes(folder / "diabetes.png")
    console.print(table)
    with console.status("digits: the lower half from the upper, 1,797 pictures"):
        digits_numbers = digits(folder / "digits.png")
    console.print(summary({"diabetes": numbers, "digits": digits_numbers}))
    console.print(f"Plots: {folder / 'diabetes.png'}, {folder / 'digits.png'}  ({time.perf_counter() - started:.1f} s)")
    console.print("Next: fit your own with [bold]lapwing.linear.BayesianRidge().fit(X, y)[/bold]; see README.md")


def diabetes(picture: Path) -> tuple[Table, dict[str, float]]:
    """Coefficients with error bars, and how often held-out patients fall inside the intervals."""
    data = load_diabetes()
    names, scale = data.feature_names, data.data.std(0)
    train_x, test_x, train_y, test_y = train_test_split(data.data / scale, data.target, test_size=0.3, random_state=0)
    model = BayesianRidge(compute_score=True).fit(train_x, train_y)
    error_bar = np.sqrt(np.diag(model.sigma_))
    table = Table("feature", "effect of one std", "error bar", "share of draws > 0", title="Diabetes progression")
    draws = model.sample(4000)
    for name, value, error, positive in zip(names, model.coef_, error_bar, (draws > 0).mean(0), strict=True):
        table.add_row(name, f"{value:+.1f}", f"± {error:.1f}", f"{positive:.1%}")
    mean, std = model.predict(test_x, return_std=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    draw_coefficients(left, names, model.coef_, error_bar)
    draw_coverage(right, (test_y - mean) / std)
    save(figure, picture)
    return table, numbers_of(model, test_x, test_y)


def digits(picture: Path) -> dict[str, float]:
    """The lower half of handwritten digits from the upper half, with a standard deviation for every pixel."""
    images = load_digits().images
    upper, lower = images[:, :4].reshape(len(images), -1), images[:, 4:].reshape(len(images), -1)
    inked = lower.std(0) > 1  # grey levels of 16; the margin, which is nearly always white, is left out
    train_x, test_x, train_y, test_y = train_test_split(upper, lower[:, inked], test_size=0.3, random_state=0)
    model = BayesianRidge(compute_score=True).fit(train_x, train_y)
    mean, std = model.predict(test_x, return_std=True)
    figure, axes = plt.subplots(4, 6, figsize=(9, 6.4), layout="constrained")
    for column, axis in enumerate(axes.T):
        given, blank = test_x[column], np.zeros(32)
        whole, guess = picture_of(given, test_y[column], inked), picture_of(given, mean[column], inked)
        spread = picture_of(blank, std[column], inked)
        error = np.abs(whole - guess)
        titles = ("given above, true below", "predicted below", "error", "predicted std")
        for row, (pixels, title) in enumerate(zip((whole, guess, error, spread), titles, strict=True)):
            axis[row].imshow(pixels, cmap="Greys" if row < 2 else "viridis", vmin=0, vmax=16 if row < 2 else 8)
            axis[row].axhline(3.5, color=ORANGE, linewidth=1)
            axis[row].set(xticks=[], yticks=[])
            if column == 0:
                axis[row].set_ylabel(title, fontsize=8)
    save(figure, picture)
    return numbers_of(model, test_x, test_y)


def picture_of(upper: np.ndarray, lower: np.ndarray, inked: np.ndarray) -> np.ndarray:
    """An 8 × 8 picture from its upper half and the inked pixels of the lower one."""
    whole = np.zeros(32)
    whole[inked] = lower
    return np.concatenate([upper, whole]).reshape(8, 8)


def numbers_of(model: BayesianRidge, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """What a fit found and how it does on held-out data; averages where there are several targets."""
    mean, std = model.predict(x, return_std=True)
    z = np.abs(y - mean) / std
    scores = model.scores_ if isinstance(model.scores_, list) else [model.scores_]
    return {
        "log evidence": float(np.sum([score[-1] for score in scores])),
        "noise std": float(np.mean(np.sqrt(1 / np.asarray(model.alpha_)))),
        "prior std": float(np.mean(np.sqrt(1 / np.asarray(model.lambda_)))),
        "held-out RMSE": float(np.sqrt(np.mean((y - mean) ** 2))),
        "mean predicted std": float(np.mean(std)),
        "held-out log density": float(np.mean(model.log_predictive_density(x, y))),
        "coverage of 68 % intervals": float(np.mean(z < 0.9945)),
        "coverage of 95 % intervals": float(np.mean(z < 1.96)),
    }


def summary(columns: dict[str, dict[str, float]]) -> Table:
    """One column per data set."""
    table = Table("", *columns, title="Tuned by evidence, checked on held-out data")
    for name in next(iter(columns.values())):
        form = "{:.1%}" if "coverage" in name else "{:.4g}"
        table.add_row(name, *(form.format(numbers[name]) for numbers in columns.values()))
    return table


def draw_coefficients(axis: Any, names: list[str], values: np.ndarray, errors: np.ndarray) -> None:
    """Coefficients with two-standard-deviation bars."""
    axis.errorbar(values, range(len(names)), xerr=2 * errors, fmt="o", color=BLUE, ecolor=GREY, capsize=3)
    axis.axvline(0, color=GREY, linewidth=0.8)
    axis.set(yticks=range(len(names)), yticklabels=names, xlabel="effect on progression of one standard deviation")
    axis.set_title("Coefficients, ± 2 posterior std")


def draw_coverage(axis: Any, z: np.ndarray) -> None:
    """Share of held-out targets inside central intervals, against the level promised."""
    from scipy.stats import norm

    inside = [(np.abs(z) < norm.ppf((1 + level) / 2)).mean() for level in LEVELS]
    band = 2 * np.sqrt(LEVELS * (1 - LEVELS) / len(z))
    axis.fill_between(LEVELS, LEVELS - band, LEVELS + band, color=GREY, alpha=0.2, label="what chance allows")
    axis.plot([0.45, 1], [0.45, 1], color=GREY, linewidth=0.8)
    axis.plot(LEVELS, inside, "o-", color=BLUE, label="held-out patients")
    axis.set(xlabel="promised", ylabel="found inside", title="Coverage of central intervals", xlim=(0.45, 1.01))
    axis.legend(loc="upper left")


def save(figure: Any, path: Path) -> None:
    """Write a figure and free it."""
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
