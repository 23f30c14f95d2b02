"""What the ranks of a job on several hosts do; each checks its own results.

    python -m tests.hosts.programs NAME[,...] [ARGUMENT ...]

NAME: collectives, compressed, brief, random, traffic, tuned.

Several run one after the other: a start costs more than most of them. Prints "rank R of N: ...
passed" after each; an assertion ends the rank with an error before.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

import torch_cgx
from tests.backend import test_collectives as exact
from tests.backend.test_groups import overlapping, subsets
from tests.reduce import model
from torch_cgx._backend import backend_of

SIZES = [0, 1, 15, 16, 17, 100, 511, 512, 513, 4097, 30_001]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def collectives(rank: int, size: int) -> None:
    """Everything that is not compressed, as on one host; groups of all kinds."""
    exact.movements(rank, size)
    exact.uneven(rank, size)
    exact.reductions(rank, size)
    exact.coalescing(rank, size)
    if size == 4:
        subsets(rank, size)
    overlapping(rank, size)


def data(rank: int, n: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(n, generator=generator).to(dtype)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def same_everywhere(text: str, group: dist.ProcessGroup | None = None) -> None:
    everyone: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, text, group=group)
    assert len(set(everyone)) == 1, everyone


# Options of the groups that are compared with the simulation.
GROUPS: list[dict[str, object]] = [
    {},
    {"segment_kb": 1, "shm_segment_kb": 16},
    {"segment_kb": 2, "intra_broadcast": True},
    {"cross_reduction": "SRA", "segment_kb": 4},
    {"cross_reduction": "ONESHOT", "segment_kb": 4},
    {"cross_reduction": "RING", "segment_kb": 4},
    {"intra_compress": True},
    {"inner_communicator": "GLOO", "segment_kb": 8},
]
ALGORITHMS = {"SRA": "sra", "ONESHOT": "oneshot", "RING": "ring"}


def brief(rank: int, size: int) -> None:
    """What shows that the ranks have found each other: two of the groups of `compressed`."""
    compressed(rank, size, GROUPS[:2])


def compressed(rank: int, size: int, groups: Sequence[dict[str, object]] = GROUPS) -> None:
    """Compressed reductions, bit for bit as simulated, in groups with all kinds of options."""
    groups = list(groups)
    if os.environ.get("CGX_CROSS_COMMUNICATOR_TYPE") == "MPI":
        groups.append({"inner_communicator": "MPI", "segment_kb": 8})
    for number, fields in enumerate(groups):
        options = torch_cgx.Options(**fields)
        group = dist.new_group(pg_options=options)
        hosts = backend_of(group).hosts()
        algorithm = ALGORITHMS.get(str(fields.get("cross_reduction")), "auto")
        digests = []
        for n in SIZES:
            dtype, bits = DTYPES[n % 3], (n + number) % 8 + 1
            inputs = [data(r, n, dtype, n) for r in range(size)]
            for config in ({"bits": bits, "bucket_size": 64}, {"bits": 32}):
                for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                    mine = inputs[rank].clone()
                    torch_cgx.all_reduce(mine, op=op, group=group, config=config)
                    digests.append(digest(mine))
                    # One rank compares; by the digests, the others have the same.
                    if len(digests) % size != rank:
                        continue
                    wanted = torch_cgx.simulate(
                        inputs, config, algorithm, op=op, hosts=hosts, options=options
                    ).result
                    assert model.same_bits(mine, wanted), (fields, n, config, op)
        if set(fields) <= {"inner_communicator"}:
            digests += long_exact(rank, size, group, hosts, options)
        shards(rank, size, group, hosts, fields)
        same_everywhere(" ".join(digests))
        dist.destroy_process_group(group)


def long_exact(
    rank: int,
    size: int,
    group: dist.ProcessGroup,
    hosts: list[str],
    options: torch_cgx.Options,
) -> list[str]:
    """Exact tensors that go directly between hosts of one rank each, bit for bit as simulated."""
    digests = []
    for n in (131_072, 2_500_001):
        mine = data(rank, n, torch.float32, n)
        dist.all_reduce(mine, group=group)
        digests.append(digest(mine))
        if n % size != rank:
            continue
        inputs = [data(r, n, torch.float32, n) for r in range(size)]
        wanted = torch_cgx.simulate(inputs, {"bits": 32}, hosts=hosts, options=options)
        over_gloo = "MPI" not in os.environ.get("CGX_CROSS_COMMUNICATOR_TYPE", "GLOO")
        assert (wanted.algorithm == "direct") == (len(set(hosts)) == size and over_gloo)
        assert model.same_bits(mine, wanted.result), n
    return digests


def shards(
    rank: int,
    size: int,
    group: dist.ProcessGroup,
    hosts: list[str],
    fields: dict[str, object],
) -> None:
    """Reduce-scatter and all-gather at 4 bits, against the numpy model."""
    spec = torch_cgx._C.Codec(bits=4, bucket_size=64)
    config = {"bits": 4, "bucket_size": 64}
    inner_exact = not fields.get("intra_compress") and "inner_communicator" not in fields
    told = {"hosts": hosts, "leader_only": bool(fields.get("intra_broadcast"))}
    for number, shard in enumerate((1, 63, 64, 65, 1000, 5000)):
        inputs = [data(r, shard * size, torch.float32, shard) for r in range(size)]
        output = torch.zeros(shard)
        torch_cgx.reduce_scatter_single(output, inputs[rank], group=group, config=config)
        outputs: list[torch.Tensor] = [torch.empty(0)] * size
        dist.all_gather_object(outputs, output, group=group)
        if number % size == rank:  # one rank compares for all
            all_wanted = model.reduce_scatter(inputs, spec, inner_exact=inner_exact, **told)
            for found, wanted in zip(outputs, all_wanted, strict=True):
                assert model.same_bits(found, wanted), ("reduce_scatter", fields, shard)
        whole = torch.zeros(shard * size)
        torch_cgx.all_gather_single(whole, output, group=group, config=config)
        same_everywhere(digest(whole), group)
        mine = model.through_codec(output.numpy(), spec, torch.float32, source=output.numpy())
        part = whole[rank * shard : (rank + 1) * shard]
        assert model.same_bits(part, torch.from_numpy(mine)), ("all_gather", fields, shard)


def random_program(seed: int, rank: int, size: int) -> None:
    """20 collectives on overlapping sub-groups; each agrees with gloo's on the same ranks."""
    choose = random.Random(seed)
    groups = []
    for _ in range(2):
        members = sorted(choose.sample(range(size), choose.randint(1, size)))
        pair = [dist.new_group(members, backend=backend) for backend in ("cgx", "gloo")]
        groups.append((members, *pair))
    for _ in range(20):
        members, ours, gloo = groups[choose.randrange(len(groups))]
        kind = choose.choice(["all_reduce", "max", "compressed", "broadcast", "gather", "scatter"])
        n = choose.choice([0, 1, 7, 64, 1000, 40_000])
        dtype = choose.choice([torch.float32, torch.float64, torch.int64])
        root, salt = choose.choice(members), choose.randrange(1000)
        if rank in members:
            one_collective(kind, n, dtype, root, salt, members, ours, gloo)
    for members, ours, gloo in groups:
        if rank in members:
            dist.destroy_process_group(ours)
            dist.destroy_process_group(gloo)


def one_collective(
    kind: str,
    n: int,
    dtype: torch.dtype,
    root: int,
    salt: int,
    members: list[int],
    ours: dist.ProcessGroup,
    gloo: dist.ProcessGroup,
) -> None:
    rank = dist.get_rank()
    # Whole numbers: sums are exact in every order.
    x = ((torch.arange(n) * 31 + 7 * rank + salt) % 257 - 128).to(dtype)
    results = []
    for group in (ours, gloo):
        y = x.clone()
        if kind == "all_reduce":
            dist.all_reduce(y, group=group)
        elif kind == "max":
            dist.all_reduce(y, op=dist.ReduceOp.MAX, group=group)
        elif kind == "broadcast":
            dist.broadcast(y, root, group=group)
        elif kind == "gather":
            parts = [torch.zeros_like(y) for _ in members]
            dist.all_gather(parts, y, group=group)
            y = torch.cat(parts)
        elif kind == "scatter":
            whole = torch.cat([y] * len(members))
            dist.reduce_scatter_single(y, whole, group=group)
        else:
            y = x.float()
            if group is ours:
                torch_cgx.all_reduce(y, group=group, config={"bits": 8, "bucket_size": 64})
            else:
                dist.all_reduce(y, group=group)
        results.append(y)
    if kind == "compressed":
        # Two roundings of values within +-128 per host, and of their sum, to 255 steps.
        limit = 3 * len(members) * 256 / 255
        assert (results[0] - results[1]).abs().max().item() <= limit if n else True
    else:
        assert torch.equal(*results), (kind, n, dtype, members)


def random_programs(rank: int, size: int) -> None:
    """The programs whose seeds are the arguments FIRST and COUNT."""
    first, count = (int(text) for text in sys.argv[2:4])
    for seed in range(first, first + count):
        if rank == 0:
            print(f"program with seed {seed}", flush=True)
        random_program(seed, rank, size)


def traffic(rank: int, size: int) -> None:
    """Reduces VALUES fp32 values CALLS times with each of CONFIGS, which are JSON; prints the bytes
    that left the host meanwhile, and a digest of the result.
    """
    values, calls = (int(text) for text in sys.argv[2:4])
    tensor = torch.randn(values, generator=torch.Generator().manual_seed(rank))
    for text in sys.argv[4:]:
        config = json.loads(text)
        torch_cgx.all_reduce(tensor.clone()[: 1 << 12], config=config)
        dist.barrier()
        before = link_bytes()
        for _ in range(calls):
            result = tensor.clone()
            torch_cgx.all_reduce(result, config=config)
        dist.barrier()
        sent = link_bytes() - before
        digest = hashlib.sha256(result.numpy().tobytes()).hexdigest()
        print(json.dumps({"config": config, "sent": sent, "digest": digest}), flush=True)


def link_bytes() -> int:
    """Bytes that this host has sent so far, as its network device counts them."""
    with open("/sys/class/net/eth0/statistics/tx_bytes") as file:
        return int(file.read())


def tuned(rank: int, size: int) -> None:
    """All-reduces of VALUES values at 4 bits; says what the autotuner makes of them."""
    group = dist.new_group(pg_options=torch_cgx.Options(bits=4))
    for _ in range(20):
        dist.all_reduce(torch.ones(int(sys.argv[2])), group=group)
    told, stats = dict(torch_cgx.tuning(group)), torch_cgx.stats(group)
    told["taken"] = {name: stats[f"tuned_{name}"] for name in ("exact", "half", "asked")}
    print(json.dumps({"told": told, "sent": stats["bytes_sent_tuning"]}), flush=True)


PROGRAMS: dict[str, Callable[[int, int], None]] = {
    "collectives": collectives,
    "compressed": compressed,
    "brief": brief,
    "random": random_programs,
    "traffic": traffic,
    "tuned": tuned,
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("cgx")
    rank, size = dist.get_rank(), dist.get_world_size()
    communicator = os.environ.get("CGX_CROSS_COMMUNICATOR_TYPE", "GLOO").lower()
    assert communicator in torch_cgx.stats()["communicator"], torch_cgx.stats()["communicator"]
    for name in sys.argv[1].split(","):
        PROGRAMS[name](rank, size)
        dist.barrier()
        print(f"rank {rank} of {size}: {name} passed", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
