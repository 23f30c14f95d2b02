"""Norms that keep their output, as modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torch_cgx.activations.layers import norms
from torch_cgx.activations.layers.norms import Keep, Keeps


class _Keeps(nn.Module):
    keep: Keep
    keeps: Keeps
    calls_keeping_input: int

    def start(self, keep: Keep) -> None:
        norms.check_keep(keep)
        self.keep = keep
        self.keeps = "input" if keep == "input" else "output"
        self.calls_keeping_input = 0

    def _choice(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Keeps:
        """What this call keeps; the attributes say so afterwards."""
        keeps = norms.choose(self.keep, x, weight, bias)
        if keeps != self.keeps:
            self.keeps = keeps
        if keeps == "input" and not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self.calls_keeping_input += 1
        return keeps


class LayerNorm(_Keeps, nn.LayerNorm):
    """torch.nn.LayerNorm, with the same values, that keeps its output y for backward.

    The next linear layer keeps y anyway. The gradient needs xhat = (y - bias) / weight, which is
    accurate if for every feature |bias / weight| <= 1024 (float32, float64), 32 (float16) or
    8 (bfloat16) and |weight| >= 1024 times the smallest normal number of that dtype.

    keep: "auto" keeps the input, as torch does, in calls with other parameters; "output" does not
        look at the parameters, "input" is torch's own. On a GPU, looking makes the host wait for
        the device once after each change of the parameters, which a CUDA graph cannot have: use
        "output" there.
    keeps: "output" or "input", what the last call kept. calls_keeping_input: calls outside of
        torch.compile, with gradients enabled, that kept their input.

    torch.compile makes the choice when it compiles. A compiled backward whose parameters have left
    the range raises RuntimeError. Second derivatives raise RuntimeError where the output is kept.
    """

    def __init__(self, *args: Any, keep: Keep = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start(keep)

    def forward(self, input: Tensor) -> Tensor:
        keeps = self._choice(input, self.weight, self.bias)
        return norms.layer_norm(
            input, self.normalized_shape, self.weight, self.bias, self.eps, keep=keeps
        )


class RMSNorm(_Keeps, nn.RMSNorm):
    """torch.nn.RMSNorm, with the same values, that keeps its output; otherwise as LayerNorm."""

    def __init__(self, *args: Any, keep: Keep = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start(keep)

    def forward(self, x: Tensor) -> Tensor:
        keeps = self._choice(x, self.weight, None)
        return norms.rms_norm(x, self.normalized_shape, self.weight, self.eps, keep=keeps)


class CastRMSNorm(_Keeps):
    """The RMS norm of Llama-like models, weight * (x / rms(x)).to(x.dtype) with the part in
    brackets in float32, that keeps its output; what `convert` makes of them. It differs from
    torch's in float16 and bfloat16 by one rounding. eps_name: the attribute that holds eps.
    """

    weight: Tensor
    eps_name: str

    def forward(self, hidden_states: Tensor) -> Tensor:
        keeps = self._choice(hidden_states, self.weight, None)
        eps = getattr(self, self.eps_name)
        return norms.cast_rms_norm(hidden_states, self.weight, eps, keep=keeps)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={getattr(self, self.eps_name)}"
