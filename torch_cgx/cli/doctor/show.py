"""The text and the JSON of `cgx doctor`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence

from torch_cgx.cli.doctor.finding import NOTE, OK, PROBLEM, Finding

_MARKS = {OK: "ok", NOTE: "note", PROBLEM: "PROBLEM"}
_WIDTH = 100


def text_of(findings: Sequence[Finding]) -> str:
    """Findings under their headings, what to do below each, and a line of totals."""
    lines: list[str] = []
    name_width = max(len(one.name) for one in findings)
    mark_width = max(len(mark) for mark in _MARKS.values())
    for section in dict.fromkeys(one.section for one in findings):
        lines.append(section)
        for one in findings:
            if one.section == section:
                lines += _lines(one, name_width, mark_width)
    problems = [one for one in findings if one.status == PROBLEM]
    if problems:
        lines.append(f"{_count(len(problems), 'problem')}: {_names(problems)}")
    else:
        lines.append("no problems: what is set here can work")
    return "\n".join(lines)


def _lines(one: Finding, name_width: int, mark_width: int) -> list[str]:
    begin = f"  {_MARKS[one.status]:<{mark_width}}  {one.name:<{name_width}}  "
    indent = " " * len(begin)
    lines = textwrap.wrap(
        one.found, _WIDTH, initial_indent=begin, subsequent_indent=indent, break_long_words=False
    ) or [begin.rstrip()]
    if one.mend:
        lines += textwrap.wrap(
            f"-> {one.mend}",
            _WIDTH,
            initial_indent=indent,
            subsequent_indent=f"{indent}   ",
            break_long_words=False,
        )
    return lines


def json_of(findings: Iterable[Finding]) -> str:
    """{"ok": bool, "findings": [{section, name, status, found, mend}]}"""
    listed = list(findings)
    ok = not any(one.status == PROBLEM for one in listed)
    return json.dumps({"ok": ok, "findings": [one.to_json() for one in listed]}, indent=2)


def _names(findings: Iterable[Finding]) -> str:
    return ", ".join(dict.fromkeys(one.name for one in findings))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
