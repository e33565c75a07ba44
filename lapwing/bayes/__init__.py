"""Linear models to beliefs: priors, likelihoods, evidence, posteriors, predictions. Knows no networks."""
