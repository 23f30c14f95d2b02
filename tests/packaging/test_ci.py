"""`.ci/run`: each run of the stress program has a seed of its own, which the summary names, and so
are parts of `make release-check` that need not run.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tools import release_check as check

ROOT = Path(__file__).resolve().parents[2]
# What it runs or installs otherwise.
COMMANDS = (
    *("apt-get", "ip", "tc", "clang++", "aarch64-linux-gnu-g++", "qemu-aarch64-static"),
    *("nvcc", "hipcc"),
)


def summary(folder: Path, **variables: str) -> tuple[str, str]:
    """The seed in the summary, and the one that make was given."""
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    for name in COMMANDS:
        (folder / name).write_text("#!/bin/sh\n")
    (folder / "make").write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    for command in folder.iterdir():
        command.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if k != "STRESS_SEED"}
    path = f"{folder}:{environment['PATH']}"
    done = subprocess.run(
        [ROOT / ".ci" / "run"],
        env={**environment, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (said,) = re.findall(r"^make stress STRESS_SEED=(\d+): passed", done.stdout, re.M)
    (given,) = re.findall(r"^stress .*STRESS_SEED=(\d+)$", calls.read_text(), re.M)
    wanted = {*check.PARTS}
    asked = {line.split()[0] for line in calls.read_text().splitlines()} & wanted
    not_run = re.findall(r"^make ([\w-]+): NOT RUN, nothing that it depends on", done.stdout, re.M)
    assert asked.isdisjoint(not_run) and asked | {*not_run} == wanted
    return said, given


def test_stress_has_a_seed_that_the_summary_names(tmp_path: Path) -> None:
    seen = {summary(tmp_path) for _ in range(2)}
    assert len(seen) == 2 and all(said == given for said, given in seen)
    assert summary(tmp_path, STRESS_SEED="17") == ("17", "17")
