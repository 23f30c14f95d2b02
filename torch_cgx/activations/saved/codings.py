"""What a saved tensor's values become, and back: wire codecs, 16 bits, error-bounded payloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from torch_cgx import codecs

# With stochastic rounding, as of every maxmin of so few bits.
DEFAULT: dict[str, Any] = {"codec": "maxmin", "bits": 4, "bucket_size": 256}
_FEW_BITS = 4  # at which rounding is stochastic by default


class Coding(Protocol):
    """stochastic: encode() draws random numbers, which its key makes.

    encode(values, step, number, rank): the payload, uint8, of a tensor of any strides.
    decode(payload, numel, dtype, device): the values, in one dimension.
    """

    name: str
    stochastic: bool
    dtypes: tuple[torch.dtype, ...]

    def encode(self, values: torch.Tensor, step: int, number: int, rank: int) -> torch.Tensor: ...
    def decode(
        self, payload: torch.Tensor, numel: int, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor: ...


class WireCoding:
    """A wire codec."""

    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16)

    def __init__(self, codec: codecs.Codec):
        self.codec = codec
        self.name = repr(codec)
        # Rounding of other families that draws random numbers is called "unbiased".
        rounding = getattr(codec, "rounding", getattr(codec, "scale", "nearest"))
        self.stochastic = rounding in ("stochastic", "unbiased")

    def encode(self, values: torch.Tensor, step: int, number: int, rank: int) -> torch.Tensor:
        if not self.stochastic:
            return self.codec.encode(values)
        return self.codec.encode(values, sequence=step, number=number, rank=rank)

    def decode(
        self, payload: torch.Tensor, numel: int, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return self.codec.decode(payload, numel=numel, dtype=dtype)


class BoundedCoding:
    """An error-bounded payload (torch_cgx.bounded), which is kept on the CPU."""

    stochastic = False
    dtypes: tuple[torch.dtype, ...] = (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
    )

    def __init__(self, bound: dict[str, float]):
        from torch_cgx import bounded

        self._bounded, self._bound = bounded, bound
        bounded.compress(
            torch.zeros(2, dtype=torch.float32, device="cpu"), **bound
        )  # an error if the bound is not allowed
        ((kind, value),) = bound.items()
        self.name = f"bounded({kind}={value!r})"

    def encode(self, values: torch.Tensor, step: int, number: int, rank: int) -> torch.Tensor:
        return self._bounded.compress(values, **self._bound)

    def decode(
        self, payload: torch.Tensor, numel: int, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return self._bounded.decompress(payload, device=device).flatten()


def coding_of(config: Mapping[str, Any] | codecs.Codec | str, where: str = "config") -> Coding:
    """The coding of a configuration: a codec of `torch_cgx.codecs`, its name, or a dict of "codec"
    and its parameters. "half" is 16 bits (bf16). "bounded" takes one bound: max_error, relative or
    pointwise. Rounding of maxmin is stochastic by default at up to 4 bits.

    TypeError, ValueError: no such codec or parameter; the text names both.
    """
    if isinstance(config, codecs.Codec):
        return WireCoding(config)
    given = {"codec": config} if isinstance(config, str) else config
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{where} is of type {type(config).__name__}; allowed: a dict, a codec of "
            "torch_cgx.codecs, its name"
        )
    parameters = dict(given)
    name = parameters.pop("codec", DEFAULT["codec"])
    if name == "bounded":
        return _bounded(parameters, where)
    if name == "half":
        name = "bf16"
    if not isinstance(name, str) or name.lower() not in codecs.names():
        allowed = ", ".join((*codecs.names(), "half", "bounded"))
        raise ValueError(f"{where}: codec is {name!r}; allowed: {allowed}")
    if name.lower() == "maxmin":
        parameters.setdefault("bucket_size", DEFAULT["bucket_size"])
        parameters.setdefault("bits", DEFAULT["bits"])
        few = isinstance(parameters["bits"], int) and parameters["bits"] <= _FEW_BITS
        parameters.setdefault("rounding", "stochastic" if few else "nearest")
    try:
        return WireCoding(codecs.make(name, **parameters))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from None


def merged(
    config: Mapping[str, Any] | codecs.Codec | str, other: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The configuration with other parameters: `other` alone where it names a codec."""
    if "codec" in other:
        return other
    if isinstance(config, str):
        return {"codec": config, **other}
    if isinstance(config, codecs.Codec):
        names = [name for name in codecs.names() if type(codecs.make(name)) is type(config)]
        own = dict(vars(config))
        own = {name: value for name, value in own.items() if not name.startswith("_")}
        return {"codec": names[0], **own, **other}
    return {**config, **other}


def _bounded(parameters: dict[str, Any], where: str) -> Coding:
    bounds = ("max_error", "relative", "pointwise")
    if len(parameters) != 1 or next(iter(parameters)) not in bounds:
        raise ValueError(
            f"{where}: bounded with {parameters or 'nothing'}; allowed: one of {', '.join(bounds)}"
        )
    return BoundedCoding(parameters)
