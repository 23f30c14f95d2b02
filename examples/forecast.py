"""What a training step of the demo would take between two hosts, by the cost model of cgx advise,
and, where hosts can be made of network namespaces, what it takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINKS = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10}
MEASURED = "1 Gbit/s"
RATE = "1gbit"
STEPS = 120  # of a measured run
BATCH = 24  # samples of a rank
LEAST_GAIN = 1.05  # over the exact step, to be worth an error
FAR = 1.5  # times as long as predicted


def predict(settings: Sequence[tuple[str, dict[str, Any] | None]]) -> dict[str, list[float]]:
    """Milliseconds per step, for each link: one for each (label, configuration; None: gloo fp32).

    Forward and backward pass of the digits' model are timed here, on one thread.
    """
    import torch
    from train_digits import DigitsNet

    from torch_cgx.cli.advise import choose, source
    from torch_cgx.cost import Layer, measure_speed

    torch.manual_seed(0)
    model = DigitsNet()
    images, labels = torch.rand(BATCH, 1, 8, 8), torch.randint(0, 10, (BATCH,))
    layers = [Layer(n, tuple(p.shape)) for n, p in model.named_parameters()]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def step() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(images), labels)

    profile = source.profile(source.Source(layers, model, step), None)
    place = choose.Place(hosts=2, ranks_per_host=1, latency=None, busy_cores=False)
    chosen = []
    for label, config in settings:
        payloads = tuple(choose.payload_of(b, config, 4, 1024) for b in profile.buckets)
        speed = measure_speed(config or {"bits": 32})
        chosen.append(choose.Setting(label, config, payloads, speed, config is None, 0.0))
    torch.set_num_threads(threads)
    found = {}
    for name, rate in LINKS.items():
        rows = choose.rows(profile, place, chosen, rate)
        found[name] = [1e3 * row["seconds"] for row in rows]
    return found


def missing() -> str:
    """Why no hosts can be made here; empty if they can."""
    from torch_cgx.testbed.bed import hosts_available

    return hosts_available() or ""


def measure(
    script: str, settings: Sequence[list[str]], update: Callable[[], object]
) -> list[float]:
    """Milliseconds per step of two hosts with one rank each, on a link of 1 Gbit/s, for each
    setting. update: called after each run.
    """
    from torch_cgx.testbed.bed import hosts

    times = []
    with hosts(2, RATE) as bed:
        result = bed.folder / "demo.json"
        for setting in settings:
            command = [sys.executable, str(ROOT / "examples" / script), *setting]
            command += ["--no-progress", "--steps", f"{STEPS}", "--json", str(result)]
            bed.run(command, 1)
            times.append(float(json.loads(result.read_text())["step_time_ms_median"]))
            result.unlink()
            update()
    return times


def note(columns: dict[str, list[float]]) -> str:
    """Where compression pays: the first time of each column is the exact one's."""
    no = [name for name, times in columns.items() if times[0] / min(times) < LEAST_GAIN]
    if not no:
        return "By the cost model compression pays on all of these links."
    if len(no) == len(columns):
        return (
            "By the cost model compression does not pay on any of these links: this model is too "
            "small for them."
        )
    return (
        f"By the cost model compression does not pay at {' and '.join(no)}: there it saves less "
        "than 5 % of a step."
    )


def doubt(predicted: Sequence[float], measured: Sequence[float]) -> str:
    """What measured times that are far from the predicted ones mean; empty if they are near."""
    most = max(time / model for time, model in zip(measured, predicted, strict=True))
    if most < FAR:
        return ""
    return (
        f"A step took up to {most:.1f} times as long as predicted: other programs may use the "
        "cores. `cgx bench` repeats what it measures, and shows the spread."
    )
