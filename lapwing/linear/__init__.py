"""scikit-learn estimators on top of lapwing's linear models."""

from lapwing.linear.formulas import FormulaDesign
from lapwing.linear.glm import (
    BayesianBinomialRegressor,
    BayesianGammaRegressor,
    BayesianNegativeBinomialRegressor,
    BayesianOrdinalClassifier,
    BayesianPoissonRegressor,
)
from lapwing.linear.logistic import BayesianLogisticRegression
from lapwing.linear.ridge import BayesianRidge

__all__ = [
    "BayesianBinomialRegressor",
    "BayesianGammaRegressor",
    "BayesianLogisticRegression",
    "BayesianNegativeBinomialRegressor",
    "BayesianOrdinalClassifier",
    "BayesianPoissonRegressor",
    "BayesianRidge",
    "FormulaDesign",
]
