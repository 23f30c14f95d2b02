"""Codecs `float` and `block` in real groups: equal bits on all ranks, and the bytes they send."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled
from torch_cgx import codecs

N = 5000
HEADER = 56
FORMATS = {
    "float": ({"codec": "float", "exponent": 4, "mantissa": 3}, codecs.make("float"), N),
    "six bits": (
        {"codec": "float", "exponent": 3, "mantissa": 2, "bits": 8},
        codecs.make("float", exponent=3, mantissa=2),
        N * 6 // 8,
    ),
    "mxfp4": (
        {"codec": "block", "format": "mxfp4"},
        codecs.make("block", format="mxfp4"),
        -(-N // 32) + N // 2,
    ),
}


def _input(rank: int) -> torch.Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(rank))


def _sums(rank, size, config):
    options = torch_cgx.Options(inner_communicator="SHM", inner_reduction="ONESHOT")
    group = dist.new_group(backend="cgx", pg_options=options)
    x = _input(rank)
    torch_cgx.all_reduce(x, config=config, group=group)
    return x, torch_cgx.stats(group)["bytes_sent"]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", FORMATS)
def test_ranks_have_equal_bits_and_send_the_payload(name, ranks):
    """tests/hosts/test_reductions.py counts the bytes on a link."""
    config, codec, size = FORMATS[name]
    wanted = torch.zeros(N)
    for rank in range(ranks):  # in their order, in float32
        wanted += codec.roundtrip(_input(rank))
    assert codec.encoded_bytes(N) == size
    for found, sent in run_pooled(_sums, ranks, config):
        assert torch.equal(found, wanted)
        assert sent == (ranks - 1) * (HEADER + size)


def _refused(rank, size, config):
    x = torch.ones(100)
    with pytest.raises(ValueError) as error:
        torch_cgx.all_reduce(x, config=config)
    unchanged = x.eq(1).all() and torch_cgx.stats()["calls"] == 0
    return str(error.value) if unchanged else "something has changed"


@pytest.mark.parametrize(
    "config, words",
    [
        ({"codec": "float", "exponent": 5, "mantissa": 5}, "11 bits, allowed on the wire: 2 to 8"),
        (
            {"codec": "float", "variant": "finite"},
            "'finite' is not allowed; variant takes one of ieee,fn,fnuz,p3109",
        ),
        (
            {"codec": "block", "format": "nvfp4"},
            "'nvfp4' is not allowed; format takes one of .*mxfp4",
        ),
        (
            {"codec": "maxmin", "rounding": "zero"},
            "'zero' is not allowed; rounding takes one of nearest,stochastic",
        ),
    ],
)
def test_what_a_codec_cannot_carry_is_an_error_by_name(config, words):
    for text in run_pooled(_refused, 2, {"bits": 8, **config}):
        assert re.search(words, text), text


def test_a_configuration_that_names_a_format_needs_no_bits():
    x = [_input(0)] * 2
    for config, codec, packed in FORMATS.values():
        given = {key: value for key, value in config.items() if key != "bits"}
        for bits in ({}, {"bits": 3}):
            found = torch_cgx.simulate(x, {**given, **bits}, algorithm="oneshot")
            assert found.bytes_sent == [packed + HEADER] * 2, (config, bits)
            assert torch.equal(found.outputs[0], 2 * codec.roundtrip(x[0])), config
        assert torch_cgx.simulate(x, {**given, "bits": 32}).error["max_abs"] == 0
    with pytest.raises(ValueError, match="exponent=8 with mantissa=10 .* are 19 bits"):
        torch_cgx.simulate(x, {"codec": "float", "exponent": 8, "mantissa": 10})
    # Other codecs have no number of bits until one is given.
    assert torch_cgx.simulate(x, {"codec": "rotated"}).error["max_abs"] == 0
