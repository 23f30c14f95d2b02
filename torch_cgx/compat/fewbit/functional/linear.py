"""FewBit's randomized linear functions: `activations.functional.linear` with FewBit's arguments."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor

from torch_cgx.activations.projection.function import METHODS, Settings, projected, ratio_of

_MOST_KEY = 2**63 - 1
_BROKEN = ("dct", "dft")  # of FewBit: the first has a wrong scale, the second does not run


def check_projection(
    proj_dim_ratio: Any,
    proj_dim: Any,
    proj_dim_max: Any,
    proj_dim_min: Any,
    matmul: Any,
    generator: Any,
) -> None:
    """TypeError, ValueError: what says no number of rows, no method or no generator."""
    if matmul in _BROKEN:
        raise ValueError(
            f"matmul={matmul!r}, which is biased or fails in FewBit and is not here; allowed: "
            "matmul='srht', the fast transform that takes its place, and "
            f"{', '.join(one for one in METHODS if one != 'srht')}"
        )
    if matmul not in METHODS:
        raise ValueError(f"matmul={matmul!r}; allowed: {', '.join(METHODS)}")
    counts = {
        "proj_dim": proj_dim,
        "proj_dim_min": proj_dim_min,
        "proj_dim_max": proj_dim_max,
    }
    for name, value in counts.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name}={value!r}; allowed: integers from 0, None")
        if value < 0:
            raise ValueError(f"{name}={value!r}; allowed: integers from 0, None")
    if proj_dim_ratio is not None:
        if isinstance(proj_dim_ratio, bool) or not isinstance(proj_dim_ratio, numbers.Real):
            raise TypeError(f"proj_dim_ratio={proj_dim_ratio!r}; allowed: numbers above 0, None")
        if not 0 < float(proj_dim_ratio) < float("inf"):
            raise ValueError(f"proj_dim_ratio={proj_dim_ratio!r}; allowed: numbers above 0, None")
    if proj_dim_ratio is None and not proj_dim:
        raise ValueError(
            f"proj_dim_ratio=None and proj_dim={proj_dim!r}; allowed: a ratio above 0, or a "
            "proj_dim from 1"
        )
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator is of type {type(generator).__name__}; allowed: torch.Generator, None"
        )


def projected_rows(
    n: int,
    proj_dim_ratio: float | None,
    proj_dim: int | None,
    proj_dim_max: int | None,
    proj_dim_min: int | None,
) -> int:
    """How many rows stand for n: proj_dim, or the whole part of proj_dim_ratio * n; raised to
    proj_dim_min, then lowered to proj_dim_max, where these are given and above 0. ValueError: none.
    """
    rows = _rows(n, proj_dim_ratio, proj_dim, proj_dim_max, proj_dim_min)
    if rows == 0:
        raise ValueError(
            f"proj_dim_ratio={proj_dim_ratio!r} of {n} rows keeps none; allowed: a ratio of at "
            f"least {1 / n:.3g}, proj_dim_min, proj_dim, more rows"
        )
    return rows


def _rows(
    n: int,
    proj_dim_ratio: float | None,
    proj_dim: int | None,
    proj_dim_max: int | None,
    proj_dim_min: int | None,
) -> int:
    part, whole = ratio_of(proj_dim_ratio) if proj_dim_ratio else (0, 1)
    rows = proj_dim or n * part // whole
    rows = max(rows, proj_dim_min or 0)
    return int(min(rows, proj_dim_max or rows))


def key_of(generator: torch.Generator | None) -> Tensor | None:
    """The key of a projection, drawn from the generator; None: from torch's own."""
    if generator is None:
        return None
    drawn = torch.randint(
        _MOST_KEY, (), generator=generator, dtype=torch.int64, device=generator.device
    )
    return drawn.cpu()


def linear_grp(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    proj_dim_ratio: float | None = None,
    proj_dim: int | None = None,
    proj_dim_max: int | None = None,
    proj_dim_min: int | None = None,
    matmul: str = "gaussian",
    generator: torch.Generator | None = None,
) -> Tensor:
    """torch.nn.functional.linear, with the gradient of the weight from a random projection of the
    input over the batch. The order is FewBit's: the maximum before the minimum.

    input: [..., in], strided in any way; weight: [out, in], bias: [out] or None. float32, float64,
    float16 or bfloat16.
    proj_dim_ratio, proj_dim, proj_dim_max, proj_dim_min: how many rows are kept (`projected_rows`).
    matmul: "gaussian", "rademacher", or what FewBit does not have: "srht", "wta", "rows", as
        `activations.functional.linear` describes them.
    generator: from which the key of the projection is drawn; None: torch's of the CPU. FewBit on a
        GPU took the same projection in each step then. Of a generator on a GPU the host waits.

    ValueError: no rows, neither ratio nor dimension, a matmul that is not allowed ("dct" and "dft"
    are not). TypeError: arguments of other types.
    """
    check_projection(proj_dim_ratio, proj_dim, proj_dim_max, proj_dim_min, matmul, generator)
    settings = None
    if isinstance(input, Tensor) and input.numel():
        n = input.numel() // input.shape[-1]
        # Without autograd nothing is kept, so a few rows are enough.
        learns = weight.requires_grad and torch.is_grad_enabled()
        count = projected_rows if learns else _rows
        rows = count(n, proj_dim_ratio, proj_dim, proj_dim_max, proj_dim_min)
        settings = Settings(1.0, matmul, "batch", rows)  # type: ignore[arg-type]
    key = key_of(generator) if weight.requires_grad else None
    return projected(input, weight, bias, settings or Settings(1.0, "rows", "batch", None), key)


linear_randomized = linear_grp


def check_columns(name: str, count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, numbers.Integral):
        raise TypeError(f"{name}={count!r}; allowed: integers from 1")
    if count < 1:
        raise ValueError(f"{name}={count!r}; allowed: integers from 1")


def linear_crs(input: Tensor, weight: Tensor, bias: Tensor | None, nopairs: int) -> Tensor:
    """torch.nn.functional.linear, with the gradient of the weight from `nopairs` columns of the
    input; the gradient of the other columns is 0.

    FewBit draws columns with replacement. Here none is drawn twice, which has the same mean and
    less variance; `nopairs` from in_features on is exact. ValueError: below 1.
    """
    check_columns("nopairs", nopairs)
    return projected(input, weight, bias, Settings(1.0, "rows", "features", int(nopairs)))


__all__ = ["linear_crs", "linear_grp", "linear_randomized"]
