"""Data in every form: each gives the posterior of plain tensors, or of a dense formula; what cannot be is refused."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from lapwing import Bernoulli, Categorical, Exact, Gaussian, Isotropic, Krylov, fit
from lapwing.bayes.fits.newton import NewtonSteps
from lapwing.network.batches import as_batches
from lapwing.network.data_spec import DataSpec
from lapwing.network.input_tree import chosen
from tests import reference
from tests.network.networks import normal, seeded
from tests.network.sequences import Returned, WholeDictionary, bilinear, dense_rows, tagger, tokens

X, Y, NEW = normal(11, 3, seed=1), normal(11, 2, seed=2), normal(4, 3, seed=3)
W = torch.tensor([0.0, 1.0, 2.0, 3.0, 1.0, 0.5, 1.5, 1.0, 2.0, 1.0, 0.25]).double()
ALPHA, NOISE = 1.7, 0.4


def mlp(outputs: int = 2) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)), None)[0]


def gaussian(model, data, **options):
    return fit(model, data, Gaussian(NOISE), prior=Isotropic(ALPHA), method=Exact(), draws=2, **options)


def assert_same(one, other, new=NEW):
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(one.covariance, other.covariance, rtol=1e-9, atol=1e-11)
    assert one.log_evidence.value == pytest.approx(other.log_evidence.value, rel=1e-10)
    torch.testing.assert_close(one.functions(new), other.functions(new), rtol=1e-8, atol=1e-10)


class Examples(Dataset):
    """One dictionary per datum, with something that is no tensor in it."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict:
        return {"input": self.x[i], "name": f"datum {i}", "target": self.y[i]}


class Pairs(Examples):
    def __getitem__(self, i: int) -> tuple:
        return self.x[i], self.y[i]


class Stream(IterableDataset):
    """No length, no index."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y

    def __iter__(self):
        return iter(zip(self.x, self.y, strict=True))


class Table:
    """Has length and items like a data set of another library, without being one of torch's."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> dict:
        return {"input": X[i], "labels": Y[i]}


class Again:
    """Batches that can be iterated again and again, of no known number."""

    def __iter__(self):
        return iter([(X[:4], Y[:4]), (X[4:], Y[4:])])


FORMS = {
    "dictionary of tensors": {"input": X, "labels": Y},
    "dictionary batches": [{"input": X[:5], "y": Y[:5]}, {"input": X[5:], "y": Y[5:]}],
    "data set of dictionaries": Examples(X, Y),
    "named key": DataSpec({"input": X, "wanted": Y, "labels": X}, targets="wanted"),
    "named keys": DataSpec({"features": X, "wanted": Y, "rest": W}, inputs="features", targets="wanted"),
    "places of a tuple": DataSpec(TensorDataset(Y, W, X), inputs=2, targets=0),
    "loader of dictionaries": DataLoader(Examples(X, Y), batch_size=4, shuffle=True),
    "loader with workers": DataLoader(Pairs(X, Y), batch_size=3, shuffle=True, num_workers=2),
    "iterable without length": Stream(X, Y),
    "loader of an iterable": DataLoader(Stream(X, Y), batch_size=4),
    "iterable of batches": Again(),
    "data set of another library": Table(),
    "arrays": (X.numpy(), Y.numpy()),
    "weights of one": DataSpec((X, Y, torch.ones(11)), weights=2),
    "mask of ones": DataSpec((X, Y, torch.ones(11, 2, dtype=torch.bool)), mask=2),
    "one input in a tuple": ((X,), Y),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_gives_the_posterior_of_plain_tensors(form):
    posterior, plain = gaussian(mlp(), FORMS[form]), gaussian(mlp(), (X, Y))
    assert_same(posterior, plain)
    prediction, expected = posterior.predict(FORMS[form]), plain.predict(X)
    torch.testing.assert_close(prediction.epistemic_variance, expected.epistemic_variance, rtol=1e-9, atol=1e-12)


LOADERS = {
    "drop_last": DataLoader(Pairs(X, Y), 4, drop_last=True),
    "a batch sampler that drops": DataLoader(Pairs(X, Y), batch_sampler=BatchSampler(SequentialSampler(X), 4, True)),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_data_that_a_loader_drops_are_counted_and_read_all_the_same(kind):
    with pytest.warns(UserWarning, match="leaves 3 of 11 data out.*lapwing reads all of them") as found:
        posterior = gaussian(mlp(), LOADERS[kind])
    assert_same(posterior, gaussian(mlp(), (X, Y)))
    assert len(found) == 1


def test_a_loader_that_drops_nothing_is_taken_without_a_word():
    gaussian(mlp(), DataLoader(Pairs(X, Y), 11, drop_last=True))


@pytest.mark.parametrize(
    "new",
    [{"input": NEW}, Examples(NEW, normal(4, 2, seed=9)), [NEW[:1], NEW[1:]], DataLoader(TensorDataset(NEW), 3), NEW.numpy()],
    ids=["dictionary", "data set", "batches without targets", "loader without targets", "array"],
)  # fmt: skip
def test_predict_takes_data_without_targets_in_any_form(new):
    posterior = gaussian(mlp(), (X, Y))
    torch.testing.assert_close(posterior.predict(new).mean, posterior.predict(NEW).mean, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(posterior.predict(new).variance, posterior.predict(NEW).variance, rtol=1e-12, atol=0)


@pytest.mark.parametrize("shape", [(11,), (11, 1)], ids=str)
@pytest.mark.parametrize("squeezed", [True, False], ids=["outputs (n,)", "outputs (n, 1)"])
def test_targets_of_one_number_per_datum_are_never_broadcast(shape, squeezed):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)[:, 0] if squeezed else self.inner(x)

    model, y = seeded(One, None)[0], Y[:, 0]
    posterior = gaussian(model, (X, y.reshape(shape)))
    features = torch.cat([X, torch.ones(11, 1).double()], dim=1)
    noise, prior = torch.full((11,), NOISE**-2, dtype=torch.float64), torch.full((4,), ALPHA, dtype=torch.float64)
    assert posterior.log_evidence.value == pytest.approx(reference.log_evidence_of_data(features, y, noise, prior))
    assert posterior.predict(X).mean.shape == ((11,) if squeezed else (11, 1))


class TestSeveralInputs:
    def test_a_tuple_gives_the_arguments_in_order_and_a_dictionary_by_name(self):
        model, (left, right), y = bilinear()
        rows = dense_rows(model, lambda found: found, left, right)
        noise, prior = (
            torch.full((18,), NOISE**-2, dtype=torch.float64),
            torch.full((rows.shape[1],), ALPHA, dtype=torch.float64),
        )
        _, covariance = reference.posterior(rows, torch.zeros(18).double(), noise, prior)
        for data in (
            ((left, right), y),
            {"right": right, "left": left, "labels": y, "id": torch.arange(9)},
            DataSpec(TensorDataset(left, right, y), inputs=(0, 1), targets=2),
            [((left[:4], right[:4]), y[:4]), ((left[4:], right[4:]), y[4:])],
        ):
            posterior = gaussian(model, data)
            torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-8, atol=1e-10)
        for new in ((left, right), {"left": left, "right": right}, ((left, right), None)):
            torch.testing.assert_close(posterior.predict(new).mean, model(left, right))

    def test_a_network_that_takes_its_batch_as_a_dictionary(self):
        model, (left, right), y = bilinear()
        outer = seeded(WholeDictionary, None)[0]
        outer.inner.load_state_dict(model.state_dict())
        one, other = gaussian(outer, {"left": left, "right": right, "y": y}), gaussian(model, ((left, right), y))
        torch.testing.assert_close(one.covariance, other.covariance, rtol=1e-9, atol=1e-11)

    @pytest.mark.parametrize("method", [Krylov(rtol=1e-9), "KFAC", "Diagonal"], ids=str)
    def test_every_method_takes_them(self, method):
        import lapwing as lw

        model, (left, right), y = bilinear()
        method = getattr(lw, method)() if isinstance(method, str) else method
        one = fit(model, ((left, right), y), Gaussian(NOISE), prior=Isotropic(ALPHA), method=method, draws=3)
        joined = nn.Sequential(Joined(model)).eval()
        other = fit(
            joined, (torch.cat([left, right], 1), y), Gaussian(NOISE), prior=Isotropic(ALPHA), method=method, draws=3
        )
        torch.testing.assert_close(one.draws, other.draws, rtol=1e-6, atol=1e-8)


class Joined(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, :3], x[:, 3:])


class TestWeights:
    def test_a_weight_is_a_power_of_the_likelihood(self):
        model = mlp()
        posterior = gaussian(model, DataSpec((X, Y, W), weights=2))
        rows, w = dense_rows(model, lambda found: found, X), W.repeat_interleave(2)
        flat = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])
        targets = Y.reshape(-1) - model(X).detach().reshape(-1) + rows @ flat
        kept, prior = w > 0, torch.full((rows.shape[1],), ALPHA, dtype=torch.float64)
        given = (rows[kept], targets[kept], w[kept] * NOISE**-2, prior)
        mean, covariance = reference.posterior(*given)
        torch.testing.assert_close(posterior.mean, mean, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-8, atol=1e-10)
        assert posterior.log_evidence.value == pytest.approx(reference.log_evidence(*given, w[kept]), rel=1e-9)

    @pytest.mark.parametrize(
        "likelihood", [Gaussian(NOISE), Categorical(), Bernoulli()], ids=lambda one: type(one).__name__
    )
    def test_whole_weights_are_repeated_data(self, likelihood):
        counts = torch.tensor([0, 1, 2, 3, 1, 1, 0, 1, 2, 1, 1])
        y = {Gaussian: Y, Categorical: torch.arange(11) % 2, Bernoulli: (Y > 0).double()}[type(likelihood)]
        options = {"prior": Isotropic(ALPHA), "method": Exact(newton=NewtonSteps(1e-20)), "draws": 0}
        weighted = fit(
            mlp(), DataSpec({"input": X, "labels": y, "often": counts}, weights="often"), likelihood, **options
        )
        repeated = fit(mlp(), (X.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0)), likelihood, **options)
        torch.testing.assert_close(weighted.mean, repeated.mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(weighted.covariance, repeated.covariance, rtol=1e-8, atol=1e-10)
        assert weighted.log_evidence.value == pytest.approx(repeated.log_evidence.value, rel=1e-8)

    def test_weights_of_held_out_data_count_in_tuning(self):
        counts = torch.tensor([0, 1, 2, 3])
        held, repeats = normal(4, 2, seed=8), NEW.repeat_interleave(counts, 0)
        plain = gaussian(mlp(), (X, Y))
        one, other = (
            plain.tune(DataSpec((NEW, held, counts), weights=2)),
            plain.tune((repeats, held.repeat_interleave(counts, 0))),
        )
        torch.testing.assert_close(one.prior.precision, other.prior.precision, rtol=1e-4, atol=0)
        torch.testing.assert_close(one.curve.held_out, other.curve.held_out, rtol=1e-9, atol=1e-12)


class TestMasks:
    @pytest.mark.parametrize("likelihood", [Gaussian(NOISE), Bernoulli()], ids=lambda one: type(one).__name__)
    def test_a_mask_over_targets_leaves_their_rows_out(self, likelihood):
        model, mask = mlp(), normal(11, 2, seed=5) > -0.5
        y = Y if isinstance(likelihood, Gaussian) else (Y > 0).double()
        data = DataSpec({"input": X, "labels": y, "valid": mask}, mask="valid")
        given = {"prior": Isotropic(ALPHA), "draws": 0}
        posterior = fit(model, data, likelihood, method=Exact(), curvature="network", **given)
        rows = dense_rows(model, lambda found: found, X)
        p = model(X).detach().sigmoid()
        noise = (
            torch.full((22,), NOISE**-2, dtype=torch.float64)
            if isinstance(likelihood, Gaussian)
            else (p * (1 - p)).reshape(-1)
        )
        kept, prior = mask.reshape(-1), torch.full((rows.shape[1],), ALPHA, dtype=torch.float64)
        covariance = torch.linalg.inv(reference.precision(rows[kept], noise[kept], prior))
        torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-8, atol=1e-10)
        nonsense = {**data.data, "labels": torch.where(mask, y, 1 - y)}
        for options in ({"method": Exact(), "curvature": "network"}, {"method": Exact(newton=NewtonSteps(1e-20))}):
            one = fit(model, data, likelihood, **options, **given)
            other = fit(model, DataSpec(nonsense, mask="valid"), likelihood, **options, **given)
            assert other.log_evidence.value == pytest.approx(one.log_evidence.value, rel=1e-9)

    @pytest.mark.parametrize("form", ["-100", "mask"])
    def test_tokens_of_a_language_model_style_batch(self, form):
        """input_ids, attention_mask, labels; logits among what is returned; ignored places do not count."""
        model, batch = tagger(), tokens()
        labels = batch["labels"]
        data = batch if form == "-100" else DataSpec({**batch, "labels": labels.clamp_min(0)}, mask="attention_mask")
        posterior = fit(
            model, data, Categorical(), prior=Isotropic(ALPHA), method=Exact(), draws=0, curvature="network"
        )
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        rows = dense_rows(model, lambda found: found.logits, **inputs).reshape(30, 3, -1)
        probs = model(**inputs).logits.detach().softmax(-1).reshape(30, 3)
        kept = (labels != -100).reshape(-1)
        blocks = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
        curvature = torch.einsum("nap,nab,nbq->pq", rows[kept], blocks[kept], rows[kept])
        covariance = torch.linalg.inv(curvature + ALPHA * torch.eye(rows.shape[2]).double())
        torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-7, atol=1e-9)
        prediction = posterior.predict(inputs)
        assert prediction.probs.shape == (6, 5, 3)
        assert prediction.entropy.shape == (6, 5)
        assert prediction.novelty.shape == (6,)
        own = torch.einsum("nap,pq,nbq->nab", rows, covariance, rows).reshape(6, 5, 3, 3)
        torch.testing.assert_close(prediction.observation.spread.covariance, own, rtol=1e-6, atol=1e-8)
        density = prediction.log_prob(labels)
        assert bool((density[labels == -100] == 0).all())
        assert bool((density[labels != -100] < 0).all())

    def test_held_out_tokens_that_are_ignored_change_nothing(self):
        model, batch = tagger(), tokens()
        held = {key: value.flip(0) for key, value in batch.items()}
        posterior = fit(model, batch, Categorical(), prior=Isotropic(ALPHA), method=Exact(), draws=2)
        one = posterior.tune(held)
        ignored = held["labels"] == -100
        masked = DataSpec({**held, "labels": torch.where(ignored, 1, held["labels"]), "m": ~ignored}, mask="m")
        torch.testing.assert_close(posterior.tune(masked).curve.held_out, one.curve.held_out, rtol=1e-10, atol=1e-12)
        assert one.diagnostics.temperature_scaling["held_out"] >= one.diagnostics.temperature_scaling["held_out_plain"]


class Nested(nn.Module):
    """Returns its outputs inside something else."""

    def __init__(self, wrap):
        super().__init__()
        self.inner, self.wrap = mlp(), wrap

    def forward(self, x: Tensor):
        return self.wrap(self.inner(x))


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda f: {"logits": f, "hidden": f + 1}, None),
        (lambda f: {"only": f, "name": "a string"}, None),
        (lambda f: Returned(None, f, f + 1), None),
        (lambda f: (f, "a string"), None),
        (lambda f: (f + 1, f), 1),
        (lambda f: {"a": f + 1, "b": f}, "b"),
        (lambda f: {"head": {"deep": (f,)}}, lambda found: found["head"]["deep"][0]),
    ],
    ids=["logits", "the only tensor", "a dataclass", "a tuple", "by place", "by key", "by a function"],
)
def test_nested_outputs(wrap, output):
    model = Nested(wrap).eval()
    posterior, plain = gaussian(model, (X, Y), output=output), gaussian(mlp(), (X, Y))
    assert_same(posterior, plain)
    torch.testing.assert_close(posterior.predict(NEW).std, plain.predict(NEW).std, rtol=1e-9, atol=0)


class Once(IterableDataset):
    """Empty at the second pass."""

    def __init__(self):
        self.left = iter([(X[0], Y[0]), (X[1], Y[1])])

    def __iter__(self):
        return self.left


class Shrinking:
    """Has fewer data at every pass."""

    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter([(X[:4], Y[:4])] + [(X[4:], Y[4:])] * (self.passes <= 4))


class Jittered(Pairs):
    """A random transform of the inputs, by one of the global random states."""

    def __init__(self, draw):
        super().__init__(X, Y)
        self.draw = draw

    def __getitem__(self, i: int) -> tuple:
        return self.x[i] + self.draw(), self.y[i]


def ragged():
    batch = tokens()
    return [batch, {key: value[:, :4] for key, value in batch.items()}]


TOKENS = tokens()
HALF = SubsetRandomSampler(range(5))
BAD = {
    "random transforms by torch": (lambda: gaussian(mlp(), Jittered(lambda: torch.rand(()))), "random transforms off"),
    "random transforms by NumPy": (lambda: gaussian(mlp(), Jittered(np.random.rand)), "random transforms off"),
    "random transforms by Python": (lambda: gaussian(mlp(), DataLoader(Jittered(random.random), 4)), "random transforms off"),
    "a stream that is cut at its end": (lambda: gaussian(mlp(), DataLoader(Stream(X, Y), 4, drop_last=True)), "drop_last=False"),
    "a sampler of a part": (lambda: gaussian(mlp(), DataLoader(Pairs(X, Y), 4, sampler=HALF)), "5 of 11 data.*Subset"),
    "a mask that does not fit": (lambda: gaussian(mlp(), DataSpec((X, Y, torch.ones(11, 3)), mask=2)), r"mask of shape \(11, 3\) does not fit targets of shape \(11, 2\)"),
    "a mask of numbers": (lambda: gaussian(mlp(), DataSpec((X, Y, 2 * torch.ones(11, 2)), mask=2)), "true or false"),
    "a mask that leaves nothing": (lambda: gaussian(mlp(), DataSpec((X, Y, torch.zeros(11, 2)), mask=2)), "every weight is zero"),
    "only ignored targets": (lambda: fit(tagger(), {**TOKENS, "labels": torch.full((6, 5), -100)}, Categorical()), "every target is -100"),
    "negative weights": (lambda: gaussian(mlp(), DataSpec((X, Y, -W), weights=2)), "not negative"),
    "weights of another number": (lambda: gaussian(mlp(), DataSpec([(X, Y, W[:5])], weights=2)), r"weights of shape \(5,\) for 11 data"),
    "an unknown key": (lambda: gaussian(mlp(), DataSpec({"input": X, "labels": Y}, weights="w")), "no 'w' in this batch.*expected one of"),
    "keys for bare tensors": (lambda: gaussian(mlp(), DataSpec([X, X], targets=1)), "keys are for batches of several parts"),
    "several possible targets": (lambda: gaussian(mlp(), {"input": X, "labels": Y, "target": Y}), r"may all be targets: say which, DataSpec\(data, targets='labels'\)"),
    "no targets": (lambda: gaussian(mlp(), {"input": X}), "the data have no targets"),
    "a bare tensor": (lambda: gaussian(mlp(), X), "cannot read data of type Tensor"),
    "a dictionary without tensors": (lambda: gaussian(mlp(), [{"input": ["a", "b"], "labels": Y[:2]}]), "the inputs hold no tensor"),
    "an empty iterable": (lambda: gaussian(mlp(), Stream(X[:0], Y[:0])), "the data are empty"),
    "an iterable that can be read once": (lambda: gaussian(mlp(), Once()), "a second pass over the data is empty"),
    "a generator": (lambda: gaussian(mlp(), (pair for pair in [(X, Y)])), "a generator can be read only once"),
    "an iterable that changes its length": (lambda: gaussian(mlp(), Shrinking()), "this pass over the data had 4 of them and an earlier one 11"),
    "three parts without keys": (lambda: gaussian(mlp(), TensorDataset(X, Y, W)), r"DataSpec\(data, weights=2\)"),
    "inputs of different numbers": (lambda: gaussian(bilinear()[0], [((X, X[:5]), Y)]), "do not agree in their number of data"),
    "targets of another number": (lambda: gaussian(mlp(), {"input": X, "labels": Y[:5]}), "11 inputs and 5 targets"),
    "targets with their axes turned": (lambda: gaussian(mlp(), (X[:2], Y[:2].mT[:, :1])), "do not fit outputs"),
    "batches of different lengths": (lambda: fit(tagger(), ragged(), Categorical()), "padding all of them to one length"),
    "NaN in one of several inputs": (lambda: gaussian(bilinear()[0], {"left": X, "right": X[:, :2] * torch.nan, "y": Y}), r"inputs \(right\) contain NaN"),
    "two tensors returned": (lambda: gaussian(Nested(lambda f: (f, f + 1)).eval(), (X, Y)), "say which is meant by output="),
    "no such output": (lambda: gaussian(Nested(lambda f: {"a": f}).eval(), (X, Y), output="b"), r"has no 'b': output= is one of \['a'\]"),
    "an output that is no tensor": (lambda: chosen({"a": "text"}, "a"), "expected a tensor"),
    "weights where they are not used": (lambda: list(as_batches(DataSpec((X, Y, W), weights=2))), "weights or a mask, which are not used here"),
    "a class axis that is not there": (lambda: fit(mlp(), (X, torch.zeros(11)), Categorical(dim=2)), r"Categorical\(dim=2\) does not fit"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_data_get_a_clear_error(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()
