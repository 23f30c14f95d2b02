"""Old names of arguments, attributes, keys and functions work, with a DeprecationWarning that says
the new one.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_cgx
from cgx_utils import CGXState, DiLoCo, checkpoint, fsdp
from tests.distributed import ROOT, run_pooled
from torch_cgx import _C, compat
from torch_cgx._counters import Counters, Stats
from torch_cgx._renamed import old_attribute, takes_old_names


def renamed(old, new):
    return pytest.warns(
        DeprecationWarning, match=f"{re.escape(old)}.* is deprecated.*{re.escape(new)}"
    )


class _Thing:
    @takes_old_names("_Thing", size="length")
    def __init__(self, size=3):
        self.size = size

    length = old_attribute("_Thing", "length", "size")


def test_an_old_argument_is_the_new_one():
    with renamed("length= of _Thing", "size="):
        thing = _Thing(length=5)
    assert thing.size == 5
    with pytest.raises(TypeError, match="both size= and length="):
        _Thing(size=1, length=2)
    assert list(inspect.signature(_Thing).parameters) == ["size"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _Thing(4).size == _Thing(size=4).size == 4
        with pytest.raises(DeprecationWarning):
            _Thing(length=5)


def test_an_old_attribute_is_the_new_one():
    thing = _Thing()
    with renamed("_Thing.length", "_Thing.size"):
        thing.length = 7
    with renamed("_Thing.length", "_Thing.size"):
        assert thing.length == thing.size == 7


def test_arguments_of_a_state():
    new = CGXState(min_size=10, config={"bits": 2})
    with renamed("layer_min_size=", "min_size="):
        old = CGXState(layer_min_size=10, config={"bits": 2})
    assert repr(old) == repr(new)
    with renamed("compression_params=", "config="):
        old = CGXState(None, 10, compression_params={"bits": 2})
    assert repr(old) == repr(new)
    with renamed("process_group=", "group="):
        CGXState(process_group=None)
    for name, value in {
        "process_group": None,
        "layer_min_size": 16,
        "compression_params": {},
    }.items():
        with renamed(f"CGXState.{name}", "CGXState"):
            assert getattr(CGXState(min_size=10), name) == value


def test_arguments_of_the_others():
    """Whatever else is wrong with the calls."""
    for call, olds in (
        (lambda **given: fsdp.compress(nn.Linear(2, 2), {"bits": 4}, **given), ["layer_min_size"]),
        (lambda **given: DiLoCo(None, None, every=1, **given), ["layer_min_size", "process_group"]),
        (lambda **given: checkpoint.load(CGXState(), key="x", **given), ["process_group"]),
    ):
        for old in olds:
            with renamed(f"{old}=", ""), pytest.raises((TypeError, ValueError)):
                call(**{old: 10 if old == "layer_min_size" else None})


def test_the_setters_of_the_old_system_live_in_compat():
    for name in compat.__all__:
        assert getattr(compat, name) is getattr(_C, name)
        with renamed(f"torch_cgx.{name}", f"torch_cgx.compat.{name}"):
            assert getattr(torch_cgx, name) is getattr(_C, name)
        assert name not in torch_cgx.__all__


def test_names_of_torch_before_and_after_its_version_13():
    assert torch_cgx.reduce_scatter_tensor is torch_cgx.reduce_scatter_single
    assert torch_cgx.all_gather_into_tensor is torch_cgx.all_gather_single


@pytest.mark.parametrize(
    ("ours", "names"),
    [
        (torch_cgx.all_reduce, ["all_reduce"]),
        (torch_cgx.reduce_scatter_single, ["reduce_scatter_single", "reduce_scatter_tensor"]),
        (torch_cgx.all_gather_single, ["all_gather_single", "all_gather_into_tensor"]),
    ],
)
def test_positional_arguments_are_torchs(ours, names):
    theirs = next(getattr(dist, name) for name in names if hasattr(dist, name))
    positional = [
        name
        for name, one in inspect.signature(ours).parameters.items()
        if one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    assert positional == [*inspect.signature(theirs).parameters]


def _stats(rank, world_size):
    torch_cgx.reset_stats()
    torch_cgx.all_reduce(torch.ones(4096), config={"bits": 4})
    stats = torch_cgx.stats()
    assert isinstance(stats, Stats)
    assert (stats.calls, stats.numel) == (stats["calls"], stats["numel"]) == (1, 4096)
    assert stats.communicators["shm"].bytes_sent == stats.bytes_sent
    assert isinstance(stats.communicators["shm"], Counters)
    assert list(stats) == list(dict(stats)) and len(stats) == len(dict(stats))
    assert {**stats}["communicator"] == stats.get("communicator") == "shm"
    for old, new in Stats.OLD.items():
        with renamed(f"the key {old!r} of Stats", repr(new)):
            assert stats[old] is getattr(stats, new)
        with renamed(f"the key {old!r} of Stats", repr(new)):
            assert stats.get(old) is getattr(stats, new)
        assert old in stats and new in stats
        with renamed(f"the key {old!r} of Stats", repr(new)):
            assert stats.copy().pop(old) is getattr(stats, new)
    assert type(stats.copy()) is Stats and stats.copy() == stats
    assert {*stats} <= {*dir(stats)} and stats.pop("missing", 5) == 5
    lines = str(stats).splitlines()
    assert "calls: 1" in lines and "communicators:" in lines and "    numel: 4096" in lines
    assert eval(repr(stats)) == stats
    changed = stats.copy()
    changed.calls = 7
    assert changed["calls"] == changed.calls == 7
    assert stats.get("missing") is None and stats.get("missing", 5) == 5
    assert "missing" not in stats and 5 not in stats
    with pytest.raises(KeyError):
        stats["missing"]
    with pytest.raises(AttributeError, match="Stats has no 'missing'; it has calls, "):
        stats.missing  # noqa: B018
    assert json.loads(json.dumps(stats))["communicators"]["shm"]["calls"] == 1
    return stats  # pickled


def test_stats_are_an_object_and_a_mapping():
    assert [stats.calls for stats in run_pooled(_stats, 2)] == [1, 1]


def _tuning(rank, world_size):
    assert torch_cgx.tuning() is None
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=4, autotune=True))
    dist.all_reduce(torch.ones(1 << 20), group=group)
    found = torch_cgx.tuning(group)
    assert found.classes == found["classes"] and found.classes[0]["calls"] == 1
    return "classes 0:" in str(found).splitlines()


def test_tuning_is_an_object_and_a_mapping():
    assert run_pooled(_tuning, 2) == [True, True]


def _positional_config(rank, world_size):
    x = torch.ones(64)
    with pytest.raises(TypeError, match=r"async_op=\{'bits': 4\}.*config=\.\.\."):
        torch_cgx.all_reduce(x, dist.ReduceOp.SUM, None, {"bits": 4})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none of torch's reaches the caller
        torch_cgx.all_reduce(x)
        whole = torch.zeros(64 * world_size)
        torch_cgx.all_gather_single(whole, x)
        torch_cgx.all_gather_into_tensor(whole, x)
        torch_cgx.reduce_scatter_single(x, whole)
        torch_cgx.reduce_scatter_tensor(x, whole)
        torch_cgx.all_gather_single(output_tensor=whole, input_tensor=x)
    with renamed("output= of all_gather_single", "output_tensor="):
        torch_cgx.all_gather_single(output=whole, input_tensor=x)
    with renamed("input= of all_gather_single", "input_tensor="):
        torch_cgx.all_gather_single(whole, input=x)
    for config in (None, {"bits": 4}):
        with pytest.raises(ValueError, match="2 ranks: input has 64 values, output has 127; the o"):
            torch_cgx.all_gather_single(whole[1:], x, config=config)
        with pytest.raises(ValueError, match="2 ranks: input has 127 values, output has 64; the i"):
            torch_cgx.reduce_scatter_single(x, whole[1:], config=config)
        with pytest.raises(ValueError, match="they must be equal"):
            torch_cgx.all_gather_single(whole.half(), x, config=config)
    work = torch_cgx.all_reduce(x, dist.ReduceOp.SUM, None, True)
    return work.wait()


def test_a_configuration_is_given_by_name():
    assert all(run_pooled(_positional_config, 2))


def test_an_old_option_of_a_command():
    command = [sys.executable, "-m", "torch_cgx", "simulate", "missing.pt", "--layer-min-size", "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "--layer-min-size is deprecated; the new name is --min-size" in done.stderr
    assert "missing.pt" in done.stderr.splitlines()[-1]
