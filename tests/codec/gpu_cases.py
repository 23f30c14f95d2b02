"""What the codecs do on a CUDA device, against the CPU's codecs: the same cases for the fake device
(tests/device/test_gpu_codecs.py) and for a GPU (tests/gpu). Runs in a process that has the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch

from torch_cgx import codecs
from torch_cgx.codecs import Block, Float, Half, MaxMin, Rotated, Trellis

ops = torch.ops.torch_cgx

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BITS = range(1, 9)
BUCKETS = (1, 5, 64, 100, 512, 1000, 2048, 2049, 8192)
TILE = 2048  # kTile of csrc/codec/gpu/run.h
BORDERS = (511, 512, 513, 1000, 1023, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 8193, 20_001)
SHIFTS = (0, 1, 3, 8)  # values off the start of the memory, which is aligned to 16 bytes
ROUNDINGS = ("nearest", "stochastic")
WAYS = tuple(itertools.product(ROUNDINGS, (False, True)))  # rounding, skip_incomplete_buckets
CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
GUARD = 64
KEY = {"sequence": 5, "rank": 3, "index": 7}


def sizes(step: int) -> list[int]:
    """0 to 400, and what lies around the borders of buckets and tiles."""
    return [*range(0, 401, step), *BORDERS]


def values(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of several magnitudes, so that buckets differ; from 2^21 on they come again and again."""
    if n > 1 << 21:
        part = values((1 << 20) + 7, dtype)
        return part.repeat(-(-n // part.numel()))[:n].clone()
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=generator)
    return x.mul_(torch.exp2(torch.arange(n).div(37, rounding_mode="floor") % 9 - 4)).to(dtype)


def special(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """With NaN, infinities, zeros of both signs, the largest and the smallest numbers."""
    x = values(n).to(dtype)
    info = torch.finfo(dtype)
    odd = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, info.max, -info.max, info.tiny]
    odd += [info.smallest_normal / 2, -info.smallest_normal / 4, info.eps]
    for k, value in enumerate(odd):
        x[(k * 997 + 11) % n :: 9973] = value
    x[n // 2 : n // 2 + 700] = 1.25  # constant buckets
    x[n // 3 : n // 3 + 700] *= info.smallest_normal  # subnormal units
    ints = {4: torch.int32, 2: torch.int16}[x.element_size()]
    quiet = torch.tensor(float("nan"), dtype=dtype).view(ints)
    infinity = torch.tensor(float("inf"), dtype=dtype).view(ints)
    sign = torch.iinfo(ints).min
    for k, nan in enumerate([quiet | sign, quiet + 5, infinity + 1, infinity + 3 | sign]):
        x.view(ints)[(k * 131 + 89) % n :: 9973] = nan  # of either sign, with a payload, signalling
    return x


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, also of each NaN."""
    ints = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[a.element_size()]
    return torch.equal(a.view(ints), b.view(ints))


def on_device(x: torch.Tensor, device: str, shift: int = 0) -> torch.Tensor:
    """A copy that starts `shift` values off the start of its memory."""
    y = torch.empty(x.numel() + shift, dtype=x.dtype, device=device)[shift:]
    y.copy_(x)
    return y


def guarded(
    n: int, dtype: torch.dtype, device: str, shift: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory of a known pattern, and n values of it, `shift` behind an aligned place."""
    memory = torch.full((n + shift + 2 * GUARD,), 77, dtype=dtype, device=device)
    return memory, memory[GUARD + shift : GUARD + shift + n]


def check_guards(memory: torch.Tensor, n: int, shift: int, what: object) -> None:
    outside = memory.cpu().clone()
    outside[GUARD + shift : GUARD + shift + n] = 77
    assert (outside == 77).all(), f"{what}: wrote outside of its memory"


def check(codec: codecs.Codec, x: torch.Tensor, shift: int, device: str = "cuda") -> None:
    """Encodes, decodes and adds x, of the CPU, on the device; and compares every byte."""
    n, text = x.numel(), codec._text
    what = (codec, x.dtype, n, shift)
    wanted = codec.encode(x, **KEY)  # type: ignore[call-arg]
    there = on_device(x, device, shift)
    key = {"step": KEY["sequence"], "rank": KEY["rank"], "index": KEY["index"]}

    memory, sent = guarded(wanted.numel(), torch.uint8, device, 0)
    ops.encode.out(there, text, **key, out=sent)
    assert torch.equal(sent.cpu(), wanted), (what, "encode")
    check_guards(memory, wanted.numel(), 0, (what, "encode"))

    memory, out = guarded(n, x.dtype, device, shift)
    ops.decode.out(sent, text, out=out)
    assert same(out.cpu(), codec.decode(wanted, numel=n, dtype=x.dtype)), (what, "decode")
    check_guards(memory, n, shift, (what, "decode"))

    total = values(n)
    memory, out = guarded(n, torch.float32, device, shift)
    out.copy_(total)
    ops.decode_add(sent, text, dtype=x.dtype, out=out)
    ops.decode_add(wanted, text, dtype=x.dtype, out=total)
    assert same(out.cpu(), total), (what, "decode+add")
    check_guards(memory, n, shift, (what, "decode+add"))

    memory, out = guarded(n, x.dtype, device, shift)
    ops.roundtrip.out(there, text, **key, out=out)
    assert same(out.cpu(), codec.roundtrip(x, **KEY)), (what, "roundtrip")
    check_guards(memory, n, shift, (what, "roundtrip"))


def check_sizes(
    dtype: torch.dtype,
    bucket_size: int,
    of_sizes: Iterable[int],
    ways: Iterable[tuple[str, bool]] = WAYS,
    bits: Iterable[int] = BITS,
    device: str = "cuda",
) -> None:
    """All widths at all sizes, in all ways; shifts take turns."""
    shifts = itertools.cycle(SHIFTS)
    for n in of_sizes:
        x = values(n, dtype)
        for (rounding, skip), width in itertools.product(ways, bits):
            codec = MaxMin(width, bucket_size, rounding, 9, skip)
            check(codec, x, next(shifts), device)


def check_special(dtype: torch.dtype, device: str = "cuda") -> None:
    """What is not finite, or nearly not."""
    x = special(30_011, dtype)
    for bucket_size, rounding in itertools.product((5, 64, 2049), ROUNDINGS):
        for skip, bits in ((False, 1), (True, 4), (False, 8)):
            check(MaxMin(bits, bucket_size, rounding, 9, skip), x, bits % 4, device)
    x[::3] = 0
    for bucket_size, rounding in itertools.product((5, 64, 512, 2049), ROUNDINGS):
        check(MaxMin(4, bucket_size, rounding, 9, exact_zeros=True), x, 0, device)
    for name in ("bf16", "fp16"):
        check(Half(name), x, 1, device)


def half_cases() -> Iterator[tuple[Half, torch.Tensor, int]]:
    for name, dtype in itertools.product(("bf16", "fp16"), DTYPES):
        for n, shift in itertools.product((0, 1, 7, 400, TILE + 1, 20_001), (0, 3)):
            yield Half(name), values(n, dtype), shift


FORMATS = (
    Float(4, 3),
    Float(4, 3, variant="fn"),
    Float(5, 2, "stochastic", seed=9),
    Float(3, 2),
    Float(2, 1, overflow="saturate"),
    Float(1, 1, variant="fn"),
    Float(2, 2, "zero"),
    Float(3, 3, "stochastic", 8, seed=9),
    Float(6, 9),
    Float(5, 2, variant="fnuz"),
    Float(3, 4, variant="p3109"),
    Float(5, 10),
    *(
        Block(name, rounding=rounding, seed=9)
        for name, rounding in itertools.product(
            (
                *("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "mxint8"),
                "fp8_block128",
            ),
            ROUNDINGS,
        )
    ),
    Block("mxfp4", "rceil"),
)


def check_formats(dtype: torch.dtype, every: int = 1, device: str = "cuda") -> None:
    """Formats of each width, variant and rounding, of values and of blocks."""
    shifts = itertools.cycle(SHIFTS)
    sizes_of = (0, 1, 31, 33, 127, 129, 400, TILE - 1, TILE, TILE + 1, 20_001)
    for k, codec in enumerate(FORMATS):
        for n in sizes_of[k % every :: every]:
            check(codec, values(n, dtype), next(shifts), device)
        if (k + DTYPES.index(dtype)) % every == 0:
            check(codec, special(30_011, dtype), next(shifts), device)


def check_rotated(dtype: torch.dtype, every: int = 1, device: str = "cuda") -> None:
    """Both families of rotated blocks, at all widths: whole blocks, for warps, and the rest."""
    shifts = itertools.cycle(SHIFTS)
    kinds = [(Rotated, bits) for bits in BITS] + [(Trellis, bits) for bits in range(1, 5)]
    sizes_of = (1, 255, 256, 1023, 1024, 1025, 2048, 4095, 4096, 4097, 8193, 20_001)
    turns = itertools.product(kinds, (256, 512, 1024, 2048, 4096), ("mse", "unbiased"))
    for k, ((kind, bits), block_size, scale) in enumerate(turns):
        codec = kind(bits, block_size, scale, seed=9)
        for n in sizes_of[k % every :: every]:
            check(codec, values(n, dtype), next(shifts), device)
        if k % (4 * every) == 0:
            check(codec, special(30_011, dtype), next(shifts), device)
