"""The benchmarks between hosts: their formulas by hand, and small runs of the real thing. Speeds
are not tested.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

import pytest

from benchmarks import _ranks, hosts
from benchmarks.training import hosts as hosts_training
from benchmarks.training import step_model
from tests.benchmarks import runs
from tests.hosts.marks import needs_hosts


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    files = ["--json", str(folder / "out.json"), "--plot", str(folder / "out.png")]
    small = ["--hosts", "2", "--rates", "1gbit", "--sizes", "4K", "1M", "--repeats", "2"]
    small += ["--bits", "32", "4", "--with", "cross_reduction=SRA", "--codecs", "rotated:2"]
    done = runs.python("benchmarks/hosts.py", *small, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "out.json").read_text()), folder / "out.png"


@needs_hosts
def test_every_method_is_measured_and_verified(finished):
    stdout, document, picture = finished
    (run,) = document["runs"]
    assert (run["hosts"], run["ranks_per_host"], run["rate"]) == (2, 1, "1gbit")
    cgx = [
        f"cgx {bits}{more}" for more in ("", " cross_reduction=SRA") for bits in ("exact", "4 bit")
    ]
    names = ["gloo fp32", "fp16 hook", *cgx, "cgx 2 bit rotated"]
    assert [row["method"] for row in run["rows"]] == names * 2
    assert all(row["equal"] and row["within_bound"] for row in run["rows"])
    assert all(row["speedup"] == 1.0 for row in run["rows"] if row["method"] == "gloo fp32")
    assert document["machine"]["mtu"] == 1500 and document["machine"]["repeats"] == 2
    assert "2 hosts x 1 rank, 1gbit" in stdout and "WRONG" not in stdout
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 10_000


@needs_hosts
def test_frames_on_the_links_are_what_the_formula_expects(finished):
    _, document, _ = finished
    values = 1 << 18
    payload = {32: 4 * values, 16: 2 * values, 4: values // 2 + 8 * values // 512}
    payload[2] = values // 4 + 4 * values // 1024  # rotated
    for row in document["runs"][0]["rows"]:
        assert len(row["link_bytes_by_host"]) == 2
        if row["bytes"] == 1 << 20:
            assert row["expected_bytes"] == payload[row["bits"]]
            # 66 bytes of headers in every frame of 1514 make it 1.046 times; no link is faster
            # than its rate, but for what it may save up while idle.
            assert 1.04 < row["link_bytes"] / row["expected_bytes"] < 1.15
            assert 0 < row["link_use"] < 1.05


@needs_hosts
@pytest.mark.slow
def test_training_between_hosts(tmp_path):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    files = ["--json", str(out), "--plot", str(picture)]
    small = ["--bits", "4", "--runs", "1", "--steps", "4"]
    small += ["--options", "--data-mb 0.3 --layers 1 --batch 4"]
    done = runs.python("-m", "benchmarks.training.hosts", *small, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text())
    (group,) = document["groups"]
    rows = {row["method"]: row for row in group["rows"]}
    assert list(rows) == ["gloo fp32", "gloo, fp16 hook", "cgx, 4 bits"]
    base = rows["gloo fp32"]
    assert base["speedup"] == 1.0
    for name, bits in (("gloo, fp16 hook", 16), ("cgx, 4 bits", 4.2)):
        # Equal seeds, so that four steps end at almost the same loss; and fewer bytes.
        assert rows[name]["val_loss"] == pytest.approx(base["val_loss"], rel=0.05)
        fewer = base["link_bytes_per_step"] / rows[name]["link_bytes_per_step"]
        assert fewer == pytest.approx(32 / bits, rel=0.15)
    frames = base["gradient_bytes"] * 1514 / 1448  # two hosts: each sends the gradient once
    assert base["link_bytes_per_step"] == pytest.approx(frames, rel=0.05)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(group["runs"]) == 6 and "cgx, 4 bits" in done.stdout
    # Computing alone is less than any step; all gradients went through its hook.
    compute = group["compute"]
    assert sum(compute["bucket_bytes"]) == base["gradient_bytes"]
    assert 0 < compute["ready_seconds"][0] <= compute["ready_seconds"][-1] < compute["seconds"]
    for row in group["rows"]:
        wire = row["link_bytes_per_step"] / 25e6
        assert row["model_serial_ms"] == pytest.approx(1e3 * (compute["seconds"] + wire))
        assert 1e3 * compute["seconds"] < row["model_ms"] <= row["model_serial_ms"] + 1e-6
        assert row["ratio"] == pytest.approx(row["measured_ms"] / row["model_ms"])
    # No step is faster than its bytes over the link, however busy the machine is (computing was
    # measured in another run, so that it bounds nothing).
    assert base["measured_ms"] > 0.9e3 * base["link_bytes_per_step"] / 25e6


def test_the_model_of_a_step_by_hand():
    # Two buckets, 1 and 3 MB, ready 40 and 80 ms into steps of 90 ms.
    alone = step_model.Compute(0.09, 0.09, [1_000_000, 3_000_000], [0.04, 0.08])
    assert step_model.model(alone, 0.0) == pytest.approx((0.09, 0.09))
    # 16 ms of wire: the first 4 are hidden, 12 follow the backward pass.
    assert step_model.model(alone, 0.016) == pytest.approx((0.106, 0.08 + 0.012 + 0.01))
    # 400 ms: the link never rests from 40 ms on.
    assert step_model.model(alone, 0.4) == pytest.approx((0.49, 0.04 + 0.4 + 0.01))


def test_what_computing_takes_is_the_slowest_ranks():
    def rank(*steps):
        return {
            "step_seconds": [seconds for seconds, _ in steps],
            "buckets": [list(buckets) for _, buckets in steps],
        }

    # The first step has DDP's first layout, and does not count.
    first = (9.0, [(40, 1.0)])
    a = rank(first, (0.1, [(10, 0.05), (30, 0.09)]), (0.3, [(10, 0.05), (30, 0.09)]))
    b = rank(first, (0.2, [(10, 0.07), (30, 0.08)]), (0.2, [(10, 0.05), (30, 0.11)]))
    found = step_model.compute_of([a, b])
    assert (found.seconds, found.seconds_own) == pytest.approx((0.25, 0.2))
    assert found.bucket_bytes == [10, 30]
    assert found.ready_seconds == pytest.approx([0.06, 0.10])
    with pytest.raises(ValueError, match="1 steps tell nothing"):
        step_model.compute_of([rank(first)])


def test_expected_bytes_by_hand():
    # 1 MiB of fp32 on 4 hosts: 2 * 3/4 of it, at 4 bits with 8 bytes per 512 values.
    row = {"method": "cgx 4 bit", "bits": 4, "bytes": 1 << 20}
    assert hosts.expected_bytes(row, 4, 8, 512) == 1.5 * (131072 + 8 * 512)
    assert hosts.expected_bytes(row | {"bits": 32}, 4, 8, 512) == 1.5 * (1 << 20)
    gloo = {"method": "gloo fp32", "bits": 32, "bytes": 1 << 20}
    assert hosts.expected_bytes(gloo, 4, 8, 512) == 1.75 * (1 << 20)
    assert hosts.payload_bytes(2, 4 * 513, 512) == 513 / 4 + 16


def test_the_step_that_a_run_does_not_count():
    def run(method, steps, seconds, sent):
        return {"method": method, "steps": steps, "step_seconds": seconds, "val_loss": 3.0,
                "link_bytes": sent, "parameters": 250}  # fmt: skip

    base, cgx = hosts_training.BASE, hosts_training.methods([4])[-1]
    done = [
        run(base, 1, 9.0, [5000, 100]), run(cgx.name, 1, 9.0, [4500, 100]),
        run(base, 11, 0.2, [15000, 9000]), run(cgx.name, 11, 0.1, [5600, 1100]),
        run(base, 11, 2.0, [15000, 9000]), run(cgx.name, 11, 0.5, [5500, 1100]),
        run(base, 11, 0.2, [15000, 9000]), run(cgx.name, 11, 0.2, [5700, 1100]),
    ]  # fmt: skip
    row = hosts_training.summary(cgx, done, 2)
    assert (row["step_seconds"], row["step_seconds_low"], row["step_seconds_high"]) == (
        0.2,
        0.1,
        0.5,
    )
    assert row["speedup"] == 2.0 and row["gradient_bytes"] == 1000
    assert row["link_bytes_per_step"] == 110


def test_jobs_survive_the_way_to_the_ranks():
    args = hosts.arguments(["--quick", "--bits", "4", "--with", "fusion_buffer_mb=2,codec=maxmin"])
    job = hosts.make_job(args)
    assert [one.name for one in job.variants] == [
        "cgx 4 bit",
        "cgx 4 bit fusion_buffer_mb=2 codec=maxmin",
    ]
    assert job.variants[1].options == {"fusion_buffer_mb": 2, "codec": "maxmin"}
    assert hosts.HostsJob.of(json.loads(json.dumps(dataclasses.asdict(job)))) == job
    assert hosts.arguments([]).hosts is None and len(hosts.SIZES) == 11


@pytest.mark.parametrize(
    "flags",
    [["--hosts", "1"], ["--rates", "fast"], ["--sizes", "6"], ["--bits", "9"], ["--with", "bits"]],
)
def test_bad_arguments_are_named(flags, capsys):
    with pytest.raises(SystemExit) as caught:
        hosts.arguments(flags)
    assert caught.value.code == 2
    assert flags[1] in capsys.readouterr().err
    assert _ranks.rate("none") is None and _ranks.rate("1gbit") == "1gbit"
    with pytest.raises(argparse.ArgumentTypeError, match="or none"):
        _ranks.rate("1")


def test_without_hosts_nothing_is_measured_and_said(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    monkeypatch.setattr(_ranks, "hosts_available", lambda: "no wires today")
    for benchmark in (hosts, hosts_training):
        assert benchmark.main(["--quick", "--json", str(out)]) == 0
        assert "nothing measured: no wires today" in capsys.readouterr().err
    assert not out.exists()
