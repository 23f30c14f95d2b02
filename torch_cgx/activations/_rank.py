"""The rank that keys random numbers of this process's activations."""

from __future__ import annotations


def rank_of_process() -> int:
    """In the default group; 0 without one."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
