"""Nested state dicts as JSON, with numbers in place of their tensors.

    None, True, 7, 0.5, "text", [...]     themselves
    {"float": "nan"}                      also inf, -inf
    {"bytes": "AAEC"}                     base64
    {"tuple": [...]}
    {"dict": [[key, value], ...]}         keys keep their type
    {"ordered": [[key, value], ...]}      an OrderedDict; with "metadata", if it has _metadata, as
                                          state_dict() of a module does
    {"counter": [[key, value], ...]}      a collections.Counter
    {"tensor": 3}                         a number of the index
    {"view": [3, offset, shape, stride]}  a tensor in the memory of another one, of one dimension;
                                          offset and stride count values

A reader refuses everything else.
"""

from __future__ import annotations

import base64
import collections
import functools
import json
import math
import reprlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy
import torch

from torch_cgx.bounded._dtypes import MOST_DIMS
from torch_cgx.bounded._named import Tensors, join
from torch_cgx.bounded._payload import PayloadError

_DICTS: dict[type, str] = {
    dict: "dict",
    collections.OrderedDict: "ordered",
    collections.Counter: "counter",
}
_KEYS = (bool, int, float, str, bytes, tuple, type(None))
# Python converts no integers of more digits (sys.get_int_max_str_digits), so readers refuse them.
_MOST_DIGITS = 4300
_TOO_LARGE = 10**_MOST_DIGITS
_NOT_FINITE = {"nan", "inf", "-inf"}
# Levels of a state dict: reading a level takes two nested calls, and Python allows 1000.
_MOST_LEVELS = 200
# Integers with equal hashes are easily made, and making a dict of n of them takes n^2 steps.
_MOST_EQUAL_HASHES = 16


class View(NamedTuple):
    """A view of the tensor with this number, which has one dimension; offset and stride count
    values.
    """

    number: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Tree:
    """A state dict as JSON; the places of its tensors in the file are set by `json`."""

    def __init__(self, state: Any) -> None:
        """TypeError, ValueError: a file cannot hold a value of the state; the text says which."""
        self.tensors = Tensors()
        self._nodes: list[tuple[int, dict[str, Any]]] = []
        try:
            self._tree = self._encode(state, "", 0)
        except RecursionError:
            raise _too_deep() from None

    def json(self, places: Sequence[int | View]) -> bytes:
        """The JSON. places: for each tensor, its number in the index, or a view."""
        for number, node in self._nodes:
            place = places[number]
            node.clear()
            if isinstance(place, View):
                node["view"] = [place.number, place.offset, list(place.shape), list(place.stride)]
            else:
                node["tensor"] = place
        return json.dumps(self._tree, separators=(",", ":"), allow_nan=False).encode()

    def _tensor(self, value: torch.Tensor, name: str) -> dict[str, Any]:
        node: dict[str, Any] = {}
        self._nodes.append((self.tensors.add(value, name), node))
        return node

    def _encode(self, value: Any, name: str, level: int) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if level > _MOST_LEVELS:
            raise _too_deep()
        if kind is list or kind is tuple:
            items = [self._encode(item, join(name, i), level + 1) for i, item in enumerate(value)]
            return items if kind is list else {"tuple": items}
        if kind not in _DICTS:
            return _encode_leaf(value, name)
        pairs = [
            [
                _encode_key(key, join(name, "(key)")),
                self._encode(item, join(name, key), level + 1),
            ]
            for key, item in value.items()
        ]
        _check_hashes(value, f"{name or 'the state dict'} has", ValueError)
        found: dict[str, Any] = {_DICTS[kind]: pairs}
        if kind is collections.OrderedDict and hasattr(value, "_metadata"):
            found["metadata"] = self._encode(value._metadata, join(name, "_metadata"), level + 1)
        return found


def _too_deep() -> ValueError:
    return ValueError(
        f"the state dict is nested too deeply (allowed: {_MOST_LEVELS} levels), or contains itself"
    )


def _encode_leaf(value: Any, name: str) -> Any:
    # timedelta64 is a numpy.number, too, but would lose its unit.
    if isinstance(value, numpy.bool_ | numpy.number | numpy.str_) and not isinstance(
        value, numpy.timedelta64
    ):
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
    raise TypeError(
        f"{name or 'the state dict'} is a {kind.__module__}.{kind.__qualname__}; allowed: tensors, "
        "dict, OrderedDict, Counter, list, tuple, str, bytes, numbers and None"
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
    return _encode_leaf(key, place)


def _check_hashes(keys: Collection[Any], place: str, error: type[ValueError]) -> None:
    """Raises `error` if a dict of these keys would take long to make. TypeError: no hash."""
    if len(keys) <= _MOST_EQUAL_HASHES:
        return
    counts = collections.Counter(hash(key) for key in keys if type(key) is not str)
    if counts and max(counts.values()) > _MOST_EQUAL_HASHES:
        raise error(
            f"{place} {max(counts.values())} keys with equal hashes, allowed: {_MOST_EQUAL_HASHES}"
        )


def parse(text: bytes) -> Any:
    """The JSON of a Tree, parsed but not checked. PayloadError: not JSON."""
    try:
        return json.loads(text.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the index is not JSON: {error}") from None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} stands alone")


Reader = Callable[[int | View], torch.Tensor]


def decode(node: Any, tensor: Reader) -> Any:
    """The state of a node of `parse`. tensor: returns a tensor by number or view, and raises a
    PayloadError for a number that is too large. PayloadError: the node is not the JSON of a Tree.
    """
    try:
        return _decode(node, tensor)
    except RecursionError:
        raise PayloadError("the index is nested too deeply") from None


def _decode(node: Any, tensor: Reader) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensor) for item in node]
    if not isinstance(node, dict):
        return node
    kind, value = _kind(node)
    if (place := _place(kind, value)) is not None:
        return tensor(place)
    if kind == "float" and isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    if kind == "bytes" and isinstance(value, str) and (data := _base64(value)) is not None:
        return data
    if kind == "tuple" and isinstance(value, list):
        return tuple([_decode(item, tensor) for item in value])
    if kind == "dict":
        return {key: _decode(item, tensor) for key, item in _pairs(node, value)}
    if kind == "ordered":
        found = collections.OrderedDict()
        for key, item in _pairs(node, value):
            found[key] = _decode(item, tensor)
        if "metadata" in node:
            found._metadata = _decode(node["metadata"], tensor)  # type: ignore[attr-defined]
        return found
    if kind == "counter":
        counter: collections.Counter[Any] = collections.Counter()
        for key, item in _pairs(node, value):
            counter[key] = _decode(item, tensor)
        return counter
    raise PayloadError(f"the index holds {reprlib.repr({kind: value})}")


def _place(kind: str, value: Any) -> int | View | None:
    """The place of a node's tensor; None: the node is not a tensor's."""
    if kind == "tensor" and type(value) is int and value >= 0:
        return value
    if kind == "view" and isinstance(value, list) and len(value) == 4:
        number, offset, shape, stride = value
        if isinstance(shape, list) and isinstance(stride, list) and len(shape) == len(stride):
            numbers = [number, offset, *shape, *stride]
            if all(type(one) is int and one >= 0 for one in numbers) and len(shape) <= MOST_DIMS:
                return View(number, offset, tuple(shape), tuple(stride))
    return None


def _base64(text: str) -> bytes | None:
    """The bytes; None: the text is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # also for letters beyond ASCII
        return None


def _kind(node: dict[str, Any]) -> tuple[str, Any]:
    kinds = [key for key in node if key != "metadata"]
    if len(kinds) != 1 or (len(node) == 2 and kinds[0] != "ordered"):
        raise PayloadError(f"the index holds an object of {reprlib.repr(list(node))}")
    return kinds[0], node[kinds[0]]


def _pairs(node: dict[str, Any], value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in value
    ):
        raise PayloadError(f"the index holds a {next(iter(node))} that is not a list of pairs")
    found = [(_decode(key, _no_tensor), item) for key, item in value]
    keys = [key for key, _ in found]
    if not all(isinstance(key, _KEYS) for key in keys):
        raise PayloadError(
            "the index has a key that is not a str, int, float, bool, bytes, tuple or None"
        )
    try:
        _check_hashes(keys, "the index has a dict of", PayloadError)
        if len(set(keys)) != len(keys):
            raise PayloadError("the index has a key twice")
    except TypeError:  # a tuple of lists
        raise PayloadError("the index has a key that is a tuple of lists") from None
    return found


def _no_tensor(place: int | View) -> Any:
    raise PayloadError("the index has a tensor as a key")


# ---- names


def _items(node: Any) -> list[tuple[Any, Any]]:
    """The keys and the nodes one level below. PayloadError: as for `decode`."""
    if isinstance(node, list):
        return list(enumerate(node))
    if isinstance(node, dict):
        kind, value = _kind(node)
        if kind == "tuple" and isinstance(value, list):
            return list(enumerate(value))
        if kind in _DICTS.values():
            return _pairs(node, value)
    return []


class Finder:
    """Finds nodes by name. It follows only keys that begin the name, so its time does not depend on
    the length of all other names.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        # id of a node -> the nodes one level below by key, and the lengths of the keys
        self._below: dict[int, tuple[dict[str, list[Any]], set[int]]] = {}

    def find(self, name: str) -> list[Any]:
        """All nodes of this name. PayloadError: as for `decode`."""
        found = []
        # A node; the length of the beginning of the name that leads to it; True: no letter does.
        left = [(self._state, 0, True)]
        while left:
            node, start, bare = left.pop()
            if not bare:
                start += 1  # the dot
            below, lengths = self._items(node)
            for length in lengths:
                end = start + length
                still_bare = bare and length == 0
                if end > len(name) or not (still_bare or name[end : end + 1] in (".", "")):
                    continue
                for item in below.get(name[start:end], ()):
                    if end == len(name):
                        found.append(item)
                    if end < len(name) or still_bare:
                        left.append((item, end, still_bare))
        return found

    def _items(self, node: Any) -> tuple[dict[str, list[Any]], set[int]]:
        if id(node) not in self._below:
            below: dict[str, list[Any]] = {}
            for key, item in _items(node):
                below.setdefault(str(key), []).append(item)
            self._below[id(node)] = below, {len(key) for key in below}
        return self._below[id(node)]


def _paths(state: Any) -> Iterator[tuple[list[Any], Any]]:
    """All nodes below, in order, each with the keys that lead to it. The list of keys is changed by
    the next step.
    """
    path: list[Any] = []
    left = [iter(_items(state))]
    while left:
        pair = next(left[-1], None)
        if pair is None:
            left.pop()
            if path:
                path.pop()
            continue
        path.append(pair[0])
        yield path, pair[1]
        left.append(iter(_items(pair[1])))


def _name(path: Sequence[Any]) -> str:
    return functools.reduce(join, path, "")


def names(state: Any) -> Iterator[str]:
    """Names of all nodes below, in order. PayloadError: as for `decode`."""
    return (_name(path) for path, _ in _paths(state))


def count(state: Any) -> int:
    """How many `names` there are."""
    found, left = 0, [state]
    while left:
        items = _items(left.pop())
        found += len(items)
        left += [item for _, item in items]
    return found


def name_of(state: Any, number: int) -> str:
    """The first name of the tensor with this number; "" if there is none, or if the state is not
    the JSON of a Tree.
    """
    try:
        for path, node in _paths(state):
            if isinstance(node, dict) and node.get("tensor") == number:
                return _name(path)
    except (PayloadError, RecursionError):
        pass
    return ""
