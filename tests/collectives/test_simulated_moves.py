"""Simulated broadcasts, all-to-alls and messages give the bits of real ranks."""

from __future__ import annotations

import pytest
import torch

import torch_cgx
from tests.collectives.pieces import rows_of, values
from tests.distributed import run_pooled

CONFIG = {"bits": 4, "bucket_size": 64}
RANDOM = {**CONFIG, "rounding": "stochastic", "seed": 5}


def _moves(rank, size, config):
    x = values(rank, 300)
    owed = torch.full((300,), 0.5)
    torch_cgx.broadcast(x, 1, config=config, residual=owed)
    rows = rows_of(size, True)
    outs = [rows[r][rank] for r in range(size)]
    output = torch.empty(sum(outs), 50)
    torch_cgx.all_to_all_single(
        output, values(rank, sum(rows[rank]), 50), outs, rows[rank], config=config
    )
    return x, owed, output


@pytest.mark.parametrize("config", [CONFIG, None, {"bits": 16}, RANDOM])
def test_simulations_have_the_bits_of_real_ranks(config):
    size = 3
    found = run_pooled(_moves, size, config)
    owed = torch.full((300,), 0.5)
    source = values(1, 300)
    one = torch_cgx.simulate_broadcast(source, size, config, src=1, residual=owed)
    assert torch.equal(source, values(1, 300)), "the input is not touched"
    assert torch.equal(owed, found[1][1])
    rows = rows_of(size, True)
    inputs = [values(r, sum(rows[r]), 50) for r in range(size)]
    two = torch_cgx.simulate_all_to_all(inputs, config, rows, sequence=1)
    for rank, (x, _, output) in enumerate(found):
        assert torch.equal(one.outputs[rank], x)
        assert torch.equal(two.outputs[rank], output)
    if config == CONFIG:
        assert one.payload_bytes == [0, 300 // 2 + 8 * 5, 0]
        assert 0 < two.error["relative_l2"] < 0.2
        exact = torch.cat([values(r, sum(rows[r]), 50).split(rows[r])[0] for r in range(size)])
        assert (two.outputs[0] - exact).abs().max() <= two.error["max_abs"]
    if config is None:
        assert two.error == {"max_abs": 0.0, "relative_l2": 0.0}
        assert two.payload_bytes == [0] * size


def test_sizes_and_errors():
    x = values(0, 100)
    sent = torch_cgx.simulate_send(x, CONFIG)
    assert sent.payload_bytes == [50 + 16] and sent.outputs[0].shape == x.shape
    difference = sent.outputs[0].double() - x.double()
    assert sent.error["max_abs"] == pytest.approx(difference.abs().max().item())
    assert sent.error["relative_l2"] == pytest.approx(
        (difference.norm() / x.double().norm()).item()
    )
    empty = torch_cgx.simulate_all_to_all([torch.zeros(0, 3)] * 2, CONFIG)
    assert empty.error["max_abs"] == 0 and empty.outputs[1].shape == (0, 3)
    alone = torch_cgx.simulate_all_to_all([x], {"bits": 1})
    assert torch.equal(alone.outputs[0], x)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: torch_cgx.simulate_send([1.0], CONFIG), TypeError, "list"),
        (lambda: torch_cgx.simulate_send(torch.zeros(3).double(), CONFIG), TypeError, "float64"),
        (lambda: torch_cgx.simulate_send(torch.zeros(3), {"bit": 1}), ValueError, "'bit'"),
        (lambda: torch_cgx.simulate_send(torch.zeros(3), step=-1), ValueError, "step=-1"),
        (
            lambda: torch_cgx.simulate_send(torch.zeros(3), {"bits": 1}, residual=torch.zeros(3)),
            ValueError,
            "1",
        ),
        (lambda: torch_cgx.simulate_broadcast(torch.zeros(3), 0), ValueError, "ranks=0"),
        (lambda: torch_cgx.simulate_broadcast(torch.zeros(3), 2, src=2), ValueError, "src=2"),
        (lambda: torch_cgx.simulate_all_to_all([]), ValueError, "empty"),
        (lambda: torch_cgx.simulate_all_to_all([torch.zeros(3)] * 2), ValueError, "3 rows"),
        (
            lambda: torch_cgx.simulate_all_to_all([torch.zeros(2), torch.zeros(2, 3)]),
            ValueError,
            "rows of one shape",
        ),
        (
            lambda: torch_cgx.simulate_all_to_all([torch.zeros(2)] * 2, None, [[1, 1], [1, 2]]),
            ValueError,
            r"\[1\]=\[1, 2\]",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def _steps(rank, size):
    torch_cgx.broadcast(torch.ones(100), config=RANDOM)  # another number of the call
    x = values(0, 300)
    torch_cgx.broadcast(x, config=RANDOM, step=7)
    y = torch.empty(2 * size, 64)
    torch_cgx.all_to_all_single(y, values(rank, 2 * size, 64), config=RANDOM, step=8)
    return x, y


def test_a_step_keys_the_random_numbers():
    size = 2
    found = run_pooled(_steps, size)
    one = torch_cgx.simulate_broadcast(values(0, 300), size, RANDOM, step=7)
    inputs = [values(r, 2 * size, 64) for r in range(size)]
    two = torch_cgx.simulate_all_to_all(inputs, RANDOM, step=8)
    for rank, (x, y) in enumerate(found):
        assert torch.equal(x, one.outputs[rank]) and torch.equal(y, two.outputs[rank])
