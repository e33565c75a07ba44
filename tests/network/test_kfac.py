"""Kronecker factors of networks against brute force, and their corrections against dense Jacobians."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian, jacrev
from torch.nn import functional as F

from lapwing.linalg.kronecker import fitting
from lapwing.network.jacobian import Network
from lapwing.network.kfac import bernoulli, categorical, diagonal, eigencorrected, factorise, gaussian, variances
from tests.network.layers import LAYERS, Adapter
from tests.network.networks import NETWORKS, normal, seeded
from tests.network.test_linearisation import dense_jacobian

ALL = {**NETWORKS, **LAYERS}
ROOTS = {"gaussian": gaussian(1.7), "categorical": categorical(), "bernoulli": bernoulli()}


def dense_hessian(kind: str, outputs: Tensor) -> Tensor:  # (n, c, c)
    if kind == "gaussian":
        return 1.7 * torch.eye(outputs.shape[1]).double().expand(len(outputs), -1, -1)
    p = outputs.softmax(1) if kind == "categorical" else outputs.sigmoid()
    if kind == "bernoulli":
        return torch.diag_embed(p * (1 - p))
    return torch.diag_embed(p) - p[:, :, None] * p[:, None]


def dense_ggn(model: nn.Module, inputs: Tensor, kind: str, counts: Tensor | None = None) -> Tensor:  # (n, p, p)
    outputs = model(inputs).detach()
    jacobian = dense_jacobian(model, inputs).reshape(*outputs.shape, -1)
    curvature = dense_hessian(kind, outputs) * (1 if counts is None else counts[:, None, None])
    return jacobian.mT @ curvature @ jacobian


def dense_blocks(matrix: Tensor, structure) -> Tensor:
    """The matrix with everything outside the structure's blocks set to zero."""
    kept = torch.zeros_like(matrix)
    for block in structure.blocks:
        for index in block.index.flatten(1):
            kept[index[:, None], index] = matrix[index[:, None], index]
    return kept


@pytest.mark.parametrize("kind", ROOTS)
def test_roots_are_roots_of_the_hessian(kind):
    outputs = normal(5, 4, seed=1)
    root = ROOTS[kind](outputs, 0)
    torch.testing.assert_close(root @ root.mT, dense_hessian(kind, outputs), rtol=1e-12, atol=1e-15)
    assert root.shape[2] == (3 if kind == "categorical" else 4)


def test_gaussian_precisions_are_per_output_of_every_datum():
    precision = torch.linspace(1, 3, 12, dtype=torch.float64)
    root = gaussian(precision)(normal(2, 3, seed=1), 1)
    torch.testing.assert_close(root @ root.mT, torch.diag_embed(precision[3:9].reshape(2, 3)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ROOTS)
@pytest.mark.parametrize("name", ["mlp", "cnn", "text", "owned"])
def test_the_diagonal_is_that_of_the_dense_ggn(name, kind):
    model, inputs = ALL[name]()
    counts = torch.linspace(0.5, 3, len(inputs), dtype=torch.float64)
    expected = dense_ggn(model, inputs, kind, counts).sum(0).diagonal()
    found = diagonal(Network.of(model), [inputs[:2], inputs[2:]], ROOTS[kind], counts=counts)
    torch.testing.assert_close(found.value, expected, rtol=1e-10, atol=1e-12)
    probed = diagonal(Network.of(model), [inputs], ROOTS[kind], counts=counts, probes=200)
    alive = expected > 1e-10
    assert float(((probed.value - expected) / probed.standard_error.clamp_min(1e-12))[alive].abs().max()) < 5


@pytest.mark.parametrize("kind", ROOTS)
def test_one_datum_is_exact(kind):
    """For N = 1 and one position every block is the dense one; so is it for any N with equal activations."""
    model, inputs = ALL["mlp"]()
    for data in (inputs[:1], inputs[:1].repeat(5, 1)):
        structure = factorise(Network.of(model), [data], ROOTS[kind]).structure()
        expected = dense_blocks(dense_ggn(model, data, kind).sum(0), structure)
        torch.testing.assert_close(structure.dense(), expected, rtol=1e-9, atol=1e-12)


def test_a_linear_network_with_gaussian_noise_is_exact():
    """G is the same for every datum, so A ⊗ G / N is Σ A_n ⊗ G: here the dense GGN itself."""
    model, inputs = seeded(lambda: nn.Linear(4, 3), normal(6, 4, seed=1))
    structure = factorise(Network.of(model), [inputs[:4], inputs[4:]], gaussian(1.7)).structure()
    torch.testing.assert_close(structure.dense(), dense_ggn(model, inputs, "gaussian").sum(0), rtol=1e-10, atol=1e-12)


def test_where_outputs_are_linear_in_the_weights_it_is_the_hessian():
    """Diagonal and, for one datum, the whole block, against the Hessian of the cross-entropy by autograd."""
    model, inputs = seeded(lambda: nn.Linear(4, 3), normal(6, 4, seed=1))
    labels = torch.tensor([0, 2, 1, 1, 0, 2])

    def loss(flat: Tensor, data: int) -> Tensor:
        weight, bias = flat[:12].reshape(3, 4), flat[12:]
        return F.cross_entropy(F.linear(inputs[:data], weight, bias), labels[:data], reduction="sum")

    flat = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])
    whole = diagonal(Network.of(model), [inputs], categorical()).value
    torch.testing.assert_close(whole, hessian(loss)(flat, 6).diagonal(), rtol=1e-10, atol=1e-13)
    one = factorise(Network.of(model), [inputs[:1]], categorical()).structure().dense()
    torch.testing.assert_close(one, hessian(loss)(flat, 1), rtol=1e-9, atol=1e-13)


class Shifted(nn.Module):
    """A network whose layer has something added to its output, to differentiate in."""

    def __init__(self, model: nn.Module, layer: nn.Module):
        super().__init__()
        self.model, self.layer = model, layer

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        hook = self.layer.register_forward_hook(lambda module, args, output: output + shift)
        try:
            return self.model(x)
        finally:
            hook.remove()


def seen(model: nn.Module, layer: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """What goes into a layer and what comes out of it."""
    found = []
    hook = layer.register_forward_hook(lambda module, args, output: found.append((args[0].detach(), output.detach())))
    model(inputs)
    hook.remove()
    return found[0]


def test_factors_of_a_convolution_are_those_of_brute_force_unfolding():
    model, inputs = ALL["conv2d"]()
    conv, counts = model[0], torch.tensor([1.0, 2.0, 3.0, 1.0, 0.5]).double()
    x, y = seen(model, conv, inputs)
    patches = F.unfold(x, conv.kernel_size, padding=conv.padding, stride=conv.stride).mT  # (n, t, i)
    patches = torch.cat([patches, torch.ones_like(patches[..., :1])], dim=2)
    root = categorical()(model(inputs).detach(), 0) * counts.sqrt()[:, None, None]
    shifted = jacrev(lambda shift: Shifted(model, conv)(inputs, shift))(torch.zeros_like(y))  # (n, c, n, o, h, w)
    own = torch.stack([shifted[n, :, n] for n in range(len(inputs))]).flatten(3).detach()  # (n, c, o, t)
    signals = torch.einsum("ncot,nck->nkto", own, root)
    positions = patches.shape[1]
    expand = torch.einsum("nktp,nktq->pq", signals, signals), torch.einsum("n,ntp,ntq->pq", counts, patches, patches)
    means, sums = patches.mean(1), signals.sum(2)
    reduced = torch.einsum("nkp,nkq->pq", sums, sums), torch.einsum("n,np,nq->pq", counts, means, means)
    for sharing, (left, right), terms in (("expand", expand, positions * 7.5), ("reduce", reduced, 7.5)):
        found = factorise(
            Network.of(model), [inputs[:2], inputs[2:]], categorical(), counts=counts, sharing=sharing
        ).factors[0]
        assert found.name == "0"
        torch.testing.assert_close(found.left[0], left, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(found.right[0], right / terms, rtol=1e-10, atol=1e-13)


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).mean(1)


class Independent(nn.Module):
    """One matrix at three positions whose outputs are outputs of their own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).flatten(1)


@pytest.mark.parametrize(("make", "sharing"), [(Averaged, "reduce"), (Independent, "expand")])
def test_each_form_of_sharing_is_exact_in_its_own_case(make, sharing):
    """A linear layer over positions that are averaged (reduce), or that each have outputs of their own (expand)."""
    model, inputs = seeded(make, normal(6, 3, 4, seed=1))
    expected = dense_ggn(model, inputs, "gaussian").sum(0)
    found, other = (
        factorise(Network.of(model), [inputs], gaussian(1.7), sharing=form).structure().dense()
        for form in (sharing, "reduce" if sharing == "expand" else "expand")
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert float((other - expected).norm() / expected.norm()) > 0.1


def test_a_layer_used_twice_and_tied_weights_are_summed_over_their_uses():
    model, inputs = ALL["tied"]()
    found = {part.name: part for part in factorise(Network.of(model), [inputs], gaussian()).factors}
    assert set(found) == {"first", "second.weight", "again.bias"}
    first = torch.tanh(model.first(inputs))
    middle = torch.tanh(model.first(model.second(first)))
    rows = torch.cat([first, middle]).detach()  # what the tied matrix is multiplied with
    torch.testing.assert_close(found["second.weight"].right[0], rows.mT @ rows / 22, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ALL)
def test_counts_are_repetitions(name):
    model, inputs = ALL[name]()
    counts = torch.tensor([1, 3, 2, 1, 2, 1, 1, 2, 1, 1, 1])[: len(inputs)]
    again = inputs.repeat_interleave(counts, dim=0)
    for sharing in ("expand", "reduce"):
        one = factorise(Network.of(model), [inputs], gaussian(0.6), counts=counts.double(), sharing=sharing)
        other = factorise(Network.of(model), [again], gaussian(0.6), sharing=sharing)
        torch.testing.assert_close(one.structure().dense(), other.structure().dense(), rtol=1e-9, atol=1e-11)


def separable_scale(factored, seed: int) -> Tensor:
    return fitting(factored.factors, normal(factored.size, seed=seed).abs() + 0.2)


@pytest.mark.parametrize("name", ALL)
def test_corrected_eigenvalues_are_the_dense_second_moments_along_the_eigenvectors(name):
    model, inputs = ALL[name]()
    network, kind = Network.of(model), "categorical"
    counts = torch.linspace(0.5, 2, len(inputs), dtype=torch.float64)
    ggn = dense_ggn(model, inputs, kind, counts).sum(0)
    factored = factorise(network, [inputs], categorical(), counts=counts)
    for scale in (None, separable_scale(factored, seed=3)):
        structure = eigencorrected(
            network, [inputs[:2], inputs[2:]], categorical(), factored, counts=counts, scale=scale
        )
        for block in structure.blocks:
            o, i = block.index.shape[1:]
            units = torch.eye(o * i).double().reshape(o, i, o * i)
            for group, index in enumerate(block.index.flatten(1)):
                padded = torch.zeros(*block.index.shape, o * i).double()
                padded[group] = units
                vectors = block.back(padded)[group].reshape(o * i, o * i)
                along = (vectors * (ggn[index[:, None], index] @ vectors)).sum(0).reshape(o, i)
                torch.testing.assert_close(block.values[group], along, rtol=1e-7, atol=1e-9)
        exact = dense_blocks(ggn, structure)
        plain = factored.structure(scale)
        errors = [_whitened(part.dense() - exact, part.scale).norm() for part in (structure, plain)]
        assert errors[0] <= errors[1] * (1 + 1e-9)  # nothing with these eigenvectors is nearer


def _whitened(matrix: Tensor, scale: Tensor) -> Tensor:
    return scale[:, None] * matrix * scale


@pytest.mark.parametrize("name", ALL)
def test_normalisation_layers_and_other_tensors_have_their_exact_blocks(name):
    model, inputs = ALL[name]()
    factored = factorise(Network.of(model), [inputs], categorical())
    ggn, found = dense_ggn(model, inputs, "categorical").sum(0), factored.structure().dense()
    exact = [part for part in factored.factors if part.kind == "exact"]
    assert {part.name for part in exact} == set(factored.diagnostics["exact"])
    assert not factored.diagnostics["diagonal"]
    for part in exact:
        index = part.index.flatten()
        torch.testing.assert_close(found[index[:, None], index], ggn[index[:, None], index], rtol=1e-9, atol=1e-11)
    covered = torch.cat([part.index.flatten() for part in factored.factors]).sort().values
    assert torch.equal(covered, torch.arange(factored.size))


@pytest.mark.parametrize("name", ALL)
def test_variances_without_rows_are_those_of_rows(name):
    model, inputs = ALL[name]()
    network = Network.of(model)
    factored = factorise(network, [inputs], categorical())
    rows = dense_jacobian(model, inputs)
    for scale in (None, separable_scale(factored, seed=5)):
        structure = factored.structure(scale)
        prior = 0.3 / structure.scale.square()
        precision = structure.dense() + torch.diag(prior)
        expected = (rows * torch.linalg.solve(precision, rows.mT).mT).sum(1).reshape(len(inputs), -1)
        found = variances(network, [inputs[:2], inputs[2:]], structure, factored.layers, 0.3)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_large_vectors_get_a_diagonal_and_are_named(monkeypatch):
    monkeypatch.setattr("lapwing.network.kfac.factors.EXACT", 4)
    model, inputs = ALL["attention"]()
    factored = factorise(Network.of(model), [inputs], categorical())
    assert set(factored.diagnostics["diagonal"]) == {
        "layer.norm1", "layer.norm2", "layer.self_attn.in_proj_weight", "layer.self_attn.in_proj_bias",
        "layer.self_attn.out_proj.weight", "layer.self_attn.out_proj.bias",
    }  # fmt: skip
    structure, ggn = factored.structure(), dense_ggn(model, inputs, "categorical").sum(0).diagonal()
    for part in factored.factors:
        if part.kind == "diagonal":
            torch.testing.assert_close(structure.dense().diagonal()[part.index], ggn[part.index], rtol=1e-9, atol=1e-11)
    rows = dense_jacobian(model, inputs)
    found = variances(Network.of(model), [inputs], structure, factored.layers, 0.3)
    torch.testing.assert_close(found.flatten(), structure.variance(rows, 0.3), rtol=1e-8, atol=1e-10)


def test_sampled_columns_are_unbiased_with_an_honest_error():
    model, inputs = ALL["cnn"]()
    network = Network.of(model)
    exact = {part.name: part for part in factorise(network, [inputs], categorical()).factors}
    found = factorise(network, [inputs], categorical(), probes=300)
    for part in found.factors:
        if part.kind == "kronecker":
            truth, trace = (float(one.left.diagonal(dim1=1, dim2=2).sum()) for one in (exact[part.name], part))
            assert abs(trace - truth) < 5 * found.trace_errors[part.name] * truth
            torch.testing.assert_close(part.right, exact[part.name].right)
            assert float((part.left - exact[part.name].left).norm() / exact[part.name].left.norm()) < 0.2
    once = factorise(network, [inputs], categorical(), probes=1)
    assert once.trace_errors["0"] == pytest.approx(found.trace_errors["0"] * 300**0.5, rel=0.5)


def test_a_choice_of_names_gives_blocks_of_those():
    model, inputs = ALL["cnn"]()
    whole = factorise(Network.of(model), [inputs], categorical())
    part = factorise(Network.of(model, lambda name: name.startswith("4.")), [inputs], categorical())
    index = whole.factors[-1].index.flatten().sort().values
    torch.testing.assert_close(
        part.structure().dense(), whole.structure().dense()[index[:, None], index], rtol=1e-10, atol=1e-13
    )
    only = factorise(Network.of(model, lambda name: name == "0.bias"), [inputs], categorical())
    assert only.factors[0].index.shape == (1, 4, 1)


@pytest.mark.parametrize("modules", [True, False])
def test_low_rank_adapters_are_selected_by_name(modules):
    model, inputs = seeded(lambda: nn.Sequential(Adapter(modules), nn.Tanh(), nn.Linear(4, 3)), normal(6, 5, seed=1))
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora" in name)
    chosen = [name for name, weight in model.named_parameters() if weight.requires_grad]
    names = [name for name, weight in model.named_parameters() for _ in range(weight.numel())]
    kept = torch.tensor([name in chosen for name in names])
    ggn = dense_ggn(model, inputs, "categorical").sum(0)[kept][:, kept]
    factored = factorise(Network.of(model), [inputs], categorical())
    structure = factored.structure()
    if modules:
        assert factored.diagnostics["kronecker"] == ["0.lora_A", "0.lora_B"]
        structure = eigencorrected(Network.of(model), [inputs], categorical(), factored)
        exact = torch.linalg.eigvalsh(dense_blocks(ggn, structure)).sum()
        torch.testing.assert_close(structure.ratios(1.0).sum(), exact, rtol=1e-10, atol=0)  # the trace
    else:
        assert factored.diagnostics["exact"] == ["0.lora_A", "0.lora_B"]
        torch.testing.assert_close(structure.dense(), dense_blocks(ggn, structure), rtol=1e-10, atol=1e-13)


def test_a_single_datum_shows_where_the_data_are():
    model, inputs = ALL["sequence first"]()
    found = factorise(Network.of(model), [inputs[:1], inputs[1:]], categorical(), sharing="reduce").structure().dense()
    expected = factorise(Network.of(model), [inputs], categorical(), sharing="reduce").structure().dense()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_curvature_that_overflows_is_named():
    model, inputs = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), normal(5, 3, seed=1))
    with pytest.raises(ValueError, match="the curvature of '0' is NaN or infinite"):
        factorise(Network.of(model.float()), [1e30 * inputs.float()], gaussian())


def test_what_cannot_be_factorised_is_refused():
    model, inputs = ALL["cnn"]()
    mask = torch.arange(sum(weight.numel() for weight in model.parameters())) % 2 == 0
    with pytest.raises(ValueError, match="a mask of single weights"):
        factorise(Network.of(model, mask), [inputs], categorical())
    with pytest.raises(ValueError, match="sharing is 'sum', expected 'expand' or 'reduce'"):
        factorise(Network.of(model), [inputs], categorical(), sharing="sum")
    with pytest.raises(ValueError, match="0 random columns asked for"):
        factorise(Network.of(model), [inputs], categorical(), probes=0)
