"""Operators of torch.library: samples and projections keyed by a tensor, for torch.compile and
FakeTensorMode, which trace no generators.

    projection_key(x) -> key                                      drawn from torch's generator
    projection_choose(x, key, keep, method, mean) -> (index, factor)    sampling.choose
    projection_project(x, key, rows, method) -> S x               sketch.project
    projection_back(values, key, size, method) -> values S        sketch.back

key: int64, one value of 0 to 2^63 - 1, on the CPU. With the rank it makes the seed, so that ranks
with equal keys draw different numbers; the same key gives the same S again.

projection_key is an operator of its own, as torch.compile may draw the numbers of torch.randint in
the backward pass again, and others. x: only what is large is not computed again to save memory.
"""

from __future__ import annotations

import torch

from torch_cgx.activations._rank import rank_of_process
from torch_cgx.activations.projection import sampling, sketch

_MOST_KEY = 2**63 - 1
_MOST = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mixed(key: int, rank: int) -> int:
    """By splitmix64, as the engine mixes its keys (csrc/codec/ops/random.h)."""
    z = (key + _GOLDEN * (rank + 1)) & _MOST
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MOST
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MOST
    return z ^ (z >> 31)


def _generator(key: torch.Tensor, device: torch.device) -> torch.Generator:
    # torch's generator of the CPU takes 32 bits of a seed.
    return torch.Generator(device).manual_seed(_mixed(int(key), rank_of_process()) >> 32)


def new_key() -> torch.Tensor:
    return torch.randint(_MOST_KEY, (), dtype=torch.int64, device="cpu")


def _key(x: torch.Tensor) -> torch.Tensor:
    return new_key()


def _choose(
    x: torch.Tensor, key: torch.Tensor, keep: int, method: str, mean: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    with torch._C._DisableAutocast():
        return sampling.choose(x, _generator(key, x.device), keep, method, mean)


def _project(x: torch.Tensor, key: torch.Tensor, rows: int, method: str) -> torch.Tensor:
    with torch._C._DisableAutocast():  # it would multiply by S, and sums, in its own type
        return sketch.project(x, _generator(key, x.device), rows, method)


def _back(values: torch.Tensor, key: torch.Tensor, size: int, method: str) -> torch.Tensor:
    with torch._C._DisableAutocast():
        return sketch.back(values, _generator(key, values.device), size, method)


_LIBRARY = torch.library.Library("torch_cgx", "FRAGMENT")
_LIBRARY.define(
    "projection_choose(Tensor x, Tensor key, SymInt keep, str method, Tensor? mean=None) "
    "-> (Tensor, Tensor)"
)
_LIBRARY.define("projection_project(Tensor x, Tensor key, SymInt rows, str method) -> Tensor")
_LIBRARY.define("projection_back(Tensor values, Tensor key, SymInt size, str method) -> Tensor")
_LIBRARY.define("projection_key(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_LIBRARY.impl("projection_key", _key, "CompositeExplicitAutograd")
_LIBRARY.impl("projection_choose", _choose, "CompositeExplicitAutograd")
_LIBRARY.impl("projection_project", _project, "CompositeExplicitAutograd")
_LIBRARY.impl("projection_back", _back, "CompositeExplicitAutograd")


@torch.library.register_fake("torch_cgx::projection_key")
def _fake_key(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((), dtype=torch.int64, device="cpu")


@torch.library.register_fake("torch_cgx::projection_choose")
def _fake_choose(
    x: torch.Tensor, key: torch.Tensor, keep: int, method: str, mean: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    index = x.new_empty((keep,), dtype=torch.int32, device=x.device)
    return index, x.new_empty((keep,), dtype=torch.float32, device=x.device)


@torch.library.register_fake("torch_cgx::projection_project")
def _fake_project(x: torch.Tensor, key: torch.Tensor, rows: int, method: str) -> torch.Tensor:
    return x.new_empty((rows, x.shape[1]), dtype=x.dtype, device=x.device)


@torch.library.register_fake("torch_cgx::projection_back")
def _fake_back(values: torch.Tensor, key: torch.Tensor, size: int, method: str) -> torch.Tensor:
    return values.new_empty((values.shape[0], size), dtype=values.dtype, device=values.device)
