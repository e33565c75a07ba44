"""A posterior with more training data, or without some: no starting over."""
