# Made by tools/generate.py from the engine's declarations.
from typing import Any

import torch

from torch_cgx import _C

class Codec:
    _engine: _C.Codec
    def encode(
        self,
        tensor: torch.Tensor,
        *,
        sequence: int = 0,
        rank: int = 0,
        index: int = 0,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor: ...
    def decode(
        self,
        payload: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        numel: int | None = None,
        dtype: torch.dtype | None = None,
        add: bool = False,
    ) -> torch.Tensor: ...
    def roundtrip(
        self,
        tensor: torch.Tensor,
        *,
        sequence: int = 0,
        rank: int = 0,
        index: int = 0,
    ) -> torch.Tensor: ...
    def encoded_bytes(self, numel: int, dtype: torch.dtype = torch.float32) -> int: ...

class MaxMin(Codec):
    def __init__(
        self,
        bits: int = 4,
        bucket_size: int = 512,
        rounding: str = "nearest",
        seed: int = 0,
        skip_incomplete_buckets: bool = False,
    ) -> None: ...
    @property
    def bits(self) -> int: ...
    @property
    def bucket_size(self) -> int: ...
    @property
    def rounding(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def skip_incomplete_buckets(self) -> bool: ...

class Rotated(Codec):
    def __init__(
        self,
        bits: int = 4,
        block_size: int = 1024,
        scale: str = "mse",
        seed: int = 0,
    ) -> None: ...
    @property
    def bits(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def scale(self) -> str: ...
    @property
    def seed(self) -> int: ...

class Trellis(Codec):
    def __init__(
        self,
        bits: int = 2,
        block_size: int = 1024,
        scale: str = "mse",
        seed: int = 0,
    ) -> None: ...
    @property
    def bits(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def scale(self) -> str: ...
    @property
    def seed(self) -> int: ...

class Half(Codec):
    def __init__(
        self,
        format: str = "bf16",
    ) -> None: ...
    @property
    def format(self) -> str: ...

def names() -> tuple[str, ...]: ...
def make(name: str, **params: Any) -> Codec: ...
