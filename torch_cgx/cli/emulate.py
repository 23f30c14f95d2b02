"""`cgx emulate`: trains a model with several recipes of low precision, and compares them."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torch_cgx.cli.arguments import at_least
from torch_cgx.cli.errors import CliError

if TYPE_CHECKING:
    from torch_cgx.emulate.comparison import Comparison

EXAMPLES = """\
examples:
  cgx emulate compare --model digits --recipes bf16,mxfp8,mxfp4,nvfp4,smaq68
  cgx emulate compare --model gpt --recipes nvfp4,nvfp4-hadamard,nvfp4-first_last --seeds 5
  cgx emulate compare --model digits --recipes cpd43,cpd43+aps,cpd30,cpd30+aps --emulate-node 8
  cgx emulate compare --model gpt --data ~/texts --recipes mxfp4 --out texts
  cgx emulate compare --model train:make_task --recipes fp8_current,mxfp6

MODULE:FACTORY names a function that returns a torch_cgx.emulate.Task; one with an argument `data`
gets the folder of --data. fp32 is always trained, for comparison. nvfp4-PART is a recipe without a
part: hadamard, stochastic, blocks2d, first_last. cpdEM+aps and cpdEM+kahan sum gradients with APS,
and with Kahan's summation. What is finished is kept in --out: the same command goes on from there.
"""
_RECIPES = "bf16,fp8_current,mxfp8,mxfp4,nvfp4,smaq68,smaq57,smaq46"
_RECIPES += ",cpd43,cpd43+aps,cpd30,cpd30+aps"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    about = "train a model with each recipe and each seed, and compare the losses"
    _add_compare(
        actions.add_parser(
            "compare",
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="gpt (text), digits (images; needs scikit-learn), or MODULE:FACTORY (see below)",
    )
    parser.add_argument(
        "--recipes",
        type=_names,
        default=_names(_RECIPES),
        metavar="RECIPE,...",
        help=f"as emulate.recipes() has them (default: {_RECIPES})",
    )
    parser.add_argument(
        "--seeds", type=at_least(1), default=5, metavar="N", help="trainings of each (default: 5)"
    )
    parser.add_argument("--steps", type=at_least(1), metavar="N", help="of a training")
    parser.add_argument("--batch", type=at_least(1), metavar="N", help="samples of a step")
    parser.add_argument(
        "--emulate-node",
        type=_nodes,
        default=1,
        metavar="K",
        help="micro-batches of a step, whose gradients are summed as those of K nodes; NxK: of N "
        "nodes that each sum K first (default: 1)",
    )
    parser.add_argument(
        "--ranks",
        type=at_least(1),
        default=1,
        metavar="N",
        help="processes of this host that train together over cgx (default: 1)",
    )
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="data: text files for gpt, or of a factory"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="for runs.jsonl, table.csv, table.json, curves.png (default: emulate-MODEL)",
    )
    parser.add_argument(
        "--threads",
        type=at_least(1),
        default=1,
        metavar="N",
        help="of each process; results depend on it (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="write JSON in place of the table")


def _nodes(text: str) -> int | str:
    if re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        return text
    try:
        return at_least(1)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r}; allowed: integers from 1, or as 8x32"
        ) from None


def _names(text: str) -> list[str]:
    """Names with commas between; those in brackets are of a name, as in cpd(4,3)."""
    return [word.strip() for word in re.split(r",(?![^(]*\))", text)]


def run(args: argparse.Namespace) -> int:
    from torch_cgx.emulate.comparison import RunError, compare

    out = args.out or Path(f"emulate-{args.model.replace(':', '.')}")
    try:
        found = compare(
            args.model,
            args.recipes,
            seeds=args.seeds,
            steps=args.steps,
            batch=args.batch,
            ranks=args.ranks,
            emulate_node=args.emulate_node,
            data=args.data,
            out=out,
            threads=args.threads,
        )
    except KeyboardInterrupt:
        raise CliError(
            f"interrupted; finished trainings are in {out}, and the same command goes on", 130
        ) from None
    except OSError as error:
        raise CliError(f"--out {out}: {error.strerror or error}") from None
    except (ValueError, TypeError, ImportError, RunError) as error:
        raise CliError(" ".join(str(error).split())) from None
    _write(found, out)
    print(found.to_json() if args.json else found.table())
    return 0


def _write(found: Comparison, out: Path) -> None:
    """The files beside the results; a missing matplotlib costs the picture alone."""
    try:
        found.to_csv(out / "table.csv")
        (out / "table.json").write_text(found.to_json() + "\n")
        try:
            found.plot(out / "curves.png")
        except ImportError as error:
            print(f"cgx emulate: no curves.png: {error}", file=sys.stderr)
    except OSError as error:
        raise CliError(f"cannot write to {out}: {error.strerror or error}") from None
