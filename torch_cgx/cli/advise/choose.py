"""The settings that `cgx advise` compares, what each costs, and which one it recommends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_cgx.cli.advise.source import Profile
from torch_cgx.cost import Compute, Cost, Layer, Payload, Speed, all_reduce, measure_speed, predict
from torch_cgx.cost.allreduce import LATENCY

# (name, configuration of the compressed layers, bytes per value of a cast, over Gloo's own ring)
SETTINGS: tuple[tuple[str, dict[str, Any] | None, int, bool], ...] = (
    ("gloo fp32", None, 4, True),
    ("gloo, fp16 hook", None, 2, True),
    ("cgx exact", {"bits": 32}, 4, False),
    ("cgx 16 bits", {"bits": 16}, 4, False),
    ("cgx maxmin 8 bits", {"bits": 8}, 4, False),
    ("cgx maxmin 4 bits", {"bits": 4}, 4, False),
    ("cgx rotated 4 bits", {"bits": 4, "codec": "rotated"}, 4, False),
    ("cgx rotated 3 bits", {"bits": 3, "codec": "rotated"}, 4, False),
    ("cgx rotated 2 bits", {"bits": 2, "codec": "rotated"}, 4, False),
)
LEAST_BITS = 4  # fewer are shown, and recommended only after a training that has tried them
LEAST_GAIN = 0.05  # of a step; less is not worth an error
_GAUSSIAN = 1 << 18


@dataclass(frozen=True)
class Place:
    """latency: of the link, in seconds; None: a usual one."""

    hosts: int
    ranks_per_host: int
    latency: float | None
    busy_cores: bool

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host


@dataclass(frozen=True)
class Setting:
    """payloads: of the buckets. error: relative, of the averaged gradient."""

    name: str
    config: dict[str, Any] | None
    payloads: tuple[Payload, ...]
    speed: Speed
    flat: bool
    error: float


def settings(profile: Profile, place: Place, least: int) -> list[Setting]:
    """All of SETTINGS for a model. least: min_size."""
    found = []
    for name, config, width, flat in SETTINGS:
        payloads = tuple(payload_of(bucket, config, width, least) for bucket in profile.buckets)
        speed = Speed(0.0, 0.0) if config is None else measure_speed(config)
        error = _error(profile, place, config, width, least)
        found.append(Setting(name, config, payloads, speed, flat, error))
    return found


def payload_of(
    bucket: Sequence[Layer], config: dict[str, Any] | None, width: int, least: int
) -> Payload:
    """config: of layers that CGXState compresses; None: none is. Exact values are cast to at most
    `width` bytes.
    """
    from torch_cgx import _config

    codec = None if config is None else _config.codec_of(config, _config.defaults())
    own = bucket[0].width  # of all: DDP keeps widths apart
    wide = min(width, own) if config is None else own
    sent = 2 if wide == 2 else 4
    return Payload(
        tuple(
            (layer.numel, codec)
            if codec is not None and _compressed(layer, least)
            else (-(-layer.numel * wide // sent), None)
            for layer in bucket
        ),
        sent,
    )


def _compressed(layer: Layer, least: int) -> bool:
    """By CGXState's rules."""
    import torch

    from torch_cgx import _config
    from torch_cgx._policy.rules import Policy

    policy = Policy(max(least, _config.minimal_size()), {})
    shaped = torch.empty(layer.shape, dtype=torch.float32, device="meta")  # type: ignore[arg-type]
    return policy.config_of(layer.name, shaped) is not None


def _error(
    profile: Profile, place: Place, config: dict[str, Any] | None, width: int, least: int
) -> float:
    import torch

    if config is None or config["bits"] >= 16:
        half = width == 2 or (config is not None and config["bits"] == 16)
        return 2.0**-11 if width == 2 else 2.0**-9 if half else 0.0  # of rounding to fp16, bf16
    from torch_cgx.cli.simulate import measure

    hosts = [rank // place.ranks_per_host for rank in range(place.ranks)]
    if profile.gradients:
        found = profile.gradients
        ranks = [found[rank % len(found)] for rank in range(place.ranks)]
        return float(measure(ranks, hosts, config, least, lambda: None)["error"])
    values = torch.Generator().manual_seed(0)
    shape = (512, _GAUSSIAN // 512)
    tensors = [
        torch.randn(shape, generator=values, dtype=torch.float32, device="cpu")
        for _ in range(place.ranks)
    ]
    ranks = [{"w": tensor} for tensor in tensors]
    return float(measure(ranks, hosts, config, 0, lambda: None)["error"])


def costs_of(setting: Setting, place: Place, bits_per_second: float) -> list[Cost]:
    latency = LATENCY if place.latency is None else place.latency
    return [
        all_reduce(
            payload,
            bits_per_second,
            place.hosts,
            place.ranks_per_host,
            setting.speed,
            latency,
            setting.flat,
        )
        for payload in setting.payloads
    ]


def rows(
    profile: Profile, place: Place, chosen: Sequence[Setting], bits_per_second: float
) -> list[dict[str, Any]]:
    """What each setting takes on a link. Where the computation is unknown, a step is
    communication.
    """
    seconds = profile.compute_seconds
    compute = Compute(seconds or 0.0, profile.ready if seconds else (0.0,) * len(profile.ready))
    found: list[dict[str, Any]] = []
    for setting in chosen:
        step = predict(compute, costs_of(setting, place, bits_per_second), place.busy_cores)
        found.append(
            {
                "setting": setting.name,
                "config": setting.config,
                "seconds": step.seconds,
                "exposed_seconds": step.exposed,
                "host_bytes": step.host_bytes,
                "error": setting.error,
            }
        )
    base = found[0]["seconds"]
    return [{**row, "vs_gloo": base / row["seconds"] if row["seconds"] else 1.0} for row in found]


def verdict(
    table: Sequence[dict[str, Any]], max_error: float, profile: Profile, least: int
) -> dict[str, Any]:
    """recommended: a setting's name, or None where compression does not help; why; code."""
    lossless = [row for row in table if row["config"] is None or row["config"]["bits"] >= 16]
    best = min(lossless, key=lambda row: row["seconds"])
    small = [row for row in table if row["config"] is not None and row["config"]["bits"] <= 8]
    allowed = [
        row for row in small if row["config"]["bits"] >= LEAST_BITS and row["error"] <= max_error
    ]
    if not allowed:
        least_error = min(row["error"] for row in small)
        why = (
            f"no setting from {LEAST_BITS} bits up has an error of at most {max_error:g}; the "
            f"least is {least_error:.3g}"
        )
        return {"recommended": None, "why": why, "code": ""}
    # The least error among those that are about as fast as the fastest.
    fastest = min(row["seconds"] for row in allowed)
    near = [row for row in allowed if row["seconds"] <= fastest * (1 + LEAST_GAIN)]
    chosen = min(near, key=lambda row: row["error"])
    gain = best["seconds"] / chosen["seconds"]
    if gain < 1 + LEAST_GAIN:
        why = (
            f"it does not help here: {chosen['setting']} is {gain:.2f} times as fast as "
            f"{best['setting']}, which has 16 or 32 bits"
        )
        return {"recommended": None, "why": why, "code": ""}
    if gain < 1 + profile.spread:
        why = (
            f"no clear gain: {chosen['setting']} is {gain:.2f} times as fast as "
            f"{best['setting']}, and the measured steps differ by {100 * profile.spread:.0f} % "
            "either way; measure on a quieter machine"
        )
        return {"recommended": None, "why": why, "code": ""}
    why = (
        f"{gain:.2f} times as fast as {best['setting']}, "
        f"{chosen['vs_gloo']:.2f} times as fast as gloo fp32"
    )
    return {"recommended": chosen["setting"], "why": why, "code": code_of(chosen["config"], least)}


def code_of(config: dict[str, Any], least: int) -> str:
    given = {**({} if least == 1024 else {"min_size": least}), **config}
    arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return f"model.register_comm_hook(CGXState({arguments}), cgx_hook)"
