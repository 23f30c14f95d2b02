"""The autotuner between hosts: slow links keep the bits that were asked for, fast ones need not."""

from __future__ import annotations

import json

import pytest

from tests import warm
from tests.hosts.marks import needs_hosts
from torch_cgx.testbed.bed import hosts

pytestmark = needs_hosts

VALUES = 1 << 20


def tables(rate, ranks, **env):
    """What all ranks know after some all-reduces of 4 MiB at 4 bits; "sent": the most bytes that a
    rank sent for measuring.
    """
    command = [*warm.python(), "-m", "tests.hosts.programs", "tuned", str(VALUES)]
    with hosts(2, rate=rate) as bed:
        outputs = bed.run(command, ranks=ranks, env={"CGX_AUTOTUNE": "1", **env}, timeout=120)
    found = [
        json.loads(line) for text in outputs for line in text.splitlines() if line.startswith("{")
    ]
    told = found[0]["told"]
    assert len(found) == 2 * ranks and all(one["told"] == told for one in found)
    return {**told, "sent": max(one["sent"] for one in found)}


@pytest.mark.alone
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_slow_link_keeps_the_asked_bits(ranks):
    table = tables("100mbit", ranks)
    (row,) = table["classes"]
    assert row["choice"] == "asked", table
    # Of 20 calls. 8 and 4 times as long: out of the race after its first hurdle, two turns each, or
    # after the one that follows, where the first calls of the asked bits were slow ones.
    assert table["taken"]["exact"] <= 4 and table["taken"]["half"] <= 4, table
    assert row["measured"]["exact"] > 3 * row["measured"]["asked"], table


@pytest.mark.alone
def test_a_fast_link_gets_more_bits_than_a_slow_codec_is_worth():
    table = tables(None, 1, CGX_CPU_LEVEL="scalar")
    assert table["classes"][0]["choice"] in ("exact", "half"), table


@pytest.mark.alone
def test_a_link_of_1_gbit_is_measured_with_little():
    table = tables("1gbit", 1)
    # Times of calls, and some messages by which clocks are compared.
    assert 0 < table["sent"] < 10_000, table
    assert table["classes"][0]["choice"] == "asked", table
