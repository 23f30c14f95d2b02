"""Memory, time and the gradient's error: torch's own means of keeping less for backward, and ours.

    python -m benchmarks.frontier [--quick] [--rounds N] [--methods NAME ...] [--json FILE]
        [--plot FILE]

Models: a GPT and an encoder of BERT's form (benchmarks/_frontier_models.py), without dropout. The
methods are in benchmarks/_frontier_methods.py; all numbers are of one thread.

Bytes: what torch has allocated in the forward pass and not yet released after it, by the profiler's
memory events. So compiled functions are counted like all others; what lived before (parameters, the
batch) is not. The peak is the most that the whole step has allocated at once, gradients of the
parameters included.

Time: the forward and the backward pass. The exact step runs before and after each one, and where
torch.compile runs, the compiled exact step, too; a ratio is the time by the mean of these two, and
the result is the median of the rounds.

Error: the relative L2 error of the whole gradient against the exact one of the same batch and the
same random state; root mean square of three draws of the random numbers of rounding and sampling.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
from torch import Tensor, nn

from benchmarks import _command
from benchmarks import _frontier_methods as methods
from benchmarks import _frontier_models as models
from benchmarks._command import at_least, quartiles
from benchmarks._frontier_methods import COMPILED, EXACT, METHODS, Forward, Method, NotMeasured
from benchmarks._frontier_models import Case
from benchmarks.report import frontier as report
from torch_cgx.cli.output import without_log_of_torch

Row = dict[str, Any]
DRAWS = 3


@dataclass(frozen=True)
class Step:
    """A training step without the optimizer's part."""

    model: nn.Module
    forward: Forward

    def run(self) -> float:
        """Seconds; the model has no gradients before and after."""
        begin = time.perf_counter()
        self.forward().backward()
        seconds = time.perf_counter() - begin
        self.model.zero_grad()
        return seconds

    def gradient(self, seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        self.forward().backward()
        found = models.whole_gradient(self.model)
        self.model.zero_grad()
        return found


# ---- bytes


def allocated(run: Callable[[], object]) -> tuple[int, int]:
    """Bytes that torch allocated on the CPU while `run` ran: what is left while its result lives,
    and the most at once.
    """
    gc.collect()
    profile = torch.autograd.profiler.profile(profile_memory=True)
    with without_log_of_torch():  # libkineto writes two lines on stderr
        with profile:
            result = run()
    now = most = 0
    assert profile.kineto_results is not None
    for event in profile.kineto_results.events():
        if event.name() == "[memory]" and event.device_type() == torch._C._autograd.DeviceType.CPU:
            now += event.nbytes()  # type: ignore[attr-defined]
            most = max(most, now)
    del result
    return now, most


def bytes_of(step: Step) -> tuple[int, int]:
    """What is kept between the forward and the backward pass, and the peak of both."""
    kept, _ = allocated(step.forward)

    def whole() -> None:
        step.forward().backward()

    _, peak = allocated(whole)
    step.model.zero_grad()
    return kept, peak


# ---- error


def gradients_of(exact: Step) -> list[list[Tensor]]:
    """By draw, with which others are compared."""
    return [exact.gradient(seed) for seed in range(DRAWS)]


def error_of(step: Step, exact: list[list[Tensor]]) -> float:
    """exact: of `gradients_of`."""
    squares = []
    for seed, wanted in enumerate(exact):
        found = step.gradient(seed)
        size = sum(_square(one) for one in wanted)
        pairs = zip(found, wanted, strict=True)
        squares.append(sum(_square(a.double() - b.double()) for a, b in pairs) / size)
    return math.sqrt(statistics.fmean(squares))


def _square(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())


# ---- time


def times_of(step: Step, references: list[Step], rounds: int) -> tuple[list[float], list[Any]]:
    """Seconds by round, and for each reference the ratios to the mean of it before and after."""
    seconds: list[float] = []
    ratios: list[list[float]] = [[] for _ in references]
    before = [reference.run() for reference in references]
    for _ in range(rounds):
        seconds.append(step.run())
        after = [reference.run() for reference in references]
        for found, a, b in zip(ratios, before, after, strict=True):
            found.append(seconds[-1] / ((a + b) / 2))
        before = after
    return seconds, ratios


# ---- rows


def measure(case: Case, names: list[str], rounds: int) -> tuple[list[Row], dict[str, str]]:
    """A row for each method, and why others have none."""
    exact = Step(*METHODS[EXACT].build(case))
    exact.run()
    kept, peak = bytes_of(exact)
    gradients = gradients_of(exact)
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for name in names:
        method = METHODS[name]
        try:
            row = _measured(case, method, exact, gradients, rounds)
        except NotMeasured as why:
            missing[f"{case.name}, {name}"] = str(why)
            continue
        row |= {"share": row["bytes"] / kept, "peak_share": row["peak"] / peak}
        rows.append(row)
        print(report.line_of(row), flush=True)
    return rows, missing


def _measured(
    case: Case, method: Method, exact: Step, gradients: list[list[Tensor]], rounds: int
) -> Row:
    step = Step(*method.build(case))
    step.run()
    references = [exact]
    if method.compiled:
        references.append(Step(*METHODS[COMPILED].build(case)))
        references[-1].run()
    kept, peak = bytes_of(step)
    error = 0.0 if method.name == EXACT else error_of(step, gradients)
    seconds, ratios = times_of(step, references, rounds)
    low, median, high = quartiles(ratios[0])
    return {
        "model": case.name,
        "method": method.name,
        "family": method.family,
        "budget": method.budget,
        "limit": method.limit,
        "bytes": kept,
        "peak": peak,
        "error": error,
        "seconds": statistics.median(seconds),
        "time": median,
        "time_q1": low,
        "time_q3": high,
        "time_compiled": statistics.median(ratios[1]) if method.compiled else None,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small GPT, few methods, a round")
    parser.add_argument("--rounds", type=at_least(1), metavar="N", help="5; 1 with --quick")
    parser.add_argument(
        "--methods", nargs="+", choices=list(METHODS), metavar="NAME", help="these, and exact"
    )
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    rounds = args.rounds or (1 if args.quick else 5)
    sizes = models.QUICK if args.quick else models.Sizes()
    names = list(args.methods or (methods.QUICK if args.quick else METHODS))
    names = list(dict.fromkeys([EXACT, *names]))
    rows: list[Row] = []
    missing: dict[str, str] = {}
    threads = torch.get_num_threads()
    facts = _command.print_facts(rounds=rounds, draws=DRAWS, **vars(sizes))
    torch.set_num_threads(1)
    try:
        for name in (models.GPT,) if args.quick else models.LAYERS:
            found, why = measure(models.case(name, sizes), names, rounds)
            rows += found
            missing |= why
    finally:
        torch.set_num_threads(threads)
    print(report.text_table(rows))
    for name, reason in missing.items():
        print(f"not measured: {name}: {reason}")
    document = {"machine": facts, "rows": rows, "not_measured": missing}
    return _command.finish(args, document, lambda file: report.draw(rows, file))


if __name__ == "__main__":
    sys.exit(main())
