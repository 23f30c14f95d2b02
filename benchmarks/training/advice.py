"""How well `cgx advise` predicts a training step: predicted against measured, between hosts.

    python -m benchmarks.training.advice [--rates 100mbit 1gbit] [--runs 3] [--steps 40] [--quick]
        [--json FILE] [--plot FILE]

Trains examples/train_gpt.py on two hosts made of network namespaces (needs Linux, root, iproute2),
as benchmarks.training.hosts does, with gloo and with cgx at several settings, in turns. The cost
model (torch_cgx/cost) gets what `cgx advise` would have: the layers, the codecs' speeds, measured
in this process, and the computation with its buckets, measured on the same hosts with nothing sent,
right before each training, since a shared machine is not equally fast all the time. Reported are
medians over the runs: of measured and predicted times, and of predicted / measured of each run.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks import _command, _ranks
from benchmarks._command import at_least
from benchmarks.training.hosts import TrainingMethod, compute, train
from benchmarks.training.step_model import EXAMPLES, Compute
from torch_cgx.cli.advise import choose
from torch_cgx.cli.advise.source import Profile
from torch_cgx.cost import Layer, buckets_of
from torch_cgx.testbed.bed import hosts
from torch_cgx.testbed.network import parse_rate

HOSTS = 2
WITHIN = 0.2  # of the measured time, as asked


def methods() -> list[TrainingMethod]:
    """By the names of choose.SETTINGS."""
    found = [
        TrainingMethod("gloo fp32", 32, ["--backend", "gloo"]),
        TrainingMethod("gloo, fp16 hook", 16, ["--backend", "gloo", "--hook", "fp16"]),
    ]
    for name, config, _, flat in choose.SETTINGS:
        if not flat and config is not None:
            bits = config["bits"]
            words = ["--backend", "cgx", "--bits", f"{bits}"]
            words += ["--codec", config.get("codec", "maxmin")]
            found.append(TrainingMethod(name, bits, words))
    return found


def layers() -> list[Layer]:
    sys.path.insert(0, str(EXAMPLES))
    gpt: Any = importlib.import_module("gpt")
    model = gpt.GPT(gpt.GPTConfig(context=64, layers=4, heads=4, width=128))
    return [Layer(n, tuple(p.shape), p.element_size()) for n, p in model.named_parameters()]


class Forecast:
    """Seconds of a step by setting, for links of one rate."""

    def __init__(self, rate: str) -> None:
        self._rate = parse_rate(rate)
        self._layers = layers()
        self._buckets = buckets_of(self._layers)
        # Each host has one core for one rank, which computes without a pause.
        self._place = choose.Place(HOSTS, 1, None, busy_cores=True)
        self._settings = choose.settings(
            self._profile(0.0, (0.0,) * len(self._buckets)), self._place, 1024
        )

    def _profile(self, seconds: float, ready: tuple[float, ...]) -> Profile:
        return Profile(self._layers, self._buckets, seconds, "measured", ready, "Gaussian values")

    def of(self, alone: Compute) -> dict[str, float]:
        if len(self._buckets) != len(alone.bucket_bytes):
            raise ValueError(
                f"{len(self._buckets)} buckets predicted, DDP has {alone.bucket_bytes}"
            )
        ready = tuple(min(moment, alone.seconds) for moment in alone.ready_seconds)
        profile = self._profile(alone.seconds, ready)
        rows = choose.rows(profile, self._place, self._settings, self._rate)
        return {row["setting"]: row["seconds"] for row in rows}


def measure(rate: str, runs: int, steps: int) -> list[dict[str, Any]]:
    """A row for each setting on links of this rate."""
    times: dict[str, list[float]] = {}
    forecasts: dict[str, list[float]] = {}
    chosen = methods()
    forecast = Forecast(rate)
    with hosts(HOSTS, rate) as bed:
        for number in range(runs):
            for turn in range(len(chosen)):
                alone = compute(bed, 1, steps, [])
                method = chosen[(turn + number) % len(chosen)]
                forecasts.setdefault(method.name, []).append(forecast.of(alone)[method.name])
                seconds = train(bed, method, 1, steps, [])["step_seconds"]
                times.setdefault(method.name, []).append(seconds)
                print(
                    f"{rate}, run {number + 1}, {method.name}: {1e3 * seconds:.1f} ms, "
                    f"computation {1e3 * alone.seconds:.1f} ms",
                    flush=True,
                )
    rows = []
    for method in chosen:
        measured, expected = times[method.name], forecasts[method.name]
        ratio = statistics.median(e / m for e, m in zip(expected, measured, strict=True))
        rows.append(
            {
                "rate": rate,
                "setting": method.name,
                "measured_seconds": statistics.median(measured),
                "predicted_seconds": statistics.median(expected),
                "ratio": ratio,
                "within": abs(ratio - 1) <= WITHIN,
                "runs": measured,
                "predictions": expected,
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'link':<8} {'setting':<20} {'measured':>10} {'predicted':>10} {'ratio':>7}"]
    for row in rows:
        lines.append(
            f"{row['rate']:<8} {row['setting']:<20} {1e3 * row['measured_seconds']:>7.1f} ms "
            f"{1e3 * row['predicted_seconds']:>7.1f} ms {row['ratio']:>7.3f}"
            + ("" if row["within"] else "  beyond 20 %")
        )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], file: str) -> None:
    with _command.picture(file, 1, 1, figsize=(5.5, 5)) as (_, ((axes,),)):
        for rate in dict.fromkeys(row["rate"] for row in rows):
            mine = [row for row in rows if row["rate"] == rate]
            measured = [1e3 * row["measured_seconds"] for row in mine]
            forecast = [1e3 * row["predicted_seconds"] for row in mine]
            axes.plot(measured, forecast, "o", label=_command.rate_text(rate))
        low, high = axes.get_xlim()
        for factor, style in ((1.0, "-"), (1 - WITHIN, ":"), (1 + WITHIN, ":")):
            axes.plot([low, high], [factor * low, factor * high], style, color="gray")
        axes.set_xlabel("measured [ms per step]")
        axes.set_ylabel("predicted [ms per step] (dotted: 20 %)")
        axes.legend()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.advice",
        description="Steps that cgx advise predicts, against measured ones.",
    )
    parser.add_argument("--rates", nargs="+", type=_ranks.rate, default=["100mbit", "1gbit"])
    parser.add_argument("--runs", type=at_least(1), metavar="N", help="3; 1 with --quick")
    parser.add_argument("--steps", type=at_least(4), metavar="N", help="20; 6 with --quick")
    parser.add_argument("--quick", action="store_true")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    if _ranks.missing_hosts():
        return 0
    runs = args.runs or (1 if args.quick else 3)
    steps = args.steps or (6 if args.quick else 20)
    facts = _ranks.print_link_facts(runs=runs, steps=steps)
    rows = [row for rate in args.rates for row in measure(rate, runs, steps)]
    print(table(rows))
    document = {"benchmark": "advice", "machine": facts, "rows": rows}
    return _command.finish(args, document, lambda file: draw(rows, file))


if __name__ == "__main__":
    sys.exit(main())
