"""All benchmarks behind one command.

    python -m benchmarks all [--quick] [--out DIR | --commit-results] [--resume]
    python -m benchmarks codec allreduce ...   # parts; `list` names them
    python -m benchmarks baseline              # measures benchmarks/results/baseline.json anew
    python -m benchmarks check                 # the guard: fails where a ratio has lost 20 %
    python -m benchmarks targets               # what was asked and what was measured

A part is a module of this package that takes --quick, --json FILE and --plot FILE, prints its own
table, and ends with status 0. One that cannot run here says so on stderr, "nothing measured: why",
writes nothing and ends with 0, too. Each runs in a process of its own, so that it neither warms nor
breaks another.

Parts run one after another; one that fails, or cannot run here, does not stop the others, and is
listed at the end with its reason. Without --out nothing is written. --commit-results writes to
benchmarks/results/ and fills the tables of README.md and docs (`report.tables`); with --resume
parts that have results of this revision there are not run again. Status 1 if a part failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import _command
from benchmarks import _deadline as deadline
from benchmarks._command import NOTHING, RESULTS, ROOT
from benchmarks.report import guard, tables, targets

OTHERS = ("list", "baseline", "check", "targets")
LIMIT = 1500.0  # seconds that one part may take


@dataclass(frozen=True)
class Part:
    """module: within this package; result: name of its files, without .json and .png; arguments: of
    a full run; quick: of a short one. limit: seconds that it may take.
    """

    name: str
    module: str
    about: str
    result: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--quick",)
    limit: float = LIMIT


_BITS = ("--bits", "32", "16", "8", "4", "2")
_CODECS = ("--codecs", "rotated:1", "rotated:2", "rotated:4", "trellis:2")
_ALL = (
    Part("codec", "codec", "codecs on one core, against the memory", "codec"),
    Part("errors", "training.errors", "errors of the codecs at their bytes", "errors"),
    Part("gpu-codec", "gpu_codec", "codecs on a GPU, against a copy in its memory", "gpu_codec"),
    Part("codec-peers", "codec_peers", "8-bit codecs of others", "codec_peers"),
    Part("bounded", "bounded", "error-bounded compression, against others", "bounded"),
    Part("bdi", "bdi", "BDI and cuda_float_compress on one core", "bdi"),
    Part("emulate", "emulate", "casts to formats of numbers, against a copy", "emulate"),
    Part("emulate-gemm", "emulate_gemm", "products in formats, against torch's", "emulate_gemm"),
    Part("allreduce", "allreduce", "all-reduces on one host", "allreduce", _BITS),
    Part(
        "mpi",
        "allreduce",
        "the same beside Open MPI, under its mpirun",
        "allreduce_mpi",
        ("--mpirun", "auto", "--communicator", "shm", "--no-bf16", "--peers", *_BITS),
        ("--mpirun", "auto", "--communicator", "shm", "--no-bf16", "--peers", "--quick"),
    ),
    Part("gpu-allreduce", "gpu_allreduce", "all-reduces of two ranks on one GPU", "gpu_allreduce"),
    Part(
        "collectives", "collectives", "every collective, against gloo", "collectives", limit=2700.0
    ),
    Part("shards", "shards", "reduce-scatters and all-gathers, against gloo", "shards"),
    Part("latency", "latency", "where a small all-reduce spends its time", "latency"),
    Part(
        "hosts",
        "hosts",
        "all-reduces between hosts",
        "hosts",
        ("--hosts", "2", "4", "--rates", "1gbit", "10gbit", "--repeats", "11", *_BITS, *_CODECS),
    ),
    Part("exact", "exact", "exact all-reduces over Gloo, against gloo's own", "exact"),
    Part("autotune", "autotune", "autotuned groups, against the best choice", "autotune"),
    Part("crossover", "crossover", "the size from which compression pays", "crossover"),
    Part(
        "training",
        "training.hosts",
        "a training between hosts",
        "hosts_training",
        ("--runs", "2", "--steps", "40"),
    ),
    Part("advice", "training.advice", "steps that cgx advise predicts, measured", "advice"),
    Part("adaptive", "training.adaptive", "bits per layer, against uniform bits", "adaptive"),
    Part("fsdp", "training.fsdp", "FSDP2 with compressed gradients and weights", "fsdp"),
    Part(
        "exchanges",
        "training.exchanges",
        "a pipeline and experts between hosts, in few bits",
        "exchanges",
        limit=5400.0,
    ),
    Part("monitor", "training.monitor", "what watching a training costs", "monitor"),
    Part("diloco", "training.diloco", "DiLoCo over slow links, against DDP", "diloco"),
    Part("activations", "activations", "bytes kept for backward, and steps", "activations"),
    Part(
        "activations-training",
        "training.activations",
        "trainings that keep less for backward",
        "activations_training",
    ),
    Part(
        "projections", "projections", "linear layers that keep less of their input", "projections"
    ),
    Part(
        "projections-training",
        "training.activations",
        "trainings of linear layers that keep a part of their input",
        "projections_training",
        ("--projections",),
        ("--quick", "--projections"),
    ),
    Part("together", "training.together", "gradients and saved tensors in few bits", "together"),
    Part(
        "frontier",
        "frontier",
        "torch's own means of keeping less for backward, and ours",
        "frontier",
        limit=3000.0,
    ),
    Part(
        "emulate-training",
        "training.emulated",
        "trainings in emulated formats, against float32",
        "emulate_training",
        limit=7200.0,
    ),
    Part("joining", "training.joining", "a model to a joining worker", "joining"),
    Part("overlap", "overlap", "a picture of encode, transfer and decode", "overlap"),
)
PARTS = {part.name: part for part in _ALL}


@dataclass(frozen=True)
class Outcome:
    """status: "done", "not measured", "kept" or "failed"; reason: of all but the first."""

    part: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    not_measured: tuple[str, ...] = ()


def run_part(
    part: Part, quick: bool, out: Path | None, limit: float | None = None, drop: bool = False
) -> Outcome:
    """Runs a part; its files are put into `out` when it has ended well. limit: seconds; None: the
    part's own. drop: print nothing.
    """
    limit = part.limit if limit is None else limit
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        written = Path(folder) / f"{part.result}.json"
        picture = written.with_suffix(".png")
        command = [sys.executable, "-m", f"benchmarks.{part.module}"]
        command += [*(part.quick if quick else part.arguments), "--json", str(written)]
        if out is not None:
            command += ["--plot", str(picture)]
        status, said = _run(command, limit, drop)
        seconds = round(time.monotonic() - start, 1)
        if status is None:
            return Outcome(part.name, "failed", f"not done after {limit:.0f} s", seconds)
        if status != 0:
            reason = f"status {status}: {_last_line(said)}"
            return Outcome(part.name, "failed", reason, seconds)
        if not written.exists():
            why = [line[len(NOTHING) :] for line in said.splitlines() if line.startswith(NOTHING)]
            if not why:
                return Outcome(part.name, "failed", "wrote no results", seconds)
            return Outcome(part.name, "not measured", why[-1], seconds)
        missing = json.loads(written.read_text()).get("not_measured") or {}
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for file in (written, picture):
                if file.exists():
                    # On the same file system first, so that the old one is replaced at once.
                    new = out / f".{file.name}.new"
                    new.write_bytes(file.read_bytes())
                    new.replace(out / file.name)
        lines = tuple(f"{peer}: {why}" for peer, why in missing.items())
        return Outcome(part.name, "done", "", seconds, lines)


def _run(command: list[str], limit: float, drop: bool) -> tuple[int | None, str]:
    """Exit status, None after `limit` seconds, and what was written on stderr. drop: shows none."""
    status, said = deadline.run(command, limit, ROOT, subprocess.DEVNULL if drop else None)
    if not drop:
        sys.stderr.write(said)
    return status, said


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing on stderr"


def kept(part: Part, out: Path) -> bool:
    """Whether `out` holds a result of this part for this revision of the sources."""
    file = out / f"{part.result}.json"
    now = _command.git_revision()
    if now is None or now.endswith("+") or not file.exists():
        return False
    facts: dict[str, Any] = json.loads(file.read_text()).get("machine", {})
    return bool(facts.get("revision") == now)


def probe(name: str, arguments: tuple[str, ...]) -> guard.Document:
    """What a part writes in a short run with these arguments."""
    part = dataclasses.replace(PARTS[name], quick=arguments)
    with tempfile.TemporaryDirectory(prefix="cgx-baseline-") as folder:
        outcome = run_part(part, quick=True, out=Path(folder), drop=True)
        if outcome.status != "done":
            raise guard.ProbeFailed(f"{name}: {outcome.status}: {outcome.reason}")
        return dict(json.loads((Path(folder) / f"{part.result}.json").read_text()))


# ---- the command


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    names = ["all", *PARTS, *OTHERS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "what",
        nargs="+",
        type=lambda word: word.replace("_", "-"),
        choices=names,
        metavar="WHAT",
        help=", ".join(names),
    )
    parser.add_argument("--quick", action="store_true", help="a short run of each part")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for JSON files and pictures")
    parser.add_argument("--commit-results", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--resume", action="store_true", help="skip parts of this revision")
    args = parser.parse_args(argv)
    if args.commit_results and args.quick:
        parser.error("--commit-results writes the tables of the documents: not with --quick")
    if args.commit_results and args.out:
        parser.error("--commit-results writes to benchmarks/results: not with --out")
    if args.resume and not (args.commit_results or args.out):
        parser.error("--resume needs --commit-results or --out")
    if len(args.what) > 1 and set(args.what) & set(OTHERS):
        parser.error(f"one of {', '.join(OTHERS)} stands alone")
    return args


def run(names: list[str], quick: bool, out: Path | None, resume: bool) -> list[Outcome]:
    outcomes = []
    for name in names:
        part = PARTS[name]
        if resume and out is not None and kept(part, out):
            outcomes.append(Outcome(name, "kept", "has results of this revision"))
            continue
        print(f"\n== {name}: {part.about}", flush=True)
        outcomes.append(run_part(part, quick, out))
    return outcomes


def summary(outcomes: list[Outcome]) -> str:
    """A line for each part, and one for each peer that was not there."""
    width = max(len(one.part) for one in outcomes)
    lines = []
    for one in outcomes:
        lines.append(f"{one.part:<{width}}  {one.status:<12} {one.seconds:>6.1f} s  {one.reason}")
        lines += [f"{'':<{width}}  not measured {peer}" for peer in one.not_measured]
    return "\n".join(line.rstrip() for line in lines)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    what = args.what[0]
    if what == "list":
        for part in PARTS.values():
            print(f"{part.name:<12} {part.about}")
        return 0
    if what == "baseline":
        return guard.write(probe)
    if what == "check":
        return guard.check(probe)
    if what == "targets":
        print(targets.table())
        return 0
    out = RESULTS if args.commit_results else args.out
    names = list(PARTS) if "all" in args.what else list(dict.fromkeys(args.what))
    outcomes = run(names, args.quick, out, args.resume)
    print(f"\n{summary(outcomes)}")
    status = int(any(one.status == "failed" for one in outcomes))
    if args.commit_results:
        if "all" in args.what:
            status |= guard.write(probe)
        status |= tables.main([])
    return status


if __name__ == "__main__":
    # As an exception, which ends the part that runs, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
