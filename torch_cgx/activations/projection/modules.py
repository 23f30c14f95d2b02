"""`activations.Linear`: torch.nn.Linear that keeps a part of its input."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor, nn

from torch_cgx.activations.projection.function import By, Method, Settings, checked, projected


class Linear(nn.Linear):
    """torch.nn.Linear whose backward pass estimates the gradient of the weight from a part of the
    input, as `activations.functional.linear` describes.

    in_features, out_features, bias, device, dtype: as of torch.nn.Linear. keep, method, by, rows:
    as of the function. Parameters and state dict are torch's own; evaluation is not changed.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        keep: float = 0.2,
        method: Method = "wta",
        by: By = "batch",
        rows: int | None = None,
    ) -> None:
        settings = checked(keep, method, by, rows)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.set(settings)

    def set(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def keep(self) -> float:
        return self.settings.keep

    @property
    def method(self) -> Method:
        return self.settings.method

    @property
    def by(self) -> By:
        return self.settings.by

    @property
    def rows(self) -> int | None:
        return self.settings.rows

    def forward(self, input: Tensor) -> Tensor:
        settings, training = self.settings, self.training
        return projected(input, self.weight, self.bias, settings, training=training)

    def extra_repr(self) -> str:
        kept = f"keep={self.keep:g}" if self.rows is None else f"rows={self.rows}"
        return f"{super().extra_repr()}, {kept}, method={self.method!r}, by={self.by!r}"


def settings_of(given: Any, where: str) -> Settings:
    """Of a number, `keep`, or a dict of keep, method, by and rows. TypeError, ValueError."""
    if isinstance(given, dict):
        unknown = sorted(set(given) - {"keep", "method", "by", "rows"})
        if unknown:
            raise ValueError(f"{where} has {unknown}; allowed: keep, method, by, rows")
        options = {"keep": 0.2, "method": "wta", "by": "batch", "rows": None, **given}
    elif isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise TypeError(f"{where}={given!r}; allowed: numbers above 0, to 1, a dict of settings")
    else:
        options = {"keep": given, "method": "wta", "by": "batch", "rows": None}
    try:
        return checked(**options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from None
