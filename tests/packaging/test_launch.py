"""Finding rank, size and meeting point without torchrun: variables, node lists, setup, rendezvous.

How ranks meet is in test_launch_meeting.py, whole jobs are in test_launch_jobs.py.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest

from tests import warm
from tests.distributed import ROOT
from torch_cgx import launch
from torch_cgx.launch import LaunchError, _mpi, _state, find
from torch_cgx.launch._rendezvous import numbers_of
from torch_cgx.launch._variables import expand_counts, expand_nodes

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_JOB_ID": "1000",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
}
BATCH = {"SLURM_JOB_ID": "1000", "SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0"}


def _set(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


# ---- variables


def _numbers(found):
    return (found.rank, found.size, found.local_rank, found.local_size)


@pytest.mark.parametrize(
    ("env", "name", "mpi"),
    [
        (OPEN_MPI, "Open MPI", True),
        (HYDRA, "MPICH", True),
        (SRUN, "srun", False),
        ({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "6"}, "srun", True),
        ({**SRUN, "PMIX_RANK": "3"}, "srun", True),
        # mpirun in a job of SLURM: the ranks see the variables of its daemon, which srun started.
        ({**SRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "3", **OPEN_MPI}, "Open MPI", True),
        ({**SRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "3", **HYDRA}, "MPICH", True),
        ({**BATCH, **OPEN_MPI}, "Open MPI", True),
        (
            {
                "MV2_COMM_WORLD_RANK": "3",
                "MV2_COMM_WORLD_SIZE": "6",
                "MV2_COMM_WORLD_LOCAL_RANK": "1",
                "MV2_COMM_WORLD_LOCAL_SIZE": "2",
            },
            "MVAPICH",
            True,
        ),
    ],
)
def test_launchers_are_understood(env, name, mpi):
    found = find(env)
    assert found is not None and name in found.name
    assert _numbers(found) == (3, 6, 1, 2)
    assert found.connects_mpi is mpi


def test_what_a_launcher_does_not_say_is_none():
    assert _numbers(find({"PMIX_RANK": "2"})) == (2, None, None, None)
    assert _numbers(find({"PMI_RANK": "2", "PMI_SIZE": "4"})) == (2, 4, None, None)


def test_no_launcher():
    assert find({}) is None
    assert find({"RANK": "0", "WORLD_SIZE": "2"}) is None
    assert find(BATCH) is None, "a batch script is not one of six tasks"


def test_srun_names_hosts_and_a_port_that_jobs_and_steps_do_not_share():
    found = find(SRUN)
    assert found.nodes == ("gpu07", "gpu08", "gpu09")
    ports = {
        find({**SRUN, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}).port
        for job in range(12_345_000, 12_345_100)
        for step in range(5)
    }
    assert len(ports) == 500 and min(ports) >= 15000 and max(ports) < 29500
    other_rank = find({**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert other_rank.port == found.port


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "x"}, r"OMPI_COMM_WORLD_RANK=x: .* >= 0"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "0"}, r"OMPI_COMM_WORLD_SIZE=0: .* >= 1"),
        ({**HYDRA, "PMI_RANK": "6"}, r"PMI_RANK=6: must be below PMI_SIZE=6"),
        ({**SRUN, "SLURM_PROCID": "9"}, r"SLURM_PROCID=9: must be below .*6"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(3)"}, r"2\(3\)"),
        ({**SRUN, "SLURM_STEP_NODELIST": "gpu[7"}, r"gpu\[7"),
    ],
)
def test_impossible_variables_are_named(env, text):
    with pytest.raises(LaunchError, match=text):
        find(env)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("one", ["one"]),
        ("one,two", ["one", "two"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,2]", ["n08", "n09", "n10", "n2"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("a[1,3]-ib,b-7,c[01]", ["a1-ib", "a3-ib", "b-7", "c01"]),
        ("r[1-2]n[3-4]x", ["r1n3x", "r1n4x", "r2n3x", "r2n4x"]),
        ("a.b-c.example", ["a.b-c.example"]),
    ],
)
def test_node_lists(text, names):
    assert expand_nodes(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[3-1]", "n[a-b]", "n]1[", "a,,b", "", "n[1][", "n[]"])
def test_bad_node_lists_are_named(text):
    with pytest.raises(LaunchError, match=re.escape(repr(text))):
        expand_nodes(text)


def test_task_counts():
    assert expand_counts("4") == [4]
    assert expand_counts("2(x3),1,5(x1)") == [2, 2, 2, 1, 5]


# ---- setup in one process


def test_setup_alone_sets_what_is_absent_and_holds_the_port(clean):
    import torch.distributed as dist

    _set(clean, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})
    found = launch.setup()
    assert (found.rank, found.world_size, found.local_rank) == (0, 1, 0)
    expected = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    expected |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.master_port)}
    assert found.variables == expected
    assert {name: os.environ[name] for name in expected} == expected
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", found.master_port))
        other.listen()
    assert launch.setup() is found
    clean.delenv("RANK")
    assert launch.setup() is found and os.environ["RANK"] == "0"
    for turn in range(2):  # the store that is held has no keys of the first group for the second
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        assert store.add("turn", 1) == 1, turn
        dist.destroy_process_group()


def test_what_the_user_set_stays(clean):
    _set(clean, {**OPEN_MPI, "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "4321"})
    clean.setattr(_mpi, "MpiWorld", None)  # not needed: would be called
    found = launch.setup()
    assert found.variables == {
        "RANK": "3",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert (found.master_addr, found.master_port) == ("10.1.2.3", 4321)


def test_torchruns_variables_are_left_alone(clean):
    given = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    given |= {"MASTER_ADDR": "h", "MASTER_PORT": "5", "TORCHELASTIC_RUN_ID": "x"}
    _set(clean, {**OPEN_MPI, **given})
    found = launch.setup()
    assert found.variables == {} and found.launcher == "torchrun"
    assert (found.rank, found.world_size) == (1, 2)
    assert {name: os.environ[name] for name in given} == given


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set, and no launcher found"),
        ({"RANK": "0"}, "^WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set"),
        ({**OPEN_MPI, "WORLD_SIZE": "4"}, "rank 3: the world size is set to 4.*started 6"),
        ({**OPEN_MPI, "RANK": "7"}, "rank 7: must be 0 to 5"),
        ({**OPEN_MPI, "MASTER_PORT": "70000"}, "MASTER_PORT=70000: must be 1 to 65535"),
        ({**OPEN_MPI}, "rank 3 was started by Open MPI's mpirun.*pip install mpi4py.*MASTER_ADDR"),
        ({"PMIX_RANK": "0"}, "rank 0 was started by a PMIx.*world size.*WORLD_SIZE"),
    ],
)
def test_errors_of_setup(clean, env, text):
    clean.setattr(_mpi, "available", lambda: False)
    _set(clean, env)
    with pytest.raises(LaunchError, match=text):
        launch.setup()
    assert "MASTER_ADDR" not in os.environ


@pytest.mark.parametrize("backend", ["cgx", "gloo"])
def test_a_plain_start_says_which_variables_are_absent(clean, backend):
    """LaunchError, as docs/launching.md says, which is a ValueError as torch's own error is."""
    import torch.distributed as dist

    _set(clean, {"RANK": "0"})
    with pytest.raises(LaunchError, match="^WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set") as found:
        dist.init_process_group(backend)
    assert isinstance(found.value, ValueError)


def test_srun_without_mpi(clean):
    _set(clean, {**SRUN, "SLURM_STEP_NODELIST": "localhost,other", "SLURMD_NODENAME": "other"})
    found = launch.setup()
    assert (found.master_addr, found.master_port) == ("localhost", find(os.environ).port)
    assert (found.rank, found.local_rank, found.local_world_size) == (3, 1, 2)


def test_srun_on_one_node_meets_at_the_loopback(clean):
    _set(clean, {**SRUN, "SLURM_STEP_NODELIST": "no-such-host"})
    assert launch.setup().master_addr == "127.0.0.1"


def test_srun_with_a_first_node_of_no_use(clean):
    _set(clean, {**SRUN, "SLURM_STEP_NODELIST": "no-such-host.invalid,localhost"})
    with pytest.raises(LaunchError, match=r"rank 3 .* cannot resolve no-such-host.*MASTER_ADDR"):
        launch.setup()
    _set(clean, {"SLURM_PROCID": "0", "SLURMD_NODENAME": "b", "SLURM_STEP_NODELIST": "a,b"})
    with pytest.raises(LaunchError, match=r"rank 0 is on b, not on the first node of the step, a"):
        launch.setup()


def test_rank_and_size_of_the_call_count():
    assert numbers_of("env://") == (None, None)
    assert numbers_of("env://?rank=2&world_size=3") == (2, 3)
    assert numbers_of("env://?rank=0&world_size=-1") == (0, None)


def test_a_fork_does_not_inherit_the_store(clean):
    state = _state.mine()
    clean.setattr(state, "pid", state.pid + 1)
    assert _state.mine() is not state and _state.mine().forked_from is state


# ---- import and rendezvous


def _python(code, **env):
    settings = {k: v for k, v in os.environ.items() if k not in launch.NEEDED}
    settings |= {"PYTHONPATH": str(ROOT), **env}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)


def test_importing_starts_nothing():
    code = """
import sys, torch, torch_cgx, torch.distributed as dist
print([name for name in sys.modules if "mpi4py" in name or "launch" in name and "cgx" in name])
"""
    done = _python(code, **OPEN_MPI)
    assert done.stdout.strip() == "[]", done.stderr


def test_without_a_launcher_the_error_is_torchs():
    code = """
import torch_cgx, torch.distributed as dist
dist.init_process_group("gloo")
"""
    done = _python(code, OMPI_COMM_WORLD_RANK="")
    assert "environment variable RANK expected, but not set" in done.stderr


def test_a_torch_without_the_private_table_is_told_of():
    code = """
import sys, warnings, torch
import torch.distributed as dist
del sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
import torch_cgx
assert "cgx" in dist.Backend.backend_list
from torch_cgx import launch
print(launch.setup().master_addr)
"""
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PMI_RANK": "0", "PMI_SIZE": "1"}
    done = _python(code, **env)
    assert done.stdout.strip() == "127.0.0.1", done.stderr
    assert "torch_cgx.launch.setup() before init_process_group" in done.stderr
    assert "cannot extend" not in _python("import torch_cgx", **env).stderr


def test_command_line():
    module = ["-m", "torch_cgx.launch"]
    env = {k: v for k, v in os.environ.items() if k not in launch.NEEDED}
    options = {"capture_output": True, "text": True, "cwd": ROOT, "timeout": 120}
    helped = subprocess.run([sys.executable, *module, "--help"], env=env, **options)
    for word in ("torchrun --", "mpirun -np", "--host host1:2,host2:2", "-hosts ", "srun --nodes"):
        assert word in helped.stdout
    command = [*warm.python(), *module]
    nothing = subprocess.run(command, env=env, **options)
    assert nothing.returncode == 1 and "no launcher found" in nothing.stdout
    one = subprocess.run(command, env={**env, "PMI_RANK": "0", "PMI_SIZE": "1"}, **options)
    assert one.returncode == 0, one.stderr
    assert "rank 0 of 1, local rank 0 of 1" in one.stdout and "master 127.0.0.1" in one.stdout
