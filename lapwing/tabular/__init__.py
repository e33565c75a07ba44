"""scikit-learn estimators for tables, which need nothing but X and y."""

from lapwing.tabular.classifier import BayesianMLPClassifier
from lapwing.tabular.regressor import BayesianMLPRegressor

__all__ = ["BayesianMLPClassifier", "BayesianMLPRegressor"]
