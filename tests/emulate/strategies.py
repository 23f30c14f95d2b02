"""What hypothesis draws for casts: formats of every class, and matrices of float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from torch_cgx import emulate

ROUNDINGS = st.sampled_from(["nearest", "zero", "stochastic"])
RANDOM_BITS = st.sampled_from([1, 8, 16, 24])
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([16, 32, 128, 1 << 20]))


@st.composite
def floats(draw: st.DrawFn) -> emulate.Float:
    """Parameters that do not go together are changed until they do."""
    variant = draw(st.sampled_from(["ieee", "fn", "finite", "fnuz", "p3109", "cpd", "scale"]))
    if variant == "scale":
        return emulate.e8m0
    given: dict[str, Any] = {
        "exponent": draw(st.integers(1, 8)),
        "mantissa": draw(st.integers(0, 23)),
        "rounding": draw(ROUNDINGS),
        "random_bits": draw(RANDOM_BITS),
        "subnormals": draw(st.booleans()),
        "overflow": draw(st.sampled_from([None, "saturate", "inf", "nan"])),
    }
    easier: list[dict[str, Any]] = [
        {},
        {"overflow": None},
        {"exponent": min(given["exponent"], 7), "overflow": None},
        {"rounding": "nearest", "subnormals": True, "overflow": None},
        {"exponent": 4, "mantissa": 3, "rounding": "nearest", "subnormals": True, "overflow": None},
    ]
    for changes in easier:
        try:
            return emulate.Float(**{**given, **changes}, variant=variant)
        except ValueError:
            continue
    raise AssertionError(f"no format of the variant {variant}")


@st.composite
def blocks(draw: st.DrawFn) -> emulate.Block:
    names = [n for n in emulate.presets() if isinstance(emulate.preset(n), emulate.Block)]
    format = emulate.preset(
        draw(st.sampled_from(names)), rounding=draw(ROUNDINGS), random_bits=draw(RANDOM_BITS)
    )
    assert isinstance(format, emulate.Block)
    scale = draw(st.sampled_from(["e8m0", "fp32", "e4m3"]))
    rounding = "floor"
    if scale == "e8m0":
        rounding = draw(st.sampled_from(["floor", "ceil", "even", "rceil"]))
    size = draw(SIZES)
    axis = draw(st.sampled_from([-1, 0, (2, 3), (16, 16)]))
    return emulate.Block(format.element, size, scale, rounding, axis)


@st.composite
def fixed(draw: st.DrawFn) -> emulate.Fixed:
    return emulate.Fixed(
        draw(st.integers(2, 24)),
        draw(st.integers(-40, 40)),
        draw(ROUNDINGS),
        draw(RANDOM_BITS),
        draw(st.booleans()),
    )


@st.composite
def integers(draw: st.DrawFn) -> emulate.Integer:
    return emulate.Integer(
        draw(st.integers(2, 16)),
        draw(st.sampled_from(["absmax", "minmax", "power"])),
        draw(st.sampled_from(["tensor", "row", "channel", "block"])),
        draw(SIZES),
        draw(ROUNDINGS),
        draw(RANDOM_BITS),
        draw(st.sampled_from([None, -1, 0])),
    )


@st.composite
def zscores(draw: st.DrawFn) -> emulate.ZScore:
    main = draw(st.integers(3, 16))
    return emulate.ZScore(
        main,
        draw(st.integers(main, 16)),
        draw(st.sampled_from(["full", "sampled", "range"])),
        draw(ROUNDINGS),
        draw(RANDOM_BITS),
        draw(st.booleans()),
        draw(st.booleans()),
    )


ELEMENTWISE = st.one_of(floats(), fixed())
SHARED = st.one_of(
    blocks(),
    integers(),
    zscores(),
    st.builds(emulate.S2FP8, ROUNDINGS, RANDOM_BITS),
)
FORMATS = st.one_of(ELEMENTWISE, SHARED)

_NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
_SHAPES = st.tuples(st.integers(0, 5), st.integers(0, 40))


@st.composite
def _normal(draw: st.DrawFn) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    rows, columns = draw(_SHAPES)
    spread = draw(st.sampled_from([0, 3, 40]))
    power = np.exp2(rng.integers(-spread, spread + 1, (rows, 1)))
    return (rng.standard_normal((rows, columns)) * power).astype(np.float32)


MATRICES = st.one_of(hnp.arrays(np.float32, _SHAPES, elements=_NUMBERS), _normal()).map(
    torch.from_numpy
)
