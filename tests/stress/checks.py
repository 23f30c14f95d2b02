"""What a rank checks of a result: against the bound in float64, and against the simulation."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

import torch_cgx
from tests.stress import oracle
from tests.stress.program import Call

_SIMULATED = 1 << 15  # values; larger calls are checked against the bound only
# What a configuration may set, as far as results depend on it.
KEYS = (
    "codec", "bits", "bucket_size", "rounding", "skip_incomplete_buckets", "block_size", "scale",
)  # fmt: skip
_ALGORITHMS = {"AUTO": "auto", "SRA": "sra", "ONESHOT": "oneshot", "RING": "ring"}


@dataclasses.dataclass
class Group:
    handle: Any
    members: tuple[int, ...]
    settings: dict[str, Any]
    way: oracle.Way
    calls: int = 0


@dataclasses.dataclass
class Place:
    """Where the checks are made, and how many results were compared with the simulation."""

    rank: int
    seed: int
    hosts: Any  # by rank; None: one host
    simulated: int = 0


def complaint(call: Call, group: Group, place: Place, result: torch.Tensor) -> str:
    """What is wrong with the result of a call; empty: nothing."""
    size, seed = len(group.members), place.seed
    shards = call.kind == "reduce_scatter"
    numel = call.numel * (size if shards else 1)
    inputs = [oracle.values(call, rank, numel, seed) for rank in group.members]
    if shards:
        shard = group.members.index(place.rank)
        mine = slice(shard * call.numel, (shard + 1) * call.numel)
        inputs = [x[mine] for x in inputs]
    dtype = result.dtype
    for name, spec, start, stop in _parts(call, group):
        doubles = [x[start:stop].double().numpy() for x in inputs]
        if call.kind == "all_gather":
            found = result.view(size, -1)
            ratio = 0.0
            for row, x in zip(found, doubles, strict=True):
                limit = oracle.codec_bound(x, spec) if size > 1 else 0 * x
                relative, absolute = oracle.ROUNDING[dtype]
                exact_way = spec["bits"] > 8 or size == 1
                limit = limit + (0.0 if exact_way else relative * (abs(x) + limit) + absolute)
                ratio = max(ratio, oracle.worst(row, x, limit + 1e-300))
        else:
            again = not shards
            way = group.way
            exact, limit = oracle.sum_bound(doubles, spec, way, dtype, call.average, again)
            ratio = oracle.worst(result[start:stop], exact, limit)
        if ratio > 1:
            return f"{name}: error is {ratio:.3g} times what is allowed ({call})"
    return _compare_with_simulation(call, group, place, inputs, result)


def _parts(call: Call, group: Group) -> list[tuple[str, dict[str, Any], int, int]]:
    """Layers with their full configuration."""

    def full(config: Any) -> dict[str, Any]:
        spec = {key: dict(config or ()).get(key, group.settings[key]) for key in KEYS}
        return {**spec, "bits": 32} if config is None else spec

    if call.kind == "layers":
        parts, start = [], 0
        for numel, config in call.layers:
            parts.append((f"layer at {start}", full(config), start, start + numel))
            start += numel
        return parts
    config = call.config if call.config is not None else ()
    return [("tensor", full(config), 0, call.numel)]


def _compare_with_simulation(
    call: Call, group: Group, place: Place, inputs: list[torch.Tensor], result: torch.Tensor
) -> str:
    """The same engine gets the same bits without a communicator. One rank of the group looks."""
    size = len(group.members)
    whole = call.kind in ("configured", "layers") and 0 < call.numel <= _SIMULATED
    if not whole or size == 1 or call.key % size != group.members.index(place.rank):
        return ""
    parts = _parts(call, group)
    # What depends on the number of the call, which is not known here.
    if any(
        spec["bits"] <= 8 and (spec["codec"] != "maxmin" or spec["rounding"] == "stochastic")
        for _, spec, _, _ in parts
    ):
        return ""
    several = len(set(group.way.hosts)) > 1 and place.hosts is not None
    labels = None
    if several:
        labels = [place.hosts[rank] for rank in group.members]
        several = len(set(labels)) > 1
    if not several and group.settings["intra_compress"] in ("0", False):
        return ""
    algorithm = group.settings["cross_reduction" if several else "inner_reduction"]
    options = {
        key: group.settings[key]
        for key in (
            "shm_segment_kb", "fusion_buffer_mb", "segment_kb", "intra_broadcast",
            "intra_compress", "inner_communicator",
        )
    }  # fmt: skip
    layers = [
        (stop - start, None if spec["bits"] > 8 else {key: spec[key] for key in KEYS})
        for _, spec, start, stop in parts
    ]
    found = torch_cgx.simulate(
        inputs,
        layers=layers,
        algorithm=_ALGORITHMS[algorithm],
        op=dist.ReduceOp.AVG if call.average else dist.ReduceOp.SUM,
        hosts=labels if several else None,
        options=torch_cgx.Options(**options),
    )
    place.simulated += 1
    same = torch.equal(found.result.view(torch.uint8), result.view(torch.uint8))
    return "" if same else f"differs from the simulation ({call}, {group.settings})"
