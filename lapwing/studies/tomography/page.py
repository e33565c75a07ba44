"""A study as one self-contained page: pictures, where the errors are, whether the error bars hold."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lapwing.app.report.markup import Child, Html, h, picture, table
from lapwing.app.report.page import document
from lapwing.app.report.svg import Frame, Numbers, axis, figure, legend, number
from lapwing.studies.tomography.scores import histogram_distance
from lapwing.studies.tomography.studies import Study

HEAT = np.array([[0, 0, 0], [40, 20, 90], [160, 40, 90], [240, 130, 40], [255, 245, 190]], float)
BINS = 12
GROUPS = 4  # series that can be told apart in one chart


def page(found: Study, title: str) -> str:
    """The page of a study."""
    sections = [
        ("The image", pictures(found)),
        ("Can the error bars be believed?", calibration(found)),
        ("Scores", [_scores(found)] if found.scan.truth is not None else []),
        ("How were the hyperparameters found?", [*traces(found), _hyperparameters(found)]),
        ("Settings and time", [_settings(found)]),
    ]
    shown = [h("section", h("h2", name), cards) for name, cards in sections if cards]
    return document(title, h("article", _summary(found), shown, class_="run"), made=version("lapwing"))


def write(found: Study, folder: Path | str, title: str = "tomography") -> Path:
    """Write page, scores and arrays of a study into a folder, and return the path of the page."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name.lower(): image for name, image in found.images.items()}
    arrays |= {"dip": found.posterior.mean, "std": found.posterior.std, "linear_mean": found.posterior.linear_mean}
    arrays |= {"sinogram": found.scan.sinogram, "samples": found.posterior.samples()}
    arrays |= {} if found.scan.truth is None else {"truth": found.scan.truth}
    plain: dict[str, Any] = {name: image.numpy() for name, image in arrays.items()}
    np.savez_compressed(folder / "images.npz", **plain)
    (folder / "scores.json").write_text(json.dumps(summary(found), indent=1) + "\n")
    path = folder / "report.html"
    path.write_text(page(found, title), encoding="utf-8")
    return path


def summary(found: Study) -> dict[str, Any]:
    """Scores, hyperparameters and settings as plain numbers."""
    prior = found.tuned.prior
    names = [block.name for block in prior.blocks]
    return {
        "scores": found.scores(),
        "z_std": z_std(found),
        "noise_std": {"tuned": found.tuned.noise_std, "known": found.scan.noise_std},
        "prior_variance": dict(zip(names, prior.log_variance.exp().tolist(), strict=True)),
        "prior_lengthscale": {
            block.name: float(length.exp())
            for block, length in zip(prior.blocks, prior.log_lengthscale, strict=True) if block.side > 1
        },
        "method": found.tuned.method, "notes": list(found.tuned.notes), "floor": found.floor,
        "steps": found.reconstruction.steps, "stopped_at_noise": found.reconstruction.stopped_at_noise,
        "seconds": found.seconds,
    }  # fmt: skip


def z_std(found: Study) -> float | None:
    """Root mean square of errors in multiples of their error bars: 1 where these are right."""
    if found.scan.truth is None:
        return None
    return float(found.posterior.z_scores(found.scan.truth, floor=found.floor).square().mean().sqrt())


def _summary(found: Study) -> Html:
    spread, size = z_std(found), found.scan.size
    angles = found.scan.projector.shape[0]
    words = f"{size} × {size} pixels from {angles} angles of {found.scan.projector.shape[1]} rays each."
    if found.calibration is not None:
        words = f"{words} {found.calibration.words()}"
    if spread is None:
        return h("p", words, " The truth is not known, so nothing is scored.")
    share = found.floor / (found.floor + float(found.posterior.std.square().mean()))
    holds, own = 0.7 <= spread <= 1.4, share <= 0.5
    size_of_errors = "as large as" if holds else "larger than" if spread > 1.4 else "smaller than"
    line, good = f"Errors are {size_of_errors} their error bars say", holds and own
    told = f" {share:.0%} of the variance is the floor that every test density gets" + ("." if own else ": too much.")
    head = h("p", h("span", "✓" if good else "!", class_="sign", aria_hidden="true"), line, class_="headline")
    ratio = f"The root mean square of errors over error bars is {number(spread)}; it is 1 if they hold."
    why = h("p", f"{words} {ratio}{told}")
    return h("section", head, why, class_=f"verdict {'good' if good else 'fair'}", aria_label="Verdict")


def pictures(found: Study) -> list[Html]:
    """Truth and reconstructions in grey on one scale; error and standard deviation in colour on another."""
    truth, post = found.scan.truth, found.posterior
    shown = {} if truth is None else {"Truth": truth}
    shown |= {**found.images, "Deep image prior": post.mean}
    top = float((truth if truth is not None else post.mean).max())
    cards = [
        _card(name, grey(image, top), f"Grey from 0 to {number(top)}.")
        for name, image in shown.items()
        if name != "CGLS"
    ]
    error = None if truth is None else (post.mean - truth).abs()
    high = float(max(post.std.max(), 0 if error is None else error.max())) or 1.0
    if error is not None:
        cards.append(_card("Absolute error", heat(error, high), f"Colour from 0 to {number(high)}."))
    cards.append(_card("Standard deviation", heat(post.std, high), f"On the scale of the error, 0 to {number(high)}."))
    top_std = float(post.std.max()) or 1.0
    said = f"The same from 0 to its own largest value, {number(top_std)}."
    cards.append(_card("Standard deviation, stretched", heat(post.std, top_std), said))
    if found.dropout is not None:
        cards.append(_card("Dropout: standard deviation", heat(found.dropout.std, high), "On the scale of the error."))
    samples = post.samples()[:2]
    cards += [_card(f"Posterior draw {i + 1}", grey(one, top), "Image plus a draw.") for i, one in enumerate(samples)]
    return [h("div", cards, class_="scans")]


def _card(title: str, pixels: np.ndarray, says: str) -> Html:
    return h("figure", h("h3", title), picture(pixels, f"{title}. {says}"), h("figcaption", says), class_="card")


def grey(image: Tensor, top: float) -> np.ndarray:
    """Bytes from 0 to `top`."""
    return (np.clip(image.numpy() / top, 0, 1) * 255).round().astype(np.uint8)


def heat(image: Tensor, top: float) -> np.ndarray:
    """Bytes of a map from black over red to pale yellow."""
    places = np.clip(image.numpy() / top, 0, 1) * (len(HEAT) - 1)
    channels = [np.interp(places, np.arange(len(HEAT)), HEAT[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def calibration(found: Study) -> list[Html]:
    """Errors against standard deviations, and both as histograms."""
    if found.scan.truth is None:
        return []
    std = (found.posterior.std.square() + found.floor).sqrt().reshape(-1).numpy()
    error = (found.posterior.mean - found.scan.truth).abs().reshape(-1).numpy()
    return [h("div", _against(std, error), _histograms(found, std, error), class_="cards")]


def _against(std: np.ndarray, error: np.ndarray) -> Html:
    groups = np.array_split(np.argsort(std), min(BINS, len(std)))
    x = np.array([np.sqrt((std[group] ** 2).mean()) for group in groups])
    y = np.array([np.sqrt((error[group] ** 2).mean()) for group in groups])
    both = np.concatenate([x, y])
    frame = Frame(axis("standard deviation", both, zero=True), axis("error, root mean square", both, zero=True), 330)
    tips = [f"std {number(a)}, error {number(b)}, {len(g)} pixels" for a, b, g in zip(x, y, groups, strict=True)]
    marks = [frame.diagonal("error = standard deviation"), frame.line(x, y, 0, tips)]
    rows = tuple((number(a), number(b)) for a, b in zip(x, y, strict=True))
    return figure(
        "Error against standard deviation", frame, marks,
        says=f"Pixels in {len(groups)} groups of equal size by standard deviation; on the dashed line both agree.",
        numbers=Numbers(("standard deviation", "error"), rows),
    )  # fmt: skip


def _histograms(found: Study, std: np.ndarray, error: np.ndarray) -> Html:
    high = float(max(np.quantile(error, 0.999), np.quantile(std, 0.999))) or 1.0
    edges = np.linspace(0, high, 31)
    counts = [np.histogram(np.minimum(values, high), edges)[0] for values in (error, _folded(std))]
    shares = [np.maximum(np.log10(np.maximum(count, 0.5)), -0.3) + 0.3 for count in counts]
    frame = Frame(axis("size", [0, high]), axis("log₁₀ pixels + 0.3", np.concatenate(shares), zero=True))
    names = ("|error|", "|error| as the error bars expect it")
    marks = [
        frame.steps(edges, share, series, [f"{name}: {int(c)} pixels" for c in count])
        for series, (name, share, count) in enumerate(zip(names, shares, counts, strict=True))
    ]
    gap = histogram_distance(*(found.posterior.std.new_tensor(values) for values in (std, error)))
    return figure(
        "Sizes of errors, found and expected", frame, marks, key=legend(names),
        says=f"Errors, and draws from N(0, std²) of every pixel. The largest gap of both is {number(gap)}.",
    )  # fmt: skip


def _folded(std: np.ndarray) -> np.ndarray:
    return np.abs(std * np.random.default_rng(0).normal(size=std.shape))


def _scores(found: Study) -> Html:
    names = {"psnr": "PSNR (dB)", "ssim": "SSIM", "log_density": "log-density per pixel"}
    rows = [
        [method, *(number(scores[key]) if key in scores else "–" for key in names)]
        for method, scores in found.scores().items()
    ]
    return h("div", table(["method", *names.values()], rows, caption="Scores against the truth"), class_="card")


def traces(found: Study) -> list[Html]:
    """Prior standard deviations, lengthscales and noise over the steps of the search."""
    trace, blocks = found.tuned.trace, found.tuned.prior.blocks
    if len(trace) < 2:
        return []
    steps = np.arange(len(trace))
    variance = np.array([(setting.prior.log_variance / 2 / math.log(10)).tolist() for setting in trace])
    lengths = np.array([(setting.prior.log_lengthscale / math.log(10)).tolist() for setting in trace])
    filters = [i for i, block in enumerate(blocks) if block.side > 1]
    points = [i for i, block in enumerate(blocks) if block.side == 1]
    noise = np.log10([[setting.noise_std] for setting in trace])
    charts: list[Html] = []
    for kind, members, values in (
        ("Prior std of 3 × 3 blocks", filters, variance), ("Prior std of 1 × 1 blocks", points, variance),
        ("Lengthscales", filters, lengths),
    ):  # fmt: skip
        for start in range(0, len(members), GROUPS):
            part = members[start : start + GROUPS]
            charts.append(_chart(kind, steps, values[:, part], [blocks[i].name for i in part]))
    charts.append(_chart("Noise std", steps, noise, ["noise"]))
    return [h("div", charts, class_="cards")]


def _chart(title: str, steps: np.ndarray, values: np.ndarray, names: Sequence[str]) -> Html:
    frame = Frame(axis("step", steps), axis("log₁₀", values))
    marks: list[Child] = [frame.line(steps, values[:, i], i, markers=False) for i in range(len(names))]
    ends = ", ".join(f"{name} {number(10 ** values[-1, i])}" for i, name in enumerate(names))
    return figure(title, frame, marks, key=legend(names), says=f"At the end: {ends}.")


def _hyperparameters(found: Study) -> Html:
    prior, said = found.tuned.prior, [found.tuned.method, *found.tuned.notes]
    rows = [
        [
            block.name,
            f"{block.side} × {block.side}",
            number(float(v.exp())),
            number(float(s.exp())) if block.side > 1 else "–",
        ]
        for block, v, s in zip(prior.blocks, prior.log_variance, prior.log_lengthscale, strict=True)
    ]
    header = ["block", "filters", "prior variance", "lengthscale"]
    listed = h("ul", [h("li", line[:1].upper() + line[1:] + ".") for line in said])
    return h("div", listed, table(header, rows, caption="Hyperparameters"), class_="card")


def _settings(found: Study) -> Html:
    made = found.reconstruction
    ended = "stopped at the noise level" if made.stopped_at_noise else "all of them made"
    known = "not known" if found.scan.noise_std is None else number(found.scan.noise_std)
    rows = [
        ["Network", f"U-Net of {made.settings.channels} channels, skips {made.settings.skips}"],
        ["Fit", f"{made.steps} steps ({ended}), TV weight {number(made.settings.tv_weight)}"],
        ["Noise std", f"{known}; tuned {number(found.tuned.noise_std)}; misfit {number(made.misfit)}"],
        ["Posterior", f"{found.posterior.posterior.diagnostics.method}"],
        ["Variance floor of densities", number(found.floor)],
        *([f"Seconds: {name}", f"{value:.1f}"] for name, value in found.seconds.items()),
    ]
    return h("div", table(["what", "value"], rows, caption="Settings and time"), class_="card")
