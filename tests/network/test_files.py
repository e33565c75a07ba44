"""A loaded posterior is the one that was saved; nothing else is loaded."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import lapwing as lw
from lapwing.bayes.likelihoods import HeteroscedasticGaussian, Poisson
from lapwing.bayes.likelihoods import likelihood as of_your_own
from lapwing.network.files import load
from lapwing.runtime.journal import checksum


def network(outputs):
    """With a buffer that outputs depend on."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, outputs)).double()
        model[1].running_mean.normal_()
    return model.eval()


def problem(kind):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    y = {
        "numbers": torch.stack([x[:, 0].sin(), x[:, 1]], 1) + 0.3 * noise,
        "classes": (x[:, 0] + noise[:, 0] > 0).long() + (x[:, 1] > 0).long(),
        "labels": (x[:, :2] + noise > 0).double(),
    }[kind]
    likelihood = {"numbers": lw.Gaussian(), "classes": lw.Categorical(), "labels": lw.Bernoulli()}[kind]
    model = network({"numbers": 2, "classes": 3, "labels": 2}[kind])
    return model, (x[:40], y[:40]), (x[40:], y[40:]), likelihood


def same(one, other, x):
    """The same predictions up to round-off beside the prior: products of another memory layout may differ in the last bits."""
    first, second = one.predict(x), other.predict(x)
    wide = float(first.prior_variance.max())
    scales = {"mean": wide**0.5, "epistemic_variance": wide, "prior_variance": wide, "draws": wide**0.5}
    scales["probs" if first.likelihood.has_classes else "std"] = max(wide**0.5, 1.0)
    return all(close(getattr(first, name), getattr(second, name), scale) for name, scale in scales.items())


def close(one, other, scale=1.0):
    return float((one - other).abs().max()) <= 100 * torch.finfo(one.dtype).eps * max(float(one.abs().max()), scale)


@pytest.mark.parametrize("part", ["all", "last layer", "two groups"])
@pytest.mark.parametrize("kind", ["numbers", "classes", "labels"])
def test_what_is_loaded_is_what_was_saved(tmp_path, kind, part):
    model, train, held_out, likelihood = problem(kind)
    size = sum(weight.numel() for weight in model.parameters())
    prior = lw.PerGroup({"a": slice(0, 20), "b": slice(20, size)}, 2.0) if part == "two groups" else lw.GPrior(3.0)
    select = (lambda name: name.startswith("3")) if part == "last layer" else None
    posterior = lw.fit(model, train, likelihood, prior=prior, select=select)
    again = load(posterior.save(tmp_path / "posterior.safetensors"), model)
    assert same(posterior, again, held_out[0])
    assert repr(posterior) == repr(again)
    assert posterior.evidence_parts == again.evidence_parts
    assert torch.equal(posterior.gaussian.deviations, again.gaussian.deviations)
    assert close(posterior.functions(held_out[0]), again.functions(held_out[0]))
    moved, moved_again = posterior.at(precision=0.5), again.at(precision=0.5)
    assert torch.allclose(
        moved.predict(held_out[0]).epistemic_variance, moved_again.predict(held_out[0]).epistemic_variance, rtol=1e-9
    )
    assert moved.log_evidence.value == pytest.approx(moved_again.log_evidence.value, rel=1e-9)
    assert torch.allclose(moved.mean, moved_again.mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_loaded_posterior_can_be_tuned_without_the_training_data(tmp_path, kind):
    model, train, held_out, likelihood = problem(kind)
    posterior = lw.fit(model, train, likelihood, prior=lw.GPrior(3.0))
    again = load(posterior.save(tmp_path / "p"), model)
    one, other = posterior.tune(held_out), again.tune(held_out)
    assert float(one.prior.precision) == pytest.approx(float(other.prior.precision), rel=1e-9)
    assert torch.allclose(
        one.predict(held_out[0]).epistemic_variance, other.predict(held_out[0]).epistemic_variance, rtol=1e-8
    )
    third = load(one.save(tmp_path / "q"), model)
    assert close(one.curve.held_out, third.curve.held_out)
    assert third.diagnostics.tuned_by == "held-out density"
    assert same(one, third, held_out[0])


METHODS = {
    "primal": lw.Exact("primal"),
    "dual": lw.Exact("dual"),
    "krylov": lw.Krylov(rtol=1e-4),
    "diagonal": lw.Diagonal(),
    "kfac": lw.KFAC(),
    "ekfac": lw.EKFAC(),
    "low rank": lw.LowRank(7),
}


SIZES = {"more data": 40, "more weights": 13}
MOVED = [(method, kind, "more data") for method in METHODS for kind in ("numbers", "classes", "labels")]
# Krylov spaces are primal with many data and dual with few; spectra of Jacobians have fewer values than weights then
MOVED += [(method, "classes", "more weights") for method in ("primal", "dual", "krylov")]


@pytest.mark.parametrize(("method", "kind", "size"), MOVED)
def test_every_method_moves_and_tunes_without_the_training_data(tmp_path, method, kind, size):
    size, method = SIZES[size], METHODS[method]
    model, (x, y), held_out, likelihood = problem(kind)
    posterior = lw.fit(model, (x[:size], y[:size]), likelihood, method=method, prior=lw.GPrior(3.0))
    again = load(posterior.save(tmp_path / "p"), model)
    assert again.model is None
    assert same(posterior, again, held_out[0])
    close = {"rtol": 1e-6, "atol": 1e-9}
    for precision in (0.8, 9.0):
        one, other = posterior.at(precision=precision), again.at(precision=precision)
        for name in ("epistemic_variance", "draws"):
            expected, found = (getattr(p.predict(held_out[0]), name) for p in (one, other))
            torch.testing.assert_close(found, expected, **close)
        torch.testing.assert_close(other.mean, one.mean, rtol=1e-4, atol=1e-5)
        assert other.log_evidence.value == pytest.approx(one.log_evidence.value, rel=1e-7)
    one, other = posterior.tune(held_out), again.tune(held_out)
    assert float(other.prior.precision) == pytest.approx(float(one.prior.precision), rel=1e-6)
    assert other.diagnostics.candidate == one.diagnostics.candidate
    # of a best Gaussian its own precision is a candidate too, and is kept where held-out data prefer it
    own = other.gaussian.moves and other.diagnostics.candidate != "posterior, precision by held-out data"
    assert other.diagnostics.tuned_by == ("given" if own else "held-out density")
    third = load(other.save(tmp_path / "q"), model)  # what was loaded can be saved
    assert same(other, third, held_out[0])


def test_a_loaded_krylov_space_says_where_it_is_too_small(tmp_path):
    model, train, held_out, _ = problem("numbers")
    posterior = lw.fit(model, train, lw.Gaussian(0.3), method=lw.Krylov(), prior=lw.GPrior(100.0), draws=3)
    assert posterior.diagnostics.converged
    again = load(posterior.save(tmp_path / "p"), model)
    moved = again.at(precision=0.01)
    assert moved.diagnostics.error_bound > 0.01
    assert not moved.diagnostics.converged
    assert again.at(precision=1000.0).diagnostics.converged
    lower, upper = again.predict(held_out[0], bounds=True).bounds
    expected = posterior.predict(held_out[0], bounds=True).bounds
    torch.testing.assert_close(lower, expected[0], rtol=1e-8, atol=0)
    torch.testing.assert_close(upper, expected[1], rtol=1e-8, atol=0)


def test_draws_alone_still_predict(tmp_path, monkeypatch):
    model, train, held_out, likelihood = problem("numbers")
    for method in (lw.CG(), lw.Krylov(), lw.Exact(), lw.KFAC()):
        posterior = lw.fit(model, train, likelihood, method=method)
        with monkeypatch.context() as small:
            for module in ("packing", "exact", "krylov", "structured_fits"):
                small.setattr(f"lapwing.bayes.methods.{module}.LARGEST", 0)
            again = load(posterior.save(tmp_path / "p"), model)
        assert again.gaussian.pack() is None
        expected = posterior.predict(held_out[0]).draws
        torch.testing.assert_close(again.predict(held_out[0]).draws, expected, rtol=1e-9, atol=1e-11)
        with pytest.raises(ValueError, match="fit it again"):
            again.at(precision=2.0)
        with pytest.raises(ValueError, match="bounds"):
            again.predict(held_out[0], bounds=True)
        with pytest.raises(ValueError, match="training data"):
            again.verify(held_out[0])


@pytest.mark.parametrize("method", [lw.Krylov(), lw.KFAC()], ids=["krylov", "kfac"])
def test_without_the_loss_in_the_file_the_covariance_still_moves(tmp_path, monkeypatch, method):
    model, train, held_out, likelihood = problem("classes")
    posterior = lw.fit(model, train, likelihood, method=method, prior=lw.GPrior(3.0))
    monkeypatch.setattr("lapwing.bayes.fits.laplace.ModeSearch.pack", lambda self: {})
    again = load(posterior.save(tmp_path / "p"), model)
    assert same(posterior, again, held_out[0])
    torch.testing.assert_close(
        again.predict(held_out[0], mean="linear").mean, posterior.predict(held_out[0], mean="linear").mean
    )
    one, other = posterior.tune(held_out), again.tune(held_out)
    torch.testing.assert_close(other.predict(held_out[0]).probs, one.predict(held_out[0]).probs, rtol=1e-7, atol=1e-9)
    assert other.log_evidence.value != other.log_evidence.value  # NaN
    with pytest.raises(ValueError, match="need the training data"):
        other.predict(held_out[0], mean="linear")
    with pytest.raises(ValueError, match="need the training data"):
        _ = again.curve


def test_a_fit_by_solves_is_not_in_the_file_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("lapwing.bayes.methods.structured_fits.DIRECT_SIZE", 3)
    model, train, held_out, _ = problem("numbers")
    posterior = lw.fit(model, train, lw.Gaussian(0.3), method=lw.KFAC(), prior=lw.GPrior(3.0))
    again = load(posterior.save(tmp_path / "p"), model)
    one, other = posterior.at(precision=9.0).predict(held_out[0]), again.at(precision=9.0).predict(held_out[0])
    torch.testing.assert_close(other.std, one.std)
    with pytest.raises(ValueError, match="need the training data"):
        again.at(precision=9.0).predict(held_out[0], mean="linear")


def test_a_mask_is_kept(tmp_path):
    model, train, held_out, likelihood = problem("numbers")
    model[0].bias.requires_grad_(False)
    size = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    mask = torch.arange(size) % 3 != 0
    posterior = lw.fit(model, train, likelihood, select=mask)
    again = load(posterior.save(tmp_path / "p"), model)
    assert same(posterior, again, held_out[0])


def test_a_linear_model_needs_no_network(tmp_path):
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    posterior = lw.infer(lw.LinearModel(x, x.sum(1), lw.Gaussian(0.1)))
    again = load(posterior.save(tmp_path / "p"))
    assert close(again.predict(x).std, posterior.predict(x).std)
    with pytest.raises(ValueError, match="no network to give"):
        load(tmp_path / "p", network(2))


def test_other_networks_are_refused(tmp_path):
    model, train, _, likelihood = problem("numbers")
    path = lw.fit(model, train, likelihood).save(tmp_path / "p")
    with pytest.raises(ValueError, match="pass that network too"):
        load(path)
    for change in (lambda other: other[3].weight.data.add_(1e-12), lambda other: other[1].running_var.add_(1e-12)):
        other = network(2)
        change(other)
        with pytest.raises(ValueError, match="another network"):
            load(path, other)
    with pytest.raises(ValueError, match="another network"):
        load(path, network(3))


def test_training_on_does_not_change_a_loaded_posterior(tmp_path):
    model, train, held_out, likelihood = problem("numbers")
    again = load(lw.fit(model, train, likelihood).save(tmp_path / "p"), model)
    model[0].weight.data.zero_()
    assert float(again.predict(held_out[0]).mean.std()) > 0.01
    assert not torch.equal(again.predict(held_out[0]).mean, model(held_out[0]))


def test_damaged_files_are_refused(tmp_path):
    model, train, _, likelihood = problem("classes")
    path = lw.fit(model, train, likelihood, prior=lw.GPrior(1.0)).save(tmp_path / "p")
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged"):
            load(path, model)
    path.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(ValueError, match="damaged"):
        load(path, model)
    with pytest.raises(ValueError, match="no saved posterior here"):
        load(tmp_path / "none", model)


def rewritten(path, change):
    """The file with its header's JSON changed, and the checksum of what it then holds."""
    with safe_open(path, framework="pt") as file:
        plain = json.loads(file.metadata()["lapwing"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(plain)
    header = json.dumps(plain)
    save_file(tensors, path, {"lapwing": header, "checksum": checksum(header, tensors)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain.update(format=9), "format 9"),
        (lambda plain: plain.pop("format"), "format None"),
        (lambda plain: plain.pop("seed"), "lacks 'seed'"),
        (lambda plain: plain.update(evidence_parts={"wrong": 1}), "does not hold what it should"),
        (lambda plain: plain["gaussian"]["statistics"].append({}), "lacks the tensor"),
        (lambda plain: plain.update(likelihood={"name": "Cauchy"}), "unknown likelihood 'Cauchy'"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, change, message):
    model, train, _, likelihood = problem("classes")
    path = lw.fit(model, train, likelihood, prior=lw.GPrior(1.0)).save(tmp_path / "p")
    rewritten(path, change)
    with pytest.raises(ValueError, match=message):
        load(path, model)


def test_other_files_of_tensors_are_refused(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "p")
    with pytest.raises(ValueError, match="not a saved posterior"):
        load(tmp_path / "p", network(2))


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    model, train, held_out, likelihood = problem("numbers")
    posterior = lw.fit(model, train, likelihood)
    path = posterior.save(tmp_path / "p")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        posterior.at(precision=9.0).save(path)
    monkeypatch.undo()
    assert same(load(path, model), posterior, held_out[0])
    assert [found.name for found in tmp_path.iterdir()] == ["p"]


def test_damage_anywhere_is_noticed(tmp_path):
    model, train, _, likelihood = problem("numbers")
    path = lw.fit(model, train, likelihood, draws=2).save(tmp_path / "p")
    whole = bytearray(path.read_bytes())
    generator = torch.Generator().manual_seed(0)
    for place in torch.randint(8, len(whole), (60,), generator=generator).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=str(path)):
            load(path, model)


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    model, train, held_out, likelihood = problem("classes")
    posterior = lw.fit(model, train, likelihood, prior=lw.GPrior(3.0))
    path = posterior.save(tmp_path / "p")

    def refuse(*_args, **_options):
        raise AssertionError("unpickled")

    for name in ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load"):
        monkeypatch.setattr(name, refuse)
    assert same(load(path, model), posterior, held_out[0])


FORMAT_1 = Path(__file__).parent / "files"  # written by lapwing 0.1.0, whose files have format 1


def exact_network(outputs):
    """Weights that are the same on every machine, to the bit."""
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((((torch.arange(weight.numel()) * 5) % 13 - 6) / 8).reshape(weight.shape))
    return model.eval()


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_files_of_format_1_are_read(kind):
    x = (((torch.arange(36) * 7) % 19 - 9) / 4).reshape(12, 3).double()
    y = x[:, :2] / 2 if kind == "numbers" else (torch.arange(12) * 5) % 3
    likelihood = lw.Gaussian(0.5) if kind == "numbers" else lw.Categorical()
    model = exact_network(2 if kind == "numbers" else 3)
    again = load(FORMAT_1 / f"{kind}_1.safetensors", model)
    fresh = lw.fit(model, (x, y), likelihood, prior=lw.Isotropic(2.0), draws=3, curvature="network")
    for one, other in ((fresh, again), (fresh.at(precision=5.0), again.at(precision=5.0))):
        first, second = one.predict(x), other.predict(x)
        torch.testing.assert_close(second.epistemic_variance, first.epistemic_variance, rtol=1e-9, atol=0)
        torch.testing.assert_close(second.draws, first.draws, rtol=1e-7, atol=1e-9)
        assert other.log_evidence.value == pytest.approx(one.log_evidence.value, rel=1e-9)


def test_draws_of_format_1_are_read():
    again = load(FORMAT_1 / "draws_1.safetensors")
    x = (((torch.arange(36) * 7) % 19 - 9) / 4).reshape(12, 3).double()
    assert again.predict(x).draws.shape == (3, 12)
    with pytest.raises(ValueError, match="fit it again"):
        again.at(precision=2.0)


@pytest.mark.parametrize("lost", [False, True], ids=["with its loss", "without"])
@pytest.mark.parametrize("likelihood", [Poisson(), HeteroscedasticGaussian()], ids=["counts", "heads"])
def test_counts_and_heads_are_kept(tmp_path, monkeypatch, likelihood, lost):
    model, (x, y), (new, _), _ = problem("numbers")
    targets = y.abs().round() if isinstance(likelihood, Poisson) else y[:, 0]
    posterior = lw.fit(model, (x, targets), likelihood, prior=lw.GPrior(3.0), curvature="network" if lost else None)
    if lost:
        monkeypatch.setattr("lapwing.bayes.fits.laplace.ModeSearch.pack", lambda self: {})
    again = load(posterior.save(tmp_path / "p"), model)
    assert (again.gaussian.fit.kind == "lost") == lost
    for one, other in ((posterior, again), (posterior.at(precision=9.0), again.at(precision=9.0))):
        first, second = one.predict(new), other.predict(new)
        torch.testing.assert_close(second.epistemic_variance, first.epistemic_variance, rtol=1e-8, atol=1e-12)
        assert type(other.likelihood) is type(likelihood)


def test_a_likelihood_of_your_own_cannot_be_saved(tmp_path):
    model, (x, y), _, _ = problem("numbers")
    own = of_your_own(lambda f, y: -0.5 * (y - f).square())
    posterior = lw.fit(model, (x, y), own, prior=lw.GPrior(3.0))
    with pytest.raises(ValueError, match="cannot be saved"):
        posterior.save(tmp_path / "p")
