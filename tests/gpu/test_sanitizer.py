"""compute-sanitizer on a program that runs every kernel: no access out of bounds, no race in shared
memory, no barrier that some threads miss.
"""

from __future__ import annotations

import re
import sys

import pytest

from tests.gpu import ranks, sanitizer

pytestmark = ranks.real
PROGRAM = [sys.executable, "-m", "tests.gpu.all_kernels"]


def test_the_program_runs_by_itself():
    code, said = sanitizer.run(PROGRAM)
    assert code == 0, said[-4000:]


@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_nothing_is_reported(tool):
    found = sanitizer.find()
    if found is None:
        pytest.skip("compute-sanitizer is not installed (it comes with the CUDA toolkit)")
    code, said = sanitizer.run([*sanitizer.command(found, tool), *PROGRAM])
    if "Device not supported" in said:
        pytest.skip("compute-sanitizer does not support this device, or its virtual machine")
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", said)
    assert code == 0, said[-6000:]
    assert set(summaries) == {"0"}, said[-6000:]  # some, and no other
