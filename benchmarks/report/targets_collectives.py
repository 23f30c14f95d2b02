"""The targets of every collective; the worst row is named."""

from __future__ import annotations

from benchmarks.report.collectives import (
    COMPRESSED,
    LONG,
    MIDDLE,
    MOVED,
    OBJECTS,
    SHARED,
    SHORT,
    Rows,
    Select,
    named,
    sized,
)
from benchmarks.report.target import Target

_EAGER = ("barrier", "all_reduce MAX")
_ALL = (0, 1 << 62)


def _slowest(
    what: str, part: str, select: Select, asked: float, against: str = "gloo", key: str = "ratio"
) -> Target:
    rows = Rows(part, select, key)
    unit = "x" if key == "ratio" else ""
    return Target(what, against, asked, rows.lowest, unit=unit, name=rows.name)


def _median(select: Select, asked: float) -> Target:
    figure = Rows("hosts", select).median
    return Target("the same, median", "gloo", asked, figure, unit="x")


def targets() -> list[Target]:
    one, between = "one host, 2 and 4 ranks,", "between hosts, 1 and 10 Gbit/s,"
    moves = (*SHARED, *MOVED)
    return [
        _slowest(f"{one} every collective to 4 KiB, slowest", "host", sized(SHORT), 8),
        _slowest("the same, 64 KiB to 1 MiB", "host", sized(MIDDLE), 3),
        _slowest(
            f"{one} all_gather, reduce_scatter, gather, 16 and 64 MiB, slowest",
            "host",
            sized(LONG, SHARED),
            4,
        ),
        _slowest(
            f"{one} broadcast, all_to_all, scatter, sends, 16 and 64 MiB, slowest",
            "host",
            sized(LONG, MOVED),
            1.5,
        ),
        _slowest(
            "the same, bytes per second",
            "copy",
            # Both ways at once, each rank copies the tensor twice: half of the speed at best.
            lambda row: row["operation"] != "isend and irecv",
            0.5,
            "a copy by all ranks at once",
            "of_copy",
        ),
        _slowest(f"{one} collectives of objects, slowest", "host", sized(_ALL, OBJECTS), 1),
        _slowest(f"{between} every collective to 4 KiB, slowest", "hosts", sized(SHORT), 1),
        _median(sized(SHORT), 1),
        _slowest(f"{between} barrier, all_reduce MAX to 4 KiB", "hosts", sized(SHORT, _EAGER), 1.3),
        _slowest(f"{between} every collective, 64 KiB to 1 MiB", "hosts", sized(MIDDLE), 1),
        _median(sized(MIDDLE), 1),
        _slowest(
            f"{between} all but reduce and all_reduce, 16 and 64 MiB",
            "hosts",
            sized(LONG, moves),
            0.97,
        ),
        _median(sized(LONG, moves), 0.97),
        _slowest("FSDP2 exact, step, one host", "fsdp", named("FSDP2 step", False), 1.3),
        _slowest("the same, 2 hosts at 1 and 10 Gbit/s", "fsdp", named("FSDP2 step", True), 1),
        _slowest(
            "all_to_all_single at 4 bits, 16 MiB, 1 Gbit/s, slowest",
            "hosts",
            lambda row: row["operation"] == COMPRESSED and row["rate"] == "1gbit",
            6,
            "gloo, exact",
        ),
        _slowest(f"{one} creation of a group", "creation", named("creation", False), 1),
        _slowest("the same, 2 and 4 hosts", "creation", named("creation", True), 1),
    ]
