"""Bounds that turn nearly all values into 0 are a warning that says what to do."""

from __future__ import annotations

import re
import time
import warnings
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.bounded.helpers import error, gaussian
from tests.bounded.test_files import trained
from torch_cgx import bounded
from torch_cgx.bounded._bound import ABSOLUTE, Bound
from torch_cgx.bounded._coarse import zeroes
from torch_cgx.bounded.checkpoint import BoundedLoadPlanner, BoundedSavePlanner


@pytest.fixture
def quiet():
    """Every warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="torch.distributed is")
        yield


def small_moments() -> dict[str, Any]:
    """Of a training whose gradients are small."""
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    for moments in state["optimizer"]["state"].values():
        moments["exp_avg_sq"] *= 1e-6 / moments["exp_avg_sq"].max().clamp(min=1e-30)
        moments["exp_avg"] /= moments["exp_avg"].abs().max().clamp(min=1e-30)
    return state


def test_one_bound_for_a_whole_training_names_the_moments(tmp_path):
    state = small_moments()
    with pytest.warns(UserWarning, match="nearly all values of") as caught:
        bounded.save(state, tmp_path / "a", max_error=1e-4)
    (warned,) = caught
    text = str(warned.message)
    assert warned.filename == __file__
    count = len(state["optimizer"]["state"])
    assert f"of {count} tensors, which become 0: optimizer.state.0.exp_avg_sq, " in text
    pattern, bound = re.search(r"overrides=\{r'(.*)': (\{.*\})\}", text).groups()
    assert pattern == "exp_avg_sq$" and eval(bound) == {"pointwise": 0.01}
    back = bounded.load(tmp_path / "a")["optimizer"]["state"][0]["exp_avg_sq"]
    assert not back.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bounded.save(state, tmp_path / "a", max_error=1e-4, overrides={pattern: eval(bound)})
    x, y = state["optimizer"]["state"][0]["exp_avg_sq"], bounded.load(tmp_path / "a")
    y = y["optimizer"]["state"][0]["exp_avg_sq"]
    assert ((x - y).abs() <= 1e-2 * x).all()


def test_a_warning_that_is_an_error_leaves_the_old_file(tmp_path, quiet):
    bounded.save({"a": 1}, tmp_path / "a", max_error=0)
    with pytest.raises(UserWarning, match="of 1 tensor, which become 0: the tensor"):
        bounded.save(1e-3 * gaussian(100), tmp_path / "a", max_error=1.0)
    assert bounded.load(tmp_path / "a") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("values", "bound"),
    [
        (gaussian(5000), {"max_error": 0.1}),
        (gaussian(5000), {"relative": 0.1}),
        (1e-9 * gaussian(5000), {"relative": 1e-2}),
        (1e-9 * gaussian(5000), {"pointwise": 0.5}),
        (1e-9 * gaussian(5000), {"max_error": 0}),
        (torch.zeros(5000), {"max_error": 1.0}),
        (torch.empty(0), {"max_error": 1.0}),
        (torch.arange(5000), {"max_error": 1.0}),
        (torch.full((5000,), torch.nan), {"relative": 0.1}),
        (torch.tensor([1.0, 1e-6, 0.0]), {"relative": 1e-3}),
        (torch.cat([torch.zeros(4000), gaussian(1000)]), {"max_error": 0.1}),
        (gaussian(5000).square(), {"relative": 1e-3}),
    ],
    ids=str,
)
def test_other_bounds_are_no_warning(tmp_path, quiet, values, bound):
    bounded.save({"a": values}, tmp_path / "a", **bound)
    if values.is_floating_point():
        bounded.compress(values, **bound)


@pytest.mark.parametrize("fills", [1, 100, 3500])
@pytest.mark.parametrize("fill", [1e20, -1e20])
def test_a_fill_value_makes_relative_a_warning(tmp_path, fill, fills):
    x = gaussian(5000)
    x[torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:fills]] = fill
    with pytest.warns(UserWarning, match="relative=0.001 of the range is above") as caught:
        payload = bounded.compress(x, relative=1e-3)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert (bounded.decompress(payload) == 0).sum() == 5000 - fills
    with pytest.warns(UserWarning, match="of 1 tensor, which become 0: a"):
        bounded.save({"a": x}, tmp_path / "a", relative=1e-3)
    x[x == fill] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bounded.compress(x, relative=1e-3)


def test_an_outlier_that_no_sample_meets_makes_relative_a_warning():
    x = gaussian(300_000)
    x[-2] = 1e20
    with pytest.warns(UserWarning, match="relative=0.001 of the range is above"):
        bounded.compress(x, relative=1e-3)


def test_a_sample_meets_all_columns():
    """Not the first of 1024 columns alone."""
    x = gaussian(4096, 1024)
    x[:, 0] *= 1e-9
    assert not zeroes(x, Bound(ABSOLUTE, 1e-4, 1e-4))
    assert zeroes(1e-9 * x, Bound(ABSOLUTE, 1e-4, 1e-4))


def test_the_look_takes_little_time():
    x, bound = gaussian(1 << 20), Bound(ABSOLUTE, 1e-4, 1e-4)
    zeroes(x, bound)
    look = min(_seconds(lambda: zeroes(x, bound)) for _ in range(5))
    whole = min(_seconds(lambda: bounded.compress(x, max_error=1e-4)) for _ in range(3))
    assert look < 0.2 * whole


def _seconds(call):
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_checkpoints_warn_once_of_all_tensors(tmp_path):
    state = small_moments()["optimizer"]["state"]
    moments = {str(number): {"exp_avg_sq": one["exp_avg_sq"]} for number, one in state.items()}
    with pytest.warns(UserWarning, match="nearly all values") as caught:
        storage = dcp.FileSystemWriter(tmp_path / "a", thread_count=2)
        planner = BoundedSavePlanner(max_error=1e-4)
        dcp.save(moments, storage_writer=storage, planner=planner)
    found = [str(one.message) for one in caught if "nearly all" in str(one.message)]
    assert len(found) == 1 and f"of {len(moments)} tensors" in found[0], found
    assert "exp_avg_sq$" in found[0]
    dcp.load(moments, checkpoint_id=tmp_path / "a", planner=BoundedLoadPlanner())
    assert error(moments["0"]["exp_avg_sq"], torch.zeros_like(moments["0"]["exp_avg_sq"])) == 0
