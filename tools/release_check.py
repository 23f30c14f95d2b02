"""What only a release needs: checks that take minutes, of files that seldom change.

    python3 tools/release_check.py run [PART ...] # these parts, or all (make release-check)
    python3 tools/release_check.py changed PART   # status 0: what PART depends on has changed

`changed` compares with the commit that STAMP names for PART, uncommitted changes included, and says
on standard output why a part need not run. `run` writes the commit into STAMP for the parts that
have passed, if the tree is as it was committed; other parts keep theirs. Both need neither .venv
nor a build.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAMP = ROOT / ".ci/released"  # lines: a part, and the commit at which it last passed

_BUILD = "setup.py build_backend.py build_engine.py build_kernels.py build_mpi.py pyproject.toml"
_BUILD += " MANIFEST.in constraints.txt"
_KERNELS = "build_kernels.py csrc/base csrc/codec csrc/device"

# Targets of make, and the files and folders that they depend on. A change elsewhere is found by the
# tests that always run.
PARTS = {
    "wheels-test": f"{_BUILD} tools/wheels tests/packaging/test_wheels.py "
    "tests/packaging/wheel_environment.py",
    "docker-test": f"{_BUILD} docker tests/docker .dockerignore",
    "notebook": "examples/tutorial.ipynb tools/notebook.py torch_cgx cgx_utils",
    "kernels": f"{_KERNELS} tests/kernels docs/gpu.md",
    "kernels-others": f"{_KERNELS} tests/kernels",
    "kernels-nvrtc": f"{_KERNELS} torch_cgx/_kernels.py torch_cgx/_kernel_cache.py tests/kernels",
    "cross": "csrc/base csrc/codec tests/native",
    "kernels-hip": f"{_KERNELS} torch_cgx/_hiprtc.py",
}
# Compilers that may not be here.
NEEDS = {
    "kernels": "nvcc",
    "kernels-others": "nvcc",
    "kernels-hip": "hipcc",
}


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def stamped() -> dict[str, str]:
    """The commits of STAMP, by part."""
    lines = STAMP.read_text().splitlines() if STAMP.exists() else []
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def unchanged_since(part: str) -> str | None:
    """The commit since which nothing that `part` depends on has changed; None: something has, or
    git cannot say.
    """
    commit = stamped().get(part)
    if commit is None:
        return None
    paths = PARTS[part].split()
    # A shallow clone does not have the commit: that is a status, too.
    if git("diff", "--quiet", commit, "--", *paths).returncode != 0:
        return None
    new = git("ls-files", "--others", "--exclude-standard", "--", *paths)
    return commit if new.returncode == 0 and not new.stdout else None


def changed(part: str) -> int:
    commit = unchanged_since(part)
    if commit is None:
        return 0
    print(f"nothing that it depends on has changed since {commit[:12]}, where it passed")
    return 3


def run(parts: Sequence[str]) -> int:
    passed, failed, absent = [], [], []
    for part in parts:
        if part in NEEDS and shutil.which(NEEDS[part]) is None:
            absent.append(part)
            continue
        print(f"== make {part}", flush=True)
        status = subprocess.run(["make", "--no-print-directory", part], cwd=ROOT).returncode
        (failed if status else passed).append(part)
    for part in passed:
        print(f"make {part}: passed")
    for part in absent:
        print(f"make {part}: NOT RUN, there is no {NEEDS[part]}")
    for part in failed:
        print(f"make {part}: FAILED, see above")
    if git("status", "--porcelain").stdout:
        print(f"{STAMP.name} is left as it was: there are changes that are not committed")
    else:
        commits = {**stamped(), **dict.fromkeys(passed, git("rev-parse", "HEAD").stdout.strip())}
        known = [f"{part} {commits[part]}" for part in PARTS if part in commits]
        lines = ["# Written by `make release-check`: where each part has last passed.", *known]
        STAMP.write_text("\n".join(lines) + "\n")
        print(f"{STAMP.relative_to(ROOT)} is written; commit it")
    return 1 if failed else 0


def main(words: list[str]) -> int:
    if words and words[0] == "run" and set(words[1:]) <= PARTS.keys():
        return run(words[1:] or [*PARTS])
    if len(words) == 2 and words[0] == "changed" and words[1] in PARTS:
        return changed(words[1])
    print(f"{__doc__}\nparts: {', '.join(PARTS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
