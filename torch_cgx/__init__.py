"""torch_cgx: a torch.distributed backend that all-reduces gradients at 1-8 bits per value.

    import torch.distributed as dist
    dist.init_process_group("cgx")

Importing this package registers the backend and loads nothing else: the engine (`torch_cgx._C`)
comes with the first process group, or with the first use of a name below.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# First, and before the registration: torch may be in the middle of its own import (which loads
# `torch_cgx._autoload` through an entry point), or this import starts torch's, which then loads
# that module; both ways end with one registration.
import torch  # noqa: F401

from torch_cgx._autoload import register as _register

if TYPE_CHECKING:
    from torch_cgx import codecs, compat, nn
    from torch_cgx._C import (
        AbortedError,
        CgxError,
        MismatchError,
        NonFiniteError,
        Options,
        PeerLostError,
        ResourceError,
        TimeoutError,
    )
    from torch_cgx._collectives import (
        all_gather_into_tensor,
        all_gather_single,
        all_reduce,
        reduce_scatter_single,
        reduce_scatter_tensor,
        reset_stats,
        stats,
        tuning,
    )
    from torch_cgx._config import Layer
    from torch_cgx._counters import Counters, Stats, Tuning
    from torch_cgx._exchange import all_to_all_single, broadcast
    from torch_cgx._flight_record import dump_flight_record, flight_record
    from torch_cgx._point_to_point import irecv, isend, recv, send
    from torch_cgx._simulate import Simulation, simulate
    from torch_cgx._simulate_moves import (
        SimulatedMove,
        simulate_all_to_all,
        simulate_broadcast,
        simulate_send,
    )

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "CgxError",
    "Counters",
    "Layer",
    "MismatchError",
    "NonFiniteError",
    "Options",
    "PeerLostError",
    "ResourceError",
    "SimulatedMove",
    "Simulation",
    "Stats",
    "TimeoutError",
    "Tuning",
    "__version__",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all_single",
    "broadcast",
    "codecs",
    "compat",
    "dump_flight_record",
    "flight_record",
    "irecv",
    "isend",
    "nn",
    "recv",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "reset_stats",
    "send",
    "simulate",
    "simulate_all_to_all",
    "simulate_broadcast",
    "simulate_send",
    "stats",
    "tuning",
]

_HOME = {
    "torch_cgx._C": (
        "AbortedError",
        "CgxError",
        "MismatchError",
        "NonFiniteError",
        "Options",
        "PeerLostError",
        "ResourceError",
        "TimeoutError",
    ),
    "torch_cgx._collectives": (
        "all_gather_into_tensor",
        "all_gather_single",
        "all_reduce",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
        "reset_stats",
        "stats",
        "tuning",
    ),
    "torch_cgx._config": ("Layer",),
    "torch_cgx._counters": ("Counters", "Stats", "Tuning"),
    "torch_cgx._exchange": ("all_to_all_single", "broadcast"),
    "torch_cgx._flight_record": ("dump_flight_record", "flight_record"),
    "torch_cgx._point_to_point": ("irecv", "isend", "recv", "send"),
    "torch_cgx._simulate": ("Simulation", "simulate"),
    "torch_cgx._simulate_moves": (
        "SimulatedMove",
        "simulate_all_to_all",
        "simulate_broadcast",
        "simulate_send",
    ),
}
# Former places of what torch_cgx.compat has.
_MOVED = ("clear_layers", "register_layer", "set_quantization_bits", "set_quantization_bucket_size")
_LAZY = {name: module for module, names in _HOME.items() for name in names}

_register()


def __getattr__(name: str) -> Any:
    if name == "_C" or _LAZY.get(name) == "torch_cgx._C":
        from torch_cgx._build_info import load_engine

        engine = load_engine()
        value = engine if name == "_C" else getattr(engine, name)
    elif name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    elif name in ("codecs", "compat", "nn"):
        value = importlib.import_module(f"torch_cgx.{name}")
    elif name in _MOVED:
        from torch_cgx._renamed import warn_of_old

        warn_of_old(f"torch_cgx.{name}", f"torch_cgx.compat.{name}")
        return getattr(importlib.import_module("torch_cgx.compat"), name)
    else:
        raise AttributeError(f"module 'torch_cgx' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
