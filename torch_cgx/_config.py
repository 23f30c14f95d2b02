"""Checks the configuration of a call or a layer and turns it into the engine's codec (None: exact).

A configuration is given as a dict of the keys below, a codec of `torch_cgx.codecs`, a
`torch_cgx.Options`, or None. What it leaves open is taken from the group's options, then from the
environment, then from the defaults: the order that the backend itself uses. The keys, their values
and the rules are the engine's (csrc/codec/choice.h); this module only converts Python objects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_cgx._constant import constant
from torch_cgx._warnings import warn, warn_of_argument

if TYPE_CHECKING:
    from torch_cgx import _C
    from torch_cgx.codecs import Codec

    Config = Mapping[str, Any] | _C.Options | _C.Codec | Codec

    KEYS: tuple[str, ...]  # names of the settings that choose a codec
    HALVES: tuple[str, ...]  # formats of 16 bits
    EXACT_BITS: int
    HALF_BITS: int
    MAX_BITS: int  # more are exact, except for HALF_BITS

_ON = 8  # any number of bits that compresses: codecs with bits of their own do not read it


@functools.cache
def _engine() -> Any:
    """The extension module. Imported on first use: importing cgx_utils must not load it."""
    from torch_cgx import _C

    return _C


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    """All settings by name."""
    return {row["name"]: row for row in _engine().settings()}


def __getattr__(name: str) -> Any:
    """The engine's constants."""
    if name == "KEYS":
        value: Any = tuple(_engine().codec_settings())
    elif name == "HALVES":
        value = tuple(_table()["half"]["choices"])
    elif name in ("EXACT_BITS", "HALF_BITS", "MAX_BITS"):
        value = getattr(_engine(), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _keys() -> tuple[str, ...]:
    return tuple(_engine().codec_settings())


class Layer(NamedTuple):
    """A run of values of a tensor, in order, with a configuration of its own.

    numel: number of values, >= 0. config: as in `all_reduce`; None: exact. bits above 8
    are exact too, except for 16.
    """

    numel: int
    config: Any = None


def check(key: str, value: Any, where: str = "config") -> Any:
    """The canonical value of one key. ValueError or TypeError names the key, the value and what is
    allowed.
    """
    checked = check_quietly(key, value, where)
    if key == "bits":
        warn_of_exact(checked, where)
    return checked


def check_quietly(key: str, value: Any, where: str) -> Any:
    """As `check`, without the warning of `warn_of_exact`."""
    if key not in _keys():
        raise ValueError(f"{where} has the unknown key {key!r}; allowed: {', '.join(_keys())}")
    return _engine().check_setting(key, value, f"{where}: {key}")


def is_exact(bits: int) -> bool:
    """True if this number of bits means values in the tensor's own type."""
    return bool(_engine().is_exact(bits))


def warn_of_exact(bits: int, where: str, by: Callable[[str], None] = warn_of_argument) -> None:
    """Warns of a number of bits that looks like compression, and is none. by: `warn` in a backward
    pass, where nothing may be raised.
    """
    text = _complaint(bits, where)
    if text:
        by(text)


def _complaint(bits: int, where: str) -> str:
    engine = _engine()
    if not is_exact(bits) or bits == engine.EXACT_BITS:
        return ""
    return (
        f"cgx: {where}: bits={bits} means exact, nothing is compressed; 1 to {engine.MAX_BITS} "
        f"and {engine.HALF_BITS} compress, {engine.EXACT_BITS} is exact without this warning"
    )


@functools.cache
def _warn_once_of_variable(bits: int, variable: str) -> None:
    """It is read again and again, also in backward passes."""
    warn_of_exact(bits, variable, warn)


def check_dict(config: Mapping[str, Any], where: str = "config") -> dict[str, Any]:
    """A copy with canonical values."""
    return {key: check(key, value, where) for key, value in config.items()}


def from_environment(key: str) -> Any:
    """The value of the setting's environment variable, or None where that is unset or empty."""
    value = _engine().setting_from_environment(key)
    if key == "bits" and value is not None:
        _warn_once_of_variable(value, variable_of(key))
    return value


def variable_of(key: str) -> str:
    """The environment variable of a setting."""
    return str(_table()[key]["variable"])


def defaults() -> dict[str, Any]:
    """The value of each key outside of a group: the environment's, or the built-in default."""
    found = {key: from_environment(key) for key in _keys()}
    return {key: _table()[key]["value"] if value is None else value for key, value in found.items()}


def minimal_size() -> int:
    """CGX_COMPRESSION_MINIMAL_SIZE in values: smaller tensors and layers are exact. Default 16."""
    size = from_environment("min_size")
    return int(_table()["min_size"]["value"] if size is None else size)


def list_of(name: str, value: Any, allowed: str) -> list[Any]:
    """The items of a sequence or iterable; TypeError for all else, texts included."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return list(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}; allowed: {allowed}") from None


def codec_of(config: Config | None, fallback: Mapping[str, Any]) -> _C.Codec | None:
    """The engine's codec for a configuration; None where that is exact (bits above 8 other than 16,
    or `config` None).

    fallback: values of all keys, for what `config` leaves open (the group's `settings()`, or
    `defaults()`).
    """
    from torch_cgx import _C
    from torch_cgx.codecs import Codec

    if config is None or isinstance(config, _C.Codec):
        return config
    if isinstance(config, Codec):
        return config._engine
    if isinstance(config, _C.Options):
        given = {key: value for key, value in config.given().items() if key in _keys()}
    elif isinstance(config, Mapping):
        given = check_dict(config)
    else:
        raise TypeError(
            f"config={config!r} is of type {type(config).__name__}; allowed: a dict, a codec of "
            "torch_cgx.codecs, torch_cgx.Options, None"
        )
    values = {key: given.get(key, fallback[key]) for key in _keys()}
    if "bits" not in given and given.get("codec") in _with_own_bits():
        values["bits"] = _ON
    codec: _C.Codec | None = _engine().choose_codec(values)
    return codec


@constant
def _with_own_bits() -> frozenset[str]:
    """The codecs whose bits follow from their format: a configuration that names one needs none."""
    rows = [row for row in _engine().families() if row["python"] and not row["variant"]]
    return frozenset(
        row["name"] for row in rows if all(p["name"] != "bits" for p in row["parameters"])
    )


def layers_of(
    layers: Iterable[Any], total: int, fallback: Mapping[str, Any]
) -> list[tuple[int, _C.Codec | None]]:
    """Checks (numel, config) pairs or `Layer`s that have to add up to `total` values."""
    result: list[tuple[int, _C.Codec | None]] = []
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
        result.append((numel, codec_of(config, fallback)))
    found = sum(numel for numel, _ in result)
    if found != total:
        raise ValueError(f"layers hold {found} values, but the tensor has {total}")
    return result
