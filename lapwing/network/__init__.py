"""A trained torch.nn.Module and its data, as a linear model: features are the Jacobian, known by its products."""
