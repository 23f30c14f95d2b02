"""Options and environment: defaults, precedence, bad values, disagreement between ranks, layers
registered by hand.
"""

from __future__ import annotations

import copy
import os
import pickle

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled, store
from torch_cgx import _C


def test_options_are_values():
    a = torch_cgx.Options(
        bits=4, bucket_size=128, rounding="stochastic", collectives=["all_gather", "all_reduce"]
    )
    b = torch_cgx.Options(
        bucket_size=128, bits=4, rounding="STOCHASTIC", collectives="all_reduce,all_gather"
    )
    assert a == b and hash(a) == hash(b) and a != torch_cgx.Options(bits=4)
    assert a.bits == 4 and a.min_size is None and a.collectives == "all_gather,all_reduce"
    assert copy.deepcopy(a) == a and pickle.loads(pickle.dumps(a)) == a
    shown = "bits=4, bucket_size=128, collectives='all_gather,all_reduce', rounding='stochastic'"
    assert repr(a) == f"Options({shown})"
    assert torch_cgx.Options(bits=None) == torch_cgx.Options()
    assert isinstance(a, torch._C._distributed_c10d.Backend.Options)


@pytest.mark.parametrize(
    "bad, words",
    [
        ({"bits": 0}, "bits='0'.*1 to 32"),
        ({"bits": 33}, "bits='33'.*1 to 32"),
        ({"bucket_size": 0}, "bucket_size='0'.*integers from 1"),
        ({"rounding": "up"}, "rounding='up'.*nearest,stochastic"),
        ({"codec": "zip"}, "codec='zip'.*maxmin"),
        ({"inner_communicator": "UCX"}, "inner_communicator='UCX'.*SHM,MPI,NCCL,GLOO"),
        ({"collectives": "broadcast"}, "collectives='broadcast'"),
        ({"shm_segment_kb": 1}, "shm_segment_kb='1'"),
        ({"bit": 4}, "unknown option 'bit'.*bucket_size"),
    ],
)
def test_bad_options_name_option_value_and_what_is_allowed(bad, words):
    with pytest.raises(ValueError, match=words):
        torch_cgx.Options(**bad)


@pytest.mark.parametrize(
    "bad", [{"bits": 4.0}, {"bits": "4"}, {"bits": True}, {"intra_compress": 1}, {"codec": 3}]
)
def test_wrong_types_are_type_errors(bad):
    with pytest.raises(TypeError, match=next(iter(bad))):
        torch_cgx.Options(**bad)


def make_world(rank, world_size, options=None, name="w"):
    dist.init_process_group(
        "cgx",
        store=dist.PrefixStore(name, store()),
        rank=rank,
        world_size=world_size,
        pg_options=options,
    )
    return torch_cgx._backend.backend_of()


def bad_environment(rank, world_size, variable, value):
    with pytest.raises(ValueError, match=f"{variable}='{value}' is not allowed"):
        make_world(rank, world_size)
    return True


@pytest.mark.parametrize(
    "variable, value",
    [
        ("CGX_COMPRESSION_QUANTIZATION_BITS", "four"),
        ("CGX_COMPRESSION_QUANTIZATION_BITS", "0"),
        ("CGX_COMPRESSION_QUANTIZATION_BITS", "-1"),
        ("CGX_COMPRESSION_BUCKET_SIZE", "0"),
        ("CGX_COMPRESSION_MINIMAL_SIZE", "x"),
        ("CGX_COMPRESSION_SKIP_INCOMPLETE_BUCKETS", "yes"),
        ("CGX_INNER_COMMUNICATOR_TYPE", "TCP"),
        ("CGX_CROSS_COMMUNICATOR_TYPE", "SHM"),
        ("CGX_INNER_REDUCTION_TYPE", "TREE"),
        ("CGX_FUSION_BUFFER_SIZE_MB", "0"),
    ],
)
def test_bad_variables_are_refused_when_the_group_is_made(variable, value):
    assert run_pooled(bad_environment, 2, variable, value, backend=None, env={variable: value}) == [
        True,
        True,
    ]


def unavailable(rank, world_size, words):
    with pytest.raises(ValueError, match=words):
        make_world(rank, world_size)
    return True


@pytest.mark.parametrize(
    "env, words",
    [
        ({"CGX_INNER_COMMUNICATOR_TYPE": "NCCL"}, "NCCL.*use MPI, GLOO or SHM"),
    ],
)
def test_what_this_version_lacks_is_an_error_that_says_so(env, words):
    assert run_pooled(unavailable, 2, words, backend=None, env=env) == [True, True]


def two_hosts(rank, world_size, words):
    # Rank 1 needs no communicator between hosts: it gets the error of the others.
    with pytest.raises((ValueError, torch_cgx.MismatchError), match=words):
        make_world(rank, world_size)
    return True


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"CGX_CROSS_COMMUNICATOR_TYPE": "NCCL"}, "CGX_CROSS_COMMUNICATOR_TYPE='NCCL'.*MPI, GLOO"),
        (
            {"CGX_CROSS_COMMUNICATOR_TYPE": "SHM"},
            "COMMUNICATOR_TYPE='SHM'.*MPI,NCCL,GLOO",
        ),
        ({"CGX_INNER_REDUCTION_TYPE": "RING"}, "CGX_INNER_REDUCTION_TYPE='RING'.*2 hosts"),
        ({"CGX_INNER_REDUCTION_TYPE": "ONESHOT"}, "CGX_INNER_REDUCTION_TYPE='ONESHOT'.*2 hosts"),
    ],
)
def test_impossible_choices_across_hosts_are_errors(variables, words):
    env = [variables | {"CGX_HOST_ID": host} for host in "aab"]
    assert run_pooled(two_hosts, 3, words, backend=None, env=env) == [True] * 3


def communicators(rank, world_size):
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert torch.all(tensor == sum(range(1, world_size + 1)))
    found = [torch_cgx.stats()["communicator"]]
    for members in ([0, 1], [1, 2], [0, 2, 3]):
        group = dist.new_group(members)
        if rank in members:
            tensor = torch.ones(100)
            dist.all_reduce(tensor, group=group)
            assert torch.all(tensor == len(members))
            found.append(torch_cgx.stats(group)["communicator"])
    return found


def test_every_group_finds_its_own_hosts():
    env = [{"CGX_HOST_ID": host} for host in "aabb"]
    # Ranks 0, 1 share a host; 1, 2 do not; of 0, 2, 3 two do.
    assert run_pooled(communicators, 4, env=env) == [
        ["shm+gloo", "shm", "shm+gloo"],
        ["shm+gloo", "shm", "gloo"],
        ["shm+gloo", "gloo", "shm+gloo"],
        ["shm+gloo", "shm+gloo"],
    ]


@pytest.mark.parametrize("given, value", [("auto", "AUTO"), (True, True), (False, False)])
def test_intra_compress_takes_a_bool_or_auto(given, value):
    assert torch_cgx.Options(intra_compress=given).intra_compress == value


def precedence(rank, world_size):
    group = make_world(rank, world_size, torch_cgx.Options(bits=8))
    settings = group.settings()
    assert settings["bits"] == 8  # the option beats the variable
    assert settings["bucket_size"] == 128  # the variable fills what is open
    assert settings["rounding"] == "nearest"  # the default fills the rest
    os.environ["CGX_COMPRESSION_BUCKET_SIZE"] = "64"
    n = 6400
    for expected in (64, 128):
        os.environ["CGX_COMPRESSION_BUCKET_SIZE"] = str(expected)  # read at each call
        torch_cgx.reset_stats()
        dist.all_reduce(torch.randn(n))
        assert torch_cgx.stats()["bytes_sent"] == 56 + 8 * n // expected + n
    with pytest.raises(ValueError, match="CGX_COMPRESSION_BUCKET_SIZE='abc'"):
        os.environ["CGX_COMPRESSION_BUCKET_SIZE"] = "abc"
        dist.all_reduce(torch.randn(n))
    os.environ["CGX_COMPRESSION_BUCKET_SIZE"] = "128"
    dist.all_reduce(torch.randn(n))  # the bad call broke nothing


def test_options_beat_variables_beat_defaults_and_per_call_settings_are_read_at_the_call():
    run_pooled(
        precedence,
        2,
        backend=None,
        env={"CGX_COMPRESSION_BUCKET_SIZE": "128", "CGX_COMPRESSION_QUANTIZATION_BITS": "2"},
    )


def minimal_size(rank, world_size):
    counts = []
    for n in (15, 16, 99, 100, 101):
        torch_cgx.reset_stats()
        dist.all_reduce(torch.ones(n))
        counts.append(torch_cgx.stats()["compressed_calls"])
    return counts


def test_minimal_size():
    bits = {"CGX_COMPRESSION_QUANTIZATION_BITS": "4"}
    assert run_pooled(minimal_size, 2, env=bits)[0] == [0, 1, 1, 1, 1]
    assert run_pooled(minimal_size, 2, env=bits | {"CGX_COMPRESSION_MINIMAL_SIZE": "100"})[0] == [
        0,
        0,
        0,
        1,
        1,
    ]
    assert run_pooled(minimal_size, 2, env=bits | {"CGX_COMPRESSION_MINIMAL_SIZE": "0"})[0] == [
        0,
        1,
        1,
        1,
        1,
    ]


def compressed(rank, world_size):
    dist.all_reduce(torch.randn(1000))
    return torch_cgx.stats()["compressed_calls"]


@pytest.mark.parametrize(
    "env",
    [
        {"CGX_INTRA_COMPRESS": "0"},
        {"CGX_COMPRESS_COLLECTIVES": "none"},
        {"CGX_COMPRESSION_QUANTIZATION_BITS": "12"},
    ],
)
def test_switches_that_keep_a_call_exact(env):
    assert run_pooled(compressed, 2, env={"CGX_COMPRESSION_QUANTIZATION_BITS": "4"} | env) == [0, 0]


def disagreement(rank, world_size):
    with pytest.raises(torch_cgx.MismatchError) as info:
        make_world(rank, world_size)
    return str(info.value)


def test_ranks_that_disagree_on_the_configuration_all_get_both_sides():
    env = [
        {"CGX_COMPRESSION_SEED": "1"},
        {"CGX_COMPRESSION_SEED": "2"},
        {"CGX_COMPRESSION_SEED": "1"},
    ]
    for text in run_pooled(disagreement, 3, backend=None, env=env):
        assert "seed: rank 0, 2: '1'; rank 1: '2'" in text


def call_mismatch(rank, world_size, kind):
    tensor = torch.randn(1000)
    with pytest.raises(torch_cgx.MismatchError, match="rank") as info:
        if kind == "bits":
            torch_cgx.all_reduce(tensor, config={"bits": 4 if rank else 8})
        elif kind == "size":
            torch_cgx.all_reduce(torch.randn(1000 if rank else 90_000), config={"bits": 4})
        elif kind == "dtype":
            dist.all_reduce(tensor if rank else tensor.half())
        elif kind == "op":
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG if rank else dist.ReduceOp.SUM)
        else:
            torch_cgx.reduce_scatter_single(
                torch.zeros(500), tensor, config={"bits": 4}
            ) if rank else dist.all_reduce(tensor)
    with pytest.raises(torch_cgx.CgxError):  # and from now on at once
        dist.all_reduce(tensor)
    return str(info.value)


@pytest.mark.parametrize("communicator", ["SHM", "GLOO"])
@pytest.mark.parametrize("kind", ["bits", "size", "dtype", "op", "order"])
def test_ranks_that_disagree_on_a_call_all_get_an_error(kind, communicator):
    texts = run_pooled(
        call_mismatch, 2, kind, env={"CGX_INNER_COMMUNICATOR_TYPE": communicator}, timeout=30
    )
    assert any("rank 0 runs" in text and "rank 1 runs" in text for text in texts), texts


def hosts_differ(rank, world_size):
    tensor = torch.full((1000,), float(rank))
    dist.all_reduce(tensor)
    assert torch.all(tensor == sum(range(world_size)))
    return torch_cgx.stats()["communicator"]


def test_ranks_on_different_hosts_use_the_cross_communicator():
    env = [{"CGX_HOST_ID": "a"}, {"CGX_HOST_ID": "b"}]
    assert run_pooled(hosts_differ, 2, env=env) == ["gloo", "gloo"]


def old_script(rank, world_size):
    torch_cgx.compat.clear_layers()
    torch_cgx.compat.register_layer(0, 0, 1000, 4, 64)
    torch_cgx.compat.register_layer(0, 1, 24, 32, 0)
    exact = torch.randn(1024, generator=torch.Generator().manual_seed(rank))
    others = sum(
        torch.randn(1024, generator=torch.Generator().manual_seed(r)).double()
        for r in range(world_size)
    )

    def errors():
        tensor = exact.clone()
        dist.all_reduce(tensor)
        difference = (tensor.double() - others).abs()
        return difference[:1000].max().item(), difference[1000:].max().item()

    try:
        first, second = errors()
        assert first > 0.01 and second < 1e-6
        torch_cgx.compat.set_quantization_bits(0, 0, 8)
        finer, _ = errors()
        assert finer < first / 4
        torch_cgx.compat.set_quantization_bucket_size(0, 0, 1000)
        torch_cgx.reset_stats()
        errors()
        assert torch_cgx.stats()["bytes_sent"] == 56 + 1008 + 24 * 4
        torch_cgx.compat.set_quantization_bits(0, 0, 32)
        assert errors()[0] < 1e-6
        torch_cgx.reset_stats()
        dist.all_reduce(torch.randn(1023))  # another size: nobody's bucket
        assert torch_cgx.stats()["compressed_calls"] == 0
        torch_cgx.compat.register_layer(1, 0, 1024, 2, 64)
        with pytest.raises(ValueError, match="buckets 0 and 1 both"):
            errors()
    finally:
        torch_cgx.compat.clear_layers()
    return True


def test_layers_registered_by_old_scripts():
    assert run_pooled(old_script, 2) == [True, True]


def test_registered_layers_are_validated():
    try:
        with pytest.raises(ValueError, match="next layer to register is 0"):
            torch_cgx.compat.register_layer(5, 1, 10, 4, 64)
        with pytest.raises(ValueError, match="not registered"):
            torch_cgx.compat.set_quantization_bits(5, 0, 4)
        with pytest.raises(ValueError, match="numel=-1"):
            torch_cgx.compat.register_layer(5, 0, -1, 4, 64)
    finally:
        torch_cgx.compat.clear_layers()


def test_every_setting_has_a_name_a_variable_and_a_default():
    rows = _C.settings()
    assert len({row["name"] for row in rows}) == len({row["variable"] for row in rows}) == len(rows)
    assert all(row["variable"].startswith("CGX_") for row in rows)
