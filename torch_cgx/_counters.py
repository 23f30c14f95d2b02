"""What `torch_cgx.stats` and `torch_cgx.tuning` return: dicts with attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch_cgx._renamed import warn_of_old

if TYPE_CHECKING:
    from typing_extensions import Self


class Record(dict[str, Any]):
    """A dict whose items are attributes, too: record.calls is record["calls"]."""

    OLD: ClassVar[dict[str, str]] = {}  # former keys: they work, with a DeprecationWarning

    def __getattr__(self, name: str) -> Any:
        try:
            return dict.__getitem__(self, name)
        except KeyError:
            where = type(self).__name__
            raise AttributeError(f"{where} has no {name!r}; it has {', '.join(self)}") from None

    def __missing__(self, key: str) -> Any:
        if key not in self.OLD:
            raise KeyError(key)
        warn_of_old(f"the key {key!r} of {type(self).__name__}", repr(self.OLD[key]))
        return self[self.OLD[key]]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __str__(self) -> str:
        """A line for each item, and for each of those in it. repr() is a dict's."""
        return "\n".join(_lines(self))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def copy(self) -> Self:
        return type(self)(self)

    # A dict's own do not ask __missing__: former keys would seem to be absent.
    def pop(self, key: str, *default: Any) -> Any:
        new = self.OLD.get(key, key)
        if new != key:
            warn_of_old(f"the key {key!r} of {type(self).__name__}", repr(new))
        return super().pop(new, *default)

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, self.OLD.get(key, key) if isinstance(key, str) else key)


def _lines(items: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in items.items():
        rows = value if isinstance(value, list) else [value]
        if not any(isinstance(row, Mapping) for row in rows):
            shown = f"{value:.6g}" if isinstance(value, float) else f"{value}"
            yield f"{indent}{key}: {shown}"
            continue
        for number, row in enumerate(rows):
            yield f"{indent}{key}" + (f" {number}:" if isinstance(value, list) else ":")
            yield from _lines(row, indent + "  ")


class Counters(Record):
    """Counters of one communicator of a group, on this rank.

    calls, compressed_calls: of the engine's collectives. numel: values of the callers' tensors.
    bytes_raw: of these tensors; bytes_sent, bytes_received: over all peers, headers included;
    bytes_sent_across: how many of bytes_sent leave this host. messages_sent: to all peers.
    staging_bytes: host memory that messages between hosts (or over any communicator except shared
    memory) hold now, not a counter. seconds_encode, seconds_transfer, seconds_decode: seconds.
    """

    OLD: ClassVar[dict[str, str]] = {"values": "numel"}

    calls: int
    compressed_calls: int
    numel: int
    bytes_raw: int
    bytes_sent: int
    bytes_sent_across: int
    bytes_received: int
    messages_sent: int
    staging_bytes: int
    seconds_encode: float
    seconds_transfer: float
    seconds_decode: float


class Stats(Counters):
    """The result of `stats`: the counters of a group since it was made or they were reset, on this
    rank. What an inner backend runs (docs/how_it_works.md) is not counted, nor are sends and
    receives.

    communicator: its name, as in "shm". cuda_communicator: that of CUDA tensors, None before their
    first call. communicators: the counters of each by name. sequence: calls of the engine since the
    group was made. In a group with the option `autotune`: tuned_exact, tuned_half, tuned_asked, the
    calls by the autotuner's decision; bytes_sent_tuning, seconds_tuning, the cost of measuring,
    which no other counter includes; 0 in other groups.
    """

    OLD: ClassVar[dict[str, str]] = {
        **Counters.OLD,
        "carrier": "communicator",
        "cuda_carrier": "cuda_communicator",
        "carriers": "communicators",
    }

    communicator: str
    cuda_communicator: str | None
    communicators: dict[str, Counters]
    sequence: int
    tuned_exact: int
    tuned_half: int
    tuned_asked: int
    bytes_sent_tuning: int
    seconds_tuning: float


class Tuning(Record):
    """The result of `tuning`: what a group's autotuner has measured and chosen. All numbers are the
    group's and, except for pending calls, equal on all ranks.

    classes: a dict for each class of the messages sent so far: "operation", "dtype", "bytes" (of
    the first one, exact), "codec", "measured" (seconds by "exact", "half", which is 16 bits, and
    "asked"), "choice" (the decision), "calls", and "renewals" of the decision.
    """

    classes: list[dict[str, Any]]


def stats_of(counters: Mapping[str, Any]) -> Stats:
    """Of the engine's."""
    whole = dict(counters)
    engines = whole.pop("engines")
    by_name = {name: Counters(**_renamed(one)) for name, one in engines.items()}
    return Stats(**_renamed(whole), communicators=by_name)


def _renamed(counters: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(counters)
    found["numel"] = found.pop("values")
    return found
