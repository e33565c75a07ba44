"""Linear models to posteriors. Knows no networks.

The data flow, top to bottom; imports point upwards only (a test enforces it):

    noise                        standard normals behind every draw, by (row, column)
    likelihoods/                 what an observation says about its outputs; one protocol, Gaussian noise among them
    linear_model, priors         the noun: features + targets + likelihood; what is believed before
    statistics/                  the data, compressed to what a posterior uses of them
    evidence/                    log evidence over the precisions, and its maximum
    fits/                        mean and curvature of a posterior: the state of the loop that finds it
    methods/                     exact, krylov, iterative, structured: each the choice and the posterior it finds
    predictive/                  what is known of the weights at new inputs: Prediction
    posterior/                   Posterior: predict, at, tune, leave_one_out, update, remove, verify, save
    mixtures/                    several posteriors that count alike, as one: Mixture
    inference                    infer: all of it, from the linear model to the posterior

`diagnostics` is what is said of all that; `journals` and `sharing` keep long runs and share them out.
`laplace_approximation` stands alone: a Gaussian for any density in a few dimensions.
"""
