"""Whether a tensor's values lie in its storage."""

from __future__ import annotations

import torch


def check_storage(tensor: torch.Tensor, what: str) -> None:
    """ValueError: the storage is shorter than the tensor's values need; reading them would end the
    process. what: cannot be done therefore, such as "cannot be out".
    """
    if tensor.numel() == 0 or tensor.is_meta:
        return
    try:
        held = tensor.untyped_storage().nbytes()
    except RuntimeError:  # of torch.vmap, torch.func or a trace: it has none
        return
    dims = zip(tensor.shape, tensor.stride(), strict=True)
    values = tensor.storage_offset() + 1 + sum((size - 1) * stride for size, stride in dims)
    needed = values * tensor.element_size()
    if needed > held:
        raise ValueError(
            f"a tensor of shape {list(tensor.shape)}, whose values end at byte {needed} of its "
            f"storage, {what}: the storage was resized to {held} bytes, as FSDP does to free "
            "parameters"
        )
