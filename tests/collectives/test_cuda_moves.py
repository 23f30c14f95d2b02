"""Compressed moves and messages of CUDA tensors, on the fake device: the bits of the CPU's."""

from __future__ import annotations

import pytest
import torch

import torch_cgx
from tests.collectives.pieces import DTYPES, decoded, exchanged, rows_of, values
from tests.device import fake_cuda
from torch_cgx import codecs, nn

pytestmark = fake_cuda.needed

CODEC = codecs.MaxMin(bits=4, bucket_size=64)


def _moves(rank, size):
    for number, dtype in enumerate(DTYPES):
        for n in (1, 65, 400):
            x = values(rank, n, dtype=dtype).to("cuda")
            root = number % size
            torch_cgx.broadcast(x, root, config=CODEC)
            wanted = decoded(CODEC, values(root, n, dtype=dtype))
            assert torch.equal(x.cpu(), wanted), (dtype, n)
        rows = rows_of(size, True)
        inputs = [values(r, sum(rows[r]), 70, dtype=dtype) for r in range(size)]
        outs = [rows[r][rank] for r in range(size)]
        output = torch.empty(sum(outs), 70, dtype=dtype, device="cuda")
        torch_cgx.all_to_all_single(output, inputs[rank].to("cuda"), outs, rows[rank], config=CODEC)
        assert torch.equal(output.cpu(), exchanged(CODEC, inputs, rows, rank))
        got = torch.empty(300, dtype=dtype, device="cuda")
        work = torch_cgx.irecv(got, (rank - 1) % size, config=CODEC)
        torch_cgx.isend(
            values(rank, 300, dtype=dtype).to("cuda"), (rank + 1) % size, config=CODEC
        ).wait()
        work.wait()
        sent = values((rank - 1) % size, 300, dtype=dtype)
        assert torch.equal(got.cpu(), decoded(CODEC, sent))
    y = nn.all_to_all_single(values(rank, 2 * size, 64).to("cuda"), forward=CODEC)
    inputs = [values(r, 2 * size, 64) for r in range(size)]
    assert torch.equal(y.cpu(), exchanged(CODEC, inputs, rows_of(size, False), rank))


@pytest.mark.parametrize("size", [2, 3])
def test_moves_on_the_engine(size):
    fake_cuda.run(_moves, size)


def test_groups_on_two_levels_carry_messages():
    """Of hosts with several ranks the engine does not move CUDA tensors."""
    fake_cuda.run(_moves, 3, env=[{"CGX_HOST_ID": host} for host in "aab"])


def _feedback(rank, size):
    owed, sent, got = torch.zeros(200, device="cuda"), torch.zeros(200), torch.zeros(200)
    for step in range(3):
        x = values(step, 200)
        sent += x
        x = x.to("cuda")
        torch_cgx.broadcast(x, 0, config=CODEC, residual=owed)
        got += x.cpu()
    if rank == 0:
        assert (sent - got - owed.cpu()).abs().max() < 1e-5
        assert owed.cpu().abs().max() > 0


def test_what_was_sent_arrives_or_is_owed():
    fake_cuda.run(_feedback, 2)
