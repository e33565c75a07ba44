"""What the benchmarks of posteriors of labels say, as a part of the page."""

from __future__ import annotations

import statistics
from typing import Any

SCORES = ("entropy", "mutual_information", "novelty", "novelty_not_centred", "variance")
RIVALS = ("cross-validated", "C=1")


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def logistic(cells: dict[str, Any]) -> str:
    """NLL of every estimator and differences to the rivals, with their errors over folds."""
    rows = []
    for name, cell in cells.items():
        r = cell["result"]
        differences = [r[f"minus {rival}"] for rival in RIVALS]
        rows.append([
            f"{name}, {r['rows']:,} × {r['columns']:,}, {r['classes']} classes",
            *(f"{r[one]['nll']:.3f}" for one in ("lapwing", *RIVALS)),
            *(f"{one['difference']:+.3f} ± {one['error_over_folds']:.3f}" for one in differences),
            " / ".join(f"{r[one]['accuracy']:.3f}" for one in ("lapwing", *RIVALS)),
            " / ".join(f"{r[one]['ece']:.3f}" for one in ("lapwing", *RIVALS)),
            " / ".join(f"{r[one]['fit_seconds']:.2g}" for one in ("lapwing", *RIVALS)),
            f"{cell['peak_memory_bytes'] / 1e9:.1f} GB",
        ])  # fmt: skip
    return table(
        ["data", "NLL, lapwing", "cross-validated", "C = 1", "Δ to cross-validated", "Δ to C = 1", "accuracy", "ECE",
         "seconds of a fit", "peak memory"], rows,
    )  # fmt: skip


def level(cells: dict[str, Any]) -> str:
    """On how many sets of folds the difference is within one standard error, or better."""
    folds = [cell["result"] for cell in cells.values() if len(cell["result"][f"minus {RIVALS[0]}"]["by_fold"]) > 1]
    counts = (sum(r[f"minus {rival}"]["within_one_error"] for r in folds) for rival in RIVALS)
    return ", ".join(
        f"within one standard error of {rival} or better: {count} of {len(folds)}"
        for rival, count in zip(RIVALS, counts, strict=True)
    )


def few_digits(cells: dict[str, Any]) -> str:
    """Means over the seeds of each case, with standard errors of NLL and of its difference to temperature scaling."""
    rows = []
    for case in _cases(cells):
        found = _results(cells, case)
        for method in _methods(found):
            told = [r[method] for r in found]
            known = [one for one in told if "error" not in one]
            if not known:
                rows.append([case, method, f"an error, {len(told)} of {len(told)}", *[""] * 10])
                continue
            failed = f" ({len(told) - len(known)} of {len(told)} an error)" if len(known) < len(told) else ""
            against = [one["minus_temperature"][0] for one in known if "minus_temperature" in one]
            rows.append([
                case, f"{method}{failed}", _with_error([one["nll"] for one in known], ""),
                _with_error(against, "+") if against else "", _mean(known, "accuracy"), _mean(known, "ece"),
                _mean(known, "auroc_errors_entropy"),
                *(_mean(known, f"auroc_letters_{score}") for score in SCORES[:3]),
                _mean(known, "nll_turned", 2), _mean(known, "seconds", 1), _mean(known, "data_passes", 0),
            ])  # fmt: skip
    return table(
        ["case", "method", "NLL", "Δ to temperature", "accuracy", "ECE", "errors, entropy", "letters, entropy",
         "mutual information", "novelty", "NLL turned", "seconds", "passes"], rows,
    )  # fmt: skip


def scores(cells: dict[str, Any], method: str = "fit, validated") -> str:
    """What each score of a posterior is good for: AUROC of wrong answers, and of letters, means over the seeds."""
    rows = []
    for case in _cases(cells):
        known = [r[method] for r in _results(cells, case) if "error" not in r[method]]
        rows += [
            [case, what, *(_mean(known, f"auroc_{what}_{score}") for score in SCORES)] for what in ("errors", "letters")
        ]
    return table(["case", "told from the rest", *(score.replace("_", " ") for score in SCORES)], rows)


def several(cells: dict[str, Any]) -> str:
    """Means over the seeds of each case, and NLL less those of five networks averaged over one temperature."""
    rows = []
    for case in _cases(cells):
        found = _results(cells, case)
        for method in _methods(found):
            known = [one[method] for one in found]
            gaps = {
                key: [one[key] - rival[key] for one, rival in zip(known, _of(found, "five, temperature"), strict=True)]
                for key in ("nll", "nll_turned")
            }
            rows.append([
                f"{case} ({len(found)} seeds)", method, _with_error([one["nll"] for one in known], ""), _with_error(gaps["nll"], "+"),
                _mean(known, "accuracy"), _mean(known, "ece"), _mean(known, "auroc_errors_entropy"),
                *(_mean(known, f"auroc_letters_{score}") for score in ("entropy", "mutual_information")),
                _mean(known, "nll_turned", 2), _with_error(gaps["nll_turned"], "+"),
            ])  # fmt: skip
    return table(
        ["case", "method", "NLL", "Δ to five, temperature", "accuracy", "ECE", "errors, entropy", "letters, entropy",
         "mutual information", "NLL turned", "Δ of that"], rows,
    )  # fmt: skip


def _of(found: list[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    return [one[method] for one in found]


def _cases(cells: dict[str, Any]) -> list[str]:
    return [case for case in dict.fromkeys(cell["arguments"]["case"] for cell in cells.values()) if case != "a part"]


def _results(cells: dict[str, Any], case: str) -> list[dict[str, Any]]:
    return [cell["result"] for cell in cells.values() if cell["arguments"]["case"] == case]


def _methods(found: list[dict[str, Any]]) -> list[str]:
    return [name for name, value in found[0].items() if isinstance(value, dict)]


def _mean(known: list[dict[str, Any]], key: str, digits: int = 3) -> str:
    values = [one[key] for one in known if key in one]
    return f"{statistics.mean(values):.{digits}f}" if values else "–"


def _with_error(values: list[float], sign: str) -> str:
    mean = f"{statistics.mean(values):{sign}.3f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"


def page(parts: dict[str, dict[str, Any]]) -> str:
    """The sections of the page."""
    import first_tries

    tries = [line["result"] for line in parts["first_tries"].values()]
    before = [one for one in tries if one["number"] in first_tries.DEVELOPMENT]
    final = [one for one in tries if one["number"] in first_tries.FINAL]
    return f"""
## First tries

{len(final)} fits as a newcomer makes them: small data sets, small networks, one call of `fit`, nothing tuned by hand. A try is made from its number
alone; these numbers were run once, with the code that is judged, and nothing was changed because of them. The protocol is at the top of
`benchmarks/first_tries.py`. ΔNLL is ours less the rival's on the same network and test rows, so negative is better; intervals are
bootstrapped over data sets; a win or a loss is two standard errors.

{first_tries.summary(final)}

{first_tries.by_data_set(final)}

The first {len(before)} numbers, which may be looked at, with Laplace's approximation by the evidence, before the curvature was averaged over the
posterior:

{first_tries.summary(before)}

## Logistic regression

`BayesianLogisticRegression()` as it comes, against scikit-learn's with its penalty by cross-validation, and with its default. Negative
differences are in our favour; the protocol is in `benchmarks/bench_logistic.py`. The machine had other work while text was fitted. Ours is slow on
digits, where it averages over points in nine dimensions, and on text, where it is Laplace's approximation by products, and worse than
cross-validation.

{logistic(parts["logistic"])}

{level(parts["logistic"])}.

## Few digits

Networks that have memorised 200 digits, or are not trained to the end on 800: what error bars add, against what is cheaper and what is
dearer. Means over five seeds, three of the last case (`benchmarks/bench_few_digits.py`). Seconds are of a machine that had other work, too.

{few_digits(parts["few_digits"])}

How well each score tells wrong answers from right ones, and letters from digits (AUROC):

{scores(parts["few_digits"])}

## Several networks

Networks from several starts as one posterior, against the same networks averaged and against one of them (`benchmarks/several_networks.py`): means
over the seeds, differences paired by seed, with standard errors over seeds. Seconds are not told: the machine had other work.

{several(parts["several_networks"])}
"""
