"""Whether a long all-reduce computes while it sends: one rank's stages beside its link's activity.

    python -m benchmarks.overlap [--size 64M] [--bits 4 32] [--rate 1gbit] [--calls 7] [--quick]
        [--json FILE] [--plot FILE]

Two hosts (network namespaces, tests/hosts/bed.py: needs Linux, root, iproute2) reduce one vector of
fp32. On rank 0 torch's profiler takes the engine's ranges (cgx:encode, cgx:transfer, which is the
worker's waiting, cgx:decode), and a thread reads what the link has carried every half millisecond,
both on one clock. The picture shows the call whose time is the median. The JSON has the numbers of
benchmarks/_overlap_report.py, medians over the calls.

The sampling thread and the profiler cost some processor time, so the call is a little slower than
unwatched; the clocks agree to some 0.05 ms, and half a millisecond is how exactly the link's
activity is known.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _overlap_report
from benchmarks._arguments import BITS, add_output_arguments, at_least, parse_size
from benchmarks._hosts_bed import link_facts, missing_hosts, rate
from tests.hosts.bed import hosts
from tests.hosts.network import parse_rate

_HOSTS = 2
_SAMPLE_SECONDS = 0.0005
_SHOWN_SECONDS = 0.1
_TIMEOUT = 300.0


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overlap",
        description="Encode, transfer, decode and the link's activity of one all-reduce.",
    )
    parser.add_argument("--size", type=parse_size, metavar="SIZE", help="64M; 8M with --quick")
    parser.add_argument("--bits", nargs="+", type=int, choices=BITS, default=[4, 32])
    parser.add_argument("--rate", type=rate, default="1gbit", help="of every link")
    parser.add_argument("--calls", type=at_least(1), metavar="N", help="7; 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="a shorter vector, two calls")
    add_output_arguments(parser)
    args = parser.parse_args(argv)
    if args.rate is None:
        parser.error("--rate none: how busy a link is can be told only where its rate is known")
    return args


def summary(bits: int, calls: list[dict[str, Any]], bytes_per_second: float) -> dict[str, Any]:
    """Of all calls with one number of bits: medians, and the call to show."""
    each = [_overlap_report.numbers(call, bytes_per_second) for call in calls]
    order = sorted(range(len(calls)), key=lambda i: calls[i]["seconds"])
    return {
        "method": "cgx exact" if bits == 32 else f"cgx {bits} bit",
        "bits": bits,
        "numbers": {key: statistics.median(one[key] for one in each) for key in each[0]},
        "by_call": each,
        "shown": calls[order[(len(order) - 1) // 2]],
    }


def table(runs: list[dict[str, Any]]) -> str:
    lines = [
        f"{'method':<10} {'ms':>7} {'rounds':>6} {'encode':>8} {'waiting':>8} {'decode':>8} "
        f"{'out busy':>9} {'in busy':>8} {'link use':>9} {'codec while link busy':>22}"
    ]
    for run in runs:
        told = run["numbers"]
        stages = (f"{1e3 * told[f'{s}_seconds']:>8.1f}" for s in ("encode", "transfer", "decode"))
        lines.append(
            f"{run['method']:<10} {1e3 * told['seconds']:>7.1f} {told['rounds']:>6.0f} "
            f"{' '.join(stages)} {told['link_out_busy']:>9.3f} {told['link_in_busy']:>8.3f} "
            f"{told['link_use']:>9.3f} {told['codec_covered']:>22.3f}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if missing_hosts():
        return 0
    start = time.monotonic()
    job: dict[str, Any] = {
        "bytes": args.size or (8 << 20 if args.quick else 64 << 20),
        "bits": list(dict.fromkeys(args.bits)),
        "calls": args.calls or (2 if args.quick else 7),
        "sample_seconds": _SAMPLE_SECONDS,
    }
    facts = link_facts(calls=job["calls"])
    with hosts(_HOSTS, args.rate) as bed:
        job_file, result = bed.folder / "job.json", bed.folder / "result.json"
        job_file.write_text(json.dumps(job))
        command = [sys.executable, "-m", "benchmarks._overlap_rank", str(job_file), str(result)]
        bed.run(command, 1, timeout=_TIMEOUT)
        traced = json.loads(result.read_text())
    bytes_per_second = parse_rate(args.rate) / 8
    runs = [summary(bits, traced[str(bits)], bytes_per_second) for bits in job["bits"]]
    print(table(runs))
    facts["seconds"] = round(time.monotonic() - start, 1)
    document = {
        "benchmark": "overlap",
        "machine": facts,
        "hosts": _HOSTS,
        "rate": args.rate,
        "bytes_per_second": bytes_per_second,
        "bytes": job["bytes"],
        "sample_seconds": _SAMPLE_SECONDS,
        "shown_seconds": _SHOWN_SECONDS,
        "runs": runs,
    }
    if args.plot:
        _overlap_report.draw(document, args.plot)
    if args.json:
        Path(args.json).write_text(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
