"""What is known of the weights, at new inputs: variances, probabilities, predictions."""

from lapwing.bayes.predictive.prediction import Observation, Prediction, from_draws

__all__ = ["Observation", "Prediction", "from_draws"]
