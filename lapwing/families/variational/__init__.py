"""Mean-field variational inference for any network, at a temperature that does not collapse as it grows."""

from lapwing.families.variational.fitting import TAUS, fit
from lapwing.families.variational.methods import IVON, VOGN, BayesByBackprop, NaturalGradient
from lapwing.families.variational.posterior import Elbo, Variational, load
from lapwing.families.variational.scores import held_out
from lapwing.families.variational.temperature import Balanced, Cold, Heat
from lapwing.families.variational.tuning import Sweep, tune_temperature

__all__ = [
    "IVON", "TAUS", "VOGN", "Balanced", "BayesByBackprop", "Cold", "Elbo", "Heat", "NaturalGradient", "Sweep",
    "Variational", "fit", "held_out", "load", "tune_temperature",
]  # fmt: skip
