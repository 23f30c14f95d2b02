"""The public functions of systems that torch_cgx succeeds, under their names and in their formats.

    from torch_cgx.compat import cuda_float_compress, fewbit

is for programs and files that were written for such a system: one import changes, payloads of
either side are read by the other. The text and code are torch_cgx's own. What a system got wrong is
right here where its format allows, and each module lists that. New programs find more in
`torch_cgx` itself.

`register_layer`, `set_quantization_bits`, `set_quantization_bucket_size` and `clear_layers` are for
scripts of IST-DASLab's torch_cgx (docs/configuration.md, Layers that old scripts register).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_cgx._C import (
        clear_layers,
        register_layer,
        set_quantization_bits,
        set_quantization_bucket_size,
    )

__all__ = [
    "clear_layers",
    "register_layer",
    "set_quantization_bits",
    "set_quantization_bucket_size",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch_cgx import _C

    return getattr(_C, name)
