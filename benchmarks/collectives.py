"""What a collective takes over cgx and over plain gloo, on one host and between hosts.

    python -m benchmarks.collectives [--part host hosts copy fsdp creation] [--only broadcast ...]
        [--ranks 2 4] [--layouts 2x1 4x1 2x2] [--rates 1gbit 10gbit] [--sizes 4 64K 16M]
        [--rounds N] [--seconds 0.2] [--quick] [--json FILE] [--plot FILE]

    host       every collective that users call, over shared memory
    hosts      the same between hosts (torch_cgx.testbed: needs Linux, root, iproute2), and an
               all_to_all_single at 4 bits against an exact one
    copy       broadcast, all_to_all, scatter and sends of long tensors, against a copy of such a
               tensor by all ranks at once
    fsdp       a step of exact FSDP2, the GPT of the examples
    creation   creation, first call and destruction of a group; many groups alive at once

Groups take turns in the same processes, in rounds of new processes, two to four as time allows
(`_collectives_rounds` says how times and ratios come about). Results are compared once: status 1 if
a result over cgx differs from gloo's. Sizes: see `_collectives_calls`. Parts may be measured in
separate runs: a run replaces its parts in the JSON file, and with --only, --ranks, --layouts,
--rates or --sizes only the rows that it measures.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _collectives_calls as calls
from benchmarks import _collectives_creation as creation
from benchmarks import _collectives_fsdp as fsdp
from benchmarks import _collectives_rounds as rounds
from benchmarks import _collectives_text as text
from benchmarks import _command, _ranks
from benchmarks._collectives_rounds import Row
from benchmarks._command import at_least
from torch_cgx.testbed.bed import Hosts, hosts, hosts_available

PARTS = ("host", "hosts", "copy", "fsdp", "creation")
SIZES = [4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
COPY_SIZES = [16 << 20, 64 << 20]
# Between hosts the longest size on the fastest of these only, where it takes about 0.1 s a call.
LAYOUTS, RATES = [(2, 1), (4, 1), (2, 2)], ["1gbit", "10gbit"]
LONGEST, LONGEST_LAYOUT, LONGEST_RATE = 64 << 20, (2, 1), "10gbit"
CREATION_RATE = "1gbit"
_TIMEOUT = 1200.0
# Seconds of one place, which all rounds should take.
BUDGET: dict[_ranks.Measurement, float] = {
    rounds.measure: 135.0,
    rounds.measure_copies: 40.0,
    fsdp.measure: 50.0,
    creation.measure_turns: 25.0,
}
_KEY = ("hosts", "ranks_per_host", "rate", "operation", "backend", "bytes")

Round = Callable[[_ranks.Measurement, Row], Row]
Where = tuple[Row, Round]  # a place, for rows, and what runs a measurement there


@dataclass(frozen=True)
class Plan:
    """What is measured. sizes: None: each place's own; copied: sizes of the part copy; seconds: of
    an operation and size in one round; steps, turns: of FSDP2, of creation in one round; groups:
    alive at once; rounds: at most, and at least, if a place takes longer than BUDGET.
    """

    operations: list[str]
    sizes: list[int] | None
    copied: list[int]
    ranks: list[int]
    layouts: list[tuple[int, int]]
    rates: list[str | None]
    rounds: int = 4
    least_rounds: int = 2
    seconds: float = 0.2
    steps: int = 30
    turns: int = 10
    groups: int = 300

    def job(self, operations: list[str], sizes: list[int]) -> Row:
        return dataclasses.asdict(rounds.Job(operations, sizes, self.seconds))


@dataclass
class Found:
    """What a part has measured. skipped: operations and why; wrong: results that differ."""

    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


# ---- where ranks run


@contextmanager
def on_one_host(ranks: int) -> Iterator[Where]:
    place = {"hosts": 1, "ranks_per_host": ranks, "rate": None}
    yield place, lambda measurement, job: _ranks.on_this_host(measurement, job, ranks)


@contextmanager
def between_hosts(layout: tuple[int, int], rate: str | None) -> Iterator[Where]:
    number, per_host = layout
    place = {"hosts": number, "ranks_per_host": per_host, "rate": rate}
    with hosts(number, rate) as bed:
        yield place, partial(_on_hosts, bed, per_host)


def _on_hosts(bed: Hosts, per_host: int, measurement: _ranks.Measurement, job: Row) -> Row:
    return _ranks.on_hosts(bed, measurement, job, per_host, _TIMEOUT)


def all_hosts(plan: Plan) -> Iterator[AbstractContextManager[Where]]:
    """A place for each layout and rate; none where no hosts can be made."""
    if hosts_available():
        return
    for layout, rate in itertools.product(plan.layouts, plan.rates):
        yield between_hosts(layout, rate)


def in_rounds(
    plan: Plan, where: Where, measurement: _ranks.Measurement, job: Row, found: Found
) -> list[list[Row]]:
    """The rows of each round; results are compared in the first."""
    _, run = where
    measured: list[list[Row]] = []
    start = time.monotonic()
    for number, order in rounds.orders(plan.rounds):
        # As long as one more is expected to end within the budget.
        expected = (time.monotonic() - start) * (number + 1) / max(number, 1)
        if number >= plan.least_rounds and expected > BUDGET[measurement]:
            break
        left = [name for name in job.get("operations", []) if name not in found.skipped]
        more = {"operations": left, "order": order, "compare": number == 0}
        done = run(measurement, job | more)
        measured.append(done["rows"])
        found.skipped |= done.get("skipped", {})
        found.wrong += done.get("wrong", [])
    return measured


# ---- the parts


def host(plan: Plan, found: Found) -> None:
    operations = [name for name in plan.operations if name != calls.COMPRESSED]
    for ranks in plan.ranks:
        with on_one_host(ranks) as where:
            job = plan.job(operations, plan.sizes or SIZES)
            measured = in_rounds(plan, where, rounds.measure, job, found)
        _show(found, rounds.to_rows(measured, where[0]))


def sizes_between(plan: Plan, place: Row) -> list[int]:
    if plan.sizes:
        return plan.sizes
    layout = (place["hosts"], place["ranks_per_host"])
    longest = layout == LONGEST_LAYOUT and place["rate"] == LONGEST_RATE
    return [nbytes for nbytes in SIZES if longest or nbytes < LONGEST]


def between(plan: Plan, found: Found) -> None:
    operations = list(plan.operations)
    for context in all_hosts(plan):
        with context as where:
            job = plan.job(operations, sizes_between(plan, where[0]))
            measured = in_rounds(plan, where, rounds.measure, job, found)
        _show(found, rounds.to_rows(measured, where[0]))


def copies(plan: Plan, found: Found) -> None:
    operations = [name for name in calls.COPIED if name in plan.operations]
    for ranks in plan.ranks:
        with on_one_host(ranks) as where:
            job = plan.job(operations, plan.copied)
            measured = in_rounds(plan, where, rounds.measure_copies, job, found)
        _show(found, rounds.to_copy_rows(measured, where[0]))


def steps(plan: Plan, found: Found) -> None:
    two = dataclasses.replace(plan, layouts=[(2, 1)])
    for context in itertools.chain([on_one_host(2)], all_hosts(two)):
        with context as where:
            measured = in_rounds(plan, where, fsdp.measure, {"steps": plan.steps}, found)
        _show(found, rounds.to_rows(measured, where[0]))


def groups(plan: Plan, found: Found) -> None:
    single = [layout for layout in plan.layouts if layout[1] == 1]
    remote = dataclasses.replace(plan, rates=[CREATION_RATE], layouts=single)
    for context in itertools.chain(map(on_one_host, plan.ranks), all_hosts(remote)):
        with context as where:
            place, run = where
            turns = in_rounds(plan, where, creation.measure_turns, {"turns": plan.turns}, found)
            _show(found, creation.to_rows(turns, place))
            for backend in ("gloo", "cgx") if place["hosts"] == 1 else ():
                job = {"backend": backend, "groups": plan.groups}
                rows = run(creation.measure_many, job)["rows"]
                _show(found, [place | {"operation": "many groups"} | row for row in rows])


MEASURE: dict[str, Callable[[Plan, Found], None]] = {
    "host": host,
    "hosts": between,
    "copy": copies,
    "fsdp": steps,
    "creation": groups,
}


def _show(found: Found, rows: list[Row]) -> None:
    found.rows += rows
    if rows:
        print(f"\n{text.table(rows)}", flush=True)


# ---- the document


def merged(old: Row, new: Row, whole: bool) -> Row:
    """A document with the parts of both; of a part that both have, the new one. whole: False where
    the new one has some rows of its parts only, which replace the same rows.
    """
    parts = dict(old.get("parts", {}))
    for name, part in new["parts"].items():
        before = [] if whole else parts.get(name, {}).get("rows", [])
        keys = {_key(row) for row in part["rows"]}
        kept = [row for row in before if _key(row) not in keys]
        parts[name] = part | {"rows": kept + part["rows"]}
    parts = {name: parts[name] for name in PARTS if name in parts}
    return old | new | {"parts": parts}


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in _KEY)


def read(file: str | None) -> Row:
    """The document that is there already, or an empty one."""
    if not file or not Path(file).exists():
        return {}
    document: Row = json.loads(Path(file).read_text())
    return document if document.get("benchmark") == "collectives" else {}


# ---- the command


def layout(word: str) -> tuple[int, int]:
    """ "2x1": hosts and ranks of each."""
    match = re.fullmatch(r"(\d+)x(\d+)", word)
    if not match or int(match[1]) < 2 or int(match[2]) < 1:
        raise argparse.ArgumentTypeError(f"{word!r}; allowed: HOSTSxRANKS from 2x1, as 4x1")
    return int(match[1]), int(match[2])


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collectives",
        description="Every collective over cgx and over gloo alone.",
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--only", nargs="+", choices=list(calls.OPERATIONS), metavar="NAME")
    parser.add_argument("--ranks", nargs="+", type=at_least(2), metavar="N", help="on one host")
    parser.add_argument("--layouts", nargs="+", type=layout, metavar="HOSTSxRANKS")
    parser.add_argument("--rates", nargs="+", type=_ranks.rate, metavar="RATE", help="of links")
    _command.add_sizes_argument(parser, "4 64K 16M")
    parser.add_argument("--rounds", type=at_least(1), metavar="N", help="2 to 4; --quick: 1")
    parser.add_argument(
        "--seconds", type=float, help="of each operation and size in a round: 0.2; --quick: 0.03"
    )
    parser.add_argument("--quick", action="store_true", help="shorter, and fewer of everything")
    _command.add_output_arguments(parser)
    return parser.parse_args(argv)


def make_plan(args: argparse.Namespace) -> Plan:
    quick, sizes = args.quick, sorted(set(args.sizes or []))
    plan = Plan(
        operations=args.only or list(calls.OPERATIONS),
        sizes=sizes or ([4, 64 << 10] if quick else None),
        copied=sizes or (COPY_SIZES[:1] if quick else COPY_SIZES),
        ranks=args.ranks or ([2] if quick else [2, 4]),
        layouts=args.layouts or ([(2, 1)] if quick else LAYOUTS),
        rates=args.rates or (["1gbit"] if quick else RATES),
    )
    if quick:
        plan = dataclasses.replace(plan, rounds=1, seconds=0.03)
        plan = dataclasses.replace(plan, steps=3, turns=3, groups=10)
    given = {"rounds": args.rounds, "least_rounds": args.rounds, "seconds": args.seconds}
    return dataclasses.replace(plan, **{k: v for k, v in given.items() if v})


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    plan = make_plan(args)
    facts = _ranks.print_link_facts(rounds=plan.rounds, seconds_each=plan.seconds)
    start = time.monotonic()
    document: Row = {"benchmark": "collectives", "machine": facts, "not_measured": {}, "parts": {}}
    missing = hosts_available()
    if missing:
        document["not_measured"]["collectives between hosts"] = missing
        print(f"no hosts: {missing}", file=sys.stderr)
    both = merged(read(args.json), document, whole=True)
    whole = not any([args.only, args.ranks, args.layouts, args.rates, args.sizes])
    wrong: list[str] = []
    for name in [part for part in PARTS if part in args.part]:
        begin, found, complete = time.monotonic(), Found(), False
        print(f"\n-- {name}", flush=True)
        try:
            MEASURE[name](plan, found)
            complete = True
        finally:  # where a place fails, the others are kept
            seconds = round(time.monotonic() - begin, 1)
            part = {"revision": facts["revision"], "seconds": seconds} | dataclasses.asdict(found)
            facts["seconds"] = round(time.monotonic() - start, 1)
            both = merged(both, document | {"parts": {name: part}}, whole and complete)
            if args.json:
                _command.write_json(Path(args.json), both)
        print(f"{name}: {seconds} s", flush=True)
        wrong += found.wrong
    return _command.finish(args, both, lambda file: text.draw(both, file), wrong)


if __name__ == "__main__":
    sys.exit(main())
