"""`bits=16`: float32 values as bf16 or fp16 on the wire, wherever a configuration can be given."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from cgx_utils import CGXState, cgx_hook
from tests.distributed import run_pooled
from torch_cgx import _C, codecs

N = 5000
WIRES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _input(rank, n=N, dtype=torch.float32):
    return torch.randn(n, generator=torch.Generator().manual_seed(rank)).to(dtype)


def _sum_of_casts(wire, n=N, ranks=2):
    """One-shot in rank order, by torch: every contribution rounded once, sums in float32."""
    total = _input(0, n).to(wire).float()
    for rank in range(1, ranks):
        total += _input(rank, n).to(wire).float()
    return total


def _every_way(rank, size):
    """name -> (result, bytes sent)"""
    found = {}

    def keep(name, call, x):
        group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(**OPTIONS.get(name, {})))
        call(x, group)
        found[name] = (x, torch_cgx.stats(group)["bytes_sent"])

    for name, config in CONFIGS.items():
        keep(name, lambda x, g, c=config: torch_cgx.all_reduce(x, config=c, group=g), _input(rank))
    for name in OPTIONS:
        keep(name, lambda x, g: dist.all_reduce(x, group=g), _input(rank))
    for half in WIRES:
        os.environ["CGX_HALF"] = half  # read at each call
        os.environ["CGX_COMPRESSION_QUANTIZATION_BITS"] = "16"
        x = _input(rank)
        dist.all_reduce(x)
        found[f"{half} variable"] = (x, None)
    del os.environ["CGX_COMPRESSION_QUANTIZATION_BITS"], os.environ["CGX_HALF"]
    layers = [(3000, {"bits": 16}), (500, None), (1500, {"bits": 16, "half": "fp16"})]
    torch_cgx.all_reduce(x := _input(rank), layers=layers)
    found["layers"] = (x, None)
    return found


CONFIGS = {
    "bf16 dict": {"bits": 16},
    "fp16 dict": {"bits": 16, "half": "fp16", "bucket_size": 7, "rounding": "stochastic"},
    "bf16 name": {"bits": 16, "codec": "bf16", "half": "fp16"},
    "fp16 name": {"bits": 16, "codec": "fp16"},
    "bf16 codec": codecs.Half(),
    "fp16 codec": codecs.Half("fp16"),
    "fp16 options of the call": torch_cgx.Options(bits=16, half="fp16"),
}
OPTIONS = {
    "bf16 options": {"bits": 16},
    "fp16 options": {"bits": 16, "half": "fp16"},
    "fp16 options by name": {"bits": 16, "codec": "fp16"},
}


def test_every_way_to_ask_for_it_is_the_sum_of_casts():
    first, second = run_pooled(_every_way, 2)
    assert len(first) == len(CONFIGS) + len(OPTIONS) + 3
    for name, (x, sent) in first.items():
        assert torch.equal(x, second[name][0]), name
        if name != "layers":
            assert torch.equal(x, _sum_of_casts(WIRES[name[:4]])), name
            assert sent in (None, 56 + 2 * N), name
    x = first["layers"][0]
    assert torch.equal(x[:3000], _sum_of_casts(torch.bfloat16)[:3000])
    assert torch.equal(x[3000:3500], (_input(0) + _input(1))[3000:3500])
    assert torch.equal(x[3500:], _sum_of_casts(torch.float16)[3500:])


def _other_collectives(rank, size):
    config = {"bits": 16}
    shard, whole = torch.empty(N), torch.empty(N * size)
    torch_cgx.reduce_scatter_single(shard, _input(rank, N * size), config=config)
    torch_cgx.all_gather_single(whole, _input(rank), config=config)
    options = torch_cgx.Options(bits=16, collectives=["all_gather", "reduce_scatter"])
    group = dist.new_group(backend="cgx", pg_options=options)
    shard2, whole2 = torch.empty(N), torch.empty(N * size)
    dist.reduce_scatter_single(shard2, _input(rank, N * size), group=group)
    dist.all_gather_single(whole2, _input(rank), group=group)
    assert torch.equal(shard, shard2) and torch.equal(whole, whole2)
    assert torch_cgx.stats(group)["compressed_calls"] == 2
    return shard, whole


def test_reduce_scatter_and_all_gather():
    results = run_pooled(_other_collectives, 3)
    for rank, (shard, whole) in enumerate(results):
        parts = [_input(r, 3 * N)[rank * N : (rank + 1) * N] for r in range(3)]
        coded = [x if r == rank else x.bfloat16().float() for r, x in enumerate(parts)]
        assert torch.equal(shard, coded[0] + coded[1] + coded[2])
        assert torch.equal(whole, torch.cat([_input(r).bfloat16().float() for r in range(3)]))


@pytest.mark.parametrize("dtype", WIRES.values())
@pytest.mark.parametrize("half", WIRES)
def test_tensors_of_16_bits_travel_as_they_are(dtype, half):
    inputs = [_input(rank, dtype=dtype) for rank in range(3)]
    for algorithm in ("oneshot", "sra", "ring"):
        found = torch_cgx.simulate(inputs, {"bits": 16, "half": half}, algorithm)
        exact = torch_cgx.simulate(inputs, {"bits": 32}, algorithm)
        assert torch.equal(found.result.view(torch.int16), exact.result.view(torch.int16))
        assert found.bytes_sent == exact.bytes_sent


def test_other_widths_above_8_stay_exact():
    inputs = [_input(0), _input(1)]
    for bits in (9, 15, 17, 32):
        assert torch.equal(torch_cgx.simulate(inputs, {"bits": bits}).result, inputs[0] + inputs[1])


def test_simulate_and_the_ratio():
    inputs = [_input(rank, 1 << 16) for rank in range(8)]
    for half, error in (("bf16", 0.0017), ("fp16", 0.00021)):
        found = torch_cgx.simulate(inputs, {"bits": 16, "half": half}, "sra")
        assert found.error["relative_l2"] < 1.5 * error
        assert found.error["relative_l2"] > error / 2
        exact = torch_cgx.simulate(inputs, {"bits": 32}, "sra")
        assert exact.bytes_sent[0] / found.bytes_sent[0] == pytest.approx(2, rel=0.01)


def test_what_means_nothing_at_16_bits_changes_nothing():
    assert _C.Codec("bf16") == _C.Codec("bf16", bits=16) != _C.Codec("fp16")
    config = {"bits": 16, "bucket_size": 7, "rounding": "stochastic", "seed": 3}
    inputs = [torch.randn(100) for _ in range(2)]
    plain = torch_cgx.simulate(inputs, {"bits": 16})
    assert torch.equal(torch_cgx.simulate(inputs, config).result, plain.result)
    with pytest.raises(ValueError, match="codec fp16: bits='4' is not allowed; .* integer 16"):
        _C.Codec("fp16", bits=4)
    with pytest.raises(ValueError, match="half='fp8' is not allowed; half takes one of bf16,fp16"):
        torch_cgx.simulate([torch.ones(64)], {"bits": 16, "half": "fp8"})
    with pytest.raises(ValueError, match="half='fp8' is not allowed; .*bf16,fp16"):
        torch_cgx.Options(half="fp8")


def _codec_without_its_bits(rank, size):
    with pytest.raises(
        ValueError, match="codec fp16: bits='4' is not allowed; bits takes the integer 16"
    ):
        dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=4, codec="fp16"))
    return True


def test_a_codec_without_its_bits_is_refused_when_the_group_is_made():
    assert run_pooled(_codec_without_its_bits, 1) == [True]


def _disagree(rank, size):
    group = dist.new_group(backend="cgx")
    config = {"bits": 16, "half": ["bf16", "fp16"][rank]}
    with pytest.raises(
        torch_cgx.MismatchError,
        match=r"16 bits, (bf16|fp16)\n.*16 bits, (?!\1)(bf|fp)16",
    ):
        torch_cgx.all_reduce(_input(rank), config=config, group=group)
    return True


def test_ranks_that_disagree_on_the_format_get_an_error():
    assert run_pooled(_disagree, 2) == [True, True]


def _too_large(rank, size):
    """What fp16 cannot hold: Inf on all ranks, or an error on all ranks; bf16 holds it."""
    for config, fits in (({"bits": 16, "half": "fp16"}, False), ({"bits": 16}, True)):
        x = torch.ones(N)
        x[77] = 70000.0 if rank == 1 else 1.0
        whole = torch.empty(N * size)
        torch_cgx.all_gather_single(whole, x, config=config)
        torch_cgx.all_reduce(y := x.clone(), config=config)
        for result, at in ((whole, N + 77), (y, 77)):
            bad = ~result.isfinite()
            assert bad.sum() == (not fits) and bool(bad[at]) is not fits
        group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(nonfinite="raise"))
        calls = [
            lambda c=config, g=group, x=x: torch_cgx.all_reduce(x.clone(), config=c, group=g),
            lambda c=config, g=group, x=x: torch_cgx.all_gather_single(
                torch.empty(N * size), x, config=c, group=g
            ),
            lambda c=config, g=group, x=x: torch_cgx.reduce_scatter_single(
                torch.empty(N), x.repeat(size), config=c, group=g
            ),
        ]
        for call in calls:
            if fits:
                call()
            else:
                with pytest.raises(torch_cgx.NonFiniteError):
                    call()
    return True


@pytest.mark.parametrize("hosts", ["aa", "aaa", "aabb", "ab"])
def test_what_is_too_large_for_fp16_is_seen_on_every_rank(hosts):
    env = [{"CGX_HOST_ID": host} for host in hosts]
    assert run_pooled(_too_large, len(hosts), env=env) == [True] * len(hosts)


def _hook(rank, size, half):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    params = {"bits": 16, "half": half}
    model.register_comm_hook(CGXState(None, config=params), cgx_hook)
    data = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))
    model(data).square().mean().backward()
    averaged = [p.grad.clone() for p in model.parameters()]
    with model.no_sync():
        model.zero_grad()
        model(data).square().mean().backward()
    return averaged, [p.grad.clone() for p in model.parameters()], torch_cgx.stats()["bytes_sent"]


@pytest.mark.parametrize("half", WIRES)
def test_the_hook(half):
    (found, a, sent), (other, b, _) = run_pooled(_hook, 2, half)
    assert all(torch.equal(x, y) for x, y in zip(found, other, strict=True))
    wire = WIRES[half]
    # DDP divides first or the engine does; by a power of two it is the same.
    weight = (a[0].to(wire).float() + b[0].to(wire).float()) / 2
    torch.testing.assert_close(found[0], weight, rtol=0, atol=1e-9)
    assert torch.equal(found[1], (a[1] + b[1]) / 2)  # the bias is exact
    assert sent == pytest.approx(2 * 64 * 64 + 4 * 64, rel=0.02)
