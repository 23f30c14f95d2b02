"""Which address Gloo is given, by what the ranks say of theirs."""

from __future__ import annotations

import json
import socket

import pytest

from torch_cgx import _gloo_address as gloo


def _rank(network="a", **fields):
    place = {"network": network, "host": f"host-{network}", "named": ""}
    return json.dumps({**place, "at": "", "way": "", "any": "", **fields})


def test_gloo_is_left_alone_where_it_finds_its_way(monkeypatch):
    one_machine = [_rank(), _rank()]  # whose name may mean the loopback
    useful_names = [_rank("a", at="10.0.0.1"), _rank("b", at="10.0.0.2")]
    for reports in (one_machine, useful_names):
        assert [gloo.choose(rank, reports) for rank in (0, 1)] == ["", ""]


def test_the_way_to_the_store_is_taken_and_where_the_store_is_the_way_to_another_host(monkeypatch):
    asked = []
    monkeypatch.setattr(gloo, "_own_address_towards", lambda host: asked.append(host) or "10.0.0.1")
    reports = [
        _rank("a", any="172.17.0.1"),
        _rank("a", any="172.17.0.1"),
        _rank("b", way="10.0.0.2"),
        _rank("c", at="10.0.0.3"),
    ]
    assert [gloo.choose(r, reports) for r in range(4)] == ["10.0.0.1", "10.0.0.1", "10.0.0.2", ""]
    assert asked == ["10.0.0.2"] * 2
    monkeypatch.setattr(gloo, "_own_address_towards", lambda host: "")
    assert gloo.choose(0, reports) == "172.17.0.1"


def test_all_ranks_refuse_a_host_that_others_cannot_reach():
    for named, words in (
        ("", "no interface has"),
        ("lo", "GLOO_SOCKET_IFNAME=lo names no interface"),
    ):
        reports = [_rank("a", at="10.0.0.1"), _rank("b", named=named)]
        for rank in (0, 1):
            with pytest.raises(RuntimeError, match=f"rank 1 on host host-b: {words}.*set GLOO_S"):
                gloo.choose(rank, reports)


def test_a_report_of_this_host(monkeypatch):
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    monkeypatch.setattr(gloo.net, "candidates", lambda _: ["192.0.2.7"])
    gloo._of_name.cache_clear()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)

    class Store:
        host = "127.0.0.1"

    class Prefix:
        underlying_store = Store()

    said = json.loads(gloo.report(Prefix()))
    assert (said["at"], said["way"], said["any"]) == ("", "", "192.0.2.7")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # what is set stays
    said = json.loads(gloo.report(Prefix()))
    assert (said["named"], said["at"], said["way"], said["any"]) == ("lo", "", "", "")
    assert "\n" not in gloo.report(Prefix())
    gloo._of_name.cache_clear()


def test_an_error_of_gloos_start_names_the_variable(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    text = gloo.hint(RuntimeError("Gloo connectFullMesh failed"), "")
    assert text.startswith("Gloo connectFullMesh failed\n") and "GLOO_SOCKET_IFNAME=eth7" in text
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert ", at 10.0.0.9" in gloo.hint(RuntimeError("x"), "10.0.0.9")


def test_a_report_is_kept_for_a_burst_of_groups(monkeypatch):
    made = []

    def look(host):
        made.append(host)
        return {"at": "", "way": host, "any": "", "number": len(made)}

    monkeypatch.setattr(gloo, "_look", look)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    gloo._recent.clear()
    now = [100.0]

    class Store:
        host = "192.0.2.1"

    def ask():
        return json.loads(gloo.recent_report(Store(), clock=lambda: now[0]))["number"]

    assert [ask(), ask()] == [1, 1]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert ask() == 2
    now[0] = 110.0
    assert [ask(), ask()] == [3, 3]
    Store.host = "192.0.2.2"
    assert ask() == 4
    monkeypatch.setattr(gloo, "_server_of", lambda _: "")  # no address is found: it may come up
    assert [ask(), ask()] == [5, 6]
    gloo._recent.clear()
