"""Writes tiny data sets in the four formats of CIFAR, so that the loader can be tested on them."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # [n, 3, 32, 32] and [n]
TRAIN_10 = [f"data_batch_{i}" for i in range(1, 6)]
KINDS = ["cifar-10-batches-py", "cifar-10-batches-bin", "cifar-100-python", "cifar-100-binary"]


def random_batch(n: int, classes: int, seed: int) -> Batch:
    """Random images and labels."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, 3, 32, 32)).astype(np.uint8)
    return images, rng.integers(0, classes, n).astype(np.int64)


def write(folder: Path, kind: str, n: int = 8) -> dict[str, Batch]:
    """Writes `n` random images into each file of the data set; returns what each file holds."""
    folder.mkdir(parents=True, exist_ok=True)
    ten = kind.startswith("cifar-10-")
    names = [*TRAIN_10, "test_batch"] if ten else ["train", "test"]
    files = {}
    for seed, name in enumerate(names):
        batch = random_batch(n, 10 if ten else 100, seed)
        if kind.endswith(("bin", "binary")):
            name += ".bin"
            (folder / name).write_bytes(records(batch, coarse=not ten))
        else:
            (folder / name).write_bytes(python2_pickle(dictionary(batch, ten)))
        files[name] = batch
    return files


def records(batch: Batch, coarse: bool) -> bytes:
    """The binary version: per image [coarse label,] label, 3072 bytes."""
    images, labels = batch
    prefix = b"\x07" if coarse else b""
    return b"".join(
        prefix + bytes([label]) + image.tobytes()
        for image, label in zip(images, labels.tolist(), strict=True)
    )


def dictionary(batch: Batch, ten: bool) -> dict[bytes, Any]:
    """What one file of the pickled version holds."""
    images, labels = batch
    content: dict[bytes, Any] = {b"batch_label": b"a tiny batch"}
    content[b"labels" if ten else b"fine_labels"] = labels.tolist()
    if not ten:
        content[b"coarse_labels"] = [7] * len(labels)
    content[b"data"] = images.reshape(len(images), -1)
    content[b"filenames"] = [b"image_%d.png" % i for i in range(len(images))]
    return content


def python3_pickle(content: dict[bytes, Any], protocol: int) -> bytes:
    """As this Python writes it."""
    return pickle.dumps(content, protocol=protocol)


def python2_pickle(content: dict[bytes, Any]) -> bytes:
    """As Python 2 with numpy 1 wrote the real files: its `str` and its names of numpy's modules.

    Opcodes: the standard library's pickletools. numpy's array state: (version, shape, dtype,
    is_fortran, bytes).
    """
    return b"\x80\x02" + _python2(content) + b"."


def _python2(value: Any) -> bytes:
    if isinstance(value, dict):
        pairs = b"".join(_python2(k) + _python2(v) for k, v in value.items())
        return b"}(" + pairs + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, bytes):
        if len(value) < 256:
            return b"U" + bytes([len(value)]) + value
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, np.ndarray):
        shape = b"(" + b"".join(_python2(n) for n in value.shape) + b"t"
        dtype_state = b"(" + _python2(3) + _python2(b"|") + b"NNN" + _python2(-1) * 2
        dtype_state += _python2(0) + b"t"
        dtype = b"cnumpy\ndtype\n" + _python2(b"u1") + _python2(0) + _python2(1) + b"\x87R"
        dtype += dtype_state + b"b"
        empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        empty += b"(" + _python2(0) + b"t" + _python2(b"b") + b"\x87R"
        return (
            empty + b"(" + _python2(1) + shape + dtype + b"\x89" + _python2(value.tobytes()) + b"tb"
        )
    raise TypeError(f"no opcode for {type(value)}")
