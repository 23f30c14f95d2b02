"""Which layers are compressed: sizes, dimensions, filters, overrides, environment; and every
refused argument.
"""

from __future__ import annotations

import pickle
import re
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_cgx
from cgx_utils import CGXState, cgx_hook
from tests.calls import failure
from tests.distributed import run_pooled
from tests.utils.training import batch, gradients, loss_of, make_model, wrap
from torch_cgx._policy.names import Named
from torch_cgx._policy.rules import Policy

MATRIX = nn.Parameter(torch.zeros(64, 64))
VECTOR = nn.Parameter(torch.zeros(4096))
SMALL = nn.Parameter(torch.zeros(8, 8))


def _policy(**options):
    return Policy(1024, {"bits": 4}, **options)


def test_by_default_matrices_of_enough_values():
    policy = _policy()
    assert not policy.needs_names
    assert policy.config_of(None, MATRIX) == {"bits": 4}
    assert policy.config_of(None, VECTOR) is None
    assert policy.config_of(None, SMALL) is None
    edge = nn.Parameter(torch.zeros(32, 32))
    assert policy.config_of(None, edge) == {"bits": 4}
    assert policy.config_of(None, nn.Parameter(torch.zeros(31, 33))) is None


@pytest.mark.parametrize("given", ["body", ["head$", "body"], re.compile("body"), ("body",)])
def test_filter_by_regex_replaces_the_rule_of_dimensions_not_of_size(given):
    policy = _policy(layer_filter=given)
    assert policy.needs_names
    assert policy.config_of("body.weight", MATRIX) == {"bits": 4}
    assert policy.config_of("body.bias", VECTOR) == {"bits": 4}
    assert policy.config_of("body.small", SMALL) is None
    assert policy.config_of("other.weight", MATRIX) is None


def test_filter_by_callable():
    policy = _policy(layer_filter=lambda name, parameter: parameter.dim() == 1)
    assert policy.config_of("a", MATRIX) is None
    assert policy.config_of("a", VECTOR) == {"bits": 4}


def test_overrides_first_match_wins_and_beats_the_rules_if_it_has_bits():
    policy = _policy(
        overrides={
            "embed": {"bits": 8, "bucket_size": 128},
            "head": {"bits": 32},
            r"\.weight": {"bucket_size": 32},
            "embed.late": {"bits": 1},
        }
    )
    assert policy.config_of("embed.weight", SMALL) == {"bits": 8, "bucket_size": 128}
    assert policy.config_of("embed.late", VECTOR) == {"bits": 8, "bucket_size": 128}
    assert policy.config_of("head.weight", MATRIX) == {"bits": 32}
    assert policy.config_of("body.weight", MATRIX) == {"bits": 4, "bucket_size": 32}
    assert policy.config_of("body.weight", SMALL) is None
    assert policy.config_of("body.bias", VECTOR) is None


def test_overrides_beat_the_filter():
    policy = _policy(layer_filter="body", overrides={"head": {"bits": 2}})
    assert policy.config_of("head", SMALL) == {"bits": 2}
    assert policy.config_of("tail", MATRIX) is None


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"overrides": {"(": {"bits": 4}}}, ValueError, ["'('", "regular expression"]),
        ({"overrides": {"a": {"bit": 4}}}, ValueError, ["'bit'", "bucket_size", "overrides['a']"]),
        ({"overrides": {"a": {"bits": 0}}}, ValueError, ["bits='0'", "1 to 32", "overrides['a']"]),
        ({"overrides": {"a": {"bits": 33}}}, ValueError, ["bits='33'"]),
        ({"overrides": {"a": {"bits": 4.0}}}, TypeError, ["bits=4.0"]),
        ({"overrides": {"a": {"bits": True}}}, TypeError, ["bits=True"]),
        ({"overrides": {"a": {"bucket_size": 0}}}, ValueError, ["bucket_size='0'"]),
        ({"overrides": {"a": {"codec": "zip"}}}, ValueError, ["'zip'", "maxmin"]),
        ({"overrides": {"a": {"rounding": "up"}}}, ValueError, ["'up'", "nearest,stochastic"]),
        ({"overrides": {"a": 4}}, TypeError, ["overrides['a']=4"]),
        ({"overrides": ["a"]}, TypeError, ["['a']"]),
        ({"layer_filter": "["}, ValueError, ["'['", "regular expression"]),
        ({"layer_filter": [3]}, TypeError, ["3", "int"]),
        ({"layer_filter": []}, TypeError, ["[]"]),
        ({"layer_filter": 7}, TypeError, ["7"]),
        ({"config": {"bits": 9.5}}, TypeError, ["config", "9.5"]),
        ({"config": {"speed": 9}}, ValueError, ["config", "'speed'"]),
        ({"config": 4}, TypeError, ["config=4"]),
        ({"min_size": -1}, ValueError, ["min_size=-1"]),
        ({"min_size": 1.5}, TypeError, ["min_size=1.5"]),
        ({"named_parameters": [MATRIX]}, TypeError, ["named_parameters"]),
    ],
)
def test_bad_arguments_are_named(options, error, words):
    with pytest.raises(error) as caught:
        CGXState(None, **options)
    for word in words:
        assert word in str(caught.value), (word, str(caught.value))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CGX_COMPRESSION_QUANTIZATION_BITS", "four"),
        ("CGX_COMPRESSION_QUANTIZATION_BITS", "0"),
        ("CGX_COMPRESSION_BUCKET_SIZE", "-3"),
        ("CGX_COMPRESSION_MINIMAL_SIZE", "-1"),
        ("CGX_COMPRESSION_SKIP_INCOMPLETE_BUCKETS", "maybe"),
    ],
)
def test_bad_environment_is_named(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=rf"{variable}.*{value}|{value}.*{variable}"):
        CGXState(None)


def test_minimal_size_of_the_environment_raises_the_floor(monkeypatch):
    assert CGXState(None, 4).min_size == 16
    monkeypatch.setenv("CGX_COMPRESSION_MINIMAL_SIZE", "5000")
    assert CGXState(None).min_size == 5000
    assert CGXState(None, 6000).min_size == 6000


def test_unused_rules_are_warned_of():
    def named(*names):
        return [Named(name, torch.ones(2), (name,), (name,)) for name in names]

    policy = _policy(layer_filter="body", overrides={"haed": {"bits": 2}})
    with pytest.warns(UserWarning, match="'haed' matches none of the model's 2 parameters: body.w"):
        policy.warn_of_unused(named("body.weight", "head.weight"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy.warn_of_unused(named("body.weight", "the haed"))
    assert caught == []
    policy = _policy(layer_filter=lambda name, p: "haed" in name)
    with pytest.warns(UserWarning, match=r"layer_filter=.*<lambda> selects none of the model's 1 "):
        policy.warn_of_unused(named("head"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy.warn_of_unused(named("head", "haed"))
    assert caught == []


def _applied(rank, world_size, options, source):
    """The bits that each layer really has, found by the number of different values in a bucket of
    its gradient.
    """
    torch.manual_seed(0)
    net = make_model()
    if source == "given":
        options = {**options, "named_parameters": net.named_parameters()}
    state = CGXState(None, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = wrap(net, state)
        for _ in range(3):
            model.zero_grad()
            # The same data everywhere: the mean of equal decoded values is one of the levels.
            loss_of(model, batch(0, 0)).backward()
    levels = {n: g.flatten()[:64].unique().numel() for n, g in gradients(model).items()}
    return levels, [str(w.message) for w in caught if "CGXState" in str(w.message)]


@pytest.mark.parametrize("source", ["found", "given"])
def test_overrides_and_filters_reach_the_wire(source):
    options = {
        "config": {"bits": 4, "bucket_size": 64},
        "layer_filter": [r"^first\.", "second"],
        "overrides": {r"^small\.weight": {"bits": 2}, "second": {"bits": 32}, "none": {"bits": 1}},
    }
    for levels, warned in run_pooled(_applied, 2, options, source):
        assert 2 <= levels["small.weight"] <= 4
        assert 8 <= levels["first.weight"] <= 16
        assert levels["second.weight"] > 32
        assert levels["first.bias"] > 32  # below the minimal size
        assert len(warned) == 1 and "'none'" in warned[0]


def test_environment_when_the_state_is_made_holds():
    env = {"CGX_COMPRESSION_QUANTIZATION_BITS": "3", "CGX_COMPRESSION_BUCKET_SIZE": "64"}
    for levels, _ in run_pooled(_applied, 2, {}, "found", env=env):
        assert 4 <= levels["first.weight"] <= 8
        assert levels["first.bias"] > 32


def _group_options(rank, world_size):
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=2, bucket_size=64))
    model = wrap(make_model(), CGXState(group), process_group=group)
    loss_of(model, batch(0, 0)).backward()
    return gradients(model)["first.weight"].flatten()[:64].unique().numel()


def test_options_of_the_group_hold_where_the_state_says_nothing():
    assert all(2 <= levels <= 4 for levels in run_pooled(_group_options, 2))


def _errors(rank, world_size):
    messages = {}
    gloo = dist.new_group(backend="gloo")
    model = wrap(make_model(), CGXState(gloo), process_group=gloo)
    messages["gloo"] = failure(lambda: loss_of(model, batch(rank, 0)).backward())

    shared = CGXState(None)
    one, other = wrap(make_model(), shared), wrap(make_model(), shared)
    messages["shared"] = failure(lambda: loss_of(one, batch(rank, 0)).backward())
    assert other is not one

    later = CGXState(None)
    first = wrap(make_model(), later)
    loss_of(first, batch(rank, 0)).backward()
    second = wrap(make_model(), later)
    messages["later"] = failure(lambda: loss_of(second, batch(rank, 0)).backward())

    foreign = CGXState(None, layer_filter="a", named_parameters=make_model())
    unnamed = wrap(make_model(), foreign)
    messages["foreign"] = failure(lambda: loss_of(unnamed, batch(rank, 0)).backward())

    wrong = wrap(make_model(), object())
    messages["state"] = failure(lambda: loss_of(wrong, batch(rank, 0)).backward())
    return messages


def test_errors_name_the_cause_and_the_fix():
    for messages in run_pooled(_errors, 2):
        assert "'gloo'" in messages["gloo"] and 'init_process_group("cgx")' in messages["gloo"]
        for name in ("shared", "later"):
            assert "a CGXState for each" in messages[name], messages
        assert "named_parameters=model.named_parameters()" in messages["foreign"], messages
        assert "object" in messages["state"] and "CGXState" in messages["state"]


class _Bucket:
    """A bucket whose parameters belong to no DDP instance."""

    def __init__(self, parameters):
        self._parameters = parameters

    def parameters(self):
        return self._parameters

    def buffer(self):
        return torch.cat([p.detach().flatten() for p in self._parameters])

    def index(self):
        return 0

    def is_last(self):
        return False


def _without_ddp(rank, world_size):
    parameters = list(make_model().parameters())
    exact = CGXState(None, config={"bits": 32})
    average = cgx_hook(exact, _Bucket(parameters)).wait()
    state = CGXState(None, layer_filter="first")
    short = _Bucket(parameters)
    short.buffer = lambda: torch.zeros(5)
    return (
        torch.equal(average, _Bucket(parameters).buffer()),
        failure(lambda: cgx_hook(state, _Bucket(parameters))),
        failure(lambda: cgx_hook(CGXState(None), short)),
    )


def test_names_that_cannot_be_found_and_buckets_that_do_not_add_up():
    for equal, no_names, short in run_pooled(_without_ddp, 2):
        assert equal
        assert "named_parameters=model.named_parameters()" in no_names
        assert "5 values" in short


def _pickled(rank, world_size):
    params = {"bits": 4, "bucket_size": 64}
    state = CGXState(
        dist.group.WORLD, 2000, params, layer_filter="first", overrides={"second": {"bits": 2}}
    )
    model = wrap(make_model(), state)
    loss_of(model, batch(0, 0)).backward()
    expected = gradients(model)
    restored = pickle.loads(pickle.dumps(state))
    assert restored.process_group is None
    assert restored.min_size == 2000 and restored.config == params
    again = wrap(make_model(), restored)
    loss_of(again, batch(0, 0)).backward()
    return all(torch.equal(value, expected[name]) for name, value in gradients(again).items())


def test_state_survives_pickle():
    assert run_pooled(_pickled, 2) == [True, True]
