"""Every metric against scikit-learn, a closed form, numerical integration or a brute-force count."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import sklearn.metrics
import torch

from lapwing import metrics

N, C, DRAWS = 37, 4, 6


@pytest.fixture
def logits(generator):
    return torch.randn(N, C, generator=generator, dtype=torch.float64) * 2


@pytest.fixture
def probs(logits):
    return logits.softmax(-1)


@pytest.fixture
def labels(generator):
    return torch.randint(C, (N,), generator=generator)


@pytest.fixture
def scores(generator):
    """In-distribution and foreign scores, rounded so that there are ties within and across."""
    inside = torch.randn(41, generator=generator, dtype=torch.float64)
    outside = torch.randn(23, generator=generator, dtype=torch.float64) + 0.7
    return inside.round(decimals=1), outside.round(decimals=1)


@pytest.fixture
def regression(generator):
    mean, targets = torch.randn(2, 11, 3, generator=generator, dtype=torch.float64)
    std = torch.rand(11, 3, generator=generator, dtype=torch.float64) + 0.3
    return mean, std, targets


def two_sets(scores):
    inside, outside = scores
    return np.r_[np.zeros(len(inside)), np.ones(len(outside))], torch.cat([inside, outside]).numpy()


class TestClassification:
    def test_accuracy_is_scikit_learns(self, probs, labels):
        expected = sklearn.metrics.accuracy_score(labels, probs.argmax(-1))
        assert metrics.accuracy(probs, labels) == pytest.approx(expected, rel=1e-14)

    def test_nll_is_scikit_learns(self, probs, labels):
        expected = sklearn.metrics.log_loss(labels, probs.numpy(), labels=range(C))
        assert metrics.nll(probs, labels) == pytest.approx(expected, rel=1e-12)

    def test_nll_of_logits(self, logits, probs, labels):
        torch.testing.assert_close(metrics.nll_each(logits, labels, logits=True), metrics.nll_each(probs, labels))

    def test_nll_of_logits_survives_saturation(self):
        saturated, label = torch.tensor([[200.0, 0.0]]), torch.tensor([1])
        assert metrics.nll(saturated.softmax(-1), label) == math.inf
        assert metrics.nll(saturated, label, logits=True) == 200.0

    def test_brier_is_scikit_learns(self, probs, labels):
        expected = sklearn.metrics.brier_score_loss(labels, probs.numpy(), labels=range(C), scale_by_half=False)
        assert metrics.brier(probs, labels) == pytest.approx(expected, rel=1e-12)

    def test_brier_is_twice_the_binary_one(self, generator):
        p, y = torch.rand(N, generator=generator), torch.randint(2, (N,), generator=generator)
        expected = 2 * sklearn.metrics.brier_score_loss(y, p.numpy().astype(float))
        assert metrics.brier(torch.stack([1 - p, p], -1), y) == pytest.approx(expected, rel=1e-6)

    def test_confidence(self, probs):
        assert metrics.confidence(probs) == pytest.approx(np.mean([max(row) for row in probs.tolist()]))

    def test_entropy_is_scipys(self, probs):
        np.testing.assert_allclose(metrics.entropy(probs), scipy.stats.entropy(probs.numpy(), axis=-1), rtol=1e-12)

    def test_mutual_information_is_the_mean_divergence_from_the_mean(self, generator):
        sampled = torch.randn(DRAWS, N, C, generator=generator, dtype=torch.float64).softmax(-1)
        divergence = scipy.stats.entropy(sampled.numpy(), sampled.mean(0, keepdim=True).numpy(), axis=-1).mean(0)
        np.testing.assert_allclose(metrics.mutual_information(sampled), divergence, rtol=1e-10)

    def test_arrays_and_half_precision_are_taken(self, probs, labels):
        expected = metrics.nll(probs, labels)
        assert metrics.nll(probs.numpy(), labels.numpy().astype(np.uint8)) == expected
        assert metrics.nll(np.asfortranarray(probs.numpy())[::-1], labels.numpy()[::-1]) == pytest.approx(expected)
        # eight bits: each probability, and the sum they are divided by, is off by 2⁻⁹ of itself at most
        assert metrics.nll(probs.bfloat16(), labels) == pytest.approx(expected, abs=2**-8)


class TestJoint:
    def test_groups_of_one_are_the_marginal_nll(self, generator, labels):
        sampled = torch.randn(DRAWS, N, C, generator=generator, dtype=torch.float64).softmax(-1)
        each = sampled.log()[:, torch.arange(N), labels]
        groups = torch.arange(N)[:, None]
        assert metrics.joint_nll(each, groups) == pytest.approx(metrics.nll(sampled.mean(0), labels), rel=1e-12)

    def test_brute_force(self, generator):
        each = -torch.rand(DRAWS, N, generator=generator, dtype=torch.float64) * 3
        groups = metrics.dyads(N, 5, size=7, generator=generator)
        total = 0.0
        for group in groups.tolist():
            likelihoods = [math.prod(math.exp(each[d, i]) for i in group) for d in range(DRAWS)]
            total -= math.log(sum(likelihoods) / DRAWS)
        assert metrics.joint_nll(each, groups) == pytest.approx(total / 5 / 7, rel=1e-12)

    def test_long_products_do_not_underflow(self):
        assert metrics.joint_nll(torch.full((2, 3), -500.0), torch.zeros(4, 5, dtype=torch.long)) == pytest.approx(500)

    def test_dyads_pick_two_distinct_rows_evenly(self, generator):
        groups = metrics.dyads(5, 20_000, size=10, generator=generator)
        two = torch.stack([groups.amin(1), groups.amax(1)], -1)
        mixed = (two[:, 0] != two[:, 1]).double().mean()
        share = 1 - 2 * 0.5**10  # the chance that ten picks do not all fall on one row
        assert abs(mixed - share) < 5 * math.sqrt(share * (1 - share) / 20_000)
        assert max(len(set(group)) for group in groups[:200].tolist()) == 2
        counts = torch.bincount(groups[:, 0], minlength=5)
        assert ((counts - 4000).abs() < 5 * math.sqrt(20_000 * 0.2 * 0.8)).all()

    def test_rows_that_are_not_there(self):
        with pytest.raises(ValueError, match="rows 0 to 3, but the 3 data"):
            metrics.joint_nll(torch.zeros(2, 3), torch.tensor([[0, 3]]))
        with pytest.raises(ValueError, match="integers"):
            metrics.joint_nll(torch.zeros(2, 3), torch.tensor([[0.0, 1.0]]))


def gaps(confidences, right, edges):
    """Count by count: Σ over bins of |Σ right − Σ confidence| / n."""
    total = 0.0
    for b in range(len(edges) - 1):
        inside = [i for i, c in enumerate(confidences) if edges[b] < c <= edges[b + 1] or (b == 0 and c == edges[0])]
        total += abs(sum(right[i] - confidences[i] for i in inside))
    return total / len(confidences)


class TestCalibration:
    @pytest.mark.parametrize("bins", [1, 7, 15])
    def test_ece_bin_by_bin(self, probs, labels, bins):
        confidences, right = probs.amax(-1).tolist(), (probs.argmax(-1) == labels).double().tolist()
        expected = gaps(confidences, right, np.linspace(0, 1, bins + 1))
        assert metrics.ece(probs, labels, bins=bins) == pytest.approx(expected, rel=1e-12)

    def test_one_bin_is_confidence_minus_accuracy(self, probs, labels):
        expected = abs(metrics.confidence(probs) - metrics.accuracy(probs, labels))
        assert metrics.ece(probs, labels, bins=1) == pytest.approx(expected, rel=1e-12)

    def test_equal_mass_bins_hold_equal_counts(self, generator):
        probs = torch.randn(45, 3, generator=generator, dtype=torch.float64).softmax(-1)
        labels = torch.randint(3, (45,), generator=generator)
        assert metrics.reliability(probs, labels, bins=9, binning="mass").counts.tolist() == [5] * 9
        order = probs.amax(-1).argsort()
        right, top = (probs.argmax(-1) == labels).double(), probs.amax(-1)
        expected = sum(abs(float((right - top)[part].sum())) for part in order.reshape(9, 5)) / 45
        assert metrics.ece(probs, labels, bins=9, binning="mass") == pytest.approx(expected, rel=1e-12)

    def test_equal_mass_does_not_depend_on_the_order_of_ties(self, generator):
        top = torch.tensor([0.6, 0.9, 1.0], dtype=torch.float64)[torch.randint(3, (40,), generator=generator)]
        probs, labels = torch.stack([top, 1 - top], -1), torch.randint(2, (40,), generator=generator)
        shuffled = torch.randperm(40, generator=generator)
        value = metrics.ece(probs, labels, bins=15, binning="mass")
        assert value == pytest.approx(
            metrics.ece(probs[shuffled], labels[shuffled], bins=15, binning="mass"), rel=1e-12
        )
        assert (metrics.reliability(probs, labels, binning="mass").counts > 0).all()

    @pytest.mark.parametrize("binning", ["width", "mass"])
    def test_classwise_is_the_mean_of_the_classes(self, probs, labels, binning):
        each = []
        for c in range(C):
            column, right = probs[:, c], (labels == c).double()
            if binning == "width":
                each.append(gaps(column.tolist(), right.tolist(), np.linspace(0, 1, 6)))
            else:
                ends = np.round(np.arange(1, 5) * N / 5).astype(int)
                parts = np.split(column.argsort().numpy(), ends)
                each.append(sum(abs(float((right - column)[part].sum())) for part in parts) / N)
        assert metrics.classwise_ece(probs, labels, bins=5, binning=binning) == pytest.approx(np.mean(each), rel=1e-12)

    def test_reliability_table(self, probs, labels):
        table = metrics.reliability(probs, labels, bins=6)
        assert int(table.counts.sum()) == N
        assert table.ece == pytest.approx(metrics.ece(probs, labels, bins=6), rel=1e-12)
        filled = table.counts > 0
        assert (table.confidences[filled] > table.edges[:-1][filled]).all()
        assert (table.confidences[filled] <= table.edges[1:][filled]).all()
        assert table.accuracies[~filled].isnan().all()
        for b in filled.nonzero()[:, 0].tolist():
            right = round(float(table.accuracies[b] * table.counts[b]))
            interval = scipy.stats.binomtest(right, int(table.counts[b])).proportion_ci(0.95, method="wilson")
            assert float(table.lower[b]) == pytest.approx(interval.low, abs=1e-12)
            assert float(table.upper[b]) == pytest.approx(interval.high, abs=1e-12)
            share = right / int(table.counts[b])
            expected = math.sqrt(share * (1 - share) / int(table.counts[b]))
            assert float(table.standard_errors[b]) == pytest.approx(expected, abs=1e-12)

    def test_wilson_refuses_more_successes_than_trials(self):
        with pytest.raises(ValueError, match="between zero and their counts"):
            metrics.wilson(torch.tensor([3]), torch.tensor([2]))

    def test_the_floor_of_one_bin_is_the_mean_deviation_of_a_binomial(self, generator):
        n, p = 60, 0.8
        probs = torch.tensor([[p, 1 - p]], dtype=torch.float64).repeat(n, 1)
        found = metrics.ece_floor(probs, draws=4000, generator=generator)
        counts = scipy.stats.binom(n, p)
        deviations = [abs(k / n - p) for k in range(n + 1)]
        expected = sum(d * counts.pmf(k) for k, d in enumerate(deviations))
        spread = math.sqrt(sum((d - expected) ** 2 * counts.pmf(k) for k, d in enumerate(deviations)))
        assert abs(found - expected) < 5 * spread / math.sqrt(4000)

    def test_the_bootstrap_of_one_bin_is_the_standard_error_of_the_mean(self, generator):
        # far from calibrated, one bin: the error is a plain mean, whose bootstrap spread is known exactly
        confidences = 0.9 + 0.1 * torch.rand(80, generator=generator, dtype=torch.float64)
        probs = torch.stack([confidences, 1 - confidences], -1)
        labels = (torch.arange(80) % 3 > 0).long()
        differences = confidences - (labels == 0).double()
        expected = float(differences.std(correction=0)) / math.sqrt(80)
        found = metrics.ece_error(probs, labels, bins=1, resamples=2000, generator=generator)
        assert abs(found / expected - 1) < 5 / math.sqrt(2 * 2000)


class TestDetection:
    def test_auroc_is_scikit_learns(self, scores):
        truth, values = two_sets(scores)
        assert metrics.auroc(*scores) == pytest.approx(sklearn.metrics.roc_auc_score(truth, values), rel=1e-12)

    def test_auroc_pair_by_pair(self, scores):
        inside, outside = scores
        wins = (outside[:, None] > inside).double() + (outside[:, None] == inside).double() / 2
        assert metrics.auroc(inside, outside) == pytest.approx(float(wins.mean()), rel=1e-12)
        assert metrics.auroc(outside, inside) == pytest.approx(1 - float(wins.mean()), rel=1e-12)

    def test_auroc_error_is_the_spread_over_repetitions(self, generator):
        inside = torch.randn(3000, 41, generator=generator)
        outside = torch.randn(3000, 23, generator=generator) + 1
        values = torch.tensor([metrics.auroc(a, b) for a, b in zip(inside, outside, strict=True)])
        claimed = torch.tensor([metrics.auroc_error(a, b) for a, b in zip(inside[:300], outside[:300], strict=True)])
        error = float(values.std()) * math.sqrt(1 / 6000 + 1 / 1000)  # of the spread, and generously of the claims
        assert abs(float(claimed.square().mean().sqrt()) - float(values.std())) < 5 * error

    def test_aupr_is_scikit_learns_average_precision(self, scores):
        truth, values = two_sets(scores)
        assert metrics.aupr(*scores) == pytest.approx(sklearn.metrics.average_precision_score(truth, values), rel=1e-12)

    @pytest.mark.parametrize("recall", [0.5, 0.95, 20 / 23])
    def test_fpr_is_read_off_scikit_learns_curve(self, scores, recall):
        truth, values = two_sets(scores)
        rates, recalls, _ = sklearn.metrics.roc_curve(truth, values, drop_intermediate=False)
        expected = rates[np.argmax(recalls >= recall - 1e-12)]
        assert metrics.fpr95(*scores, recall=recall) == pytest.approx(expected, rel=1e-12)

    def test_perfect_and_useless(self):
        low, high = torch.zeros(20), torch.ones(20)
        assert (metrics.auroc(low, high), metrics.aupr(low, high), metrics.fpr95(low, high)) == (1.0, 1.0, 0.0)
        assert (metrics.auroc(low, low), metrics.aupr(low, low), metrics.fpr95(low, low)) == (0.5, 0.5, 1.0)

    def test_infinite_scores_have_their_place(self):
        assert metrics.auroc(torch.tensor([0.0, 1.0]), torch.tensor([math.inf, math.inf])) == 1.0


class TestRegression:
    def test_rmse_is_scikit_learns(self, regression):
        mean, _, targets = regression
        expected = sklearn.metrics.root_mean_squared_error(targets.flatten(), mean.flatten())
        assert metrics.rmse(mean, targets) == pytest.approx(expected, rel=1e-12)

    def test_gaussian_nll_is_scipys(self, regression):
        mean, std, targets = regression
        expected = -scipy.stats.norm.logpdf(targets, mean, std)
        np.testing.assert_allclose(metrics.gaussian_nll_each(mean, std, targets), expected, rtol=1e-12)
        assert metrics.gaussian_nll(mean, 0.7, targets) == pytest.approx(
            -scipy.stats.norm.logpdf(targets, mean, 0.7).mean(), rel=1e-12
        )

    def test_crps_is_its_integral(self, regression):
        mean, std, targets = (values[:4] for values in regression)
        for m, s, y in zip(mean.flatten(), std.flatten(), targets.flatten(), strict=True):
            cdf = scipy.stats.norm(float(m), float(s))
            below = scipy.integrate.quad(lambda x, cdf=cdf: cdf.cdf(x) ** 2, m - 12 * s, y, epsabs=1e-11)[0]
            above = scipy.integrate.quad(lambda x, cdf=cdf: cdf.sf(x) ** 2, y, m + 12 * s, epsabs=1e-11)[0]
            assert metrics.crps(m[None], s[None], y[None]) == pytest.approx(below + above, abs=1e-9)

    def test_crps_without_width_is_the_absolute_error(self):
        mean, targets = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 7.0])
        assert metrics.crps_each(mean, 0.0, targets).tolist() == [0.0, 2.0, 4.0]

    @pytest.mark.parametrize("fair", [True, False])
    def test_crps_of_samples_pair_by_pair(self, generator, fair):
        samples = torch.randn(DRAWS, 5, 2, generator=generator, dtype=torch.float64)
        targets = torch.randn(5, 2, generator=generator, dtype=torch.float64)
        pairs = (samples[:, None] - samples).abs().sum((0, 1)) / (DRAWS * (DRAWS - 1 if fair else DRAWS))
        expected = (samples - targets).abs().mean(0) - pairs / 2
        torch.testing.assert_close(metrics.crps_samples_each(samples, targets, fair=fair), expected)
        assert metrics.crps_samples(samples, targets, fair=fair) == pytest.approx(float(expected.mean()))

    def test_fair_crps_is_unbiased(self, generator, regression):
        mean, std, targets = regression
        repeats = 4000
        noise = torch.randn(3, repeats, *mean.shape, generator=generator, dtype=torch.float64)
        found = metrics.crps_samples_each(mean + std * noise, targets.expand(repeats, *mean.shape))
        z = (found.mean(0) - metrics.crps_each(mean, std, targets)) / (found.std(0) / math.sqrt(repeats))
        assert float(z.abs().max()) < 5

    def test_coverage_and_width(self, regression):
        mean, std, targets = regression
        lower, upper = mean - 1.5 * std, mean + std
        inside = np.mean(
            [(a <= t <= b) for a, b, t in zip(*(v.flatten() for v in (lower, upper, targets)), strict=True)]
        )
        assert metrics.coverage(lower, upper, targets) == pytest.approx(inside)
        assert metrics.width(lower, upper) == pytest.approx(2.5 * float(std.mean()))

    def test_shapes_are_never_broadcast(self):
        with pytest.raises(ValueError, match=r"\(3,\) and \(3, 1\)"):
            metrics.rmse(torch.zeros(3), torch.zeros(3, 1))
        with pytest.raises(ValueError, match="std and targets"):
            metrics.gaussian_nll(torch.zeros(3, 1), torch.ones(3), torch.zeros(3, 1))
        with pytest.raises(ValueError, match=r"samples must be \(draws, \*\(3,\)\)"):
            metrics.crps_samples(torch.zeros(3, 2), torch.zeros(3))

    def test_one_datum_one_output(self):
        assert metrics.rmse(torch.zeros(1), torch.ones(1)) == 1.0
        with pytest.raises(ValueError, match="the number of draws must be at least 2, not 1"):
            metrics.crps_samples(torch.zeros(1, 1), torch.zeros(1))


class TestComparison:
    def test_paired_is_the_paired_t_test(self, generator):
        first, second = torch.rand(2, 30, generator=generator, dtype=torch.float64)
        difference = metrics.paired(first, second)
        assert difference.z == pytest.approx(scipy.stats.ttest_rel(first, second).statistic, rel=1e-10)
        assert difference.mean == pytest.approx(float((first - second).mean()), rel=1e-12)

    def test_certain_differences(self):
        assert metrics.paired(torch.ones(3), torch.zeros(3)).z == math.inf
        assert metrics.paired(torch.zeros(3), torch.ones(3)).z == -math.inf
        assert math.isnan(metrics.paired(torch.ones(3), torch.ones(3)).z)

    def test_one_pair_has_no_standard_error(self):
        with pytest.raises(ValueError, match="at least 2, not 1"):
            metrics.paired(torch.ones(1), torch.ones(1))

    def test_risk_coverage_prefix_by_prefix(self, generator):
        unsure, losses = torch.rand(2, 17, generator=generator, dtype=torch.float64)
        curve = metrics.risk_coverage(unsure, losses)
        order = np.argsort(unsure.numpy())
        expected = [losses[order[: k + 1]].mean() for k in range(17)]
        np.testing.assert_allclose(curve.risk, expected, rtol=1e-12)
        assert curve.area == pytest.approx(np.mean(expected), rel=1e-12)
        assert curve.at(1.0) == pytest.approx(float(losses.mean()))
        assert curve.at(3 / 17) == pytest.approx(float(expected[2]))

    def test_ties_are_the_mean_over_their_orders(self, generator):
        unsure = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
        losses = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
        areas = []
        for _ in range(4000):
            jitter = torch.rand(5, generator=generator) * 0.1
            areas.append(metrics.risk_coverage(unsure + jitter, losses).area)
        z = (np.mean(areas) - metrics.risk_coverage(unsure, losses).area) / (np.std(areas) / math.sqrt(4000))
        assert abs(z) < 5
        useless = metrics.risk_coverage(torch.zeros(5), losses)
        torch.testing.assert_close(useless.risk, torch.full((5,), 0.6, dtype=torch.float64))


GOOD = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.classwise_ece])
@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (GOOD * 2, [0, 1], "lie between 0.2 and 1.2, not in"),
        (GOOD * 0.9, [0, 1], "sum to one over the last axis, but a sum is off by 0.1"),
        (GOOD - 0.3, [0, 1], "softmax"),
        (torch.tensor([[0.5, math.nan], [0.5, 0.5]]), [0, 1], "1 NaN among its 4"),
        (torch.zeros(0, 3), [], "probs is empty"),
        (torch.tensor([0.5, 0.5]), [0, 1], "torch.stack"),
        (GOOD[None], [0, 1], "2 axes"),
        (GOOD.to(torch.complex64), [0, 1], "real numbers"),
        (GOOD, [0, 3], "labels run from 0 to 3, but 3 classes take 0 to 2"),
        (GOOD, [-1, 2], "labels run from -1 to 2"),
        (GOOD, [0, 1, 2], r"shape \(2,\)"),
        (GOOD, [[0], [1]], "argmax"),
        (GOOD, [0.0, 1.0], "integers"),
    ],
)
def test_bad_predictions_are_refused(metric, probs, labels, message):
    with pytest.raises(ValueError, match=message):
        metric(probs, torch.tensor(labels))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.ece(GOOD, torch.tensor([0, 1]), bins=0), "bins must be at least 1, not 0"),
        (lambda: metrics.ece(GOOD, torch.tensor([0, 1]), binning="other"), "'width' or 'mass', not 'other'"),
        (lambda: metrics.reliability(GOOD, torch.tensor([0, 1]), level=95), "strictly between 0 and 1"),
        (lambda: metrics.nll(torch.tensor([[math.inf, 0.0]]), torch.tensor([0]), logits=True), "1 infinite"),
        (lambda: metrics.mutual_information(GOOD), "sampled_probs must have 3 axes"),
        (lambda: metrics.auroc(torch.zeros(3), torch.zeros(0)), "outside is empty"),
        (lambda: metrics.auroc(torch.zeros(3, 2), torch.zeros(2)), "inside must have 1 axis"),
        (lambda: metrics.fpr95(torch.zeros(3), torch.tensor([math.nan])), "outside has 1 NaN"),
        (lambda: metrics.fpr95(torch.zeros(3), torch.zeros(3), recall=1.0), "strictly between"),
        (lambda: metrics.gaussian_nll(torch.zeros(3), 0.0, torch.zeros(3)), "without width"),
        (lambda: metrics.crps(torch.zeros(3), -1.0, torch.zeros(3)), "std is negative"),
        (lambda: metrics.coverage(torch.ones(3), torch.zeros(3), torch.zeros(3)), "swapped"),
        (lambda: metrics.rmse(torch.tensor([math.inf]), torch.zeros(1)), "mean has 1 infinite"),
        (lambda: metrics.risk_coverage(torch.zeros(3), torch.zeros(2)), "one shape"),
        (lambda: metrics.risk_coverage(torch.zeros(3), torch.zeros(3)).at(0.0), r"\(0, 1\]"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("n", "m"), [(7, 7), (12, 30), (25, 8)])
def test_wasserstein_is_scipys(generator, n, m):
    first = torch.randn(n, 3, 2, generator=generator, dtype=torch.float64)
    second = 1 + 2 * torch.randn(m, 3, 2, generator=generator, dtype=torch.float64)
    found = metrics.wasserstein(first, second)
    for i in range(3):
        for j in range(2):
            expected = scipy.stats.wasserstein_distance(first[:, i, j], second[:, i, j])
            assert float(found[i, j]) == pytest.approx(expected, rel=1e-12)


def test_wasserstein_of_second_order_between_equal_sizes_pairs_the_ranks(generator):
    first, second = (torch.randn(40, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = (first.sort(0).values - second.sort(0).values).square().mean(0).sqrt()
    assert torch.allclose(metrics.wasserstein(first, second, order=2), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="with the same quantities"):
        metrics.wasserstein(first, second[:, :2])


def test_public_names_carry_examples():
    for name in metrics.__all__:
        value = getattr(metrics, name)
        if not isinstance(value, type):
            assert ">>>" in value.__doc__, name
