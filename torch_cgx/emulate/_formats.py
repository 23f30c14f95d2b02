"""The classes of formats. docs/formats.md has their numbers, and what NaN, infinities and zeros
become."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

from torch_cgx.emulate._format import Format

if TYPE_CHECKING:
    import torch

    from torch_cgx.emulate._info import Info


@dataclasses.dataclass(frozen=True)
class Float(Format):
    """Numbers with a sign, `exponent` and `mantissa` bits: 1 + exponent + mantissa bits each.

    exponent: 1 to 8. mantissa: 0 to 23, without the leading one.
    rounding: "nearest", ties to even; "zero", toward zero; "stochastic", up with the probability of
        a value's place between two numbers.
    random_bits: 1 to 24 of a stochastic rounding; hardware has 8, 16 or 24. The place is cut to so
        many bits, so few bits bias toward zero by up to 2^-random_bits steps.
    subnormals: numbers below the least normal one, 2^(1 - bias). Without them such results are 0.
    overflow: what values beyond the largest number become, infinite ones included: "saturate", the
        largest number; "inf"; "nan". None: "inf" where the format has infinities, "saturate" for fn
        and finite, "nan" for fnuz. Rounding toward zero leaves finite values finite.
    variant: which codes are no finite numbers.
        "ieee": the highest exponent is infinity and NaN, as IEEE 754's.
        "fn": no infinity, the highest code is NaN: float8_e4m3fn.
        "finite": neither: the OCP formats of 6 and 4 bits. A NaN stays NaN.
        "fnuz": no infinity, no -0, whose code is NaN; the exponent's bias is one more.
        "p3109": IEEE P3109's draft: the highest code is infinity, that of -0 NaN; the bias is one
            more.
        "cpd": the rule of CPD (2019): ieee, where a value that rounds beyond the largest number
            stays (65536 in e5m2), bits below the least step are lost before rounding, and float32's
            subnormal values become 0. Values of float64 are rounded to float32 first.
        "scale": e8m0, Float(8, 0, variant="scale"): 2^-127 to 2^127 and NaN, which zero, negative
            and infinite values become.

    ValueError, TypeError: a parameter is not allowed; the text names it and what is allowed.
    """

    family: ClassVar[str] = "float"

    exponent: int
    mantissa: int
    rounding: str = "nearest"
    random_bits: int = 24
    subnormals: bool = True
    overflow: str | None = None
    variant: str = "ieee"

    def _parameters(self) -> dict[str, Any]:
        given = super()._parameters()
        return {**given, "overflow": "default" if self.overflow is None else self.overflow}


@dataclasses.dataclass(frozen=True)
class Block(Format):
    """Elements of a few bits, blocks of which share a scale: MX, NVFP4, FP8 by blocks.

    element: a Float, also by name ("e2m1"): the format of a value divided by its block's scale,
        with its rounding. Values beyond its largest number saturate if its overflow says so, as fn
        and finite do.
    size: values of a block, 1 to 2^20. A dimension that it does not divide ends with a smaller
        block.
    scale: "e8m0", a power of two, 8 bits; "fp32", amax over the element's largest number, 32 bits;
        "e4m3", which rounds that, over a float32 scale of the tensor by which the greatest block's
        scale is 448, to e4m3fn, 8 bits.
    scale_rounding: how an e8m0 scale 2^s follows from the block's greatest magnitude, amax, and
        the element's largest number l = f 2^e, 1 <= f < 2. "floor": s = floor(log2 amax) - e,
        OCP's rule, by which values above l 2^s saturate. "ceil": ceil(log2 amax) - e. "even": floor
        of amax rounded to the element's mantissa, ties up. "rceil": the least s for which none
        saturates.
    axis: the dimension that blocks lie along; or (rows, columns), blocks of so many values of the
        last two dimensions, where columns replaces `size`.

    A block with a NaN or an infinity becomes NaN, and no other block; with scale="e4m3", whose
    tensor shares a scale, the whole tensor does. Source: OCP Microscaling Formats 1.0, 5.3, 6.3.

    ValueError, TypeError: a parameter is not allowed; the text names it and what is allowed.
    """

    family: ClassVar[str] = "block"

    element: Float
    size: int = 32
    scale: str = "e8m0"
    scale_rounding: str = "floor"
    axis: int | tuple[int, int] = -1

    def __post_init__(self) -> None:
        if isinstance(self.element, str):
            from torch_cgx.emulate._presets import preset

            object.__setattr__(self, "element", preset(self.element))
        if not isinstance(self.element, Float):
            raise TypeError(
                f"Block: element={self.element!r}, allowed: a Float, or the name of one, as 'e2m1'"
            )
        if isinstance(self.axis, (tuple, list)):
            object.__setattr__(self, "axis", tuple(self.axis))
            if len(self.axis) != 2:
                raise ValueError(f"Block: axis={self.axis!r}, allowed: an int, (rows, columns)")
            object.__setattr__(self, "size", self.axis[1])
        elif isinstance(self.axis, bool) or not isinstance(self.axis, int):
            raise TypeError(f"Block: axis={self.axis!r}, allowed: an int, (rows, columns)")
        super().__post_init__()

    def _parameters(self) -> dict[str, Any]:
        return {
            **self.element._parameters(),
            "size": self.size,
            "rows": self.axis[0] if isinstance(self.axis, tuple) else 1,
            "scale": self.scale,
            "scale_rounding": self.scale_rounding,
        }


@dataclasses.dataclass(frozen=True)
class Fixed(Format):
    """Numbers in fixed point: k 2^-fraction, where k is an integer of `word` bits with its sign.

    word: 2 to 24. fraction: -100 to 100.
    rounding, random_bits: as Float's.
    symmetric: without -2^(word - 1), the lowest k of two's complement.

    Values beyond the numbers, infinite ones included, become the nearest of them. NaN stays NaN.

    ValueError, TypeError: a parameter is not allowed; the text names it and what is allowed.
    """

    family: ClassVar[str] = "fixed"

    word: int
    fraction: int
    rounding: str = "nearest"
    random_bits: int = 24
    symmetric: bool = False


@dataclasses.dataclass(frozen=True)
class Integer(Format):
    """Integers of a few bits, times a scale that some values share.

    bits: 2 to 16.
    scale: "absmax": the greatest magnitude becomes 2^(bits - 1) - 1, and -2^(bits - 1) is unused.
        "power": the same with the least power of two that holds it. "minmax": the range, widened to
        hold 0, has 2^bits - 1 steps, and a zero point, so that 0 stays 0.
    per: which values share it: "tensor"; "row", of the last dimension; "channel", with one number
        in the dimension `axis`; "block", `size` values of the last dimension.
    rounding, random_bits: as Float's.
    axis: of per="channel", the channels' dimension; of others the dimension that counts as the
        last.
        None: 0 for channels, else the last.

    A NaN or an infinity makes its group NaN, and no other one.

    ValueError, TypeError: a parameter is not allowed; the text names it and what is allowed.
    """

    family: ClassVar[str] = "integer"

    bits: int
    scale: str = "absmax"
    per: str = "tensor"
    size: int = 128
    rounding: str = "nearest"
    random_bits: int = 24
    axis: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.axis is None:
            object.__setattr__(self, "axis", 0 if self.per == "channel" else -1)
        if isinstance(self.axis, bool) or not isinstance(self.axis, int):
            raise TypeError(f"Integer: axis={self.axis!r}, allowed: an int, None")

    def _parameters(self) -> dict[str, Any]:
        return {name: value for name, value in super()._parameters().items() if name != "axis"}


@dataclasses.dataclass(frozen=True)
class ZScore(Format):
    """SmaQ: distances from the tensor's mean in units of its sigma, in two zones.

    main_bits: 3 to 16, of a value at most `main_threshold` sigmas from the mean, with a flag and a
        sign. outlier_bits: of others; their codes reach to `outlier_threshold` sigmas, and farther
        values get the last one.
    statistics: mean and sigma: "full", of all values (sigma over n - 1); "sampled", of 16 of them
        (over n); "range": the full mean, sigma = (max - min) / sqrt(2 ln n).
    rounding, random_bits: as Float's; SmaQ has "stochastic" and "zero".
    all_positive: negative results become 0.
    clamp: an outlier's code stays within its bits. False: as SmaQ's own, which let codes grow
        beyond the bits that it counted.

    A tensor of fewer than 8 values, or with sigma 0, is unchanged. A NaN or an infinity makes all
    of it NaN; of "sampled", itself alone if it is no sample. info(x).bits counts x's outliers.
    Source: SmaQ, IEEE CAL 20(2), 126-129, 2021.

    ValueError, TypeError: a parameter is not allowed; the text names it and what is allowed.
    """

    family: ClassVar[str] = "zscore"

    main_bits: int = 6
    outlier_bits: int = 8
    statistics: str = "full"
    rounding: str = "stochastic"
    random_bits: int = 24
    all_positive: bool = False
    clamp: bool = True
    main_threshold: float = 1.0
    outlier_threshold: float = 2.5

    def info(self, x: torch.Tensor | None = None) -> Info:
        """As Format.info(); of a tensor, its own outliers are counted, by mean and sigma of all its
        values also where a cast takes samples. Fewer than 8 values have their own type's bits.
        """
        info = super().info(x)
        if x is None or x.numel() == 0:
            return info
        if x.numel() < 8:
            own = 8 * x.element_size()
            return dataclasses.replace(info, bits=own, total_bits=own * x.numel(), side_bits=0)
        values = x.detach().double()
        sigma = values.std()
        if self.statistics == "range":
            sigma = (values.max() - values.min()) / math.sqrt(2 * math.log(x.numel()))
        outliers = int(((values - values.mean()).abs() / sigma > self.main_threshold).sum())
        side = info.side_bits or 0.0
        total = x.numel() * self.main_bits + outliers * (self.outlier_bits - self.main_bits) + side
        return dataclasses.replace(info, bits=total / x.numel(), total_bits=total)


@dataclasses.dataclass(frozen=True)
class S2FP8(Format):
    """e5m2 of magnitudes that are squeezed and shifted in the logarithm, so that the greatest
    becomes 2^15 and the mean of log2 becomes 0: 8 bits, and two float32 numbers a tensor.

    rounding, random_bits: as Float's.

    Zeros stay, and do not count in the mean; NaN and infinities stay, too. A tensor whose
    magnitudes are all equal is unchanged. Source: Cambier et al., ICLR 2020, in the logarithm
    throughout.

    ValueError, TypeError: a parameter is not allowed; the text names it and what is allowed.
    """

    family: ClassVar[str] = "s2fp8"

    rounding: str = "nearest"
    random_bits: int = 24
