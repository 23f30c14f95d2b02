"""Rates and bursts of links, and what a machine lacks that cannot have a bed of hosts."""

from __future__ import annotations

import os
import sys

from torch_cgx.testbed import network
from torch_cgx.testbed.bed import hosts_available


def test_rates_and_bursts():
    read = [network.parse_rate(rate) for rate in ("64kbit", "200mbit", "1Gbit", "2.5gbit")]
    assert read == [64_000, 200 * 10**6, 10**9, 2_500_000_000]
    # What an idle link lets through at once is well below a millisecond's worth.
    for rate in ("100mbit", "200mbit", "1gbit", "10gbit"):
        words = network._discipline(rate).split()
        assert 8 * int(words[words.index("burst") + 1]) < 0.6e-3 * network.parse_rate(rate)


def test_what_is_missing_is_named(monkeypatch):
    if sys.platform != "linux":
        assert "need Linux" in str(hosts_available())
        return
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "need root, this is user 1000" in str(hosts_available.__wrapped__())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "no 'ip' on the PATH (apt-get install iproute2)" in str(hosts_available.__wrapped__())
