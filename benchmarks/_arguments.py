"""Arguments that several benchmarks have."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

BITS = [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


def parse_size(text: str) -> int:
    """ "64K", "64KiB", "65536" -> 65536. ArgumentTypeError unless a positive multiple of 4."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:I?B)?", text.strip().upper())
    nbytes = int(match[1]) << _UNITS[match[2]] if match else 0
    if nbytes < 4 or nbytes % 4:
        raise argparse.ArgumentTypeError(
            f"size {text!r}; allowed: positive multiples of 4 bytes, as 4, 64K, 16MiB"
        )
    return nbytes


def at_least(minimum: int) -> Callable[[str], int]:
    """The type of an argument: integers from `minimum`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed: integers from {minimum}")
        return value

    return parse


def add_reduction_arguments(parser: argparse.ArgumentParser, sizes: str) -> None:
    """What every measurement of all-reduces has; `sizes`: examples, for the help."""
    parser.add_argument(
        "--sizes", nargs="+", type=parse_size, metavar="SIZE", help=f"bytes of fp32: {sizes}"
    )
    parser.add_argument("--bits", nargs="+", type=int, choices=BITS, default=[32, 8, 4, 2])
    parser.add_argument("--bucket-size", type=at_least(1), default=512, metavar="N")
    parser.add_argument("--repeats", type=at_least(1), metavar="N", help="15; 5 with --quick")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write rows and facts of the machine")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture (needs matplotlib)")


def _settings(text: str) -> dict[str, Any]:
    """ "a=1,b=x" -> {"a": 1, "b": "x"}: options of a cgx group."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise argparse.ArgumentTypeError(
                f"{text!r}; allowed: options of torch_cgx.Options as NAME=VALUE,NAME=VALUE"
            )
        found[name] = int(value) if value.lstrip("-").isdigit() else value
    return found


def add_settings_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """`--with`, for settings that are to be compared; `what` is measured with them."""
    parser.add_argument(
        "--with",
        dest="settings",
        action="append",
        type=_settings,
        default=[],
        metavar="NAME=VALUE,...",
        help=f"{what}, with these torch_cgx.Options; may be given several times",
    )
