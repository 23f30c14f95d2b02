"""Trainings in emulated formats, against float32: what `cgx emulate compare` finds.

    python -m benchmarks.training.emulated [--quick] [--seeds N] [--only SWEEP,...] [--work FOLDER]
        [--json FILE] [--plot FILE]

Sweeps, of five paired seeds each (SWEEPS has their arguments):

gpt, digits:       all recipes, each against float32
nvfp4:             the GPT with nvfp4, and with nvfp4 without one of its parts
nodes8, nodes256:  the digits with gradients of 8 and of 256 (8 x 32, as CPD has them) emulated
                   nodes, summed in formats of 8 and of 4 bits, with APS and without
gpt_nodes8:        the GPT with gradients of 8 nodes

Losses depend on the seeds and on the number of threads (one) alone; times are of a step over
float32's of the same seed. An interrupted run goes on where it was: finished trainings are kept in
the folder --work (build/emulate_training).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks import _command
from benchmarks._command import at_least
from torch_cgx import emulate

SEEDS = 5
_SMAQ = ("smaq68", "smaq68_clamped", "smaq57", "smaq46", "smaq35")
# SmaQ of all else but the optimizer's state: AdamW divides by a root of it.
_STATELESS = tuple(f"{name}-optimizer_state" for name in ("smaq68", "smaq57", "smaq46", "smaq35"))
_CPD = ("cpd43", "cpd43+aps", "cpd30", "cpd30+aps")
_HARDWARE = ("bf16", "fp8_delayed", "fp8_current", "fp8_block128", "mxfp8", "mxfp6", "mxfp4")
_PARTS = tuple(f"nvfp4-{part}" for part in ("stochastic", "hadamard", "blocks2d", "first_last"))


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Arguments of `emulate.compare`."""

    task: str
    recipes: tuple[str, ...]
    steps: int
    batch: int
    nodes: int | str = 1


SWEEPS = {
    "gpt": Sweep("gpt", (*_HARDWARE, "nvfp4", "smaq68", *_STATELESS, *_CPD), 200, 32),
    "digits": Sweep("digits", (*_HARDWARE, "nvfp4", *_SMAQ, *_CPD), 200, 64),
    "nvfp4": Sweep("gpt", ("nvfp4", *_PARTS), 200, 32),
    "nodes8": Sweep("digits", _CPD, 200, 64, 8),
    "nodes256": Sweep("digits", _CPD, 60, 256, "8x32"),
    "gpt_nodes8": Sweep("gpt", _CPD, 200, 32, 8),
}
QUICK = {
    "digits": Sweep("digits", ("mxfp8", "smaq68"), 3, 16),
    "nodes8": Sweep("digits", ("cpd43", "cpd43+aps"), 3, 16, 8),
}


def run(name: str, sweep: Sweep, seeds: int, work: Path | None) -> emulate.Comparison:
    return emulate.compare(
        sweep.task,
        sweep.recipes,
        seeds=seeds,
        steps=sweep.steps,
        batch=sweep.batch,
        emulate_node=sweep.nodes,
        out=None if work is None else work / name,
    )


def document_of(found: emulate.Comparison) -> dict[str, Any]:
    """Rows, settings, and the losses of each training, without the curves."""
    runs = [
        {key: one.get(key) for key in ("recipe", "seed", "loss", "accuracy", "diverged")}
        for one in found.runs
    ]
    return {"settings": found.settings, "rows": found.rows, "runs": runs}


def draw(sweeps: dict[str, dict[str, Any]], file: str) -> None:
    """The differences to float32 with their intervals, by sweep."""
    names = list(sweeps)
    with _command.picture(file, 1, len(names), figsize=(4 * len(names), 5)) as (_, axes):
        for axis, name in zip(axes[0], names, strict=True):
            rows = [row for row in sweeps[name]["rows"] if row["recipe"] != "fp32"]
            shown = [row for row in rows if row["difference"] is not None]
            places = [rows.index(row) for row in shown]
            axis.errorbar(
                [row["difference"] for row in shown],
                places,
                xerr=[row["interval"] or 0.0 for row in shown],
                fmt="o",
            )
            labels = [
                row["recipe"] + (f", {row['diverged']} diverged" if row["diverged"] else "")
                for row in rows
            ]
            axis.set_yticks(range(len(rows)), labels)
            axis.invert_yaxis()
            axis.axvline(0, color="black", linewidth=0.8)
            axis.set_xscale("symlog", linthresh=0.01)
            axis.set_xlabel("validation loss against fp32")
            axis.set_title(name)
            axis.grid(alpha=0.25)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.emulated", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="two short sweeps")
    parser.add_argument("--seeds", type=at_least(1), metavar="N", help="5; 2 with --quick")
    parser.add_argument("--only", metavar="SWEEP,...", help=f"of {', '.join(SWEEPS)}")
    parser.add_argument(
        "--work", type=Path, default=_command.ROOT / "build" / "emulate_training", metavar="FOLDER"
    )
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    sweeps = QUICK if args.quick else SWEEPS
    chosen = list(sweeps) if args.only is None else args.only.split(",")
    for name in chosen:
        if name not in sweeps:
            parser.error(f"--only {name}; allowed: {', '.join(sweeps)}")
    seeds = args.seeds or (2 if args.quick else SEEDS)
    facts = _command.print_facts(seeds=seeds, threads=1)
    found = {}
    for name in chosen:
        result = run(name, sweeps[name], seeds, None if args.quick else args.work)
        print(f"\n{result.table()}", flush=True)
        found[name] = document_of(result)
    # JSON has no infinities and NaNs: a training that diverged has neither as its loss.
    document = {"benchmark": "emulate_training", "machine": facts, "sweeps": found}
    document = json.loads(json.dumps(document), parse_constant=lambda _: None)
    return _command.finish(args, document, lambda file: draw(found, file))


if __name__ == "__main__":
    sys.exit(main())
