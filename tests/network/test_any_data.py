"""Data cut into batches in any way are the same data, and what is in a file comes back, whatever it is."""

import tempfile
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import lapwing as lw
from lapwing.network.batches import Batches, as_batches
from lapwing.runtime.journal import Journal
from tests.network.networks import normal, seeded
from tests.network.test_files import same

SEEDS = st.integers(0, 2**31)


class Pairs(Dataset):
    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


class Stream(IterableDataset):
    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y

    def __iter__(self):
        return iter(zip(self.x, self.y, strict=True))


def cut_up(draw: st.DrawFn, x: Tensor, y: Tensor):
    """The same data in one of the forms that are read, in batches of any sizes."""
    size = draw(st.integers(1, len(x) + 2))
    match draw(st.sampled_from(["pair", "list", "data set", "loader", "stream"])):
        case "list":
            ends = sorted({draw(st.integers(1, len(x))) for _ in range(3)} | {len(x)})
            starts = [0, *ends[:-1]]
            return [(x[start:stop], y[start:stop]) for start, stop in zip(starts, ends, strict=True)]
        case "data set":
            return as_batches(Pairs(x, y), size)
        case "loader":
            return DataLoader(TensorDataset(x, y), batch_size=size, shuffle=draw(st.booleans()))
        case "stream":
            return DataLoader(Stream(x, y), batch_size=size)
    return as_batches((x, y), size)


@st.composite
def data(draw: st.DrawFn) -> tuple[Tensor, Tensor, Batches]:
    n, seed = draw(st.integers(1, 19)), draw(SEEDS)
    x, y = normal(n, 3, seed=seed), normal(n, 2, seed=seed + 1)
    return x, y, as_batches(cut_up(draw, x, y))


@settings(max_examples=80, deadline=None)
@given(data(), st.data())
def test_batches_hold_every_datum_once_and_in_order(given_one, more) -> None:
    x, y, batches = given_one
    for _ in range(2):  # at every pass
        assert torch.equal(torch.cat([inputs for inputs, _ in batches]), x)
    assert torch.equal(batches.targets, y)
    assert batches.count == batches.inputs.count == len(x)
    assert torch.equal(torch.cat(list(batches.inputs)), x)
    first = more.draw(st.integers(0, len(x) - 1))
    last = more.draw(st.integers(first + 1, len(x)))
    assert torch.equal(torch.cat(list(batches.inputs.between(first, last))), x[first:last])


def network():
    return seeded(lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)), None)[0]


@settings(max_examples=12, deadline=None)
@given(data(), st.sampled_from([lw.Exact(), lw.Krylov(rtol=1e-9)]))
def test_the_posterior_does_not_know_of_batches(given_one, method) -> None:
    x, y, batches = given_one
    options = {"prior": lw.Isotropic(1.3), "method": method, "draws": 3, "seed": 1}
    one = lw.fit(network(), [(x, y)], lw.Gaussian(0.5), **options)
    found = lw.fit(network(), batches, lw.Gaussian(0.5), **options)
    # both solve systems of condition 1e3 at most, to 1e-9 where iteratively
    torch.testing.assert_close(found.draws, one.draws, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(found.mean, one.mean, rtol=1e-7, atol=1e-7)


METHODS = (lw.Exact(), lw.Krylov(), lw.CG(), lw.Diagonal(), lw.KFAC(), lw.EKFAC(), lw.LowRank(3))
LIKELIHOODS = {
    "numbers": (lambda y: y, (lw.Gaussian(0.5), lw.Gaussian())),
    "classes": (lambda y: y.argmax(1), (lw.Categorical(),)),
    "labels": (lambda y: (y > 0).double(), (lw.Bernoulli(),)),
}


@st.composite
def posteriors(draw: st.DrawFn) -> lw.Posterior:
    """Of any kind, number of data and draws, precision and part of the weights."""
    n, seed = draw(st.integers(3, 25)), draw(SEEDS)
    of_numbers, likelihoods = LIKELIHOODS[draw(st.sampled_from(sorted(LIKELIHOODS)))]
    x, y = normal(n, 3, seed=seed), of_numbers(normal(n, 2, seed=seed + 1))
    precision = 10 ** draw(st.floats(-2, 2))
    prior = draw(st.sampled_from([lw.Isotropic, lw.GPrior]))(precision)
    mask = torch.rand(26, generator=torch.Generator().manual_seed(seed)) < draw(st.sampled_from([0.4, 1.0]))
    mask[draw(st.integers(0, 25))] = True
    method = draw(st.sampled_from(METHODS))
    part = None if isinstance(method, lw.KFAC | lw.EKFAC) else mask
    return lw.fit(
        network(), (x, y), draw(st.sampled_from(likelihoods)), prior=prior, method=method, select=part,
        draws=draw(st.integers(1, 5)), seed=seed,
    )  # fmt: skip


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(posteriors())
def test_what_is_loaded_is_what_was_saved(posterior: lw.Posterior) -> None:
    inputs = normal(6, 3, seed=9)
    with tempfile.TemporaryDirectory() as folder:
        again = lw.load(posterior.save(Path(folder) / "posterior"), network())
        twice = lw.load(again.save(Path(folder) / "again"), network())
    for found in (again, twice):
        assert same(posterior, found, inputs)
        assert torch.equal(found.mean, posterior.mean)
        assert torch.equal(found.draws, posterior.draws)
        assert repr(found.log_evidence) == repr(posterior.log_evidence)
        assert found.effective_dimension == posterior.effective_dimension
        assert repr(found) == repr(posterior)


KINDS = (torch.float64, torch.float32, torch.int64, torch.bool, torch.uint8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Of any kind and shape, laid out in any way, with what numbers there are."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    bits = torch.randint(0, 256, (*shape, 8), generator=torch.Generator().manual_seed(draw(SEEDS)), dtype=torch.uint8)
    kind = draw(st.sampled_from(KINDS))
    found = bits[..., 0] > 127 if kind == torch.bool else bits.view(kind)[..., 0]
    return found.mT if found.ndim > 1 and draw(st.booleans()) else found


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).numpy().tobytes()


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.text(st.characters(codec="ascii", min_codepoint=97), min_size=1, max_size=5), tensors(), max_size=4),
    st.dictionaries(st.text(max_size=5).filter(lambda name: name != "format"), PLAIN, max_size=4), st.data(),
)  # fmt: skip
def test_a_journal_gives_back_every_bit_or_nothing(given_tensors, plain, more) -> None:
    """NaN, negative zeros and no elements at all included; of a file with one byte changed, nothing."""
    with tempfile.TemporaryDirectory() as name:
        journal = Journal(Path(name))
        journal.found("one", lambda: (given_tensors, plain))
        found = Journal(Path(name)).read("one")
        assert found is not None
        assert found[1] == plain
        assert found[0].keys() == given_tensors.keys()
        for key, tensor in given_tensors.items():
            assert (found[0][key].dtype, found[0][key].shape) == (tensor.dtype, tensor.shape)
            assert bits(found[0][key]) == bits(tensor)
        content = bytearray((Path(name) / "one.safetensors").read_bytes())
        place, change = more.draw(st.integers(0, len(content) - 1)), more.draw(st.integers(1, 255))
        content[place] ^= change
        (Path(name) / "one.safetensors").write_bytes(content)
        damaged = Journal(Path(name)).read("one")
        assert damaged is None or (
            damaged[1] == plain and all(bits(damaged[0][key]) == bits(part) for key, part in given_tensors.items())
        )
