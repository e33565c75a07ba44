"""What is known of the weights, at new inputs: variances, probabilities, predictions."""

from lapwing.bayes.predictive.prediction import Labels, Prediction, from_draws

__all__ = ["Labels", "Prediction", "from_draws"]
