"""Type-II maximum a posteriori: variances, lengthscales and noise from the evidence and the TV-PredCP hyperprior."""
