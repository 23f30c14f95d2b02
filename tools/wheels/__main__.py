"""Builds the wheels; see tools/wheels/__init__.py."""

from __future__ import annotations

import argparse
import fcntl
import re
import shutil
import sys
import time
from pathlib import Path

from tools.wheels import environment, names, repair, tree

sys.path.insert(0, str(tree.ROOT))
import build_kernels  # noqa: E402

del sys.path[0]


def pinned() -> str:
    """The torch of constraints.txt."""
    text = (tree.ROOT / "constraints.txt").read_text()
    return re.findall(r"^torch==([\d.]+)$", text, re.MULTILINE)[0]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make wheels", description=__doc__)
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="COMMAND")
    parser.add_argument("--torch", nargs="+", default=[pinned()], metavar="VERSION")
    parser.add_argument("--mpicc", default="", help="of Open MPI and MPICH, with : between them")
    parser.add_argument("--no-mpi", action="store_true")
    parser.add_argument("--no-kernels", action="store_true")
    parser.add_argument("--base", type=Path, default=tree.ROOT / ".venv", metavar="VENV")
    parser.add_argument("--out", type=Path, default=tree.ROOT / "dist", metavar="FOLDER")
    args = parser.parse_args(argv)
    if not args.no_kernels and build_kernels.find_nvcc() is None:
        sys.exit(
            "make wheels: there is no nvcc in CUDA_HOME or on the PATH, so the wheels would lack "
            "the GPU kernels; KERNELS=0 makes them without"
        )
    if not args.no_mpi and len(args.mpicc.split(":")) != len(repair.KINDS):
        sys.exit(
            f"make wheels: the MPI compilers are {args.mpicc!r}; needed: one of Open MPI and one "
            "of MPICH, or MPI= for wheels without MPI modules"
        )
    return args


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    wanted = names.targets(args.python, args.torch)
    mpicc = "" if args.no_mpi else args.mpicc
    tree.WORK.mkdir(parents=True, exist_ok=True)
    with open(tree.WORK / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pyproject = tree.make()
        for target in wanted:
            began = time.monotonic()
            print(f"make wheels: {target.name} ...", flush=True)
            text, version = names.of_wheel(pyproject, target.minor)
            python = environment.make(target, args.base)
            tree.prepare(text)
            built = environment.build(
                python, target, mpicc, not args.no_kernels, tree.WORK / f"out-{target.name}"
            )
            repair.relocate(built)
            ready = repair.repair(built, built.parent / "repaired")
            wrong = repair.problems(ready, target, version, bool(mpicc), not args.no_kernels)
            if wrong:
                sys.exit(f"make wheels: {ready.name}: " + "; ".join(wrong))
            args.out.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ready, args.out / ready.name)
            parts = [f"{(args.out / ready.name).stat().st_size / 1e6:.1f} MB"]
            parts += ["no MPI modules"] * args.no_mpi + ["no GPU kernels"] * args.no_kernels
            parts += [f"{time.monotonic() - began:.0f} s"]
            print(f"{args.out / ready.name} ({', '.join(parts)})", flush=True)


if __name__ == "__main__":
    main()
