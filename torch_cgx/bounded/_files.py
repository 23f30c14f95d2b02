"""bounded.save and bounded.load: state dicts in files. _index.py and _tree.py have the format."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any, BinaryIO

import torch

from torch_cgx._threads import safe_after_fork
from torch_cgx.bounded import _coarse, _tree
from torch_cgx.bounded._index import (
    HEADER,
    Entry,
    File,
    Index,
    Source,
    read_index,
    tensor_of,
    view_of,
    write_index,
)
from torch_cgx.bounded._named import payload_of
from torch_cgx.bounded._payload import PayloadError
from torch_cgx.bounded._replace import Path, replacing
from torch_cgx.bounded._rules import Overrides, Rules
from torch_cgx.bounded._shared import Stored, stored

_SHOWN = 20
_LETTERS = 100  # a name in an error is cut to this length


@safe_after_fork
def save(
    state_dict: Any,
    path: Path,
    *,
    max_error: float | None = None,
    relative: float | None = None,
    pointwise: float | None = None,
    overrides: Overrides | None = None,
) -> None:
    """Writes a state dict to a file, its tensors compressed within a bound; `load` reads it.

    state_dict: nested dicts, OrderedDicts, Counters, lists and tuples of tensors, numbers, str,
    bytes and None, at most 200 levels, as `state_dict()` of modules, optimizers and schedulers
    returns them. Keys of dicts keep their type; NumPy's numbers become Python's; a Parameter
    becomes a tensor. Floating-point and complex tensors take one bound, as in `compress`:
    max_error, relative (to the range of each tensor) or pointwise. All other tensors, and 8-bit
    floats, are lossless.

    overrides: bounds of single tensors, by name. The name of a tensor is the keys and indices that
    lead to it, joined by dots: "model.blocks.0.norm.weight", "optimizer.state.7.exp_avg". The dict
    maps regular expressions (re.search) to a bound: a number for a bound of the same kind, 0 for
    lossless, or a dict for another kind:

        {r"norm": 0, r"exp_avg_sq$": {"pointwise": 1e-2}}

    The last expression that is found in a name wins; an expression that is found in no name is a
    warning. A warning names tensors whose bound is above nearly all of their values, which then
    become 0. A tensor with several names, such as a tied weight, is stored once, within the bounds
    of all its names, and is loaded as one tensor. Tensors that share memory in another way, such as
    `w` and `w[:10]`, are also stored once, within the bounds of all their names, and share memory
    again when loaded; a warning names tensors for which this is not possible, because their dtypes
    differ.

    The file is written next to `path` and replaces it when it is complete, with the owner and the
    mode of the old file: an error, a full disk or a kill leaves the old file in place. Tensors are
    compressed one at a time.

    TypeError, ValueError: a bound that is not allowed, or the state dict holds a value of another
    kind (the text says where). OSError: from the file system, or `path` is a pipe or a device.
    PermissionError: the owner of the old file could not read the new one, and this process may not
    change the owner of a file. ImportError: zstandard is missing.
    """
    rules = Rules.of(max_error, relative, pointwise, overrides)
    tree = _tree.Tree(state_dict)
    rules.warn_of_unused(tree.tensors.names)
    all_stored, places = stored(tree.tensors.all)
    state = tree.json(places)
    with replacing(path) as file:
        _write(file, all_stored, rules, state)


def _write(file: BinaryIO, all_stored: list[Stored], rules: Rules, state: bytes) -> None:
    file.write(bytes(HEADER.size))
    entries = []
    coarse = _coarse.Names()
    for each in all_stored:
        one = each.named()
        payload = payload_of(one, each.rule(rules), coarse.note(one.name))
        file.write(payload.numpy().data)
        entries.append(Entry.of(payload, one.tensor, one.name))
    coarse.warn()
    header, index = write_index(entries, state, file.tell())
    file.write(index)
    file.seek(0)
    file.write(header)


@safe_after_fork
def load(
    path: Path,
    device: torch.device | str | None = None,
    keys: Iterable[str] | None = None,
) -> Any:
    """Reads a file of `save`. Nothing in a file can run code.

    device: of the tensors; default: the CPU. keys: names of tensors or of dicts, lists and tuples
    of them, such as "model" or "model.blocks.0.norm.weight"; only these are read. With keys, the
    result is a dict from each name to its value.

    PayloadError (a ValueError): not a file of `save`, another version, a file that was cut or
    altered, or a payload that belongs to another tensor or file. Only the payloads that are read
    are checked. ValueError: the file has no such key, or has it twice; the text names the keys that
    it has. OSError: from the file system.
    """
    where = None if device is None else torch.device(device)
    wanted = None if keys is None else [keys] if isinstance(keys, str) else list(keys)
    with open(path, "rb") as file:
        try:
            source = File(file, os.fstat(file.fileno()).st_size)
            index = read_index(source)
            nodes = {"": index.state} if wanted is None else _find(index.state, wanted, path)
            read = reader(source, index, where)
            found = {name: _tree.decode(node, read) for name, node in nodes.items()}
        except PayloadError as error:
            raise PayloadError(f"{os.fsdecode(path)}: {error}") from None
    return found[""] if wanted is None else found


def _find(state: Any, keys: list[str], path: Path) -> dict[str, Any]:
    try:
        finder = _tree.Finder(state)
        return {key: _found(finder, state, key, path) for key in keys}
    except RecursionError:
        raise PayloadError("the index is nested too deeply") from None


def _found(finder: _tree.Finder, state: Any, key: str, path: Path) -> Any:
    nodes = finder.find(key)
    if not nodes:
        count = _tree.count(state)
        some = itertools.islice(_tree.names(state), _SHOWN)
        shown = ", ".join(name[:_LETTERS] for name in some) + (", ..." if count > _SHOWN else "")
        raise ValueError(
            f"{os.fsdecode(path)} has no key {key!r}; it has {count}: {shown or 'none'}"
        )
    if len(nodes) > 1:
        raise ValueError(
            f"{os.fsdecode(path)} has {len(nodes)} values named {key!r}; load it as a whole"
        )
    return nodes[0]


def reader(source: Source, index: Index, device: torch.device | None) -> _tree.Reader:
    """A function that returns a tensor by its number or view, and reads each only once."""
    known: dict[int | _tree.View, torch.Tensor] = {}

    def whole(number: int) -> torch.Tensor:
        if number >= len(index.entries):
            raise PayloadError(
                f"the index holds {{'tensor': {number}}}, and has {len(index.entries)} tensors"
            )
        try:
            return tensor_of(index.payload(source, number), index.entries[number], device)
        except PayloadError as error:
            name, start = index.name(number), index.starts[number]
            raise PayloadError(f"{name}, at {start}: {error}") from None

    def read(place: int | _tree.View) -> torch.Tensor:
        if place not in known:
            if isinstance(place, _tree.View):
                known[place] = view_of(read(place.number), place)
            else:
                known[place] = whole(place)
        return known[place]

    return read
