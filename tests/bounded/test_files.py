"""bounded.save and bounded.load: what comes back, and what is refused."""

from __future__ import annotations

import collections
import errno
import functools
import math
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.bounded.helpers import error, gaussian, same
from tests.distributed import run_ranks
from torch_cgx import bounded
from torch_cgx.bounded import _files, _index, _tree
from torch_cgx.bounded._named import join


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(16, 40)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def test_a_training_comes_back_within_the_bound(tmp_path):
    model, optimizer = trained()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "random": torch.get_rng_state(),
        "step": 3,
    }
    bounded.save(state, tmp_path / "a", max_error=1e-3, overrides={r"\.1\.": 0})
    back = bounded.load(tmp_path / "a")
    assert list(back) == list(state)
    for name, x in state["model"].items():
        y = back["model"][name]
        if name.startswith("1."):  # "model.1.weight"
            assert torch.equal(x, y), name
        else:
            assert (x.numel() > 100) <= (0 < error(x, y)) and error(x, y) <= 1e-3, name
    assert back["model"]._metadata == state["model"]._metadata
    for number, moments in state["optimizer"]["state"].items():
        for name, x in moments.items():
            assert error(x, back["optimizer"]["state"][number][name]) <= 1e-3
    for part in ("schedule", "random", "step"):
        assert same(state[part], back[part])
    assert same(state["optimizer"]["param_groups"], back["optimizer"]["param_groups"])
    other, others = trained()
    other.load_state_dict(back["model"])
    others.load_state_dict(back["optimizer"])
    assert torch.equal(other[1].weight, model[1].weight)


def test_every_kind_of_leaf_and_key_comes_back(tmp_path):
    state = collections.OrderedDict(
        {
            "numbers": [
                0,
                -1,
                2**100,
                1 - 10**4300,
                True,
                0.1,
                -0.0,
                1e-320,
                math.inf,
                -math.inf,
                math.nan,
            ],
            "text": ["", "naïve \ud800 \0", "{}", None],
            "bytes": b"\x00\xff" * 3,
            "tuple": ((), (1, [2, (3,)]), {}),
            7: {True: "bool", -3: "int", 2.5: "float", None: "none", b"k": "bytes", (1, "a"): "t"},
            "": [collections.OrderedDict()],
            "whole": [
                torch.arange(-3, 4, dtype=d)
                for d in (torch.int8, torch.int16, torch.int32, torch.int64)
            ],
            "flags": torch.tensor([True, False]),
            "unsigned": torch.arange(5).to(torch.uint16),
            "empty": torch.empty(0, 3),
            "scalar": torch.tensor(2.0),
            "eighth": torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).view(4, 64),
        }
    )
    bounded.save(state, tmp_path / "a", max_error=0)
    back = bounded.load(tmp_path / "a")
    assert math.copysign(1, back["numbers"][6]) == -1
    for one in (state, back):  # torch has no equal() of these
        one["eighth"] = one["eighth"].view(torch.uint8)
    assert same(state, back)


@pytest.mark.parametrize("value", [torch.tensor([1.5]), [1], 3, None, "x", {}])
def test_any_part_can_be_the_root(tmp_path, value):
    bounded.save(value, tmp_path / "a", max_error=0)
    assert same(bounded.load(tmp_path / "a"), value)


def test_numbers_of_numpy_become_pythons(tmp_path):
    state = {"a": np.float64(0.1), "b": np.int32(3), "c": np.bool_(True), "d": np.float32(0.5)}
    bounded.save(state, tmp_path / "a", max_error=0)
    assert same(bounded.load(tmp_path / "a"), {"a": 0.1, "b": 3, "c": True, "d": 0.5})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_views_of_any_dtype(tmp_path, dtype):
    x = gaussian(40, 30, dtype=torch.float64).to(dtype)
    state = {"turned": x.t(), "part": x[3:20:2, 5:], "wide": x[:1].expand(5, 30), "row": x[0]}
    state = {name: y.clone(memory_format=torch.preserve_format) for name, y in state.items()}
    state["sparse"] = gaussian(99, dtype=torch.float64).to(dtype)[::2]
    if dtype.is_complex:
        state["conjugate"] = x.conj()
    bounded.save(state, tmp_path / "a", max_error=0.01)
    for name, y in bounded.load(tmp_path / "a").items():
        whole, found = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
                        for t in (state[name], y))  # fmt: skip
        assert y.is_contiguous() and error(whole, found) <= 0.01, name


def test_the_last_override_that_is_found_wins(tmp_path):
    state = {"a.weight": gaussian(500), "a.norm": gaussian(500), "b": {"norm": 5 * gaussian(500)}}
    overrides = {r"norm": 0, r"^b\.norm$": {"pointwise": 0.01}, r"weight": 0.5}
    bounded.save(state, tmp_path / "a", max_error=1e-4, overrides=overrides)
    back = bounded.load(tmp_path / "a")
    assert 0.1 < error(state["a.weight"], back["a.weight"]) <= 0.5
    assert torch.equal(state["a.norm"], back["a.norm"])
    x, y = (one["b"]["norm"].double().numpy() for one in (state, back))
    assert 1e-4 < np.abs(x - y).max() and np.all(np.abs(x - y) <= 0.01 * np.abs(x))


def test_relative_is_of_each_tensors_range(tmp_path):
    state = [gaussian(1000), 1000 * gaussian(1000)]
    bounded.save(state, tmp_path / "a", relative=1e-3, overrides={r"1": 1e-2})
    back = bounded.load(tmp_path / "a")
    for x, y, bound in zip(state, back, (1e-3, 1e-2), strict=True):
        span = float(x.double().max() - x.double().min())
        assert 0.5 * bound * span < error(x, y) <= bound * span


def test_an_override_that_is_found_nowhere_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match=r"overrides\['nrom'\].*max_error=0.*a, b.norm") as caught:
        state = {"a": gaussian(3), "b": {"norm": gaussian(3)}}
        bounded.save(state, tmp_path / "a", max_error=1e-4, overrides={r"nrom": 0})
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({}, ValueError, "a bound is missing"),
        ({"max_error": 1e-4, "relative": 1e-4}, ValueError, "the bound is.*allowed: one of"),
        ({"max_error": -1.0}, ValueError, "max_error is -1"),
        ({"max_error": math.nan}, ValueError, "max_error is nan"),
        ({"pointwise": 1.5}, ValueError, "pointwise is 1.5"),
        ({"max_error": "x"}, TypeError, "max_error is 'x'"),
        (
            {"max_error": 1, "overrides": {"a": -2}},
            ValueError,
            r"overrides\['a'\]: max_error is -2",
        ),
        ({"max_error": 1, "overrides": {"a": {"abs": 2}}}, ValueError, "'abs'.*allowed"),
        ({"max_error": 1, "overrides": {"a": {}}}, ValueError, r"overrides\['a'\] is {}"),
        ({"max_error": 1, "overrides": {"(": 0}}, ValueError, r"overrides\['\('\].*regular"),
        ({"max_error": 1, "overrides": {3: 0}}, TypeError, r"overrides\[3\].*regular"),
        ({"max_error": 1, "overrides": [("a", 0)]}, TypeError, "expected a dict"),
        (
            {"max_error": 1, "overrides": {"a": None}},
            TypeError,
            r"\['a'\] is None, allowed: a numb",
        ),
        (
            {"max_error": 1, "overrides": {"a": {"relative": None}}},
            ValueError,
            r"overrides\['a'\] is {'relative': None}, allowed: one of",
        ),
    ],
)
def test_bad_bounds_are_named(tmp_path, arguments, kind, words):
    with pytest.raises(kind, match=words):
        bounded.save({"a": gaussian(3)}, tmp_path / "a", **arguments)
    assert not list(tmp_path.iterdir())


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path):
    x = gaussian(20_000)
    state = {"embedding": x, "head": nn.Parameter(x), "copy": x.clone(), "empty": [x[:0], x[:0]]}
    bounded.save(state, tmp_path / "a", max_error=0)
    back = bounded.load(tmp_path / "a")
    assert back["embedding"] is back["head"] and back["copy"] is not back["head"]
    assert torch.equal(back["copy"], x) and back["empty"][0] is not back["empty"][1]
    alone = tmp_path / "alone"
    bounded.save(x, alone, max_error=0)
    assert (tmp_path / "a").stat().st_size < 2.2 * alone.stat().st_size


@pytest.mark.parametrize(
    ("overrides", "bound"),
    [({"head": 1e-3}, 1e-3), ({"head": 0}, 0), ({"embedding": {"relative": 1e-3}}, 0)],
    ids=["the smaller", "lossless", "of two kinds"],
)
def test_a_tied_tensor_is_within_the_bounds_of_all_its_names(tmp_path, overrides, bound):
    x = gaussian(500)
    bounded.save({"embedding": x, "head": x}, tmp_path / "a", max_error=0.1, overrides=overrides)
    back = bounded.load(tmp_path / "a")
    assert error(x, back["head"]) <= bound and back["embedding"] is back["head"]


def test_parts_are_loaded_by_name(tmp_path, monkeypatch):
    state = {"model": {"0.weight": gaussian(50), "n": torch.arange(4)}, "list": [1, (2, 3)]}
    state["optimizer"] = {"state": {0: {"step": torch.tensor(3.0)}, 1: {}}}
    bounded.save(state, tmp_path / "a", max_error=0)
    read = []
    whole = _index.File.read
    monkeypatch.setattr(_index.File, "read", lambda *a: read.append(a[1:]) or whole(*a))
    keys = ["model.0.weight", "list.1.1", "optimizer.state", "list"]
    parts = bounded.load(tmp_path / "a", keys=keys)
    assert list(parts) == keys and len(read) == 4  # header, index, two of three tensors
    assert same(parts["model.0.weight"], state["model"]["0.weight"])
    assert same([parts[key] for key in keys[1:]], [3, state["optimizer"]["state"], state["list"]])
    assert same(bounded.load(tmp_path / "a", keys="list"), {"list": state["list"]})
    assert bounded.load(tmp_path / "a", device="meta", keys=["model.n"])["model.n"].is_meta


def test_a_missing_key_names_those_that_are_there(tmp_path):
    bounded.save({"model": {"weight": gaussian(3)}, "step": 1}, tmp_path / "a", max_error=0)
    with pytest.raises(ValueError, match=r"/a has no key 'bias'; .* model, model.weight, step$"):
        bounded.load(tmp_path / "a", keys=["model", "bias"])
    bounded.save({"a.b": 1, "a": {"b": 2}}, tmp_path / "b", max_error=0)
    assert bounded.load(tmp_path / "b", keys=["a"]) == {"a": {"b": 2}}
    with pytest.raises(ValueError, match=r"/b has 2 values named 'a.b'"):
        bounded.load(tmp_path / "b", keys=["a.b"])


def test_every_name_leads_to_its_parts(tmp_path):
    """Names of nodes that are put together, as _tree.names does, and keys with dots in them."""
    keys = ["", "a", "b", "a.b", ".", "a.", ".a", 0, 1, "0", "..", "a..b"]

    def node(random: np.random.Generator, levels: int) -> Any:
        kind = random.random()
        if levels == 0 or kind < 0.2:
            return float(random.random())
        if kind < 0.4:
            return [node(random, levels - 1) for _ in range(random.integers(4))]
        chosen = random.permutation(len(keys))[: random.integers(5)]
        return {"dict": [[keys[i], node(random, levels - 1)] for i in chosen]}

    count = 0
    for seed in range(300):
        state = node(np.random.default_rng(seed), 4)
        every: dict[str, list[Any]] = {}
        for path, one in _tree._paths(state):
            every.setdefault(functools.reduce(join, path, ""), []).append(one)
        assert list(dict.fromkeys(_tree.names(state))) == list(every)
        finder = _tree.Finder(state)
        for name, nodes in every.items():
            assert sorted(map(id, finder.find(name))) == sorted(map(id, nodes)), (seed, name)
        assert all(
            finder.find(name) == [] for name in ("zz", "a.zz", "a.", "") if name not in every
        )
        count += len(every)
    assert count > 2000


def test_many_names_are_found_in_one_pass(tmp_path):
    """Not by a look at all names for each of them, which took a minute."""
    state = {"model": {f"layers.{i}.weight": i for i in range(5000)}}
    bounded.save(state, tmp_path / "a", max_error=0)
    before = time.process_time()
    found = bounded.load(tmp_path / "a", keys=[f"model.{name}" for name in state["model"]])
    assert list(found.values()) == list(range(5000))
    assert time.process_time() - before < 5


class Number(int):
    pass


LOOP: dict[str, Any] = {}


LOOP["self"] = {"again": LOOP}


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        ({"a": [1, {"b": object()}]}, TypeError, r"a\.1\.b is a builtins.object; allowed: tensors"),
        (nn.Linear(2, 2), TypeError, "the state dict is a torch.nn.modules.linear.Linear"),
        ({"a": Number(3)}, TypeError, "a is a .*Number"),
        ({"a": torch.Size([3])}, TypeError, "a is a torch.Size"),
        ({"a": collections.defaultdict(int)}, TypeError, "a is a collections.defaultdict"),
        ({"a": np.zeros(3)}, TypeError, "a is a numpy.ndarray"),
        ({"a": {torch.float32: 1}}, TypeError, r"a\.\(key\) is a torch.dtype.* allowed in keys"),
        ({"a": {(1, object()): 1}}, TypeError, r"a\.\(key\)\.1 is a builtins.object"),
        ({(torch.ones(3),): 1}, TypeError, r"^\(key\)\.0 is a torch.Tensor"),
        ({"a": {(1, (torch.ones(3),)): 1}}, TypeError, r"^a\.\(key\)\.1\.0 is a torch.Tensor"),
        ({"a": {(np.int64(1),): 1}}, TypeError, r"^a\.\(key\)\.0 is a numpy.int64"),
        ({"a": [10**4300]}, ValueError, r"^a\.0 is a whole number of more than 4300 digits"),
        ({"a": {-(10**4300): 1}}, ValueError, r"^a\.\(key\) is a whole number of more"),
        (LOOP, ValueError, "contains itself"),
        ({"a": torch.eye(3).to_sparse()}, ValueError, "^a: a sparse_coo tensor"),
        ({"a": [torch.zeros(3, device="meta")]}, ValueError, r"^a\.0: .* meta"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path, state, kind, words):
    with pytest.raises(kind, match=words):
        bounded.save(state, tmp_path / "a", max_error=0)
    assert not list(tmp_path.iterdir())


def test_an_error_while_a_tensor_is_compressed_has_its_name(tmp_path):
    wide = torch.tensor([-1.7e308, 1.7e308], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^model\.wide: relative is"):
        bounded.save({"model": {"wide": wide}}, tmp_path / "a", relative=2.0)
    assert not list(tmp_path.iterdir())


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    bounded.save({"a": 1}, tmp_path / "a", max_error=0)
    before = (tmp_path / "a").read_bytes()
    whole, calls = _files.payload_of, []

    def full(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(_files, "payload_of", full)
    with pytest.raises(KeyboardInterrupt):
        bounded.save([gaussian(500), gaussian(500, seed=1)], tmp_path / "a", max_error=0)
    assert (tmp_path / "a").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def _killed(rank, world_size, path):
    whole, calls = _files.payload_of, []

    def kill(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments)

    _files.payload_of = kill
    bounded.save([gaussian(10_000, seed=i) for i in range(4)], path, max_error=0)


def test_a_kill_leaves_the_old_file(tmp_path):
    bounded.save({"a": 1}, tmp_path / "a", max_error=0)
    (outcome,) = run_ranks(_killed, 1, tmp_path / "a", backend=None, check=False)
    assert outcome.exit_code == -signal.SIGKILL
    assert bounded.load(tmp_path / "a") == {"a": 1}
    left = [path.name for path in tmp_path.iterdir() if path.name != "a"]
    assert len(left) == 1 and left[0].startswith(".a.") and left[0].endswith(".part")
    bounded.save({"a": 2}, tmp_path / "a", max_error=0)
    assert bounded.load(tmp_path / "a") == {"a": 2}


def test_a_file_has_the_mode_of_its_predecessor_and_links_stay(tmp_path):
    (tmp_path / "link").symlink_to("a")
    mask = os.umask(0o027)
    try:
        bounded.save(1, tmp_path / "link", max_error=0)
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
        (tmp_path / "a").chmod(0o604)
        bounded.save(2, tmp_path / "link", max_error=0)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o604
    assert (tmp_path / "link").is_symlink() and bounded.load(tmp_path / "a") == 2


def test_errors_of_the_file_system_are_as_of_open(tmp_path):
    with pytest.raises(FileNotFoundError):
        bounded.save(1, tmp_path / "none" / "a", max_error=0)
    with pytest.raises(IsADirectoryError):
        bounded.save(1, tmp_path, max_error=0)
    with pytest.raises(FileNotFoundError):
        bounded.load(tmp_path / "a")


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file") as caught:
            bounded.save(1, path, max_error=0)
        assert caught.value.errno == errno.EINVAL and caught.value.filename == str(path)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


@pytest.mark.parametrize(
    "name", ["あ" * 85, "a" * 255, b"\xff\xe3" * 127], ids=["あ", "a", "bytes"]
)
def test_long_names_and_bytes(tmp_path, name):
    path = os.path.join(os.fsencode(tmp_path), os.fsencode(name))
    bounded.save({"a": 1}, path, max_error=0)
    assert bounded.load(path) == {"a": 1} and bounded.load(os.fsdecode(path)) == {"a": 1}
    assert os.listdir(os.fsencode(tmp_path)) == [os.fsencode(name)]
    with pytest.raises(ValueError, match=r"^/.*has no key 'b'; it has 1: a"):
        bounded.load(path, keys=["b"])


def test_lack_of_memory_is_no_damaged_file(tmp_path, monkeypatch):
    bounded.save({"a": gaussian(3)}, tmp_path / "a", max_error=0)
    whole, devices = _index.decompress, []

    def full(payload, **options):
        if options:
            devices.append(options["device"])
            raise RuntimeError("not enough memory")
        return whole(payload)  # the index

    monkeypatch.setattr(_index, "decompress", full)
    with pytest.raises(RuntimeError, match="^not enough memory$"):
        bounded.load(tmp_path / "a", device="meta")
    assert devices == [torch.device("meta")], "where it is to be decoded"
