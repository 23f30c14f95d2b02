"""Notices to users: what a state compresses, what stays exact, and settings without effect."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_cgx
from cgx_utils import CGXState, cgx_hook
from tests.distributed import run_pooled, run_ranks
from tests.utils.training import batch, gradients, loss_of, make_model, wrap
from torch_cgx import _C, _config, _environment

NOT_BITS = [9, 12, 15, 17, 24, 31]


@contextlib.contextmanager
def notices():
    """Warnings of this project and lines on stderr, as they come."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.redirect_stderr(io.StringIO()) as stream:
            yield lines
    texts = [str(warning.message) for warning in caught]
    lines += [f"warning: {text}" for text in texts if "cgx" in text.lower()]
    lines += [line for line in stream.getvalue().splitlines() if line.startswith("cgx: ")]


def _step(model, rank=0, step=0):
    model.zero_grad()
    loss_of(model, batch(rank, step)).backward()


def _two_steps(rank, world_size, params, options, group_options):
    """The notices of two steps, and how many values the first bucket of first.weight has."""
    group = None
    if group_options is not None:
        group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(**group_options))
    with notices() as lines:
        state = CGXState(None, config=params, **options)
        model = wrap(make_model(), state, process_group=group)
        # The same data everywhere: the mean of equal decoded values is one of the levels.
        _step(model)
        _step(model)
    return gradients(model)["first.weight"].flatten()[:64].unique().numel(), lines, repr(state)


def of_two_steps(params=None, options=None, group_options=None, **run):
    """The same of rank 0; the other one has to be silent."""
    (levels, lines, text), (_, others, _) = run_pooled(
        _two_steps, 2, params, options or {}, group_options, **run
    )
    assert [line for line in others if not line.startswith("warning: CGXState")] == []
    return levels, lines, text


def test_a_state_without_bits_compresses():
    levels, lines, _ = of_two_steps()
    assert 8 <= levels <= 16
    assert lines == [
        "cgx: compressing 2 of 7 parameters, 90.6 % of 11.3 k values, maxmin 4 bits; "
        "4.7x fewer bytes; shm"
    ]


@pytest.mark.parametrize(
    ("params", "options", "env", "most", "words"),
    [
        ({"bits": 2}, None, {}, 4, "maxmin 2 bits"),
        (None, {"bits": 2}, {}, 4, "maxmin 2 bits"),
        (None, None, {"CGX_COMPRESSION_QUANTIZATION_BITS": "2"}, 4, "maxmin 2 bits"),
        ({"bits": 16}, None, {}, 64, "bf16 16 bits; 1.8x"),
        ({"codec": "fp16"}, None, {}, 64, "fp16 16 bits; 1.8x"),
        ({"bits": 3}, {"bits": 32}, {"CGX_COMPRESSION_QUANTIZATION_BITS": "8"}, 8, "maxmin 3 bits"),
    ],
)
def test_bits_from_wherever_they_come(params, options, env, most, words):
    levels, lines, text = of_two_steps(params, {}, options, env=env)
    assert levels <= most
    assert len(lines) == 1 and words in lines[0], lines
    assert words.partition(";")[0] in text


def test_several_codecs_in_one_line():
    overrides = {"second": {"bits": 8}, "small.weight": {"bits": 2}}
    _, (line,), text = of_two_steps({"bits": 4}, {"overrides": overrides})
    assert "compressing 3 of 7 parameters" in line
    assert "maxmin 4 bits (1 of them), maxmin 8 bits (1 of them), maxmin 2 bits (1 of them)" in line
    assert "overrides={'second': {'bits': 8}" in text


@pytest.mark.parametrize(
    ("params", "options", "group_options", "env", "rule"),
    [
        ({"bits": 32}, {}, None, {}, "bits=32 in config"),
        (None, {}, {"bits": 32}, {}, "bits=32 in the group's Options"),
        (
            None,
            {},
            None,
            {"CGX_COMPRESSION_QUANTIZATION_BITS": "32"},
            "bits=32 in CGX_COMPRESSION_QUANTIZATION_BITS",
        ),
        (None, {"min_size": 10_000}, None, {}, "min_size=10000 (fewer values)"),
        (None, {"layer_filter": lambda *_: False}, None, {}, "by layer_filter"),
        (None, {"overrides": {".": {"bits": 32}}}, None, {}, "bits=32 in overrides"),
        (None, {}, None, {"CGX_INTRA_COMPRESS": "0"}, "intra_compress=0"),
    ],
)
def test_nothing_compressed_is_a_warning_with_the_rule(params, options, group_options, env, rule):
    if "layer_filter" in options:  # a lambda does not travel
        options = {"layer_filter": "^none of them$"}
    levels, lines, _ = of_two_steps(params, options, group_options, env=env)
    assert levels > 32
    lines = [line for line in lines if "matches none" not in line]
    assert len(lines) == 1 and lines[0].startswith("warning: cgx: nothing is compressed"), lines
    assert "all 7 parameters (11.3 k values) are exact" in lines[0] and rule in lines[0], lines


def test_the_line_can_be_switched_off():
    assert of_two_steps({"bits": 4}, env={"CGX_LOG": "off"})[1] == []


def _other_types(rank, world_size):
    with notices() as lines:
        for model in (make_model().double(), nn.Embedding(100, 64, sparse=True)):
            wrapped = wrap(model, CGXState())
            if isinstance(model, nn.Embedding):
                wrapped(torch.tensor([rank, 3])).sum().backward()
            else:
                _step(wrapped)
    return lines


def test_types_that_are_never_compressed_are_named():
    first, second = run_pooled(_other_types, 2)
    assert "are exact: dtype torch.float64; shm" in first[0]
    # A process prints once that sparse gradients are exact, whatever its rank.
    assert any("are exact: sparse gradients; shm" in line for line in first), first
    assert not any("nothing" in line for line in second)


@pytest.mark.parametrize("bits", NOT_BITS)
def test_bits_that_mean_exact_are_warned_of(bits, monkeypatch):
    exact = f"bits={bits} means exact"
    with pytest.warns(UserWarning, match=f"config: {exact}") as caught:
        CGXState(None, config={"bits": bits})
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=rf"overrides\['a'\]: {exact}"):
        CGXState(None, overrides={"a": {"bits": bits}})
    with pytest.warns(UserWarning, match=exact):
        torch_cgx.simulate([torch.ones(64)] * 2, {"bits": bits})
    # A process warns once of a variable; another test may have been first in this one.
    _config._warn_once_of_variable.cache_clear()
    monkeypatch.setenv("CGX_COMPRESSION_QUANTIZATION_BITS", str(bits))
    with pytest.warns(UserWarning, match=f"CGX_COMPRESSION_QUANTIZATION_BITS: {exact}"):
        CGXState(None)


@pytest.mark.parametrize("bits", [1, 8, 16, 32])
def test_other_bits_are_not(bits, monkeypatch):
    monkeypatch.setenv("CGX_COMPRESSION_QUANTIZATION_BITS", str(bits))
    with notices() as lines:
        CGXState(None, config={"bits": bits})
        torch_cgx.simulate([torch.ones(64)] * 2, {"bits": bits})
    assert lines == []


def _nine_bits(rank, world_size):
    """The state, its plans, the group and every call look the variable up."""
    with notices() as lines:
        dist.init_process_group("cgx")
        model = wrap(make_model(), CGXState())
        _step(model)
        _step(model)
        repr(CGXState())
        dist.all_reduce(torch.ones(100))
        torch_cgx.simulate([torch.ones(64)] * 2)
        del model
        dist.destroy_process_group()
    return [line for line in lines if "bits=9 means exact" in line]


def test_a_variable_that_means_exact_is_warned_of_once():
    env = {"CGX_COMPRESSION_QUANTIZATION_BITS": "9"}
    for lines in run_ranks(_nine_bits, 2, env=env, backend=None):
        assert len(lines) == 1 and "CGX_COMPRESSION_QUANTIZATION_BITS: bits=9" in lines[0], lines


def _group_of_12_bits(rank, world_size):
    with notices() as by_options:
        dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=12))
    os.environ["CGX_COMPRESSION_QUANTIZATION_BITS"] = "13"
    with notices() as by_environment:
        dist.new_group(backend="cgx")
    del os.environ["CGX_COMPRESSION_QUANTIZATION_BITS"]
    return by_options, by_environment


def test_groups_whose_bits_mean_exact_are_warned_of():
    for by_options, by_environment in run_pooled(_group_of_12_bits, 2):
        assert "Options: bits=12 means exact" in by_options[0]
        assert "CGX_COMPRESSION_QUANTIZATION_BITS: bits=13 means exact" in by_environment[0]


def test_repr_says_what_holds():
    text = repr(CGXState(None, 2000, {"bits": 3, "bucket_size": 64}, layer_filter="body"))
    assert text.startswith("CGXState(bits=3, bucket_size=64, codec='maxmin', min_size=2000")
    assert "layer_filter=['body']" in text
    assert f"torch_cgx {_C.__version__}, {_C.cpu_level()})" in text
    assert "bits=4, bucket_size=512" in repr(CGXState())


@pytest.mark.parametrize(
    ("env", "params", "shown"),
    [
        ({"CGX_COMPRESSION_TYPE": "bf16"}, {}, "bits=16, codec='bf16'"),
        ({}, {"bits": 16}, "bits=16, codec='bf16'"),
        ({"CGX_HALF": "fp16"}, {"bits": 16}, "bits=16, codec='fp16'"),
        ({"CGX_COMPRESSION_QUANTIZATION_BITS": "32"}, {}, "bits=32"),
        ({}, {"rounding": "stochastic"}, "bits=4, bucket_size=512, codec='maxmin', rounding='sto"),
        ({"CGX_COMPRESSION_BUCKET_SIZE": "64"}, {}, "bits=4, bucket_size=64, codec='maxmin'"),
    ],
)
def test_repr_names_the_codec_in_force(monkeypatch, env, params, shown):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert repr(CGXState(None, 2000, params)).startswith(f"CGXState({shown}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CGX_BITS", "did you mean CGX_COMPRESSION_QUANTIZATION_BITS?"),
        ("CGX_COMPRESSION_QUANTIZATION_BIT", "did you mean CGX_COMPRESSION_QUANTIZATION_BITS?"),
        ("CGX_COMPRESSION_BITS", "did you mean CGX_COMPRESSION_QUANTIZATION_BITS?"),
        ("CGX_BUCKETSIZE", "did you mean CGX_COMPRESSION_BUCKET_SIZE?"),
        ("CGX_CHECKSUMS", "did you mean CGX_CHECKSUM?"),
        ("CGX_CPU_LEVL", "did you mean CGX_CPU_LEVEL?"),
        ("CGX_FAVOURITE_COLOUR", "help(torch_cgx.Options) lists the variables of all options"),
        ("CGX_COMPRESSION_FAKE_RATIO", "belonged to the old torch_cgx: there is no replacement"),
        ("CGX_DEBUG_ALL_TO_ALL_REDUCTION", "CGX_INNER_REDUCTION_TYPE=ONESHOT"),
    ],
)
def test_unknown_variables_get_advice(name, words):
    (text,) = _environment.complaints([name, "PATH"])
    assert name in text and words in text


def test_known_variables_get_none():
    known = [row["variable"] for row in _C.settings()] + [*_environment.OTHERS, "CGX_TEST_HOSTS"]
    assert _environment.complaints(known) == []


ODD = {"CGX_BITS": "4", "CGX_COMPRESSION_QUANTIZATION_BITS": "4"}


def _once_a_process(rank, world_size):
    """In processes of its own: what is printed once."""
    found = {}
    with notices() as found["groups"]:
        dist.new_group(backend="cgx")
        dist.new_group(backend="cgx")
    with notices() as found["min_size given"]:
        options = torch_cgx.Options(min_size=16)
        group = dist.new_group(backend="cgx", pg_options=options)
        dist.all_reduce(torch.ones(100), group=group)
    with notices() as found["large, exact, explicit"]:
        dist.all_reduce(torch.ones(1024))
        dist.all_reduce(torch.ones(15))
        torch_cgx.all_reduce(torch.ones(100), config={"bits": 4})
    with notices() as found["small"]:
        dist.all_reduce(torch.ones(10, 10))
        dist.all_reduce(torch.ones(10, 10))
    return found


def _never_compressed(rank, world_size):
    """In processes of its own, where nothing has been compressed before."""
    found = {}
    with notices() as found["bits given"]:
        exact = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=32))
        for _ in range(20):
            dist.all_reduce(torch.ones(1 << 14), group=exact)
    group = dist.new_group(backend="cgx")
    with notices() as found["9 of 64 KiB"]:
        for _ in range(9):
            dist.all_reduce(torch.ones(1 << 14), group=group)
        for _ in range(20):
            dist.all_reduce(torch.ones(1000), group=group)
    # As where a trainer does not register the hook that it was given.
    with notices() as found["a model without its hook"]:
        state = CGXState(group)
        model = DistributedDataParallel(nn.Linear(256, 256), process_group=group)
        for _ in range(3):
            model(torch.ones(1, 256)).sum().backward()
        assert isinstance(state, CGXState)
    return found


def test_what_is_printed_once_a_process():
    first, second = run_ranks(_once_a_process, 2, env=ODD)
    # On the first rank of a host, when the first group is made (by the harness, before `notices`).
    assert first["groups"] == second["groups"] == []
    for found in (first, second):
        assert found["min_size given"] == found["large, exact, explicit"] == []
        (small,) = found["small"]
        for word in (
            "all_reduce of 100 values",
            "4 bits",
            "CGX_COMPRESSION_MINIMAL_SIZE",
            "CGXState",
        ):
            assert word in small, small


def test_a_program_that_compresses_nothing_gets_a_warning():
    first, second = run_ranks(_never_compressed, 2)
    for found in (first, second):
        assert found["bits given"] == found["9 of 64 KiB"] == []
    (text,) = first["a model without its hook"]
    assert "nothing is compressed" in text and "cgx_utils.cgx_hook" in text
    assert second["a model without its hook"] == []


def _complaint(rank, world_size):
    with notices() as lines:
        dist.init_process_group("cgx")
        dist.new_group(backend="cgx")
    dist.destroy_process_group()
    return lines


def test_an_unknown_variable_is_reported_on_the_first_rank_of_a_host():
    first, second = run_ranks(_complaint, 2, env={"CGX_BITS": "4"}, backend=None)
    assert len(first) == 1 and "CGX_BITS" in first[0] and "QUANTIZATION_BITS" in first[0]
    assert second == []


def _hook_without_a_state(rank, world_size):
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(None, cgx_hook)
    with pytest.raises(TypeError, match=r"NoneType; allowed: CGXState, as in .*CGXState\(\)"):
        _step(model)


def test_a_hook_without_a_state_says_what_to_give():
    run_pooled(_hook_without_a_state, 2)


def _tuned(rank, world_size, size):
    """The lines, repr and report of a state whose group has a tuner, or one rank."""
    options = torch_cgx.Options(autotune=True) if size > 1 else None
    group = dist.new_group(list(range(size)), backend="cgx", pg_options=options)
    if rank >= size:
        return None
    with notices() as lines:
        state = CGXState(group)
        model = wrap(make_model(), state, process_group=group)
        for step in range(3):
            _step(model, rank, step)
    return lines, repr(state), str(state.report())


def test_a_line_promises_no_fewer_bytes_than_are_sent():
    (lines, text, report), _ = run_pooled(_tuned, 2, 2)
    line = "at most 4.7x fewer bytes, the tuner may send more bits; shm"
    assert len(lines) == 1 and lines[0].endswith(line) and line in text
    assert "the tuner sent calls: " in report and "fewer bytes in all calls" in report
    (lines, text, report), _ = run_pooled(_tuned, 2, 1)
    assert (
        len(lines) == 1 and "; one rank sends nothing; " in lines[0] and "fewer bytes" not in text
    )
    assert "tuner" not in report


def _group_wide(rank, world_size):
    """What the engine writes on stderr."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        for numel in (100, 4096, 4096):
            dist.all_reduce(torch.ones(numel))
        os.dup2(before, 2)
        os.close(before)
        file.seek(0)
        return file.read().decode()


@pytest.mark.parametrize("log", ["warn", "off"])
def test_a_group_that_compresses_by_a_variable_alone_says_so_once(log):
    env = {"CGX_COMPRESSION_QUANTIZATION_BITS": "4", "CGX_LOG": log}
    first, second = run_ranks(_group_wide, 2, env=env)
    line = "the group compresses its reductions, biases and norms included: maxmin bits=4"
    assert first.count(line) == (1 if log == "warn" else 0)
    assert line not in second
    if log == "warn":
        assert "(CGX_COMPRESSION_QUANTIZATION_BITS=4)" in first
