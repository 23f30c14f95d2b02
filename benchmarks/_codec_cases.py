"""The measurements of benchmarks.codec: what each row encodes or decodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from benchmarks._codec_face import FACE_BITS, L2, NEAREST, SHORT, Case, face_cases
from tests import _machinery
from torch_cgx import _C

CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
SMALL = 1 << 16  # values: 256 KiB of float32
KIB = 1 << 8  # values: 1 KiB
BITS = range(1, 9)
# Widths of the codecs with a rotation, and their least encode / scan; decode+add / y += x.
ROTATIONS: dict[str, tuple[dict[int, float], float]] = {
    "rotated": (dict.fromkeys(BITS, 0.18), 0.14),
    "trellis": ({1: 0.06, 2: 0.06, 3: 0.04, 4: 0.04}, 0.12),
}
FORMATS: dict[str, dict[str, Any]] = {
    "float e4m3": {"exponent": 4, "mantissa": 3},
    "float e3m2": {"exponent": 3, "mantissa": 2},
    "float e4m3 stochastic": {"exponent": 4, "mantissa": 3, "rounding": "stochastic"},
    "block mxfp8_e4m3": {"format": "mxfp8_e4m3"},
    "block mxfp4": {"format": "mxfp4"},
}


def codec_of(bits: int, rounding: str, bucket_size: int) -> _C.Codec:
    return _C.Codec(bits=bits, bucket_size=bucket_size, rounding=rounding, seed=1)


def make_cases(numel: int, levels: list[str], bucket_size: int, quick: bool) -> list[Case]:
    torch.manual_seed(0)
    values = torch.randn(numel)
    # Written once, so that no case pays for page faults.
    target = torch.zeros(numel)
    best = levels[-1]
    cases: list[Case] = []

    def roof(name: str, run: Callable[[], Any], size: int = 4 * numel, of: str = "") -> None:
        cases.append(Case(name, best, size, run, of))

    def encode(dtype: torch.dtype, bits: int, rounding: str, level: str) -> None:
        x = values.to(dtype)
        s = codec_of(bits, rounding, bucket_size)
        out = torch.zeros(s.encoded_bytes(numel, dtype), dtype=torch.uint8)
        cases.append(
            Case(
                f"encode {NAMES[dtype]} {bits} {rounding}",
                level,
                x.nbytes,
                lambda: _machinery.codec_encode(
                    s, x.data_ptr(), CODES[dtype], numel, 1, 0, out.data_ptr()
                ),
                f"scan {NAMES[dtype]}",
            )
        )

    def decode(bits: int, add: bool, level: str) -> None:
        s = codec_of(bits, "nearest", bucket_size)
        payload = torch.zeros(s.encoded_bytes(numel, torch.float32), dtype=torch.uint8)
        _machinery.codec_encode(s, values.data_ptr(), 0, numel, 1, 0, payload.data_ptr())
        cases.append(
            Case(
                f"decode{'+add' if add else ''} {bits}",
                level,
                4 * numel,
                lambda: _machinery.codec_decode(
                    s, payload.data_ptr(), 0, numel, target.data_ptr(), add
                ),
                "y += x" if add else "memcpy",
            )
        )

    def scan(x: torch.Tensor, code: int) -> None:
        name = f"scan {NAMES[x.dtype]}"
        roof(name, lambda: _machinery.codec_scan(x.data_ptr(), code, numel), x.nbytes)

    def quantize() -> torch.Tensor:
        low, high = torch.aminmax(values)
        scale = float(high - low) / 255
        return torch.quantize_per_tensor(values, scale, round(-float(low) / scale), torch.quint8)

    for dtype, code in CODES.items():
        scan(values.to(dtype), code)
    roof("y += x", lambda: _machinery.codec_add(values.data_ptr(), 0, numel, target.data_ptr()))
    roof("memcpy", lambda: target.copy_(values))
    roof("torch aminmax", lambda: torch.aminmax(values))
    roof("torch quantize_per_tensor 8", quantize, of="scan fp32")
    roof(
        "torch quantize, extremes known",
        lambda: torch.quantize_per_tensor(values, 0.04, 128, torch.quint8),
        of="scan fp32",
    )
    widths = (1, 4, 8) if quick else BITS
    for bits in widths:
        encode(torch.float32, bits, "nearest", best)
        encode(torch.float32, bits, "stochastic", best)
        decode(bits, False, best)
        decode(bits, True, best)
    for dtype in (torch.float16, torch.bfloat16):
        for bits in (4, 8):
            encode(dtype, bits, "nearest", best)
    for level in levels:
        for name, (by_bits, _) in ROTATIONS.items():
            some = [bits for bits in by_bits if bits in (1, 2, 4) or not quick]
            cases += rotation_cases(name, some if level == best else [2], values, target, level)
    for name, parameters in FORMATS.items():
        made = _C.Codec(name.split()[0], **parameters)
        cases += cases_of(name, made, values, target, best)
    cases += half_cases(values, target, best)
    cases += zeros_cases(values, best)
    cases += face_cases(values, bucket_size, best)
    cases += small_cases(values[:SMALL], widths, bucket_size, best)
    cases += short_cases(values[:KIB], bucket_size, best)
    for level in levels[:-1]:
        for dtype in (torch.float16, torch.bfloat16):
            encode(dtype, 4, "nearest", level)
        encode(torch.float32, 4, "nearest", level)
        encode(torch.float32, 4, "stochastic", level)
        decode(4, True, level)
    return cases


def rotation_cases(
    name: str, widths: Iterable[int], values: torch.Tensor, target: torch.Tensor, level: str
) -> list[Case]:
    """Codecs with a rotation, in blocks of their default size."""
    cases = []
    for bits in widths:
        s = _C.Codec(name, bits=bits)
        cases += cases_of(f"{name} {bits}", s, values, target, level)
    return cases


def cases_of(
    name: str, s: _C.Codec, values: torch.Tensor, target: torch.Tensor, level: str
) -> list[Case]:
    n = values.numel()
    payload = torch.zeros(s.encoded_bytes(n, torch.float32), dtype=torch.uint8)

    def encode() -> None:
        _machinery.codec_encode(s, values.data_ptr(), 0, n, 1, 0, payload.data_ptr())

    def decode() -> None:
        _machinery.codec_decode(s, payload.data_ptr(), 0, n, target.data_ptr(), True)

    encode()
    return [
        Case(f"encode {name}", level, values.nbytes, encode, "scan fp32"),
        Case(f"decode+add {name}", level, values.nbytes, decode, "y += x"),
    ]


def zeros_cases(values: torch.Tensor, level: str) -> list[Case]:
    """What `exact_zeros` costs, of values half of which are zeros."""
    cases = []
    n = values.numel()
    sparse = torch.where(torch.arange(n) % 2 == 0, values, 0.0)
    for bits, on in itertools.product((2, 4, 8), (False, True)):
        s = _C.Codec("maxmin", bits=bits, exact_zeros=on)
        payload = torch.zeros(s.encoded_bytes(n, torch.float32), dtype=torch.uint8)

        def encode(s: Any = s, payload: torch.Tensor = payload) -> None:
            _machinery.codec_encode(s, sparse.data_ptr(), 0, n, 1, 0, payload.data_ptr())

        name = f"encode fp32 {bits} half zeros{', exact_zeros' if on else ''}"
        cases.append(Case(name, level, values.nbytes, encode, "scan fp32"))
    return cases


def half_cases(values: torch.Tensor, target: torch.Tensor, level: str) -> list[Case]:
    """bits=16: casts to the wire and sums from it, beside torch's."""
    cases = []
    n = values.numel()
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        s = _C.Codec(name)
        wire = values.to(dtype)

        def encode(s: Any = s, wire: torch.Tensor = wire) -> None:
            _machinery.codec_encode(s, values.data_ptr(), 0, n, 0, 0, wire.data_ptr())

        def decode(s: Any = s, wire: torch.Tensor = wire) -> None:
            _machinery.codec_decode(s, wire.data_ptr(), 0, n, target.data_ptr(), True)

        def cast(wire: torch.Tensor = wire) -> None:
            wire.copy_(values)

        def add(wire: torch.Tensor = wire) -> None:
            target.add_(wire)

        size = values.nbytes
        cases += [
            Case(f"encode {name} wire", level, size, encode, "scan fp32"),
            Case(f"torch cast to {name}", level, size, cast, "scan fp32"),
            Case(f"decode+add {name} wire", level, size, decode, "y += x"),
            Case(f"torch add of {name}", level, size, add, "y += x"),
        ]
    return cases


def small_cases(
    values: torch.Tensor, widths: Iterable[int], bucket_size: int, level: str
) -> list[Case]:
    """Values that stay in the second-level cache; many calls per sample."""
    n, calls = values.numel(), 100
    target = torch.zeros(n)
    cases: list[Case] = []

    def case(name: str, roof: str, run: Callable[[int], Any]) -> None:
        whole, empty = (lambda: run(n)), (lambda: run(1))
        cases.append(Case(name + L2, level, 4 * n, whole, roof, calls, empty))

    case("scan fp32", "", lambda count: _machinery.codec_scan(values.data_ptr(), 0, count))
    case(
        "y += x",
        "",
        lambda count: _machinery.codec_add(values.data_ptr(), 0, count, target.data_ptr()),
    )
    for bits in widths:
        for rounding in ("nearest", "stochastic"):
            s = codec_of(bits, rounding, bucket_size)
            payload = torch.zeros(s.encoded_bytes(n, torch.float32), dtype=torch.uint8)

            def encode(count: int, s: Any = s, payload: torch.Tensor = payload) -> None:
                _machinery.codec_encode(s, values.data_ptr(), 0, count, 1, 0, payload.data_ptr())

            case(f"encode fp32 {bits} {rounding}", "scan fp32" + L2, encode)

        def decode(add: bool, count: int, s: Any = s, payload: torch.Tensor = payload) -> None:
            _machinery.codec_decode(s, payload.data_ptr(), 0, count, target.data_ptr(), add)

        encode(n)
        case(f"decode+add {bits}", "y += x" + L2, partial(decode, True))
        if bits in FACE_BITS:
            case(f"decode {bits}", "", partial(decode, False))
    return cases + face_cases(values, bucket_size, level, L2, calls)


def short_cases(values: torch.Tensor, bucket_size: int, level: str) -> list[Case]:
    """1 KiB: the engine's functions, called from Python without torch, and torch_cgx.codecs."""
    n, calls = values.numel(), 1000
    target = torch.zeros(n)
    cases: list[Case] = []
    for bits in FACE_BITS:
        s = codec_of(bits, "nearest", bucket_size)
        payload = torch.zeros(s.encoded_bytes(n, torch.float32), dtype=torch.uint8)

        def encode(s: Any = s, payload: torch.Tensor = payload) -> None:
            _machinery.codec_encode(s, values.data_ptr(), 0, n, 1, 0, payload.data_ptr())

        def decode(add: bool, s: Any = s, payload: torch.Tensor = payload) -> None:
            _machinery.codec_decode(s, payload.data_ptr(), 0, n, target.data_ptr(), add)

        encode()
        for name, run in (
            (NEAREST.format(b=bits), encode),
            (f"decode {bits}", partial(decode, False)),
            (f"decode+add {bits}", partial(decode, True)),
        ):
            cases.append(Case(name + SHORT, level, values.nbytes, run, "", calls))
    return cases + face_cases(values, bucket_size, level, SHORT, calls)
