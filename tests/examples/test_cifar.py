"""The CIFAR loader on tiny data sets in each of the four formats, whole and damaged."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import cifar
import numpy as np
import pytest

from tests.examples import cifar_files
from tests.examples.cifar_files import KINDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", [False, True], ids=["the folder", "the folder around it"])
def test_reads_every_format(tmp_path: Path, kind: str, inside: bool) -> None:
    files = cifar_files.write(tmp_path / kind, kind)
    data = cifar.load(tmp_path if inside else tmp_path / kind)
    batches = list(files.values())
    assert data.classes == (100 if "100" in kind else 10)
    np.testing.assert_array_equal(data.train_images, np.concatenate([b[0] for b in batches[:-1]]))
    np.testing.assert_array_equal(data.train_labels, np.concatenate([b[1] for b in batches[:-1]]))
    np.testing.assert_array_equal(data.test_images, batches[-1][0])
    np.testing.assert_array_equal(data.test_labels, batches[-1][1])
    assert data.train_images.dtype == np.uint8
    assert data.train_labels.dtype == np.int64


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_reads_pickles_of_python_3(tmp_path: Path, protocol: int) -> None:
    files = cifar_files.write(tmp_path, "cifar-100-python")
    for name, batch in files.items():
        content = cifar_files.dictionary(batch, ten=False)
        (tmp_path / name).write_bytes(cifar_files.python3_pickle(content, protocol))
    data = cifar.load(tmp_path)
    np.testing.assert_array_equal(data.train_images, files["train"][0])
    np.testing.assert_array_equal(data.train_labels, files["train"][1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "keep", [0, 1, 1000, -1], ids=["empty", "1 byte", "1000 bytes", "all but 1"]
)
def test_truncated_file_is_named(tmp_path: Path, kind: str, keep: int) -> None:
    files = cifar_files.write(tmp_path, kind)
    path = tmp_path / list(files)[-1]
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(cifar.CifarError, match=path.name):
        cifar.load(tmp_path)


@pytest.mark.parametrize("kind", ["cifar-10-batches-py", "cifar-100-python"])
def test_random_damage_is_an_error_or_harmless(tmp_path: Path, kind: str) -> None:
    files = cifar_files.write(tmp_path, kind, n=2)
    path = tmp_path / list(files)[0]
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.integers(0, 120)] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(damaged))
        try:
            data = cifar.load(tmp_path)
        except cifar.CifarError as error:
            assert path.name in str(error)
            refused += 1
        else:
            assert data.train_images.shape[1:] == (3, 32, 32)
    assert refused > 50


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(cifar.CifarError, match="nowhere is not a folder"):
        cifar.load(tmp_path / "nowhere")


def test_empty_folder_lists_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(cifar.CifarError) as caught:
        cifar.load(tmp_path)
    for word in (str(tmp_path), *KINDS, "data_batch_1,", "test_batch.bin", "train.bin"):
        assert word in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_file_is_named(tmp_path: Path, kind: str) -> None:
    files = cifar_files.write(tmp_path, kind)
    (tmp_path / list(files)[0]).unlink()
    with pytest.raises(cifar.CifarError, match=f"lacks {list(files)[0]}$"):
        cifar.load(tmp_path)


def test_two_data_sets_are_not_guessed_between(tmp_path: Path) -> None:
    for kind in KINDS[:2]:
        cifar_files.write(tmp_path / kind, kind)
    with pytest.raises(cifar.CifarError, match="more than one"):
        cifar.load(tmp_path)


@pytest.mark.parametrize("kind", ["cifar-10-batches-py", "cifar-10-batches-bin"])
def test_label_out_of_range(tmp_path: Path, kind: str) -> None:
    files = cifar_files.write(tmp_path, kind)
    name = list(files)[2]
    images, labels = files[name]
    labels[3] = 10
    binary = kind.endswith("bin")
    (tmp_path / name).write_bytes(
        cifar_files.records((images, labels), coarse=False)
        if binary
        else cifar_files.python2_pickle(cifar_files.dictionary((images, labels), ten=True))
    )
    with pytest.raises(cifar.CifarError, match=f"{name} has labels from . to 10.*allows 0 to 9"):
        cifar.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"data": None}, "has no key b'data'"),
        ({b"fine_labels": [1, 2, 3]}, "8 images but 3 labels"),
        ({b"fine_labels": [0.5] * 8}, "not a list of integers"),
        ({b"data": np.zeros((8, 100), np.uint8)}, r"uint8\(8, 100\)"),
        ({b"data": np.zeros((8, 3072), np.float32)}, "float32"),
    ],
    ids=["no data", "too few labels", "float labels", "narrow data", "float data"],
)
def test_wrong_content(tmp_path: Path, change: dict, message: str) -> None:
    files = cifar_files.write(tmp_path, "cifar-100-python")
    content = cifar_files.dictionary(files["train"], ten=False) | change
    content = {key: value for key, value in content.items() if value is not None}
    (tmp_path / "train").write_bytes(cifar_files.python3_pickle(content, 4))
    with pytest.raises(cifar.CifarError, match=message):
        cifar.load(tmp_path)


class _Attack:
    """Its pickle runs a command where it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self._path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickle_cannot_run_code(tmp_path: Path, protocol: int) -> None:
    cifar_files.write(tmp_path, "cifar-10-batches-py")
    proof = tmp_path / "proof"
    attack = pickle.dumps({b"data": _Attack(proof)}, protocol=protocol)
    (tmp_path / "data_batch_3").write_bytes(attack)
    with pytest.raises(cifar.CifarError, match=r"data_batch_3.*(posix|os)\.system"):
        cifar.load(tmp_path)
    assert not proof.exists()
    pickle.loads(attack)  # the attack itself works
    assert proof.exists()
