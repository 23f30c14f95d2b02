"""Layers whose GEMMs round: of one's own models, in the place of torch.nn's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_cgx.emulate.gemm.convolution import of_module
from torch_cgx.emulate.gemm.formats import GemmFormats, gemm_formats
from torch_cgx.emulate.gemm.linear import linear
from torch_cgx.emulate.gemm.product import Accumulation
from torch_cgx.emulate.gemm.rounding import Clock, Rounding, begin


def _rounding(inputs: Any, accumulation: Accumulation, seed: int) -> Rounding:
    formats = gemm_formats(inputs, "inputs")
    if not accumulation.fp32:
        formats = GemmFormats(formats.operands, formats.hadamard, accumulation)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ValueError(f"seed={seed!r}; allowed: integers of 0 to 2**64 - 1")
    return Rounding(formats, Clock(seed))


def _check_bias(bias: object) -> None:
    if not isinstance(bias, bool):
        raise TypeError(f"bias={bias!r}; allowed: True, False (formats are inputs=...)")


class QuantLinear(nn.Linear):
    """torch.nn.Linear whose GEMMs round, forward and both of its backward pass.

    inputs, accumulate, kahan, order, block: as of `emulate.matmul`; inputs may also have
        "hadamard", and formats with scale="delayed".
    seed: of stochastic formats, whose numbers are others in each forward pass of a training, and on
        each rank; layers with the same seed draw the same numbers.

    The bias is added in the operands' type, and its gradient is exact. The amaxes of delayed scales
    are copied and pickled with the layer; its state dict, which is a Linear's, lacks them.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        inputs: Any = None,
        accumulate: Any = "fp32",
        kahan: bool = False,
        order: str = "sequential",
        block: int = 64,
        seed: int = 0,
    ):
        _check_bias(bias)
        rounding = _rounding(inputs, Accumulation(accumulate, kahan, order, block), seed)
        super().__init__(in_features, out_features, bias, device, dtype)
        self._rounding = rounding

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight, self.bias, begin(self._rounding.number, self.training))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self._rounding.formats}"


class QuantConv2d(nn.Conv2d):
    """torch.nn.Conv2d whose convolutions round, forward and both of its backward pass: with its
    stride, padding, dilation and groups.

    inputs, accumulate, kahan, order, block, seed: as of QuantLinear. Blocks lie along input
        channels (forward), output channels (dgrad) and the batch (wgrad). With accumulation in a
        format a convolution is a matrix product over channels and the kernel's places; the windows
        of the input's gradient are then added in float32.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        inputs: Any = None,
        accumulate: Any = "fp32",
        kahan: bool = False,
        order: str = "sequential",
        block: int = 64,
        seed: int = 0,
    ):
        _check_bias(bias)
        rounding = _rounding(inputs, Accumulation(accumulate, kahan, order, block), seed)
        super().__init__(
            *(in_channels, out_channels, kernel_size, stride, padding, dilation, groups),
            *(bias, padding_mode, device, dtype),  # type: ignore[arg-type]
        )
        self._rounding = rounding

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return of_module(self, input, begin(self._rounding.number, self.training))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self._rounding.formats}"
