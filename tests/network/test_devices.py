"""Products of a network and data that are on another device than the CPU.

Fake tensors know their shape, dtype and device and hold no numbers, so these tests need no GPU: they show that nothing
is left on the CPU, not that results are right. Torch's builds for the CPU cannot slice or differentiate a fake CUDA
tensor, so the device is "lazy", which they can. Nothing in the package asks for a device by its name.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lapwing import Gaussian, Poisson
from lapwing.families.variational.fitting import _start as start_of
from lapwing.families.variational.mean_field import LAYERS as NOISY
from lapwing.families.variational.mean_field import LocalNoise, MeanField
from lapwing.linalg import operators as ops
from lapwing.linalg.kronecker import Factors, fitting, kronecker
from lapwing.network.batches import Inputs
from lapwing.network.factors import FactorRows, Tokens, factor
from lapwing.network.jacobian import Jacobian, Network, ProductPlan, prepared
from lapwing.network.kfac import factors as kfac
from lapwing.network.kfac import roots
from lapwing.network.kfac.tape import Layers, discover_layers
from tests.network.layers import LAYERS
from tests.network.networks import NETWORKS
from tests.network.test_jacobian import FACTORED, MORE

diagonals = import_module("lapwing.network.kfac.diagonal")  # its package has a function of that name
DEVICE = "lazy"
SINGLE, DOUBLE = torch.float32, torch.float64
DATA = 3
EVERY = {**MORE, **LAYERS}
KINDS = [name for name in LAYERS if name != "owned"]  # of layers; those left out are listed by their numbers
PLAIN = ["mlp", "text"]  # where no layer has a rule, one network walks the same lines as another
WALKED = ["mlp", "tied", "convolutions"]  # every route of what has factors
SHARED = ["grouped", "text", "transposed", "instance norm"]  # weights used at many places of a datum
aten = torch.ops.aten
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}


class Elsewhere(TorchDispatchMode):
    """What torch refuses on a GPU and fake tensors let pass, and an answer where a number is asked of them.

    They hold none. Distinct entries are as many as there are entries.
    """

    answer: bool | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default and self.answer is not None:
            return float(self.answer) if args[0].is_floating_point() else self.answer
        if func is aten._unique2.default:
            return args[0].new_empty(args[0].numel()), torch.empty_like(args[0]), args[0].new_empty(0)
        if func in INDEXING and args[0].device.type == "cpu" and places(args[1]) - {"cpu"}:
            raise RuntimeError("a tensor and its indices are not on the same device")
        if func is aten.convolution.default and len(places(args[:3])) > 1:
            raise RuntimeError("the parts of a convolution are not on the same device")
        return func(*args, **(kwargs or {}))


def places(tensors: Iterable[Tensor | None]) -> set[str]:
    return {tensor.device.type for tensor in tensors if tensor is not None}


@pytest.fixture(autouse=True)
def _fake(monkeypatch):
    with FakeTensorMode(allow_non_fake_inputs=False), Elsewhere() as mode:
        monkeypatch.setattr(Elsewhere, "current", mode, raising=False)
        yield


@contextmanager
def answered(answer: bool) -> Iterator[None]:
    """Inside, every number is one and every question true, or the other way round."""
    mode = Elsewhere.current
    mode.answer, before = answer, mode.answer
    try:
        yield
    finally:
        mode.answer = before


def there(*shape: int, dtype=SINGLE) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=DEVICE)


def moved(tensor: Tensor, device=DEVICE) -> Tensor:
    return torch.empty(tensor.shape, dtype=SINGLE if tensor.is_floating_point() else tensor.dtype, device=device)


def problem(name: str, made=EVERY) -> tuple[Network, Tensor]:
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        model, x = made[name]()
    seen = dict[int, nn.Parameter]()
    for module in model.modules():
        for key, weight in module._parameters.items():
            if weight is not None:
                module._parameters[key] = seen.setdefault(id(weight), nn.Parameter(moved(weight)))
        for key, buffer in module._buffers.items():
            module._buffers[key] = None if buffer is None else moved(buffer)
    with answered(True):
        return Network.of(model), moved(x)[:DATA]


def is_there(*tensors: Tensor, dtype=SINGLE) -> bool:
    return all(tensor.device.type == DEVICE and tensor.dtype == dtype for tensor in tensors)


def values_of(tensors: dict[str, Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors.values() if tensor.is_floating_point()]


def jacobian(name: str, plan: ProductPlan) -> Jacobian:
    network, x = problem(name)
    return Jacobian(network, Inputs.of(x.split(2)), network(network.chosen(), x[:1]).shape[1], plan)


DIRECT, BY_FACTORS = ProductPlan(chunk=2), ProductPlan(factored_from=0, data=2)


@pytest.mark.parametrize(
    ("name", "plan"),
    [pytest.param(name, DIRECT, id=f"{name}, direct") for name in PLAIN]
    + [pytest.param(name, BY_FACTORS, id=f"{name}, factored") for name in WALKED],
)
def test_jacobian(name, plan):
    j = jacobian(name, plan)
    n, p = j.shape
    assert is_there(j @ there(p, 3), j.T @ there(n, 3), *j.normal(there(p, 3)), j.rows(1, 3), j.product_with_weights)


@pytest.mark.parametrize("name", [*PLAIN, "weight norm"])
def test_jacobian_without_forward_mode(name):
    j = jacobian(name, ProductPlan(None))
    assert is_there(j @ there(j.shape[1], 3), j.T @ there(j.shape[0], 3), j.rows(1, 3))


@pytest.mark.parametrize("name", sorted({*PLAIN, *WALKED}))
def test_plans_are_found(name):
    with answered(True):
        plan = prepared(jacobian(name, ProductPlan())).plan
    assert plan.factored_from < torch.inf or name not in FACTORED


@pytest.mark.parametrize("columns", [1000.0, torch.inf])
@pytest.mark.parametrize("name", sorted(FACTORED))
def test_factors(name, columns):
    network, x = problem(name)
    found = factor(lambda weights: network(weights, x), network.chosen(), columns)
    for term in found.terms:
        size = network.fixed[term.name].numel()
        assert isinstance(term, FactorRows | Tokens)
        assert is_there(term.times(there(size, 2)), term.transposed(there(found.outputs.numel(), 2)))


def test_data_elsewhere_are_refused():
    network, x = problem("mlp")
    for plan in (ProductPlan(), ProductPlan(None), ProductPlan(factored_from=0)):
        j = Jacobian(network, Inputs.of((moved(x, "cpu"),)), 2, plan)
        for product in (
            lambda j=j: j @ there(j.shape[1], 2),
            lambda j=j: j.T @ there(j.shape[0], 2),
            lambda j=j: j.rows(0, 2),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                product()


ROOTS = {
    "gaussian": lambda: roots.gaussian(2.0),
    "gaussian, each": lambda: roots.gaussian(there(DATA * 2, dtype=DOUBLE)),
    "categorical": roots.categorical,
    "bernoulli": roots.bernoulli,
    "sampled": lambda: roots.sampled(roots.bernoulli(), 2, seed=0),
    "counted": lambda: roots.counted(roots.bernoulli(), there(DATA)),
    "scaled": lambda: roots.scaled(roots.bernoulli(), there(DATA * 2)),
    "per place": lambda: roots.per_place(roots.bernoulli(), 1),
    "another likelihood": lambda: roots.root_of(Poisson(), there(DATA, 2)),
}


@pytest.mark.parametrize("name", ROOTS)
def test_roots(name):
    assert is_there(ROOTS[name]()(there(DATA, 2), 0))


@pytest.fixture
def listened(monkeypatch):
    """A network whose layers are found as if they agreed with autograd, which takes numbers to tell."""

    def of(name: str) -> tuple[Network, Tensor, Layers]:
        network, x = problem(name)
        with answered(False):
            layers = discover_layers(network, x)
        for module in (kfac, diagonals):
            monkeypatch.setattr(module, "discover_layers", lambda *_: layers)
        return network, x, layers

    return of


@pytest.mark.parametrize(
    ("name", "sharing"), [(name, "expand") for name in KINDS] + [(name, "reduce") for name in SHARED]
)
def test_kronecker_factors(name, sharing, listened):
    network, x, layers = listened(name)
    with answered(True):
        found = kfac.factorise(network, [x], roots.bernoulli(), counts=there(DATA), sharing=sharing)
        again = kfac.factorise(network, [x], roots.bernoulli(), sharing=sharing, probes=2)
    for part in (*found.factors, *again.factors):
        assert is_there(part.left, part.right, dtype=DOUBLE)
        assert is_there(part.index, dtype=torch.long)
    with answered(False):
        matrix = found.structure()
        corrected = kfac.eigencorrected(network, [x], roots.bernoulli(), found, counts=there(DATA))
        variances = kfac.variances(network, [x], matrix, layers, 1.0)
    v = there(network.layout.size, 2)
    assert is_there(matrix @ v, corrected @ v, variances, dtype=DOUBLE)


@pytest.mark.parametrize("name", KINDS)
def test_squares(name, listened):
    network, x, _ = listened(name)
    weights = there(network.layout.size)
    found = [
        diagonals.diagonal(network, [x], roots.categorical(), probes=2, counts=there(DATA)),
        diagonals.column_squares(network, [x]),
    ]
    assert is_there(*(one.value for one in found), *(one.standard_error for one in found), dtype=DOUBLE)
    assert is_there(diagonals.row_squares(network, [x], weights), dtype=DOUBLE)


def test_kronecker_factors_of_data_elsewhere_are_refused(listened):
    network, x, _ = listened("conv2d")
    with answered(True), pytest.raises(RuntimeError, match="same device"):
        kfac.factorise(network, [moved(x, "cpu")], roots.bernoulli())


def blocks(left: tuple[int, ...], right: tuple[int, ...]) -> Factors:
    index = torch.arange(12, device=DEVICE).reshape(2, 2, 3)
    return Factors("layer", "kronecker", index, there(*left, dtype=DOUBLE), there(*right, dtype=DOUBLE))


@pytest.mark.parametrize(("left", "right"), [((2, 2, 2), (2, 3, 3)), ((2, 2), (2, 3, 3)), ((2, 2), (2, 3))])
def test_kronecker_blocks(left, right):
    factors = (blocks(left, right),)
    with answered(False):
        matrix = kronecker(factors, 14)
    numbers = there(14, 2)
    assert is_there(fitting(factors, there(14, dtype=DOUBLE)), dtype=DOUBLE)
    with answered(False):
        for precision in (1.0, there(14, dtype=DOUBLE)):
            products = matrix @ numbers, matrix.solve(numbers, precision), matrix.draw(numbers, precision)
            numbers_each = matrix.determined(precision), matrix.variances(precision), matrix.ratios(precision)
            told = matrix.log_det(precision), matrix.variance(there(3, 14), precision), matrix.scale
            assert is_there(*products, *numbers_each, *told, dtype=DOUBLE)
            right_basis = matrix.whitened(precision).right
            assert is_there(right_basis @ there(12, 2), right_basis.T @ numbers)
    with pytest.raises(RuntimeError, match="same device"):
        matrix @ moved(numbers, "cpu")


OPERATORS = {
    "dense": lambda: ops.Dense(there(6, 6)),
    "diagonal": lambda: ops.Diagonal(there(6)),
    "low rank": lambda: ops.LowRank(there(6, 2), there(6, 2)),
    "blocks": lambda: ops.BlockDiagonal(there(3, 2, 2)),
    "sum": lambda: ops.Dense(there(6, 6)) + ops.LowRank(there(6, 2), there(6, 2)),
    "sum of low rank": lambda: ops.Diagonal(there(6)) + ops.LowRank(there(6, 2), there(6, 2)),
    "product": lambda: ops.Dense(there(6, 4)) @ ops.Dense(there(4, 6)),
    "normal": lambda: (dense := ops.Dense(there(4, 6))).T @ dense,
    "rows weighted": lambda: ops.Diagonal(there(6)) @ ops.Dense(there(6, 6)),
    "columns weighted": lambda: ops.Dense(there(6, 6)) @ ops.Diagonal(there(6)),
    "blocks of rows": lambda: ops.BlockDiagonal(there(3, 2, 2)) @ ops.Dense(there(6, 6)),
    "transpose": lambda: ops.Dense(there(6, 6)).T,
    "multiple": lambda: 2.0 * ops.Dense(there(6, 6)),
    "stacked": lambda: ops.Stacked(ops.Dense, [(there(3, 6),)] * 2, (3, 3), 6, there(0)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    with answered(True):
        operator, x, weights = OPERATORS[name](), there(6, 2), there(6)
        assert is_there(operator @ x, operator.T @ x, operator.rows(1, 4), operator.columns(1, 4), operator.dense())
        assert is_there(operator.row_squares(), operator.column_squares(), *operator.normal(x))
        assert is_there(operator.row_squares(weights), operator.column_squares(weights))
        assert is_there(ops.normal_product(operator, x))
        double = ops.Double(operator)
        assert is_there(double @ x.double(), double.T @ x.double(), double.rows(1, 4), dtype=DOUBLE)
        assert is_there(ops.gram(operator), ops.row_gram(operator), dtype=DOUBLE)
        for product in (operator.matmat, operator.rmatmat):
            with pytest.raises(RuntimeError, match="same device"):
                product(moved(x, "cpu"))


def test_rows_of_a_jacobian_are_multiplied_there():
    j = jacobian("mlp", ProductPlan(factored_from=0, data=2))
    with answered(True):
        assert is_there(ops.row_gram(ops.Diagonal(there(j.shape[0])) @ j), ops.gram(j), dtype=DOUBLE)


NOISE = {
    F.linear: ((3, 4), (5, 4)),
    F.conv1d: ((3, 2, 6), (5, 2, 3)),
    F.conv2d: ((3, 2, 6, 6), (5, 2, 3, 3)),
    F.conv3d: ((3, 2, 4, 4, 4), (5, 2, 2, 2, 2)),
    F.conv_transpose1d: ((3, 2, 6), (2, 5, 3)),
    F.conv_transpose2d: ((3, 2, 6, 6), (2, 5, 3, 3)),
    F.conv_transpose3d: ((3, 2, 4, 4, 4), (2, 5, 2, 2, 2)),
}


def test_every_noisy_layer_is_here():
    assert set(NOISE) == NOISY


@pytest.mark.parametrize("layer", NOISE, ids=lambda layer: layer.__name__)
def test_noise_at_layers(layer):
    x, weight = (there(*shape) for shape in NOISE[layer])
    bias, variances = there(5), {}
    for tensor in (weight, bias):
        variances[id(tensor)] = torch.empty_like(tensor).requires_grad_()
    with LocalNoise(variances, torch.Generator()):
        outputs = layer(x, weight, bias)
    assert is_there(outputs, *torch.autograd.grad(outputs.sum(), list(variances.values())))
    with (
        pytest.raises(RuntimeError, match="same device"),
        LocalNoise({id(weight): moved(weight, "cpu")}, torch.Generator()),
    ):
        layer(x, weight)


@pytest.mark.parametrize("name", NETWORKS)
def test_mean_field(name):
    network, x = problem(name)
    network.model.__deepcopy__ = lambda _: network.model  # a copy of a fake tensor is of another mode
    field = MeanField.of(network.model, x)
    values = start_of(field, Gaussian(), None, None)
    variances = field.variances(values)
    assert is_there(*values_of(field.prior(values)), *values_of(variances), *values_of(field.draw(values, 0, 1)))
    for at_layers in (frozenset(), field.exact | field.approximate):
        assert is_there(field.outputs(values, variances, x, torch.Generator(), at_layers))
