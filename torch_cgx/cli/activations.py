"""`cgx activations table`: the few values that stand for an activation's derivative in backward."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import table as aligned

if TYPE_CHECKING:
    import numpy as np

    from torch_cgx.activations.tables.objective import OfTensor
    from torch_cgx.activations.tables.table import Table

EXAMPLES = """\
examples:
  cgx activations table gelu --bits 3 --plot gelu.png
  cgx activations table silu --bits 4 --weight normal --save tables.npz
  cgx activations table torch.nn.functional:softsign --domain -5 5 --parity

NAME is a function that has shipped tables (celu, elu, gelu, gelu_tanh, hardswish, logsigmoid, mish,
selu, sigmoid, silu, softplus, softsign, tanh, tanhshrink), or MODULE:FUNCTION, which names a
function of one tensor that autograd differentiates. The table is the one with the least integral of
weight(x) (derivative(x) - level(x))^2 over the domain."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_table(
        actions.add_parser(
            "table",
            help="fit the table of a function, and show it",
            description="Fit the table of a function, and show it.",
            epilog=EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the function, as gelu or mine:activation")
    parser.add_argument(
        "--bits", type=int, choices=range(1, 5), default=3, help="bits of a value (default: 3)"
    )
    parser.add_argument(
        "--weight",
        default="uniform",
        metavar="WEIGHT",
        help="uniform, normal (mean 0, deviation 1), or a .npy file of inputs (default: uniform)",
    )
    parser.add_argument(
        "--domain",
        nargs=2,
        type=float,
        default=(-10.0, 10.0),
        metavar=("LOW", "HIGH"),
        help="where the integral is taken (default: -10 10)",
    )
    parser.add_argument(
        "--parity",
        action=argparse.BooleanOptionalAction,
        help="fit on |x|, for an even derivative (default: for functions with shipped tables that "
        "have one)",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw table and derivative (needs matplotlib)"
    )
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="add the table to an .npz file, as FewBit's"
    )
    parser.add_argument("--json", action="store_true", help="write JSON")


def run(args: argparse.Namespace) -> int:
    from torch_cgx.activations.tables.catalog import CATALOG
    from torch_cgx.activations.tables.table import Table

    function, name = _function(args.name)
    weight = _weight(args.weight)
    parity = args.parity
    if parity is None:
        parity = isinstance(function, str) and CATALOG[function].parity
    domain = tuple(args.domain)
    try:
        found = Table.fit(
            function, args.bits, weight=weight, domain=domain, parity=parity, name=name
        )
        error = found.error(function, weight=weight, domain=domain)
    except Exception as problem:  # of the user's function, too
        kind = "" if isinstance(problem, ValueError) else f"{type(problem).__name__}: "
        raise CliError(f"{args.name}: {kind}{' '.join(str(problem).split())}") from None
    if args.plot:
        _plot(args.plot, found, function, domain)
    if args.save:
        _write(args.save, lambda: found.save(args.save))
    shown = {
        "name": found.name,
        "bits": found.bits,
        "parity": found.parity,
        "weight": args.weight,
        "domain": list(domain),
        "borders": list(found.borders),
        "levels": list(found.levels),
        "error": error,
        "bytes_per_value": found.bits / 8,
    }
    print(json.dumps(shown, indent=2) if args.json else text_of(found, shown))
    return 0


def text_of(found: Table, shown: dict[str, Any]) -> str:
    """The pieces, a line each, and what the table costs."""
    of = "|x|" if found.parity else "x"
    ends = ["0" if found.parity else "-inf", *(f"{border:.7g}" for border in found.borders), "inf"]
    rows = [
        [str(code), low, high, f"{level:.7g}"]
        for code, (low, high, level) in enumerate(zip(ends, ends[1:], found.levels, strict=False))
    ]
    low, high = shown["domain"]
    weight = shown["weight"]
    unit = "squared error, integrated" if weight == "uniform" else "mean squared error"
    return "\n".join(
        [
            aligned(["code", f"{of} above", "up to", "level"], rows, left=()),
            "",
            f"{unit} over [{low:g}, {high:g}], weight {weight}: {shown['error']:.5g}",
            f"kept for backward: {shown['bytes_per_value']:g} bytes per value",
        ]
    )


def _function(name: str) -> tuple[str | OfTensor, str]:
    """What to fit, and the name of the table."""
    from torch_cgx.activations.tables.catalog import CATALOG

    module, colon, attribute = name.partition(":")
    if not colon:
        if name not in CATALOG:
            raise CliError(
                f"function {name!r}; allowed: {', '.join(CATALOG)}, or MODULE:FUNCTION, as in "
                "torch.nn.functional:gelu"
            )
        return name, name
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute), attribute
    except Exception as error:  # of the user's code
        line = (str(error).splitlines() or [""])[0]
        raise CliError(f"{name}: {type(error).__name__}: {line}") from None


def _weight(text: str) -> str | np.ndarray:
    if text in ("uniform", "normal"):
        return text
    if not text.endswith(".npy"):
        raise CliError(f"--weight {text}; allowed: uniform, normal, a .npy file of inputs")
    import numpy as np

    try:
        return np.asarray(np.load(text, allow_pickle=False), np.float64)
    except OSError as error:
        raise CliError(f"cannot read {text}: {error.strerror or error}") from None
    except (ValueError, TypeError, EOFError):
        raise CliError(f"{text}: not an array of numbers in NumPy's format") from None


def _plot(path: Path, found: Table, function: str | OfTensor, domain: tuple[float, ...]) -> None:
    from torch_cgx.activations.tables.plot import plot

    # Outside of (-5, 5) the usual functions are straight.
    low, high = max(domain[0], -5.0), min(domain[1], 5.0)
    shown = (low, high) if low < high else domain
    try:
        _write(path, lambda: plot(path, found, function, domain=shown))
    except ImportError:
        raise CliError(f"--plot {path} needs matplotlib: pip install matplotlib") from None


def _write(path: Path, write: Any) -> None:
    try:
        write()
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or error}") from None
    except ValueError as error:  # as of a format of pictures, or a file that has other arrays
        raise CliError(str(error)) from None
