"""The ways of all-reducing a tensor that are compared."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx.cli.errors import CliError

BASE = "gloo fp32"


@dataclass(frozen=True)
class Method:
    """run: all-reduces a flat fp32 tensor in place, and returns when the result is there. counters:
    of the engine; None for other backends, whose bytes are `width` per value by formula.
    """

    name: str
    bits: int
    codec: str
    run: Callable[[torch.Tensor], None]
    counters: Callable[[], Mapping[str, Any]] | None = None
    width: int = 4
    backend: str = "gloo"

    def communicator(self, device: str) -> str:
        if self.counters is None:
            return self.backend
        found = self.counters()
        return str(found["cuda_communicator"] if device == "cuda" else found["communicator"])


def check_codecs(names: Sequence[str], bits: Sequence[int]) -> None:
    """CliError for an unknown codec, or bits that none of the named ones has."""
    import torch_cgx

    known = [one["name"] for one in torch_cgx._C.families() if one["name"] not in ("bf16", "fp16")]
    for name in names:
        if name not in known:
            raise CliError(f"--codec {name}: no such codec; allowed: {', '.join(known)}")
    for number in bits:
        if number <= 8 and not any(has(name, number) for name in names):
            raise CliError(f"--bits {number}: {', '.join(names)} has no {number} bits")


def has(codec: str, bits: int) -> bool:
    """Whether a codec has that many bits."""
    from torch_cgx import _config

    try:
        made = _config.codec_of({"codec": codec, "bits": bits}, _config.defaults())
    except ValueError:
        return False
    # `float` and `block` take their bits from their format.
    return made is None or made.bits == bits


def methods(
    codecs: Sequence[str], bits: Sequence[int], device: str, limit: datetime.timedelta
) -> list[Method]:
    """gloo's and NCCL's, and cgx with each codec and number of bits. Collective."""
    gloo = dist.new_group(backend="gloo", timeout=limit)
    found = [Method(BASE, 32, "", lambda x: _all_reduce(x, gloo))]
    if device == "cuda" and dist.is_nccl_available():
        nccl = dist.new_group(backend="nccl", timeout=limit)
        found.append(Method("nccl fp32", 32, "", lambda x: _all_reduce(x, nccl), None, 4, "nccl"))
        found.append(Method("nccl fp16", 16, "", lambda x: _half(x, nccl), None, 2, "nccl"))
    found.append(Method("gloo fp16", 16, "", lambda x: _half(x, gloo), None, 2))
    for number in bits:
        if number == 32:
            found.append(_cgx("cgx exact", 32, "", {"bits": 32}))
        elif number == 16:
            found.append(_cgx("cgx 16 bits", 16, "", {"bits": 16}))
        else:
            for codec in codecs:
                if has(codec, number):
                    config = {"bits": number, "codec": codec}
                    found.append(_cgx(f"cgx {codec} {number} bits", number, codec, config))
    return found


def _cgx(name: str, bits: int, codec: str, config: dict[str, Any]) -> Method:
    import torch_cgx

    def run(x: torch.Tensor) -> None:
        torch_cgx.all_reduce(x, config=config)
        _finish(x)

    return Method(name, bits, codec, run, torch_cgx.stats)


def _all_reduce(x: torch.Tensor, group: Any) -> None:
    dist.all_reduce(x, group=group)
    _finish(x)


def _half(x: torch.Tensor, group: Any) -> None:
    small = x.half()
    dist.all_reduce(small, group=group)
    x.copy_(small)
    _finish(x)


def _finish(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()
