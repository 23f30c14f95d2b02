"""What a call or a layer asks for, checked and turned into the engine's `Spec` (None: exact).

A configuration is a dict of the keys below, a codec of `torch_cgx.codecs`, a `torch_cgx.Options`,
or None. Keys that it leaves open come from the group's options, then from the environment, then
from the defaults: the order that the backend itself uses.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_cgx._warnings import warn

if TYPE_CHECKING:
    from torch_cgx import _C
    from torch_cgx.codecs import Half, MaxMin

    Config = Mapping[str, Any] | _C.Options | _C.Spec | MaxMin | Half

EXACT_BITS = 32
HALF_BITS = 16
MAX_BITS = 8  # more bits are exact, except HALF_BITS
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

# key -> (environment variable, default); the part of the backend's table (csrc/backend/settings.cc)
# that a codec needs
_SETTINGS: dict[str, tuple[str, Any]] = {
    "bits": ("CGX_COMPRESSION_QUANTIZATION_BITS", EXACT_BITS),
    "half": ("CGX_HALF", "bf16"),
    "bucket_size": ("CGX_COMPRESSION_BUCKET_SIZE", 512),
    "skip_incomplete_buckets": ("CGX_COMPRESSION_SKIP_INCOMPLETE_BUCKETS", False),
    "codec": ("CGX_COMPRESSION_TYPE", "maxmin"),
    "rounding": ("CGX_COMPRESSION_ROUNDING", "nearest"),
    "seed": ("CGX_COMPRESSION_SEED", 0),
}
_MINIMAL_SIZE = "CGX_COMPRESSION_MINIMAL_SIZE"
_INTEGERS = {"bits": (1, EXACT_BITS), "bucket_size": (1, _INT32_MAX), "seed": (0, _INT64_MAX)}
_ROUNDINGS = ("nearest", "stochastic")
HALVES = ("bf16", "fp16")

KEYS = tuple(_SETTINGS)


class Layer(NamedTuple):
    """Consecutive values of a tensor that share a configuration.

    numel: number of values, >= 0. config: as in `all_reduce`; None: exact. bits above 8
    other than 16 are exact too.
    """

    numel: int
    config: Any = None


def check(key: str, value: Any, where: str = "config") -> Any:
    """The canonical value of one key. ValueError or TypeError names the key, the value and what is
    allowed.
    """
    if key not in _SETTINGS:
        raise ValueError(f"{where} has the unknown key {key!r}; allowed: {', '.join(KEYS)}")
    if key in _INTEGERS:
        low, high = _INTEGERS[key]
        try:
            if isinstance(value, bool):
                raise TypeError
            number = operator.index(value)
        except TypeError:
            raise TypeError(
                f"{where}: {key}={value!r} is not an integer; allowed: {low} to {high}"
            ) from None
        if not low <= number <= high:
            raise ValueError(f"{where}: {key}={value!r} is out of range; allowed: {low} to {high}")
        if key == "bits":
            warn_of_exact(number, where)
        return number
    if key == "skip_incomplete_buckets":
        if not isinstance(value, (bool, int)) or value not in (0, 1):
            raise TypeError(f"{where}: {key}={value!r}; allowed: True, False")
        return bool(value)
    if not isinstance(value, str):
        raise TypeError(f"{where}: {key}={value!r} is not a string; allowed: {_texts_of(key)}")
    if value not in _names_of(key):
        raise ValueError(f"{where}: {key}={value!r}; allowed: {_texts_of(key)}")
    return value


def is_exact(bits: int) -> bool:
    """Whether this number of bits means values in the tensor's own type."""
    return bits > MAX_BITS and bits != HALF_BITS


def warn_of_exact(bits: int, where: str) -> None:
    """Warns of numbers of bits that look like compression but mean exact values."""
    if is_exact(bits) and bits != EXACT_BITS:
        warn(
            f"cgx: {where}: bits={bits} means exact, nothing is compressed; 1 to {MAX_BITS} and "
            f"{HALF_BITS} compress, {EXACT_BITS} is exact without this warning"
        )


def _names_of(key: str) -> tuple[str, ...]:
    from torch_cgx import codecs

    return {"rounding": _ROUNDINGS, "half": HALVES}.get(key) or codecs.names()


def _texts_of(key: str) -> str:
    return ", ".join(_names_of(key))


def check_dict(config: Mapping[str, Any], where: str = "config") -> dict[str, Any]:
    """A copy with canonical values."""
    return {key: check(key, value, where) for key, value in config.items()}


def from_environment(key: str) -> Any:
    """The value of the key's environment variable, or None where that is unset or empty."""
    variable, _ = _SETTINGS[key]
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if key in _INTEGERS:
        return check(key, _integer(variable, text), variable)
    if key == "skip_incomplete_buckets":
        if text not in ("0", "1"):
            raise ValueError(f"{variable}={text!r}; allowed: 0, 1")
        return text == "1"
    return check(key, text.lower(), variable)


def variable_of(key: str) -> str:
    """The environment variable of a key."""
    return _SETTINGS[key][0]


def defaults() -> dict[str, Any]:
    """The value of each key without a group: from the environment, else the built-in one."""
    found = {key: from_environment(key) for key in KEYS}
    return {key: _SETTINGS[key][1] if value is None else value for key, value in found.items()}


def minimal_size() -> int:
    """CGX_COMPRESSION_MINIMAL_SIZE in values: smaller tensors and layers are exact. Default 16."""
    text = os.environ.get(_MINIMAL_SIZE, "").strip()
    size = _integer(_MINIMAL_SIZE, text) if text else 16
    if size < 0:
        raise ValueError(f"{_MINIMAL_SIZE}={text!r}; allowed: integers >= 0")
    return size


def _integer(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{variable}={text!r} is not an integer") from None


def list_of(name: str, value: Any, allowed: str) -> list[Any]:
    """The items of a sequence or iterable; TypeError for anything else, strings included."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return list(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}; allowed: {allowed}") from None


def spec_of(config: Config | None, fallback: Mapping[str, Any]) -> _C.Spec | None:
    """The engine's codec for a configuration; None if it is exact (bits above 8 other than 16, or
    `config` None).

    fallback: values of all keys, for keys that `config` leaves open (the group's `settings()`, or
    `defaults()`).
    """
    from torch_cgx import _C

    if config is None or isinstance(config, _C.Spec):
        return config
    if isinstance(config, _C.Options):
        given = {key: value for key, value in config.given().items() if key in KEYS}
    elif isinstance(config, Mapping):
        given = check_dict(config)
    else:
        given = _fields_of_codec(config)
    full = {key: given.get(key, fallback[key]) for key in KEYS}
    half = full.pop("half")
    if full["bits"] == HALF_BITS:
        if full["codec"] == "maxmin":
            full["codec"] = half
    elif is_exact(full["bits"]):
        return None
    return _C.Spec(**full)


def _fields_of_codec(config: Any) -> dict[str, Any]:
    from torch_cgx import codecs

    if isinstance(config, codecs.MaxMin):
        fields = ("bits", "bucket_size", "rounding", "seed", "skip_incomplete_buckets")
        return {"codec": "maxmin", **{name: getattr(config, name) for name in fields}}
    if isinstance(config, codecs.Half):
        return {"codec": config.format, "bits": HALF_BITS}
    raise TypeError(
        f"config={config!r} is a {type(config).__name__}; allowed: a dict, a codec of "
        "torch_cgx.codecs, torch_cgx.Options, None"
    )


def layers_of(
    layers: Iterable[Any], total: int, fallback: Mapping[str, Any]
) -> list[tuple[int, _C.Spec | None]]:
    """Checks (numel, config) pairs or `Layer`s that have to add up to `total` values."""
    result: list[tuple[int, _C.Spec | None]] = []
    for number, layer in enumerate(list_of("layers", layers, "a list of (numel, config), None")):
        if not isinstance(layer, tuple) or len(layer) != 2:
            raise TypeError(
                f"layers[{number}]={layer!r}; allowed: (numel, config), torch_cgx.Layer"
            )
        numel, config = layer
        if isinstance(numel, bool) or not isinstance(numel, int):
            raise TypeError(f"layers[{number}]: numel={numel!r}; allowed: an int >= 0")
        if numel < 0:
            raise ValueError(f"layers[{number}]: numel={numel}; allowed: >= 0")
        result.append((numel, spec_of(config, fallback)))
    found = sum(numel for numel, _ in result)
    if found != total:
        raise ValueError(f"layers hold {found} values, but the tensor has {total}")
    return result
