"""Registers the backend "cgx" with torch.distributed, without loading the engine.

torch calls `register` at the end of `import torch` (entry-point group torch.backends), and `import
torch_cgx` calls it too, for installations without entry points or with
TORCH_DEVICE_BACKEND_AUTOLOAD=0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

_registered = False
_RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHED = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_STEP_ID")


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
    _hook_env_rendezvous()
    _registered = True


def _hook_env_rendezvous() -> None:
    """Makes `env://` find the variables that torchrun would have set, under mpirun and srun.

    torch has no public way to extend its own scheme, so this wraps the entry of a private table. If
    that table is not as expected, scripts call `torch_cgx.launch.setup()`.
    """
    # By name: the attribute torch.distributed.rendezvous is the function of that module.
    module = sys.modules.get("torch.distributed.rendezvous")
    table = getattr(module, "_rendezvous_handlers", None)
    if not isinstance(table, dict) or not callable(table.get("env")):
        if any(n in os.environ for n in _LAUNCHED) and not os.environ.get("RANK"):
            import torch

            from torch_cgx._warnings import warn

            warn(
                f"torch_cgx cannot extend env:// of torch {torch.__version__}: call "
                "torch_cgx.launch.setup() before init_process_group",
                RuntimeWarning,
            )
        return
    table["env"] = _env_handler(table["env"])


def _env_handler(original: Callable[..., Any]) -> Callable[..., Any]:
    def handler(url: str, *args: Any, **kwargs: Any) -> Any:
        complete = all(os.environ.get(name) for name in _RENDEZVOUS)
        if complete and "torch_cgx.launch" not in sys.modules:
            return original(url, *args, **kwargs)
        from torch_cgx.launch import rendezvous

        return rendezvous(original, url, *args, **kwargs)

    return handler


def _create(dist_opts: Any, options: Any) -> Any:
    from torch_cgx._backend import create

    return create(dist_opts, options)
