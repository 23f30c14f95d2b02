"""The ways to all-reduce that are compared: one object each, behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import torch_cgx
from benchmarks._check import Reference

GLOO = "gloo fp32"
STAGES = ("encode", "transfer", "decode")
COUNTERS = ("calls", "bytes_sent", *(f"seconds_{stage}" for stage in STAGES))


@dataclass(frozen=True)
class Variant:
    """One configuration of cgx. carrier: "shm" or "gloo"; bits: 32 is exact; reduction,
    segment_kb (of shm) and fusion_mb (of gloo) as in torch_cgx.Options, None for the default.
    """

    carrier: str
    bits: int
    reduction: str | None = None
    segment_kb: int | None = None
    fusion_mb: int | None = None

    @property
    def name(self) -> str:
        parts = ["cgx", self.carrier, "exact" if self.bits == 32 else f"{self.bits} bit"]
        parts += [self.reduction] if self.reduction else []
        parts += [f"{self.segment_kb}K"] if self.segment_kb else []
        parts += [f"{self.fusion_mb}M"] if self.fusion_mb else []
        return " ".join(parts)


class Method(ABC):
    """All-reduces an fp32 vector in place, among all ranks. `mean`: the result is their mean."""

    name: str
    carrier: str = "gloo"
    bits: int = 32
    mean: bool = False
    wire_source: str = "formula"

    @abstractmethod
    def run(self, x: torch.Tensor) -> None: ...

    @abstractmethod
    def bound(self, reference: Reference) -> torch.Tensor:
        """Largest allowed error per bucket."""

    def wire_bytes(self, ranks: int, nbytes: int) -> float:
        """Bytes that a rank sends for `nbytes` of fp32, where nobody counts them."""
        return ring_bytes(ranks, self.bits, nbytes)

    def counted(self) -> dict[str, float]:
        """Counters since the group was made (see torch_cgx.stats), or nothing."""
        return {}

    def staging_bytes(self) -> int | None:
        """Host memory that messages between hosts hold now; None: nobody counts it."""
        return None


class Gloo(Method):
    """What a program without cgx does: dist.all_reduce on a gloo group of its own."""

    name = GLOO

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")

    def run(self, x: torch.Tensor) -> None:
        dist.all_reduce(x, group=self._group)

    def bound(self, reference: Reference) -> torch.Tensor:
        return reference.fp32_bound()


class _Bucket:
    """What torch's compression hooks use of a GradBucket, which only DDP can make."""

    def __init__(self, x: torch.Tensor):
        self._x = x

    def buffer(self) -> torch.Tensor:
        return self._x


class Hook(Method):
    """torch's own 16-bit DDP hooks, called as DDP calls them, on a gloo group: cast, divide by the
    number of ranks, all-reduce, copy back.
    """

    mean = True
    bits = 16

    def __init__(self, dtype: torch.dtype):
        self._dtype = dtype
        hooks: dict[torch.dtype, tuple[str, Callable[..., Any]]] = {
            torch.float16: ("fp16 hook", default_hooks.fp16_compress_hook),
            torch.bfloat16: ("bf16 hook", default_hooks.bf16_compress_hook),
        }
        self.name, self._hook = hooks[dtype]
        self._group = dist.new_group(backend="gloo")

    def run(self, x: torch.Tensor) -> None:
        self._hook(self._group, _Bucket(x)).wait()

    def bound(self, reference: Reference) -> torch.Tensor:
        return reference.half_bound(self._dtype)


class CgxGroup(Method):
    """dist.all_reduce on a cgx group of all ranks. options: of torch_cgx.Options."""

    wire_source = "measured"

    def __init__(self, name: str, carrier: str, options: dict[str, Any]):
        self.name = name
        self.carrier = carrier
        self.bits = options["bits"]
        self.group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(**options))

    def run(self, x: torch.Tensor) -> None:
        dist.all_reduce(x, group=self.group)

    def bound(self, reference: Reference) -> torch.Tensor:
        if self.bits == 16:
            return reference.cast_bound(torch.bfloat16)
        if self.bits > 8:
            return reference.fp32_bound()
        return reference.maxmin_bound(self.bits, two_roundings=self.two_roundings(reference))

    def two_roundings(self, reference: Reference) -> bool:
        """Whether a value may be rounded twice."""
        return True

    def counted(self) -> dict[str, float]:
        stats = torch_cgx.stats(self.group)
        return {name: stats[name] for name in COUNTERS}

    def staging_bytes(self) -> int | None:
        return int(torch_cgx.stats(self.group)["staging_bytes"])


class WidthGroup(CgxGroup):
    """One width that an autotuned group chooses from, or such a group, which is named "tuned"."""

    def bound(self, reference: Reference) -> torch.Tensor:
        if self.bits > 16:
            return reference.fp32_bound()
        # half_bound is that of a mean.
        half = reference.half_bound(torch.bfloat16) * reference.world_size
        if self.bits == 16:
            return half
        asked = reference.maxmin_bound(self.bits, two_roundings=True)
        return torch.maximum(asked, half) if self.name == "tuned" else asked

    def tuning(self) -> dict[str, Any]:
        """What the group knows of its link and codecs, as JSON; its carrier."""
        model = torch_cgx.tuning(self.group)
        assert model is not None, f"{self.name} is not autotuned"
        facts = {name: model[name] for name in ("seconds", "measurements", "link", "codecs")}
        return {"carrier": torch_cgx.stats(self.group)["carrier"], "tuning": facts}


class Cgx(CgxGroup):
    """One on this host."""

    def __init__(self, variant: Variant, bucket_size: int):
        self._reduction = variant.reduction or "AUTO"
        options: dict[str, Any] = {
            "inner_communicator": variant.carrier.upper(),
            "inner_reduction": self._reduction,
            "bits": variant.bits,
            "bucket_size": bucket_size,
        }
        if variant.segment_kb:
            options["shm_segment_kb"] = variant.segment_kb
        if variant.fusion_mb:
            options["fusion_buffer_mb"] = variant.fusion_mb
        super().__init__(variant.name, variant.carrier, options)

    def two_roundings(self, reference: Reference) -> bool:
        once = self._reduction == "ONESHOT" or (
            self._reduction == "AUTO" and reference.world_size <= 2
        )
        return not once


def make_methods(
    variants: list[Variant], bucket_size: int, bf16: bool, peers: Sequence[str] = ()
) -> list[Method]:
    """Collective over all ranks: every method makes its groups here, in the same order. peers:
    names from `_peer_methods.PEERS`.
    """
    from benchmarks._peer_methods import PEERS

    methods: list[Method] = [Gloo(), Hook(torch.float16)]
    if bf16:
        methods.append(Hook(torch.bfloat16))
    for peer in peers:
        methods += PEERS[peer]()
    methods += [Cgx(variant, bucket_size) for variant in variants]
    return methods


def sixteen_bits() -> bool:
    """Whether this build has a 16-bit wire; without, more than 8 bits mean exact."""
    numel = 4096
    ranks = [torch.ones(numel), torch.ones(numel)]
    return torch_cgx.simulate(ranks, {"bits": 16}).bytes_sent[0] < 3 * numel


def ring_bytes(world_size: int, bits: int, nbytes: int) -> float:
    """Bytes that a rank sends in a ring or halving-doubling all-reduce of `nbytes` of fp32, sent
    with `bits` (16 or 32) per value: 2 (N - 1) / N of the vector.
    """
    return 2 * (world_size - 1) / world_size * nbytes * bits / 32
