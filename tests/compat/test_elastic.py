"""torchrun --max-restarts: a rank comes to an end, the second attempt finishes the work, and the
result is that of an undisturbed run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from tests import warm
from tests.comm.ranks import shared_blocks, stays_empty
from tests.compat import elastic
from tests.compat.compare import check_equal, over
from tests.compat.training import Net, train
from tests.distributed import ROOT
from tests.ports import free_port

_LIMIT = 150.0


def _agent(folder, how, *options, started=False):
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **warm.NESTED}
    python = [sys.executable] if started else warm.python()
    command = [*python, "-m", "torch.distributed.run", "--max-restarts=1", *options]
    log = (folder / f"agent{len(list(folder.iterdir()))}.log").open("wb")
    with log:
        return subprocess.Popen(
            [*command, "-m", "tests.compat.elastic", str(folder), how],
            env=settings,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _finish(agents, folder):
    """Waits for all agents; the error has their output."""
    try:
        codes = [agent.wait(timeout=_LIMIT) for agent in agents]
    except subprocess.TimeoutExpired:
        codes = None
    finally:
        for agent in agents:
            agent.terminate()  # so that it ends its ranks
        for agent in agents:
            agent.wait(timeout=60)
    logs = "\n".join(path.read_text() for path in sorted(folder.glob("agent*.log")))
    assert codes == [0] * len(agents), f"{codes}\n{logs[-8000:]}"
    return [json.loads((folder / f"done{rank}.json").read_text()) for rank in range(2)]


def _undisturbed(rank, world_size):
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, rank, elastic.STEPS, optimizer)
    return dict(model.module.state_dict())


def _check_end(folder):
    expected = over("gloo", _undisturbed, 2)[0].value
    check_equal(dict(torch.load(folder / "end.pt")), expected, True)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "kill"])
def test_the_second_attempt_finishes(how, tmp_path):
    before = shared_blocks()
    agent = _agent(tmp_path, how, "--standalone", "--nproc-per-node=2", started=how == "exit")
    done = _finish([agent], tmp_path)
    assert done == [{"attempt": 1, "start": 3, "world_size": 2}] * 2
    assert stays_empty(before)
    _check_end(tmp_path)
    # The survivor may be stopped by the agent before it notices; what it says must name the peer.
    if (error := tmp_path / "error0.txt").exists():
        assert "rank 1" in error.read_text()


@pytest.mark.slow
def test_two_agents_meet_again_through_the_c10d_rendezvous(tmp_path):
    """As on two hosts: the death of a rank of one agent restarts the ranks of both."""
    options = [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        "--rdzv-id=cgx",
        "--local-addr=127.0.0.1",
    ]
    agents = [_agent(tmp_path, "kill", *options) for _ in range(2)]
    done = _finish(agents, tmp_path)
    assert [line["start"] for line in done] == [3, 3]
    assert [line["world_size"] for line in done] == [2, 2]
    _check_end(tmp_path)
