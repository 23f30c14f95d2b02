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
        number: int = 0,
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
        number: int = 0,
        rank: int = 0,
        index: int = 0,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor: ...
    def encoded_bytes(self, numel: int, dtype: torch.dtype = torch.float32) -> int: ...

class MaxMin(Codec):
    """Uniform quantization between the minimum and the maximum of each bucket.

    With ``levels = 2**bits - 1``, in float32 whatever the tensor's type::

        unit = (max - min) / levels
        q = round((x - min) / unit)  # the code
        x^ = min + unit * q          # the decoded value

    With ``rounding="nearest"`` the error ``|x^ - x|`` is at most ``unit / 2`` and a few roundings
    of float32; docs/numerics.md states the bounds. A bucket of equal values is exact. A bucket with
    a NaN or an Inf decodes to NaN and affects no other bucket.

    With ``exact_zeros`` a value that is zero decodes to zero: a bucket that holds a zero and
    negative values gets a grid with zero on it, whose step is ``(max - min) / (levels - 1)`` at
    most. For rows of an embedding that must not move.

    Args:
        bits: Bits per value. Allowed: integers from 1 to 8.
        bucket_size: Number of values that share a minimum and a step (8 bytes on the wire).
            Allowed: integers from 1 to 1099511627776.
        rounding: Rounding of values to levels. Allowed: "nearest", "stochastic".
        seed: Seed of random numbers: of stochastic rounding, and of the signs of a rotation.
            Allowed: integers from 0 to 9223372036854775807.
        skip_incomplete_buckets: True: the last numel mod bucket_size values are sent exactly.
            Allowed: True or False.
        exact_zeros: True: `maxmin` keeps exact zeros zero (2 bits or more). Allowed: True or False.

    Raises:
        ValueError, TypeError: a field is out of range or of another type; the text names the
            field, its value and the allowed values.
    """
    def __init__(
        self,
        bits: int = 4,
        bucket_size: int = 512,
        rounding: str = "nearest",
        seed: int = 0,
        skip_incomplete_buckets: bool = False,
        exact_zeros: bool = False,
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
    @property
    def exact_zeros(self) -> bool: ...

class Rotated(Codec):
    """Random rotation of each block, then the best quantizer of Gaussian values.

    A block of values gets random signs and a Walsh-Hadamard transform, which makes its values close
    to Gaussian whatever they were. Each is then coded by the Lloyd-Max quantizer of N(0, 1), with
    one scale a block. At equal bits the error is far below that of ``MaxMin``; docs/numerics.md has
    figures. A block of zeros is exact. A block with a NaN or an Inf decodes to NaN and affects no
    other block.

    Args:
        bits: Bits per value. Allowed: integers from 1 to 8.
        block_size: Number of values that are rotated together and share a scale (4 bytes on the
            wire). Allowed: powers of two from 256 to 4096.
        scale: Scale of a block: mse has the least error, unbiased the right mean over ranks and
            steps. Allowed: "mse", "unbiased".
        seed: Seed of random numbers: of stochastic rounding, and of the signs of a rotation.
            Allowed: integers from 0 to 9223372036854775807.

    Raises:
        ValueError, TypeError: a field is out of range or of another type; the text names the
            field, its value and the allowed values.
    """
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
    """Random rotation of each block, then trellis-coded quantization: less error, more work.

    Blocks are rotated as for ``Rotated``; then the best path through a trellis of four states
    chooses the codes of a block together. At equal bits the squared error is 13 to 31 % below that
    of ``Rotated``; encoding takes longer. A block of zeros is exact. A block with a NaN or an Inf
    decodes to NaN and affects no other block.

    Args:
        bits: Bits per value. Allowed: integers from 1 to 4.
        block_size: Number of values that are rotated together and share a scale (4 bytes on the
            wire). Allowed: powers of two from 256 to 4096.
        scale: Scale of a block: mse has the least error, unbiased the right mean over ranks and
            steps. Allowed: "mse", "unbiased".
        seed: Seed of random numbers: of stochastic rounding, and of the signs of a rotation.
            Allowed: integers from 0 to 9223372036854775807.

    Raises:
        ValueError, TypeError: a field is out of range or of another type; the text names the
            field, its value and the allowed values.
    """
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
    """Values of fp32 rounded to 16 bits, as bf16 or fp16.

    Rounding is to nearest, ties to even. Tensors of 16 bits are coded in their own type, exact,
    whatever the format. Infinities stay infinite, and NaN stays NaN.

    Args:
        format: Format at 16 bits: bf16 has the range of fp32; fp16 is finer, but values from 65520
            on become infinite. Allowed: "bf16", "fp16".

    Raises:
        ValueError, TypeError: a field is out of range or of another type; the text names the
            field, its value and the allowed values.
    """
    def __init__(
        self,
        format: str = "bf16",
    ) -> None: ...
    @property
    def format(self) -> str: ...

class Float(Codec):
    """Values rounded to a sign, an exponent and a mantissa of a few bits.

    A value takes ``1 + exponent + mantissa`` bits, 2 to 8 or 16. No value depends on its
    neighbours, and zeros stay zeros. Values beyond the largest number become what ``overflow``
    says. A NaN or an Inf stays not finite, also where values saturate: an Inf becomes a NaN in
    formats without one. At 16 bits tensors of 16 bits are coded in their own type, exact.
    ``torch_cgx.emulate`` has the same formats as casts.

    Args:
        exponent: `float`: Bits of a number's exponent. Allowed: integers from 1 to 8.
        mantissa: `float`: Bits of a number's mantissa, without the leading one. Allowed: integers
            from 0 to 14.
        rounding: How values between two numbers round: to the nearest, ties to even; toward zero;
            or up with the probability of their place. Allowed: "nearest", "zero", "stochastic".
        random_bits: `float` and `block`: Random bits of a value, of stochastic rounding. Allowed:
            integers from 1 to 24.
        subnormals: `float`: Numbers below the least normal one; without them such results become 0.
            Allowed: True or False.
        overflow: `float`: What values beyond the largest number become, infinite ones included; by
            default an infinity, without one the largest number (fn) or NaN (fnuz). Allowed:
            "default", "saturate", "inf", "nan".
        variant: `float`: Which codes are infinite or NaN. Allowed: "ieee", "fn", "fnuz", "p3109".
        seed: Seed of random numbers of stochastic rounding. Allowed: integers from 0 to
            9223372036854775807.

    Raises:
        ValueError, TypeError: a field is out of range or of another type; the text names the
            field, its value and the allowed values.
    """
    def __init__(
        self,
        exponent: int = 4,
        mantissa: int = 3,
        rounding: str = "nearest",
        random_bits: int = 24,
        subnormals: bool = True,
        overflow: str = "default",
        variant: str = "ieee",
        seed: int = 0,
    ) -> None: ...
    @property
    def exponent(self) -> int: ...
    @property
    def mantissa(self) -> int: ...
    @property
    def rounding(self) -> str: ...
    @property
    def random_bits(self) -> int: ...
    @property
    def subnormals(self) -> bool: ...
    @property
    def overflow(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def seed(self) -> int: ...

class Block(Codec):
    """Numbers of a few bits, blocks of which share a scale: the MX formats.

    Blocks of 32 consecutive values of a layer share a power of two, a byte on the wire; of
    ``fp8_block128`` blocks of 128 share a float32. The decoded values are those of the cast of the
    same name in ``torch_cgx.emulate``. A block with a NaN or an Inf decodes to NaN and affects no
    other block. Zeros stay zeros. nvfp4 is not among the formats: it needs a scale of the whole
    tensor, of which a codec sees runs.

    Args:
        format: `block`: format of a block's values and of the scale that they share. Allowed:
            "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "mxint8",
            "fp8_block128".
        scale_rounding: `block`: How an e8m0 scale follows from the greatest magnitude: the power of
            two below or above it, of its rounded value, or the least without saturation. Allowed:
            "floor", "ceil", "even", "rceil".
        rounding: How values between two numbers round: to the nearest, ties to even; toward zero;
            or up with the probability of their place. Allowed: "nearest", "zero", "stochastic".
        random_bits: `float` and `block`: Random bits of a value, of stochastic rounding. Allowed:
            integers from 1 to 24.
        seed: Seed of random numbers of stochastic rounding. Allowed: integers from 0 to
            9223372036854775807.

    Raises:
        ValueError, TypeError: a field is out of range or of another type; the text names the
            field, its value and the allowed values.
    """
    def __init__(
        self,
        format: str = "mxfp8_e4m3",
        scale_rounding: str = "floor",
        rounding: str = "nearest",
        random_bits: int = 24,
        seed: int = 0,
    ) -> None: ...
    @property
    def format(self) -> str: ...
    @property
    def scale_rounding(self) -> str: ...
    @property
    def rounding(self) -> str: ...
    @property
    def random_bits(self) -> int: ...
    @property
    def seed(self) -> int: ...

def names() -> tuple[str, ...]: ...
def make(name: str, **params: Any) -> Codec: ...
