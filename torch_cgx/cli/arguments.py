"""Arguments that several commands have, and their types."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from torch_cgx._warnings import say

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_RATES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}


def size(text: str) -> int:
    """Bytes of "64K", "64KiB" or "65536"; ArgumentTypeError unless a positive multiple of 4."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:I?B)?", text.strip().upper())
    nbytes = int(match[1]) << _UNITS[match[2]] if match else 0
    if nbytes < 4 or nbytes % 4:
        raise argparse.ArgumentTypeError(
            f"size {text!r}; allowed: positive multiples of 4 bytes, as 4, 64K, 16MiB"
        )
    return nbytes


def rate(text: str) -> float:
    """Bits per second of "1gbit" or "200Mbit/s"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)BIT(?:/S|PS)?", text.strip().upper())
    found = float(match[1]) * _RATES[match[2]] if match else 0.0
    if found <= 0:
        raise argparse.ArgumentTypeError(
            f"rate {text!r}; allowed: bits per second, as 100mbit, 1gbit, 2.5gbit"
        )
    return found


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


def listed(parse: Callable[[str], object]) -> Callable[[str], list[object]]:
    """The type of an argument: several values with commas between."""

    def parse_all(text: str) -> list[object]:
        return [parse(word) for word in text.split(",")]

    return parse_all


def add_min_size(parser: argparse.ArgumentParser) -> None:
    """--min-size, and --layer-min-size, its old name."""
    parser.add_argument(
        "--min-size",
        type=at_least(0),
        default=1024,
        metavar="N",
        help="layers of fewer values stay exact (default: 1024)",
    )
    parser.add_argument(
        "--layer-min-size",
        dest="min_size",
        type=at_least(0),
        action=_Old,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


class _Old(argparse.Action):
    """An option by its old name."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        say(f"{option} is deprecated; the new name is --{self.dest.replace('_', '-')}")
        setattr(namespace, self.dest, values)


def add_codec(parser: argparse.ArgumentParser) -> None:
    """--codec: names with commas between, each once."""
    parser.add_argument(
        "--codec",
        type=lambda text: list(dict.fromkeys(word.strip() for word in text.split(","))),
        default=["maxmin"],
        metavar="CODEC,...",
        help="maxmin, rotated, trellis (default: maxmin)",
    )
