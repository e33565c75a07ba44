"""Metrics as a person reads them, in cells of tables and on tiles."""

from __future__ import annotations

from lapwing.app.records import Measured
from lapwing.app.report.markup import Child, h
from lapwing.app.report.svg import number

SHARES = frozenset({"accuracy", "confidence", "coverage of 90 %", "recall", "precision", "mean probability"})


def written(metric: str, value: float) -> str:
    """A metric as a person reads it.

    >>> written("accuracy", 0.9312), written("NLL", -0.25), written("RMSE", 53.123)
    ('93.1 %', '−0.250', '53.1')
    """
    if metric in SHARES:
        return f"{100 * value:.1f} %"
    if 5e-4 <= abs(value) < 10:
        return f"{value:.3f}".replace("-", "−")
    return number(value if abs(value) >= 10 else float(f"{value:.1g}"))


def error_of(metric: str, found: Measured) -> str:
    """The standard error with as many decimals as the metric has, or nothing where there is none.

    >>> error_of("RMSE", Measured(53.123, 1.4142)), error_of("NLL", Measured(0.25, 0.00003))
    ('± 1.4', '± 3e-5')
    """
    error = found.standard_error
    if not error > 0:
        return ""
    decimals = len(written(metric, found.value).partition(".")[2])
    rounded = written(metric, error) if metric in SHARES else f"{error:.{decimals}f}"
    return f"± {rounded if any(digit in rounded for digit in '123456789') else number(float(f'{error:.1g}'))}"


def cell(metric: str, found: Measured | None, is_best: bool = False) -> Child:
    """A metric with its standard error, bold where it is the best."""
    if found is None:
        return "–"
    error = error_of(metric, found)
    text = [written(metric, found.value), h("small", f" {error}") if error else None]
    return h("b", text, data_tip=f"best {metric}") if is_best else text
