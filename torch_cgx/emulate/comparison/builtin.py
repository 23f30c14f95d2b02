"""The tasks that come with the package: a GPT on text, a convnet on digits."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from torch_cgx.emulate.comparison.generators import generator
from torch_cgx.emulate.comparison.task import Task
from torch_cgx.workloads import corpus, digits
from torch_cgx.workloads.gpt import GPT, GPTConfig

NAMES = ("gpt", "digits")
_CONTEXT, _LAYERS, _WIDTH, _HEADS = 64, 2, 64, 4
_MEGABYTES = 4.0  # of text
_WINDOWS = 256  # of a validation


def gpt(folder: Path | None = None) -> Task:
    """A GPT of 119,424 parameters that predicts bytes, on the source code of Python's standard
    library or the text files of a folder; loss in nats per byte. ValueError: a folder with too
    little text.
    """
    if folder is None:
        train, validation = corpus.load(_MEGABYTES)
    else:
        train, validation = corpus.load_texts(folder, _MEGABYTES)
    for what, text in (("train on", train), ("validate", validation)):
        if text.numel() <= _CONTEXT:
            raise ValueError(
                f"{folder} has {text.numel()} bytes to {what}; allowed: more than {_CONTEXT}"
            )
    digest = hashlib.sha256(train.numpy().tobytes() + validation.numpy().tobytes())
    return Task(
        "gpt",
        _make_gpt,
        _Windows(train),
        _next_byte,
        _Text(validation),
        optimizer=_adamw_without_norms,
        clip=1.0,
        batch=32,
        steps=400,
        facts={"sizes": [_LAYERS, _WIDTH, _HEADS, _CONTEXT], "text": digest.hexdigest()[:16]},
    )


def _make_gpt() -> GPT:
    return GPT(GPTConfig(context=_CONTEXT, layers=_LAYERS, heads=_HEADS, width=_WIDTH))


@dataclasses.dataclass(frozen=True)
class _Windows:
    """Random windows of a text: inputs and targets, int64 [size, context] each."""

    text: torch.Tensor

    def __call__(self, seed: int, step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        places = self.text.numel() - _CONTEXT
        starts = torch.randint(
            places,
            (size,),
            generator=generator(seed, "windows", step),
            dtype=torch.int64,
            device="cpu",
        )
        return corpus.windows(self.text, starts, _CONTEXT)


def _next_byte(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@dataclasses.dataclass(frozen=True)
class _Text:
    """The mean loss over evenly spaced windows."""

    text: torch.Tensor

    def __call__(self, model: nn.Module) -> dict[str, float]:
        starts = torch.linspace(
            0, self.text.numel() - _CONTEXT - 1, _WINDOWS, dtype=torch.float32, device="cpu"
        ).long()
        losses = [
            float(_next_byte(model, corpus.windows(self.text, group, _CONTEXT)).detach())
            for group in starts.split(32)
        ]
        return {"loss": sum(losses) / len(losses)}


def _adamw_without_norms(model: nn.Module) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=2e-3,
        betas=(0.9, 0.95),
    )


def digits_task() -> Task:
    """A convnet of 151,306 parameters on 1437 handwritten digits, validated on 360 others.
    ImportError: scikit-learn is missing.
    """
    images, labels, test_images, test_labels = digits.load()
    return Task.supervised(
        digits.DigitsNet,
        (images, labels),
        (test_images, test_labels),
        name="digits",
        optimizer=_sgd,
        batch=64,
        steps=300,
    )


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
