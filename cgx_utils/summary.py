"""One line on what a `CGXState` compresses, shown once, after its first step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from torch_cgx._warnings import say

if TYPE_CHECKING:
    from torch_cgx._C import Codec, ProcessGroupCGX


@dataclass(frozen=True)
class Decision:
    """The codec of the gradient of one parameter. codec: None for exact. why: the rule that
    keeps it exact, empty if it is compressed.
    """

    numel: int
    dtype: torch.dtype
    codec: Codec | None
    why: str = ""

    @property
    def bits(self) -> int:
        """Per value, the codec's metadata not included."""
        return 8 * self.dtype.itemsize if self.codec is None else self.codec.bits

    @property
    def codec_name(self) -> str:
        """As in "maxmin"; "exact"."""
        return "exact" if self.codec is None else self.codec.codec

    @property
    def raw_bytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def sent_bytes(self) -> int:
        """Bytes of one encoding, without headers."""
        if self.codec is None:
            return self.raw_bytes
        return self.codec.encoded_bytes(self.numel, self.dtype)


def log(line: str, backend: ProcessGroupCGX) -> None:
    """Writes a line to stderr on rank 0, unless the group's option `log` is off."""
    if backend.rank() == 0 and backend.settings()["log"] != "off":
        say(line)


class Summary:
    """Summary of all parameters that took part in a step."""

    def __init__(
        self,
        decisions: Iterable[Decision],
        communicator: str,
        *,
        ranks: int = 2,
        tuned: bool = False,
    ):
        """ranks: of the group. tuned: whether its tuner may send more bits than decided."""
        self._decisions = list(decisions)
        self._communicator = communicator
        self._ranks = ranks
        self.tuned = tuned

    @property
    def compresses(self) -> bool:
        return any(one.codec is not None for one in self._decisions)

    def __str__(self) -> str:
        """As in "compressing 26 of 54 parameters, 98.2 % of 1.84 M values, maxmin 4 bits; 7.5x
        fewer bytes; shm"; with a tuner "at most 7.5x fewer bytes, the tuner may send more
        bits"; of one rank "one rank sends nothing".
        """
        every = self._decisions
        values = sum(one.numel for one in every)
        if not self.compresses:
            return (
                f"nothing is compressed, all {len(every)} parameters ({_count(values)} values) are "
                f"exact: {_rules(one.why for one in every)}; {self._communicator}"
            )
        chosen = [one for one in every if one.codec is not None]
        share = 100 * sum(one.numel for one in chosen) / values
        raw = sum(one.raw_bytes for one in every)
        ratio = raw / sum(one.sent_bytes() for one in every)
        fewer = f"{ratio:.1f}x fewer bytes"
        if self.tuned:
            fewer = f"at most {fewer}, the tuner may send more bits"
        if self._ranks == 1:
            fewer = "one rank sends nothing"
        return (
            f"compressing {len(chosen)} of {len(every)} parameters, {share:.1f} % of "
            f"{_count(values)} values, {_codecs(chosen)}; {fewer}; {self._communicator}"
        )


def describe(codec: Codec) -> str:
    """As in "maxmin 4 bits"."""
    return f"{codec.codec} {codec.bits} bits"


def _codecs(decisions: list[Decision]) -> str:
    """By number of values; with the number of parameters where there are several."""
    values: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    for one in decisions:
        assert one.codec is not None
        name = describe(one.codec)
        values[name] += one.numel
        parameters[name] += 1
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{name} ({parameters[name]} of them)" for name, _ in values.most_common())


def _rules(reasons: Iterable[str]) -> str:
    counts = Counter(reasons).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{number} by {why}" for why, number in counts)


def _count(number: int) -> str:
    """As in 640, 18.4 k, 1.84 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
