"""What the benchmarks between hosts share: whether there can be hosts here, and their links."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks import _machine
from tests.hosts.bed import hosts_available
from tests.hosts.network import MTU, congestion_control, parse_rate


def missing_hosts() -> bool:
    """True, and said on stderr, where no hosts can be made. That is no error of a benchmark: `make
    bench` runs everything that can be run.
    """
    missing = hosts_available()
    if missing:
        print(f"nothing measured: {missing}", file=sys.stderr)
    return bool(missing)


def rate(text: str) -> str | None:
    """A rate of links, or "none": as fast as this machine can."""
    if text == "none":
        return None
    try:
        parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, or none") from None
    return text


def link_facts(**more: Any) -> dict[str, Any]:
    """Facts of the machine, of its links and of this measurement; printed too."""
    facts = _machine.facts() | {"threads": 1, **more}
    facts |= {"mtu": MTU, "congestion_control": congestion_control() or "the kernel's default"}
    print(_machine.line(facts), flush=True)
    return facts
