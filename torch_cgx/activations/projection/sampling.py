"""Which rows (or columns) of an input are kept, and by what each is multiplied.

For dW = sum_i dy_i x_i^T over the rows i of a batch, a sample has the mean

    E sum_{i kept} dy_i x_i^T / p_i = dW        p_i: how often row i is kept on average

"rows" keeps k of n rows uniformly without replacement, p_i = k / n. "wta" keeps row i with
p_i = min(1, c |x_i|), where c makes the sum of all p_i equal to k; of rows of a batch, x_i is the
difference from the mean row (function.py). The largest are kept for certain, as in WTA-CRS (Liu et
al., "Winner-Take-All Column Row Sampling for Memory Efficient Adaptation of Language Model",
NeurIPS 2023), and the others with a probability proportional to their norm. Where WTA-CRS draws
these independently, here every k-th part of what remains gets one, in the order of the batch
(systematic sampling: Madow, Annals of Mathematical Statistics 20, 1949), so that no row comes twice
and neighbours, which are alike in a sequence, are seldom kept together.
The order is shuffled among neighbours first, so that no period of the data can meet the period of
the sampling. The mean is the same and the variance smaller.
"""

from __future__ import annotations

import torch

_LEAST = 1e-6  # of the mean norm, so that no row is impossible
_BLOCK = 1 << 20  # values
_HUGE = 1e6  # of the sum of all norms


def _running(values: torch.Tensor) -> torch.Tensor:
    """Running sums. torch has no deterministic ones of floats on a GPU, and refuses."""
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(0).to(values.device)
    return values.cumsum(0)


def inclusion(norms: torch.Tensor, keep: int) -> torch.Tensor:
    """How often each row is kept on average: float64 [n] of 0 to 1, with the sum `keep`.

    norms: [n], 0 or more. keep: 1 to n. Rows that are not finite come first, so that a NaN reaches
    the gradient. If all norms are 0, all rows are alike.
    """
    sizes = norms.double()
    finite = torch.isfinite(sizes)
    sizes = torch.where(finite, sizes, 0.0)
    total = sizes.sum()
    sizes = sizes + torch.where(total > 0, total * (_LEAST / sizes.numel()), 1.0)
    sizes = torch.where(finite, sizes, sizes.sum() * _HUGE)
    largest = sizes.sort(descending=True).values
    rest = _running(largest.flip(0)).flip(0)  # of the row and all smaller ones
    left = keep - torch.arange(keep, dtype=torch.float64, device=sizes.device)
    shared = largest[:keep] * left <= rest[:keep]  # from here on p is below 1
    certain = (shared.long().cumsum(0) == 0).sum()
    factor = left.take(certain) / rest.take(certain)
    return (sizes * factor).clamp(max=1.0)


def norms_of(x: torch.Tensor, mean: torch.Tensor | None = None) -> torch.Tensor:
    """Of the rows of x [n, width], or of their differences from the mean [1, width]."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    if mean is None:
        return torch.linalg.vector_norm(x, dim=1, dtype=wide)
    parts = x.split(max(1, _BLOCK // max(x.shape[1], 1)))  # no second x in memory
    return torch.cat([torch.linalg.vector_norm(one - mean, dim=1, dtype=wide) for one in parts])


def choose(
    x: torch.Tensor,
    generator: torch.Generator,
    keep: int,
    method: str,
    mean: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of `keep` rows of x [n, width], and the factor 1 / p of each: int32 and float32.
    method: "wta" or "rows". mean: [1, width], from which differences are kept."""
    n, device = x.shape[0], x.device
    if method == "rows":
        index = torch.randperm(n, generator=generator, dtype=torch.int32, device=device)[:keep]
        return index.clone(), torch.full((keep,), n / keep, dtype=torch.float32, device=device)
    chances = inclusion(norms_of(x, mean), keep)
    draws = torch.rand(n + 1, generator=generator, dtype=torch.float64, device=device)
    place = torch.arange(n, dtype=torch.float64, device=device) + draws[1:] * (2 * n / keep)
    order = torch.where(chances < 1, place, -1.0).argsort()  # certain ones first
    reached = _running(chances[order])
    wanted = torch.arange(keep, dtype=torch.float64, device=device) + draws[0]
    index = order[torch.searchsorted(reached, wanted, right=True).clamp_(max=n - 1)]
    return index.to(torch.int32), (1.0 / chances[index]).float()
