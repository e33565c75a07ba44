"""What is said of how a posterior was found: for people and reports. Nothing is decided by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, final


@final
@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How a posterior was found. A field is None where it does not apply to the method or the likelihood."""

    method: str = ""  # the method that was used
    why: str = "as asked"  # why this one
    converged: bool = True
    observations: int = 0  # observed outputs
    weights: int = 0
    draws: int = 0
    seed: int = 0
    tuned_by: str = "given"  # "evidence", "held-out density" or "given"
    tuning_steps: int = 0
    evidence_trace: tuple[float, ...] = ()  # what was maximised, after every step
    pruned: tuple[str, ...] = ()  # groups of weights whose precision is infinite
    seconds: float | None = None
    ranks: int = 1  # processes that shared the work
    memory: Mapping[str, float] | None = None  # bytes that each method would need, and those that were free
    curvature: str | None = None  # what stands for the curvature of the likelihood
    residuals: tuple[float, ...] | None = None  # true relative residuals of the mean and of every draw
    data_passes: float | None = None
    error_bound: float | None = None  # on the relative error of the worst draw on the data
    # exact
    round_off: float | None = None  # relative error of the variances
    noise_at_floor: bool | None = None  # whether a tuned noise was kept from running to zero
    # Krylov
    column_products: int | None = None
    block_steps: int | None = None
    directions: int | None = None
    limited_by: str | None = None
    # likelihoods that are not Gaussian
    mode_gap: float | None = None  # nats between the loss and its minimum
    mode_steps: int | None = None
    mode_passes: float | None = None
    bound_steps: int | None = None  # of the search for the best Gaussian
    bound_gap: float | None = None  # nats that one more step would gain
    bound_error: float | None = None  # nats by which other points move the bound
    prior: str | None = None  # which of several priors had the larger bound
    # structures
    evidence_at: str | None = None
    prior_scale_moved: float | None = None  # the largest factor by which a Kronecker product changed the prior's scale
    rank: int | None = None
    largest_left_out: float | None = None
    largest_residual: float | None = None
    structure: Mapping[str, Any] = field(default_factory=dict)  # which layers got which block, errors of traces
    # held-out data
    held_out: float | None = None  # the best mean log density
    validation_size: int | None = None
    link: str | None = None
    edge_of_range: str | None = None  # "stiffest" or "widest", where the best precision is the end of the range
    temperature_scaling: Mapping[str, float] | None = None  # the rival on the same data
    candidate: str | None = None  # what predicts them best,
    candidates: Mapping[str, float] | None = None  # and the mean held-out log density of each that was compared
    shares: Mapping[str, float] | None = None  # what each of them has of the probabilities
    # data that came later or went
    updates: int = 0
    removed: int = 0

    def plain(self) -> dict[str, Any]:
        """The fields that apply, as values for a file."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: _plain(value) for name, value in found.items() if value is not None}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Diagnostics:
        """From the values of a file; what this version does not know is left out."""
        if not isinstance(plain, Mapping):
            raise TypeError(f"diagnostics are {type(plain).__name__}, expected names with values")
        known = {item.name for item in fields(Diagnostics)}
        found: dict[str, Any] = {}
        for name, value in plain.items():
            if name in known:
                found[name] = tuple(value) if isinstance(value, list) else value
        return Diagnostics(**found)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
