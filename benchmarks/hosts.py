r"""How fast all-reduces between hosts are, at a given rate of their links, against gloo.

    python -m benchmarks.hosts [--hosts 2 4] [--ranks-per-host 1] [--rates 1gbit] [--sizes 4K 64M]
        [--bits 32 8 4 2] [--with fusion_buffer_mb=4,...] [--repeats 15] [--quick]
        [--mpirun PROGRAM] [--json FILE] [--plot FILE]

The hosts are network namespaces of this machine (tests/hosts/bed.py: needs Linux, root, iproute2),
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
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _hosts_report, _report
from benchmarks._arguments import (
    add_output_arguments,
    add_reduction_arguments,
    add_settings_argument,
    at_least,
)
from benchmarks._hosts_bed import link_facts, missing_hosts, rate
from benchmarks._hosts_rank import HostsJob, HostsVariant
from tests.hosts.bed import hosts
from tests.hosts.network import parse_rate

SIZES = [4**k for k in (1, 3, *range(5, 14))]  # 4 bytes to 64 MiB
QUICK_SIZES = [4**6, 4**8, 4**10, 4**11]
_TIMEOUT = 3600.0  # seconds of one run; a collective that hangs is ended by its own


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
        "--rates", nargs="+", type=rate, default=["1gbit"], metavar="RATE", help="200mbit, none"
    )
    add_reduction_arguments(parser, "4K, 64M")
    add_settings_argument(parser, "all bits once more")
    parser.add_argument(
        "--mpirun", metavar="PROGRAM", help="start ranks by it, with the python beside it"
    )
    parser.add_argument(
        "--quick", action="store_true", help="2 hosts, four sizes, five repetitions"
    )
    add_output_arguments(parser)
    return parser.parse_args(argv)


def make_job(args: argparse.Namespace) -> HostsJob:
    variants = []
    for options in [{}, *args.settings]:
        label = " ".join(f"{name}={value}" for name, value in options.items())
        variants += [HostsVariant(bits, options, label) for bits in dict.fromkeys(args.bits)]
    return HostsJob(
        sizes=sorted(set(args.sizes or (QUICK_SIZES if args.quick else SIZES))),
        repeats=args.repeats or (5 if args.quick else 15),
        bucket_size=args.bucket_size,
        variants=variants,
    )


def measure(
    job: HostsJob, number: int, per_host: int, link: str | None, mpirun: str | None
) -> dict[str, Any]:
    """Runs the job on `number` hosts. HostsFailed, with what the ranks wrote, if it fails."""
    with hosts(number, link) as bed:
        job_file, result = bed.folder / "job.json", bed.folder / "result.json"
        job_file.write_text(job.to_json())
        python = str(Path(mpirun).with_name("python")) if mpirun else sys.executable
        command = [python, "-m", "benchmarks._hosts_rank", str(job_file), str(result)]
        if mpirun:
            bed.mpirun(command, per_host, mpirun, timeout=_TIMEOUT)
        else:
            bed.run(command, per_host, timeout=_TIMEOUT)
        measured = json.loads(result.read_text())
    bits_per_second = parse_rate(link) if link else None
    rows = _hosts_report.to_rows(
        measured["sizes"], number, number * per_host, bits_per_second, job.bucket_size
    )
    return {
        "hosts": number,
        "ranks_per_host": per_host,
        "rate": link,
        "launcher": mpirun and Path(mpirun).name,
        "seconds": measured["seconds"],
        "rows": rows,
    }


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if missing_hosts():
        return 0
    job = make_job(args)
    start = time.monotonic()
    facts = link_facts(repeats=job.repeats, bucket_size=job.bucket_size)
    runs = []
    wrong = []
    for number in args.hosts or ([2] if args.quick else [2, 4]):
        for per_host in args.ranks_per_host:
            for link in args.rates:
                if number * per_host > (os.cpu_count() or 1):
                    print(f"note: {number * per_host} ranks share {os.cpu_count()} cores")
                run = measure(job, number, per_host, link, args.mpirun)
                runs.append(run)
                print(f"\n{_hosts_report.table(run)}\n\n{_report.speedups(run['rows'])}")
                print(f"\n{_report.stages(run['rows'])}\n", flush=True)
                wrong += [
                    f"{_hosts_report.title(run)}: {line}" for line in _report.failures(run["rows"])
                ]
    facts["seconds"] = round(time.monotonic() - start, 1)
    if args.json:
        document = {"benchmark": "hosts", "machine": facts, "runs": runs}
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if args.plot:
        heading = (
            f"all-reduce of fp32 between hosts ({facts['cpu']}, {facts['cores']} cores for all)"
        )
        _hosts_report.draw(runs, heading, args.plot)
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
