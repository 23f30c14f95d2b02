"""Nested state dicts as JSON, with numbers in place of their tensors.

    None, True, 7, 0.5, "text", [...]     themselves
    {"float": "nan"}                      also inf, -inf
    {"bytes": "AAEC"}                     base64
    {"tuple": [...]}
    {"dict": [[key, value], ...]}         keys keep their type
    {"ordered": [[key, value], ...]}      an OrderedDict; with "metadata", if it has _metadata, as
                                          state_dict() of a module does
    {"tensor": 3}

A reader takes nothing else.
"""

from __future__ import annotations

import base64
import collections
import json
import math
import reprlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from torch_cgx.bounded._named import Tensors, join
from torch_cgx.bounded._payload import PayloadError

_KEYS = (bool, int, float, str, bytes, tuple, type(None))
# A reader refuses longer ones: Python converts no more digits (sys.get_int_max_str_digits).
_MOST_DIGITS = 4300
_TOO_LARGE = 10**_MOST_DIGITS
_NOT_FINITE = {"nan", "inf", "-inf"}


def encode(state: Any) -> tuple[bytes, Tensors]:
    """JSON, and the tensors in the order of their numbers.

    TypeError, ValueError: it holds what has no place in a file; the text says where.
    """
    tensors = Tensors()
    try:
        tree = _encode(state, "", tensors)
        text = json.dumps(tree, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ValueError("the state dict is nested too deeply, or contains itself") from None
    return text.encode(), tensors


def _encode(value: Any, name: str, tensors: Tensors) -> Any:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return {"tensor": tensors.add(value, name)}
    if isinstance(value, numpy.bool_ | numpy.number | numpy.str_):
        value = value.item()
        kind = type(value)
    if kind is int and not -_TOO_LARGE < value < _TOO_LARGE:
        raise ValueError(
            f"{name or 'the state dict'} is a whole number of more than {_MOST_DIGITS} digits, "
            f"allowed: {_MOST_DIGITS}"
        )
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is list or kind is tuple:
        items = [_encode(item, join(name, i), tensors) for i, item in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if kind is dict or kind is collections.OrderedDict:
        pairs = [
            [_encode_key(key, join(name, "(key)")), _encode(item, join(name, key), tensors)]
            for key, item in value.items()
        ]
        if kind is dict:
            return {"dict": pairs}
        found = {"ordered": pairs}
        if hasattr(value, "_metadata"):
            found["metadata"] = _encode(value._metadata, join(name, "_metadata"), tensors)
        return found
    raise TypeError(
        f"{name or 'the state dict'} is a {kind.__module__}.{kind.__qualname__}; allowed: tensors, "
        "dict, OrderedDict, list, tuple, str, bytes, numbers and None"
    )


def _encode_key(key: Any, place: str) -> Any:
    kind = type(key)
    if kind not in _KEYS:
        raise TypeError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, {key!r}; allowed in keys: str, "
            "int, float, bool, bytes, None and tuples of them"
        )
    if kind is tuple:
        return {"tuple": [_encode_key(item, join(place, i)) for i, item in enumerate(key)]}
    return _encode(key, place, Tensors())


def parse(text: bytes) -> Any:
    """What `encode` wrote, unchecked. PayloadError: no JSON."""
    try:
        return json.loads(text.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the index is no JSON: {error}") from None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} stands alone")


def decode(node: Any, tensor: Callable[[int], torch.Tensor]) -> Any:
    """The state of a node of `parse`. PayloadError: it is none of `encode`. tensor: by number;
    raises PayloadError for a number that is too large.
    """
    try:
        return _decode(node, tensor)
    except RecursionError:
        raise PayloadError("the index is nested too deeply") from None


def _decode(node: Any, tensor: Callable[[int], torch.Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensor) for item in node]
    if not isinstance(node, dict):
        return node
    kind, value = _kind(node)
    if kind == "tensor" and type(value) is int and value >= 0:
        return tensor(value)
    if kind == "float" and isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    if kind == "bytes" and isinstance(value, str) and (data := _base64(value)) is not None:
        return data
    if kind == "tuple" and isinstance(value, list):
        return tuple(_decode(item, tensor) for item in value)
    if kind == "dict":
        return {key: _decode(item, tensor) for key, item in _pairs(node, value)}
    if kind == "ordered":
        pairs = _pairs(node, value)
        found = collections.OrderedDict((key, _decode(item, tensor)) for key, item in pairs)
        if "metadata" in node:
            found._metadata = _decode(node["metadata"], tensor)  # type: ignore[attr-defined]
        return found
    raise PayloadError(f"the index holds {reprlib.repr({kind: value})}")


def _base64(text: str) -> bytes | None:
    """None: it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # also for letters beyond ASCII
        return None


def _kind(node: dict[str, Any]) -> tuple[str, Any]:
    kinds = [key for key in node if key != "metadata"]
    if len(kinds) != 1 or (len(node) == 2 and kinds[0] != "ordered"):
        raise PayloadError(f"the index holds an object of {list(node)}")
    return kinds[0], node[kinds[0]]


def _pairs(node: dict[str, Any], value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in value
    ):
        raise PayloadError(f"the index holds a {next(iter(node))} that is no list of pairs")
    found = [(_decode(key, _no_tensor), item) for key, item in value]
    keys = [key for key, _ in found]
    if not all(isinstance(key, _KEYS) for key in keys):
        raise PayloadError("the index has a key that is no str, int, float, bool, bytes or tuple")
    try:
        if len(set(keys)) != len(keys):
            raise PayloadError("the index has a key twice")
    except TypeError:  # a tuple of lists
        raise PayloadError("the index has a key that is a tuple of lists") from None
    return found


def _no_tensor(number: int) -> Any:
    raise PayloadError("the index has a tensor as a key")


def nodes(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All nodes below, with their names, in order. PayloadError: as `decode`."""
    if isinstance(node, list):
        items = list(enumerate(node))
    elif isinstance(node, dict):
        kind, value = _kind(node)
        if kind == "tuple" and isinstance(value, list):
            items = list(enumerate(value))
        elif kind in ("dict", "ordered"):
            items = _pairs(node, value)
        else:
            return
    else:
        return
    for key, item in items:
        below = join(name, key)
        yield below, item
        yield from nodes(item, below)
