r"""How fast all-reduces between hosts are, at a given rate of their links, against gloo.

    python -m benchmarks.hosts [--hosts 2 4] [--ranks-per-host 1] [--rates 1gbit] [--sizes 4K 64M]
        [--bits 32 8 4 2] [--codecs rotated:2 ...] [--with fusion_buffer_mb=4,...] [--repeats 15]
        [--quick]
        [--mpirun PROGRAM] [--json FILE] [--plot FILE]

The hosts are network namespaces of this machine (torch_cgx.testbed: needs Linux, root, iproute2),
joined by links of that rate. All methods are measured in the same processes, one after another in
every repetition, and every result is verified: equal bits on all ranks, no value off by more than
the method may be; status 1 if one is not. A time is the slowest rank's; medians, 10th and 90th
percentile are reported. Then the frames that leave each host are counted on its link, over a
batch of calls. `--with` compares further settings of cgx.

    python -m benchmarks.hosts --hosts 2 4 --bits 32 4           # no size is slower than gloo
    python -m benchmarks.hosts --hosts 2 --sizes 64M --bits 4 32 --with segment_kb=128 \
        --with segment_kb=256 --with segment_kb=1024             # sizes of segments
    python -m benchmarks.hosts --hosts 2 --rates 10gbit --sizes 64M   # bound by the CPU

All hosts share the cores of this machine: a real host has its own, and encodes as fast as one rank
does here only where there is a core for every rank.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist

from benchmarks import _command, _measure, _ranks
from benchmarks._command import at_least, settings_label, size_text, time_text
from benchmarks._measure import Row
from benchmarks._methods import CgxGroup, Gloo, Hook, Method, contribution
from benchmarks._ranks import everyone
from torch_cgx.testbed.bed import hosts
from torch_cgx.testbed.network import parse_rate, read_own

SIZES = [4**k for k in (1, 3, *range(5, 14))]  # 4 bytes to 64 MiB
QUICK_SIZES = [4**6, 4**8, 4**10, 4**11]
_TIMEOUT = 3600.0  # seconds of one run; a collective that hangs is ended by its own
# Enough calls that what the barriers around them send does not count.
_COUNTED_BYTES, _MOST_COUNTED_CALLS = 8 << 20, 256


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hosts",
        description="Speed of all-reduces between hosts, against gloo in the same run.",
    )
    parser.add_argument(
        "--hosts",
        nargs="+",
        type=at_least(2),
        metavar="N",
        help="2 4; 2 with --quick",
    )
    parser.add_argument("--ranks-per-host", nargs="+", type=at_least(1), default=[1], metavar="N")
    parser.add_argument(
        "--rates",
        nargs="+",
        type=_ranks.rate,
        default=["1gbit"],
        metavar="RATE",
        help="200mbit, none",
    )
    _command.add_reduction_arguments(parser, "4K, 64M")
    parser.add_argument(
        "--codecs",
        nargs="+",
        type=codec_and_bits,
        default=[],
        metavar="NAME:BITS",
        help="further codecs, each at a number of bits",
    )
    _command.add_settings_argument(parser, "all bits once more")
    parser.add_argument(
        "--mpirun", metavar="PROGRAM", help="start ranks by it, with the python beside it"
    )
    parser.add_argument(
        "--quick", action="store_true", help="2 hosts, four sizes, five repetitions"
    )
    _command.add_output_arguments(parser)
    return parser.parse_args(argv)


def codec_and_bits(text: str) -> tuple[str, int]:
    """ "rotated:2" """
    name, _, bits = text.partition(":")
    if not name or not bits.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: NAME:BITS, such as rotated:2")
    return name, int(bits)


@dataclass(frozen=True)
class HostsVariant:
    """One configuration of cgx: bits per value (32: exact), further torch_cgx.Options, and how
    these are named in tables.
    """

    bits: int
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        bits = "exact" if self.bits == 32 else f"{self.bits} bit"
        return " ".join(filter(None, ["cgx", bits, self.label]))


@dataclass(frozen=True)
class HostsJob:
    """What all ranks measure. sizes: bytes of fp32."""

    sizes: list[int]
    repeats: int
    bucket_size: int
    variants: list[HostsVariant]

    @staticmethod
    def of(fields: dict[str, Any]) -> HostsJob:
        return HostsJob(**fields | {"variants": [HostsVariant(**v) for v in fields["variants"]]})


class CgxOnHosts(CgxGroup):
    """One across hosts. With exact sums inside them fewer values are rounded: the bound of two
    roundings holds all the same.
    """

    def __init__(self, variant: HostsVariant, bucket_size: int):
        options = {"bits": variant.bits, "bucket_size": bucket_size, **variant.options}
        communicator = str(options.get("cross_communicator", "GLOO")).lower()
        super().__init__(variant.name, communicator, options)


def make_job(args: argparse.Namespace) -> HostsJob:
    variants = []
    for options in [{}, *args.settings]:
        label = settings_label(options)
        variants += [HostsVariant(bits, options, label) for bits in dict.fromkeys(args.bits)]
    variants += [HostsVariant(bits, {"codec": name}, name) for name, bits in args.codecs]
    return HostsJob(
        sizes=sorted(set(args.sizes or (QUICK_SIZES if args.quick else SIZES))),
        repeats=args.repeats or (5 if args.quick else 15),
        bucket_size=args.bucket_size,
        variants=variants,
    )


def measure(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank: times the methods, then counts what leaves its host."""
    job = HostsJob.of(fields)
    methods: list[Method] = [Gloo(), Hook(torch.float16)]
    methods += [CgxOnHosts(variant, job.bucket_size) for variant in job.variants]
    rank = dist.get_rank()
    # One rank of each host reads the counters of its link.
    reads = everyone(os.uname().nodename).index(os.uname().nodename) == rank
    timing = _measure.Timing(job.repeats, job.bucket_size)
    measured = []
    for nbytes in job.sizes:
        size = _measure.measure_size(timing, methods, nbytes)
        x = contribution(rank, nbytes // 4)
        for row, method in zip(size["rows"], methods, strict=True):
            row["link_bytes_by_host"] = _link_bytes(method, x, reads)
            row["staging_bytes"] = method.staging_bytes()
        measured.append(size)
        if rank == 0:  # shown where the run fails
            print(f"{nbytes} bytes are measured", flush=True)
    return {"sizes": measured}


def _link_bytes(method: Method, x: torch.Tensor, reads: bool) -> list[float]:
    """Bytes that left each host per call, in frames on its link; hosts in the order of ranks."""
    y = x.clone()
    ranks = dist.get_world_size()
    calls = min(max(_COUNTED_BYTES // (4 * x.numel()), 1), _MOST_COUNTED_CALLS)
    # Sums of sums grow: back to the start before they leave the range of fp32 (see _measure).
    fresh = _measure.calls_per_sample(4, ranks)

    def run() -> None:
        for call in range(calls):
            if call % fresh == 0:
                y.copy_(x)
            method.run(y)

    sent = _sent(run, reads) - _sent(lambda: None, reads)
    found = everyone(sent / calls if reads else None)
    return [one for one in found if one is not None]


def _sent(call: Callable[[], None], reads: bool) -> int:
    def counter() -> int:
        dist.barrier()
        value = read_own().sent_bytes if reads else 0
        dist.barrier()
        return value

    before = counter()
    call()
    return counter() - before


def run(
    job: HostsJob, number: int, per_host: int, link: str | None, mpirun: str | None
) -> dict[str, Any]:
    """Runs the job on `number` hosts. HostsFailed, with what the ranks wrote, if it fails."""
    with hosts(number, link) as bed:
        fields = dataclasses.asdict(job)
        measured = _ranks.on_hosts(bed, measure, fields, per_host, _TIMEOUT, mpirun=mpirun)
    bits_per_second = parse_rate(link) if link else None
    ranks = number * per_host
    rows = to_rows(measured["sizes"], number, ranks, bits_per_second, job.bucket_size)
    return {
        "hosts": number,
        "ranks_per_host": per_host,
        "rate": link,
        "launcher": mpirun and Path(mpirun).name,
        "seconds": measured["seconds"],
        "rows": rows,
    }


def payload_bytes(bits: int, nbytes: int, bucket_size: int, rotated: bool = False) -> float:
    """Bytes of a vector of `nbytes` of fp32 at `bits` per value; up to 8 bits with a minimum and a
    step, 8 bytes, per bucket; of a codec with a rotation with a scale, 4 bytes, per 1024 values.
    """
    values = nbytes // 4
    if bits > 8:
        return values * bits / 8
    if rotated:
        return values * bits / 8 + 4 * math.ceil(values / 1024)
    return values * bits / 8 + 8 * math.ceil(values / bucket_size)


def expected_bytes(row: Row, hosts: int, ranks: int, bucket_size: int) -> float:
    """Bytes that have to leave a host per call: 2 (H - 1) / H of the vector as it is sent, with H
    the number of hosts. Of gloo's ring, which knows no hosts, 2 (N - 1) / N with N ranks. Without
    any headers.
    """
    parties = hosts if row["method"].startswith("cgx") else ranks
    rotated = row["method"].endswith(("rotated", "trellis"))
    payload = payload_bytes(row["bits"], row["bytes"], bucket_size, rotated)
    return 2 * (parties - 1) / parties * payload


def to_rows(
    measured: list[dict[str, Any]],
    hosts: int,
    ranks: int,
    bits_per_second: float | None,
    bucket: int,
) -> list[Row]:
    """Those of _measure.to_rows, and of each method: link_bytes, of the host that sends most, per
    call; expected_bytes; link_use, the share of the time in which that host's link was sending
    (None: links are not shaped).
    """
    rows = _measure.to_rows(measured, ranks)
    for row in rows:
        row["link_bytes"] = max(row["link_bytes_by_host"])
        row["expected_bytes"] = expected_bytes(row, hosts, ranks, bucket)
        row["link_use"] = (
            row["link_bytes"] * 8 / bits_per_second / row["seconds"] if bits_per_second else None
        )
    return rows


def title(run: dict[str, Any]) -> str:
    """ "2 hosts x 1 rank, 1gbit" """
    ranks = run["ranks_per_host"]
    rate = run["rate"] or "unshaped"
    return f"{run['hosts']} hosts x {ranks} rank{'s' if ranks > 1 else ''}, {rate}"


def table(run: dict[str, Any]) -> str:
    """All rows of one run. link B: bytes that left the busiest host per call, in frames; formula:
    these over expected_bytes; link: share of the time in which that host's link was sending.
    """
    rows = run["rows"]
    width = max(len(row["method"]) for row in rows)
    lines = [
        f"{title(run)} ({run['seconds']} s)",
        f"{'size':>6}  {'method':<{width}} {'time':>10} {'p10 - p90':>23} {'vs gloo':>8} "
        f"{'link B':>8} {'formula':>8} {'link':>6} {'rel.err':>8}",
    ]
    last = None
    for row in rows:
        size = size_text(row["bytes"]) if row["bytes"] != last else ""
        last = row["bytes"]
        between = f"{time_text(row['seconds_p10'])} - {time_text(row['seconds_p90'])}"
        use = "" if row["link_use"] is None else f"{100 * row['link_use']:.0f}%"
        wrong = "" if row["equal"] and row["within_bound"] else "  WRONG"
        lines.append(
            f"{size:>6}  {row['method']:<{width}} {time_text(row['seconds']):>10} {between:>23} "
            f"{row['speedup']:>7.2f}x {size_text(row['link_bytes']):>8} "
            f"{row['link_bytes'] / row['expected_bytes']:>7.3f}x {use:>6} "
            f"{row['relative_error']:>8.1e}{wrong}"
        )
    return "\n".join(lines)


def draw(runs: list[dict[str, Any]], heading: str, file: str) -> None:
    """The picture: for each run the speed-up, and the bytes that left a host."""
    lines = ["-", "--", ":", "-."]
    size = {"figsize": (6.5 * len(runs), 9), "sharex": True, "sharey": "row"}
    with _command.picture(file, 2, len(runs), **size) as (figure, axes):
        for (speed, traffic), run in zip(axes.T, runs, strict=True):
            seen: dict[int, int] = {}  # lines by bits: variants differ in their dashes
            for name in dict.fromkeys(row["method"] for row in run["rows"]):
                mine = [row for row in run["rows"] if row["method"] == name]
                sizes = [row["bytes"] for row in mine]
                bits = mine[0]["bits"]
                color = _command.color(name, bits)
                style: dict[str, Any] = {"color": color, "linewidth": 1.4, "markersize": 4}
                if name.startswith("cgx"):
                    style |= {"marker": "o", "linestyle": lines[seen.setdefault(bits, 0) % 4]}
                    seen[bits] += 1
                else:
                    style |= {"marker": "x"}
                speed.plot(sizes, [row["speedup"] for row in mine], label=name, **style)
                low, high = ([row[f"speedup_{p}"] for row in mine] for p in ("p10", "p90"))
                speed.fill_between(sizes, low, high, color=color, alpha=0.1)
                shares = [row["link_bytes"] / row["bytes"] for row in mine]
                traffic.plot(sizes, shares, label=name, **style)
                expected = [row["expected_bytes"] / row["bytes"] for row in mine]
                traffic.plot(sizes, expected, color=color, linewidth=0.7, alpha=0.5)
            speed.set_title(title(run))
            for axis in (speed, traffic):
                _command.size_axis(axis, sorted({row["bytes"] for row in run["rows"]}))
        axes[0][0].set_ylabel("times as fast as gloo fp32 (median of pairs)")
        axes[1][0].set_ylabel("bytes that left a host / bytes of fp32 (thin: formula)")
        axes[0][0].legend(fontsize=8)
        figure.suptitle(heading)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if _ranks.missing_hosts():
        return 0
    job = make_job(args)
    start = time.monotonic()
    facts = _ranks.print_link_facts(repeats=job.repeats, bucket_size=job.bucket_size)
    runs = []
    wrong = []
    numbers = args.hosts or ([2] if args.quick else [2, 4])
    for number, per_host, link in itertools.product(numbers, args.ranks_per_host, args.rates):
        if number * per_host > (os.cpu_count() or 1):
            print(f"note: {number * per_host} ranks share {os.cpu_count()} cores")
        one = run(job, number, per_host, link, args.mpirun)
        runs.append(one)
        print(f"\n{table(one)}\n\n{_measure.speedups(one['rows'])}")
        print(f"\n{_measure.stages(one['rows'])}\n", flush=True)
        wrong += [f"{title(one)}: {line}" for line in _measure.failures(one["rows"])]
    facts["seconds"] = round(time.monotonic() - start, 1)
    document = {"benchmark": "hosts", "machine": facts, "runs": runs}
    heading = f"all-reduce of fp32 between hosts ({facts['cpu']}, {facts['cores']} cores for all)"
    return _command.finish(args, document, lambda file: draw(runs, heading, file), wrong)


if __name__ == "__main__":
    sys.exit(main())
