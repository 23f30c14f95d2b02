"""The shape of errors of collectives: csrc/reduce/plan/call_text.h."""

from __future__ import annotations

import re

_CALL = (
    r"cgx: (?P<call>[a-z_]+) number (?P<number>\d+) of group '(?P<group>[^']+)', "
    r"rank (?P<rank>\d+) of (?P<size>\d+)"
)
_WAIT = r"(?: \([a-z+]+, \d+\.\d\d s\))?"
_BEFORE = r"(?:after a failure in [a-z_]+ number \d+: )?"
_SIDE = re.compile(r"  rank (\d+) runs \S.*")
LONGEST = 400


def head_of(text: str) -> dict[str, str]:
    """Call, number, group, rank and size that the first line names."""
    found = re.match(_CALL + _WAIT + ": ", text)
    assert found is not None, text
    return found.groupdict()


def check_disagreement(text: str, rank: int, world_size: int, hashes: bool = False) -> None:
    """A line that names the call, and one for each of two ranks; said once, and shortly."""
    first, *sides = text.split("\n")
    found = re.fullmatch(_CALL + ": " + _BEFORE + r"ranks disagree on the [\w, ]+:", first)
    assert found is not None, text
    assert (int(found["rank"]), int(found["size"])) == (rank, world_size), text
    assert len(sides) == 2, text
    ranks = [_SIDE.fullmatch(side)[1] for side in sides]  # type: ignore[index]
    assert ranks[0] != ranks[1], text
    assert len(text) <= LONGEST, text
    assert text.count("disagree") == 1, text
    assert (len(re.findall(r", plan [0-9a-f]+$", text, re.MULTILINE)) == 2) == hashes, text
    assert hashes or not re.search(r"\b[0-9a-f]{8,}\b", text), text
