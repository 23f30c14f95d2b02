"""Reads CIFAR-10 and CIFAR-100 from a folder, in the pickled and in the binary version.

Formats: https://www.cs.toronto.edu/~kriz/cifar.html. One image is 3072 bytes: 1024 red, 1024
green, 1024 blue, each 32 rows of 32. The pickled version holds dictionaries with bytes keys; the
binary one records of a label byte (CIFAR-100: a coarse and a fine one) and the image.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IMAGE_BYTES = 3 * 32 * 32
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


class CifarError(Exception):
    """The folder or a file in it is not what the format demands; the message names it."""


@dataclasses.dataclass(frozen=True)
class Cifar:
    """Images uint8 [n, 3, 32, 32] and labels int64 [n] in 0..classes-1, to train on and to test."""

    classes: int
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class _Version:
    """One way in which a data set is stored: its usual folder, its files, and where labels are."""

    folder: str
    classes: int
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_key: bytes | None  # pickled version
    label_bytes: int = 0  # binary version: the last of them is the label


_VERSIONS = (
    _Version("cifar-10-batches-py", 10, tuple(_BATCHES), ("test_batch",), b"labels"),
    _Version("cifar-100-python", 100, ("train",), ("test",), b"fine_labels"),
    _Version(
        "cifar-10-batches-bin",
        10,
        tuple(f"{b}.bin" for b in _BATCHES),
        ("test_batch.bin",),
        None,
        1,
    ),
    _Version("cifar-100-binary", 100, ("train.bin",), ("test.bin",), None, 2),
)


def load(folder: Path) -> Cifar:
    """The data set in `folder`, or in a folder of a usual name (cifar-10-batches-py ...) in it.

    Which of the four it is, is found from the files that are there. Raises CifarError.
    """
    folder, version = _detect(folder)
    parts = [
        [_read(folder / name, version) for name in names] for names in (version.train, version.test)
    ]
    (train_images, train_labels), (test_images, test_labels) = (
        (np.concatenate([p[0] for p in part]), np.concatenate([p[1] for p in part]))
        for part in parts
    )
    return Cifar(version.classes, train_images, train_labels, test_images, test_labels)


def _detect(folder: Path) -> tuple[Path, _Version]:
    if not folder.is_dir():
        raise CifarError(f"{folder} is not a folder")
    places = [(folder, v) for v in _VERSIONS] + [(folder / v.folder, v) for v in _VERSIONS]
    found = [(p, v) for p, v in places if any((p / n).is_file() for n in v.train + v.test)]
    if not found:
        wanted = "; or ".join(f"{v.folder}: {', '.join(v.train + v.test)}" for v in _VERSIONS)
        raise CifarError(
            f"{folder} holds no CIFAR data set. Looked there for the files of {wanted}"
        )
    if len(found) > 1:
        names = ", ".join(f"{v.folder} (in {p})" for p, v in found)
        raise CifarError(f"{folder} holds more than one data set: {names}. Name the folder of one")
    place, version = found[0]
    missing = [n for n in version.train + version.test if not (place / n).is_file()]
    if missing:
        raise CifarError(f"{place} looks like {version.folder} but lacks {', '.join(missing)}")
    return place, version


def _read(path: Path, version: _Version) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CifarError(f"{path} cannot be read: {error}") from error
    if version.label_key is None:
        images, labels = _from_records(path, raw, version.label_bytes)
    else:
        images, labels = _from_pickle(path, raw, version.label_key)
    if len(labels) == 0:
        raise CifarError(f"{path} holds no image")
    if labels.min() < 0 or labels.max() >= version.classes:
        raise CifarError(
            f"{path} has labels from {labels.min()} to {labels.max()}; "
            f"{version.folder} allows 0 to {version.classes - 1}"
        )
    return images, labels


def _from_records(
    path: Path, raw: bytes, label_bytes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    record = label_bytes + IMAGE_BYTES
    if len(raw) % record != 0:
        raise CifarError(f"{path} has {len(raw)} bytes, no multiple of the {record} of a record")
    table = np.frombuffer(raw, np.uint8).reshape(-1, record)
    images = table[:, label_bytes:].reshape(-1, 3, 32, 32)
    return images, table[:, label_bytes - 1].astype(np.int64)


def _from_pickle(
    path: Path, raw: bytes, label_key: bytes
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = restricted_loads(raw, path)
    if not isinstance(batch, dict):
        raise CifarError(f"{path} holds a {type(batch).__name__}, not a dictionary")
    for key in (b"data", label_key):
        if key not in batch:
            raise CifarError(f"{path} has no key {key!r}, but {sorted(map(repr, batch))}")
    images, labels = batch[b"data"], batch[label_key]
    if not (
        isinstance(images, np.ndarray)
        and images.dtype == np.uint8
        and images.ndim == 2
        and images.shape[1] == IMAGE_BYTES
    ):
        found = f"{getattr(images, 'dtype', type(images).__name__)}{getattr(images, 'shape', '')}"
        raise CifarError(f"{path}: data is {found}, not uint8(n, {IMAGE_BYTES})")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise CifarError(f"{path}: {label_key.decode()} is not a list of integers")
    if len(labels) != len(images):
        raise CifarError(f"{path} has {len(images)} images but {len(labels)} labels")
    return images.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numbers, strings, containers and numpy arrays; any other global is refused.

    A pickle may name any function to be called, so one from a stranger must not be loaded freely.
    """

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        # The module moved in numpy 2; the data set is older than that.
        array_modules = ("numpy.core.multiarray", "numpy._core.multiarray")
        if name == "_reconstruct" and module in array_modules:
            return np.empty(0).__reduce__()[0]
        numeric_modules = ("numpy.core.numeric", "numpy._core.numeric")
        if name == "_frombuffer" and module in numeric_modules:  # protocol 5
            return np.empty(0).__reduce_ex__(5)[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes in protocol 2
            return _encode_latin1
        raise CifarError(
            f"{self._path}: the pickle asks for {module}.{name}, which no CIFAR file has"
        )


def _encode_latin1(text: str, encoding: str | bytes) -> bytes:
    name = encoding.decode() if isinstance(encoding, bytes) else encoding
    if codecs.lookup(name).name != "iso8859-1":
        raise CifarError(f"the pickle asks for the encoding {name}, which no CIFAR file has")
    return text.encode("latin-1")


def restricted_loads(raw: bytes, path: Path) -> Any:
    """The object pickled in `raw`, built of builtins and numpy arrays only; CifarError otherwise.

    `path` is for messages.
    """
    try:
        return _ArrayUnpickler(io.BytesIO(raw), path).load()
    except CifarError:
        raise
    except Exception as error:  # a damaged pickle can raise almost anything
        raise CifarError(
            f"{path} is no complete pickle ({type(error).__name__}: {error})"
        ) from error
