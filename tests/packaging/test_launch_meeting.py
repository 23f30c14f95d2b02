"""How the ranks of a job of mpirun agree on a meeting point: plans, addresses, MPI."""

from __future__ import annotations

import dataclasses
import re
import socket
import threading
import time

import pytest

from tests.calls import on_threads
from torch_cgx.launch import LaunchError, _mpi, _network, find
from torch_cgx.launch import _meeting as meeting

# ---- what follows from the numbers of all ranks


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
    _network.Address("lo", "127.0.0.1"),
    _network.Address("docker0", "172.17.0.1"),
    _network.Address("eth1", "10.0.0.5"),
    _network.Address("eth0", "192.0.2.5"),
    _network.Address("eth0", "2001:db8::5"),
]


def _name_resolves_to(monkeypatch, *ips):
    entries = [(0, 0, 0, "", (ip, 0)) for ip in ips]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    monkeypatch.setattr(_network, "addresses", lambda: _HERE)
    monkeypatch.setattr(_network, "_default_interface", lambda: "eth0")


def test_loopback_is_never_handed_out(monkeypatch):
    _name_resolves_to(monkeypatch, "127.0.1.1")  # as in Debian's /etc/hosts
    found = _network.candidates(None)
    assert found == ["192.0.2.5", "2001:db8::5", "172.17.0.1", "10.0.0.5"]
    assert not _network.name_is_usable()


def test_the_address_of_the_hosts_name_comes_first(monkeypatch):
    _name_resolves_to(monkeypatch, "10.0.0.5")
    assert _network.candidates(None)[0] == "10.0.0.5"
    assert _network.name_is_usable()
    _name_resolves_to(monkeypatch, "10.0.0.77")  # not this host's
    assert not _network.name_is_usable()


def test_an_interface_may_be_named(monkeypatch):
    _name_resolves_to(monkeypatch)
    assert _network.candidates("eth1") == ["10.0.0.5"]
    with pytest.raises(LaunchError, match=r"GLOO_SOCKET_IFNAME=eth9.*docker0, eth0, eth1, lo"):
        _network.candidates("eth9")


def test_addresses_of_this_machine():
    found = _network.addresses()
    assert _network.Address("lo", "127.0.0.1") in found
    assert _network.interface_of("127.0.0.1") == "lo"
    assert not [a for a in found if a.ip.startswith(("fe80", "169.254"))]


@pytest.mark.parametrize("loopback_only", [True, False])
def test_a_listener_proves_itself_and_serves_a_store_after(loopback_only):
    import torch.distributed as dist

    listener = _network.listen(0, loopback_only)
    port = listener.getsockname()[1]
    with _network.answering(listener) as token:
        assert _network.reach("127.0.0.1", port, token, 5) == ("127.0.0.1", None)
        local, wrong = _network.reach("127.0.0.1", port, bytes(16), 5)
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
    with _network.listen(0, True) as first:
        port = first.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"port {port} \(MASTER_PORT\).*in use"):
            _network.listen(port, True)


@pytest.mark.quiet
def test_a_peer_that_is_not_there_or_mute():
    with _network.listen(0, True) as listener:
        port = listener.getsockname()[1]
        begin = time.monotonic()
        local, wrong = _network.reach("127.0.0.1", port, bytes(16), 0.3)
        assert local is None and wrong and time.monotonic() - begin < 3
    assert _network.reach("127.0.0.1", port, bytes(16), 5) == (None, "Connection refused")


# ---- agreement between ranks, over a stand-in for MPI


class _Comm:
    """The few calls of an mpi4py communicator that `MpiWorld` makes, between threads."""

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


def _worlds(monkeypatch, n, timeout=10.0):
    boxes = [{} for _ in range(n)]
    found = []
    for rank in range(n):
        mpi = type("MPI", (), {"COMM_WORLD": _Comm(boxes, rank)})
        monkeypatch.setattr(_mpi, "_start", lambda _, mpi=mpi: mpi)
        found.append(_mpi.MpiWorld(find({"PMI_RANK": "3", "PMI_SIZE": "6"}), timeout))
    return found


def _on_all(calls):
    outcomes = on_threads(len(calls), lambda i: calls[i]())
    return [str(one) if isinstance(one, LaunchError) else one for one in outcomes]


def _meet(worlds, networks, **changes):
    env = {"PMI_SIZE": str(len(worlds))}

    def call(rank):
        launcher = find({**env, "PMI_RANK": str(rank)})
        return lambda: meeting.meet_by_mpi(
            worlds[rank], launcher, *changes.get("given", (None,) * 2)
        )

    monkeypatch = changes["monkeypatch"]
    identities = iter(networks)
    lock = threading.Lock()

    def identity():
        with lock:
            return next(identities)

    monkeypatch.setattr(_network, "network_identity", identity)
    return _on_all([call(rank) for rank in range(len(worlds))])


def test_ranks_of_one_network_meet_at_the_loopback(clean):
    found = _meet(_worlds(clean, 3), ["a"] * 3, monkeypatch=clean)
    assert [(m.rank, m.address, m.local_size) for m in found] == [
        (rank, "127.0.0.1", 3) for rank in range(3)
    ]
    assert len({m.port for m in found}) == 1
    assert [m.listener is not None for m in found] == [True, False, False]
    found[0].listener.close()


def test_ranks_of_several_networks_take_the_first_address_that_all_reach(clean):
    clean.setattr(_network, "candidates", lambda _: ["192.0.2.254", "127.0.0.1"])
    tried = []
    honest = _network.reach

    def reach(host, port, token, seconds):
        tried.append(host)
        if host.startswith("192") and len(tried) == 2:
            return None, "out of reach"  # of one rank
        return honest("127.0.0.1", port, token, seconds)

    clean.setattr(_network, "reach", reach)
    clean.setattr(_network, "name_is_usable", lambda: False)
    found = _meet(_worlds(clean, 3), "aba", monkeypatch=clean)
    assert [m.address for m in found] == ["127.0.0.1"] * 3
    assert [m.interface for m in found] == ["lo"] * 3
    assert sorted(tried) == ["127.0.0.1"] * 3 + ["192.0.2.254"] * 3
    found[0].listener.close()


def test_no_address_that_all_reach(clean):
    clean.setattr(_network, "candidates", lambda _: ["192.0.2.254"])
    clean.setattr(_network, "reach", lambda *_: (None, "No route to host"))
    found = _meet(_worlds(clean, 2), "ab", monkeypatch=clean)
    assert found[0] == found[1] and "Set MASTER_ADDR" in found[0]
    assert re.search(r"192\.0\.2\.254 port \d+ \(rank 0 on .*: No route.* 1 more", found[0])


def test_rank_0_that_cannot_listen_is_everybodys_error(clean):
    with _network.listen(0, False) as taken:
        port = taken.getsockname()[1]
        found = _meet(_worlds(clean, 2), "aa", given=(None, port), monkeypatch=clean)
    assert found[0] == found[1] and f"rank 0: cannot listen on port {port}" in found[0]


def test_a_rank_that_does_not_come_is_named(monkeypatch):
    worlds = _worlds(monkeypatch, 3, timeout=0.3)
    found = _on_all([lambda i=i: worlds[i].agree(i, sum) for i in (0, 1)])
    assert found[0] == "rank 0: rank 2 has not called init_process_group within 0.3 s"
    assert found[1] is not None and "rank" in found[1]
