"""`cgx formats`: the formats of numbers that torch_cgx.emulate has by name, and their errors."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import table as aligned

EXAMPLES = """\
examples:
  cgx formats list
  cgx formats plot e4m3fn mxfp4 smaq
  cgx formats plot e5m2 e4m3fn e2m1 -o floats.svg"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    about = "list the formats: bits, range, what NaN and infinities become, where each is used"
    listed = actions.add_parser("list", help=about, description=f"{about[0].upper()}{about[1:]}.")
    listed.add_argument("--json", action="store_true", help="write JSON")
    about = "draw the relative errors of formats over the magnitude of values"
    drawn = actions.add_parser("plot", help=about, description=f"{about[0].upper()}{about[1:]}.")
    drawn.add_argument("names", nargs="+", metavar="NAME", help="as `cgx formats list` shows them")
    drawn.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("formats.png"),
        metavar="FILE",
        help="the picture, in the format of its suffix (default: formats.png; needs matplotlib)",
    )


def run(args: argparse.Namespace) -> int:
    return _plot(args.names, args.out) if args.action == "plot" else _list(args.json)


def _list(as_json: bool) -> int:
    found = rows()
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    titles = ["name", "bits", "range", "step at 1", "NaN and Inf", "where used"]
    lines = [
        [
            row["name"],
            f"{row['bits']:.4g}",
            range_of(row),
            "" if row["step"] is None else f"{row['step']:.3g}",
            nonfinite_of(row),
            row["used"],
        ]
        for row in found
    ]
    print(aligned(titles, lines, left=(0, 2, 4, 5)))
    print("\nx s: over the scale that values share; docs/formats.md has the rules.")
    return 0


def rows() -> list[dict[str, Any]]:
    """What each named format is, by the fields of `Description`, with its name and use."""
    from torch_cgx import emulate
    from torch_cgx.emulate._describe import describe
    from torch_cgx.emulate._presets import used

    return [
        {"name": name, **dataclasses.asdict(describe(emulate.preset(name))), "used": used(name)}
        for name in emulate.presets()
    ]


def range_of(row: dict[str, Any]) -> str:
    if row["least"] is None or row["largest"] is None:
        return ""
    scale = " x s" if row["scaled"] else ""
    return f"{row['least']:.4g} to {row['largest']:.6g}{scale}"


def nonfinite_of(row: dict[str, Any]) -> str:
    nan, infinite = row["nan"], row["infinite"]
    if nan == infinite:
        return f"both {nan}"
    return f"{nan}, {infinite}" if (nan, infinite) == ("NaN", "Inf") else f"{nan}, Inf {infinite}"


def _plot(names: list[str], path: Path) -> int:
    from torch_cgx import emulate
    from torch_cgx.emulate._picture import plot

    try:
        plot(path, {name: emulate.preset(name) for name in names})
    except ImportError:
        raise CliError(f"-o {path} needs matplotlib: pip install matplotlib") from None
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or error}") from None
    except ValueError as error:  # an unknown name, or no format of pictures
        raise CliError(str(error)) from None
    print(f"wrote {path}")
    return 0
