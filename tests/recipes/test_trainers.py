"""Lightning, Accelerate and HF Trainer: two ranks train with compressed gradients."""

from __future__ import annotations

import re

import pytest

from tests.distributed import ROOT
from tests.recipes.running import RECIPES as RECIPE_FOLDER
from tests.recipes.running import Finished, needs_recipes, python, run, run_ranks, trainers_python

pytestmark = [needs_recipes, pytest.mark.slow]

LINE = (
    r"rank (\d) of \d: steps 0 to \d+, loss ([\d.]+) to ([\d.]+), weights (\w+), "
    r"sent (\d+) of (\d+) bytes"
)
RECIPES = ["lightning_ddp.py", "accelerate_ddp.py", "hf_trainer.py"]


def _ranks(finished: Finished) -> list[tuple[float, float, str, int, int]]:
    """By rank: first and last loss, weights, bytes sent and raw."""
    found = sorted(re.findall(LINE, finished.output))
    assert [one[0] for one in found] == [str(rank) for rank in range(len(found))]
    assert found, finished.output
    return [(float(a), float(b), c, int(d), int(e)) for _, a, b, c, d, e in found]


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_ranks_train_with_fewer_bytes(recipe):
    finished = run_ranks(recipe)
    first, second = _ranks(finished)
    assert first[2] == second[2], "weights differ between ranks"
    for start, end, _, sent, raw in (first, second):
        assert end < 0.6 * start
        assert 0 < sent < raw / 5
    assert len(finished.matches(r"(cgx: compressing )")) == 1
    assert finished.matches(r"cgx: +(\d+) ") == ["20", "40"]  # of the Monitor


def test_lightning_logs_a_validation_loss_of_all_ranks():
    """Lightning asks for an average of an integer, the number of samples, for `sync_dist=True`."""
    finished = run_ranks("lightning_ddp.py")
    first, second = finished.matches(r"validation loss ([\d.]+)")
    assert first == second
    (start, end, *_), _ = _ranks(finished)
    assert 0.5 * end < float(first) < 0.8 * start


@pytest.mark.parametrize("recipe", RECIPES)
def test_accumulated_batches_are_sent_once(recipe):
    """10 steps of 4 batches send as many bytes as 10 steps of one batch."""
    once = _ranks(run_ranks(recipe, "--steps", "10"))
    four = _ranks(run_ranks(recipe, "--steps", "10", "--accumulate", "4"))
    assert [one[3:] for one in once] == [one[3:] for one in four]
    assert four[0][2] == four[1][2] != once[0][2]


def test_hf_trainer_goes_on_from_a_checkpoint(tmp_path):
    whole = run_ranks("hf_trainer.py", "--error-feedback", "--output", str(tmp_path))
    for rank in range(2):
        assert (tmp_path / "checkpoint-20" / f"cgx_state_{rank}.pt").exists()
    resumed = tmp_path / "resumed"
    (tmp_path / "checkpoint-20").rename(tmp_path / "kept")
    resumed.mkdir()
    (tmp_path / "kept").rename(resumed / "checkpoint-20")
    again = run_ranks("hf_trainer.py", "--error-feedback", "--output", str(resumed), "--resume")
    assert "begins anew" not in again.output
    assert _ranks(whole)[0][2] == _ranks(again)[0][2]  # with the residuals: the same bits


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_rank_of_torchrun_trains(recipe):
    options = ["--ranks", "1"] if recipe.startswith("lightning") else []
    ((start, end, _, sent, _),) = _ranks(run_ranks(recipe, *options, ranks=1))
    assert end < 0.6 * start and sent == 0


@pytest.mark.parametrize("recipe", ["accelerate_ddp.py", "hf_trainer.py"])
def test_one_process_without_a_launcher_says_what_is_missing(recipe):
    finished = run([*trainers_python(), str(RECIPE_FOLDER / recipe)], status=1)
    assert "does nothing with one process" in finished.output
    assert re.search(r"Monitor of a \w+; allowed|not in DistributedDataPar", finished.output)


def test_lightning_and_accelerate_keep_the_state_in_checkpoints(tmp_path):
    for script in ("lightning_checkpoint.py", "accelerate_checkpoint.py"):
        finished = run_ranks(str(ROOT / "tests" / "recipes" / script), str(tmp_path / script))
        assert finished.matches(r"rank (\d): restored") == ["0", "1"]


def test_mistakes_are_named():
    finished = run_ranks(str(ROOT / "tests" / "recipes" / "trainer_mistakes.py"))
    assert finished.matches(r"rank (\d): all named") == ["0", "1"]


@pytest.mark.parametrize(
    "module, library, package",
    [
        ("lightning", "lightning", "lightning"),
        ("accelerate", "accelerate", "accelerate"),
        ("hf", "transformers", "transformers accelerate"),
        ("torchft", "torchft", "torchft"),
    ],
)
def test_a_missing_library_is_named(module, library, package):
    hidden = f"import sys; sys.modules['{library}'] = None; import cgx_utils.trainers.{module}"
    finished = run([python(), "-c", hidden], status=1)
    assert f"ImportError: cgx_utils.trainers.{module} needs" in finished.output
    assert f"pip install {package}" in finished.output


def test_cgx_utils_itself_imports_none_of_the_libraries():
    names = "'lightning', 'accelerate', 'transformers', 'torchft'"
    code = f"import sys, cgx_utils, cgx_utils.trainers; print({{{names}}} & set(sys.modules))"
    assert run([python(), "-c", code]).output.strip() == "set()"
