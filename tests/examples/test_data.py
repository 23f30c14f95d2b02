"""Order and content of the training data: the same for a seed, whatever the number of ranks."""

from __future__ import annotations

import math
from pathlib import Path

import common
import corpus
import pytest
import torch
import train_digits
from cifar_train import augment, rate_factor
from common import Ranks
from train_gpt import learning_rate

CPU = torch.device("cpu")


def epoch_of(rank: int, world: int, seed: int = 3, epoch: int = 1) -> list[torch.Tensor]:
    found = common.batches(100, 12, Ranks(rank, world, CPU), seed, epoch)
    return [chosen[mine] for chosen, mine in found]


@pytest.mark.parametrize("world", [2, 3, 4, 6])
def test_ranks_together_see_what_one_rank_sees(world: int) -> None:
    alone = epoch_of(0, 1)
    shares = [epoch_of(rank, world) for rank in range(world)]
    assert len(alone) == 8
    for step, batch in enumerate(alone):
        assert torch.equal(torch.cat([share[step] for share in shares]), batch)
    assert torch.cat(alone).unique().numel() == 96


def test_order_depends_on_seed_and_epoch() -> None:
    first = torch.cat(epoch_of(0, 1))
    assert torch.equal(first, torch.cat(epoch_of(0, 1)))
    assert not torch.equal(first, torch.cat(epoch_of(0, 1, epoch=2)))
    assert not torch.equal(first, torch.cat(epoch_of(0, 1, seed=4)))


def test_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="batch 10 cannot be shared equally by 3 ranks"):
        next(common.batches(100, 10, Ranks(0, 3, CPU), 0, 0))
    with pytest.raises(ValueError, match="batch 12 exceeds the 11"):
        next(common.batches(11, 12, Ranks(0, 1, CPU), 0, 0))


def test_digits_are_split_once_and_for_all() -> None:
    images, labels, test_images, test_labels = train_digits.load()
    assert images.shape == (1437, 1, 8, 8) and test_images.shape == (360, 1, 8, 8)
    assert float(images.min()) == 0 and float(images.max()) == 1
    assert labels.unique().tolist() == test_labels.unique().tolist() == list(range(10))
    again = train_digits.load()
    assert torch.equal(images, again[0]) and torch.equal(test_labels, again[3])


def test_corpus_of_the_standard_library() -> None:
    train, val = corpus.load(1.0)
    again, _ = corpus.load(1.0)
    assert torch.equal(train, again)
    assert 0.7e6 < train.numel() + val.numel() < 1.4e6
    assert val.numel() / train.numel() == pytest.approx(1 / 9, rel=0.01)
    assert b"def " in bytes(val.tolist())
    assert 2.5 < corpus.unigram_entropy(train) < 4.0


def make_library(folder: Path) -> None:
    for name in [
        "b.py",
        "a/z.py",
        "a.py",
        "test/t.py",
        "a/tests/t.py",
        "site-packages/p.py",
        "n.txt",
    ]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_corpus_leaves_out_tests_and_packages(tmp_path: Path) -> None:
    make_library(tmp_path)
    found = corpus.library_files(tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in found] == ["a.py", "a/z.py", "b.py"]


def test_corpus_too_small_names_the_folder(tmp_path: Path) -> None:
    make_library(tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path} has 3 readable"):
        corpus.load(1.0, tmp_path)


def test_corpus_validates_on_the_last_tenth_of_each_file(tmp_path: Path) -> None:
    for i in range(40):
        (tmp_path / f"m{i:02}.py").write_bytes(bytes([i]) * 9 + bytes([100 + i]))
    train, val = corpus.load(1.0, tmp_path)
    assert val.tolist() == list(range(100, 140))
    assert train.tolist() == [i for i in range(40) for _ in range(9)]
    half, _ = corpus.load(200 / 1e6, tmp_path)
    assert half.tolist() == [i for i in range(1, 40, 2) for _ in range(9)]


def test_windows_are_shifted_by_one() -> None:
    text = torch.arange(100, dtype=torch.uint8)
    x, y = corpus.windows(text, torch.tensor([0, 40, 94]), 5)
    assert x.tolist() == [[0, 1, 2, 3, 4], [40, 41, 42, 43, 44], [94, 95, 96, 97, 98]]
    assert torch.equal(y, x + 1)
    assert x.dtype == y.dtype == torch.int64


def test_unigram_entropy() -> None:
    assert corpus.unigram_entropy(torch.arange(8, dtype=torch.uint8)) == pytest.approx(math.log(8))
    assert corpus.unigram_entropy(torch.zeros(8, dtype=torch.uint8)) == 0


def test_augment_crops_and_mirrors() -> None:
    images = torch.randint(1, 256, (64, 3, 32, 32)).to(torch.uint8)
    result = augment(images, torch.Generator().manual_seed(0))
    assert result.shape == images.shape and result.dtype == torch.uint8
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    mirrored = 0
    for i in range(64):
        crops = {
            flip: [
                bool(torch.equal(crop.flip(-1) if flip else crop, result[i]))
                for y in range(9)
                for x in range(9)
                for crop in [padded[i, :, y : y + 32, x : x + 32]]
            ]
            for flip in (False, True)
        }
        assert sum(crops[False]) + sum(crops[True]) == 1
        mirrored += sum(crops[True])
    assert 16 < mirrored < 48
    assert torch.equal(result, augment(images, torch.Generator().manual_seed(0)))


def test_learning_rates() -> None:
    assert learning_rate(0, 100, 10, 2.0) == pytest.approx(0.2)
    assert learning_rate(9, 100, 10, 2.0) == pytest.approx(2.0)
    assert learning_rate(10, 100, 10, 2.0) == pytest.approx(2.0)
    assert learning_rate(55, 100, 10, 2.0) == pytest.approx(1.0)
    assert learning_rate(99, 100, 10, 2.0) < 0.01
    assert rate_factor(1, 100, 4, "cosine") == 0.5
    assert rate_factor(4, 100, 4, "cosine") == 1
    assert rate_factor(100, 100, 4, "cosine") == 0
    steps = [rate_factor(s, 100, 4, "step") for s in (4, 49, 50, 74, 75, 99)]
    assert steps == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
