"""FewBit's randomized linear layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torch_cgx.compat.fewbit.functional.linear import (
    check_columns,
    check_projection,
    linear_crs,
    linear_grp,
    projected_rows,
)


class LinearGRP(nn.Linear):
    """torch.nn.Linear with the gradient of its weight from a random projection of the input, as
    `functional.linear_grp` describes; the arguments are explained there.

    in_features, out_features, bias, device, dtype: as of torch.nn.Linear. ValueError also for a
    proj_dim_max below proj_dim_min. `activations.Linear` is the layer for new programs.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        proj_dim_ratio: float | None = None,
        proj_dim: int | None = None,
        proj_dim_min: int | None = None,
        proj_dim_max: int | None = None,
        matmul: str = "gaussian",
        generator: torch.Generator | None = None,
    ) -> None:
        check_projection(proj_dim_ratio, proj_dim, proj_dim_max, proj_dim_min, matmul, generator)
        if proj_dim_max and proj_dim_min and proj_dim_max < proj_dim_min:
            raise ValueError(
                f"proj_dim_max={proj_dim_max} below proj_dim_min={proj_dim_min}; allowed: "
                f"{proj_dim_min} and more"
            )
        super().__init__(in_features, out_features, bias, device, dtype)
        self.proj_dim_ratio, self.proj_dim = proj_dim_ratio, proj_dim
        self.proj_dim_min, self.proj_dim_max = proj_dim_min, proj_dim_max
        self.matmul, self.generator = matmul, generator

    def rows_of(self, n: int) -> int:
        """How many rows are kept of n. ValueError: none."""
        return projected_rows(
            n, self.proj_dim_ratio, self.proj_dim, self.proj_dim_max, self.proj_dim_min
        )

    def forward(self, input: Tensor) -> Tensor:
        return linear_grp(
            input,
            self.weight,
            self.bias,
            self.proj_dim_ratio,
            self.proj_dim,
            self.proj_dim_max,
            self.proj_dim_min,
            self.matmul,
            self.generator,
        )

    def extra_repr(self) -> str:
        names = ("proj_dim_ratio", "proj_dim", "proj_dim_min", "proj_dim_max")
        said = [
            f"{name}={getattr(self, name)}" for name in names if getattr(self, name) is not None
        ]
        return ", ".join([super().extra_repr(), *said, f"matmul={self.matmul!r}"])


RandomizedLinear = LinearGRP


class LinearCRS(nn.Linear):
    """torch.nn.Linear with the gradient of its weight from `proj_dim` columns of the input, as
    `functional.linear_crs` describes.

    in_features, out_features, bias, device, dtype: as of torch.nn.Linear; FewBit lost the bias.
    proj_dim: by default out_features // 2, and at least 1. ValueError: below 1.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        proj_dim: int | None = None,
    ) -> None:
        count = max(1, out_features // 2) if proj_dim is None else proj_dim
        check_columns("proj_dim", count)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.proj_dim = count

    def forward(self, input: Tensor) -> Tensor:
        return linear_crs(input, self.weight, self.bias, self.proj_dim)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, proj_dim={self.proj_dim}"


__all__ = ["LinearCRS", "LinearGRP", "RandomizedLinear"]
