"""torch_cgx.send, recv, isend and irecv over real ranks, and the messages themselves."""

from __future__ import annotations

import zlib

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.calls import failure
from tests.collectives.pieces import CODECS, DTYPES, SIZES, decoded, values
from tests.distributed import run_pooled
from tests.docs.documents import ROOT, marked, table
from torch_cgx._message import HEADER, Message


def _messages(rank, size):
    for number, n in enumerate(SIZES):
        for codec in CODECS:
            dtype = DTYPES[number % len(DTYPES)]
            x, wanted = values(number, n, dtype=dtype), None
            wanted = decoded(codec, x)
            if rank == 0:
                torch_cgx.send(x, 1, tag=number, config=codec)
                assert torch.equal(x, values(number, n, dtype=dtype)), "the tensor is not changed"
                continue
            got = torch.full_like(x, 7)
            source = torch_cgx.recv(got, 0 if number % 2 else None, tag=number, config=codec)
            assert source == 0
            if codec._text.startswith("rotated"):
                assert n == 0 or (got - wanted).norm() <= 2 * wanted.norm() + 1
            else:
                assert torch.equal(got, wanted), (n, codec, dtype)
    exact = values(3, 10).double() if rank == 0 else torch.zeros(10).double()
    if rank == 0:
        torch_cgx.send(exact, group_dst=1)
    else:
        assert torch_cgx.recv(exact) == 0 and torch.equal(exact, values(3, 10).double())


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_message_is_the_codecs_payload(hosts):
    run_pooled(_messages, 2, env=[{"CGX_HOST_ID": host} for host in hosts])


def _async(rank, size):
    """Works complete in any order; a ring of all ranks."""
    codec = CODECS[0]
    to, source = (rank + 1) % size, (rank - 1) % size
    sent = [values(100 * rank + tag, 500) for tag in range(4)]
    got = [torch.zeros(500) for _ in range(4)]
    receives = [
        torch_cgx.irecv(got[tag], source if tag % 2 else None, tag=tag, config=codec)
        for tag in range(4)
    ]
    works = [torch_cgx.isend(x, to, tag=tag, config=codec) for tag, x in enumerate(sent)]
    for x in sent:
        x.zero_()  # encoded already
    for tag in (2, 0, 3, 1):
        receives[tag].wait()
        receives[tag].wait()
        assert receives[tag].is_completed() and receives[tag]._source_rank() == source
        assert torch.equal(got[tag], decoded(codec, values(100 * source + tag, 500)))
    for work in works:
        work.wait()


@pytest.mark.parametrize("size", [2, 3])
def test_works_decode_when_they_are_waited_for(size):
    run_pooled(_async, size)


def _feedback(rank, size, dtype, residual_dtype):
    config = {"bits": 2, "bucket_size": 64}
    owed = torch.zeros(300, dtype=residual_dtype)
    sent, got = torch.zeros(300), torch.zeros(300)
    for step in range(4):
        x = values(step, 300, dtype=dtype)
        sent += x
        config = config if step < 3 else None
        if rank == 0:
            torch_cgx.send(x, 1, config=config, residual=owed)
        else:
            torch_cgx.recv(x, 0, config=config)
            got += x
    return sent, got, owed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("residual_dtype", [torch.float32, torch.bfloat16])
def test_what_was_sent_arrives_or_is_owed(dtype, residual_dtype):
    (sent, _, owed), (_, got, _) = run_pooled(_feedback, 2, dtype, residual_dtype)
    bound = 1e-5 if residual_dtype == torch.float32 else 0.1
    assert (sent - got - owed).abs().max() < bound
    assert dtype == torch.bfloat16 or owed.abs().max() == 0, "the last message was exact, and paid"


def _not_finite(rank, size):
    owed = torch.full((128,), 0.25)
    x = values(0, 128)
    x[100] = torch.nan
    if rank == 0:
        torch_cgx.send(x, 1, config={"bits": 4, "bucket_size": 64}, residual=owed)
    else:
        torch_cgx.recv(x, 0, config={"bits": 4, "bucket_size": 64})
    return x, owed


def test_a_nan_stays_in_its_bucket_and_out_of_the_residual():
    (_, owed), (got, _) = run_pooled(_not_finite, 2)
    assert got[:64].isfinite().all() and got[64:].isnan().all()
    assert owed.isfinite().all() and torch.all(owed[64:] == 0.25)


def _resumed(rank, size):
    config = {"bits": 2, "bucket_size": 64, "rounding": "stochastic"}
    found = []
    for step in (3, 3, 4, 3, 3, 4):
        x = values(0, 300)
        if rank == 0:
            torch_cgx.send(x, 1, config=config, step=step)
        else:
            torch_cgx.recv(x, 0, config=config)
        found.append(x)
    for _ in range(2):  # without a step: by the number of the message
        x = values(0, 300)
        if rank == 0:
            torch_cgx.send(x, 1, config=config)
        else:
            torch_cgx.recv(x, 0, config=config)
        found.append(x)
    return found


def test_a_step_repeats_the_random_numbers_and_a_simulation_has_them():
    _, found = run_pooled(_resumed, 2)
    first, again = found[:3], found[3:6]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])
    config = {"bits": 2, "bucket_size": 64, "rounding": "stochastic"}
    x = values(0, 300)
    assert torch.equal(torch_cgx.simulate_send(x, config, step=3).outputs[0], first[0])
    for sequence, got in ((6, found[6]), (7, found[7])):
        assert torch.equal(torch_cgx.simulate_send(x, config, sequence=sequence).outputs[0], got)


def _mismatched(rank, size):
    """Messages of equal length in bytes that hold something else."""
    x = values(0, 256)
    cases = {
        "codec": ({"bits": 4, "rounding": "stochastic"}, {"bits": 4}, x, x),
        "dtype": ({"bits": 4}, {"bits": 4}, x.half(), x),
        "number": ({"bits": 4, "bucket_size": 256}, {"bits": 4, "bucket_size": 256}, x[:255], x),
    }
    found = {}
    for name, (mine, its, sent, got) in cases.items():
        if rank == 0:
            found[name] = failure(lambda s=sent, c=mine: torch_cgx.send(s, 1, config=c))
        else:
            got = torch.full_like(got, 5)
            found[name] = failure(lambda g=got, c=its: torch_cgx.recv(g, 0, config=c))
            assert torch.all(got == 5), "nothing is written"
    if rank == 0:
        dist.send(torch.zeros(HEADER + 8 + 128, dtype=torch.uint8), 1)
    else:
        found["bytes"] = failure(lambda: torch_cgx.recv(torch.ones(256), 0, config={"bits": 4}))
    dist.all_reduce(torch.ones(1))  # the group is as usable as before
    return found


def test_a_header_that_does_not_agree_names_both_sides():
    sent, found = run_pooled(_mismatched, 2)
    assert set(sent.values()) == {"returned None"}
    for name, words in {
        "codec": ("rank 0 sent 256 float32 values by maxmin", "stochastic", "rank 1 receives 256"),
        "dtype": ("rank 0 sent 256 float16", "rank 1 receives 256 float32"),
        "number": ("rank 0 sent 255 float32", "rank 1 receives 256 float32"),
        "bytes": ("rank 0 sent 328 bytes without a header", "rank 1 receives 256 float32"),
    }.items():
        assert found[name].startswith("MismatchError"), found[name]
        for word in words:
            assert word in found[name], (name, found[name])


def _other_lengths(rank, size, first, second):
    group = dist.new_group(backend="cgx")
    x = values(0, 256)
    if rank == 0:
        return failure(lambda: torch_cgx.send(x, 1, group, config=first))
    return failure(lambda: torch_cgx.recv(x, 0, group, config=second))


@pytest.mark.parametrize("first, second", [({"bits": 4}, {"bits": 8}), ({"bits": 4}, None),
                                           (None, {"bits": 4})])  # fmt: skip
def test_another_length_is_an_error(first, second):
    """Of the receiver; of the sender too, if it waits still."""
    for rank, found in enumerate(run_pooled(_other_lengths, 2, first, second)):
        if rank == 0 and found == "returned None":
            continue
        assert found.startswith("MismatchError"), found
        assert "rank 0 sends" in found and "rank 1 receives" in found, found
        if (config := (first, second)[rank]) is not None:
            assert f"256 float32 values by maxmin bits={config['bits']}" in found, found


def _refused(rank, size):
    x, four = values(rank, 8), {"bits": 4}
    only = dist.new_group([0], backend="cgx")
    gloo = dist.new_group(backend="gloo")
    calls = {
        "type": lambda: torch_cgx.send([1.0], 1 - rank, config=four),
        "dtype": lambda: torch_cgx.send(x.double(), 1 - rank, config=four),
        "recv dtype": lambda: torch_cgx.recv(x.int(), 1 - rank, config=four),
        "strides": lambda: torch_cgx.irecv(x.view(2, 4).t(), 1 - rank, config=four),
        "self": lambda: torch_cgx.send(x, rank, config=four),
        "nobody": lambda: torch_cgx.send(x, config=four),
        "both": lambda: torch_cgx.send(x, 1 - rank, group_dst=1 - rank, config=four),
        "rank": lambda: torch_cgx.send(x, group_dst=2, config=four),
        "rank type": lambda: torch_cgx.send(x, 1.5, config=four),
        "key": lambda: torch_cgx.isend(x, 1 - rank, config={"bit": 4}),
        "gloo": lambda: torch_cgx.isend(x, 1 - rank, gloo, config=four),
        "residual": lambda: torch_cgx.isend(x, 1 - rank, config=four, residual=torch.zeros(9)),
        "half": lambda: torch_cgx.isend(x, 1 - rank, config=four, residual=torch.zeros(8).half()),
        "one bit": lambda: torch_cgx.isend(x, 1 - rank, config={"bits": 1}, residual=0 * x),
        "step": lambda: torch_cgx.isend(x, 1 - rank, config=four, step=1.0),
        "gradient": lambda: torch_cgx.irecv(
            torch.ones(8, requires_grad=True), 1 - rank, config=four
        ),
    }
    found = {name: failure(call) for name, call in calls.items()}
    if rank == 1:
        with pytest.warns(UserWarning, match="not in the given group"):
            assert torch_cgx.send(x, 0, only, config=four) is None
        with pytest.warns(UserWarning, match="not in the given group"):
            assert torch_cgx.recv(x, 0, only, config=four) == -1
    return found


def test_bad_arguments_are_named():
    for found in run_pooled(_refused, 2):
        for name, words in {
            "type": ("TypeError", "list"),
            "dtype": ("ValueError", "float64", "float32"),
            "recv dtype": ("ValueError", "int32", "float32"),
            "strides": ("ValueError", "not contiguous"),
            "self": ("ValueError", "this rank"),
            "nobody": ("ValueError", "dst=None", "allowed"),
            "both": ("ValueError", "allowed: one of them"),
            "rank": ("ValueError", "group_dst=2", "0 to 1"),
            "rank type": ("TypeError", "dst=1.5"),
            "key": ("ValueError", "'bit'"),
            "gloo": ("ValueError", "'gloo'"),
            "residual": ("ValueError", "[9]", "[8]"),
            "half": ("TypeError", "float16", "bfloat16"),
            "one bit": ("ValueError", "1"),
            "step": ("TypeError", "step=1.0"),
            "gradient": ("ValueError", "gradient"),
        }.items():
            for word in words:
                assert word in found[name], (name, found[name])


def _checked(rank, size):
    """With the option checksum an altered byte is an error; here one that travelled as bytes."""
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(checksum=True))
    x = values(0, 256)
    if rank == 0:
        torch_cgx.send(x, 1, group, config={"bits": 4})
        box = torch.zeros(HEADER + 8 + 128, dtype=torch.uint8)
        dist.recv(box, 1, group)
        box[-1] ^= 1
        dist.send(box, 1, group)
        return ""
    torch_cgx.recv(x, 0, group, config={"bits": 4})
    whole = Message(torch_cgx.codecs.MaxMin(bits=4)._engine, 256, torch.float32, True)
    dist.send(whole.pack(values(0, 256), (0, 0, 0)), 0, group)
    return failure(lambda: torch_cgx.recv(x, 0, group, config={"bits": 4}))


def test_a_checksum_finds_an_altered_message():
    assert "MismatchError" in (found := run_pooled(_checked, 2)[1]) and "altered" in found


def test_the_header_has_room_for_every_codec():
    codec = torch_cgx.codecs.Float(
        exponent=5, mantissa=2, random_bits=8, rounding="stochastic", subnormals=False,
        overflow="saturate", variant="p3109", seed=2**63 - 1,
    )  # fmt: skip
    message = Message(codec._engine, 10, torch.float32)
    packed = message.pack(x := torch.ones(10), (0, 0, 0))
    assert codec._text.encode() in packed[:HEADER].numpy().tobytes()
    message.unpack(packed, got := torch.zeros(10), (0, 1))
    assert torch.equal(got, x)


def test_the_header_is_as_documented():
    text = (ROOT / "docs" / "wire_format.md").read_text()
    places = [(int(row["offset"]), int(row["bytes"])) for row in table(marked(text, "message"))]
    ends = [at + length for at, length in places]
    assert [at for at, _ in places] == [0, *ends[:-1]] and ends[-1] == HEADER
    codec = CODECS[0]
    message = Message(codec._engine, 70, torch.bfloat16, True)
    packed = message.pack(values(0, 70, dtype=torch.bfloat16), (0, 0, 0)).numpy().tobytes()
    fields = [packed[at : at + length] for at, length in places]
    crc = zlib.crc32(packed[HEADER:]).to_bytes(4, "little")
    assert fields[:7] == [b"cgxm", b"\1", b"\2", b"\1", b"\0", (70).to_bytes(8, "little"), crc]
    assert fields[7].rstrip(b"\0") == codec._text.encode()
    assert packed[HEADER:] == codec.encode(values(0, 70, dtype=torch.bfloat16)).numpy().tobytes()
