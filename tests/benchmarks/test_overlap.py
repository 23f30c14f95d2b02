"""benchmarks/overlap.py: its numbers by hand, and a small run of the real thing."""

from __future__ import annotations

import json

import pytest

from benchmarks import _ranks, overlap
from tests.benchmarks import runs
from tests.hosts.marks import needs_hosts

SLACK_SECONDS = 0.1


def test_numbers_by_hand():
    # A call of 10 s on a link of 100 bytes/s. Out: full in 1-5, a tenth in 5-9. In: half in 3-7.
    sent = [0, 0, 100, 200, 300, 400, 410, 420, 430, 440, 440, 440]
    received = [0, 0, 0, 0, 50, 100, 150, 200, 200, 200, 200, 200]
    samples = [[float(t), *pair] for t, pair in enumerate(zip(sent, received, strict=True))]
    ranges = {
        "encode": [[0.0, 2.0], [8.0, 9.0]],
        "decode": [[1.5, 2.5], [6.0, 6.5]],
        "transfer": [[2.5, 6.0], [9.0, 10.0]],
    }
    told = overlap.numbers({"seconds": 10.0, "ranges": ranges, "samples": samples}, 100.0)
    assert told["encode_seconds"] == 3 and told["decode_seconds"] == 1.5
    assert told["transfer_seconds"] == 4.5 and told["rounds"] == 2
    assert told["link_out_busy"] == pytest.approx(0.4)  # a tenth is not busy
    assert told["link_in_busy"] == pytest.approx(0.4)
    assert told["link_busy"] == pytest.approx(0.6)  # 1 to 7
    # Of the codec's 0-2.5, 6-6.5, 8-9 the link was busy in 1-2.5 and 6-6.5.
    assert told["codec_covered"] == pytest.approx(2 / 4)
    assert told["link_use"] == pytest.approx(440 / 1000)


def test_unions():
    assert overlap.union([(3, 4), (1, 2), (2, 3), (0, 1.5), (6, 6)]) == [(0, 4)]
    assert overlap.common([(0, 4), (5, 9)], [(3, 6), (8, 10)]) == [(3, 4), (5, 6), (8, 9)]


@pytest.mark.alone
@needs_hosts
def test_a_traced_call(tmp_path):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    small = ["--size", "4M", "--bits", "4", "--calls", "2", "--rate", "200mbit"]
    done = runs.python("benchmarks/overlap.py", *small, "--json", str(out), "--plot", str(picture))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text())
    (run,) = document["runs"]
    call, told = run["shown"], run["numbers"]
    wire = (4 << 20) / 8 / 25e6  # seconds of the codes alone on the link
    assert call["seconds"] > 0.9 * wire and len(run["by_call"]) == 2
    # The two clocks are one: all stages lie within the call, and leave little of it unexplained.
    # Another clock would be off by far more than the time that a busy machine takes a rank away.
    stages = [tuple(r) for found in call["ranges"].values() for r in found]
    assert min(begin for begin, _ in stages) > -SLACK_SECONDS
    assert max(end for _, end in stages) < call["seconds"] + SLACK_SECONDS
    assert overlap.length(overlap.union(stages)) > 0.5 * call["seconds"]
    # What the link's counters saw is the message, and it travelled during the call.
    first, last = call["samples"][0], call["samples"][-1]
    assert first[0] < 0 and last[0] > call["seconds"]
    for column in (1, 2):
        moved = last[column] - first[column]
        assert (4 << 20) / 8 < moved < 1.2 * (4 << 20) / 8
    assert 0 < told["codec_covered"] <= 1 and 0.1 < told["link_out_busy"] <= 1
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 10_000
    assert "cgx 4 bit" in done.stdout


def test_bad_arguments_and_no_hosts(monkeypatch, capsys, tmp_path):
    with pytest.raises(SystemExit):
        overlap.arguments(["--rate", "none"])
    assert "--rate none" in capsys.readouterr().err
    monkeypatch.setattr(_ranks, "hosts_available", lambda: "no wires today")
    assert overlap.main(["--quick", "--json", str(tmp_path / "out.json")]) == 0
    assert "nothing measured: no wires today" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
