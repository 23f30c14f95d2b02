"""Names of tied and wrapped parameters: in rules, reports, and states saved with others."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

from cgx_utils import AdaptiveBits, CGXState, DiLoCo, Monitor, cgx_hook, fsdp
from cgx_utils.names import Names
from tests.distributed import run_pooled
from torch_cgx._policy.names import clean_names, named_of, translate


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.body = nn.Linear(32, 32)
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, numbers):
        return self.head(self.body(self.embed(numbers)))


def _said(call):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in said]


def _compressed(state):
    return sorted(row["name"] for row in state.report().rows if row["bits"] < 32)


def _wrapped(rule, **options):
    torch.manual_seed(0)
    model = DistributedDataParallel(_Tied())
    state = CGXState(config={"bits": 4}, layer_filter=rule, **options)
    model.register_comm_hook(state, cgx_hook)
    return model, state


def _step(model):
    model(torch.arange(20)).square().mean().backward()


def _selected(rank, world_size):
    """By rule: what DDP, DiLoCo and FSDP2 compress, and what they warn of."""
    found = {}
    for text in ("embed", "^head.weight$", "nothing"):
        for kind in ("regex", "callable"):
            rule = text if kind == "regex" else lambda n, p, t=text: t.strip("^$") in n
            model, state = _wrapped(rule)
            said = _said(lambda model=model: _step(model))
            ddp = _compressed(state)
            del model
            net = _Tied()
            outer = DiLoCo(net, torch.optim.SGD(net.parameters(), 0.1), every=1, layer_filter=rule)
            outer_said = _said(outer.sync)
            diloco = _compressed(outer._state)
            net = _Tied()
            fully_shard(net, mesh=init_device_mesh("cpu", (world_size,)))
            summary = {}

            def compress(net=net, rule=rule, summary=summary):
                options = {"layer_filter": rule, "min_size": 1}
                summary["found"] = fsdp.compress(net, {"bits": 4}, **options)

            fsdp_said = _said(compress)
            found[text, kind] = (
                ddp,
                diloco,
                summary["found"].gradients.compresses,
                [any("none of the model's" in one for one in s) for s in (said, fsdp_said)],
            )
            del outer_said
    return found


def test_any_name_of_a_tied_weight_selects_it():
    first, second = run_pooled(_selected, 2)
    assert first == second
    for (text, _), found in first.items():
        chosen = [] if text == "nothing" else ["embed.weight"]
        assert found == (chosen, chosen, bool(chosen), [not chosen] * 2), text


def _ruled(rank, world_size):
    overrides = {"head": {"bits": 2}, "embed": {"bits": 8}, "body": {"bits": 3}}
    found = []
    for named in (False, True):
        torch.manual_seed(0)
        net = _Tied()
        model = DistributedDataParallel(net)
        pairs = model.named_parameters() if named else None  # first names only, with "module."
        state = CGXState(overrides=overrides, min_size=1, named_parameters=pairs)
        model.register_comm_hook(state, cgx_hook)
        with Monitor(model, every=2, sinks=[]) as monitor:
            _step(model)
            _step(model)
            record = monitor.last
        bits = {row["name"]: row["bits"] for row in state.report().rows}
        found.append((bits, record["bits"], list(record["errors"])))
        del model
    return found


def test_overrides_and_records_know_one_name():
    for bits, recorded, errors in run_pooled(_ruled, 2)[0]:
        assert bits == recorded == {"embed.weight": 2, "body.weight": 3, "body.bias": 3}
        assert set(errors) <= set(bits)


def _make(how, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 128))
    if how == "compiled":
        net = torch.compile(net, backend="eager")
    if how == "compiled layers":
        net = nn.Sequential(*[torch.compile(one, backend="eager") for one in net])
    if how == "checkpointed":
        apply_activation_checkpointing(net, check_fn=lambda m: isinstance(m, nn.Linear))
    model = DistributedDataParallel(net)
    state = CGXState(layer_filter=r"^\d\.weight$", **options)
    model.register_comm_hook(state, cgx_hook)
    return model, state


def _old(state, rename):
    """As the version before wrote it, with the names of wrappers."""
    old = {key: value for key, value in copy.deepcopy(state).items() if key != "ranks"}
    del old["steps"]
    for key in ("bits", "errors", "model", "residuals"):
        for section in (old.get("adaptive", {}), old.get("error_feedback", {})):
            if key in section:
                section[key] = {rename(name): value for name, value in section[key].items()}
    return old


_PREFIXES = {
    "compiled": lambda name: f"_orig_mod.{name}",
    "compiled layers": lambda name: name.replace(".", "._orig_mod.", 1),
    "checkpointed": lambda name: name.replace(".", "._checkpoint_wrapped_module.", 1),
}


def _switched(rank, world_size):
    x = torch.randn(8, 128, generator=torch.Generator().manual_seed(rank))
    found = []
    options = {
        "error_feedback": lambda: {"error_feedback": True},
        "adaptive": lambda: {"adaptive": AdaptiveBits(average_bits=3, every=1)},
    }
    for section, make in options.items():
        for how, rename in _PREFIXES.items():
            for first, then in ((how, "plain"), ("plain", how)):
                model, state = _make(first, **make())
                for _ in range(3):
                    model(x).square().mean().backward()
                saved = state.state_dict()
                del model
                for given in (saved, _old(saved, rename if first != "plain" else str)):
                    other, again = _make(then, **make())
                    again.load_state_dict(given)
                    other(x).square().mean().backward()
                    back = again.state_dict()[section]
                    names = back.get("residuals", {})
                    found.append((sorted(names), sorted(_compressed(again))))
                    if section == "adaptive":
                        assert back["bits"].keys() == saved[section]["bits"].keys()
                        assert back["model"] == saved[section]["model"]
                    del other
    return found


def test_states_go_on_with_other_wrappers():
    names = ["0.bias", "0.weight", "1.bias", "1.weight"]
    for found in run_pooled(_switched, 2, timeout=120):
        assert len(found) == 24
        for saved, compressed in found:
            assert saved in (names, []) and compressed == ["0.weight", "1.weight"]


def test_names_without_wrappers():
    assert clean_names(["_orig_mod.a._checkpoint_wrapped_module.w"]) == ["a.w"]
    assert clean_names(["module._fsdp_wrapped_module.a.w", "module.b"]) == ["a.w", "b"]
    assert clean_names(["module.a", "b"]) == ["module.a", "b"]
    assert clean_names([]) == []
    inner = nn.Module()
    inner.part = DataParallel(nn.Linear(2, 2))
    inner.module = nn.Linear(2, 2, bias=False)
    assert [one.name for one in named_of(inner)] == ["part.weight", "part.bias", "module.weight"]
    # Two parameters that only wrappers tell apart keep them.
    both = nn.ModuleDict({"_orig_mod": nn.Linear(2, 2, bias=False)})
    both.weight = nn.Parameter(torch.ones(1))
    assert sorted(one.name for one in named_of(both)) == ["_orig_mod.weight", "weight"]
    (tied, *_) = named_of(_Tied())
    assert tied.names == ("embed.weight", "head.weight")
    pairs = [("module._orig_mod.w", torch.ones(1)), ("module.v", torch.ones(1))]
    assert [name for name, _ in Names(pairs).known()] == ["w", "v"]


def test_a_rule_with_a_wrapper_goes_on_to_match():
    model = torch.compile(_Tied(), backend="eager")
    state = CGXState(layer_filter="_orig_mod.embed", named_parameters=model)
    (embed, body, *_) = state._names.named()
    assert state._policy.decide(embed, embed.parameter)[0] is not None
    assert state._policy.decide(body, body.parameter)[0] is None


def test_entries_of_two_names_of_one_parameter():
    model = named_of(_Tied())
    assert translate({"head.weight": 1, "body.weight": 2}, model, "it") == {
        "embed.weight": 1,
        "body.weight": 2,
    }
    assert translate({"head.weight": 1, "embed.weight": 1}, model, "it") == {"embed.weight": 1}
    with pytest.raises(ValueError, match=r"it has entries for 'head.weight' and 'embed.weight'"):
        translate({"head.weight": 1, "embed.weight": 2}, model, "it")
