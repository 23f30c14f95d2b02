"""Measures a training loop: loss and time of each step, bytes sent, progress on stderr."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import Ranks, require_equal_weights, sum_over_ranks, uses_cgx
from torch import nn

MONITORED = 20  # steps in a record of --watch


class Progress:
    """A bar on stderr where that is a terminal, else a line every tenth of the way; rank 0 only."""

    WIDTH = 30

    def __init__(self, total: int, show: bool) -> None:
        self._total = total
        self._show = show
        self._bar = sys.stderr.isatty()

    def update(self, step: int, loss: float) -> None:
        """Shows that `step` steps of the total are done, the last one with `loss`."""
        if not self._show:
            return
        if self._bar:
            filled = self.WIDTH * step // self._total
            bar = "#" * filled + "." * (self.WIDTH - filled)
            end = "\n" if step == self._total else ""
            print(f"\r[{bar}] {step}/{self._total} loss {loss:.4f}", end=end, file=sys.stderr)
        elif step * 10 // self._total != (step - 1) * 10 // self._total:
            print(f"step {step}/{self._total} loss {loss:.4f}", file=sys.stderr)
        sys.stderr.flush()


class Meter:
    """Call `start` before the loop, `step` after each step, `stop` after the loop, then `result`.

    Bytes are what this rank sent for gradients within the loop. With cgx the backend counts them
    ("measured"). Other backends do not tell, so they are the volume of a bandwidth-optimal
    all-reduce, 2 (N-1)/N times the gradient's size ("computed"; Patarasuk and Yuan, J. Parallel
    Distrib. Comput. 69, 2009).
    """

    TAIL = 20  # steps whose mean is the final training loss: one batch's is too noisy

    def __init__(
        self, name: str, args: argparse.Namespace, ranks: Ranks, model: nn.Module, steps: int
    ) -> None:
        self._name = name
        self._args = args
        self._ranks = ranks
        self._model = model
        self._progress = Progress(steps, ranks.rank == 0 and not args.no_progress)
        self._losses: list[float] = []
        self._times: list[float] = []
        self._stats: dict[str, Any] = {}
        self._monitor: Any = None
        self._parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self._begin = self._last = self._seconds = 0.0

    @property
    def steps(self) -> int:
        """Steps measured so far."""
        return len(self._losses)

    def start(self) -> None:
        """The loop begins now."""
        if uses_cgx(self._args):
            import torch_cgx

            torch_cgx.reset_stats()
        if self._args.watch is not None:
            from cgx_utils import Monitor
            from cgx_utils.monitor import JsonLines, Table

            # Only rank 0 has sinks, so only it opens the file.
            sinks = [Table(), JsonLines(self._args.watch)] if self._ranks.rank == 0 else []
            self._monitor = Monitor(self._model, MONITORED, sinks)
        self._begin = self._last = time.perf_counter()

    def step(self, loss: torch.Tensor) -> None:
        """A step is done, with the scalar `loss` on this rank; waits for a GPU to finish it."""
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize(self._ranks.device)
        self._losses.append(float(loss.detach()))
        now = time.perf_counter()
        self._times.append(now - self._last)
        self._last = now
        self._progress.update(self.steps, self._losses[-1])

    def stop(self) -> None:
        """The loop is over: traffic after this is not counted."""
        self._seconds = time.perf_counter() - self._begin
        if uses_cgx(self._args):
            import torch_cgx

            self._stats = dict(torch_cgx.stats())
        if self._monitor is not None:
            self._monitor.close()

    def bytes_per_step(self) -> float:
        """Bytes that this rank sent, per step; see the class."""
        if uses_cgx(self._args):
            return float(self._stats["bytes_sent"]) / self.steps
        width = 2 if self._args.hook == "fp16" else 4
        world = self._ranks.world_size
        return 2 * (world - 1) / world * width * self._parameters

    def result(self, val_loss: float, accuracy: float | None) -> dict[str, Any]:
        """All that is known of the run, for JSON; every rank must call it. `accuracy` is in 0..1.

        Losses are in nats per prediction, the mean over ranks; bytes the mean over ranks; times of
        rank 0. Raises RuntimeError if the ranks did not end with the same weights.
        """
        if self.steps == 0:
            raise ValueError("no step was taken: the training data is less than one batch")
        digest = require_equal_weights(self._model, self._ranks)
        world = self._ranks.world_size
        totals = sum_over_ranks([*self._losses, self.bytes_per_step()], self._ranks)
        *losses, sent = (total / world for total in totals)
        args = self._args
        cgx = uses_cgx(args)
        average = args.average_bits
        return {
            "example": self._name,
            "backend": args.backend,
            "hook": "cgx" if cgx else args.hook,
            "bits": 16 if args.hook == "fp16" else args.bits if average is None else average,
            "adaptive": average is not None,
            "codec": args.codec if cgx else None,
            "error_feedback": args.error_feedback,
            "bucket_size": args.bucket_size if cgx else None,
            "min_size": args.min_size if cgx else None,
            "world_size": world,
            "seed": args.seed,
            "batch": args.batch,
            "steps": self.steps,
            "parameters": self._parameters,
            "loss": losses,
            "final_train_loss": statistics.fmean(losses[-self.TAIL :]),
            "final_val_loss": val_loss,
            "accuracy": accuracy,
            "bytes_sent_per_step": sent,
            "bytes_source": "measured" if cgx else "computed",
            "step_time_ms_median": 1e3 * statistics.median(self._times),
            "train_seconds": self._seconds,
            "weights_sha256": digest,
            "cgx_stats": self._stats or None,
            "machine": machine_facts(self._ranks.device),
        }


def machine_facts(device: torch.device) -> dict[str, Any]:
    """What times depend on: versions, processor, threads, device."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": models[0] if models else platform.processor(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }
