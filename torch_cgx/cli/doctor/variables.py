"""Checks of environment variables, by the engine's own rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_cgx.cli.doctor.finding import NOTE, OK, PROBLEM, Finding

SECTION = "environment"


def check_variables(engine: Any, env: Mapping[str, str]) -> list[Finding]:
    """A finding for each `CGX_*` variable that is set; the engine reads the process's own."""
    from torch_cgx import _environment

    findings = []
    for row in engine.settings():
        if env.get(row["variable"]):
            findings.append(_of_setting(engine, row, env[row["variable"]]))
    for row in engine.process_variables():
        if env.get(row["variable"]):
            try:
                engine.process_variable(row["name"])
            except ValueError as error:
                findings.append(_bad(row["variable"], error))
            else:
                findings.append(Finding(SECTION, row["variable"], OK, env[row["variable"]]))
    for text in _environment.complaints(env):
        name = text.split("variable ")[1].split(" ")[0]
        found, _, mend = text.removeprefix("cgx: ").partition("; ")
        findings.append(Finding(SECTION, name, PROBLEM, found, mend))
    if not any(one.status == PROBLEM for one in findings):
        findings += _together(engine)
    if not findings:
        findings.append(Finding(SECTION, "CGX_*", OK, "none is set"))
    return findings


def _of_setting(engine: Any, row: dict[str, Any], text: str) -> Finding:
    name = row["variable"]
    try:
        value = engine.setting_from_environment(row["name"])
    except ValueError as error:
        return _bad(name, error)
    if row["name"] == "bits" and engine.is_exact(value) and value != engine.EXACT_BITS:
        mend = f"1 to {engine.MAX_BITS} and {engine.HALF_BITS} compress"
        return Finding(SECTION, name, NOTE, f"{text}: means exact, nothing is compressed", mend)
    return Finding(SECTION, name, OK, text)


def _bad(name: str, error: ValueError) -> Finding:
    # "CGX_X='y' is not allowed; x takes integers from 1 to 32"
    found, _, allowed = str(error).partition("; ")
    mend = f"set it as allowed ({allowed}), or unset it" if allowed else "unset it"
    return Finding(SECTION, name, PROBLEM, found, mend)


def _together(engine: Any) -> list[Finding]:
    """Values that are right one by one, but not together."""
    try:
        engine.settings_in_force(None)
        engine.choose_codec(_values(engine))
    except ValueError as error:
        return [Finding(SECTION, "CGX_*", PROBLEM, str(error), "unset one of them")]
    return []


def _values(engine: Any) -> dict[str, Any]:
    from torch_cgx import _config

    return _config.defaults()
