"""Which formats a training has where: recipes as plain dicts, with their sources."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from typing import Any

from torch_cgx.emulate._format import Format
from torch_cgx.emulate._formats import Block, Float, ZScore
from torch_cgx.emulate._presets import preset, presets
from torch_cgx.emulate.gemm.formats import nearest

Recipe = dict[str, Any]
MEMORY = ("weights", "activations", "gradients", "gradient_maps", "optimizer_state")
KEYS = ("name", "source", "gemm", "first_last", "layers", *MEMORY)


def _bf16() -> Recipe:
    return {
        "name": "bf16",
        "source": "Kalamkar et al. 2019, arXiv 1905.12322: weights of float32, all else bfloat16",
        "gemm": "bf16",
        "first_last": "cast",
        "activations": "bf16",
        "gradient_maps": "bf16",
    }


def _by_tensor(scale: str, name: str, source: str) -> Recipe:
    forward = {"format": "e4m3fn", "scale": scale}
    backward = {"format": "e5m2", "scale": scale}
    if scale == "delayed":
        forward["history"] = backward["history"] = 1024  # type: ignore[assignment]
    return {
        "name": name,
        "source": source,
        "gemm": {"input": forward, "weight": forward, "gradient": backward},
        "first_last": "exact",
    }


def _fp8_delayed() -> Recipe:
    return _by_tensor(
        "delayed",
        "fp8_delayed",
        "Micikevicius et al. 2022, arXiv 2209.05433; Transformer Engine's DelayedScaling: the "
        "scale follows the greatest of the last 1024 amaxes",
    )


def _fp8_current() -> Recipe:
    return _by_tensor(
        "current",
        "fp8_current",
        "Micikevicius et al. 2022, arXiv 2209.05433; Transformer Engine's Float8CurrentScaling",
    )


def _fp8_block128() -> Recipe:
    return {
        "name": "fp8_block128",
        "source": "DeepSeek-V3, arXiv 2412.19437, 3.3: tiles of 1 x 128, weights of 128 x 128",
        "gemm": {
            "input": "fp8_block128",
            "weight": preset("fp8_block128", axis=(128, 128)),
            "gradient": "fp8_block128",
        },
        "first_last": "exact",
    }


def _mx(name: str, format: Format, source: str) -> Recipe:
    return {"name": name, "source": source, "gemm": format, "first_last": "exact"}


def _mxfp8() -> Recipe:
    source = "NVIDIA 2025, arXiv 2506.08027: e4m3 for all operands, scales rounded up"
    return _mx("mxfp8", preset("mxfp8_e4m3", scale_rounding="rceil"), source)


def _mxfp6() -> Recipe:
    source = "Rouhani et al. 2023, arXiv 2310.10537: MXFP6 (e3m2) for all operands"
    return _mx("mxfp6", preset("mxfp6_e3m2"), source)


def _mxfp4() -> Recipe:
    source = "OCP Microscaling Formats 1.0: MXFP4 for all operands, rounded to nearest"
    return _mx("mxfp4", preset("mxfp4"), source)


def _nvfp4() -> Recipe:
    return {
        "name": "nvfp4",
        "source": "NVIDIA 2025, arXiv 2509.25149: weights in blocks of 16 x 16, gradients rounded "
        "stochastically, a random Hadamard transform of wgrad's operands, the last layers exact",
        "gemm": {
            "input": "nvfp4",
            "weight": preset("nvfp4", axis=(16, 16)),
            "gradient": preset("nvfp4", rounding="stochastic"),
            "hadamard": 16,
        },
        "first_last": (1, 0.15),
    }


def _smaq(main: int, outlier: int, clamp: bool = False) -> Recipe:
    """clamp: outliers' codes stay within their bits. SmaQ's own do not, though it counts so many:
    without its larger codes 6/8 bits do not train (docs/emulated_training.md).
    """
    format = ZScore(main, outlier, clamp=clamp)
    codes = "codes within their bits" if clamp else "codes of far outliers beyond their bits"
    return {
        "name": f"smaq{main}{outlier}{'_clamped' if clamp else ''}",
        "source": "SmaQ, IEEE Computer Architecture Letters 20(2), 126-129, 2021: all that memory "
        f"holds; weights of BatchNorm2d stay exact; {codes}",
        "weights": {"format": format, "except": ["BatchNorm2d"]},
        "activations": format,
        "gradients": format,
        "gradient_maps": format,
        "optimizer_state": format,
    }


def _cpd(exponent: int, mantissa: int) -> Recipe:
    return {
        "name": f"cpd({exponent},{mantissa})",
        "source": "CPD, arXiv 1911.08907: gradients, whose sums of ranks are rounded; aps shifts "
        "each parameter's gradient into the format's range first",
        "gradients": {"format": Float(exponent, mantissa, variant="cpd"), "aps": False},
    }


_RECIPES: dict[str, Callable[[], Recipe]] = {
    "bf16": _bf16,
    "fp8_delayed": _fp8_delayed,
    "fp8_current": _fp8_current,
    "fp8_block128": _fp8_block128,
    "mxfp8": _mxfp8,
    "mxfp6": _mxfp6,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "smaq68": lambda: _smaq(6, 8),
    "smaq68_clamped": lambda: _smaq(6, 8, clamp=True),
    "smaq57": lambda: _smaq(5, 7),
    "smaq46": lambda: _smaq(4, 6),
    "smaq35": lambda: _smaq(3, 5),
    "cpd(5,2)": lambda: _cpd(5, 2),
    "cpd(4,3)": lambda: _cpd(4, 3),
    "cpd(3,0)": lambda: _cpd(3, 0),
}
_CPD = re.compile(r"cpd(?:\((\d+), ?(\d+)\)|(\d)(\d))")
_SMAQ = re.compile(r"smaq(?:\((\d+), ?(\d+)\)|(\d)(\d))")


def recipes() -> tuple[str, ...]:
    """The names that `recipe` knows. Besides, cpd(E,M) and smaq(MAIN,OUTLIER) take other numbers;
    those of one digit may go without brackets: cpd43."""
    return tuple(_RECIPES)


def recipe(name: str) -> Recipe:
    """A recipe for `apply`: a new dict, which can be printed and changed. docs/emulated_training.md
    describes its keys. ValueError: there is no such recipe, or a format has no such numbers.
    """
    if isinstance(name, str):
        known = name.strip().lower()
        if known in _RECIPES:
            return copy.deepcopy(_RECIPES[known]())
        for pattern, make in ((_CPD, _cpd), (_SMAQ, _smaq)):
            if match := pattern.fullmatch(known):
                first, second = (int(one) for one in match.groups() if one is not None)
                return make(first, second)
    hint = ""
    if isinstance(name, str) and ("-" in name or "+" in name):
        hint = (
            "; names with parts and options are emulate.compare's, without(recipe, part) a function"
        )
    elif isinstance(name, Format) or (isinstance(name, str) and name.lower() in presets()):
        hint = "; gemm= takes a format"
    raise ValueError(
        f"recipe={name!r}; allowed: {', '.join(_RECIPES)}, cpd(E,M), smaq(MAIN,OUTLIER), or a dict"
        f"{hint}"
    )


def without(given: Recipe, part: str) -> Recipe:
    """A recipe without one of its parts, for comparisons: "hadamard", "stochastic" (rounding to
    nearest instead), "blocks2d" (blocks of rows instead of rectangles), "first_last" (all layers
    cast), or a kind of tensor that memory holds, as "optimizer_state", which stays exact then.
    ValueError: it lacks the part, or there is no such part.
    """
    if not isinstance(given, dict):
        raise TypeError(f"the recipe is of type {type(given).__name__}; allowed: a dict")
    changed: Recipe
    if part == "first_last":
        changed = copy.deepcopy(given)
        if "gemm" in given or "layers" in given:
            changed["first_last"] = "cast"
    elif part in MEMORY:
        changed = {key: copy.deepcopy(one) for key, one in given.items() if key != part}
    elif part in _PLAIN:
        changed = _changed(given, _PLAIN[part])
    else:
        raise ValueError(f"part={part!r}; allowed: {', '.join((*_PLAIN, 'first_last', *MEMORY))}")
    name = given.get("name", "the recipe")
    if changed == given:
        raise ValueError(f"{name} has no {part}")
    changed["name"] = f"{name}-{part}"
    return changed


def _changed(given: Any, change: Callable[[Any], Any]) -> Any:
    """A copy with each format changed, and each dict."""
    if isinstance(given, dict):
        return change({key: _changed(value, change) for key, value in given.items()})
    if isinstance(given, str) and given.lower() in presets():
        plain = preset(given)
        changed = change(plain)
        return given if changed == plain else changed
    return change(copy.deepcopy(given))


def _without_hadamard(given: Any) -> Any:
    if isinstance(given, dict) and given.get("hadamard"):
        return {key: value for key, value in given.items() if key != "hadamard"}
    return given


def _nearest(format: Any) -> Any:
    return nearest(format) if isinstance(format, Format) and format.stochastic else format


def _by_rows(format: Any) -> Any:
    if isinstance(format, Block) and isinstance(format.axis, tuple):
        return dataclasses.replace(format, axis=-1)
    return format


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "hadamard": _without_hadamard,
    "stochastic": _nearest,
    "blocks2d": _by_rows,
}
