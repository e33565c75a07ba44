"""The verdict in words: are the error bars right, and if not, why?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from lapwing.app.records import Evaluation, Measured, Predictions, Record
from lapwing.app.report import scores
from lapwing.app.report.svg import number

Level = Literal["good", "fair", "poor", "none"]
EQUAL = 5e-5  # differences of NLL that nobody would notice
SMALL, LARGE = 0.02, 0.05  # gaps between confidence and accuracy, in shares
SLIGHT, SERIOUS = 0.05, 0.15  # relative errors of the width of error bars

ALONE = {"MAP": "The network alone", "networks averaged": "The mean of the networks"}  # without any posterior


@final
@dataclass(frozen=True)
class Verdict:
    """A headline, how bad it is, and the reasons."""

    level: Level
    headline: str
    reasons: tuple[str, ...]


def verdict(record: Record) -> Verdict:
    """What the first evaluation with targets says about the error bars.

    >>> from lapwing.app import records
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.normal(size=900)
    >>> wide = records.regression("test", truth, {"lapwing": (0 * truth, np.full(900, 1.5))})
    >>> verdict(Record("wide", "regression", (wide,))).headline
    'Error bars are 5... % too wide'
    """
    if record.status == "failed":
        return Verdict("poor", "This run failed", (record.error or "No reason was recorded.",))
    known = [one for one in record.evaluations if one.targets is not None and len(one.targets)]
    if not known:
        text = "Nothing was checked: no test data with targets were given"
        return Verdict("none", text, ("Run `lapwing evaluate RUN DATA` on data that were not used for the fit.",))
    found = _classification(record, known[0]) if record.task == "classification" else _regression(record, known[0])
    says, *others = found.reasons
    elsewhere = _elsewhere(known[1:])
    level, headline = found.level, found.headline
    if elsewhere and level == "good":
        level, headline = "fair", f"{headline}, but not on {' and '.join(elsewhere)}"
    reasons = (says, *elsewhere.values(), *others, *_seen_before(known[0]), *_of_fit(record))
    return Verdict(level, headline, reasons)


def _elsewhere(sets: list[Evaluation]) -> dict[str, str]:
    """A sentence for every other set on which confidence or error bars are far off, by its name."""
    found = {one.name: _far_off(one) for one in sets}
    return {name: says for name, says in found.items() if says}


def _far_off(evaluation: Evaluation) -> str:
    ours, targets = scores.main(evaluation), evaluation.targets
    assert targets is not None
    if ours.probs is not None:
        off = gap(ours.probs, targets)
        if abs(off.value) <= max(2 * off.standard_error, LARGE):
            return ""
        sure = float(ours.probs.max(1).mean())
        return f"On {evaluation.name} it says {_share(sure)} and is right {_share(sure - off.value)} of the time."
    mean, std = scores.spread(ours)
    width = scores.width_of((targets - mean) / std)
    if abs(width.value - 1) <= max(2 * width.standard_error, SERIOUS):
        return ""
    size = f"{number(width.value)} ± {number(width.standard_error)}"
    return f"On {evaluation.name} errors are {size} times as large as predicted."


def _kind(evaluation: Evaluation) -> str:
    return "validation" if evaluation.name.startswith("validation data") else "test"


def _seen_before(evaluation: Evaluation) -> list[str]:
    """That data which tuned the precision flatter it."""
    if _kind(evaluation) == "test":
        return []
    return ["These data tuned the precision too, which flatters it: pass --test for a check on others."]


def _points(share: float) -> str:
    return f"{100 * abs(share):.1f} points"


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def gap(probs: np.ndarray, targets: np.ndarray) -> Measured:
    """Mean confidence minus accuracy, with the standard error that a calibrated classifier would have."""
    confidence = probs.max(1).astype(float)
    error = math.sqrt(float((confidence * (1 - confidence)).sum())) / len(probs)
    return Measured(float(confidence.mean() - (probs.argmax(1) == targets).mean()), error)


def _classification(record: Record, evaluation: Evaluation) -> Verdict:
    ours, targets = scores.main(evaluation), evaluation.targets
    if ours.probs is None or targets is None:
        raise ValueError(f"{record.name}: a classification without class probabilities")
    off, found = gap(ours.probs, targets), ours.metrics or scores.of_method(ours, targets)
    limit = scores.chance(ours.probs.max(1).astype(float))
    says = f"It says {_share(found['confidence'].value)} on average and is right {_share(found['accuracy'].value)}"
    says += f" of the time, on {len(targets):,} {_kind(evaluation)} points."
    level: Level
    if abs(off.value) > 2 * off.standard_error and abs(off.value) > 0.005:
        level = "poor" if abs(off.value) > LARGE else "fair"
        how = "Overconfident" if off.value > 0 else "Too cautious"
        headline = f"{how} by {_points(off.value)} (± {100 * off.standard_error:.1f})"
    elif found["ECE"].value > limit:
        level = "fair" if found["ECE"].value < limit + SMALL else "poor"
        headline = f"Right on average, but not at every confidence: calibration error {found['ECE'].value:.3f}"
    else:
        level, headline = "good", "Calibrated: its confidence can be taken at its word"
    noise = f"Its calibration error is {found['ECE'].value:.3f}; a perfectly calibrated classifier stays below "
    noise += f"{limit:.3f} in 19 of 20 test sets of this size."
    return Verdict(
        level,
        headline,
        (says, noise, *_before(evaluation, ours, off), *_held_out(evaluation, ours, off), *_compared(evaluation, ours)),
    )


def _before(evaluation: Evaluation, ours: Predictions, off: Measured) -> list[str]:
    """What the network alone was like, where that explains the result."""
    plain = next((one for one in evaluation.predictions if one.method in ALONE and one is not ours), None)
    if plain is None or plain.probs is None or evaluation.targets is None:
        return []
    before = gap(plain.probs, evaluation.targets)
    if before.value < -2 * before.standard_error:
        says = f"{ALONE[plain.method]} is too cautious already, by {_points(before.value)}: "
        return [f"{says}error bars can only lower its confidence, a temperature below one would raise it."]
    if before.value > 2 * before.standard_error and abs(off.value) < before.value:
        return [
            f"{ALONE[plain.method]} is overconfident by {_points(before.value)}; error bars leave {_points(off.value)}."
        ]
    return []


def _held_out(evaluation: Evaluation, ours: Predictions, off: Measured) -> list[str]:
    """Whether the held-out data are to blame: temperature scaling, which only they tuned, is then off the same way."""
    other = next((one for one in evaluation.predictions if one.method == "temperature scaling"), None)
    if other is None or other is ours or other.probs is None or evaluation.targets is None:
        return []
    also = gap(other.probs, evaluation.targets)
    if min(abs(off.value), abs(also.value)) <= 2 * off.standard_error or off.value * also.value < 0:
        return []
    words = ("overconfident", "easier") if off.value > 0 else ("too cautious", "harder")
    says = f"Temperature scaling, tuned on the same held-out data, is {words[0]} too, by {_points(also.value)}: "
    return [f"{says}those data were {words[1]} than the test data, or too few."]


def told(method: str) -> str:
    """A method's name in a sentence, for people who know nothing of it.

    >>> told("MAP"), told("temperature scaling")
    ('the network alone (MAP)', 'temperature scaling')
    """
    return f"the network alone ({method})" if method == "MAP" else method


def _compared(evaluation: Evaluation, ours: Predictions) -> list[str]:
    """One sentence for each other method: paired difference of NLL."""
    found = []
    for other in evaluation.predictions:
        if other is ours or evaluation.targets is None:
            continue
        apart = scores.difference(ours, other, evaluation.targets)
        if apart is None:
            found.append(f"Against {told(other.method)}: one of the two gave some test point no chance at all.")
        elif abs(apart.mean) < EQUAL:
            found.append(f"Against {told(other.method)}: the same NLL.")
        elif not abs(apart.z) >= 2:
            size = f"{apart.mean:+.4f} ± {apart.standard_error:.4f}".replace("-", "−")
            found.append(f"Against {told(other.method)}: no difference beyond chance (NLL {size}).")
        else:
            better, size = (
                "better" if apart.mean < 0 else "worse",
                f"{abs(apart.mean):.4f} ± {apart.standard_error:.4f}",
            )
            found.append(f"Against {told(other.method)}: {better} by {size} in NLL, paired over the test points.")
    return found


def _regression(record: Record, evaluation: Evaluation) -> Verdict:
    ours, targets = scores.main(evaluation), evaluation.targets
    if targets is None:
        raise ValueError(f"{record.name}: no targets")
    mean, std = scores.spread(ours)
    z = (targets - mean) / std
    width, inside = scores.width_of(z), float((np.abs(z) < 1.6448536).mean())
    ratio = max(width.value, 1e-9)
    off, error = abs(1 / ratio - 1) if ratio < 1 else 1 - 1 / ratio, width.standard_error / ratio**2
    level: Level
    if abs(width.value - 1) <= 2 * width.standard_error or off < 0.01:
        level, headline = "good", f"Error bars have the right width, within {200 * error:.0f} %"
    else:
        level = "good" if off < SLIGHT else "fair" if off < SERIOUS else "poor"
        size = f"{100 * off:.0f} %" if off < 10 else "more than ten times"
        headline = f"Error bars are {size} too {'wide' if width.value < 1 else 'narrow'}"
    says = f"{_share(inside)} of {z.size:,} {_kind(evaluation)} targets are inside their 90 % interval; errors are "
    says += f"{number(width.value)} ± {number(width.standard_error)} times as large as predicted."
    worse = _worse_than_constant(mean, targets)
    if worse:
        level, headline = "poor", f"{headline}, but the network predicts worse than a constant"
    return Verdict(level, headline, (says, *worse, *_why(ours, z, std), *_compared(evaluation, ours)))


def _worse_than_constant(mean: np.ndarray, targets: np.ndarray) -> list[str]:
    """Whether the targets' own mean, known only afterwards, would have predicted them much better than the network."""
    error, spread = (float(np.sqrt(np.square(off).mean())) for off in (targets - mean, targets - targets.mean(0)))
    if len(targets) < 20 or error <= 1.2 * spread:
        return []
    says = f"The network's errors are {number(error)} (RMSE), those of the mean of these targets {number(spread)}. "
    return [f"{says}Is it trained, were its weights loaded, are inputs scaled as in training?"]


def _why(ours: Predictions, z: np.ndarray, std: np.ndarray) -> list[str]:
    """What the standardised errors give away."""
    found, flat = [], z.reshape(-1)
    bias, error = float(flat.mean()), float(flat.std()) / math.sqrt(len(flat))
    if abs(bias) > max(3 * error, 0.1):
        side = "below" if bias > 0 else "above"
        found.append(f"Predictions are {side} the targets by {abs(bias):.2f} standard deviations on average.")
    far = int((np.abs(flat) > 4).sum())
    if far > 1 + 3 * 6.3e-5 * len(flat):
        found.append(f"{far} targets are more than four standard deviations away: tails heavier than a Gaussian's.")
    found += _where(z, std)
    if ours.epistemic_std is not None:
        part = _share(float((ours.epistemic_std**2).mean() / (std**2).mean()))
        found.append(
            f"{part} of the variance comes from the weights and would shrink with more data; the rest is noise."
        )
    return found


def _where(z: np.ndarray, std: np.ndarray) -> list[str]:
    """Whether errors outgrow their bars more where these are small or where they are large."""
    order, third = np.argsort(std.mean(1), kind="stable"), len(std) // 3
    if third < 20:
        return []
    low, high = (scores.width_of(z[part]) for part in (order[:third], order[-third:]))
    if abs(low.value - high.value) <= 3 * math.hypot(low.standard_error, high.standard_error):
        return []
    says = f"Errors are {low.value:.2f} times as large as predicted in the third with the smallest error bars, "
    return [
        f"{says}{high.value:.2f} times in the third with the largest: bars do not tell well where errors are large."
    ]


def _of_fit(record: Record) -> list[str]:
    """What the fit itself gives away."""
    found, solve, curve = [], record.solve, record.curve
    if not solve.converged:
        limit = f" ({solve.limited_by})" if solve.limited_by else ""
        found.append(f"The solve did not converge{limit}: draws of a truncated solve are too wide.")
    if curve is not None:
        found += _of_curve(record)
    if record.data.sizes and not record.data.sizes.get("validation") and record.task == "classification":
        found.append(
            "The precision was not tuned on held-out data: pass --validation for error bars that were checked."
        )
    return found


def _of_curve(record: Record) -> list[str]:
    curve = record.curve
    if curve is None:
        return []
    found, low, high = [], float(curve.precision.min()), float(curve.precision.max())
    if not low * 1.01 < curve.chosen < high / 1.01:
        found.append(f"The chosen precision {number(curve.chosen)} is at the end of the range that was searched.")
    parts = [part for part in (curve.held_out, curve.log_evidence) if part is not None and np.isfinite(part).any()]
    if len(parts) == 2:
        tops = (int(np.argmax(np.where(np.isfinite(part), part, -np.inf))) for part in parts)
        best, evidence = (float(curve.precision[top]) for top in tops)
        if max(best / evidence, evidence / best) > 3:
            found.append(
                f"Held-out density is best at precision {number(best)}, evidence at {number(evidence)}: the training "
                f"data alone would have made error bars {'wider' if evidence < best else 'narrower'}."
            )
    return found
