"""The verdict in words: are the predictions calibrated, and if not, why?"""

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
SLIGHT, SERIOUS = 0.05, 0.15  # relative errors of the width of intervals

RAW, SCALED = "raw network", "temperature scaling"
ALONE = {RAW: "The raw network", "networks averaged": "The mean of the networks"}  # without any posterior
SEEN = {
    "test": "",
    "validation": "These data tuned the precision too, which flatters it: pass --test for a check on others.",
    "training": "Each training row was predicted from the others, but all of them tuned the precisions, which flatters "
    "the result a little: pass --test or --hold-out for a check on rows that were not used.",
}
UNSURE = 0.15  # relative error of a width beyond which a test set cannot tell


@final
@dataclass(frozen=True)
class Verdict:
    """A headline, how bad it is, the reasons, and what to do."""

    level: Level
    headline: str
    reasons: tuple[str, ...]
    advice: str = ""


def verdict(record: Record) -> Verdict:
    """What the first evaluation with targets says about the predictions.

    >>> from lapwing.app import records
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.normal(size=900)
    >>> wide = records.regression("test", truth, {"lapwing": (0 * truth, np.full(900, 1.5))})
    >>> verdict(Record("wide", "regression", (wide,))).headline
    'Intervals are 5... % too wide'
    """
    record = scores.renamed(record)
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
        level, headline = "fair", ". ".join((headline, *elsewhere))
    reasons = (says, *(f"{one}." for one in elsewhere), *others, *_seen_before(known[0]), *_of_fit(record))
    return Verdict(level, headline, reasons, found.advice)


def _elsewhere(sets: list[Evaluation]) -> list[str]:
    """What is said of every other set on which confidence or intervals are far off."""
    return [says for says in map(_far_off, sets) if says]


def _far_off(evaluation: Evaluation) -> str:
    ours, targets = scores.main(evaluation), evaluation.targets
    assert targets is not None
    if ours.probs is not None:
        off = gap(ours.probs, targets)
        if abs(off.value) <= max(2 * off.standard_error, LARGE):
            return ""
        sure = float(ours.probs.max(1).mean())
        how = "Overconfident" if off.value > 0 else "Underconfident"
        return f"{how} on {evaluation.name}: {_share(sure)} confident, {_share(sure - off.value)} correct"
    width = scores.width_of(scores.normal_scores(ours, targets))
    if abs(width.value - 1) <= max(2 * width.standard_error, SERIOUS):
        return ""
    return f"On {evaluation.name} errors are {_times(width)} times as large as predicted"


def _times(width: Measured) -> str:
    return f"{width.value:,.2f} ± {width.standard_error:,.2f}"


def _seen_before(evaluation: Evaluation) -> list[str]:
    """That data which tuned the precision flatter it."""
    says = SEEN[scores.kind(evaluation)]
    return [says] if says else []


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
    says = f"{_share(found['confidence'].value)} confident on average, {_share(found['accuracy'].value)} correct, "
    says += f"on {len(targets):,} {scores.kind(evaluation)} points."
    level: Level
    if abs(off.value) > 2 * off.standard_error and abs(off.value) > 0.005:
        level = "poor" if abs(off.value) > LARGE else "fair"
        how = "Overconfident" if off.value > 0 else "Underconfident"
        headline = f"{how} by {_points(off.value)} (± {100 * off.standard_error:.1f})"
    elif found["ECE"].value > limit:
        level = "fair" if found["ECE"].value < limit + SMALL else "poor"
        headline = f"Right on average, but not at every confidence: calibration error {found['ECE'].value:.3f}"
    else:
        level, headline = "good", f"Calibrated on {evaluation.name}"
    noise = f"Its calibration error is {found['ECE'].value:.3f}; a perfectly calibrated classifier stays below "
    noise += f"{limit:.3f} in 19 of 20 test sets of this size."
    return Verdict(
        level,
        headline,
        (says, noise, *_before(evaluation, ours, off), *_held_out(evaluation, ours, off), *_compared(evaluation, ours)),
        _recommended(record, evaluation, ours),
    )


def _recommended(record: Record, evaluation: Evaluation, ours: Predictions) -> str:
    """What to use: the simplest method that no other beats beyond chance."""
    assert evaluation.targets is not None
    rivals = {one.method: scores.difference(one, ours, evaluation.targets) for one in evaluation.predictions}
    nll = {one.method: float(scores.losses(one, evaluation.targets).mean()) for one in evaluation.predictions}
    for method in (*ALONE, SCALED):
        apart = rivals.get(method)
        if apart is None or apart.z >= 2:
            continue
        heat = f" (T = {record.solve.temperature:.2f})" if method == SCALED and record.solve.temperature else ""
        name = ALONE.get(method, "Temperature scaling")
        how = "better" if apart.z <= -2 else "as good"
        than = "than lapwing " if how == "better" else ""
        return (
            f"{name}{heat} is {how} {than}here (NLL {nll[method]:.3f} against {nll[ours.method]:.3f}) and almost "
            "free. If calibrated probabilities are all you need, use it."
        )
    beaten = [
        f"{in_words(name)} ({nll[name]:.3f})" for name, apart in rivals.items() if apart is not None and apart.z >= 2
    ]
    if not beaten:
        return ""
    return f"Use {ours.method}'s probabilities: NLL {nll[ours.method]:.3f}, better than {' and '.join(beaten)}."


def _before(evaluation: Evaluation, ours: Predictions, off: Measured) -> list[str]:
    """What the raw network was like, where that explains the result."""
    plain = next((one for one in evaluation.predictions if one.method in ALONE and one is not ours), None)
    if plain is None or plain.probs is None or evaluation.targets is None:
        return []
    before = gap(plain.probs, evaluation.targets)
    if before.value < -2 * before.standard_error and abs(off.value) < abs(before.value) - EQUAL:
        says = f"{ALONE[plain.method]} is underconfident by {_points(before.value)}; "
        return [f"{says}{ours.method} brings this to {_points(off.value)}."]
    if before.value < -2 * before.standard_error:
        says = f"{ALONE[plain.method]} is underconfident already, by {_points(before.value)}: "
        return [f"{says}a temperature below 1 would raise its confidence."]
    if before.value > 2 * before.standard_error and abs(off.value) < before.value:
        says = f"{ALONE[plain.method]} is overconfident by {_points(before.value)}; "
        return [f"{says}{ours.method} brings this to {_points(off.value)}."]
    return []


def _held_out(evaluation: Evaluation, ours: Predictions, off: Measured) -> list[str]:
    """Whether the held-out data are to blame: temperature scaling, which only they tuned, is then off the same way."""
    other = next((one for one in evaluation.predictions if one.method == "temperature scaling"), None)
    if other is None or other is ours or other.probs is None or evaluation.targets is None:
        return []
    also = gap(other.probs, evaluation.targets)
    if min(abs(off.value), abs(also.value)) <= 2 * off.standard_error or off.value * also.value < 0:
        return []
    words = ("overconfident", "easier") if off.value > 0 else ("underconfident", "harder")
    says = f"Temperature scaling, tuned on the same validation data, is {words[0]} too, by {_points(also.value)}: "
    return [f"{says}those data were {words[1]} than the test data, or too few."]


def in_words(method: str) -> str:
    """A method's name in a sentence.

    >>> in_words("raw network"), in_words("temperature scaling")
    ('the raw network', 'temperature scaling')
    """
    return f"the {method}" if method == RAW else method


def _compared(evaluation: Evaluation, ours: Predictions) -> list[str]:
    """One sentence for each other method: paired difference of NLL."""
    found = []
    for other in evaluation.predictions:
        if other is ours or evaluation.targets is None:
            continue
        apart = scores.difference(other, ours, evaluation.targets)
        name = f"{in_words(other.method)[:1].upper()}{in_words(other.method)[1:]}"
        if apart is None:
            found.append(f"{name}: one of the two gave some test point no chance at all.")
        elif abs(apart.mean) < EQUAL:
            found.append(f"{name}: the same NLL.")
        else:
            size = f"{apart.mean:+.4f} ± {apart.standard_error:.4f}".replace("-", "−")
            chance = "no difference beyond chance" if not abs(apart.z) >= 2 else "worse" if apart.mean > 0 else "better"
            found.append(f"{name}: {chance} (NLL {size} compared with {ours.method}'s, paired over the test points).")
    return found


def _regression(record: Record, evaluation: Evaluation) -> Verdict:
    ours, targets = scores.main(evaluation), evaluation.targets
    if targets is None:
        raise ValueError(f"{record.name}: no targets")
    mean, std = scores.spread(ours)
    z = scores.normal_scores(ours, targets)
    width, inside = scores.width_of(z), float(scores.inside(ours, targets, 0.9).mean())
    ratio = max(width.value, 1e-9)
    off, error = abs(1 / ratio - 1) if ratio < 1 else 1 - 1 / ratio, width.standard_error / ratio**2
    level: Level
    count, expected = f"{inside * z.size:.0f} of {z.size:,} targets", f"{0.9 * z.size:.0f}"
    kind = scores.kind(evaluation)
    if abs(width.value - 1) <= 2 * width.standard_error and 2 * error > UNSURE:
        level = "none"
        headline = f"Too few {kind} points to tell: {count} fall inside their 90 % interval ({expected} expected)"
    elif abs(width.value - 1) <= 2 * width.standard_error or off < 0.01:
        level, headline = "good", f"Intervals have the right width, within {200 * error:.0f} %"
    else:
        level = "good" if off < SLIGHT else "fair" if off < SERIOUS else "poor"
        size = f"{100 * off:.0f} %" if off < 10 else "more than ten times"
        headline = f"Intervals are {size} too {'wide' if width.value < 1 else 'narrow'}"
    says = f"{_share(inside)} of {z.size:,} {kind} targets are inside their 90 % interval; errors are "
    says += f"{_times(width)} times as large as predicted."
    worse = _worse_than_constant(mean, targets)
    if worse:
        level, headline = "poor", f"{headline}, but predictions are worse than a constant"
        advice = "Find out why before you use any of it."
    else:
        advice = _advice(level, 1 / ratio if ratio < 1 else ratio, width.value < 1, 200 * error)
    return Verdict(level, headline, (says, *worse, *_why(ours, z, std), *_compared(evaluation, ours)), advice)


def _advice(level: Level, factor: float, wide: bool, error: float) -> str:
    """What to do about the width of intervals."""
    if level == "none":
        return f"Widths could be off by {error:.0f} %: test on more data before you rely on the intervals."
    if level == "good":
        return "Use the intervals as they are."
    return f"{'Divide' if wide else 'Multiply'} the widths by {factor:.2f} on data like these."


def _worse_than_constant(mean: np.ndarray, targets: np.ndarray) -> list[str]:
    """Whether the targets' own mean, known only afterwards, would have predicted them much better than the network."""
    error, spread = (float(np.sqrt(np.square(off).mean())) for off in (targets - mean, targets - targets.mean(0)))
    if len(targets) < 20 or error <= 1.2 * spread:
        return []
    says = f"Errors are {number(error)} (RMSE), those of the mean of these targets {number(spread)}. "
    return [f"{says}Is the network trained, were its weights loaded, are inputs scaled as in training?"]


def _why(ours: Predictions, z: np.ndarray, std: np.ndarray) -> list[str]:
    """What the standardised errors give away."""
    found, flat = [], z.reshape(-1)
    bias, error = float(flat.mean()), float(flat.std()) / math.sqrt(len(flat))
    if abs(bias) > max(3 * error, 0.1):
        side = "below" if bias > 0 else "above"
        found.append(f"Predictions are {side} the targets by {abs(bias):.2f} standard deviations on average.")
    far = int((np.abs(flat) > 4).sum())
    if far > 1 + 3 * 6.3e-5 * len(flat):
        found.append(f"{far} targets lie where only one in 16,000 should: tails heavier than predicted.")
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
    says = f"Errors are {low.value:.2f} times as large as predicted in the third with the narrowest intervals, "
    return [
        f"{says}{high.value:.2f} times in the third with the widest: widths do not tell well where errors are large."
    ]


def _of_fit(record: Record) -> list[str]:
    """What the fit itself gives away."""
    found, solve, curve = [], record.solve, record.curve
    if not solve.converged:
        limit = f" ({solve.limited_by})" if solve.limited_by else ""
        found.append(
            f"Networks could be trained further{limit}: their marginal likelihood still rose (max_iter= in Python)."
            if record.relevance
            else f"The fit did not converge{limit}: its uncertainty may be too large."
        )
    if curve is not None:
        found += _of_curve(record)
    brought = not record.relevance
    if brought and record.data.sizes and not record.data.sizes.get("validation") and record.task == "classification":
        found.append("Nothing was tuned on validation data: pass --validation to compare with temperature scaling.")
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
                f"The validation data prefer a prior precision of {number(best)}, the marginal likelihood of the "
                f"training data {number(evidence)}, which would make predictions "
                f"{'less' if evidence < best else 'more'} certain."
            )
    return found
