"""What a linear layer keeps: the settings, their checks, and how many rows or columns they mean."""

from __future__ import annotations

import functools
import numbers
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Method = Literal["wta", "rows", "gaussian", "rademacher", "srht"]
By = Literal["batch", "features"]
SAMPLING = ("wta", "rows")
METHODS = (*SAMPLING, "gaussian", "rademacher", "srht")
_UNLIMITED = ("gaussian", "rademacher")  # which may have more rows than there are


class Settings(NamedTuple):
    """keep: a part of the rows or columns; rows: how many, in place of it. ratio: keep as two whole
    numbers, since torch.compile can compute no size from a float that it takes for dynamic."""

    keep: float
    method: Method
    by: By
    rows: int | None
    ratio: tuple[int, int] = (1, 1)


def checked(keep: Any, method: Any, by: Any, rows: Any) -> Settings:
    """TypeError, ValueError: what is not allowed."""
    if isinstance(keep, bool) or not isinstance(keep, (int, float, numbers.Real)):
        raise TypeError(f"keep={keep!r}; allowed: numbers above 0, to 1")
    if not 0 < float(keep) <= 1:
        raise ValueError(f"keep={keep!r}; allowed: numbers above 0, to 1")
    if method not in METHODS:
        raise ValueError(f"method={method!r}; allowed: {', '.join(METHODS)}")
    if by not in ("batch", "features"):
        raise ValueError(f"by={by!r}; allowed: batch, features")
    if rows is not None:
        if isinstance(rows, bool) or not isinstance(rows, (int, numbers.Integral)):
            raise TypeError(f"rows={rows!r}; allowed: integers from 1, None")
        if rows < 1:
            raise ValueError(f"rows={rows!r}; allowed: integers from 1, None")
    count = None if rows is None else int(rows)
    return Settings(float(keep), method, by, count, ratio_of(float(keep)))


def ratio_of(keep: float) -> tuple[int, int]:
    """The fraction with a denominator to 10^9 that is nearest: 0.29 is 29 / 100, whose product with
    100 is 29, while 0.29 * 100 is 28.999999999999996."""
    # torch.compile traces what is below the cache, and warns of the cache.
    return _ratio(float(keep)) if torch.compiler.is_compiling() else _known_ratio(float(keep))


def _ratio(keep: float) -> tuple[int, int]:
    return Fraction(keep).limit_denominator(10**9).as_integer_ratio()


_known_ratio = functools.lru_cache(256)(_ratio)


def count_of(x: Tensor, settings: Settings) -> int | None:
    """How many rows or columns are kept; None: all, exactly."""
    if settings.rows is not None:
        exact = settings.rows >= _size(x, settings) and settings.method not in _UNLIMITED
        return None if exact else settings.rows
    part, whole = settings.ratio
    return None if part == whole else _size(x, settings) * part // whole


def _size(x: Tensor, settings: Settings) -> int:
    """How many rows or columns there are."""
    return x.shape[-1] if settings.by == "features" else x.numel() // max(x.shape[-1], 1)


def none_kept(x: Tensor, settings: Settings) -> ValueError:
    n, what = _size(x, settings), "features" if settings.by == "features" else "rows"
    return ValueError(
        f"keep={settings.keep:g} of {n} {what} keeps none; allowed: a keep of at least "
        f"{1 / n:.3g}, more {what}"
    )
