"""Linear models to beliefs. Knows no networks.

The data flow, top to bottom; imports point upwards only (a test enforces it):

    noise                                   standard normals behind every draw, by (row, column)
    outputs/                                Gaussian outputs: their spread, averages over them
    likelihoods/, linear_model              the noun: features + targets + likelihood
    priors, methods                         what is chosen beside it
    statistics/                             the data, compressed to what a posterior uses of them
    evidence/                               log evidence over the precisions, and its maximum
    modes/                                  likelihoods that are not Gaussian: true loss, mode, evidence there
    solving/                                what each method finds: precisions, and what is known of the weights
    predictive/                             that knowledge at new inputs: Prediction
    posterior/                              Posterior: predict, at, tune, leave_one_out, update, remove, verify, save
    inference                               infer: all of it, from the linear model to the posterior

`laplace_approximation` stands alone: a Gaussian for any density in a few dimensions.
"""
