"""Jacobian products by every route against dense Jacobians, derivatives with respect to inputs, interruptions."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset

from lapwing import CG, Exact, Gaussian, Isotropic, Krylov, fit, linearise
from lapwing.linalg.operators import Diagonal, row_gram
from lapwing.network.batches import Inputs, as_batches
from lapwing.network.checks import checked_outputs
from lapwing.network.factors import Unfactored, factor
from lapwing.network.jacobian import Jacobian, Network, ProductPlan, keeping_factors, prepared
from lapwing.network.jacobian import jacobian as module
from lapwing.network.jacobian.products import FactoredProducts
from lapwing.runtime.memory import within
from tests.network.layers import LAYERS
from tests.network.networks import NETWORKS, normal, seeded
from tests.network.test_linearisation import dense_jacobian
from tests.properties import check_operator


class Positions(nn.Module):
    """Learned positions added to tokens, a plain attention, RMSNorm, and tokens flattened into the batch."""

    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Linear(3, 6), nn.Parameter(torch.zeros(4, 6))
        self.qkv, self.norm, self.head = nn.Linear(6, 18), nn.RMSNorm(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.positions
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = self.norm(x + torch.nn.functional.scaled_dot_product_attention(q, k, v))
        return self.head(x.reshape(-1, 6)).reshape(len(x), 4, 2).mean(1)


class Second(nn.Module):
    """Tokens first, data second: rows of a layer are not those of the data."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x.transpose(0, 1)))).mean(0)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2)), nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 2, groups=2), nn.BatchNorm2d(6), nn.LeakyReLU(inplace=True), nn.Flatten(2),
        nn.Conv1d(6, 3, 3, stride=2, padding=1, bias=False), nn.Conv1d(3, 6, 2, dilation=2, groups=3), nn.Flatten(),
        nn.LazyLinear(2),
    )  # fmt: skip


def lazy(make):
    def made() -> nn.Module:
        model = make()
        model(torch.zeros(2, 2, 5, 6))
        return model

    return made


MORE = {
    **NETWORKS,
    "convolutions": lambda: seeded(lazy(convolutions), normal(7, 2, 5, 6, seed=3)),
    "positions": lambda: seeded(Positions, normal(7, 4, 3, seed=3)),
    "second": lambda: seeded(Second, normal(7, 4, 3, seed=3)),
    "weight norm": lambda: seeded(
        lambda: nn.Sequential(weight_norm(nn.Linear(3, 6)), nn.Tanh(), nn.Linear(6, 2)), normal(7, 3, seed=3)
    ),
}
FACTORED = {"mlp", "cnn", "residual", "tied", "convolutions", "positions"}


def jacobian_of(name: str, mask: bool = False) -> tuple[Jacobian, Tensor]:
    model, inputs = MORE[name]()
    dense = dense_jacobian(model, inputs)
    select = torch.arange(dense.shape[1]) % 3 != 1 if mask else None
    jacobian = Jacobian(Network.of(model, select), Inputs.of((inputs[:3], inputs[3:])), dense.shape[0] // len(inputs))
    return prepared(jacobian), dense if select is None else dense[:, select]


@pytest.mark.parametrize("name", MORE)
def test_every_route_gives_the_same_products(name, generator):
    jacobian, dense = jacobian_of(name, mask=name == "cnn")
    assert (jacobian.plan.factored_from < torch.inf) == (name in FACTORED)
    x, y = normal(dense.shape[1], 7, seed=1), normal(len(dense), 7, seed=2)
    plans = [replace(jacobian.plan, chunk=chunk, factored_from=torch.inf) for chunk in (1, 3)]
    if name in FACTORED:
        plans += [replace(jacobian.plan, factored_from=0, data=data) for data in (1, 2, 5)]
    for plan in plans:
        operator = replace(jacobian, plan=plan)
        for columns in (1, 7):
            for found, expected in (
                (operator @ x[:, :columns], dense @ x[:, :columns]),
                (operator.T @ y[:, :columns], dense.mT @ y[:, :columns]),
                (operator.normal(x[:, :columns])[1], dense.mT @ (dense @ x[:, :columns])),
            ):
                assert float((found - expected).norm() / expected.norm()) < 1e-12
        assert float((operator.rows(2, 9) - dense[2:9]).norm() / dense[2:9].norm()) < 1e-12
    check_operator(jacobian, dense, generator)


UNFACTORED = {"text": "an embedding", "sequence first": "rows are not those of the data", "owned": "mul"}


@pytest.mark.parametrize("name", LAYERS)
def test_factors_of_every_kind_of_layer_are_the_dense_jacobian(name):
    model, inputs = LAYERS[name]()
    network = Network.of(model)
    dense = dense_jacobian(model, inputs)
    if name in UNFACTORED:
        with pytest.raises(Unfactored, match=UNFACTORED[name]):
            factor(lambda weights: network(weights, inputs), network.chosen(), torch.inf)
        return
    for columns in (1.0, 100.0, torch.inf):  # two factors for each matrix, or its rows
        found = factor(lambda weights: network(weights, inputs), network.chosen(), columns)
        products = FactoredProducts(network.layout, found.terms, len(dense))
        eyes = [torch.eye(size, dtype=torch.float64) for size in reversed(dense.shape)]
        torch.testing.assert_close(products.times(eyes[0]), dense, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(products.transposed(eyes[1]).mT, dense, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("room", "often"), [(10**9, 1), (1, 3)])
def test_factors_are_kept_for_the_next_product_while_a_fit_lasts_and_fit_into_memory(room, often, monkeypatch):
    jacobian, dense = jacobian_of("cnn")
    operator = replace(jacobian, plan=replace(jacobian.plan, factored_from=0, data=2))
    x, made = normal(dense.shape[1], 7, seed=1), []
    pieces = len(list(operator._pieces(7)))
    monkeypatch.setattr(module, "factor", lambda *given: made.append(given) or factor(*given))
    with within(room), keeping_factors():
        for columns in (7, 2, 5):
            torch.testing.assert_close(operator @ x[:, :columns], dense @ x[:, :columns], rtol=1e-11, atol=1e-11)
    assert len(made) == often * pieces
    operator @ x
    assert len(made) == (often + 1) * pieces


@pytest.mark.parametrize("factored_from", [0, torch.inf])
def test_products_come_in_blocks_of_columns(factored_from):
    jacobian, dense = jacobian_of("residual")
    operator = replace(jacobian, plan=replace(jacobian.plan, factored_from=factored_from, data=2))
    x, y, rows = normal(dense.shape[1], 7, seed=1), normal(len(dense), 7, seed=2), normal(len(dense), 1, seed=3).abs()
    image, *parts = operator.normal_parts(x, lambda block, start: rows[start : start + len(block)] * block, 3)
    torch.testing.assert_close(image, dense @ x, rtol=1e-11, atol=1e-11)
    both = ((parts, dense.mT @ (rows * (dense @ x))), (list(operator.rmatmat_parts(y, 3)), dense.mT @ y))
    for found, expected in both:
        assert [part.shape[1] for part in found] == [3, 3, 1]
        torch.testing.assert_close(torch.cat(found, dim=1), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["residual", "attention"])
def test_a_sandwich_is_worked_out_batch_by_batch(name):
    jacobian, dense = jacobian_of(name)
    rows, columns = normal(len(dense), seed=3).abs(), normal(dense.shape[1], seed=4).abs()
    x, scaled = normal(dense.shape[1], 5, seed=1), rows[:, None] * dense * columns
    operator = Diagonal(rows) @ jacobian @ Diagonal(columns)
    image, product = operator.normal(x)
    torch.testing.assert_close(image, scaled @ x, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(product, scaled.mT @ scaled @ x, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close((operator.T @ operator) @ x, scaled.mT @ scaled @ x, rtol=1e-11, atol=1e-11)
    starts = []

    def weigh(block: Tensor, start: int) -> Tensor:
        starts.append((start, len(block)))
        return rows[start : start + len(block), None] * block

    torch.testing.assert_close(
        jacobian.normal(x, weigh)[1], dense.mT @ (rows[:, None] * (dense @ x)), rtol=1e-11, atol=1e-11
    )
    assert len(starts) > 1
    assert starts[-1][0] + starts[-1][1] == len(dense)


class Counted(Dataset):
    """Data made when they are asked for; counts how many are alive."""

    def __init__(self, size: int):
        self.size, self.asked = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.asked += 1
        return normal(3, seed=index), normal(2, seed=1000 + index)


def test_a_data_set_is_read_when_it_is_needed_and_gives_the_same_products():
    model, _ = MORE["mlp"]()
    data = Counted(11)
    pairs = [data[i] for i in range(11)]
    held = torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
    streamed = linearise(model, DataLoader(data, batch_size=4, shuffle=True), Gaussian(0.5)).features
    stored = linearise(model, held, Gaussian(0.5)).features
    x = normal(stored.shape[1], 3, seed=1)
    before = data.asked
    torch.testing.assert_close(streamed @ x, stored @ x, rtol=1e-12, atol=1e-13)
    assert data.asked == before + 11
    torch.testing.assert_close(streamed.rows(5, 9), stored.rows(5, 9), rtol=1e-12, atol=1e-13)
    assert data.asked == before + 11 + 3  # data 2 to 4


def test_tensors_are_used_where_they_are():
    inputs, targets = normal(300, 3, seed=1), normal(300, 2, seed=2)
    for data in ((inputs, targets), torch.utils.data.TensorDataset(inputs, targets)):
        batches = list(as_batches(data).inputs)
        assert batches[0].data_ptr() == inputs.data_ptr()
        assert [len(batch) for batch in batches] == [128, 128, 44]


def states(model: nn.Module) -> list:
    tensors = [*model.state_dict().values(), *(w.grad for w in model.parameters() if w.grad is not None)]
    return [
        [tensor.clone() for tensor in tensors], [module.training for module in model.modules()],
        [weight.requires_grad for weight in model.parameters()], torch.get_rng_state(), random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        [len(module._forward_hooks) for module in model.modules()],
    ]  # fmt: skip


def same(one, other) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return all(map(same, one, other)) if isinstance(one, (list, tuple)) else one == other


class Noisy(nn.Module):
    """Draws from the global generator."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.randn(len(x), 2, dtype=x.dtype)


class Interrupting(nn.Module):
    """Stands for Ctrl-C in the middle of a product: raises at one of its calls."""

    def __init__(self, at: int):
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(3, 5), nn.Linear(5, 2), nn.LayerNorm(5)
        self.at, self.calls = at, [0]

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.one(x))
        self.calls[0] += 1
        if self.calls[0] == self.at:
            raise KeyboardInterrupt
        return self.two(torch.tanh(x))


@pytest.mark.parametrize("case", ["success", "random", "nan", *range(1, 14, 3)])
def test_nothing_of_the_users_changes_whatever_happens(case):
    made = Noisy if case == "random" else lambda: Interrupting(case if isinstance(case, int) else -1)
    model, _ = seeded(made, None)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    inputs, targets = normal(9, 3, seed=1), normal(9, 2, seed=2)
    inputs = torch.where(torch.arange(9)[:, None] == 7, torch.nan, inputs) if case == "nan" else inputs
    before = states(model)
    expected = {"success": None, "random": ValueError, "nan": ValueError}.get(case, KeyboardInterrupt)
    if expected is None:
        fit(model, (inputs, targets), Gaussian(), draws=2).predict(inputs)
    else:
        with pytest.raises(expected):  # by many products, so that there is something to interrupt
            fit(model, (inputs, targets), Gaussian(), method=Krylov(rtol=1e-6), draws=2)
    assert same(before, states(model))
    assert not torch.overrides._get_current_function_mode_stack()


class Overflow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x - x)


def deep(middle: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.Tanh(), middle), nn.Linear(5, 2)), None)[0]


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.linear(x.float())


def half() -> nn.Module:
    with torch.random.fork_rng():
        return Half().eval()


def under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return linearise(deep(nn.Identity()), (normal(5, 3, seed=1), normal(5, 2, seed=2)), Gaussian())


def mixed() -> nn.Module:
    model = deep(nn.Identity())
    model[2].float()
    return model


def late_nan() -> Tensor:
    inputs = normal(300, 3, seed=1)
    inputs[200, 1] = torch.nan
    return inputs


X, Y = normal(5, 3, seed=1), normal(5, 2, seed=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linearise(deep(Overflow()), (X, Y), Gaussian()), r"batch 0; the first layer .* is 1\.1 \(Overflow\)"),
        (lambda: linearise(deep(nn.Identity()), (late_nan(), normal(300, 2, seed=2)), Gaussian()), "inputs contain NaN .* batch 1, datum 72"),
        (lambda: linearise(deep(nn.Identity()), (X, Y * torch.nan), Gaussian()), "targets contain NaN .* batch 0, datum 0"),
        (lambda: linearise(deep(nn.Identity()), (X.float(), Y), Gaussian()), "inputs are torch.float32 and the network's weights torch.float64"),
        (lambda: checked_outputs(Network.of(deep(nn.Identity())), X.to("meta")), "inputs are on meta and the network on cpu"),
        (lambda: linearise(mixed(), (X, Y), Gaussian()), "several dtypes"),
        (lambda: linearise(half(), (X.float(), Y), Gaussian()), "turn autocast off inside"),
        (under_autocast, "autocast is on"),
        (lambda: linearise(deep(nn.Identity()), Counted(0), Gaussian()), "the data are empty"),
        (lambda: linearise(deep(nn.Identity()), [(X, Y[:3])], Gaussian()), "5 inputs and 3 targets in a batch"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_the_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_plan_can_be_given():
    jacobian, dense = jacobian_of("mlp")
    fixed = replace(jacobian, plan=ProductPlan(chunk=2))
    assert fixed.plan == ProductPlan("plain", 2, torch.inf, 1)
    torch.testing.assert_close(fixed.dense(), dense, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("elements", [1, 10**3, 10**6])
def test_the_dual_gram_matrix_from_pairs_of_blocks_of_rows(elements):
    jacobian, dense = jacobian_of("residual")
    scale = normal(dense.shape[1], seed=4).abs()
    operator = Diagonal(normal(len(dense), seed=3)) @ jacobian @ Diagonal(scale)
    expected = operator.dense() @ operator.dense().mT
    assert operator.costs.has_row_vjp
    torch.testing.assert_close(row_gram(operator, elements), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("method", [Exact("dual"), Krylov(rtol=1e-3), CG(rtol=1e-4)], ids=str)
def test_a_network_in_single_precision_agrees_with_itself_in_double(method):
    """Draws with the same noise; products are good to about 1e-6, solves to their tolerance."""
    model, inputs = MORE["cnn"]()
    targets = model(inputs).detach() + normal(8, 3, seed=9)
    double = fit(model, (inputs, targets), Gaussian(0.7), prior=Isotropic(2.0), draws=3)
    single = fit(model.float(), (inputs.float(), targets), Gaussian(0.7), prior=Isotropic(2.0), method=method, draws=3)
    expected = double.gaussian.deviations
    assert float((single.gaussian.deviations.double() - expected).norm() / expected.norm()) < 2e-3
