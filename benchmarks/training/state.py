"""What a checkpoint of the example's GPT holds: weights, Adam's moments and the last gradients.

    python -m benchmarks.training.state [--steps 300]

Trains the model of examples/train_gpt.py with its settings, in one process, in fp32, on one
thread, from a fixed seed, so equal arguments give equal bits on one machine. 300 steps take 50 s
and are kept in build/bounded/, in a file that is named after all that they depend on.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
import zlib
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks._command import ROOT, at_least
from benchmarks.training.gradients import EXAMPLES

FOLDER = ROOT / "build" / "bounded"
STEPS = 300
NAMES = ("weights", "first moments", "second moments", "gradients")
_BATCH, _CONTEXT, _MEGABYTES, _PEAK, _WARMUP = 32, 64, 4.0, 2e-3, 30

State = dict[str, torch.Tensor]


def load(steps: int = STEPS) -> State:
    """`train`'s result, from build/bounded/ where it is there already."""
    file = FOLDER / f"gpt_{steps}_{_key():08x}.npz"
    if not file.exists():
        state = train(steps)
        FOLDER.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new.npz")
        arrays = {name: values.numpy() for name, values in state.items()}
        np.savez(new, **arrays)  # type: ignore[arg-type]
        new.replace(file)
    with np.load(file) as kept:
        return {name: torch.from_numpy(kept[name]) for name in NAMES}


def train(steps: int) -> State:
    """By the names of `NAMES`: float32 of shape (829696,), all parameters one after another.
    steps: at least 1.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the bits of a sum depend on the number of threads
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _train(steps)
    finally:
        torch.set_num_threads(before)


def _train(steps: int) -> State:
    gpt, corpus = _example("gpt"), _example("corpus")
    model: nn.Module = gpt.GPT(gpt.GPTConfig(context=_CONTEXT))
    text, _ = corpus.load(_MEGABYTES)
    parameters = list(model.parameters())
    decayed = [p for p in parameters if p.dim() >= 2]
    others = [p for p in parameters if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    gradients: list[torch.Tensor] = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _PEAK * min(1.0, (step + 1) / _WARMUP)
        starts = torch.randint(0, text.numel() - _CONTEXT, (_BATCH,))
        x, y = corpus.windows(text, starts, _CONTEXT)
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        gradients = [p.grad.clone() for p in parameters if p.grad is not None]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    moments = [optimizer.state[p] for p in parameters]
    return {
        "weights": _flat(parameters),
        "first moments": _flat([m["exp_avg"] for m in moments]),
        "second moments": _flat([m["exp_avg_sq"] for m in moments]),
        "gradients": _flat(gradients),
    }


def _flat(tensors: list[Any]) -> torch.Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _example(name: str) -> Any:
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def _key() -> int:
    """Of the sources, and of Python, whose library is the text, and torch."""
    sources = (Path(__file__), EXAMPLES / "gpt.py", EXAMPLES / "corpus.py")
    said = [file.read_text() for file in sources]
    return zlib.crc32("\n".join([*said, platform.python_version(), torch.__version__]).encode())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.state", description="Trains the example's GPT."
    )
    parser.add_argument("--steps", type=at_least(1), default=STEPS)
    args = parser.parse_args(argv)
    for name, values in load(args.steps).items():
        low, high = (float(x) for x in values.aminmax())
        print(
            f"{name:<15} {values.numel()} values, {low:.3g} to {high:.3g}, "
            f"standard deviation {float(values.std()):.3g}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
