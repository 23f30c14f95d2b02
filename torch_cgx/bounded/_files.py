"""bounded.save and bounded.load: state dicts in files.

    0    4   "CGXF"
    4    1   version, 1
    5    3   zeros
    8    8   where the index begins, little-endian
    16   8   bytes of the index: the file ends with it
    24       payloads of the tensors, one after another
    ...      index: a lossless payload of JSON

The JSON is {"tensors": [[bytes, dtype], ...], "state": ...}: the length of each payload, null or a
dtype that has its bytes in a payload of uint8 (_named.BYTES), and the nested state (_tree.py). All
but the first 24 bytes lie in payloads, whose checksums guard them, and the lengths of the payloads
fill the file to the byte.
"""

from __future__ import annotations

import json
import os
import reprlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

from torch_cgx.bounded import _tree
from torch_cgx.bounded._compress import compress
from torch_cgx.bounded._decompress import decompress
from torch_cgx.bounded._named import BYTES, payload_of
from torch_cgx.bounded._payload import PayloadError, open_payload
from torch_cgx.bounded._replace import Path, replacing
from torch_cgx.bounded._rules import Overrides, Rules

_MAGIC, _VERSION = b"CGXF", 1
_HEADER = struct.Struct("<4sB3sQQ")
# JSON of more is not read, as a short payload can stand for many equal bytes.
_MOST_INDEX_BYTES = 1 << 30
_SHOWN = 20


def save(
    state_dict: Any,
    path: Path,
    *,
    max_error: float | None = None,
    relative: float | None = None,
    pointwise: float | None = None,
    overrides: Overrides | None = None,
) -> None:
    """Writes a state dict whose tensors come back within a bound; `load` reads it.

    state_dict: nested dicts, OrderedDicts, lists and tuples of tensors, numbers, str, bytes and
    None, as `state_dict()` of modules, optimizers and schedulers returns them. Keys of dicts keep
    their type; NumPy's numbers become Python's; a Parameter becomes a tensor. Floating and complex
    tensors are bounded as by `compress`, one of max_error, relative (of the range of each tensor)
    and pointwise; all others, and 8-bit floats, are lossless.

    overrides: bounds of tensors by name, which is what leads to them, joined by dots:
    "model.blocks.0.norm.weight", "optimizer.state.7.exp_avg". A dict of regular expressions
    (re.search) to a bound of the same kind, 0 for lossless, or of another one:

        {r"norm": 0, r"exp_avg_sq$": {"pointwise": 1e-2}}

    The last that is found in a name wins; one that is found in no name is a warning. A tensor that
    has several names, as tied weights, is stored once, within the bounds of all its names, and
    comes back as one tensor.

    The file is written beside `path` and takes its place when it is complete: an error, a full disk
    or a kill leaves the old file. Tensors are compressed one at a time.

    TypeError, ValueError: a bad bound, or the state dict holds something else (the text says
    where). OSError: from the file system, or `path` is a pipe or a device. ImportError: zstandard
    is missing.
    """
    rules = Rules.of(max_error, relative, pointwise, overrides)
    state, tensors = _tree.encode(state_dict)
    rules.warn_of_unused(tensors.names)
    names = {dtype: name for name, dtype in BYTES.items()}
    with replacing(path) as file:
        file.write(bytes(_HEADER.size))
        entries = []
        for one in tensors.all:
            payload = payload_of(one, rules.rule_of_all(one.names))
            file.write(payload.numpy().data)
            entries.append([payload.numel(), names.get(one.tensor.dtype)])
        listed = json.dumps(entries, separators=(",", ":")).encode()
        text = b'{"tensors":%b,"state":%b}' % (listed, state)
        if len(text) > _MOST_INDEX_BYTES:
            raise ValueError(
                f"the state dict without its tensors has {len(text)} bytes, allowed: "
                f"{_MOST_INDEX_BYTES}"
            )
        start = file.tell()
        index = compress(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        file.write(index.numpy().data)
        file.seek(0)
        file.write(_HEADER.pack(_MAGIC, _VERSION, bytes(3), start, index.numel()))


def load(
    path: Path,
    device: torch.device | str | None = None,
    keys: Iterable[str] | None = None,
) -> Any:
    """What `save` has written: nothing in the file can run code.

    device: of the tensors; default: the CPU. keys: names of parts, as "model" or
    "model.blocks.0.norm.weight"; only these are read, and returned as a dict of name to part.

    PayloadError (a ValueError): the file is not of `save`, of another version, cut, or altered; of
    the tensors only those that are read are checked. ValueError: the file has no such key, or has
    it twice; the text names those that it has. OSError: from the file system.
    """
    where = None if device is None else torch.device(device)
    wanted = None if keys is None else [keys] if isinstance(keys, str) else list(keys)
    with open(path, "rb") as file:
        try:
            opened = _open(file)
            nodes = {"": opened.state} if wanted is None else _find(opened.state, wanted, path)
            read = _reader(file, opened, where)
            found = {name: _tree.decode(node, read) for name, node in nodes.items()}
        except PayloadError as error:
            raise PayloadError(f"{os.fsdecode(path)}: {error}") from None
    return found[""] if wanted is None else found


@dataclass(frozen=True)
class _Open:
    """starts: of each payload, and the end of the last; dtypes: see _named.BYTES."""

    starts: list[int]
    dtypes: list[torch.dtype | None]
    state: Any


def _open(file: BinaryIO) -> _Open:
    size = os.fstat(file.fileno()).st_size
    header = file.read(_HEADER.size)
    if header[:4] != _MAGIC[: len(header)] or not header:
        raise PayloadError(
            f"no file of bounded.save: it begins with {header[:4]!r}, expected {_MAGIC!r}"
        )
    if len(header) < _HEADER.size:
        raise PayloadError(f"it has {size} bytes, the header alone takes {_HEADER.size}")
    _, version, zeros, start, length = _HEADER.unpack(header)
    if version != _VERSION:
        raise PayloadError(f"the version is {version}, this reader knows {_VERSION}")
    if any(zeros) or start < _HEADER.size or start + length != size:
        raise PayloadError(
            f"the header says that an index of {length} bytes begins at {start}, the file has "
            f"{size} bytes: it is cut, or altered"
        )
    return _parse(_index(_read(file, start, length)), start)


def _read(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    data = file.read(length)
    if len(data) != length:
        raise PayloadError(f"it ends at {start + len(data)}, while it is read: it was cut")
    return data


def _index(payload: bytes) -> bytes:
    try:
        opened = open_payload(payload)
        if opened.dtype != torch.uint8 or len(opened.shape) != 1:
            raise PayloadError(f"it holds {opened.dtype}, {len(opened.shape)}-D")
        if opened.parts > _MOST_INDEX_BYTES:
            raise PayloadError(f"it stands for {opened.parts} bytes")
        return decompress(payload).numpy().tobytes()
    except PayloadError as error:
        raise PayloadError(f"the index: {error}") from None


def _parse(text: bytes, end: int) -> _Open:
    content = _tree.parse(text)
    if not isinstance(content, dict) or list(content) != ["tensors", "state"]:
        raise PayloadError("the index does not have tensors and state")
    starts: list[int] = [_HEADER.size]
    dtypes: list[torch.dtype | None] = []
    for entry in content["tensors"] if isinstance(content["tensors"], list) else [None]:
        length, dtype = _entry(entry)
        starts.append(starts[-1] + length)
        dtypes.append(dtype)
    if starts[-1] != end:
        raise PayloadError(
            f"the payloads of the index end at {starts[-1]}, the index begins at {end}"
        )
    return _Open(starts, dtypes, content["state"])


def _entry(entry: Any) -> tuple[int, torch.dtype | None]:
    if isinstance(entry, list) and len(entry) == 2:
        length, name = entry
        known = name is None or (isinstance(name, str) and name in BYTES)
        if type(length) is int and length >= 0 and known:
            return length, None if name is None else BYTES[name]
    raise PayloadError(f"the index has {reprlib.repr(entry)} for a tensor")


def _find(state: Any, keys: list[str], path: Path) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    try:
        for name, node in _tree.nodes(state):
            found.setdefault(name, []).append(node)
    except RecursionError:
        raise PayloadError("the index is nested too deeply") from None
    for key in keys:
        count = len(found.get(key, ()))
        if count == 0:
            shown = ", ".join(list(found)[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
            raise ValueError(
                f"{os.fsdecode(path)} has no key {key!r}; it has {len(found)}: {shown or 'none'}"
            )
        if count > 1:
            raise ValueError(
                f"{os.fsdecode(path)} has {count} parts named {key!r}; load it as a whole"
            )
    return {key: found[key][0] for key in keys}


def _reader(
    file: BinaryIO, opened: _Open, device: torch.device | None
) -> Callable[[int], torch.Tensor]:
    known: dict[int, torch.Tensor] = {}

    def read(number: int) -> torch.Tensor:
        if number >= len(opened.dtypes):
            raise PayloadError(
                f"the index holds {{'tensor': {number}}}, and has {len(opened.dtypes)} tensors"
            )
        if number not in known:
            dtype = opened.dtypes[number]
            start, end = opened.starts[number : number + 2]
            try:
                tensor = decompress(_read(file, start, end - start), device=device)
                known[number] = tensor if dtype is None else _view(tensor, dtype)
            except PayloadError as error:
                raise PayloadError(f"tensor {number}, at {start}: {error}") from None
        return known[number]

    return read


def _view(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    try:
        return tensor.view(dtype)
    except RuntimeError as error:
        raise PayloadError(str(error)) from None
