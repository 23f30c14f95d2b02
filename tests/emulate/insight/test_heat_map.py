"""Heat maps: what is drawn where, from records and from logs."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from torch_cgx.emulate.insight import heat_map as module
from torch_cgx.emulate.insight.heat_map import draw, heat_map, table

pytest.importorskip("matplotlib")


def _values(sqnr, amax=2.0):
    return {"sqnr": sqnr, "underflowed": 0.25, "saturated": 0.0, "amax": amax, "bits": 8.0}


def _records():
    """Layer a gets worse; b has no signal at first; c comes late."""
    return [
        {
            "step": 10,
            "formats": {
                "a/forward.input": _values(30.0),
                "a/dgrad.gradient": _values(math.inf),
                "b/forward.input": _values(math.nan),
            },
        },
        {"step": 15},  # of an older log
        {
            "step": 20,
            "formats": {
                "a/forward.input": _values(10.0, amax=0.0),
                "a/dgrad.gradient": _values(25.0),
                "b/forward.input": _values(20.0),
                "c.d/forward.input": _values(5.0),
            },
        },
        {"step": 25, "formats": {}},  # what close() adds
    ]


def _axes():
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def _image(axes):
    (image,) = axes.get_images()
    return image


def test_the_table_has_layers_and_steps():
    matrix, rows, columns = table(_records(), "sqnr", "forward.input")
    assert (rows, columns) == (["a", "b", "c.d"], [10, 20])
    nan = math.nan
    np.testing.assert_array_equal(matrix, [[30, 10], [nan, 20], [nan, 5]])
    matrix, rows, _ = table(_records(), "underflowed")
    assert rows == ["a/forward.input", "a/dgrad.gradient", "b/forward.input", "c.d/forward.input"]
    assert matrix[:3].tolist() == [[0.25, 0.25]] * 3


def test_steps_are_in_order_and_the_last_record_of_one_counts():
    records = _records()
    records += [{"step": 10, "formats": {"a/forward.input": _values(1.0)}}]
    matrix, _, columns = table(records[::2] + records[-1:], "sqnr", "forward.input")
    assert columns == [10, 20] and matrix[0].tolist() == [1.0, 10.0]


def test_infinities_are_at_the_ends_and_nan_is_grey():
    axes = _axes()
    draw(axes, np.array([[1.0, np.inf], [np.nan, 3.0]]), ["a", "b"], [10, 20], "SQNR, dB")
    image = _image(axes)
    colours = image.to_rgba(image.get_array())
    assert np.array_equal(colours[0, 1], colours[1, 1])  # no error: as the best
    assert np.allclose(colours[1, 0], [0.8, 0.8, 0.8, 1.0])
    assert not np.allclose(colours[0, 0], colours[1, 1])
    assert image.get_clim() == (1.0, 3.0) and image.colorbar.extend == "max"
    assert image.colorbar.ax.get_ylabel() == "SQNR, dB"
    assert "grey" in axes.get_title(loc="right")
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10", "20"]


def test_dark_is_the_bad_end():
    lightness = []
    for dark in ("low", "high"):
        axes = _axes()
        draw(axes, np.array([[1.0, 2.0]]), ["a"], ["x", "y"], "", dark=dark)
        image = _image(axes)
        lightness.append(image.to_rgba(image.get_array())[0, :, :3].sum(1))
    assert lightness[0][0] < lightness[0][1] and lightness[1][0] > lightness[1][1]


@pytest.mark.parametrize("numbers", [[np.inf, np.inf], [np.nan, np.nan], [3.0, 3.0], [0.0, 0.0]])
@pytest.mark.parametrize("log", [False, True])
def test_a_scale_without_two_ends(numbers, log):
    axes = _axes()
    draw(axes, np.array([numbers]), ["a"], [1, 2], "", log=log)
    low, high = _image(axes).get_clim()
    assert low < high
    axes.figure.draw_without_rendering()


@pytest.mark.parametrize("shares, ends", [([0.25, 0.5], (0, 0.5)), ([0.0, 0.0], (0, 1))])
def test_shares_begin_at_zero(tmp_path, monkeypatch, shares, ends):
    monkeypatch.setattr(module, "plot", lambda path, *a, xlabel, **o: draw(axes, *a, **o))
    axes = _axes()
    formats = {f"{share}{i}/weights": {"saturated": share} for i, share in enumerate(shares)}
    heat_map([{"step": 1, "formats": formats}], tmp_path / "map.png", "saturated")
    assert _image(axes).get_clim() == ends


def test_zeros_on_a_log_scale_are_the_lowest():
    axes = _axes()
    draw(axes, np.array([[0.0, 0.5, 8.0]]), ["a"], [1, 2, 3], "", log=True)
    image = _image(axes)
    assert image.get_clim() == (0.5, 8.0)
    assert image.get_array().tolist() == [[0.5, 0.5, 8.0]]


def test_few_of_many_columns_have_labels():
    axes = _axes()
    draw(axes, np.ones((1, 999)), ["a"], range(999), "")
    assert 10 <= len(axes.get_xticks()) <= 20
    assert axes.get_xticks()[1] == int(axes.get_xticklabels()[1].get_text())


def _size(path):
    """Pixels, width and height, of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


@pytest.mark.parametrize("value", ["sqnr", "underflowed", "saturated", "amax"])
def test_pictures_of_all_values(tmp_path, value):
    heat_map(_records(), tmp_path / "map.png", value)
    width, height = _size(tmp_path / "map.png")
    assert 400 < width < 1500 and 200 < height < 600


def test_the_picture_grows_with_its_rows(tmp_path):
    formats = {f"blocks.{i}.up/forward.input": _values(float(i)) for i in range(100)}
    heat_map([{"step": 1, "formats": formats}], str(tmp_path / "map.png"))
    assert _size(tmp_path / "map.png")[1] > 100 * 20


def test_it_reads_a_log_whose_last_line_has_no_end(tmp_path, monkeypatch):
    log = tmp_path / "log.jsonl"
    lines = [json.dumps(record) for record in _records()]
    log.write_text("\n".join(lines) + '\n\n{"step": 30, "for')
    seen = []
    monkeypatch.setattr(module, "plot", lambda *a, **o: seen.append(a))
    for records in (log, str(log), _records(), iter(_records())):
        heat_map(records, tmp_path / "map.png", tensor="forward.input")
    for path, matrix, rows, columns, label in seen:
        np.testing.assert_array_equal(matrix, seen[0][1])
        assert (path, rows, columns) == (tmp_path / "map.png", ["a", "b", "c.d"], [10, 20])
        assert label == "SQNR, dB, of forward.input"


def test_mistakes_are_named(tmp_path):
    path = tmp_path / "map.png"
    with pytest.raises(ValueError, match="value='snr'; allowed: sqnr, underflowed, saturated"):
        heat_map(_records(), path, "snr")
    with pytest.raises(ValueError, match="tensor='input'; the records have: forward.input, dgrad"):
        heat_map(_records(), path, tensor="input")
    for records in ([], [{"step": 1}], [{"step": 1, "formats": {}}]):
        with pytest.raises(ValueError, match="no record has formats"):
            heat_map(records, path)
    log = tmp_path / "log"
    for text in ("{}", "[1]", "hello"):
        log.write_text(f'{{"step": 1}}\n{text}\n')
        with pytest.raises(ValueError, match="log, line 2: not a record of a Monitor"):
            heat_map(log, path)
    with pytest.raises(FileNotFoundError):
        heat_map(tmp_path / "none", path)
    assert not path.exists()


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        heat_map(_records(), tmp_path / "map.png")


def test_pyplot_is_not_imported(tmp_path):
    code = f"""
import sys
from torch_cgx.emulate.insight.heat_map import heat_map
assert "matplotlib" not in sys.modules
heat_map([{{"step": 1, "formats": {{"a/weights": {{"sqnr": 3.0}}}}}}], {str(tmp_path / "m.svg")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert "<svg" in (tmp_path / "m.svg").read_text()


@pytest.mark.parametrize("records, text", [(3, "records is of type int"), ([1], "records has 1")])
def test_other_things_than_records_are_named(tmp_path, records, text):
    with pytest.raises(TypeError, match=text):
        heat_map(records, tmp_path / "x.png")
