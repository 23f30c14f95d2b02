"""BDI against a model in plain Python: choices, sizes, bytes, the bound, and what is refused."""

from __future__ import annotations

import dataclasses
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.bounded.bdi import model as bdi_model
from tests.bounded.bdi.cases import cases, compression, tensor
from tests.bounded.bdi.model import Model
from torch_cgx.bounded import bdi
from torch_cgx.bounded.bdi import Compression, Config


def words_of(x: torch.Tensor) -> list[int]:
    return x.contiguous().view(torch.int32).flatten().numpy().view(np.uint32).tolist()


def check(model: Model, words: list[int]) -> bdi.Report:
    """All that an encoder and a decoder do, against the model."""
    c, x = compression(model), tensor(words, model.dtype)
    payload = c.compress(x)
    assert payload.numpy().tobytes() == bdi_model.payload(model, words, (len(words),))
    y = bdi.decompress(payload)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    found = bdi_model.chunks(model, words)
    got = words_of(y)
    assert got == [word for chunk in found for word in chunk.words]
    for word, back in zip(words, got, strict=True):
        assert abs(word - back) < c.error_bound
        assert bdi_model.kind(model.dtype, word) == bdi_model.kind(model.dtype, back)
    report = c.report(x)
    assert report.choice.tolist() == [chunk.choice for chunk in found]
    assert report.bits.tolist() == [chunk.bits for chunk in found]
    assert report.zeros.tolist() == [chunk.mask.count(False) for chunk in found]
    assert report.size_bits == c.size_bits(x) == sum(chunk.bits for chunk in found)
    assert report.payload_bytes == payload.numel() and report.error_bound == c.error_bound
    return report


POINTERS = [0xC04039C0, 0xC04039C8, 0xC04039D0, 0xC04039F8]


def test_vector_of_four_pointers() -> None:
    model = Model(((1, 32, 8),), zero_mask=False)
    (chunk,) = bdi_model.chunks(model, POINTERS)
    assert chunk.bases == [0xC04039C0] and chunk.deltas == [0x00, 0x08, 0x10, 0x38]
    check(model, POINTERS)
    c = Compression([Config(1, 32, 8)], use_zero_compression=False)
    assert c.size_bits(tensor(POINTERS)) == 64
    assert Compression([Config(1, 32, 8)]).size_bits(tensor(POINTERS)) == 68
    # And they lie in the payload: one base, its selectors (behind immediate 0), the deltas.
    body = 1 | 0xC04039C0 << 1 | 0b1111 << 33 | 0x38100800 << 37
    assert c.compress(tensor(POINTERS)).numpy().tobytes()[-13:-4] == body.to_bytes(9, "little")


@pytest.mark.parametrize("delta, bits", [(8, 96), (6, 80), (5, None)])
def test_vector_of_eight_pointers(delta: int, bits: int | None) -> None:
    words = [0xC04039C0 + 8 * i for i in range(8)]
    report = check(Model(((1, 32, delta),), zero_mask=False), words)
    c = Compression([Config(1, 32, delta)], use_zero_compression=False)
    assert torch.equal(c.roundtrip(tensor(words)), tensor(words))
    if bits is None:  # where the original ends the program
        assert report.raw_chunks == 1 and report.choice.tolist() == [-1]
        assert report.wins == {"0": 0, "raw": 1} and report.size_bits == 8 * 32
    else:
        assert report.raw_chunks == 0 and report.size_bits == bits
        (chunk,) = bdi_model.chunks(Model(((1, 32, delta),), zero_mask=False), words)
        assert chunk.deltas == [0x00, 0x08, 0x10, 0x18, 0x20, 0x28, 0x30, 0x38]


def test_vector_with_a_zero_mask() -> None:
    words = [0, 5, 200, 1000]
    model = Model(((1, 32, 8),))
    (chunk,) = bdi_model.chunks(model, words)
    assert chunk.mask == [False, True, True, True]
    assert chunk.bases == [0x3E8] and chunk.selectors == [0, 0, 1] and chunk.deltas == [5, 200, 0]
    assert check(model, words).size_bits == 60
    body = 0b1110 | 1 << 4 | 0x3E8 << 5 | 0b100 << 37 | 0x00C805 << 40
    payload = Compression([Config(1, 32, 8)]).compress(tensor(words)).numpy().tobytes()
    assert payload[-12:-4] == body.to_bytes(8, "little")


@pytest.mark.parametrize("batch", [1, 7, 32, 64, 100])
def test_every_length_around_the_borders_of_chunks(batch: int) -> None:
    rng = random.Random(batch)
    configs = ((0, 8, 1), (1, 32, 4), (2, 20, 9))
    for n in range(0, 201, 1 if batch == 64 else 3):
        near = rng.randrange(1 << 31)
        words = [rng.choice((0, rng.randrange(20), near + rng.randrange(500))) for _ in range(n)]
        check(Model(configs, batch), words)


def test_the_first_of_equal_configurations_and_the_smallest_wins() -> None:
    words = [3, 1, 2, 1]
    for configs, winner in (
        (((0, 32, 3), (0, 32, 2), (0, 32, 2)), 1),
        (((1, 8, 0), (0, 1, 1), (0, 1, 8)), 2),  # 1 bit is too few
        (((1, 8, 2), (0, 1, 4)), 0),  # 4 + 8 + 8 bits, and 4 + 16: the same
        (((1, 4, 1), (1, 4, 1), (0, 1, 2)), 2),  # the same, too, but only the last can hold them
    ):
        assert check(Model(configs), words).choice.tolist() == [winner]


@settings(max_examples=500, deadline=None)
@given(cases())
def test_any_configuration_is_the_models_and_within_the_bound(
    case: tuple[Model, list[int]],
) -> None:
    check(*case)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_without_scales_it_is_lossless(case: tuple[Model, list[int]]) -> None:
    model = dataclasses.replace(case[0], init=0, delta=0, base=0)
    x = tensor(case[1], model.dtype)
    assert words_of(compression(model).roundtrip(x)) == case[1]


def test_a_shifted_base_decodes_right() -> None:
    """NNW-BDI takes the delta from the word, and stores the word without its low bits."""
    words = [0x12345, 0x12349, 0x12360]
    model = Model(((1, 16, 8),), base=4, zero_mask=False, immediates=())
    (chunk,) = bdi_model.chunks(model, words)
    assert chunk.bases == [0x12340] and chunk.deltas == [0x05, 0x09, 0x20]
    assert check(model, words).raw_chunks == 0
    # The original's deltas, 0, 4 and 0x1b, would give other words.
    assert [0x12340 + d for d in (0, 4, 0x1B)] != words


def test_a_word_out_of_reach_of_its_own_base_makes_the_chunk_raw() -> None:
    assert check(Model(((3, 32, 2),), base=8), [0x1003, 0x1004]).raw_chunks == 1
    assert check(Model(((3, 32, 2),), base=8), [0x1003, 0x1002]).raw_chunks == 0


def test_the_bound_is_reached_and_stated() -> None:
    c = Compression([Config(1, 32, 16)], scale_factor_init=2, scale_factor_delta=3)
    assert c.error_bound == 32
    x = torch.arange(0, 1 << 14, dtype=torch.int32)
    error = x - c.roundtrip(x)
    assert error.min() >= 0 and error.max() == 31


def test_stochastic_rounding_is_unbiased() -> None:
    c = Compression(
        [Config(1, 32, 8)],
        scale_factor_delta=4,
        use_stochastic_rounding=True,
        use_zero_compression=False,
        seed=7,
    )
    x = torch.full((64000,), 16 * 5 + 3, dtype=torch.int32)
    y = c.roundtrip(x)
    assert set(y.tolist()) == {80, 96}
    # 80 + 16 * binomial(3 / 16): the mean's deviation is 16 * sqrt(3 / 16 * 13 / 16 / n) = 0.025.
    assert abs(y.double().mean() - 83) < 0.1
    plain = dataclasses.replace(c, use_stochastic_rounding=False)
    assert set(plain.roundtrip(x).tolist()) == {80}


def test_the_last_delta_is_reached_by_rounding_but_not_passed() -> None:
    """The guard of NNW-BDI keeps one step too many: deltas of 1 bit were never rounded up."""
    c = Compression(
        [Config(0, 32, 1)],
        scale_factor_delta=8,
        use_stochastic_rounding=True,
        use_zero_compression=False,
    )
    up = c.roundtrip(torch.full((1000,), 255, dtype=torch.int32))
    assert set(up.tolist()) == {0, 256} and (up == 256).sum() > 950
    assert set(c.roundtrip(torch.full((1000,), 511, dtype=torch.int32)).tolist()) == {256}


@pytest.mark.parametrize("dtype", bdi_model.DTYPES)
@pytest.mark.parametrize("stochastic", [False, True])
def test_no_word_changes_its_sign_or_kind(dtype: str, stochastic: bool) -> None:
    """Each border with a base just below it, which cuts words above it down to below."""
    for border in (0x80000000, 0x7F800000, 0x7F800001, 0xFF800000, 0xFFFFFFFF, 0xFF800001):
        words = [(border + offset) % 2**32 for offset in (*range(-40, 40), -37, 100)]
        for delta in (1, 4, 7):
            model = Model(((3, 32, 8),), 32, (), 0, 0, delta, stochastic, True, False, 3, dtype)
            check(model, words)
            check(dataclasses.replace(model, immediates=(border - 5,), init=0), words)
            check(dataclasses.replace(model, init=2), words)


@pytest.mark.parametrize("random_bases", [False, True])
def test_the_same_bytes_with_any_number_of_threads(random_bases: bool) -> None:
    rng = np.random.default_rng(5)
    words = (rng.integers(0, 9, 300_000) << 20) + rng.integers(0, 70, 300_000)
    x = torch.from_numpy(words.astype(np.int32))
    c = Compression(
        [Config(14, 32, 5), Config(18, 32, 6)],
        scale_factor_delta=2,
        use_stochastic_rounding=True,
        use_randomized_base_selection=random_bases,
        seed=11,
    )
    before = torch.get_num_threads()
    payloads, results = [], []
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            payloads.append(c.compress(x))
            results.append(bdi.decompress(payloads[0]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(payload, payloads[0]) for payload in payloads)
    assert all(torch.equal(y, results[0]) for y in results)
    assert (x - results[0]).abs().max() == 3
    assert set(c.report(x).choice.tolist()) == {0, 1, -1}
    other = dataclasses.replace(c, seed=12).compress(x)
    assert other.shape != payloads[0].shape or not torch.equal(other, payloads[0])


@pytest.mark.parametrize("dtype", bdi_model.DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (7, 9), (2, 3, 4, 5)])
def test_shape_and_dtype_come_back(shape: tuple[int, ...], dtype: str) -> None:
    n = int(np.prod(shape))
    x = tensor([5 * i for i in range(n)], dtype).reshape(shape)
    c = Compression([Config(1, 32, 8), Config(1, 32, 16)])
    payload = c.compress(x)
    y = bdi.decompress(payload)
    assert (y.shape, y.dtype) == (x.shape, x.dtype) and words_of(y) == words_of(x)
    assert (payload.dtype, payload.dim()) == (torch.uint8, 1)
    assert payload.untyped_storage().nbytes() == payload.numel()
    report = bdi.info(payload)
    assert (report.shape, report.dtype, report.words) == (x.shape, x.dtype, n)
    assert report.configs == c.configs and report.batch_size == 64
    assert len(report.choice) == (n + 63) // 64 == sum(report.wins.values())


def test_strides_views_and_autograd() -> None:
    c = Compression([Config(2, 32, 24)])
    x = torch.randn(12, 10)
    x[0, :4] = torch.tensor([float("nan"), float("-inf"), -0.0, 1e-42])
    for view in (x.t(), x[::2, 1:], x[:, 4], x.expand(2, 12, 10), torch._neg_view(x)):
        plain = view.clone(memory_format=torch.contiguous_format)
        assert words_of(c.roundtrip(view)) == words_of(plain)
        assert torch.equal(c.compress(view), c.compress(plain))
    misaligned = torch.frombuffer(bytearray(b"?" + x.numpy().tobytes()), dtype=x.dtype, offset=1)
    assert misaligned.data_ptr() % 4 and words_of(c.roundtrip(misaligned)) == words_of(x)
    weight = torch.nn.Parameter(x)
    y = c.roundtrip(weight)
    assert not y.requires_grad and words_of(y) == words_of(x)
    spaced = torch.zeros(2 * c.compress(x).numel(), dtype=torch.uint8)[::2]
    spaced.copy_(c.compress(x))
    assert words_of(bdi.decompress(spaced)) == words_of(x)


def test_reports_have_names_and_text() -> None:
    c = Compression([Config(0, 1, 1, "flags"), Config(), Config(2, 16, 4)], batch_size=8)
    assert [config.name for config in c.configs] == ["flags", "1b32d8", "2b16d4"]
    x = torch.tensor([0, 1] * 4 + [1 << 30, 2, 3] * 3)
    report = c.report(x.to(torch.int32))
    assert report.wins == {"flags": 1, "1b32d8": 1, "2b16d4": 1, "raw": 0}
    assert report.size_bits == (8 + 4) + (8 + 32 + 64) + (1 + 32 + 4)
    assert "17 words, 153 bits accounted" in str(report) and "lossless" in str(report)
    assert report.ratio == 68 / report.payload_bytes
    assert "errors < 8" in str(Compression([Config()], scale_factor_init=3).report(x.float()))


def test_compressed_repr_is_the_originals_formula() -> None:
    words = [0, 3, 1000, 0x7FFFFFF0, 0x80000000, 0xFFFFFFFF, 77]
    model = Model(((4, 32, 8), (4, 32, 20)), init=2, base=1, delta=3)
    for scale, zero_point in ((1.0, 0), (0.1, -128), (3, 2**31 - 1), (-1e-30, -(2**31))):
        for dtype in ("uint32", "int32"):
            signed = dataclasses.replace(model, dtype=dtype)
            back = np.array(bdi_model.decoded(signed, words), np.uint32).view(np.int32)
            sums = back.astype(np.int64) + zero_point  # the original's i32 would overflow
            expected = (sums.astype(np.float64) * np.float64(np.float32(scale))).astype(np.float32)
            c = compression(signed)
            got = c.compressed_repr(tensor(words, dtype).reshape(7, 1), scale, zero_point)
            assert got.dtype == torch.float32 and got.shape == (7, 1)
            assert got.flatten().numpy().tobytes() == expected.tobytes()
    small = tensor([5, 6, 500])
    got = Compression([Config()]).compressed_repr(small, 0.25, 10)
    assert got.tolist() == [3.75, 4.0, 127.5]


def test_compressions_are_values() -> None:
    c = Compression([Config(1, 32, 8)], batch_size=8, immediates=[0, 5])
    same = Compression((Config(1, 32, 8),), batch_size=8, immediates=(0, 5))
    assert c == same and hash(c) == hash(same) and pickle.loads(pickle.dumps(c)) == c
    assert c != dataclasses.replace(c, seed=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"num_bases": 65}, ValueError, "num_bases is 65, allowed: 0 to 64"),
        ({"num_bases": -1}, ValueError, "num_bases is -1"),
        ({"num_bases": 1.0}, TypeError, r"num_bases is 1.0 \(float\)"),
        ({"base_size": 0}, ValueError, "base_size is 0, allowed: 1 to 32"),
        ({"base_size": 33}, ValueError, "base_size is 33"),
        ({"delta_size": 33}, ValueError, "delta_size is 33, allowed: 0 to 32"),
        ({"delta_size": True}, TypeError, "delta_size is True"),
        ({"name": 3}, TypeError, "name is 3"),
        ({"name": "raw"}, ValueError, "name is 'raw'"),
    ],
)
def test_bad_configs_are_named(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Config(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"configs": []}, ValueError, "configs has 0 entries, allowed: 1 to 255"),
        ({"configs": [Config(name=str(i)) for i in range(256)]}, ValueError, "256 entries"),
        ({"configs": [Config(), Config()]}, ValueError, "configs hold '1b32d8' twice"),
        ({"configs": [(1, 32, 8)]}, TypeError, r"configs\[0\] is \(1, 32, 8\)"),
        ({"configs": Config()}, TypeError, "configs is Config"),
        ({"batch_size": 0}, ValueError, "batch_size is 0, allowed: 1 to 4096"),
        ({"batch_size": 4097}, ValueError, "batch_size is 4097"),
        ({"scale_factor_init": 32}, ValueError, "scale_factor_init is 32, allowed: 0 to 31"),
        (
            {"scale_factor_init": 30, "scale_factor_base": 2},
            ValueError,
            "scale_factor_base is 2, allowed: 0 to 1",
        ),
        ({"scale_factor_delta": -1}, ValueError, "scale_factor_delta is -1, allowed: 0 to 31"),
        ({"immediates": (0, 3, 0)}, ValueError, "immediates hold 0 twice"),
        ({"immediates": (-1,)}, ValueError, r"immediates\[0\] is -1, allowed: 0 to 4294967295"),
        (
            {"immediates": (0, 256), "scale_factor_init": 24},
            ValueError,
            r"immediates\[1\] is 256, allowed: 0 to 255",
        ),
        ({"immediates": range(65)}, ValueError, "immediates has 65 entries, allowed: 0 to 64"),
        ({"immediates": 0}, TypeError, "immediates is 0"),
        ({"immediates": (0.0,)}, TypeError, r"immediates\[0\] is 0.0"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"seed": 2**64}, ValueError, "seed is 18446744073709551616"),
        ({"use_stochastic_rounding": 1}, TypeError, "use_stochastic_rounding is 1"),
        (
            {"use_zero_compression": False, "configs": [Config(1, 32, 0)]},
            ValueError,
            "delta_size is 0, allowed without use_zero_compression: 1 to 32",
        ),
    ],
)
def test_bad_compressions_are_named(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Compression(**{"configs": [Config()], **arguments})


def test_the_largest_allowed_arguments_are_taken() -> None:
    configs = [Config(64, 32, 32, str(i)) for i in range(254)] + [Config(0, 1, 0)]
    c = Compression(configs, 4096, range(64), 0, 31, 31, seed=2**64 - 1)
    x = torch.arange(-5000, 5000, dtype=torch.int32)
    assert (x.long() - c.roundtrip(x).long()).abs().max() < c.error_bound
    deep = Compression([Config()], 1, (1,), scale_factor_init=31)
    assert words_of(deep.roundtrip(x[::100])) == [word & 2**31 for word in words_of(x[::100])]


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ([1, 2], TypeError, "words is a list"),
        (torch.zeros(3, dtype=torch.int64), ValueError, "words are torch.int64, allowed: .*uint32"),
        (torch.zeros(3, 3).to_sparse(), ValueError, "a sparse_coo tensor cannot be words"),
        (torch.zeros(3, device="meta"), ValueError, "device meta, allowed: cpu"),
        (
            torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged),
            ValueError,
            "a nested tensor cannot be words",
        ),
    ],
)
def test_other_tensors_are_refused(words: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Compression([Config()]).compress(words)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_refused() -> None:
    words = torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint32)
    with pytest.raises(ValueError, match=r"a quantized tensor \(qint32\) cannot be words"):
        Compression([Config()]).compress(words)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((torch.zeros(3),), ValueError, "words are torch.float32, allowed: torch.int32"),
        ((tensor([1]), float("nan")), ValueError, "scale is nan"),
        ((tensor([1]), 1e39), ValueError, "scale is 1e.39, allowed: a number that is finite"),
        ((tensor([1]), "2"), TypeError, "scale is '2'"),
        ((tensor([1]), 1.0, 2**31), ValueError, "zero_point is 2147483648"),
        ((tensor([1]), 1.0, 0.5), TypeError, "zero_point is 0.5"),
    ],
)
def test_bad_arguments_of_compressed_repr(
    arguments: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Compression([Config()]).compressed_repr(*arguments)
