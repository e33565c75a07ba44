"""The shared block-Krylov space of M = GᵀG: one set of products serves every right-hand side and every shift.

It is started from S = Gᵀ [ξ, Gθ̃, y] and kept on the smaller side of G (n × d): as its orthonormal basis Q (primal,
d ≤ n), or as the basis P of the Krylov space of GGᵀ started from [ξ, Gθ̃, y] (dual, n < d), where Q = Gᵀ P V Λ^{-½}
with Pᵀ G Gᵀ P = V Λ Vᵀ. Both are the same space, so they give the same numbers at every depth. Block Lanczos leaves
M Q = Q T + X C with X orthogonal to Q: residuals and upper bounds need no stored MQ. Results are kept in the Ritz
basis, where T is diagonal, so a new pair (α, β) costs a division.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log10
from typing import Literal, final

import torch
from torch import Tensor

from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import LinearOperator, Rows, check_product, over_parts
from lapwing.runtime.journal import Found, Journal
from lapwing.runtime.memory import available_bytes
from lapwing.runtime.progress import Report, reporter

ROUNDOFF = 2  # what is smaller than this many eps · ‖M‖ is taken for round-off


@final
@dataclass(frozen=True, eq=False)
class StartBlock:
    """What a space is started from: a column θ̃ and a column ξ for every draw, and targets y."""

    prior_noise: Tensor  # (d, k), θ̃
    data_noise: Tensor | Rows  # (n, k), ξ; rows that can be made anew are never all in memory on the primal side
    targets: Tensor | None = None  # (n, t), y
    journal: Journal | None = None  # where every step is kept as soon as it is made

    def __post_init__(self) -> None:
        shapes = [tuple(part.shape) for part in self.parts]
        if any(len(shape) != 2 for shape in shapes) or not shapes[0][1] == shapes[1][1] > 0:
            raise ValueError(
                f"prior_noise, data_noise and targets have shapes {shapes}, expected matrices, the first two with "
                "one column for every draw and at least one draw; use targets[:, None] for one column of targets"
            )
        if not all(bool(torch.isfinite(part).all()) for part in self.parts if isinstance(part, Tensor)):
            raise ValueError("prior_noise, data_noise or targets hold values that are not finite: remove them first")

    @property
    def parts(self) -> tuple[Tensor | Rows, ...]:
        """What was given."""
        given = (self.prior_noise, self.data_noise, self.targets)
        return tuple(part for part in given if part is not None)

    def columns(self, start: int, stop: int, operator: LinearOperator) -> Tensor:  # (stop - start, 2k + t)
        """Rows of [ξ, Gθ̃, y], `operator` being those rows of G."""
        noise = self.data_noise
        parts = [
            noise[start:stop] if isinstance(noise, Tensor) else noise.rows(start, stop),
            _product(operator, self.prior_noise),
            *([] if self.targets is None else [self.targets[start:stop]]),
        ]
        return torch.cat([part.to(operator.like) for part in parts], dim=1)

    @property
    def draws(self) -> int:
        """Number of draws, k."""
        return self.data_noise.shape[1]


@final
@dataclass(frozen=True, eq=False)
class LanczosChain:
    """Block Lanczos for A = GᵀG (primal) or GGᵀ (dual): A P = P T + N B Eᵀ, E the columns of the last block."""

    blocks: tuple[Tensor, ...]  # P, orthonormal, each (size, its width)
    projected: Tensor  # (m, m), T, block tridiagonal
    first: Tensor  # (width of the first block, 2k + t), the starting block in the first block
    ahead: Tensor  # (size, width), N; no columns are left where P is invariant
    coupling: Tensor  # (width, width of the last block), B
    image: Tensor | None  # (d, width), Gᵀ N, dual only: half of the next step; None where it must be made again
    noise_energy: float  # mean ‖ξ‖²
    norm: float  # largest ‖A p‖ met
    passes: int  # products of G or Gᵀ with a block
    columns: int  # and with a column
    gram: Tensor | None = None  # (width, width), Nᵀ G Gᵀ N, dual only: residuals need it

    @property
    def roundoff(self) -> float:
        """The size below which directions and eigenvalues of A are round-off."""
        return ROUNDOFF * torch.finfo(self.ahead.dtype).eps * self.norm


@final
@dataclass(frozen=True, eq=False)
class Space:
    """The Krylov space in its Ritz basis Q: Qᵀ M Q = diag(ritz) and M Q = Q diag(ritz) + X coupling.

    Q is P · rotation (primal), Gᵀ P · rotation (dual), or stored in place of P (explicit).
    """

    block: StartBlock
    chain: LanczosChain
    side: Literal["primal", "dual", "explicit"]
    ritz: Tensor  # (m,), not negative
    rotation: Tensor  # (m, m)
    start: Tensor  # (m, 2k + t), Qᵀ Gᵀ [ξ, Gθ̃, y]
    probes: Tensor  # (m, k), Qᵀ Gᵀ ξ without what is round-off
    coupling: Tensor  # (width, m)
    remainder: Tensor  # (width, m), (XᵀX)^½ · coupling: ‖remainder · x‖ is the norm of a residual
    limited_by: Literal["memory", "steps", "precision"] | None = None  # what kept `build` from its tolerance

    @property
    def steps(self) -> int:
        """Number of block steps taken."""
        return len(self.chain.blocks)

    @property
    def exhausted(self) -> bool:
        """Whether the space is invariant: more steps would add nothing, and every solve is exact to round-off."""
        return self.chain.ahead.shape[1] == 0


@final
@dataclass(frozen=True, eq=False)
class Variances:
    """Row by row φ (βM + αI)⁻¹ φᵀ: two bounds, and the mean square of the draws."""

    lower: Tensor  # (rows,)
    upper: Tensor  # (rows,)
    sampled: Tensor  # (rows,), of relative standard error √(2/k) once converged


def build(
    operator: LinearOperator,
    start: StartBlock | Space,
    *,
    alpha: float,
    beta: float = 1.0,
    rtol: float = 1e-2,
    max_steps: int | None = None,
    report: Report | None = None,
) -> Space:
    """A space in which all `errors` at (alpha, beta) are at most rtol, or one that says what it was `limited_by`.

    At least one step is made; the space may take half of the memory that is free. The errors are
    looked at after every step, more rarely where they are far from rtol or the space is deep.

    >>> from lapwing.linalg.operators import Diagonal
    >>> noise = torch.linspace(-1, 1, 12).double().reshape(6, 2)
    >>> space = build(Diagonal(torch.arange(6).double()), StartBlock(noise, noise.flip(0)), alpha=0.5, rtol=1e-6)
    >>> space.steps, space.chain.passes, float(errors(space, 0.5).max()) < 1e-6
    (2, 6, True)
    """
    show = report or reporter(False)
    budget = available_bytes() / 2
    space = grow(operator, start, 1) if isinstance(start, StartBlock) else replace(start, limited_by=None)
    while True:
        truncation, roundoff = _error_parts(space, alpha, beta)
        worst = float(truncation.hypot(roundoff).max())
        show(f"{space.chain.passes} passes, {len(space.ritz)} directions, relative error at most {worst:.2g}")
        if worst <= rtol:
            return space
        if space.exhausted or bool((truncation <= roundoff).all()):
            return replace(space, limited_by="precision")
        steps, (size, width) = steps_ahead(worst, rtol), space.chain.ahead.shape
        if 2 * (len(space.ritz) + steps * width) > size:  # the space may soon be whole, and its error fall suddenly
            steps = 1
        steps = max(steps, space.steps // 8)
        steps = steps if max_steps is None else min(steps, max_steps - space.steps)
        if steps <= 0:
            return replace(space, limited_by="steps")
        steps = steps if needed_bytes(space, steps) <= budget else 1
        if needed_bytes(space, steps) > budget:
            return replace(space, limited_by="memory")
        space = grow(operator, space, steps)


def grow(operator: LinearOperator, start: StartBlock | Space, steps: int) -> Space:
    """The space after more block steps, each a product with G and one with Gᵀ; fewer where it is exhausted.

    A space grown in several goes is the same as one grown in one.
    """
    if isinstance(start, Space) and start.side == "explicit":
        raise ValueError("an explicit space cannot grow: grow the one it was made from and call explicit() again")
    if steps < 1:
        raise ValueError(f"steps is {steps}, expected at least 1")
    block = start.block if isinstance(start, Space) else start
    (n, d), given = operator.shape, [part.shape[0] for part in block.parts]
    if given != [d, n, n][: len(given)]:
        raise ValueError(f"the parts of the block have {given} rows, expected {[d, n, n]} for G of shape {(n, d)}")
    chain = start.chain if isinstance(start, Space) else _kept(operator, block, None, lambda: _begin(operator, block))
    for _ in range(steps):
        if chain.ahead.shape[1] == 0:
            break
        chain = _kept(operator, block, chain, partial(_step, operator, chain))
    return _reduce(block, chain)


def steps_ahead(error: float, rtol: float) -> int:
    """How many steps to make before looking again: in one step an error seldom falls by more than ten times.

    A look costs a decomposition of T, which in a small problem is as much as a pass.
    """
    return max(1, ceil(log10(min(1e6, error / rtol))))


def needed_bytes(space: Space, steps: int) -> float:
    """Memory that the space takes after more steps, work included."""
    chain, (size, width) = space.chain, space.chain.ahead.shape
    m = len(chain.projected) + steps * width
    images = 0 if chain.gram is None else 2 * len(space.block.prior_noise) * width
    return chain.ahead.element_size() * (size * (m + 3 * width) + images) + 8 * 6 * m * m


def explicit(operator: LinearOperator, space: Space) -> Space:
    """The same space with Q stored where it was implied: it needs the data no more, and cannot grow."""
    if space.side != "dual":
        return space
    basis = expand(space, torch.eye(len(space.ritz)).to(space.ritz), operator)
    ahead = _image(operator, space.chain) - basis @ space.coupling.mT.to(basis)
    passes, columns = space.chain.passes + 1, space.chain.columns + len(space.ritz)
    chain = replace(space.chain, blocks=(basis,), ahead=ahead, image=None, gram=None, passes=passes, columns=columns)
    return replace(space, chain=chain, side="explicit")


def solve(
    space: Space, mix: Tensor, *, alpha: float, beta: float = 1.0, operator: LinearOperator | None = None
) -> Tensor:  # (2k + t, c) -> (d, c)
    """(βM + αI)⁻¹ S mix for combinations of the columns of S = Gᵀ [ξ, Gθ̃, y]; dual: one product with Gᵀ."""
    shifted = beta * (space.ritz + _ratio(alpha, beta))
    return expand(space, space.start @ mix.to(space.start) / shifted[:, None], operator)


def draws_and_mean(
    space: Space, *, alpha: float, beta: float = 1.0, operator: LinearOperator | None = None
) -> tuple[Tensor, Tensor]:  # (d, k), (d, t)
    """The minimisers of ½‖ξ − √β G z‖² + ½‖√α z − θ̃‖² and of ½β‖y − G z‖² + ½α‖z‖²; dual: one product with Gᵀ."""
    both, k = expand(space, _coordinates(space, alpha, beta), operator), space.block.draws
    return space.block.prior_noise.to(both) / alpha**0.5 + both[:, :k], both[:, k:]


def residuals(space: Space, alpha: float, beta: float = 1.0) -> Tensor:  # (k + t,)
    """‖b − (βM + αI) x‖ of every draw and mean, in exact arithmetic, without touching the data."""
    return beta * (space.remainder @ _coordinates(space, alpha, beta)).norm(dim=0)


def errors(space: Space, alpha: float, beta: float = 1.0) -> Tensor:  # (k + t,)
    """√β‖G(z − z⋆)‖ / √γ at most: how wrong every draw and mean is on the data, in units of the spread of draws.

    That is ‖r‖ / (2√(αγ)), as √s / (s + α) ≤ 1 / (2√α) for every eigenvalue s of βM, and an estimate of the
    round-off in products with G, about eps · ‖βM‖ / α.
    """
    return torch.hypot(*_error_parts(space, alpha, beta))


def effective_dimension(space: Space, alpha: float, beta: float = 1.0) -> Estimate:
    """γ = tr βM (βM + αI)⁻¹, from below as long as the space has not converged."""
    ratio = _ratio(alpha, beta)
    return _estimate(space, lambda ritz: 1 / (ritz + ratio))


def log_determinant(space: Space, alpha: float, beta: float = 1.0) -> Estimate:
    """log det(I + βM/α), from below as long as the space has not converged."""
    ratio = _ratio(alpha, beta)
    return _estimate(space, lambda ritz: torch.where(ritz > 0, (ritz / ratio).log1p() / ritz, 1 / ratio))


def variances(
    space: Space, rows: Tensor, *, alpha: float, beta: float = 1.0, operator: LinearOperator | None = None
) -> Variances:  # rows: (r, d)
    """Bounds on φ (βM + αI)⁻¹ φᵀ for every row φ; dual: one product with G.

    From below by Galerkin's method in the space, φ Q (βT + αI)⁻¹ Qᵀ φᵀ; from above by the same in its image:
    [‖φ‖² − φ Y (ρT + YᵀY)⁻¹ Yᵀ φᵀ] / α with Y = MQ and ρ = α/β.
    """
    ratio, ritz, rows = _ratio(alpha, beta), space.ritz[:, None], rows.to(space.chain.ahead)
    inside, outside = _projections(space, rows, operator)
    lower = (inside.square() / (ritz + ratio)).sum(0) / beta
    scale = torch.where(ritz > space.chain.roundoff, ritz, torch.inf).rsqrt()
    tail, image = space.remainder * scale[:, 0], scale * (ritz * inside + space.coupling.mT @ outside)
    scaled = torch.diag(space.ritz + ratio) + tail.mT @ tail  # T^{-½} (ρT + YᵀY) T^{-½}
    explained = (image * torch.linalg.solve(scaled, image)).sum(0)
    upper = (rows.double().square().sum(1) - explained) / alpha
    prior = (rows @ space.block.prior_noise.to(rows)).double() / alpha**0.5
    drawn = prior + inside.mT @ _coordinates(space, alpha, beta)[:, : space.block.draws]
    return Variances(lower, upper.maximum(lower), drawn.square().mean(1))


def _begin(operator: LinearOperator, block: StartBlock) -> LanczosChain:
    (n, d), like, energies = operator.shape, operator.like, []

    def columns_of(start: int, stop: int, part: LinearOperator) -> Tensor:
        columns = block.columns(start, stop, part)
        energies.append(float(columns[:, : block.draws].double().square().sum(0).mean()))
        return columns if n < d else _product(part.T, columns)

    columns = columns_of(0, n, operator) if n < d else over_parts(operator, columns_of)
    lengths = columns.norm(dim=0)
    lengths = torch.where(lengths > 0, lengths, 1)  # no column is dropped for its scale
    ahead, first = _orthonormal((), columns / lengths, ROUNDOFF * torch.finfo(like.dtype).eps * len(lengths))
    image = _product(operator.T, ahead) if n < d else None
    made = block.draws + (columns if image is None else ahead).shape[1]
    first, energy = first * lengths.double(), sum(energies)
    return LanczosChain((), first[:0, :0], first, ahead, first[:, :0], image, energy, 0.0, 2, made, _gram(image))


def _kept(
    operator: LinearOperator, block: StartBlock, before: LanczosChain | None, make: Callable[[], LanczosChain]
) -> LanczosChain:
    """The next chain, from the journal where a run before has made it; never with its image there."""
    journal, made = block.journal, []
    if journal is None or not journal.open:
        return make()

    def find() -> Found:
        made.append(chain := make())
        tensors = {name: getattr(chain, name) for name in ("projected", "ahead", "coupling", "gram")}
        tensors |= {"first": chain.first} if before is None else {}
        plain = {name: getattr(chain, name) for name in ("noise_energy", "norm", "passes", "columns")}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}, plain

    tensors, plain = journal.found(f"step {0 if before is None else len(before.blocks) + 1}", find)
    tensors = {name: tensor.to(operator.like.device) for name, tensor in tensors.items()}
    blocks = () if before is None else (*before.blocks, before.ahead)
    first = tensors["first"] if before is None else before.first
    return LanczosChain(
        blocks, tensors["projected"], first, tensors["ahead"], tensors["coupling"], made[0].image if made else None,
        gram=tensors.get("gram"), **plain,
    )  # fmt: skip


def _gram(image: Tensor | None) -> Tensor | None:
    return None if image is None else (image.mT @ image).double()


def _image(operator: LinearOperator, chain: LanczosChain) -> Tensor:
    return _product(operator.T, chain.ahead) if chain.image is None else chain.image


def _step(operator: LinearOperator, chain: LanczosChain) -> LanczosChain:
    ahead, width, m = chain.ahead, chain.ahead.shape[1], len(chain.projected)
    if chain.gram is None:
        product, diagonal = _there_and_back(operator, ahead)
    else:
        product, diagonal = _product(operator, _image(operator, chain)), chain.gram
    norm = max([chain.norm, *product.norm(dim=0).tolist()])
    projected = torch.nn.functional.pad(chain.projected, (0, width, 0, width))
    projected[m:, m:] = diagonal
    product = torch.addmm(product, ahead, diagonal.to(ahead), alpha=-1)
    if chain.blocks:
        last = slice(m - chain.coupling.shape[1], m)
        projected[m:, last], projected[last, m:] = chain.coupling, chain.coupling.mT
        product.addmm_(chain.blocks[-1], chain.coupling.mT.to(ahead), alpha=-1)
    chain = replace(chain, blocks=(*chain.blocks, ahead), projected=projected, norm=norm)
    following, coupling = _orthonormal(chain.blocks, product, chain.roundoff)
    beyond = None if chain.gram is None else _product(operator.T, following)
    second = width if beyond is None else following.shape[1]  # columns of the other product of this step
    passes, columns = chain.passes + 1 + (second > 0), chain.columns + width + second
    return replace(
        chain, ahead=following, coupling=coupling, image=beyond, passes=passes, columns=columns, gram=_gram(beyond)
    )


def _there_and_back(operator: LinearOperator, x: Tensor) -> tuple[Tensor, Tensor]:
    """GᵀG x and xᵀGᵀG x, part by part: nothing has as many rows as G."""
    product = x.new_zeros(operator.shape[1], x.shape[1])
    square = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
    for _, part in operator.parts():
        image, back = part.normal(x.to(part.like))
        product += check_product(part, x, back)
        square += (image.mT @ image).double()
    return product, square


def _orthonormal(blocks: tuple[Tensor, ...], x: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Orthonormal N, orthogonal to the blocks, and B with x = N B up to round-off in the blocks and the floor."""
    basis, first = _factor(x, floor)
    for block in blocks:
        basis.addmm_(block, block.mT @ basis, alpha=-1)
    basis, second = _factor(basis, 0.5)  # what lost half its length to the blocks was round-off
    return basis.contiguous(), second @ first


def _factor(x: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """N and B = diag(s) Vᵀ with x = N B, s above the floor; N is orthonormal where x is well-conditioned."""
    if x.shape[1] > x.shape[0]:  # more columns than there are directions
        left, s, right = torch.linalg.svd(x.double(), full_matrices=False)
        return left[:, s > floor].to(x), s[s > floor, None] * right[s > floor]
    values, vectors = torch.linalg.eigh((x.mT @ x).double())
    if x.shape[1] and values[0] > 1e4 * torch.finfo(x.dtype).eps * values[-1]:
        s, right, turn = values.sqrt(), vectors.mT, vectors / values.sqrt()
    else:  # the Gram matrix has lost the small ones; ten times slower
        x, triangle = torch.linalg.qr(x)
        turn, s, right = torch.linalg.svd(triangle.double(), full_matrices=False)
    kept = s > floor
    return x @ turn[:, kept].to(x), s[kept, None] * right[kept]


def _reduce(block: StartBlock, chain: LanczosChain) -> Space:
    values, vectors = torch.linalg.eigh(chain.projected)
    values = values.clamp_min(0)
    tail = chain.coupling @ vectors[len(values) - chain.coupling.shape[1] :]
    start = vectors[: len(chain.first)].mT @ chain.first
    if chain.gram is None:
        return Space(block, chain, "primal", values, vectors, start, start[:, : block.draws], tail, tail)
    root = values.clamp_min(chain.roundoff or 1).sqrt()  # what is scaled up no further cancels in solves
    tail = tail / root
    ritz, turn = torch.linalg.eigh(torch.diag(values) + tail.mT @ tail)
    probes = turn.mT @ ((values / root)[:, None] * start[:, : block.draws])
    tail, rotation, start = tail @ turn, vectors / root @ turn, turn.mT @ (root[:, None] * start)
    outside, axes = torch.linalg.eigh(chain.gram - tail @ tail.mT)  # XᵀX
    remainder = outside.clamp_min(0).sqrt()[:, None] * (axes.mT @ tail)
    return Space(block, chain, "dual", ritz.clamp_min(0), rotation, start, probes, tail, remainder)


def _error_parts(space: Space, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """The errors by truncation and by round-off."""
    spread, x = effective_dimension(space, alpha, beta).value ** 0.5 or 1.0, _coordinates(space, alpha, beta)
    # a residual r of (M + ρI) x moves G x by ‖r‖ / (2√ρ) at most, one of (GGᵀ + ρI) x moves GGᵀ x by ‖r‖
    half = 0.5 * beta / alpha**0.5
    moved = half * x.norm(dim=0) if space.side == "primal" else beta**0.5 * (space.rotation @ x).norm(dim=0)
    return half / beta * residuals(space, alpha, beta) / spread, space.chain.roundoff * moved / spread


def _coordinates(space: Space, alpha: float, beta: float) -> Tensor:  # (m, k + t)
    ratio, k = _ratio(alpha, beta), space.block.draws
    noise, prior, targets = space.start[:, :k], space.start[:, k : 2 * k], space.start[:, 2 * k :]
    sides = torch.cat([noise / beta**0.5 - prior / alpha**0.5, targets], dim=1)
    return sides / (space.ritz + ratio)[:, None]


def expand(space: Space, x: Tensor, operator: LinearOperator | None) -> Tensor:  # (m, c) -> (d, c)
    """Q times coordinates in the Ritz basis; dual: one product with Gᵀ."""
    blocks = space.chain.blocks
    x = (x if space.side == "explicit" else space.rotation @ x).to(space.chain.ahead)
    total = torch.zeros(len(space.chain.ahead), x.shape[1], dtype=x.dtype, device=x.device)
    for part, share in zip(blocks, x.split([part.shape[1] for part in blocks]), strict=True):
        total.addmm_(part, share)
    return _product(_needed(operator).T, total) if space.side == "dual" else total


def coordinates(space: Space, x: Tensor, operator: LinearOperator | None) -> Tensor:  # (d, c) -> (m, c)
    """Columns seen from the Ritz basis, the transpose of `expand`; dual: one product with G."""
    return _projections(space, x.mT.to(space.chain.ahead), operator)[0]


def _projections(space: Space, rows: Tensor, operator: LinearOperator | None) -> tuple[Tensor, Tensor]:
    """Qᵀ φᵀ and Xᵀ φᵀ."""
    rows = _product(_needed(operator), rows.mT).mT if space.side == "dual" else rows
    inside = torch.cat([rows[:, :0], *(rows @ part for part in space.chain.blocks)], dim=1).mT.double()
    inside = inside if space.side == "explicit" else space.rotation.mT @ inside
    outside = (rows @ space.chain.ahead).mT.double()
    return inside, outside - space.coupling @ inside if space.side == "dual" else outside


def _estimate(space: Space, function: Callable[[Tensor], Tensor]) -> Estimate:
    """tr M f(M) from uᵀ f(M) u, u = Gᵀξ: for normal ξ its variance is 2 tr (M f(M))², the mean of 2 uᵀ M f(M)² u."""
    k, values = space.block.draws, function(space.ritz)
    weights = space.probes.square().mean(1) * values
    return Estimate(float(weights.sum()), (2 * float((weights * space.ritz * values).sum()) / k) ** 0.5)


def _product(operator: LinearOperator, x: Tensor) -> Tensor:
    if x.shape[1] == 0:
        return x.new_zeros(operator.shape[0], 0)
    return check_product(operator, x, operator.matmat(x.to(operator.like)))


def _ratio(alpha: float, beta: float) -> float:
    if not (0 < alpha < torch.inf and 0 < beta < torch.inf):
        raise ValueError(f"alpha is {alpha} and beta is {beta}, expected positive finite precisions")
    return alpha / beta


def _needed(operator: LinearOperator | None) -> LinearOperator:
    if operator is None:
        raise ValueError("a space on the dual side needs operator=G here; explicit() makes one that does not")
    return operator
