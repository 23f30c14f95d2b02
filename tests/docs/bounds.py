"""The error bounds of docs/numerics.md in float64: two rules, for a sum and for a codec, and the
order in which every reducer uses them.

A `Value` is what the ranks would have in exact arithmetic, and how far float32 and the codec may
have carried it off. Nothing here runs the engine; only who owns which chunk is asked of its plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests import _machinery
from tests.reduce.model import hosts_of
from torch_cgx import _C

Doubles = npt.NDArray[np.float64]

U = 2.0**-24
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# Rounding to a tensor's type: at most h |x| + t.
ROUNDING = {torch.float32: (0.0, 0.0), torch.float16: (2.0**-11, 2.0**-25)}
ROUNDING[torch.bfloat16] = (2.0**-8, 2.0**-134)
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclasses.dataclass(frozen=True)
class Value:
    exact: Doubles
    off: Doubles

    def part(self, where: slice) -> Value:
        return Value(self.exact[where], self.off[where])


def exactly(x: Doubles) -> Value:
    return Value(x, np.zeros_like(x))


def codec_bound(x: Doubles, bits: int, bucket: int, stochastic: bool, extra: Any = 0.0) -> Doubles:
    """E of the document for each value of `x`; `extra` widens every bucket on both sides (what the
    bucket's own values may be off)."""
    extra = np.broadcast_to(extra, x.shape)
    limits = np.empty_like(x)
    for start in range(0, len(x), bucket):
        part = slice(start, start + bucket)
        slack = extra[part].max()
        step = (x[part].max() - x[part].min() + 2 * slack) / (2**bits - 1)
        if step < 2.0**-126:
            step = np.ceil(step * 2.0**149) * 2.0**-149
        largest = np.abs(x[part]).max() + slack
        limits[part] = (step if stochastic else step / 2) + 12 * U * largest + 2.0**-148
    return limits


def rounded(a: Value, dtype: torch.dtype) -> Value:
    relative, absolute = ROUNDING[dtype]
    error = relative * (np.abs(a.exact) + a.off) + absolute
    there = torch.from_numpy(a.exact).to(dtype).double().numpy() == a.exact
    return Value(a.exact, a.off + np.where(there & (a.off == 0), 0.0, error))


def coded(a: Value, spec: _C.Codec | None, dtype: torch.dtype) -> Value:
    """What a receiver has of `a`, a run of whole buckets; spec None: raw, in the tensor's type."""
    if spec is None:
        return rounded(a, dtype)
    if spec.bits == 16:
        return rounded(a, HALVES[spec.codec] if dtype == torch.float32 else dtype)
    full = len(a.exact)
    if spec.skip_incomplete_buckets:
        full -= full % spec.bucket_size
    head, rest = a.part(slice(0, full)), rounded(a.part(slice(full, None)), dtype)
    stochastic = spec.rounding == "stochastic"
    error = codec_bound(head.exact, spec.bits, spec.bucket_size, stochastic, extra=head.off)
    return Value(a.exact, np.concatenate([head.off + error, rest.off]))


def add(a: Value, b: Value) -> Value:
    exact, off = a.exact + b.exact, a.off + b.off
    # float64 rounds, too.
    return Value(exact, off + U * (np.abs(exact) + off) + 2.0**-50 * (abs(a.exact) + abs(b.exact)))


def divide(a: Value, n: int) -> Value:
    exact, off = a.exact / n, a.off / n
    return Value(exact, off + U * (np.abs(exact) + off) + 2.0**-150)


Coder = Callable[[Value], Value]


def host_sum(own: list[Value], host: Sequence[int], team: int, exact: bool, code: Coder) -> Value:
    total = None
    for local, rank in enumerate(host):
        mine = own[rank] if exact or local == team else code(own[rank])
        total = mine if total is None else add(total, mine)
    assert total is not None
    return total


def team_sum(own: list[Value], algorithm: str, owner: int, divisor: int, code: Coder) -> Value:
    """The result for a run whose chunk `owner` has."""
    if algorithm == "ring":
        total = code(own[owner])
        for hop in range(1, len(own)):
            total = add(total, own[(owner + hop) % len(own)])
            if hop < len(own) - 1:
                total = code(total)
    else:
        parts = [x if algorithm == "sra" and r == owner else code(x) for r, x in enumerate(own)]
        total = parts[0]
        for part in parts[1:]:
            total = add(total, part)
    if divisor > 1:
        total = divide(total, divisor)
    return total if algorithm == "oneshot" else code(total)


def all_reduce(
    inputs: list[torch.Tensor],
    layers: list[tuple[int, _C.Codec | None]],
    algorithm: str,
    average: bool = False,
    **group: Any,
) -> Value:
    """Sum or mean of all ranks, and how far any rank's result may be off. group: as of
    tests.reduce.simulation.run."""
    dtype, size, n = inputs[0].dtype, len(inputs), inputs[0].numel()
    flat = [exactly(x.double().numpy()) for x in inputs]
    if size == 1:
        return flat[0]
    hosts = hosts_of(group, size)
    two_levels = 1 < len(hosts) < size
    result = exactly(np.zeros(n))
    starts = np.cumsum([0] + [numel for numel, _ in layers])
    rounds = _machinery.describe_plan(
        layers, DTYPES[dtype], ranks=size, algorithm=algorithm, **group
    )
    for shards in rounds:
        for team, chunks in enumerate(shards):
            for owner, pieces in enumerate(chunks):
                for offset, count, *_ in pieces:
                    spec = layers[int(np.searchsorted(starts, offset, side="right")) - 1][1]
                    part = slice(offset, offset + count)

                    def code(a: Value, spec: _C.Codec | None = spec) -> Value:
                        return coded(a, spec, dtype)

                    own = [x.part(part) for x in flat]
                    if two_levels:
                        inner_exact = bool(group.get("inner_exact", True))
                        own = [host_sum(own, host, team, inner_exact, code) for host in hosts]
                    found = team_sum(own, algorithm, owner, size if average else 1, code)
                    if spec is not None or algorithm == "oneshot":
                        found = rounded(found, dtype)
                    result.exact[part], result.off[part] = found.exact, found.off
    return result


def reduce_scatter(
    inputs: list[torch.Tensor], spec: _C.Codec | None, average: bool = False, **group: Any
) -> list[Value]:
    """For every rank, its shard of the sum. Every shard is one run of the codec."""
    dtype, size = inputs[0].dtype, len(inputs)
    shard = inputs[0].numel() // size
    hosts = hosts_of(group, size)
    two_levels = 1 < len(hosts) < size
    teams = 1 if group.get("leader_only") else min(len(host) for host in hosts)

    def code(a: Value) -> Value:
        return coded(a, spec, dtype)

    results = []
    for rank in range(size):
        own = [exactly(x.double().numpy()[rank * shard : (rank + 1) * shard]) for x in inputs]
        owner = rank
        if two_levels:
            owner, local = next((h, r.index(rank)) for h, r in enumerate(hosts) if rank in r)
            inner_exact = bool(group.get("inner_exact", True))
            own = [host_sum(own, host, local % teams, inner_exact, code) for host in hosts]
        parts = [x if r == owner else code(x) for r, x in enumerate(own)]
        total = parts[0]
        for part in parts[1:]:
            total = add(total, part)
        results.append(rounded(divide(total, size) if average else total, dtype))
    return results


def all_gather(inputs: list[torch.Tensor], spec: _C.Codec | None) -> Value:
    """The parts of all ranks, one after the other."""
    dtype = inputs[0].dtype
    parts = [rounded(coded(exactly(x.double().numpy()), spec, dtype), dtype) for x in inputs]
    return Value(np.concatenate([p.exact for p in parts]), np.concatenate([p.off for p in parts]))
