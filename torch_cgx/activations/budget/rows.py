"""The lines of a plan's table."""

from __future__ import annotations

from typing import Any

from torch_cgx.activations.budget.plan import Settings
from torch_cgx.activations.budget.solve import Choice
from torch_cgx.activations.budget.survey import inside
from torch_cgx.activations.report.report import Report

_WORDS = {
    "norm": "output of norm",
    "dropout": "mask drawn again",
    "gate": "inputs of gate",
}


def rows_of_table(exact: Report, base: Settings, choice: Choice) -> list[dict[str, Any]]:
    """A row for each option, for measures whose modules have none, and for what is left. exact:
    without a plan, whose bytes the rows divide among them.
    """
    before = dict(exact.by_module)
    found = []
    for one in choice.options:
        again = any("checkpoint" in settings for settings in one.settings.values())
        whole = [name for name in one.names if again or "gate" in base.get(name, ())]
        mine = [
            name
            for name in before
            if name in one.names or any(inside(name, other) for other in whole)
        ]
        more = [_WORDS[key] for name in one.names for key in base.get(name, ())]
        found.append(
            {
                "modules": list(one.names),
                "what": ", ".join([*dict.fromkeys(more), one.what]),
                "exact": sum(before.pop(name) for name in mine),
                "bytes": one.nbytes,
                "error": one.error**0.5,
            }
        )
    for key, words in _WORDS.items():
        names = [name for name, one in base.items() if key in one and name in before]
        if names:
            size = sum(before.pop(name) for name in names)
            row = {"modules": names, "what": words, "exact": size, "bytes": 0, "error": 0.0}
            found.append(row)
    if before:
        size = sum(before.values())
        row = {"modules": list(before), "what": "as it is", "exact": size, "bytes": size}
        found.append({**row, "error": 0.0})
    return found
