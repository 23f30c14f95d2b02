"""The functions of torch_cgx: configurations per call, layers, the simulator, counters, refused
arguments.
"""

from __future__ import annotations

import pydoc
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.calls import failure
from tests.distributed import run_pooled
from torch_cgx import _C, codecs

N = 4096


def _input(rank, n=N, dtype=torch.float32):
    return torch.randn(n, generator=torch.Generator().manual_seed(rank)).to(dtype)


def _levels(x, bucket=64):
    return x[:bucket].unique().numel()


def _configs(rank, world_size):
    """Equal inputs on all ranks, so that a result has no more values in a bucket than there are
    levels.
    """
    found = {}
    for name, config in {
        "dict": {"bits": 2, "bucket_size": 64},
        "codec": codecs.MaxMin(bits=2, bucket_size=64),
        "options": torch_cgx.Options(bits=2, bucket_size=64),
        "stochastic": {"bits": 2, "bucket_size": 64, "rounding": "stochastic", "seed": 5},
        "exact": {"bits": 32},
        "codec name": {"bits": 2, "bucket_size": 64, "codec": "maxmin"},
        "group": None,
    }.items():
        x = _input(7)
        assert torch_cgx.all_reduce(x, config=config) is None
        found[name] = x
    work = torch_cgx.all_reduce(
        y := _input(7), config={"bits": 2, "bucket_size": 64}, async_op=True
    )
    work.wait()
    found["async"] = y
    torch_cgx.all_reduce(
        z := _input(7), dist.ReduceOp.AVG, config=codecs.MaxMin(bits=2, bucket_size=64)
    )
    found["average"] = z * world_size
    return found


def test_every_kind_of_configuration_does_the_same():
    first, second = run_pooled(_configs, 2)
    for name, x in first.items():
        assert torch.equal(x, second[name]), name
    for name in ("codec", "options", "codec name", "async", "average"):
        assert torch.equal(first[name], first["dict"]), name
    assert _levels(first["dict"]) <= 4
    assert 4 < _levels(first["stochastic"]) <= 16  # two ranks round independently
    exact = 2 * _input(7)
    assert torch.equal(first["exact"], exact) and torch.equal(first["group"], exact)


def _group_defaults(rank, world_size):
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=3, bucket_size=64))
    kept, changed, plain = _input(7), _input(7), _input(7)
    torch_cgx.all_reduce(kept, group=group, config={"bucket_size": 64})
    torch_cgx.all_reduce(changed, group=group, config={"bits": 1})
    torch_cgx.all_reduce(plain, group=group)
    return _levels(kept), _levels(changed), torch.equal(kept, plain)


def test_what_a_configuration_leaves_open_comes_from_the_group():
    for kept, changed, equal in run_pooled(_group_defaults, 2):
        assert 4 < kept <= 8 and changed == 2 and equal


def _layers(rank, world_size):
    x = _input(rank, 3000)
    plan = [(1000, {"bits": 1, "bucket_size": 64}), torch_cgx.Layer(500), (1500, {"bits": 32})]
    torch_cgx.all_reduce(x, layers=plan)
    exact = _input(0, 3000) + _input(1, 3000)
    return torch.equal(x[1000:], exact[1000:]), torch.equal(x[:1000], exact[:1000])


def test_layers_have_their_own_configuration():
    assert run_pooled(_layers, 2) == [(True, False)] * 2


def _shards(rank, world_size):
    config = {"bits": 8, "bucket_size": 64}
    whole = _input(rank, N * world_size)
    shard = torch.zeros(N)
    torch_cgx.reduce_scatter_single(shard, whole, config=config)
    exact = sum(_input(r, N * world_size) for r in range(world_size))
    mine = exact[rank * N : (rank + 1) * N]
    gathered = torch.zeros(N * world_size)
    work = torch_cgx.all_gather_single(gathered, _input(rank), config=config, async_op=True)
    work.wait()
    inputs = torch.cat([_input(r) for r in range(world_size)])
    plain = torch.zeros_like(gathered)
    torch_cgx.all_gather_single(plain, _input(rank))
    assert torch.equal(plain, inputs)
    return (
        ((shard - mine).norm() / mine.norm()).item(),
        ((gathered - inputs).norm() / inputs.norm()).item(),
        gathered,
    )


@pytest.mark.parametrize("world_size", [2, 3])
def test_reduce_scatter_and_all_gather(world_size):
    results = run_pooled(_shards, world_size)
    for scattered, gathered, values in results:
        assert 0 < scattered < 0.02 and 0 < gathered < 0.02
        assert torch.equal(values, results[0][2])


def _stats(rank, world_size):
    torch_cgx.reset_stats()
    empty = torch_cgx.stats()
    torch_cgx.all_reduce(_input(rank), config={"bits": 4, "bucket_size": 512})
    after = torch_cgx.stats()
    torch_cgx.reset_stats()
    return empty, after, torch_cgx.stats()["calls"]


def test_stats_count_this_ranks_bytes():
    for empty, after, calls in run_pooled(_stats, 2):
        assert empty["calls"] == empty["bytes_sent"] == calls == 0
        assert (after["calls"], after["compressed_calls"]) == (1, 1)
        assert after["numel"] == N and after["bytes_raw"] == 4 * N
        payload = N // 2 + 8 * (N // 512)
        assert payload <= after["bytes_sent"] == after["bytes_received"] <= payload + 256


def _simulated(rank, world_size, config, op):
    x = _input(rank)
    torch_cgx.all_reduce(x, getattr(dist.ReduceOp, op), config=config)
    return x, torch_cgx.stats()["bytes_sent"]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("op", ["SUM", "AVG"])
def test_simulate_gives_the_bits_and_bytes_of_real_ranks(world_size, op):
    config = {"bits": 4, "bucket_size": 128}
    inputs = [_input(r) for r in range(world_size)]
    simulated = torch_cgx.simulate(inputs, config, op=getattr(dist.ReduceOp, op))
    for (x, sent), expected, output in zip(
        run_pooled(_simulated, world_size, config, op),
        simulated.bytes_sent,
        simulated.outputs,
        strict=True,
    ):
        assert torch.equal(x, simulated.result) and torch.equal(x, output)
        # A real group compares configurations before its first call; nothing of that is counted.
        assert sent == expected
    assert torch.equal(inputs[0], _input(0)), "the inputs are not touched"
    exact = sum(x.double() for x in inputs) / (1 if op == "SUM" else world_size)
    error = simulated.result.double() - exact
    assert simulated.error["max_abs"] == pytest.approx(error.abs().max().item())
    assert simulated.error["relative_l2"] == pytest.approx((error.norm() / exact.norm()).item())


def test_simulate_algorithms_layers_and_shapes():
    inputs = [_input(r, 6000).view(2, 3000) for r in range(4)]
    one = torch_cgx.simulate(inputs, {"bits": 4}, "oneshot")
    two = torch_cgx.simulate(inputs, {"bits": 4}, "sra")
    assert (one.algorithm, two.algorithm) == ("oneshot", "sra")
    assert one.error["relative_l2"] < two.error["relative_l2"]
    assert one.result.shape == (2, 3000)
    assert torch_cgx.simulate(inputs, {"bits": 32}).error["relative_l2"] < 1e-6
    layered = torch_cgx.simulate(
        inputs, layers=[(5000, None), (1000, {"bits": 1})], algorithm="sra"
    )
    exact = sum(inputs)
    assert torch.equal(layered.result.view(-1)[:5000], exact.view(-1)[:5000])
    assert not torch.equal(layered.result, exact)
    assert torch_cgx.simulate([torch.zeros(0)], {"bits": 4}).error["max_abs"] == 0
    half = torch_cgx.simulate([_input(0, 100, torch.float16)] * 2, {"bits": 8})
    assert half.result.dtype == torch.float16
    params = {"bits": 2, "rounding": "stochastic"}
    steps = [torch_cgx.simulate(inputs, params, sequence=s).result for s in (0, 1, 1)]
    assert torch.equal(steps[1], steps[2]) and not torch.equal(steps[0], steps[1])


def test_simulate_reads_the_environment(monkeypatch):
    inputs = [_input(0), _input(1)]
    assert torch_cgx.simulate(inputs).error["relative_l2"] < 1e-6
    monkeypatch.setenv("CGX_COMPRESSION_QUANTIZATION_BITS", "4")
    assert torch_cgx.simulate(inputs).error["relative_l2"] > 0.05
    monkeypatch.setenv("CGX_COMPRESSION_QUANTIZATION_BITS", "4.5")
    with pytest.raises(ValueError, match="CGX_COMPRESSION_QUANTIZATION_BITS='4.5'"):
        torch_cgx.simulate(inputs)


def test_help_names_every_option_with_its_default_and_what_is_allowed():
    shown = pydoc.plain(pydoc.render_doc(torch_cgx.Options))
    for row in _C.settings():
        (paragraph,) = re.findall(
            rf"^ \|  {row['name']}: (.*?)\n \|  \n", shown + "\n |  \n", re.MULTILINE | re.DOTALL
        )
        assert row["meaning"] and row["meaning"] in paragraph, row
        assert row["variable"] in paragraph and "default" in paragraph, row
        default = {"0": "False", "1": "True"}.get(row["default"], row["default"])
        written = default if row["kind"] == "boolean" else row["default"] or ""
        assert re.search(rf"default '?{written}'?", paragraph) or row["default"] == "0", paragraph
        assert ("at each call" in paragraph) == row["per_call"], paragraph
        if row["name"] == "host_id":
            continue  # takes anything
        with pytest.raises((ValueError, TypeError)) as refused:
            torch_cgx.Options(**{row["name"]: -1 if ": int" in paragraph else "something else"})
        if isinstance(refused.value, ValueError):
            allowed = str(refused.value).split(" takes ")[1]
            assert allowed.replace("0, 1 or AUTO", "AUTO") in paragraph
    stub = Path(torch_cgx.__file__).with_name("_C.pyi").read_text()
    options = stub.split("class Options(")[1].split("def given")[0]
    assert re.findall(r"^        (\w+): [\w\[\] |]+ = None", options, re.MULTILINE) == [
        row["name"] for row in _C.settings()
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([],), ValueError, "at least one"),
        (([torch.zeros(3), torch.zeros(4)],), ValueError, r"\(4,\).*\(3,\)"),
        (([torch.zeros(3), torch.zeros(3).half()],), ValueError, "float16.*float32"),
        (([torch.zeros(3).double()],), TypeError, "float64.*float32.*bfloat16"),
        (
            ([torch.zeros(3)], {"bits": 4}, "tree"),
            ValueError,
            "algorithm='tree' .*; algorithm takes one of AUTO,SRA",
        ),
        (([torch.zeros(3)], {"bits": 4}, "auto", [(3, None)]), ValueError, "not both"),
        (([torch.zeros(3)], None, "auto", None, dist.ReduceOp.MAX), ValueError, "MAX.*SUM, AVG"),
        (([torch.zeros(3)], {"bits": 4, "size": 3}), ValueError, "'size'.*bucket_size"),
        (([torch.zeros(3)], "4 bits"), TypeError, "'4 bits'.*str.*dict"),
        (([torch.zeros(3)], None, "auto", [(2, None)]), ValueError, "2 values.*has 3"),
        (([torch.zeros(3)], None, "auto", [(-1, None), (4, None)]), ValueError, "numel=-1"),
        (([torch.zeros(3)], None, "auto", [(3.0, None)]), TypeError, "numel=3.0"),
        (([torch.zeros(3)], None, "auto", [3]), TypeError, r"layers\[0\]=3"),
    ],
)
def test_bad_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        torch_cgx.simulate(*arguments)


def _refused(rank, world_size):
    x = _input(rank)
    gloo = dist.new_group(backend="gloo")
    four = {"bits": 4}
    outsiders = dist.new_group([0], backend="cgx")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if rank == 1:
            assert torch_cgx.all_reduce(x, group=outsiders, config=four) is None
    calls = {
        "type": lambda: torch_cgx.all_reduce([1.0]),
        "strides": lambda: torch_cgx.all_reduce(x.view(64, 64).t(), config=four),
        "both": lambda: torch_cgx.all_reduce(x, config=four, layers=[(N, None)]),
        "key": lambda: torch_cgx.all_reduce(x, config={"bit": 4}),
        "sum": lambda: torch_cgx.all_reduce(x, layers=[(N - 1, four)]),
        "gloo": lambda: torch_cgx.all_reduce(x, group=gloo, config=four),
        "op": lambda: torch_cgx.all_reduce(x, dist.ReduceOp.MAX, config=four),
        "dtype": lambda: torch_cgx.all_reduce(x.double(), config=four),
        "shape": lambda: torch_cgx.reduce_scatter_single(x, x, config=four),
        "stats": lambda: torch_cgx.stats(gloo),
    }
    messages = {name: failure(call) for name, call in calls.items()}
    y = torch.ones(N)
    torch_cgx.all_reduce(y, config=four)  # the group is as usable as before
    assert torch.all(y == world_size)
    return messages, [str(w.message) for w in caught]


def test_refused_calls_name_the_cause_and_leave_the_group_usable():
    for rank, (messages, warned) in enumerate(run_pooled(_refused, 2)):
        for name, words in {
            "type": ("TypeError", "list"),
            "strides": ("ValueError", "(1, 64)"),
            "both": ("ValueError", "not both"),
            "key": ("ValueError", "'bit'"),
            "sum": ("ValueError", str(N - 1)),
            "gloo": ("ValueError", "'gloo'"),
            "op": ("ValueError", "SUM and AVG"),
            "dtype": ("ValueError", "Double", "float32"),
            "shape": ("ValueError", str(N)),
            "stats": ("ValueError", "'gloo'"),
        }.items():
            for word in words:
                assert word.lower() in messages[name].lower(), (name, messages[name])
        assert any("not in the given group" in text for text in warned) == (rank == 1)


def test_without_a_group_the_error_says_what_to_call():
    with pytest.raises(RuntimeError, match="init_process_group"):
        torch_cgx.all_reduce(torch.zeros(3), config={"bits": 4})
    with pytest.raises(RuntimeError, match="init_process_group"):
        torch_cgx.stats()
