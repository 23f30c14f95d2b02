"""All benchmarks behind one command.

    python -m benchmarks all [--quick] [--out DIR | --commit-results] [--resume]
    python -m benchmarks codec allreduce ...   # parts; `list` names them
    python -m benchmarks baseline              # measures benchmarks/results/baseline.json anew
    python -m benchmarks check                 # the guard: fails where a ratio has lost 20 %
    python -m benchmarks targets               # what was asked and what was measured

Parts run one after another; one that fails, or cannot run here, does not stop the others, and is
listed at the end with its reason. Without --out nothing is written. --commit-results writes to
benchmarks/results/ and fills the tables of README.md and docs/performance.md; with --resume
parts that have results of this revision there are not run again. Status 1 if a part failed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from benchmarks import _baseline, _parts, readme_table, targets

OTHERS = ("list", "baseline", "check", "targets")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    names = ["all", *_parts.PARTS, *OTHERS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.split("\n")[0]
    )
    parser.add_argument("what", nargs="+", choices=names, metavar="WHAT", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="a short run of each part")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for JSON files and pictures")
    parser.add_argument("--commit-results", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--resume", action="store_true", help="skip parts of this revision")
    args = parser.parse_args(argv)
    if args.commit_results and args.quick:
        parser.error("--commit-results writes the tables of the documents: not with --quick")
    if args.commit_results and args.out:
        parser.error("--commit-results writes to benchmarks/results: not with --out")
    if args.resume and not (args.commit_results or args.out):
        parser.error("--resume needs --commit-results or --out")
    if len(args.what) > 1 and set(args.what) & set(OTHERS):
        parser.error(f"one of {', '.join(OTHERS)} stands alone")
    return args


def run(names: list[str], quick: bool, out: Path | None, resume: bool) -> list[_parts.Outcome]:
    outcomes = []
    for name in names:
        part = _parts.PARTS[name]
        if resume and out is not None and _parts.kept(part, out):
            outcomes.append(_parts.Outcome(name, "kept", "has results of this revision"))
            continue
        print(f"\n== {name}: {part.about}", flush=True)
        outcomes.append(_parts.run_part(part, quick, out))
    return outcomes


def summary(outcomes: list[_parts.Outcome]) -> str:
    """A line for each part, and one for each peer that was not there."""
    width = max(len(one.part) for one in outcomes)
    lines = []
    for one in outcomes:
        lines.append(f"{one.part:<{width}}  {one.status:<12} {one.seconds:>6.1f} s  {one.reason}")
        lines += [f"{'':<{width}}  not measured {peer}" for peer in one.not_measured]
    return "\n".join(line.rstrip() for line in lines)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    what = args.what[0]
    if what == "list":
        for part in _parts.PARTS.values():
            print(f"{part.name:<12} {part.about}")
        return 0
    if what == "baseline":
        return _baseline.write()
    if what == "check":
        return _baseline.check()
    if what == "targets":
        print(targets.table())
        return 0
    out = _parts.RESULTS if args.commit_results else args.out
    names = list(_parts.PARTS) if "all" in args.what else list(dict.fromkeys(args.what))
    outcomes = run(names, args.quick, out, args.resume)
    print(f"\n{summary(outcomes)}")
    status = int(any(one.status == "failed" for one in outcomes))
    if args.commit_results:
        if "all" in args.what:
            status |= _baseline.write()
        status |= readme_table.main([])
    return status


if __name__ == "__main__":
    # As an exception, which ends the part that runs, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
