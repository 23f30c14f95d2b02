"""Products of matrices whose sums are made in a format."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch

from torch_cgx._constant import constant
from torch_cgx.emulate._format import Format, check_format
from torch_cgx.emulate.gemm._operators import HOPPER, check_operand

FP32 = "fp32"
_ORDERS = ("sequential", "blocked")


class _Arguments(NamedTuple):
    """Of the operator."""

    accumulate: str
    kahan: bool
    block: int


@dataclasses.dataclass(frozen=True)
class Accumulation:
    """How the sums of a product are made. Accumulations are values: equal ones compare equal, and
    they can be hashed, pickled and copied.

    accumulate: a format of torch_cgx.emulate, or the name of one: each term and each sum is rounded
        to float32, then to the format. It has a zero, shares no scales and draws no random numbers:
        a `Float` or a `Fixed`. "fp32": torch.matmul, in torch's own order. "hopper14": as the FP8
        tensor cores of NVIDIA's Hopper.
    kahan: Kahan's rule: what each sum loses is subtracted from the next term.
    order: "sequential": term after term. "blocked": of every `block` terms a sum by itself; the
        blocks' sums are then added in order, by the same rule.
    block: terms of a block, 1 or more.

    With p_k = cast(a_k b_k), from s = c = 0:

        plain   s = cast(s + p_k)
        Kahan   y = cast(p_k - c), t = cast(s + y), c = cast(cast(t - s) - y), s = t

    "hopper14": the products of 32 terms and the accumulator are truncated to multiples of
    2^(E - 13), where E is the greatest exponent among them; their sum is truncated to 14 bits. The
    sum of 128 terms is added to a float32 total, and a new one starts from 0.

    Sources: Kahan's rule in formats: CPD, arXiv 1911.08907; blocks: Wang et al., NeurIPS 2018,
    "Training DNNs with 8-bit floating point numbers"; Hopper: DeepSeek-V3, arXiv 2412.19437, 3.3.2
    and 3.5.2.

    ValueError, TypeError: an argument is not allowed, or goes with others only: kahan and "blocked"
    with a format. Float(8, 23) is float32 with its sums in order.
    """

    accumulate: Format | str = FP32
    kahan: bool = False
    order: str = "sequential"
    block: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "accumulate", _accumulate(self.accumulate))
        if not isinstance(self.kahan, bool):
            raise TypeError(f"kahan={self.kahan!r}, allowed: True, False")
        if self.order not in _ORDERS:
            raise ValueError(f"order={self.order!r}, allowed: {', '.join(_ORDERS)}")
        if isinstance(self.block, bool) or not isinstance(self.block, int):
            raise TypeError(f"block={self.block!r}, allowed: an int from 1 on")
        if self.block < 1:
            raise ValueError(f"block={self.block!r}, allowed: integers from 1 on")
        if isinstance(self.accumulate, Format):
            return
        for name, given, usual in (("kahan", self.kahan, False), ("order", self.order, _ORDERS[0])):
            if given != usual:
                raise ValueError(
                    f"{name}={given!r} with accumulate={self.accumulate!r}, allowed: {usual!r}, or "
                    "accumulate=a format; Float(8, 23) is float32 with its sums in order"
                )

    @property
    def fp32(self) -> bool:
        """Whether torch.matmul makes the sums."""
        return self.accumulate == FP32

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """`product` with this accumulation."""
        return product(a, b, self)


def _accumulate(given: object) -> Format | str:
    if isinstance(given, str) and given.lower() in (FP32, HOPPER):
        return given.lower()
    try:
        format = check_format(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"accumulate: {error}, {FP32}, {HOPPER}") from None
    if (
        not format.elementwise
        or format.stochastic
        or format.facts["parameters"].get("variant") == "scale"
    ):
        raise ValueError(
            f"accumulate={format}, allowed: a format that has a zero, shares no scales and draws "
            f"no random numbers, as Float(5, 10); {FP32}, {HOPPER}"
        )
    return format


@constant
def _arguments(
    accumulate: Accumulation | Format | str, kahan: bool, order: str, block: int
) -> _Arguments:
    how = accumulate
    if not isinstance(how, Accumulation):
        how = Accumulation(how, kahan, order, block)
    text = how.accumulate.text if isinstance(how.accumulate, Format) else how.accumulate
    return _Arguments(text, how.kahan, how.block if how.order == "blocked" else 0)


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    accumulate: Accumulation | Format | str,
    *,
    kahan: bool = False,
    order: str = "sequential",
    block: int = 64,
) -> torch.Tensor:
    """a [..., M, K] times b [..., K, N]: a new tensor [..., M, N]. Their other dimensions broadcast
    as in torch.matmul. All three are float32; a and b may have any strides.

    accumulate: an `Accumulation`; or its `accumulate`, with kahan, order and block beside it.

    On the CPU the result is the same bits on every SIMD level and with any number of threads. On a
    GPU it has the same bits, by operations of torch, some of them for each of the K terms.

    TypeError, ValueError: the tensors do not go together, or an argument is not allowed. A backward
    pass through the result raises RuntimeError, except with "fp32": torch_cgx.emulate.matmul has a
    gradient.
    """
    text, rule, terms = _arguments(accumulate, kahan, order, block)
    if text == FP32:
        check_operand("a", a)
        check_operand("b", b)
        return torch.matmul(a, b)
    found: torch.Tensor = torch.ops.torch_cgx.emulate_product(a, b, text, rule, terms)
    return found
