"""Finding rank, size and meeting point without torchrun: variables, node lists, addresses, and
whole jobs under the mpirun of Open MPI and of MPICH.

The jobs need an mpirun with mpi4py: see `mpi_installation` of tests/hosts/marks.py.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.distributed import ROOT
from tests.hosts.bed import hosts
from tests.hosts.marks import mpi_installation, needs_hosts
from torch_cgx import _launch_meeting as meeting
from torch_cgx import _launch_mpi, _launch_net, launch
from torch_cgx._launch_env import LaunchError, expand_counts, expand_nodes, find

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


@pytest.fixture
def clean(monkeypatch):
    """No launcher in the environment, and no memory of former calls; all of it undone after."""
    prefixes = ("OMPI_", "PMI", "MPI_", "MV2_", "SLURM", "TORCHELASTIC", "GLOO_SOCKET", "MASTER_")
    for name in [*os.environ]:
        if name.startswith(prefixes):
            monkeypatch.delenv(name)
    for name in (*launch.NEEDED, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that what the test sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setattr(launch, "_state", launch._State())
    return monkeypatch


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
    clean.setattr(_launch_mpi, "Word", None)  # not needed: would be called
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
        ({"PMIX_RANK": "0"}, "rank 0 was started by a PMIx.*how many.*WORLD_SIZE"),
    ],
)
def test_errors_of_setup(clean, env, text):
    clean.setattr(_launch_mpi, "available", lambda: False)
    _set(clean, env)
    with pytest.raises(LaunchError, match=text):
        launch.setup()
    assert "MASTER_ADDR" not in os.environ


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
    assert launch.told("env://") == (None, None)
    assert launch.told("env://?rank=2&world_size=3") == (2, 3)
    assert launch.told("env://?rank=0&world_size=-1") == (0, None)


def test_a_fork_does_not_inherit_the_store(clean):
    state = launch._mine()
    clean.setattr(state, "pid", state.pid + 1)
    assert launch._mine() is not state and launch._mine().forked_from is state


# ---- what the ranks make of each other's words


def _hello(rank, **changes):
    return dataclasses.replace(meeting._Hello(rank, 3, None, None, "a"), **changes)


def test_plan():
    networks = ["a", "b", "a"]
    plan = meeting._make_plan(
        [_hello(rank, network=net) for rank, net in zip([2, 0, 1], networks, strict=True)], 3
    )
    assert plan == meeting._Plan(1, False, [(0, 2), (0, 1), (1, 2)])
    assert meeting._make_plan([_hello(r) for r in range(3)], 3).one_network


@pytest.mark.parametrize(
    ("hellos", "text"),
    [
        ([_hello(0), _hello(1), _hello(1)], r"MPI ranks \[1, 2\] all have RANK 1"),
        ([_hello(0), _hello(1, port=5), _hello(2)], r"\(None, 5\) on MPI rank 1 and \(None, None"),
        ([_hello(0), _hello(1, size=4), _hello(2)], "MPI rank 1 has world size 4, MPI 3"),
    ],
)
def test_ranks_that_disagree_are_named(hellos, text):
    with pytest.raises(LaunchError, match=text):
        meeting._make_plan(hellos, 3)


# ---- addresses

_HERE = [
    _launch_net.Address("lo", "127.0.0.1"),
    _launch_net.Address("docker0", "172.17.0.1"),
    _launch_net.Address("eth1", "10.0.0.5"),
    _launch_net.Address("eth0", "192.0.2.5"),
    _launch_net.Address("eth0", "2001:db8::5"),
]


def _name_resolves_to(monkeypatch, *ips):
    entries = [(0, 0, 0, "", (ip, 0)) for ip in ips]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    monkeypatch.setattr(_launch_net, "addresses", lambda: _HERE)
    monkeypatch.setattr(_launch_net, "_default_interface", lambda: "eth0")


def test_loopback_is_never_handed_out(monkeypatch):
    _name_resolves_to(monkeypatch, "127.0.1.1")  # as in Debian's /etc/hosts
    found = _launch_net.candidates(None)
    assert found == ["192.0.2.5", "2001:db8::5", "172.17.0.1", "10.0.0.5"]
    assert not _launch_net.name_is_usable()


def test_the_address_of_the_hosts_name_comes_first(monkeypatch):
    _name_resolves_to(monkeypatch, "10.0.0.5")
    assert _launch_net.candidates(None)[0] == "10.0.0.5"
    assert _launch_net.name_is_usable()
    _name_resolves_to(monkeypatch, "10.0.0.77")  # not this host's
    assert not _launch_net.name_is_usable()


def test_an_interface_may_be_named(monkeypatch):
    _name_resolves_to(monkeypatch)
    assert _launch_net.candidates("eth1") == ["10.0.0.5"]
    with pytest.raises(LaunchError, match=r"GLOO_SOCKET_IFNAME=eth9.*docker0, eth0, eth1, lo"):
        _launch_net.candidates("eth9")


def test_addresses_of_this_machine():
    found = _launch_net.addresses()
    assert _launch_net.Address("lo", "127.0.0.1") in found
    assert _launch_net.interface_of("127.0.0.1") == "lo"
    assert not [a for a in found if a.ip.startswith(("fe80", "169.254"))]


@pytest.mark.parametrize("loopback_only", [True, False])
def test_a_listener_proves_itself_and_serves_a_store_after(loopback_only):
    import torch.distributed as dist

    listener = _launch_net.listen(0, loopback_only)
    port = listener.getsockname()[1]
    with _launch_net.answering(listener) as token:
        assert _launch_net.reach("127.0.0.1", port, token, 5) == ("127.0.0.1", None)
        local, wrong = _launch_net.reach("127.0.0.1", port, bytes(16), 5)
        assert local is None and wrong == "another program answers there"
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )
    store.set("key", "value")
    joined = dist.TCPStore("127.0.0.1", port, is_master=True, multi_tenant=True)
    assert joined.get("key") == b"value"


def test_a_port_in_use_is_named():
    with _launch_net.listen(0, True) as first:
        port = first.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"port {port} \(MASTER_PORT\).*in use"):
            _launch_net.listen(port, True)


def test_a_peer_that_is_not_there_or_mute():
    with _launch_net.listen(0, True) as listener:
        port = listener.getsockname()[1]
        begin = time.monotonic()
        local, wrong = _launch_net.reach("127.0.0.1", port, bytes(16), 0.3)
        assert local is None and wrong and time.monotonic() - begin < 3
    assert _launch_net.reach("127.0.0.1", port, bytes(16), 5) == (None, "Connection refused")


# ---- the word between ranks, over a stand-in for MPI


class _Comm:
    """The few calls of an mpi4py communicator that `Word` makes, between threads."""

    def __init__(self, boxes, rank):
        self.boxes, self.rank = boxes, rank

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return len(self.boxes)

    def isend(self, value, dest, tag):
        self.boxes[dest].setdefault((self.rank, tag), []).append(value)
        return self

    def test(self):
        return True, None

    def iprobe(self, source, tag):
        return bool(self.boxes[self.rank].get((source, tag)))

    def recv(self, source, tag):
        return self.boxes[self.rank][source, tag].pop(0)


def _words(monkeypatch, n, timeout=10.0):
    boxes = [{} for _ in range(n)]
    found = []
    for rank in range(n):
        mpi = type("MPI", (), {"COMM_WORLD": _Comm(boxes, rank)})
        monkeypatch.setattr(_launch_mpi, "_start", lambda _, mpi=mpi: mpi)
        found.append(_launch_mpi.Word(find(OPEN_MPI), timeout))
    return found


def _on_all(calls):
    outcomes = [None] * len(calls)

    def one(i):
        try:
            outcomes[i] = calls[i]()
        except LaunchError as error:
            outcomes[i] = str(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return outcomes


def _meet(words, networks, **changes):
    env = {"PMI_SIZE": str(len(words))}

    def call(rank):
        launcher = find({**env, "PMI_RANK": str(rank)})
        return lambda: meeting.meet_by_mpi(
            words[rank], launcher, *changes.get("given", (None,) * 2)
        )

    monkeypatch = changes["monkeypatch"]
    identities = iter(networks)
    lock = threading.Lock()

    def identity():
        with lock:
            return next(identities)

    monkeypatch.setattr(_launch_net, "network_identity", identity)
    return _on_all([call(rank) for rank in range(len(words))])


def test_ranks_of_one_network_meet_at_the_loopback(clean):
    found = _meet(_words(clean, 3), ["a"] * 3, monkeypatch=clean)
    assert [(m.rank, m.address, m.local_size) for m in found] == [
        (rank, "127.0.0.1", 3) for rank in range(3)
    ]
    assert len({m.port for m in found}) == 1
    assert [m.listener is not None for m in found] == [True, False, False]
    found[0].listener.close()


def test_ranks_of_several_networks_take_the_first_address_that_all_reach(clean):
    clean.setattr(_launch_net, "candidates", lambda _: ["192.0.2.254", "127.0.0.1"])
    tried = []
    honest = _launch_net.reach

    def reach(host, port, token, seconds):
        tried.append(host)
        if host.startswith("192") and len(tried) == 2:
            return None, "out of reach"  # of one rank
        return honest("127.0.0.1", port, token, seconds)

    clean.setattr(_launch_net, "reach", reach)
    clean.setattr(_launch_net, "name_is_usable", lambda: False)
    found = _meet(_words(clean, 3), "aba", monkeypatch=clean)
    assert [m.address for m in found] == ["127.0.0.1"] * 3
    assert [m.interface for m in found] == ["lo"] * 3
    assert sorted(tried) == ["127.0.0.1"] * 3 + ["192.0.2.254"] * 3
    found[0].listener.close()


def test_no_address_that_all_reach(clean):
    clean.setattr(_launch_net, "candidates", lambda _: ["192.0.2.254"])
    clean.setattr(_launch_net, "reach", lambda *_: (None, "No route to host"))
    found = _meet(_words(clean, 2), "ab", monkeypatch=clean)
    assert found[0] == found[1] and "Set MASTER_ADDR" in found[0]
    assert re.search(r"192\.0\.2\.254 port \d+ \(rank 0 on .*: No route.* 1 more", found[0])


def test_rank_0_that_cannot_listen_is_everybodys_error(clean):
    with _launch_net.listen(0, False) as taken:
        port = taken.getsockname()[1]
        found = _meet(_words(clean, 2), "aa", given=(None, port), monkeypatch=clean)
    assert found[0] == found[1] and f"rank 0: cannot listen on port {port}" in found[0]


def test_a_rank_that_does_not_come_is_named(monkeypatch):
    words = _words(monkeypatch, 3, timeout=0.3)
    found = _on_all([lambda i=i: words[i].agree(i, sum) for i in (0, 1)])
    assert found[0] == "rank 0: rank 2 has not come to init_process_group within 0.3 s"
    assert found[1] is not None and "rank" in found[1]


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
    module = [sys.executable, "-m", "torch_cgx.launch"]
    env = {k: v for k, v in os.environ.items() if k not in launch.NEEDED}
    options = {"capture_output": True, "text": True, "cwd": ROOT, "timeout": 120}
    helped = subprocess.run([*module, "--help"], env=env, **options)
    for word in ("torchrun --", "mpirun -np", "--host host1:2,host2:2", "-hosts ", "srun --nodes"):
        assert word in helped.stdout
    nothing = subprocess.run(module, env=env, **options)
    assert nothing.returncode == 1 and "no launcher found" in nothing.stdout
    one = subprocess.run(module, env={**env, "PMI_RANK": "0", "PMI_SIZE": "1"}, **options)
    assert one.returncode == 0, one.stderr
    assert "rank 0 of 1, local rank 0 of 1" in one.stdout and "master 127.0.0.1" in one.stdout


# ---- jobs

KINDS = ["openmpi", "mpich"]


def _prefix(kind):
    prefix = mpi_installation(kind)
    # An environment may take packages from another one.
    look = (
        "from importlib.util import find_spec; "
        "print([name for name in ('mpi4py', 'torch') if not find_spec(name)])"
    )
    found = subprocess.run(
        [prefix / "bin" / "python", "-c", look], capture_output=True, text=True, timeout=60
    )
    if found.stdout.strip() != "[]":
        pytest.skip(f"{prefix} lacks {found.stdout.strip() or found.stderr}")
    return prefix


def _environment(**changes):
    strange = ("OMPI_", "PMI", "MPI_", "SLURM", "MASTER_", "LOCAL_", "GLOO_SOCKET")
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in launch.NEEDED and not name.startswith(strange)
    }
    return env | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **changes}


def _mpirun(kind, ranks, *command, python=None, timeout=90, **changes):
    prefix = _prefix(kind)
    line = [str(prefix / "bin" / "mpirun"), "-np", str(ranks)]
    if kind == "openmpi":
        line[1:1] = ["--allow-run-as-root", "--oversubscribe"]
    line += [str((python or prefix) / "bin" / "python"), *map(str, command)]
    env = _environment(**changes)
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=timeout)


# No `import torch_cgx`: the entry point has to do it.
_TWO_GROUPS = """
import os, sys
import torch, torch.distributed as dist
results = []
for backend in sys.argv[1:]:
    dist.init_process_group(backend)
    x = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    results.append(x[-1].item())
    dist.destroy_process_group()
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
said = [os.environ[name] for name in names]
sys.stdout.write(f"rank {os.environ['RANK']}: {results} {said} {'mpi4py' in sys.modules}\\n")
"""


@pytest.fixture
def installed(tmp_path):
    """A folder whose entry points are those of the installed package, and a script in it."""
    info = tmp_path / "torch_cgx-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_cgx\nVersion: 0\n")
    points = "[torch.backends]\ntorch_cgx = torch_cgx._autoload:register\n"
    (info / "entry_points.txt").write_text(points)
    script = tmp_path / "train.py"
    script.write_text(_TWO_GROUPS)
    return script, {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_script_runs_unchanged(kind, installed):
    script, env = installed
    done = _mpirun(kind, 3, script, "cgx", "gloo", "cgx", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert lines == [
        f"rank {rank}: [6.0, 6.0, 6.0] ['{rank}', '3', '3', '127.0.0.1'] True" for rank in range(3)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_meeting_point_that_is_set_needs_no_mpi(kind, installed):
    script, env = installed
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    done = _mpirun(kind, 2, script, "gloo", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert lines == [f"rank {r}: [3.0] ['{r}', '2', '2', 'localhost'] False" for r in range(2)]


_FAIL = """
import os, sys, torch, torch_cgx, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    if sys.argv[1] == "raise":
        raise ValueError("the reason")
    sys.exit(3)
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()  # nothing but an abort ends this
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("how", "status"), [("raise", 1), ("exit", 3)])
def test_a_failing_rank_ends_the_job(kind, how, status, tmp_path):
    script = tmp_path / "fail.py"
    script.write_text(_FAIL)
    done = _mpirun(kind, 2, script, how, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    assert how == "exit" or "ValueError: the reason" in done.stderr


def test_ranks_with_the_same_number_are_told():
    done = _mpirun("mpich", 2, "-m", "torch_cgx.launch", RANK="0")
    assert done.returncode != 0
    assert "MPI ranks [0, 1] all have RANK 0" in done.stderr


def test_mpi4py_of_another_mpi_is_told():
    done = _mpirun("mpich", 2, "-m", "torch_cgx.launch", python=_prefix("openmpi"))
    assert done.returncode != 0
    assert "started 2 ranks, but mpi4py sees a world of 1" in done.stderr
    assert "another MPI (Open MPI v" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_examples_run_under_mpirun(kind):
    script = ROOT / "examples" / "train_gpt.py"
    done = _mpirun(kind, 2, script, "--backend", "cgx", "--steps", 2, "--data-mb", 0.2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "backend cgx, 4 bits, 2 ranks, 2 steps" in done.stdout


@needs_hosts
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_several_hosts(kind, installed):
    script, env = installed
    prefix = _prefix(kind)
    python, mpirun = str(prefix / "bin" / "python"), prefix / "bin" / "mpirun"
    # Hosts whose own name nobody knows, and no interface named: what torch alone cannot do.
    unnamed = 'echo "$1" > /proc/sys/kernel/hostname; shift; exec "$@"'
    command = ["sh", "-c", unnamed, "sh", "nowhere", python, str(script), "gloo", "cgx"]
    env |= {"GLOO_SOCKET_IFNAME": ""}
    with hosts(2) as bed:
        output = bed.mpirun(command, [2, 1], mpirun, env=env)
        address = bed.addresses[0]
    lines = sorted(line for line in output.splitlines() if line.startswith("rank "))
    assert lines == [
        f"rank {rank}: [6.0, 6.0] ['{rank}', '3', '{2 if rank < 2 else 1}', '{address}'] True"
        for rank in range(3)
    ], output
