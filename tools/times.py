"""Measures what a clone costs: `make demo` in an empty one, a build after one touched file, `make
test`. In processor seconds, which a busy machine changes less than wall seconds.

    python3 tools/times.py [--commit HEAD] [--steps demo build touch mpi test] [--keep FOLDER]

The clone has no .venv and no build; what pip downloads counts. ccache is left out, since a newcomer
has an empty one. A row each: user + system seconds of all processes, wall seconds, and the first
lines that do not end in status 0.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOUCHED = "csrc/backend/executor.cc"
STEPS = {
    "demo": ("make demo, empty clone", ["make", "demo"]),
    "build": ("make build after it: the tests' machinery", ["make", "build"]),
    "touch": ("make build after touching a file of backend/", ["make", "build"]),
    "mpi": ("make build-mpi, its packages included", ["make", "build-mpi"]),
    "test": ("make test after a build", ["make", "test"]),
}


def clone(commit: str, folder: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), folder], check=True)
    subprocess.run(["git", "checkout", "--quiet", "--detach", commit], cwd=folder, check=True)


def environment() -> dict[str, str]:
    """Without what would find this tree's packages or cached objects."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    folders = kept["PATH"].split(os.pathsep)
    kept["PATH"] = os.pathsep.join(f for f in folders if "ccache" not in f and ".venv" not in f)
    return {**kept, "CCACHE_DISABLE": "1"}


def touched(folder: Path) -> str:
    """The file with a new line at its end; its name. File times are some milliseconds coarse."""
    time.sleep(1)
    found = folder / TOUCHED
    if not found.exists():  # at another commit
        found = sorted((folder / "csrc/backend").rglob("*.cc"))[0]
    with found.open("a") as file:
        file.write("\n// Touched.\n")
    return str(found.relative_to(folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--commit", default="HEAD", help="what is cloned (HEAD)")
    parser.add_argument(
        "--steps", nargs="+", choices=STEPS, default=["demo", "build", "touch", "mpi", "test"]
    )
    parser.add_argument("--keep", type=Path, help="an empty folder for the clone, which stays")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="cgx-times-"))
    clone(args.commit, folder)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    print(f"{'':46} CPU s   wall s", flush=True)
    failed = 0
    try:
        for step in args.steps:
            label, command = STEPS[step]
            if step == "touch":
                touched(folder)
            began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            with open(folder.with_name(f"{folder.name}-{step}.log"), "wb") as log:
                status = subprocess.run(
                    command, cwd=folder, env=environment(), stdout=log, stderr=log
                ).returncode
            after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            said = "" if status == 0 else f"   status {status}, see {log.name}"
            print(f"{label:46} {used:5.0f}   {took:6.0f}{said}", flush=True)
            failed |= status
    finally:
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
