# %% [markdown]
# # A Gaussian at the mode
# Laplace's approximation, plain: find the mode of any density, take its curvature there, and read off a Gaussian and
# an integral. Here the posterior of a rate after twelve events in five hours, whose integral is known.

# %%
import math

import lapwing as lw

events, hours = 12, 5.0


def log_density(x):
    """Log of likelihood times prior of the logarithm of the rate, under a flat prior of it."""
    return (events * x - hours * x.exp()).sum()


found = lw.laplace_approximation(log_density, [0.0])
exact = math.lgamma(events) - events * math.log(hours)
low, high = (math.exp(float(found.mode) + sign * 1.96 * float(found.covariance) ** 0.5) for sign in (-1, 1))
print(f"rate {math.exp(float(found.mode)):.2f} an hour, 95 % between {low:.2f} and {high:.2f}")
print(f"log of the integral: {found.log_normaliser:.4f} by Laplace, {exact:.4f} exactly")
