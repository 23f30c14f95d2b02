"""bounded.broadcast on several ranks: equal bits within the bound, and errors on all ranks."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.bounded.helpers import error, gaussian
from tests.calls import failure
from tests.distributed import run_pooled, run_ranks
from torch_cgx import bounded
from torch_cgx.bounded import _broadcast
from torch_cgx.bounded._overlap import check_writable


def bits(tensors: Any) -> str:
    """A digest of all bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().resolve_conj().contiguous().reshape(-1)
        digest.update(plain.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Net(nn.Module):
    """Tied weights, a norm with buffers, a buffer that state_dict() leaves out, a view."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(100, 32)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embedding.weight
        self.turned = nn.Parameter(gaussian(40, 30, seed=seed).t())
        self.register_buffer("table", gaussian(50, seed=seed), persistent=False)
        self.norm.running_mean = gaussian(32, seed=seed)
        self.norm.num_batches_tracked.fill_(seed)


def _module(rank, world_size, src):
    model, sent = Net(rank), Net(src)
    pointers = [x.data_ptr() for x in model.parameters()]
    version = model.turned._version
    bounded.broadcast(model, src, max_error=1e-3, overrides={r"norm\.": 0})
    assert pointers == [x.data_ptr() for x in model.parameters()], "written in place"
    assert model.turned._version > version and model.turned.requires_grad
    assert model.norm.num_batches_tracked.item() == src
    own = [*model.named_parameters(), *model.named_buffers()]
    others = [*sent.parameters(), *sent.buffers()]
    errors = {name: error(x, y) for (name, x), y in zip(own, others, strict=True)}
    return bits(x for _, x in own), errors


@pytest.mark.parametrize("backend", ["gloo", "cgx", "cpu:gloo,cuda:cgx"])
@pytest.mark.parametrize("world_size, src", [(2, 0), (3, 1)])
def test_a_module_has_the_same_bits_on_all_ranks(backend, world_size, src):
    found = run_pooled(_module, world_size, src, backend=backend)
    assert len({digest for digest, _ in found}) == 1
    errors = found[0][1]
    assert errors["norm.running_mean"] == errors["norm.weight"] == 0
    for name in ("embedding.weight", "turned", "table"):
        assert 0 < errors[name] <= 1e-3, name


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64,
    torch.int8, torch.uint8, torch.bool, torch.float8_e5m2,
]  # fmt: skip


def _dtypes(rank, world_size):
    tensors = {str(dtype): (10 * gaussian(300, seed=rank)).to(dtype) for dtype in DTYPES}
    tensors["empty"] = torch.empty(0, 3)
    tensors["scalar"] = torch.tensor(float(rank))
    tensors["nested"] = [{"a": (gaussian(5, 7, seed=rank).t(), "text", 3)}]
    tensors["special"] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-42]) * (1 + rank)
    tensors["conjugate"] = torch.complex(gaussian(9, seed=rank), gaussian(9, seed=rank + 5)).conj()
    sent = gaussian(300) * 10
    bounded.broadcast(tensors, 0, pointwise=0.01)
    x, y = sent.double().numpy(), tensors["torch.float32"].double().numpy()
    assert np.all(np.abs(x - y) <= 0.01 * np.abs(x)) and np.any(x != y)
    assert torch.equal(tensors["torch.int64"], sent.to(torch.int64))
    assert torch.equal(tensors["torch.bool"], sent.to(torch.bool))
    eighth = tensors["torch.float8_e5m2"]
    assert torch.equal(eighth.view(torch.uint8), sent.to(eighth.dtype).view(torch.uint8))
    assert tensors["special"].isnan()[0] and tensors["special"].signbit()[2]
    assert tensors["nested"][0]["a"][1:] == ("text", 3)
    leaves = [x for x in tensors.values() if isinstance(x, torch.Tensor)]
    return bits([*leaves, tensors["nested"][0]["a"][0]])


def test_all_dtypes_and_nested_state_dicts():
    found = run_pooled(_dtypes, 2, backend="gloo")
    assert found[0] == found[1]


def _large(rank, world_size, chunk, message):
    _broadcast._SLICE, _broadcast._MESSAGE = chunk, message
    sizes = [5, 300_000, 1, 65_536, 200_000, 0, 70_001] + [100] * 50
    tensors = [gaussian(size, seed=k + 100 * rank) for k, size in enumerate(sizes)]
    sent = [gaussian(size, seed=k) for k, size in enumerate(sizes)]
    bounded.broadcast(tensors, relative=1e-3)
    for x, y in zip(sent, tensors, strict=True):
        span = float(x.double().max() - x.double().min()) if x.numel() else 0.0
        assert error(x, y) <= 1e-3 * span
    # The range is of the whole tensor, not of a chunk.
    span = float(sent[1].max() - sent[1].min())
    assert all(
        error(*pair) > 0.99e-3 * span
        for pair in zip(sent[1].split(65536), tensors[1].split(65536), strict=True)
    )
    return bits(tensors)


@pytest.mark.parametrize("message", [1, 1 << 16, 1 << 30])
def test_tensors_are_cut_into_chunks_and_packed_into_messages(message):
    found = run_ranks(_large, 3, 1 << 16, message, backend="gloo")
    assert len(set(found)) == 1


def _groups(rank, world_size):
    """Two groups at once; src is a rank of the default group."""
    even, odd = dist.new_group([0, 2], backend="gloo"), dist.new_group([1, 3], backend="cgx")
    group, src = (even, 2) if rank % 2 == 0 else (odd, 3)
    x = torch.full((100,), float(rank))
    bounded.broadcast(x, src, max_error=0, group=group)
    assert torch.all(x == src)
    with pytest.warns(UserWarning, match="not in the given group") as caught:
        bounded.broadcast(x, src, max_error=0, group=odd if rank % 2 == 0 else even)
    assert caught[0].filename == __file__
    message = failure(lambda: bounded.broadcast(x, 1 - rank % 2, max_error=0, group=group))
    assert "src is" in message and str([0, 2] if rank % 2 == 0 else [1, 3]) in message
    return True


def test_groups():
    assert run_pooled(_groups, 4, backend="gloo") == [True] * 4


# ---- tensors in the memory of others

M = gaussian(40, 30)
SHARED = {
    "flat": ({"w": M, "flat": M.view(-1)}, "w and flat share memory: broadcast one of them"),
    "slices": ({"a": M[:20], "b": M[19:]}, "a and b share memory"),
    "rows": ({"a": M[::2], "c": M[1::2], "b": M[3:9, 5]}, "[ac] and b share memory"),
    "bytes": ({"a": M[:5], "b": M.view(torch.int16)[4, 59:60]}, "a and b share memory"),
    "conjugate": (dict(zip("ab", [z := torch.complex(M, M), z.conj()], strict=True)), "a and b sh"),
    "part": (dict(zip("ab", [z, z.imag], strict=True)), "a and b share memory"),
    "expanded": ({"a": M, "e": torch.zeros(3, 1).expand(3, 4)}, "e: an expanded tensor cannot be"),
    "windows": ([M.view(-1).unfold(0, 5, 2)], "0: a tensor with overlapping values cannot be"),
}
APART = {
    "halves": [M[:20], M[20:]],
    "columns": [*M.t()],
    "rows": [M[1::2], M[::2].t()],
    "parts": [z.real, z.imag],
    "equal": {"a": M, "b": M, "c": torch.nn.Parameter(M)},
    "ones": [torch.zeros(1, 4).as_strided((1, 4), (0, 1)), torch.zeros(1).expand(0, 5)],
    "none": [M[:0], M],
}


@pytest.mark.parametrize("case", SHARED)
def test_tensors_that_share_memory_are_refused(case):
    target, words = SHARED[case]
    with pytest.raises(ValueError, match=words):
        check_writable(_broadcast._tensors_of(target).all)


@pytest.mark.parametrize("case", APART)
def test_tensors_that_do_not_share_memory_may_lie_anywhere(case):
    check_writable(_broadcast._tensors_of(APART[case]).all)


def _sharing(rank, world_size):
    x = gaussian(30, 30, seed=rank)
    before = bits([x])
    target = {"w": x, "flat": x.view(-1)}
    message = failure(lambda: bounded.broadcast(target, max_error=1e-2, overrides={"flat": 0}))
    assert bits([x]) == before
    return message


def test_a_view_of_a_tensor_is_refused_on_all_ranks():
    for message in run_pooled(_sharing, 2, backend="gloo"):
        assert message.startswith("ValueError: w and flat share memory"), message


def _decodes(rank, world_size):
    """What is lossless has its bits already: NaN's, too."""
    x = torch.tensor([0x7FC12345, 0x3F800000 + rank], dtype=torch.int32).view(torch.float32)
    with mock.patch.object(_broadcast, "decompress", wraps=bounded.decompress) as decompress:
        bounded.broadcast({"x": x, "same": torch.ones(9)}, max_error=0, overrides={"same": 0.1})
    return decompress.call_count, bits([x])


def test_the_source_decodes_only_what_was_rounded():
    (source, first), (other, second) = run_pooled(_decodes, 2, backend="gloo")
    assert (source, other) == (1, 2) and first == second


def _elsewhere(rank, world_size):
    tensors = {"a": gaussian(70_000, seed=rank), "n": torch.arange(3) + rank}
    with torch.device("meta"):
        bounded.broadcast(tensors, max_error=1e-3)
        message = failure(lambda: bounded.broadcast(tensors, max_error=[1, 2][rank]))
    assert error(tensors["a"], gaussian(70_000)) <= 1e-3
    return bits(tensors.values()), message


def test_under_another_default_device():
    (first, message), (second, _) = run_pooled(_elsewhere, 2, backend="gloo")
    assert first == second and "max_error=1; on rank 1" in message


def _alone(rank, world_size):
    x = gaussian(1000)
    bounded.broadcast(x, max_error=0.1)
    return error(x, gaussian(1000))


def test_one_rank_gets_the_rounded_values_too():
    assert 0 < run_pooled(_alone, 1, backend="gloo")[0] <= 0.1


# ---- ranks that disagree, or fail


def _disagree(rank, world_size):
    def call(targets, **options):
        """What one of two targets gets, with options for both ranks or one for each."""
        mine = {
            key: value[rank] if isinstance(value, list) else value
            for key, value in {"max_error": 1e-3, **options}.items()
        }
        before = targets[rank]
        digest = bits(before) if isinstance(before, list) else None
        message = failure(lambda: bounded.broadcast(targets[rank], **mine))
        assert digest is None or bits(before) == digest, "nothing has changed"
        return message

    x = gaussian(6, seed=rank)
    same = [[x], [x]]
    messages = {
        "shape": call([[x], [gaussian(2, 3)]]),
        "dtype": call([[x], [x.double()]]),
        "fewer": call([[x], []]),
        "names": call([{"a": x}, {"b": x}]),
        "tied": call([[x, x], [x, x.clone()]]),
        "bound": call(same, max_error=[1e-3, 1e-4]),
        "kind": call(same, max_error=[1e-3, None], relative=[None, 1e-3]),
        "override": call(same, overrides=[{"0": 0}, {}]),
        "src": call(same, src=[0, 1]),
        "missing": call(same, max_error=[None, 1e-3]),
        "module": call([3, nn.Linear(2, 2)]),
        "sparse": call([{"w": torch.eye(3)}, {"w": torch.eye(3).to_sparse()}]),
        "source": call(same, src="0"),
        "flag": call(same, src=True),
        "close": call(same, max_error=[1e-2, 1e-2 * (1 - 1e-8)]),
        "close override": call(same, max_error=1, overrides=[{"0": 0.1}, {"0": 0.1 + 1e-9}]),
        "none": call(same, overrides={"0": None}),
        "expanded": call([[x, torch.zeros(1).expand(6)]] * 2),
    }
    bounded.broadcast(x, np.int64(0), max_error=0)  # the group is as usable as before
    assert torch.equal(x, gaussian(6))
    return messages


def test_ranks_that_disagree_all_raise_an_error_that_names_it():
    both = run_pooled(_disagree, 2)
    for rank, messages in enumerate(both):
        for name, words in {
            "shape": ["on rank 0 0 is float32 [6]", "on rank 1 0 is float32 [2, 3]"],
            "dtype": ["float32", "float64"],
            "fewer": ["rank 0 has 1 tensors, rank 1 has 0", "only on rank 0 0 is float32"],
            "bound": ["max_error=0.001", "max_error=0.0001"],
            "kind": ["max_error=0.001", "relative=0.001"],
            "override": ["max_error=0;", "max_error=0.001"],
            "close": ["max_error=0.01;", "max_error=0.00999999989"],
            "close override": ["max_error=0.1;", "max_error=0.100000001"],
            "src": ["rank 0 src is 0", "rank 1 src is 1"],
            "tied": ["0 = 1 is float32", "on rank 1 0 is"],
            "names": ["rank 0 a is", "rank 1 b is"],
        }.items():
            assert messages[name].startswith("ValueError: bounded.broadcast: arguments differ"), (
                name
            )
            for word in words:
                assert word in messages[name], (name, messages[name])
        # The rank that fails raises its own error, the other one says which rank failed.
        for name, failing, words in (
            ("missing", 0, "a bound is missing"),
            ("module", 0, "TypeError: the target is a int"),
            ("sparse", 1, "w: a sparse_coo tensor"),
        ):
            text = messages[name]
            assert words in text, (name, text)
            other = f"ValueError: bounded.broadcast failed on rank {failing}: "
            assert text.startswith(other) == (rank != failing), (name, text)
        assert messages["source"].startswith("TypeError: src is '0'")
        assert messages["flag"].startswith("TypeError: src is True, expected a rank")
        assert messages["none"].startswith("TypeError: overrides['0'] is None, allowed: a number")
        assert messages["expanded"].startswith(
            "ValueError: 1: an expanded tensor cannot be written"
        )


def _full(*arguments, **options):
    raise RuntimeError("no memory for it")


def _failing(rank, world_size):
    """The second of three tensors cannot be compressed; the third rank's cannot be written."""
    wide = torch.tensor([-1.7e308, 1.7e308], dtype=torch.float64)
    tensors = [gaussian(100_000, seed=rank), wide, gaussian(100)]
    start = time.monotonic()
    first = failure(lambda: bounded.broadcast(tensors, 1, relative=2.0))
    targets = [torch.full((100,), float(rank)), torch.zeros(100)]
    with mock.patch.object(_broadcast, "decompress", _full if rank == 2 else bounded.decompress):
        second = failure(lambda: bounded.broadcast(targets, 1, max_error=0))
    seconds = time.monotonic() - start
    bounded.broadcast(targets, 1, max_error=0)
    assert torch.all(targets[0] == 1)
    return first, second, seconds


@pytest.mark.parametrize("backend", ["gloo", "cgx"])
def test_an_error_of_one_rank_reaches_all(backend):
    for rank, (first, second, seconds) in enumerate(run_pooled(_failing, 3, backend=backend)):
        assert "1: relative is 2 of a range that float64" in first, first
        assert first.startswith("ValueError" if rank == 1 else "RuntimeError: bounded.b"), first
        assert "no memory for it" in second, second
        assert ("failed on rank 2: RuntimeError" in second) == (rank != 2), second
        assert seconds < 20


def _without_room(rank, world_size, header):
    """A rank that cannot take a message leaves the group: it raises at once."""
    empty = torch.empty
    if rank == 1 and header is None:
        torch.empty = lambda size, **options: (_full if size else empty)(size, **options)
    if rank == 0 and header is not None:
        _broadcast._send = lambda channel, tensors: channel.post(torch.tensor(header)).wait()
    return failure(lambda: bounded.broadcast(gaussian(1000), max_error=1e-4))


@pytest.mark.parametrize(
    ("header", "words"),
    [(None, "no memory for it"), ([1, 1 << 40], "a message of 1 payloads and 1099511627776 bytes")],
)
def test_a_message_that_cannot_be_received_ends_the_call(header, words):
    first, second = run_ranks(_without_room, 2, header, backend="gloo", check=False)
    assert second.value is not None and second.value.startswith("RuntimeError: "), second.report()
    assert words in second.value, second.value
    assert first.value is not None and "RuntimeError" in first.value, first.report()


def _dying(rank, world_size):
    x = gaussian(1_000_000)
    if rank == 1:
        _broadcast.decompress = lambda *arguments: os._exit(7)
        bounded.broadcast(x, max_error=1e-4)
    return failure(lambda: bounded.broadcast(x, max_error=1e-4))


def test_a_rank_that_dies_is_an_error_of_the_backend():
    first, second = run_ranks(_dying, 2, backend="gloo", check=False)
    assert second.exit_code == 7
    assert first.value is not None and "RuntimeError" in first.value, first.report()


def test_without_a_group_the_error_says_what_to_call():
    with pytest.raises(ValueError, match="init_process_group"):
        bounded.broadcast(torch.zeros(3), max_error=0)


def _warns(rank, world_size):
    with pytest.warns(UserWarning, match=r"overrides\['nrom'\]") as caught:
        bounded.broadcast({"norm": torch.zeros(3)}, max_error=1e-4, overrides={"nrom": 0})
    return caught[0].filename == __file__


def test_an_override_that_is_found_nowhere_is_a_warning():
    assert run_pooled(_warns, 2, backend="gloo") == [True, True]
