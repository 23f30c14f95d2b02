"""Payloads against a second reader, written from docs/bounded_format.md."""

from __future__ import annotations

import collections
import re
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.bounded import forge, golden_states, reader, reader_files
from tests.bounded.test_golden_files import written
from tests.distributed import ROOT
from torch_cgx import bounded
from torch_cgx.bounded.checkpoint import BoundedSavePlanner

# Outliers of some tensors are meant to make the others 0.
pytestmark = pytest.mark.filterwarnings("ignore:relative=.* of the range:UserWarning")

TEXT = (ROOT / "docs" / "bounded_format.md").read_text()
N = 3000


def _bits(tensor):
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    plain = plain.contiguous().view(-1)
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return plain.view(integers[plain.element_size()]).numpy()


def _check(x, **bound):
    payload = bounded.compress(x, **bound)
    fields, bits = reader.read(bytes(payload.numpy()))
    y = bounded.decompress(payload)
    assert fields["shape"] == tuple(x.shape) == tuple(y.shape) and y.dtype == x.dtype
    np.testing.assert_array_equal(_bits(y).view(bits.dtype), bits)
    found = bounded.info(payload).blocks
    return {block.map for block in found}, {block.predictor for block in found}


def _noise(seed=0, n=N):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
BOUNDS = ({"max_error": 1e-2}, {"relative": 1e-3}, {"pointwise": 1e-2}, {"max_error": 0})


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floating_point_numbers(dtype, bound):
    x = _noise().to(dtype)
    half = dtype in (torch.float16, torch.bfloat16)
    maps, predictors = _check(x, **bound)
    kind = "order" if 0 in bound.values() else "log grid" if "pointwise" in bound else "grid"
    assert maps == {"lattice" if half and kind != "order" else kind}
    assert predictors <= {"none", "mean"}
    x[::100], x[5], x[7], x[11] = 3e4, float("nan"), -0.0, float("-inf")
    _check(x, **bound)
    maps, predictors = _check((_noise() / 8).cumsum(0).to(dtype), **bound)
    if kind == "grid" and not half:
        assert predictors == {"previous"}
    _check(_noise().to(dtype)[:0], **bound)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_lines_and_curves(dtype):
    bend = torch.arange(1000, dtype=dtype) ** 2 * 1e-2  # too short for curves
    assert _check(bend, max_error=1e-2) == ({"grid"}, {"line"})
    # Rows of seven values are too short for fields.
    smooth = torch.sin(torch.arange(7 * 18_724).double() / 500).to(dtype).view(-1, 7)
    assert _check(smooth, max_error=1e-4) == ({"grid"}, {"curve"})
    smooth[100, 3], smooth[10_000, 6] = float("inf"), float("nan")
    assert _check(smooth, max_error=1e-4) == ({"grid"}, {"curve"})


@pytest.mark.parametrize("bound", BOUNDS[:3], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_many_negative_zeros_have_a_word(dtype, bound):
    x = (_noise() * (_noise(1) > 1)).to(dtype)
    x[10] = float("nan")
    payload = bounded.compress(x, **bound)
    block = forge.taken_apart(payload).blocks[0]
    assert block[2] & 4 and bounded.info(payload).blocks[0].specials < 5
    zeros = x == 0
    y = bounded.decompress(payload)[zeros]
    assert (y == 0).all() and torch.equal(torch.signbit(y), torch.signbit(x[zeros]))
    _check(x, **bound)


INTEGERS = (
    torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
    torch.uint64, torch.bool,
)  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_whole_numbers(dtype):
    _check((_noise() * 30).abs().to(dtype))
    _check((torch.arange(N) % 7).to(dtype))
    if dtype.is_signed:
        _check((_noise() * 30).to(dtype))
    if dtype.itemsize == 8:
        _check((_noise().abs() * 100).to(dtype) * 2**40)


def test_low_bits_that_are_no_noise_are_coded():
    x = ((_noise() * 1e6).to(torch.int64) << 24) | torch.randint(0, 4, (3000,))
    payload = bounded.compress(x)
    assert bounded.info(payload).blocks[0].low_bits_coded
    _check(x)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(dtype):
    _check(torch.complex(_noise(0), _noise(1)).to(dtype).reshape(30, 100), max_error=1e-2)


def test_blocks_that_are_constant_or_raw():
    assert _check(torch.full((70000,), 2.5), max_error=1e-3)[0] == {"constant"}
    assert _check(torch.zeros(70000), max_error=1e-3)[0] == {"constant"}
    assert _check(torch.randint(0, 256, (70000,), dtype=torch.uint8))[0] == {"raw"}


def test_the_documented_example():
    table = TEXT.split("<!-- example -->")[1].split("<!-- /example -->")[0]
    rows = re.findall(r"^\| (\d+) \| `([0-9a-f ]+)` \|", table, re.MULTILINE)
    documented = b""
    for offset, data in rows:
        assert int(offset) == len(documented)
        documented += bytes.fromhex(data)
    i = torch.arange(24, dtype=torch.float64)
    x = ((i * i * 7) % 25 - 12) / 8 + i / 1000
    x[3], x[20] = float("nan"), 100.0
    assert bytes(bounded.compress(x.reshape(3, 8), max_error=0.01).numpy()) == documented
    fields, bits = reader.read(documented)
    assert fields["shape"] == (3, 8) and fields["bound"] == 0.01
    y = bits.view(np.float64)
    assert np.isnan(y[3]) and np.nanmax(np.abs(y - x.numpy())) <= 0.01


# ---- files


def _same(found, expected):
    """A state of the second reader, and one of bounded.load."""
    if isinstance(expected, torch.Tensor):
        dtype, shape, stride, bits = found
        assert dtype in (None, str(expected.dtype).removeprefix("torch."))
        assert shape == tuple(expected.shape) and stride in (None, expected.stride())
        whole = _bits(expected.contiguous())
        np.testing.assert_array_equal(whole.view(bits.dtype), bits.reshape(-1))
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            _same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _same(one, other)
    else:
        assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize("plain", [False, True], ids=["packed", "plain"])
def test_files(tmp_path, plain):
    state = golden_states.mixed()
    x = golden_states.wave(30, 8)
    state["views"] = (x, x[3:9], x.t(), x.view(-1)[5:7], torch.view_as_complex(x.view(-1, 2))[:0])
    state["counter"] = collections.Counter({3: 1})
    if plain:
        state["losses"] = [0.5] * 50_000
    bounded.save(state, tmp_path / "a", **golden_states.OPTIONS)
    data = (tmp_path / "a").read_bytes()
    assert data[5] == plain
    version, found = reader_files.read_file(data)
    assert version == 2
    _same(found, bounded.load(tmp_path / "a"))


def test_files_of_version_1(tmp_path):
    path = written("mixed", tmp_path)
    version, found = reader_files.read_file(path.read_bytes())
    assert version == 1
    _same(found, bounded.load(path))


def test_records_of_checkpoints(tmp_path):
    x = golden_states.wave(30, 8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        planner = BoundedSavePlanner(max_error=1e-2)
        dcp.save({"a": {"w": x}}, checkpoint_id=tmp_path, planner=planner)
    pickled = re.search(r"`(ctorch_cgx[^`]*)`", TEXT).group(1).replace("\\n", "\n").encode()
    data = (tmp_path / "__0_0.distcp").read_bytes()
    assert data.startswith(pickled) and len(pickled) == 60
    _, record = reader_files.read_file(data[len(pickled) :])
    assert list(record) == ["checkpoint", "name", "offsets", "tensor"]
    assert record["name"] == "a.w" and record["offsets"] == [0, 0]
    _same(record["tensor"], bounded.decompress(bounded.compress(x, max_error=1e-2)))
    metadata = dcp.FileSystemReader(tmp_path).read_metadata()
    assert metadata.planner_data["torch_cgx.bounded.checkpoint"] == (record["checkpoint"],)
    assert len(bytes.fromhex(record["checkpoint"])) == 16
