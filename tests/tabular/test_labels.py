"""Averages of the softmax over outputs that spread, against integrals, automatic derivatives and plain softmax."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from lapwing.tabular import labels as averaging
from lapwing.tabular.labels import Softmax, root_of

B, N, CLASSES = 2, 5, 4


def case(generator, classes=CLASSES, spread=1.5):
    k = classes - 1
    values = 2 * torch.randn(B, N, k, generator=generator, dtype=torch.float64)
    factor = spread * torch.randn(B, N, k, k + 1, generator=generator, dtype=torch.float64)
    labels = torch.arange(N) % classes
    return values, root_of(factor @ factor.mT), labels


def test_logits_are_contrasts_of_length_one(generator):
    """So that an isotropic prior of c logits is one of c − 1 contrasts, and the softmax of both is the same."""
    logits = torch.randn(N, CLASSES, generator=generator, dtype=torch.float64)
    contrasts = Softmax.of(CLASSES, 16).contrasts
    assert torch.allclose(contrasts.mT @ contrasts, torch.eye(CLASSES - 1, dtype=torch.float64))
    torch.testing.assert_close((logits @ contrasts @ contrasts.mT).softmax(1), logits.softmax(1))


def test_without_a_spread_it_is_the_softmax(generator):
    values, roots, labels = case(generator)
    softmax = Softmax.of(CLASSES, 16)
    logits = values @ softmax.contrasts.mT
    torch.testing.assert_close(softmax.probabilities(values, 0 * roots), logits.softmax(2))
    found = softmax.averages(values, 0 * roots, labels)
    own = logits.log_softmax(2)[:, torch.arange(N), labels]
    torch.testing.assert_close(found.log_density, own)
    torch.testing.assert_close(softmax.log_density(values, 0 * roots, labels), own)


def test_two_classes_by_an_integral(generator):
    values, roots, labels = case(generator, classes=2)
    softmax = Softmax.of(2, 16)
    probabilities = softmax.probabilities(values, roots)
    averages = softmax.averages(values, roots, labels)

    def average(function, mean, std):
        """Of a function of log p(class 0) − log p(class 1), which is √2 times the contrast."""
        return quad(lambda z: function(2**0.5 * (mean + std * z)) * norm.pdf(z), -12, 12, epsabs=1e-12, limit=400)[0]

    for b in range(B):
        for n in range(N):
            mean, std = values[b, n, 0].item(), roots[b, n, 0, 0].item()
            sign = 1 - 2 * labels[n].item()
            first = average(lambda f: 1 / (1 + np.exp(-f)), mean, std)
            slope = average(lambda f: 1 / (2 + 2 * np.cosh(f)), mean, std)
            density = average(lambda f: -np.logaddexp(0, -sign * f), mean, std)  # noqa: B023
            assert probabilities[b, n, 0].item() == pytest.approx(first, abs=1e-6)
            assert averages.log_density[b, n].item() == pytest.approx(density, abs=1e-6)
            assert averages.gradient[b, n, 0].item() == pytest.approx(2**0.5 * ((sign > 0) - first), abs=1e-6)
            assert averages.curvature[b, n, 0, 0].item() == pytest.approx(2 * slope, abs=1e-5)


def test_gradient_and_curvature_are_derivatives_of_the_average(generator):
    """Over fixed points the mean of the derivatives is the derivative of the mean."""
    values, roots, labels = case(generator)
    softmax = Softmax.of(CLASSES, 32)
    found = softmax.averages(values, roots, labels)

    def of_one(value, b, n):
        logits = (value + softmax.points @ roots[b, n].mT) @ softmax.contrasts.mT
        return logits.log_softmax(1)[:, labels[n]] @ softmax.shares

    for b in range(B):
        for n in range(N):
            torch.testing.assert_close(found.log_density[b, n], of_one(values[b, n], b, n))
            torch.testing.assert_close(found.gradient[b, n], torch.func.grad(of_one)(values[b, n], b, n))
            hessian = torch.func.hessian(of_one)(values[b, n], b, n)
            torch.testing.assert_close(found.curvature[b, n], -hessian, rtol=1e-7, atol=1e-10)


def test_probabilities_of_several_classes_against_draws(generator):
    values, roots, _ = case(generator)
    found = Softmax.of(CLASSES, 4096).probabilities(values, roots)
    draws = 40_000
    z = torch.randn(draws, CLASSES - 1, generator=generator, dtype=torch.float64)
    contrasts = Softmax.of(CLASSES, 16).contrasts
    for b in range(B):
        for n in range(N):
            each = ((values[b, n] + z @ roots[b, n].mT) @ contrasts.mT).softmax(1)
            error = each.std(0) / draws**0.5
            assert ((each.mean(0) - found[b, n]).abs() <= 5 * error + 1e-3).all()  # of 4,096 points


def test_blocks_change_nothing(generator, monkeypatch):
    values, roots, labels = case(generator)
    softmax = Softmax.of(CLASSES, 16)
    whole = softmax.averages(values, roots, labels)
    probabilities = softmax.probabilities(values, roots)
    monkeypatch.setattr(averaging, "BLOCK_ELEMENTS", 2 * 16 * CLASSES)
    parts = softmax.averages(values, roots, labels)
    torch.testing.assert_close(whole.log_density, parts.log_density)
    torch.testing.assert_close(whole.curvature, parts.curvature)
    torch.testing.assert_close(probabilities, softmax.probabilities(values, roots))


def test_confident_labels_still_have_a_curvature():
    """Where a network is sure of a label, the curvature at its output is next to nothing; averaged over outputs it is not."""
    softmax = Softmax.of(3, 64)
    values = (torch.tensor([[20.0, 0.0, 0.0]], dtype=torch.float64) @ softmax.contrasts)[None]
    spread = torch.eye(2, dtype=torch.float64)[None, None]
    label = torch.tensor([0])
    traces = [
        softmax.averages(values, size * spread, label).curvature.diagonal(dim1=2, dim2=3).sum() for size in (0.0, 10.0)
    ]
    assert traces[0] < 1e-8
    assert traces[1] > 1e-2


def test_roots_of_covariances_that_are_nearly_singular():
    flat = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    for covariance in (flat, 0 * flat, 1e6 * flat):
        root = root_of(covariance)
        torch.testing.assert_close(root @ root.mT, covariance, rtol=1e-8, atol=1e-13)
