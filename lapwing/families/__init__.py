"""Other roads to a posterior, with the same `functions(inputs)` and `predict(inputs)`."""
