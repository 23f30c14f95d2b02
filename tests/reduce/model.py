"""An independent model of the reducers in numpy: what every rank must get, from the plan's borders
and the codec oracle.

It follows docs/numerics.md, not the C++: fp32 sums in rank order, one rounding (one-shot), two
(scatter-reduce-all-gather, whose owner of a chunk adds its own values unrounded) or one per rank
(ring). With several ranks on a host, those sum first, and hosts take the place of ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tests import _machinery, oracle
from tests.codec import rotation_model
from torch_cgx import _C

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
CONTRIBUTION, SUM, INNER = 0, 1, 2  # stages of an encoding, as random.h numbers them
ROTATIONS = {"rotated": rotation_model.Rotated, "trellis": rotation_model.Trellis}


def to_float32(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().numpy()


def through_codec(
    values: np.ndarray,
    spec: _C.Codec | None,
    dtype: torch.dtype,
    *,
    source: np.ndarray,
    index: int = 0,
    rank: int = 0,
    stage: int = CONTRIBUTION,
) -> np.ndarray:
    """fp32 values of one run after encode and decode. `source`: the same values as they were (for
    raw parts). index: of the run's first value in call number 0. rank, stage: of the encoding.
    """
    if spec is None or spec.bits == 16:
        if spec is not None and dtype == torch.float32:
            dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[spec.codec]
        return to_float32(torch.from_numpy(np.ascontiguousarray(values)).to(dtype))
    if spec.codec in ROTATIONS:
        call = rotation_model.Call(rank=rank, index=index, stage=stage)
        return rotation_model.coded(ROTATIONS[spec.codec], values, spec.parameters, call)[1]
    full = len(values)
    if spec.skip_incomplete_buckets:
        full -= full % spec.bucket_size
    wanted = oracle.Spec(bits=spec.bits, bucket_size=spec.bucket_size)
    decoded = oracle.decode(oracle.encode(values[:full], wanted), full, wanted)
    rest = to_float32(torch.from_numpy(np.ascontiguousarray(source[full:])).to(dtype))
    return np.concatenate([decoded, rest]).astype(np.float32)


Pieces = list[tuple[int, int, int, int, bool]]
Group = dict[str, object]


def hosts_of(group: Group, ranks: int) -> list[list[int]]:
    """The ranks of every host, hosts in the order of their first rank."""
    labels = group.get("hosts") or ["one"] * ranks
    by_label: dict[object, list[int]] = {}
    for rank, label in enumerate(labels):
        by_label.setdefault(label, []).append(rank)
    return list(by_label.values())


def all_reduce(
    inputs: list[torch.Tensor],
    layers: list[tuple[int, _C.Codec | None]],
    algorithm: str,
    average: bool = False,
    **group: object,
) -> torch.Tensor:
    """The result of all ranks, as a flat tensor of the inputs' dtype. group: as of `simulation.run`
    ("hosts", "leader_only", "inner_exact" and the sizes of messages).
    """
    dtype, size, n = inputs[0].dtype, len(inputs), inputs[0].numel()
    flat = [to_float32(x.reshape(-1)) for x in inputs]
    result = np.zeros(n, np.float32)
    if size == 1:
        return inputs[0].reshape(-1).clone()
    hosts = hosts_of(group, size)
    two_levels = 1 < len(hosts) < size
    starts = np.cumsum([0] + [numel for numel, _ in layers])
    rounds = _machinery.describe_plan(
        layers, DTYPES[dtype], ranks=size, algorithm=algorithm, **group
    )
    for shards in rounds:
        for team, chunks in enumerate(shards):
            for owner, pieces in enumerate(chunks):
                for offset, count, *_ in pieces:
                    layer = int(np.searchsorted(starts, offset, side="right")) - 1
                    spec = layers[layer][1]
                    part = slice(offset, offset + count)

                    def code(
                        x: np.ndarray,
                        rank: int,
                        stage: int,
                        spec: _C.Codec | None = spec,
                        index: int = offset,
                    ) -> np.ndarray:
                        more = {"index": index, "rank": rank, "stage": stage}
                        return through_codec(x, spec, dtype, source=x, **more)

                    own = [x[part] for x in flat]
                    members = list(range(size))
                    if two_levels:
                        exact = bool(group.get("inner_exact", True))
                        own = [host_sum(own, host, team, exact, code) for host in hosts]
                        members = [host[team] for host in hosts]
                    divisor = size if average else 1
                    result[part] = team_sum(own, members, algorithm, owner, divisor, code)
    return torch.from_numpy(result).to(dtype)


Coder = Callable[[np.ndarray, int, int], np.ndarray]  # of values, rank and stage


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return (a + b).astype(np.float32)


def host_sum(
    own: list[np.ndarray], host: list[int], team: int, exact: bool, code: Coder
) -> np.ndarray:
    """The sum over the ranks of a host, in the order of ranks; the team's member is never coded."""
    total: np.ndarray | None = None
    for local, rank in enumerate(host):
        mine = own[rank] if exact or local == team else code(own[rank], rank, INNER)
        total = mine.copy() if total is None else add(total, mine)
    assert total is not None
    return total


def team_sum(
    own: list[np.ndarray],
    members: list[int],
    algorithm: str,
    owner: int,
    divisor: int,
    code: Coder,
) -> np.ndarray:
    """The result for one piece, of which number `owner` of the team has the chunk. members: the
    ranks of the team.
    """
    if algorithm == "ring":
        total, last = code(own[owner], members[owner], CONTRIBUTION), owner
        for hop in range(1, len(own)):
            last = (owner + hop) % len(own)
            total = add(total, own[last])
            if hop < len(own) - 1:
                total = code(total, members[last], SUM)
        owner = last
    else:
        coded = [
            x if algorithm == "sra" and r == owner else code(x, members[r], CONTRIBUTION)
            for r, x in enumerate(own)
        ]
        total = coded[0].copy()
        for x in coded[1:]:
            total = add(total, x)
    if divisor != 1:
        total = (total / np.float32(divisor)).astype(np.float32)
    return total if algorithm == "oneshot" else code(total, members[owner], SUM)


def reduce_scatter(
    inputs: list[torch.Tensor], spec: _C.Codec | None, average: bool = False, **group: object
) -> list[torch.Tensor]:
    """What every rank gets: its shard of the sum. Every piece is coded alone, so `inputs` must be
    small enough for one round, or `spec` have a bucket that divides the rounds.
    """
    dtype, size = inputs[0].dtype, len(inputs)
    shard = inputs[0].numel() // size
    hosts = hosts_of(group, size)
    two_levels = 1 < len(hosts) < size
    teams = 1 if group.get("leader_only") else min(len(host) for host in hosts)

    def code(x: np.ndarray, rank: int, stage: int) -> np.ndarray:
        return through_codec(x, spec, dtype, source=x, rank=rank, stage=stage)

    results = []
    for rank in range(size):
        own = [to_float32(x[rank * shard : (rank + 1) * shard]) for x in inputs]
        owner, members = rank, list(range(size))
        if two_levels:
            owner, local = next((h, r.index(rank)) for h, r in enumerate(hosts) if rank in r)
            exact = bool(group.get("inner_exact", True))
            own = [host_sum(own, host, local % teams, exact, code) for host in hosts]
            members = [host[local % teams] for host in hosts]
        coded = [x if r == owner else code(x, members[r], CONTRIBUTION) for r, x in enumerate(own)]
        total = coded[0].copy()
        for x in coded[1:]:
            total = add(total, x)
        if average:
            total = (total / np.float32(size)).astype(np.float32)
        results.append(torch.from_numpy(total).to(dtype))
    return results


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    integer = {4: torch.int32, 2: torch.int16}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(
        a.reshape(-1).view(integer), b.reshape(-1).view(integer)
    )
