"""The engine's codec on numpy arrays, with guard bytes around everything it writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests import _machinery
from tests.oracle import Floats, Spec
from torch_cgx import _C

BITS = range(1, 9)
BUCKETS = (1, 2, 3, 7, 33, 64, 100, 512, 1000, 4096)
FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
TORCH = {FLOAT32: torch.float32, FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}
_GUARD = 64


def arguments(spec: Spec, skip: bool = False) -> tuple[_C.Codec]:
    """What the engine's functions on raw addresses take first."""
    return (
        _C.Codec(
            bits=spec.bits,
            bucket_size=spec.bucket_size,
            rounding="stochastic" if spec.stochastic else "nearest",
            seed=spec.seed,
            skip_incomplete_buckets=skip,
            exact_zeros=spec.exact_zeros,
        ),
    )


def tensor_bytes(x: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The memory of a contiguous tensor; works for bfloat16, of which numpy knows nothing."""
    return x.contiguous().view(-1).view(torch.uint8).numpy().copy()


def guarded(size: int, shift: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Memory with guards, and the view of `size` bytes within it that starts `shift` bytes off
    alignment."""
    memory = np.full(size + 2 * _GUARD + shift, 0xA5, np.uint8)
    return memory, memory[_GUARD + shift : _GUARD + shift + size]


def check_guards(memory: npt.NDArray[np.uint8], size: int, shift: int) -> None:
    before, after = memory[: _GUARD + shift], memory[_GUARD + shift + size :]
    assert (before == 0xA5).all() and (after == 0xA5).all(), "wrote outside of its memory"


def encode(
    x: npt.NDArray[Any] | torch.Tensor, spec: Spec, skip: bool = False, shift: int = 0
) -> bytes:
    """Payload of a float32 array or a tensor; the payload starts `shift` bytes off alignment."""
    tensor = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    code = {t: c for c, t in TORCH.items()}[tensor.dtype]
    args, n = arguments(spec, skip), tensor.numel()
    size = _machinery.codec_encoded_bytes(*args, n, code)
    memory, payload = guarded(size, shift)
    _machinery.codec_encode(
        *args,
        tensor.data_ptr(),
        code,
        n,
        spec.sequence,
        spec.rank,
        payload.ctypes.data,
        index=spec.index,
        stage=spec.stage,
    )
    check_guards(memory, size, shift)
    return payload.tobytes()


def decode(
    payload: bytes,
    n: int,
    spec: Spec,
    skip: bool = False,
    code: int = FLOAT32,
    add_to: Floats | None = None,
) -> Floats:
    """Values of a payload, or their sum with `add_to`."""
    memory, out = guarded(4 * n, 0)
    y = out.view(np.float32)
    if add_to is not None:
        y[:] = add_to
    # A buffer of exactly this size: tools that check memory see a read beyond it.
    data = np.frombuffer(payload, np.uint8).copy()
    _machinery.codec_decode(
        *arguments(spec, skip), data.ctypes.data, code, n, y.ctypes.data, add_to is not None
    )
    check_guards(memory, 4 * n, 0)
    return y.copy()


def same_bits(a: Floats, b: Floats) -> bool:
    return a.tobytes() == b.tobytes()
