"""Networks of a table with no axis of length one and no two equal axes."""

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from lapwing.tabular.networks import LayerMatrices, initial
from lapwing.tabular.training import Groups, State, TrainingData, start

SIZES = (4, 5, 2)  # d, hidden, c
MEMBERS = 3
FEW, MANY = 7, 40  # rows; with two outputs, fewer and more than the 37 weights


@dataclass(frozen=True)
class Problem:
    state: State
    groups: Groups
    data: TrainingData

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return [tuple(layer.shape[1:]) for layer in self.state.networks.of]

    def prior_precision(self) -> Tensor:  # (b, p)
        columns = self.groups.spread(self.state.precision)
        expanded = [
            part[:, None, :].expand_as(layer) for part, layer in zip(columns, self.state.networks.of, strict=True)
        ]
        return LayerMatrices(tuple(expanded)).flat()

    def at(self, member: int) -> tuple[Tensor, ...]:
        """What the reference takes for one network: weights, shapes, x, y, row weights, precisions, noise."""
        return (
            self.state.networks.flat()[member], self.shapes, self.data.inputs, self.data.targets[member],
            self.data.weights, self.prior_precision()[member], self.state.noise_precision[member],
            self.data.noise_variance[member],
        )  # fmt: skip


def problem(n: int, *, seed: int = 0, sizes: tuple[int, ...] = SIZES) -> Problem:
    """Two of the inputs come from one column of the table, so that groups are more than columns."""
    generator = Generator().manual_seed(seed)
    networks = initial(sizes, [Generator().manual_seed(seed + k) for k in range(MEMBERS)])
    groups = Groups.by_column(torch.tensor([0, 1, 1, 2])[: sizes[0]], sizes)

    def normals(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = normals(n, sizes[0])
    wave = torch.stack([torch.sin(x[:, 0] + k) + x[:, 1] * x[:, 2] for k in range(MEMBERS)])
    targets = torch.stack([wave * (1 + k) for k in range(sizes[-1])], dim=2) + 0.2 * normals(MEMBERS, n, sizes[-1])
    weights = 0.5 + torch.rand(n, generator=generator, dtype=torch.float64)
    state = replace(
        start(networks, groups),
        precision=normals(MEMBERS, groups.count).exp(),
        noise_precision=normals(MEMBERS).exp() * 5,
    )
    return Problem(state, groups, TrainingData(x, targets, weights, normals(MEMBERS, n).exp()))
