"""Registers the backend "cgx" with torch.distributed; loads nothing of the engine.

torch calls `register` at the end of `import torch` (entry-point group torch.backends), and `import
torch_cgx` calls it too, for installations without entry points or with
TORCH_DEVICE_BACKEND_AUTOLOAD=0.
"""

from __future__ import annotations

from typing import Any

_registered = False


def register() -> None:
    """Makes `init_process_group("cgx")` work. Idempotent; does nothing where torch has no
    torch.distributed.
    """
    global _registered
    if _registered:
        return
    import torch.distributed as dist

    if not dist.is_available():
        return
    # A list: torch takes a string apart into its characters here. "cuda" is claimed as well,
    # because init_process_group("cgx") makes the backend for the devices named here.
    dist.Backend.register_backend("cgx", _create, extended_api=True, devices=["cpu", "cuda"])
    _registered = True


def _create(dist_opts: Any, options: Any) -> Any:
    from torch_cgx._backend import create

    return create(dist_opts, options)
