"""Real gradients of two models of examples/, for benchmarks and tests of codecs.

The small GPT trains on the text that examples/train_gpt.py uses, ResNet-18 (a quarter of the
paper's channels by default) on synthetic images: no data set of images is on the machine. An image
has the shape of CIFAR's and the structure of a texture: its class fixes the gratings and colours,
chance moves them and adds smooth and white noise.

Each model trains alone, in fp32, from a fixed seed. At each step of `STEPS` its gradients are
recorded before they are clipped or applied; a bf16 copy of the model computes gradients of the same
batch, which are recorded too. One thread computes, so equal arguments give equal bits on one
machine. Both models together take about 20 s.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODELS = ("gpt", "resnet")
STEPS = (2, 20, 60)  # during the warm-up of the learning rate, soon after it, and later
DTYPES = (torch.float32, torch.bfloat16)
_THREADS = 1
_CLASSES = 10
_WARMUP = 10

Batches = Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]


class Key(NamedTuple):
    """model: of `MODELS`; layer: the parameter's name; step: counted from 0; dtype: the
    gradient's.
    """

    model: str
    layer: str
    step: int
    dtype: torch.dtype


def record(
    models: tuple[str, ...] = MODELS,
    steps: tuple[int, ...] = STEPS,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    seed: int = 0,
) -> dict[Key, torch.Tensor]:
    """The gradients of all parameters, in the shape of each, in the order of model, step, dtype,
    layer. ValueError names a model, a step or a dtype that is not there.
    """
    for model in models:
        if model not in MODELS:
            raise ValueError(f"model {model!r}; allowed: {', '.join(MODELS)}")
    for step in steps:
        if step < 0:
            raise ValueError(f"step {step}; allowed: integers >= 0")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype}; allowed: {', '.join(map(str, DTYPES))}")
    found: dict[Key, torch.Tensor] = {}
    with _fixed_threads():
        for model in models:
            found.update(_train(model, tuple(sorted(set(steps))), dtypes, seed))
    return found


def _train(
    model: str, steps: tuple[int, ...], dtypes: tuple[torch.dtype, ...], seed: int
) -> Iterator[tuple[Key, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net, draw = (_gpt if model == "gpt" else _resnet)(generator)
    optimizer: torch.optim.Optimizer
    if model == "gpt":
        peak = 2e-3
        optimizer = torch.optim.AdamW(net.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    else:
        peak = 0.05
        optimizer = torch.optim.SGD(net.parameters(), lr=peak, momentum=0.9, nesterov=True)
    for step in range(max(steps, default=-1) + 1):
        x, y = draw(generator)
        if step in steps:
            for dtype in dtypes:
                # On a copy: running means of batch norm must not see the batch twice.
                net_copy = copy.deepcopy(net).to(dtype)
                yield from _named(model, step, _backward(net_copy, x, y))
        _backward(net, x, y)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, (step + 1) / _WARMUP)
        optimizer.step()


def _backward(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    net.zero_grad()
    if x.is_floating_point():
        x = x.to(next(net.parameters()).dtype)
    F.cross_entropy(net(x).flatten(0, -2).float(), y.flatten()).backward()
    return net


def _named(model: str, step: int, net: nn.Module) -> Iterator[tuple[Key, torch.Tensor]]:
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        yield Key(model, name, step, parameter.dtype), parameter.grad.clone()


# ---- the models and what they learn


def _gpt(generator: torch.Generator) -> tuple[nn.Module, Batches]:
    gpt: Any = _example("gpt")
    corpus: Any = _example("corpus")
    config = gpt.GPTConfig(context=64)
    text, _ = corpus.load(1.0)

    def draw(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(0, text.numel() - config.context, (16,), generator=generator)
        x, y = corpus.windows(text, starts, config.context)
        return x, y

    return gpt.GPT(config), draw


def _resnet(generator: torch.Generator) -> tuple[nn.Module, Batches]:
    textures = Textures(generator)

    def draw(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return textures.draw(32, generator)

    return _example("resnet").ResNet18(_CLASSES, width=32), draw


class Textures:
    """Synthetic images of `_CLASSES` classes; `generator` draws the gratings of each class."""

    _GRATINGS = 3

    def __init__(self, generator: torch.Generator):
        shape = (_CLASSES, self._GRATINGS)
        self._waves = 1 + 5 * torch.rand(*shape, 2, generator=generator)  # cycles per image
        self._waves[..., 1] *= torch.where(torch.rand(shape, generator=generator) < 0.5, -1, 1)
        self._colours = torch.randn(*shape, 3, generator=generator)

    def draw(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 [count, 3, 32, 32] of about mean 0 and variance 1; labels, int64
        [count].
        """
        labels = torch.randint(0, _CLASSES, (count,), generator=generator)
        along = torch.arange(32) / 32
        waves = self._waves[labels]
        phase = torch.rand(count, self._GRATINGS, 1, 1, generator=generator)
        cycles = (
            waves[..., 0, None, None] * along[:, None]
            + waves[..., 1, None, None] * along[None, :]
            + phase
        )
        gratings = torch.sin(2 * torch.pi * cycles)
        images = torch.einsum("nghw,ngc->nchw", gratings, self._colours[labels]) / 2
        smooth = torch.randn(count, 3, 4, 4, generator=generator)
        images += F.interpolate(smooth, size=(32, 32), mode="bilinear", align_corners=False)
        return images + 0.3 * torch.randn(images.shape, generator=generator), labels


def _example(name: str) -> Any:
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


@contextlib.contextmanager
def _fixed_threads() -> Iterator[None]:
    """The bits of a sum depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(_THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)
