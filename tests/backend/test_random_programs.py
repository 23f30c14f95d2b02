"""Random programs of collectives: equal to what NumPy says where exact, within the bound of
docs/numerics.md where compressed. A program is a pure function of its seed, the same on all ranks.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.conformance.boxes import LAYOUTS
from tests.conformance.catalogue import CATALOGUE, Case, Place, start
from tests.conformance.sweeps import SIZELESS, kinds
from tests.conformance.values import MOVED
from tests.distributed import run_pooled
from tests.docs import bounds
from torch_cgx import _C
from torch_cgx._backend import backend_of

SIZES = [0, 1, 2, 15, 16, 17, 63, 64, 65, 1000, 5000, 40_000]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
COMPRESSED = ["compressed", "compressed_scatter", "compressed_gather", "layers"]
OPS = list(CATALOGUE)
GROUPS = [{}, {"shm_segment_kb": 16, "segment_kb": 1}, {"inner_reduction": "SRA"}]
_KINDS = {op: [kind for kind in kinds() if kind[0] == op and not kind[3]] for op in OPS}


@dataclasses.dataclass(frozen=True)
class Step:
    """case: of an exact collective; the rest is of a compressed one."""

    group: int
    kind: str
    case: Case | None
    n: int
    dtype: torch.dtype
    op: str
    salt: int
    bits: int
    bucket: int
    late: bool  # waited for after the next steps


def draw_case(choose: random.Random, op: str, n: int, ranks: int, key: int) -> Case:
    if op in SIZELESS:
        return Case(op, 0, torch.uint8)
    _, reduction, dtype, _ = choose.choice(_KINDS[op])
    return Case(op, n, dtype, reduction, choose.randrange(ranks), choose.choice(LAYOUTS), key)


def program(seed: int, size: int, steps: int) -> tuple[list[tuple[list[int], dict]], list[Step]]:
    choose = random.Random(seed)
    groups = [(list(range(size)), {})]
    for _ in range(2):
        members = sorted(choose.sample(range(size), choose.randint(1, size)))
        groups.append((members, choose.choice(GROUPS)))
    found: list[Step] = []
    keys = itertools.count(choose.randrange(1 << 20))
    while len(found) < steps:
        kind = choose.choice(OPS + COMPRESSED)
        group = choose.randrange(len(groups))
        n = choose.choice(SIZES)
        case = None
        if kind not in COMPRESSED:
            case = draw_case(choose, kind, n, len(groups[group][0]), next(keys))
        found.append(
            Step(group, kind, case, n, choose.choice(FLOATS), choose.choice(["SUM", "AVG"]),
                 choose.randrange(1000), choose.randint(1, 8), choose.choice([7, 64, 512]),
                 choose.random() < 0.4)
        )  # fmt: skip
    return groups, found


def data(step: Step, rank: int, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step.salt + rank)
    return torch.randn(n, generator=generator).to(step.dtype)


def start_compressed(step, members, group):
    """Runs what only the engine does: a work, the tensor that it writes, and what it may be."""
    rank, size = dist.get_rank(), len(members)
    me, average = members.index(rank), step.op == "AVG"
    config = {"bits": step.bits, "bucket_size": step.bucket}
    spec = _C.Codec(**config)
    op = getattr(dist.ReduceOp, step.op)
    labels = {host: i for i, host in enumerate(dict.fromkeys(backend_of(group).hosts()))}
    hosts = [labels[host] for host in backend_of(group).hosts()]
    if step.kind == "compressed_gather":
        inputs = [data(step, r, step.n) for r in members]
        y = torch.zeros(step.n * size).to(step.dtype)
        work = torch_cgx.all_gather_single(y, inputs[me], group, config=config, async_op=True)
        return work, y, lambda: bounds.all_gather(inputs, spec)
    if step.kind == "compressed_scatter":
        inputs = [data(step, r, step.n * size) for r in members]
        y = torch.zeros(step.n).to(step.dtype)
        work = torch_cgx.reduce_scatter_single(
            y, inputs[me], op, group, config=config, async_op=True
        )
        keywords = {"hosts": [str(h) for h in hosts]}
        return work, y, lambda: bounds.reduce_scatter(inputs, spec, average, **keywords)[me]
    inputs = [data(step, r, step.n) for r in members]
    first = step.n // 3 if step.kind == "layers" else step.n
    layers = [(first, config), (step.n - first, None)]
    y = inputs[me].clone()
    work = torch_cgx.all_reduce(y, op, group, layers=layers, async_op=True)
    options = backend_of(group).options

    def wanted() -> torch.Tensor:
        algorithm = {"SRA": "sra"}.get(options.inner_reduction, "auto")
        algorithm = "auto" if len(labels) > 1 else algorithm
        keywords = {"hosts": hosts, "options": options, "op": op, "layers": layers}
        return torch_cgx.simulate(inputs, algorithm=algorithm, **keywords).result

    return work, y, wanted


def finish_compressed(step: Step, work, mine: torch.Tensor, wanted) -> None:
    work.wait()
    value = wanted()
    if isinstance(value, torch.Tensor):  # all-reduces are simulated, to the bit
        assert torch.equal(mine, value), step
        return
    error = abs(mine.double().numpy() - value.exact)
    assert (error <= value.off).all(), (step, error.max(initial=0.0))


def finish(step: Step, *running) -> None:
    if step.case is None:
        finish_compressed(step, *running)
        return
    running[0].wait()
    assert not running[0].complaint(), f"{step.case}: {running[0].complaint()}"


def run_program(rank: int, size: int, seed: int, steps: int) -> int:
    members_and_options, plan = program(seed, size, steps)
    groups = [
        (members, dist.new_group(members, pg_options=torch_cgx.Options(**fields)))
        for members, fields in members_and_options
    ]
    late = []
    done = 0
    for step in plan:
        members, group = groups[step.group]
        if rank not in members:
            continue
        if step.case is None:
            late.append((step, *start_compressed(step, members, group)))
        else:
            late.append((step, start(step.case, Place.of(group))))
        done += 1
        if not step.late:
            while late:
                finish(*late.pop(0))
    while late:
        finish(*late.pop(0))
    for members, group in groups:
        if rank in members:
            dist.destroy_process_group(group)
    return done


def run_programs(rank: int, size: int, seeds: list[int], steps: int) -> int:
    done = 0
    for seed in seeds:
        print(f"program with seed {seed}", flush=True)  # what a failure needs
        done += run_program(rank, size, seed, steps)
    return done


@pytest.mark.parametrize("hosts", ["aa", "aaa", "aabb", "ab"])
def test_random_programs_agree_with_numpy(hosts: str) -> None:
    # The same programs in each run of CI. A failure shows the seed in the ranks' output.
    first = 0 if os.environ.get("CI") else random.randrange(2**31)
    seeds = list(range(first, first + 6))
    env = [{"CGX_HOST_ID": host} for host in hosts]
    assert sum(run_pooled(run_programs, len(hosts), seeds, 25, env=env, timeout=60)) > 0


def test_every_kind_of_step_is_drawn() -> None:
    drawn = [s for seed in range(300) for s in program(seed, 4, 25)[1]]
    assert {step.kind for step in drawn} == {*OPS, *SIZELESS, *COMPRESSED}
    assert {s.case.dtype for s in drawn if s.case} == set(MOVED)
    assert {s.case.reduction for s in drawn if s.case} > {"SUM", "AVG", "BXOR", "PRODUCT"}
