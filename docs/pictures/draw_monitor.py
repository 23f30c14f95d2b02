"""Draws docs/pictures/monitor.png from the log of a Monitor.

    torchrun --nproc-per-node 2 examples/train_gpt.py --backend cgx --bits 2 --codec rotated \\
        --steps 300 --watch cgx.jsonl
    python docs/pictures/draw_monitor.py cgx.jsonl [FILE]

Errors of the five layers with the largest, time per step and the part of it that communication is
exposed, over the steps. Needs matplotlib.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

from torch_cgx.cli.report import read, summary

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

LAYERS = 5


def main() -> None:
    """Reads, draws, writes the picture."""
    log = Path(sys.argv[1])
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent / "monitor.png"
    records, _ = read(log)
    figure, (errors, times) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    steps = [one["step"] for one in records]
    for row in summary(records)["layers"][:LAYERS]:
        label = f"{row['name']}, {row['bits']} bits"
        errors.plot(steps, [one["errors"].get(row["name"]) for one in records], label=label)
    errors.set(title="Relative error of the reduced gradient", xlabel="step")
    errors.set_ylim(bottom=0)
    errors.legend(fontsize=7)
    whole = [1e3 * one["seconds_per_step"] for one in records]
    exposed = [1e3 * (one["exposed_seconds"] or 0) for one in records]
    times.fill_between(steps, whole, color="tab:blue", alpha=0.3, label="whole step")
    times.fill_between(steps, exposed, color="tab:orange", label="exposed communication")
    times.set(title="Time per step [ms]", xlabel="step")
    times.set_ylim(bottom=0)
    times.legend(loc="lower right", fontsize=8)
    for axes in (errors, times):
        axes.grid(alpha=0.3)
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main()
