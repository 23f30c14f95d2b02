"""Tensors that share memory are stored once and share it again, as with torch.save."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.bounded.helpers import error, gaussian
from torch_cgx import bounded


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def saved(state: Any, path: Any, **options: Any) -> Any:
    bounded.save(state, path, **({"max_error": 0} | options))
    return bounded.load(path)


def storages(state: dict[str, torch.Tensor]) -> list[int]:
    """For each tensor, which of the storages it has."""
    found: dict[int, int] = {}
    return [found.setdefault(x.untyped_storage().data_ptr(), len(found)) for x in state.values()]


def of_torch(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def views(x: torch.Tensor) -> dict[str, torch.Tensor]:
    other = gaussian(7)
    return {
        "whole": x,
        "rows": x[:26],
        "columns": x[:, 3:9],
        "turned": x.t(),
        "flat": x.view(-1),
        "steps": x[1:30:4, ::3],
        "one": x[5, 6],
        "alone": other,
        "expanded": x[2:3].expand(5, -1),
        "again": x.view(-1)[3:],
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int16, torch.bool])
def test_views_of_one_tensor_share_memory_as_torch_save_makes_them(tmp_path, dtype):
    state = views(gaussian(40, 25).mul(50).to(torch.int16).to(dtype))
    back, expected = saved(state, tmp_path / "a"), of_torch(state)
    assert storages(back) == storages(expected) == storages(state)
    for name, x in expected.items():
        assert torch.equal(x, back[name]) and x.stride() == back[name].stride(), name
    back["flat"].zero_()
    assert not back["columns"].any() and not back["turned"].any() and back["alone"].any()
    part = bounded.load(tmp_path / "a", keys=["rows", "one"])
    assert torch.equal(part["rows"], state["rows"]) and storages(part) == [0, 0]


def test_memory_is_stored_once(tmp_path):
    x = gaussian(1000, 100)
    saved({"x": x}, tmp_path / "alone")
    saved({"x": x, "y": x[:650], "z": nn.Parameter(x[100:]), "again": x}, tmp_path / "a")
    more = (tmp_path / "a").stat().st_size - (tmp_path / "alone").stat().st_size
    assert 0 < more < 300


def test_only_what_a_view_has_is_stored_of_a_storage(tmp_path):
    """torch.save stores all of it."""
    x = gaussian(100_000)
    state = {"a": x[10:40:2], "b": x[20:60:2]}
    back = saved(state, tmp_path / "a")
    assert all(torch.equal(state[name], back[name]) for name in state)
    assert back["a"].untyped_storage().nbytes() == 49 * 4 and storages(back) == [0, 0]
    assert (back["a"].as_strided((24,), (2,), 1) == 0).sum() == 24  # between the values of both
    assert (tmp_path / "a").stat().st_size < 500


def test_what_lies_side_by_side_stays_apart(tmp_path):
    x = gaussian(60, 40)
    state = {"left": x[:, :20], "right": x[:, 20:], "even": x.view(-1)[:0], "odd": x[:0]}
    back = saved(state, tmp_path / "a", overrides={"left": {"pointwise": 0.5}})
    assert all(y.is_contiguous() for y in back.values())
    assert torch.equal(back["right"], x[:, 20:]) and not torch.equal(back["left"], x[:, :20])
    columns = {str(i): x[:, i] for i in range(40)}
    assert all(y.is_contiguous() for y in saved(columns, tmp_path / "a").values())


def test_views_of_float8(tmp_path):
    x = torch.arange(96, dtype=torch.uint8).view(torch.float8_e4m3fn)
    back = saved({"a": x, "b": x[10:50:2]}, tmp_path / "a")
    assert back["a"].dtype == x.dtype and storages(back) == [0, 0]
    assert torch.equal(back["b"].view(torch.uint8), x[10:50:2].contiguous().view(torch.uint8))


@pytest.mark.parametrize(
    ("overrides", "bound"),
    [
        ({}, 0.1),
        ({"part": 0.01}, 0.01),
        ({"part": 0}, 0.0),
        ({"part": {"pointwise": 0.5}}, 0.0),
    ],
    ids=["one", "the smaller", "lossless", "of two kinds"],
)
def test_views_are_within_the_bounds_of_all_names(tmp_path, overrides, bound):
    x = gaussian(900)
    back = saved({"x": x, "part": x[:300]}, tmp_path / "a", max_error=0.1, overrides=overrides)
    assert bound * 0.5 <= error(x, back["x"]) <= bound


def test_relative_is_of_the_range_of_each_view(tmp_path):
    x = torch.cat([gaussian(500), 1000 * gaussian(500)])
    back = saved({"x": x, "part": x[:500]}, tmp_path / "a", max_error=None, relative=1e-3)
    span = float(x[:500].max() - x[:500].min())
    assert 0.5e-3 * span < error(x[:500], back["part"]) <= 1e-3 * span
    x[:500] = 7.0
    back = saved({"x": x, "part": x[:500]}, tmp_path / "a", max_error=None, relative=1e-3)
    assert torch.equal(x, back["x"])


def test_views_of_other_dtypes_come_back_apart_with_a_warning(tmp_path):
    x, z = gaussian(500), torch.complex(gaussian(9), gaussian(9))
    state = {"x": x, "bits": x.view(torch.int32), "z": z, "conjugate": z.conj()}
    with pytest.warns(UserWarning, match="^x and bits; z and conjugate: these share") as caught:
        back = saved(state, tmp_path / "a")
    assert caught[0].filename == __file__
    assert all(torch.equal(x, back[name]) for name, x in state.items())
    assert storages(back) == [0, 1, 2, 3]
