"""scikit-learn estimators on top of lapwing's linear models."""

from lapwing.linear.logistic import BayesianLogisticRegression
from lapwing.linear.ridge import BayesianRidge

__all__ = ["BayesianLogisticRegression", "BayesianRidge"]
