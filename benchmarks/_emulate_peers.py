"""Other implementations of formats of numbers, for benchmarks/emulate.py: from float32 to the
format and back, as each offers it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch

Found = list[tuple[dict[str, Any], Callable[[], object], torch.Tensor]]
INSTALL = "make bench-peers"


def cases(x: torch.Tensor) -> tuple[Found, dict[str, str]]:
    """Calls by peer, and why peers are missing."""
    found: Found = []
    missing: dict[str, str] = {}
    for name, make in PEERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                some = make(x)
                for _, run, _ in some:
                    run()  # compiles, and shows what fails
        except ImportError:
            missing[name] = f"not installed: {INSTALL}"
        except Exception as error:  # of its own code
            line = (str(error).splitlines() or [""])[0]
            missing[name] = f"{type(error).__name__}: {line}"
        else:
            found += some
    return found, missing


def _case(name: str, of: str, run: Callable[[], object], x: torch.Tensor) -> Any:
    return {"name": name, "of": of, "version": version(name.split()[0])}, run, x


def _torch(x: torch.Tensor) -> Found:
    kinds = {"fp16": torch.float16, "e5m2": torch.float8_e5m2, "e4m3fn": torch.float8_e4m3fn}
    return [
        _case(f"torch {name}", name, lambda dtype=dtype: x.to(dtype).float(), x)
        for name, dtype in kinds.items()
    ]


def _ml_dtypes(x: torch.Tensor) -> Found:
    import ml_dtypes

    kinds = {"e5m2": ml_dtypes.float8_e5m2, "e4m3fn": ml_dtypes.float8_e4m3fn}
    values = x.numpy()
    return [
        _case(
            f"ml_dtypes {name}",
            name,
            lambda dtype=dtype: values.astype(dtype).astype(values.dtype),
            x,
        )
        for name, dtype in kinds.items()
    ]


def _gfloat(x: torch.Tensor) -> Found:
    import gfloat  # type: ignore[import-not-found]
    from gfloat import formats  # type: ignore[import-not-found]

    values = x.double().numpy()
    kinds = {"e5m2": formats.format_info_ocp_e5m2, "e4m3fn": formats.format_info_ocp_e4m3}
    return [
        _case(f"gfloat {name}", name, lambda kind=kind: gfloat.round_ndarray(kind, values), x)
        for name, kind in kinds.items()
    ]


def _torchao(x: torch.Tensor) -> Found:
    logging.disable(logging.CRITICAL)
    from torchao.prototype.mx_formats.mx_tensor import (  # type: ignore[import-not-found]
        to_dtype,
        to_mx,
    )

    def roundtrip(element: Any) -> torch.Tensor:
        scale, data = to_mx(x, element, 32)
        back: torch.Tensor = to_dtype(data, scale, element, 32, torch.float32)
        return back

    kinds = {"mxfp8_e4m3": torch.float8_e4m3fn, "mxfp4": torch.float4_e2m1fn_x2}
    return [
        _case(f"torchao {name}", name, lambda element=element: roundtrip(element), x)
        for name, element in kinds.items()
    ]


def _qtorch(x: torch.Tensor) -> Found:
    from qtorch.quant import float_quantize  # type: ignore[import-not-found]

    def of(rounding: str) -> Callable[[], object]:
        return lambda: float_quantize(x, exp=5, man=2, rounding=rounding)

    return [
        _case("qtorch e5m2", "e5m2", of("nearest"), x),
        _case("qtorch e5m2, stochastic", "e5m2, stochastic", of("stochastic"), x),
    ]


PEERS: dict[str, Callable[[torch.Tensor], Found]] = {
    "torch": _torch,
    "ml_dtypes": _ml_dtypes,
    "gfloat": _gfloat,
    "torchao": _torchao,
    "qtorch": _qtorch,
}
