"""What is known of the weights, at new inputs: variances, probabilities, predictions."""

from lapwing.bayes.predictive.observation import MixedObservation, Observation
from lapwing.bayes.predictive.prediction import Prediction, from_draws, mixed

__all__ = ["MixedObservation", "Observation", "Prediction", "from_draws", "mixed"]
