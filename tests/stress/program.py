"""What an episode does, drawn from its seed: the same on every rank and in every replay.

An episode is one life of a default process group: its ranks make groups, run bursts of collectives
on them, destroy them, and suffer at most one kind of fault. Everything here is data; worker.py runs
it, driver.py judges it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import torch

from tests.conformance.boxes import LAYOUTS
from tests.conformance.catalogue import CATALOGUE, Case
from tests.conformance.sweeps import SIZELESS, kinds

LARGEST = 1 << 20
LONGEST_EXACT = 8 << 20  # bytes of all parts of an exact call
WORLD = 0  # number of the default group
CREATION_SECONDS = 10.0  # the timeout of all groups, and so of their making
SHORT_SECONDS = 3.0  # the timeout that a rank is stopped past

DTYPES = ("float32", "float16", "bfloat16")
ENGINE = ("all_reduce", "configured", "layers", "reduce_scatter", "all_gather")
EXACT = "exact"  # an operation of tests/conformance/catalogue.py
# Of these every rank waits for all others, if there are values.
ALL_WAIT = (
    "all_gather", "all_gather_single", "all_to_all", "all_to_all_single", "all_reduce",
    "reduce_scatter", "reduce_scatter_single", "tagged",
)  # fmt: skip
_OF_OP = {op: [k for k in kinds() if k[0] == op and not k[3]] for op in CATALOGUE}
# Weights of the faults; "creation" is a kill while a group is made.
FAULTS = {
    "none": 30,
    "kill": 26,
    "kill_two": 6,
    "kill_all": 6,
    "creation": 3,
    "pause": 7,
    "stall": 4,
    "storm": 8,
    "abort": 8,
}


@dataclasses.dataclass(frozen=True)
class Call:
    """One collective. numel: of the tensor, or of one rank's shard."""

    group: int
    kind: str
    numel: int = 0
    dtype: str = "float32"
    average: bool = False
    config: tuple[tuple[str, Any], ...] | None = None  # None: the group's own
    layers: tuple[tuple[int, tuple[tuple[str, Any], ...] | None], ...] = ()
    data: str = "gauss"
    key: int = 0
    case: Case | None = None  # of an exact call

    @property
    def everybody_waits(self) -> bool:
        """Whether no rank can complete it before all have made it."""
        if self.case is None:
            return self.numel > 0
        return self.case.op in SIZELESS or (self.case.op in ALL_WAIT and self.numel > 0)


@dataclasses.dataclass(frozen=True)
class Step:
    """kind: "group" (makes group `group` of `members`), "destroy", or "burst": all `calls` are
    started, then waited for in `order`.
    """

    kind: str
    group: int = WORLD
    members: tuple[int, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    local: bool = False  # only members take part in making it
    calls: tuple[Call, ...] = ()
    order: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Episode:
    number: int
    size: int
    settings: tuple[tuple[str, Any], ...]  # options of the default group and of all others
    by_environment: bool  # how they are given
    hosts: tuple[str, ...] | None  # CGX_HOST_ID of the ranks
    steps: tuple[Step, ...]
    fault: str
    victims: tuple[int, ...]
    at_step: int  # when the (first) victim gets there, the fault follows after `delay` seconds
    delay: float
    abrupt: bool  # survivors of a failure abort their groups, or only destroy them
    fresh: bool  # all processes are new
    keep_order: bool  # processes keep their ranks as far as they can

    def groups_at(self, step: int) -> dict[int, tuple[int, ...]]:
        """Members of the groups that exist when `step` begins."""
        groups = {WORLD: tuple(range(self.size))}
        for one in self.steps[:step]:
            if one.kind == "group":
                groups[one.group] = one.members
            elif one.kind == "destroy":
                groups.pop(one.group)
        return groups


def sizes(rng: random.Random, settings: dict[str, Any], bucket: int) -> int:
    """Small, around a border of buckets or messages, or anything up to LARGEST."""
    pick = rng.random()
    if pick < 0.25:
        return rng.randint(0, 70)
    if pick < 0.45:
        near = bucket * rng.randint(1, 40)
    elif pick < 0.6:
        slot = slot_kb(settings) * 256  # float32 values in a message
        near = slot * rng.choice((1, 1, 2, 3)) * rng.choice((1, 1, 2))
    elif pick < 0.65:
        near = settings.get("segment_kb", 512) * 256 * rng.choice((1, 2, 4))
    else:
        return int(2 ** rng.uniform(0, 17 if rng.random() < 0.8 else 20))
    return min(LARGEST, max(0, near + rng.randint(-2, 2)))


def draw_config(rng: random.Random) -> dict[str, Any]:
    # The codec is always named: settings of a group and of a call are merged.
    if rng.random() < 0.3:
        codec = rng.choice(("rotated", "trellis"))
        widths = (1, 2, 3, 4, 5, 8) if codec == "rotated" else (1, 2, 3, 4)
        return {
            "codec": codec,
            "bits": rng.choice(widths),
            "block_size": rng.choice((256, 512, 1024, 4096)),
            "scale": rng.choice(("mse", "mse", "unbiased")),
            "seed": rng.randrange(1000),
        }
    config: dict[str, Any] = {"codec": "maxmin"}
    config["bits"] = rng.choice((1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 32))
    # Longer than some groups' messages, and than some tensors.
    config["bucket_size"] = rng.choice((512, 512, 64, 128, 7, 1, 1024, 2048, 1000, 30_000))
    if rng.random() < 0.3:
        config["rounding"] = "stochastic"
        config["seed"] = rng.randrange(1000)
    if rng.random() < 0.2:
        config["skip_incomplete_buckets"] = True
    return config


def slot_kb(settings: dict[str, Any]) -> int:
    return int(settings.get("shm_segment_kb", 1024))


def draw_settings(rng: random.Random, hosts: bool) -> dict[str, Any]:
    """Options of a group: communicator, reducers, sizes of messages, what it compresses unasked."""
    settings: dict[str, Any] = {}
    settings["inner_communicator"] = rng.choice(("SHM", "SHM", "GLOO"))
    # Inside hosts that talk to others it is a reduce-scatter and an all-gather, always.
    reductions = ("AUTO", "SRA") if hosts else ("AUTO", "AUTO", "SRA", "ONESHOT", "RING")
    settings["inner_reduction"] = rng.choice(reductions)
    if settings["inner_communicator"] == "SHM" or rng.random() < 0.3:
        settings["shm_segment_kb"] = rng.choice((16, 17, 64, 256, 1024, 1024))
    if hosts:
        settings["cross_reduction"] = rng.choice(("AUTO", "SRA", "ONESHOT", "RING"))
        settings["segment_kb"] = rng.choice((1, 16, 64, 512))
        settings["intra_broadcast"] = rng.random() < 0.4
        settings["intra_compress"] = rng.choice(("AUTO", "1", "0"))
    if rng.random() < 0.2:
        settings["fusion_buffer_mb"] = rng.choice((1, 2, 64))
    if rng.random() < 0.5:
        settings.update(draw_config(rng))
    if rng.random() < 0.2:
        settings["nonfinite"] = "raise"
    return settings


def draw_exact(
    rng: random.Random,
    group: int,
    members: tuple[int, ...],
    settings: dict[str, Any],
    numel: int,
) -> Call:
    """Any operation and type, exact in a group with these settings."""
    key = rng.getrandbits(48)
    while True:
        op = rng.choice(list(CATALOGUE))
        if op in SIZELESS:
            return Call(group, EXACT, key=key, case=Case(op, 0, torch.uint8))
        _, reduction, dtype, _ = rng.choice(_OF_OP[op])
        n = min(numel, LONGEST_EXACT // dtype.itemsize // len(members))
        case = Case(
            op, n, dtype, reduction, rng.randrange(len(members)), rng.choice(LAYOUTS), key % 10**9
        )
        # A group may be set to compress sums.
        if reduction in ("SUM", "AVG") and str(dtype)[6:] in DTYPES and "bits" in settings:
            continue
        return Call(group, EXACT, n, str(dtype), key=key, case=case)


def draw_call(
    rng: random.Random,
    group: int,
    members: tuple[int, ...],
    settings: dict[str, Any],
) -> Call:
    kind = rng.choice(ENGINE * 3 + (EXACT,) * 6)
    config = draw_config(rng)
    key = rng.getrandbits(48)
    numel = sizes(rng, settings, config.get("bucket_size", config.get("block_size")))
    if settings.get("segment_kb", 512) < 16:
        # Thousands of messages, of which each waits for a turn on a busy machine: slow, not stuck.
        numel = min(numel, 1 << 14)
    if kind == EXACT:
        return draw_exact(rng, group, members, settings, numel)
    dtype = rng.choice(DTYPES)
    kinds = ["gauss", "gauss", "equal", "sparse", "offset"]
    data = rng.choice(kinds if dtype == "float16" else [*kinds, "tiny", "huge", "scales"])
    given: dict[str, Any] = {"dtype": dtype, "average": rng.random() < 0.3, "data": data}
    if kind in ("reduce_scatter", "all_gather"):
        numel //= 6
        given["average"] = given["average"] and kind == "reduce_scatter"
    if kind == "layers":
        left, layers = numel, []
        while left > 0 and len(layers) < 6:
            part = rng.randint(0, left)
            layer = items(draw_config(rng)) if rng.random() < 0.7 else None
            layers.append((part, layer))
            left -= part
        layers.append((left, items(draw_config(rng))))
        given["layers"] = tuple(layers)
    elif kind != "all_reduce":
        given["config"] = items(config)
    return Call(group, kind, numel, key=key, **given)


def items(settings: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(settings.items())


def local_name(ranks: tuple[int, ...], members: Mapping[int, tuple[int, ...]]) -> str | None:
    """What torch calls a group that only `ranks` take part in making, while the groups `members`
    exist: it hashes the ranks, and the number of groups that the process is in. None: they would
    not agree.
    """
    counts = {sum(rank in group for group in members.values()) for rank in ranks}
    return f"{ranks}, {counts.pop()}" if len(counts) == 1 else None


def draw_steps(rng: random.Random, size: int, settings: dict[str, Any], hosts: bool) -> list[Step]:
    """The last step is a small exact all-reduce of all ranks: who passes it has missed nobody."""
    members = {WORLD: tuple(range(size))}
    names: dict[int, str] = {}  # of the local groups
    options = {WORLD: settings}
    steps: list[Step] = []
    made, budget = WORLD, 3 << 20
    for _ in range(rng.randint(4, 14)):
        pick = rng.random()
        if pick < 0.22 and len(members) < 5:
            made += 1
            chosen = tuple(sorted(rng.sample(range(size), rng.randint(1, size))))
            # After a group was destroyed torch may come to the name of one that is still there,
            # and refuses to make it, whatever the backend: such a group is made by all ranks.
            name = local_name(chosen, members)
            local = name is not None and rng.random() < 0.6 and name not in names.values()
            if local:
                names[made] = str(name)
            members[made] = chosen
            own: dict[str, Any] = {}
            if rng.random() < 0.5:
                own = draw_settings(rng, hosts)
            options[made] = {**settings, **own}
            steps.append(Step("group", made, chosen, items(options[made]), local))
        elif pick < 0.3 and len(members) > 1:
            gone = rng.choice([group for group in members if group != WORLD])
            members.pop(gone)
            names.pop(gone, None)
            steps.append(Step("destroy", gone))
        else:
            calls: list[Call] = []
            for _ in range(rng.choice((1, 1, 1, 2, 4, 8, 16))):
                group = rng.choice(list(members))
                call = draw_call(rng, group, members[group], options[group])
                if call.numel > budget:
                    call = Call(group, "all_reduce", 17, key=call.key)
                budget -= call.numel
                calls.append(call)
            order = list(range(len(calls)))
            rng.shuffle(order)
            steps.append(Step("burst", calls=tuple(calls), order=tuple(order)))
    last = Call(WORLD, "configured", 33, config=(("bits", 32),), key=rng.getrandbits(48))
    steps.append(Step("burst", calls=(last,), order=(0,)))
    return steps


def draw_hosts(rng: random.Random, size: int) -> tuple[str, ...] | None:
    if rng.random() < 0.65:
        return None
    return tuple(rng.choice("abc"[: rng.choice((2, 2, 3))]) for _ in range(size))


def draw(seed: int, number: int) -> Episode:
    """Episode `number` of the run with this seed."""
    rng = random.Random(f"{seed}/{number}")
    size = rng.choice((2, 2, 3, 3, 4, 4, 5, 6))
    hosts = draw_hosts(rng, size)
    settings = draw_settings(rng, hosts is not None)
    steps = draw_steps(rng, size, settings, hosts is not None)
    fault = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
    order = list(range(size))
    rng.shuffle(order)
    victims = {"none": 0, "storm": 0, "kill_two": min(2, size - 1), "kill_all": size}.get(fault, 1)
    # -1: the making of the default group.
    makings = [-1, *(i for i, step in enumerate(steps) if step.kind == "group")]
    at_step = rng.choice(makings) if fault == "creation" else rng.randrange(len(steps))
    if fault == "kill_all" and rng.random() < 0.5:
        at_step = rng.choice(makings)
    return Episode(
        number=number,
        size=size,
        settings=items(settings),
        by_environment=rng.random() < 0.5,
        hosts=hosts,
        steps=tuple(steps),
        fault=fault,
        victims=tuple(order[:victims]),
        at_step=at_step,
        delay=rng.choice((0.0, rng.uniform(0, 0.002), rng.uniform(0, 0.02), rng.uniform(0, 0.2))),
        abrupt=rng.random() < 0.5,
        fresh=rng.random() < 0.3,
        keep_order=rng.random() < 0.5,
    )


def describe(step: Step) -> str:
    """One line for a report."""
    if step.kind != "burst":
        return f"{step.kind} {step.group} {list(step.members)} {dict(step.options)}"
    calls = [
        f"{c.case or c.kind}(group={c.group}, numel={c.numel}, {c.dtype}, "
        + (f"layers={c.layers}" if c.layers else f"config={dict(c.config or ())}")
        + f", average={c.average}, data={c.data}, key={c.key})"
        for c in step.calls
    ]
    return f"burst of {len(calls)}, waited for in the order {list(step.order)}: " + "; ".join(calls)
