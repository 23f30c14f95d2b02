"""Tensors of the fake device over MPI, in jobs under the mpirun of Open MPI and of MPICH."""

from __future__ import annotations

import json

import pytest

from tests.device import fake_cuda
from tests.packaging.test_launch_jobs import KINDS, mpirun

pytestmark = fake_cuda.needed

_REDUCE = """
from tests.device import fake_cuda
fake_cuda.load()  # before torch is imported
import json, sys
import torch, torch_cgx, torch.distributed as dist
from torch_cgx import launch

hosts, folder = json.loads(sys.argv[1]), sys.argv[2]
rank = launch.setup().rank
options = torch_cgx.Options(host_id=f"host {hosts[rank]}")
dist.init_process_group("cgx", pg_options=options)
same = []
ranks = range(len(hosts))
for n in (1, 100, 511, 513, 5000, 70_001):
    for config in ({"bits": 4, "bucket_size": 64}, {"bits": 32}):
        inputs = [torch.sin(torch.arange(float(n)) * (r + 0.3)) * (r + 1) for r in ranks]
        tensor = inputs[rank].to("cuda")
        torch_cgx.all_reduce(tensor, config=config)
        wanted = torch_cgx.simulate(inputs, config, hosts=hosts)
        same.append(torch.equal(tensor.cpu(), wanted.result))
total = torch.full((10,), 2, device="cuda", dtype=torch.int64)
dist.all_reduce(total)  # goes to Gloo
communicator = torch_cgx.stats().cuda_communicator
said = {"same": same, "total": total.tolist(), "communicator": communicator}
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(said, file)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("hosts", "inner", "communicators"),
    [
        ([0, 0, 0], "MPI", ["mpi(pinned)"] * 3),
        ([0, 1], "SHM", ["mpi(pinned)"] * 2),
        ([0, 0, 1], "SHM", ["cuda-ipc+mpi(pinned)", "cuda-ipc", "mpi(pinned)"]),
    ],
    ids=["one-host", "two-hosts", "two-levels"],
)
def test_tensors_of_a_gpu_over_mpi(kind, hosts, inner, communicators, tmp_path):
    script = tmp_path / "reduce.py"
    script.write_text(_REDUCE)
    env = fake_cuda.environment(
        CGX_INNER_COMMUNICATOR_TYPE=inner,
        CGX_CROSS_COMMUNICATOR_TYPE="MPI",
        CGX_SHM_SEGMENT_KB="4096",  # what CUDA IPC makes of the default, which simulate() takes
    )
    command = [script, json.dumps(hosts), tmp_path]
    done = mpirun(kind, len(hosts), *command, prelude=fake_cuda.PRELUDE, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank, communicator in enumerate(communicators):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert said["communicator"] == communicator
        assert said["same"] == [True] * 12
        assert said["total"] == [2 * len(hosts)] * 10
