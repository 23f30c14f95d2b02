"""What a check of `cgx doctor` finds."""

from __future__ import annotations

import dataclasses
from typing import Any

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of `cgx doctor`.

    section: the heading above it. name: what was looked at. status: OK; NOTE, something that is
    absent and was not asked for; PROBLEM, something that was set or is needed and cannot work.
    found: what is there. mend: what to type or set, empty for OK.
    """

    section: str
    name: str
    status: str
    found: str
    mend: str = ""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
