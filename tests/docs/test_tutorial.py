"""docs/tutorial.md: its script runs before and after the change, and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from tests.distributed import run_ranks
from tests.docs.documents import ROOT, code_blocks

TEXT = (ROOT / "docs" / "tutorial.md").read_text()
PERCENT = re.compile(r"^([\d.]+) % of")


def shown(name: str) -> list[str]:
    """The lines that the page shows behind `<!-- shown: name -->`."""
    (block,) = re.findall(rf"<!-- shown: {name} -->\n\n((?:    .*\n)+)", TEXT)
    return [line[4:] for line in block.splitlines()]


def script() -> str:
    (block,) = code_blocks(TEXT, "tutorial script")
    return block


def changed(source: str) -> str:
    """The script after the page's change."""
    (block,) = re.findall(r"<!-- run: tutorial change -->\n```diff\n(.*?)```", TEXT, re.DOTALL)
    for hunk in block.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert source.count(before) == 1, hunk
        source = source.replace(before, after)
    return source


def _run(rank, world_size, source):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(out):
            exec(compile(source, "train.py", "exec"), {"__name__": "__main__"})
    return out.getvalue().splitlines()


def same(line: str, expected: str) -> bool:
    """Equal but for accuracies and errors, which differ a little between CPUs."""
    for mine, theirs in zip(line.split(), expected.split(), strict=True):
        if re.fullmatch(r"0\.\d+", theirs):
            if abs(float(mine) - float(theirs)) > 0.2 * float(theirs):
                return False
        elif mine != theirs:
            return False
    return True


# In new processes, whose groups come from the environment.
@pytest.mark.parametrize("name", ["gloo", "cgx"])
def test_script_prints_what_the_page_shows(name):
    source = script() if name == "gloo" else changed(script())
    first, second = run_ranks(_run, 2, source, backend=None, timeout=120)
    assert second == []
    expected = shown(name)
    (said,) = (float(match[1]) for match in map(PERCENT.match, first) if match)
    (claimed,) = (float(match[1]) for match in map(PERCENT.match, expected) if match)
    assert abs(said - claimed) < 1.5
    assert len(first) == len(expected)
    for line, other in zip(first, expected, strict=True):
        assert same(PERCENT.sub("", line), PERCENT.sub("", other)), f"{line!r}, not {other!r}"


def test_errors_are_those_that_the_page_shows(capsys):
    (block,) = code_blocks(TEXT, "tutorial bits")
    exec(compile(block, "tutorial.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == shown("bits")


def test_indented_calls_are_valid():
    from cgx_utils import CGXState

    calls = re.findall(r"^    (CGXState\(.*\))$", TEXT, re.MULTILINE)
    two, one = (eval(call, {"CGXState": CGXState}) for call in calls)
    assert two.config == {"codec": "rotated", "bits": 2}
    assert "error_feedback=fp32" in repr(one)


def test_commands_exist():
    """Those of `cgx` and of make that the page names."""
    from torch_cgx.cli.main import COMMANDS

    named = set(re.findall(r"`cgx (\w+)`", TEXT))
    assert named == {"doctor", "bench", "advise"} and named <= set(COMMANDS)
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
