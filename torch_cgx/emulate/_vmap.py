"""What torch.vmap does with casts: formats whose values do not depend on each other take a batch as
one tensor. Random numbers then follow from the numbers of the elements in the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_cgx.emulate._format import facts_of


def _check(format: str) -> None:
    if not facts_of(format)["elementwise"]:
        raise NotImplementedError(
            f"torch.vmap of a cast to {format}, which shares scales between values: cast the whole "
            "batch, with blocks along a dimension of each example"
        )


def _batched(op: Any) -> Any:
    def rule(info: Any, in_dims: tuple[Any, ...], tensor: torch.Tensor, *args: Any) -> Any:
        _check(args[0])
        return op(tensor, *args), in_dims[0]

    return rule


def _refused(what: str) -> Any:
    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"torch.vmap of a cast with {what}: cast the whole batch, outside of torch.vmap"
        )

    return rule


torch.library.register_vmap("torch_cgx::cast", _batched(torch.ops.torch_cgx.cast.default))
torch.library.register_vmap("torch_cgx::cast_statistics", _refused("statistics"))
