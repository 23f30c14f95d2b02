"""Every argument of the public functions, and every variable, with values of every kind: accepted,
or a TypeError or ValueError that names the argument and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from cgx_utils import CGXState, cgx_hook
from tests.distributed import run_pooled, run_ranks, store
from torch_cgx import _C, codecs, launch

ODD: list[Any] = [
    None, True, -1, 0, 10**30, 2**63, 1.5, float("nan"), 3 + 4j, "", "4", "\x00", "日本", b"4",
    [], {}, [None], {"a": 1}, {1: 2}, object, torch.tensor(4), torch.ones(2), dist.ReduceOp.SUM,
    len,
]  # fmt: skip
SAYS = re.compile(
    r"allowed|expected|takes|must not be negative|register|not a regular expression|supported"
    r"|keywords|but the tensor has|share|values",
    re.I,
)


def tries(name: str, call: Callable[[Any], Any], words: str | None = None) -> list[str]:
    """What is wrong with the answers to odd values."""
    wrong = []
    for value in ODD:
        try:
            call(value)
        except (TypeError, ValueError) as error:
            text = str(error)
            if not re.search(words or name, text) or not SAYS.search(text):
                wrong.append(f"{name}={value!r}: {type(error).__name__}: {text}")
        except Exception as error:
            wrong.append(f"{name}={value!r}: {type(error).__name__}: {error}")
    return wrong


SETTINGS = [row["name"] for row in _C.settings()]
CONFIG = ("bits", "half", "bucket_size", "skip_incomplete_buckets", "codec", "rounding", "seed")


def test_options():
    wrong = [w for name in SETTINGS for w in tries(name, lambda v, n=name: _C.Options(**{n: v}))]
    assert not wrong, "\n".join(wrong)


def test_options_are_keywords():
    with pytest.raises(TypeError, match=r"Options\(4\): all arguments are keywords, as in"):
        _C.Options(4)  # type: ignore[misc]


def simulated(**arguments: Any) -> Any:
    return torch_cgx.simulate([torch.arange(64.0), torch.ones(64)], **arguments)


def test_configurations():
    wrong = tries("config", lambda v: simulated(config=v))
    for name in CONFIG:
        wrong += tries(name, lambda v, n=name: simulated(config={"bits": 4} | {n: v}))
    wrong += tries("layers", lambda v: simulated(layers=v))
    wrong += tries("layers", lambda v: simulated(layers=[v]))
    wrong += tries("numel", lambda v: simulated(layers=[(v, None)]), "numel|layers")
    wrong += tries("config", lambda v: simulated(layers=[(64, v)]))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1], [0, 0, 1]])
def test_simulated_tensors_are_of_the_host(hosts):
    """There NCCL, which is for tensors of GPUs, gives way to the default."""
    x = [torch.randn(1000, generator=torch.Generator().manual_seed(r)) for r in range(len(hosts))]
    nccl = _C.Options(inner_communicator="NCCL", cross_communicator="NCCL")
    ours, default = (
        torch_cgx.simulate(x, {"bits": 3}, hosts=hosts, options=options) for options in (nccl, None)
    )
    assert torch.equal(ours.result, default.result) and ours.bytes_sent == default.bytes_sent


def test_simulate():
    wrong = []
    for name in ("algorithm", "op", "sequence", "hosts", "options"):
        wrong += tries(name, lambda v, n=name: simulated(config={"bits": 4}, **{n: v}))
    wrong += tries("tensors", torch_cgx.simulate)
    wrong += tries("tensors", lambda v: torch_cgx.simulate([v, v]))
    assert not wrong, "\n".join(wrong)
    # A tensor is a sequence, too: its values were taken for ranks.
    with pytest.raises(TypeError, match=r"one tensor of shape \(10000,\); allowed: a list of one"):
        torch_cgx.simulate(torch.ones(10_000))


def test_codecs():
    codec, x = codecs.MaxMin(), torch.arange(64.0)
    payload = codec.encode(x)
    wrong = []
    for name in ("bits", "bucket_size", "rounding", "seed", "skip_incomplete_buckets"):
        wrong += tries(name, lambda v, n=name: codecs.MaxMin(**{n: v}))
    wrong += tries("format", codecs.Half)
    for name in ("sequence", "rank", "index"):
        wrong += tries(name, lambda v, n=name: codec.encode(x, **{n: v}))
        wrong += tries(name, lambda v, n=name: codec.roundtrip(x, **{n: v}))
    wrong += tries("tensor", codec.encode) + tries("tensor", codec.roundtrip)
    wrong += tries("payload", lambda v: codec.decode(v))
    wrong += tries("out", lambda v: codec.decode(payload, v), "out|payload")
    wrong += tries("numel", lambda v: codec.decode(payload, numel=v), "numel|payload")
    wrong += tries("dtype", lambda v: codec.decode(payload, dtype=v))
    wrong += tries("numel", codec.encoded_bytes)
    wrong += tries("dtype", lambda v: codec.encoded_bytes(5, v))
    wrong += tries("out", lambda v: codec.encode(x, out=v))
    wrong += tries("codec", codecs.make)
    assert not wrong, "\n".join(wrong)


def test_the_state_of_the_hook():
    wrong = []
    for name in ("group", "min_size", "config", "layer_filter",
                 "overrides", "named_parameters"):  # fmt: skip
        words = "config|overrides|named_parameters" if name[0] in "con" else None
        wrong += tries(name, lambda v, n=name: CGXState(**{n: v}), words)
    for name in CONFIG:
        wrong += tries(name, lambda v, n=name: CGXState(config={n: v}))
    wrong += tries("layer_filter", lambda v: CGXState(layer_filter=[v]))
    wrong += tries("overrides", lambda v: CGXState(overrides={"a": v}))
    wrong += tries("hook", lambda v: cgx_hook(v, None))
    assert not wrong, "\n".join(wrong)


def test_functions_of_old_scripts():
    wrong = []
    try:
        for place in range(5):
            for call, count in (
                (torch_cgx.compat.register_layer, 5),
                (torch_cgx.compat.set_quantization_bits, 3),
                (torch_cgx.compat.set_quantization_bucket_size, 3),
            ):
                if place >= count:
                    continue

                def one(value, call=call, place=place, count=count):
                    torch_cgx.compat.clear_layers()
                    torch_cgx.compat.register_layer(0, 0, 64, 4, 64)
                    good = (0, 0, 64, 4, 64) if count == 5 else (0, 0, 4)
                    call(*[value if i == place else good[i] for i in range(count)])

                wrong += tries("layer", one, ".")
    finally:
        torch_cgx.compat.clear_layers()
    assert not wrong, "\n".join(wrong)


def collectives(rank: int, size: int) -> list[str]:
    x, y, z = torch.arange(64.0), torch.zeros(32), torch.zeros(128)
    four = {"bits": 4}
    world = dist.group.WORLD
    wrong = []

    # What is right for one is a collective of all, who pass the same.
    for name in ("op", "config", "layers"):
        wrong += tries(name, lambda v, n=name: torch_cgx.all_reduce(x.clone(), **{n: v}))
    for name in CONFIG:
        wrong += tries(name, lambda v, n=name: torch_cgx.all_reduce(x.clone(), config={n: v}))
    wrong += tries(
        "tensor", lambda v: torch_cgx.all_reduce(v, config=four), "(?i)tensor|put|asked for"
    )
    wrong += tries(
        "output",
        lambda v: torch_cgx.reduce_scatter_single(v, x, config=four),
        "(?i)tensor|put|asked for",
    )
    wrong += tries(
        "input",
        lambda v: torch_cgx.reduce_scatter_single(y, v, config=four),
        "(?i)tensor|put|asked for",
    )
    wrong += tries("op", lambda v: torch_cgx.reduce_scatter_single(y, x, v, config=four))
    wrong += tries("config", lambda v: torch_cgx.reduce_scatter_single(y, x, config=v))
    wrong += tries(
        "output",
        lambda v: torch_cgx.all_gather_single(v, x, config=four),
        "(?i)tensor|put|asked for",
    )
    wrong += tries(
        "input",
        lambda v: torch_cgx.all_gather_single(z, v, config=four),
        "(?i)tensor|put|asked for",
    )
    wrong += tries("config", lambda v: torch_cgx.all_gather_single(z, x, config=v))
    for name in ("src", "group_src", "config", "step", "residual"):
        wrong += tries(
            name, lambda v, n=name: torch_cgx.broadcast(x.clone(), **{"config": four, n: v})
        )
    for name in ("output_split_sizes", "input_split_sizes", "config", "step", "residual"):
        wrong += tries(
            name, lambda v, n=name: torch_cgx.all_to_all_single(x + 1, x, **{"config": four, n: v})
        )
    for name in ("forward", "backward", "op"):
        wrong += tries(name, lambda v, n=name: torch_cgx.nn.all_reduce(x, **{n: v}))
    for name in ("dst", "tag", "group", "config", "step", "residual"):
        # Nothing is sent: without a peer there is none but the odd values, which are refused.
        odd = lambda v, n=name: torch_cgx.isend(x, **{"config": {"bit": 4}, n: v})  # noqa: E731
        wrong += tries(name, odd, f"{name}|dst|bit|key")
    for call in (
        lambda v: torch_cgx.all_reduce(x.clone(), group=v),
        lambda v: torch_cgx.broadcast(x.clone(), group=v),
        lambda v: torch_cgx.all_to_all_single(x + 1, x, group=v),
        lambda v: torch_cgx.nn.all_gather_single(x, group=v),
        lambda v: torch_cgx.reduce_scatter_single(y, x, group=v),
        lambda v: torch_cgx.all_gather_single(z, x, group=v),
        torch_cgx.stats,
        torch_cgx.reset_stats,
    ):
        wrong += tries("group", call)
    assert torch.equal(x, torch.arange(64.0)), "the inputs stay"
    torch_cgx.all_reduce(x, config=four, group=world)
    assert (x - size * torch.arange(64.0)).abs().max() <= size * 63 / 15
    return wrong


def test_collectives():
    for wrong in run_pooled(collectives, 2, timeout=60):
        assert not wrong, "\n".join(wrong)


def test_groups_of_odd_options():
    with pytest.raises(TypeError, match="pg_options of a cgx group is of type dict; allowed"):
        torch_cgx._backend.create(None, {"bits": 4})


def test_launch(monkeypatch):
    for name in launch.NEEDED:
        monkeypatch.delenv(name, raising=False)
    for name in ("rank", "world_size", "timeout"):
        wrong = []
        for value in ODD:
            try:
                launch.setup(**{name: value})
            except (launch.LaunchError, TypeError, ValueError):
                continue
            except Exception as error:
                wrong.append(f"{name}={value!r}: {type(error).__name__}: {error}")
        assert not wrong, "\n".join(wrong)


BAD = ["x", "-1", "4.0", "1e3", "99999999999999999999", "4 4", "0x4", "日本", "1;2", " "]


def variables(rank: int, size: int, table: list[tuple[str, str]]) -> list[str]:
    import os

    wrong = []
    for number, (variable, value) in enumerate(table):
        os.environ[variable] = value
        try:
            dist.init_process_group(
                "cgx", store=dist.PrefixStore(f"v{number}", store()), rank=rank, world_size=size
            )
            if value.strip():
                wrong.append(f"{variable}={value!r} was taken")
            dist.all_reduce(torch.ones(100))
        except ValueError as error:
            named = f"{variable}='{value}'" in str(error)
            if not (named and re.search("allowed.*takes", str(error))):
                wrong.append(f"{variable}={value!r}: {error}")
        except Exception as error:
            wrong.append(f"{variable}={value!r}: {type(error).__name__}: {error}")
        finally:
            del os.environ[variable]
            if dist.is_initialized():
                dist.destroy_process_group()
    return wrong


def test_variables():
    free = {"CGX_HOST_ID"}
    names = [row["variable"] for row in _C.settings() if row["variable"] not in free]
    table = [(name, value) for name in names for value in BAD]
    for wrong in run_pooled(variables, 2, table, backend=None, timeout=120):
        assert not wrong, "\n".join(wrong)


def pinned(rank: int, size: int) -> str:
    with pytest.raises((ValueError, torch_cgx.CgxError)) as info:
        dist.init_process_group(
            "cgx", store=dist.PrefixStore("g", store()), rank=rank, world_size=size
        )
        torch_cgx.all_reduce(torch.ones(100), config={"bits": 4})
    return str(info.value)


def test_a_bad_cpu_level_is_refused():
    env = [{"CGX_CPU_LEVEL": "sse9"}, {}]
    first, second = run_ranks(pinned, 2, backend=None, env=env)
    assert "CGX_CPU_LEVEL='sse9' is not allowed; cpu_level takes one of scalar" in first
    assert "sse9" in second, second
