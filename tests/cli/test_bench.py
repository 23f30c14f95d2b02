"""`cgx bench`: what it measures, how ranks are started, and how it fails."""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests import warm
from tests.distributed import ROOT
from torch_cgx.cli import main as cli
from torch_cgx.cli.bench import _hosts, rank, sizes, start
from torch_cgx.cli.bench.measure import TILE, compare, contribution
from torch_cgx.cli.bench.show import advice, links, text_of, wrong
from torch_cgx.cli.errors import CliError

SMALL = ["--sizes", "4K,16K", "--bits", "32,4", "--repeats", "2"]


@pytest.mark.parametrize(
    "text, found",
    [
        ("4K", [4096]),
        ("1M,4K,4K", [4096, 1 << 20]),
        ("4K-1M", [4096, 16384, 65536, 262144, 1 << 20]),
        ("4K-20K", [4096, 16384]),
    ],
)
def test_sizes(text, found):
    assert sizes(text) == found


@pytest.mark.parametrize("text", ["", "5", "4K-", "1M-4K", "x", "4K,,8K", "-4K"])
def test_bad_sizes(text):
    with pytest.raises(argparse.ArgumentTypeError):
        sizes(text)


def test_hosts():
    assert _hosts("a,b:2") == [("a", 1), ("b", 2)]
    for text in ("", "a,", "a:0", "a:x", "-oProxyCommand=x"):
        with pytest.raises(argparse.ArgumentTypeError):
            _hosts(text)


def test_contributions_repeat_what_is_drawn():
    long = contribution(1, TILE + 5, "cpu")
    assert torch.equal(long[TILE:], long[:5])
    assert torch.equal(contribution(1, 7, "cpu")[:3], contribution(1, 7, "cpu")[:3])
    assert not torch.equal(contribution(0, 7, "cpu"), contribution(1, 7, "cpu"))


def _row(method, bits, seconds, nbytes=4096, **other):
    return {
        "bytes": nbytes,
        "method": method,
        "bits": bits,
        "communicator": "shm",
        "equal": True,
        "relative_error": 0.1,
        "seconds": seconds,
        "seconds_p10": seconds,
        "seconds_p90": seconds,
        "algbw": 1.0,
        "busbw": 1.0,
        "bytes_sent": 100.0,
        "bytes_counted": True,
        "vs_gloo": 1.0,
        "samples": [seconds] * 3,
        **other,
    }


def test_ratios_are_within_repetitions():
    rows = compare(
        [
            _row("gloo fp32", 32, 2, samples=[2.0, 20.0, 2.0]),
            _row("cgx maxmin 4 bits", 4, 1, samples=[1.0, 5.0, 4.0]),
        ]
    )
    assert [row["vs_gloo"] for row in rows] == [1.0, 2.0]


def test_advice():
    def rows(small, large):
        exact = [_row("gloo fp32", 32, 1.0, size) for size in (4096, 8192)]
        return [*exact, _row("cgx x", 4, small), _row("cgx x", 4, large, 8192)]

    assert advice(rows(2.0, 0.5)).startswith("Compression pays from 8 KiB on: at 8 KiB cgx x is 2.")
    assert advice(rows(0.5, 0.5)).startswith("Compression pays from 4 KiB on")
    assert advice(rows(0.5, 2.0)).startswith("Compression does not pay here: at 8 KiB cgx x takes")
    assert advice([_row("gloo fp32", 32, 1.0)]).startswith("Nothing was compressed")
    assert advice([_row("cgx x", 4, 1.0)]).startswith("Nothing to compare with")


@pytest.mark.parametrize(
    "fast, words",
    [
        # 1.04 times as fast, but slower in some of the repetitions.
        ([0.96, 1.05, 0.9, 0.96, 1.1], "No clear difference here: at 4 KiB cgx x is 1.04"),
        ([1.04, 0.95, 1.1, 1.04, 0.9], "No clear difference here"),
        ([0.96, 0.95, 0.97, 0.96, 0.96], "Compression pays from 4 KiB on: at 4 KiB cgx x is 1.04"),
        ([1.1, 1.2, 1.1, 1.1, 1.3], "Compression does not pay here"),
        ([0.5, 0.5], "No clear difference here: at 4 KiB cgx x is 2.00"),
    ],
)
def test_only_a_gain_above_the_spread_of_the_run_counts(fast, words):
    rows = [
        _row("gloo fp32", 32, 1.0, samples=[1.0] * len(fast)),
        _row("cgx x", 4, sorted(fast)[len(fast) // 2], samples=fast),
    ]
    assert advice(rows).startswith(words)


def test_gloo_over_a_link_and_cgx_inside_a_host_are_not_compared():
    rows = compare(
        [
            _row("gloo fp32", 32, 9.0, samples=[9.0] * 3, bytes_counted=False),
            _row("cgx exact", 32, 2.0, samples=[2.0] * 3),
            _row("cgx x", 4, 1.0, samples=[1.0] * 3),
        ],
        same_link=False,
    )
    assert [row["vs_gloo"] for row in rows] == [1.0, None, None]
    assert advice(rows).startswith("Compression pays from 4 KiB on: at 4 KiB cgx x is 2.00 times")
    assert "between 2 network namespaces" in links({"networks": 2}, rows)
    assert "CGX_HOST_ID" in links({"networks": 2}, rows)
    assert text_of(rows).splitlines()[-1].split()[-1] == "-"
    assert links({"networks": 1}, compare(rows)) == ""


def test_ranks_with_different_results_are_wrong():
    assert wrong([_row("a", 4, 1.0), _row("b", 4, 1.0, equal=False)]) == [
        "b at 4 KiB: ranks got different results"
    ]
    assert "~100 B" in text_of([_row("a", 4, 1.0, bytes_counted=False)])


def run(*words, timeout=120, env=None):
    return subprocess.run(
        [*warm.python(), "-m", "torch_cgx", "bench", *words],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_local_ranks(tmp_path, ranks):
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "plot")}
    words = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    words[-1] = str(tmp_path / "out.png")
    done = run("--ranks", f"{ranks}", "--codec", "maxmin,rotated", *SMALL, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("vs gloo") == 1
    found = json.loads(files["json"].read_text())
    assert found["facts"]["ranks"] == ranks and found["facts"]["hosts"] == 1
    rows = found["rows"]
    names = ["gloo fp32", "gloo fp16", "cgx exact", "cgx maxmin 4 bits", "cgx rotated 4 bits"]
    assert [row["method"] for row in rows] == names * 2
    for row in rows:
        assert row["equal"]
        assert row["algbw"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
        assert row["busbw"] == pytest.approx(row["algbw"] * 2 * (ranks - 1) / ranks)
        assert row["communicator"] == ("shm" if row["method"].startswith("cgx") else "gloo")
        low, high = {4: (0.05, 0.2), 16: (0, 5e-3), 32: (0, 1e-6)}[row["bits"]]
        assert low <= row["relative_error"] < high
    by_name = {(row["method"], row["bytes"]): row["bytes_sent"] for row in rows}
    assert by_name["gloo fp32", 16384] == 2 * (ranks - 1) / ranks * 16384
    if ranks == 2:  # 4096 values at 4 bits with 8 bytes for each 512, and a header
        assert 2048 + 64 < by_name["cgx maxmin 4 bits", 16384] < 2048 + 64 + 100
    table = list(csv.DictReader(files["csv"].open()))
    assert [row["method"] for row in table] == names * 2
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert not list(Path("/dev/shm").glob(f"cgx-*-{os.getpid()}*"))


def test_under_torchrun_the_ranks_that_are_there_are_used():
    command = [*warm.python(), "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "torch_cgx", "bench", *SMALL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ranks 2, hosts 1") == 1
    assert done.stdout.count("cgx maxmin 4 bits") == 3  # two rows, and the advice


def _rsh(tmp_path, before, command='exec sh -c "$2"'):
    """A stand-in for ssh that runs the command on this machine, as another host."""
    rsh = tmp_path / "rsh"
    rsh.write_text(f'#!/bin/sh\n{before}\nexport CGX_HOST_ID="$1"\n{command}\n')
    rsh.chmod(0o755)
    return rsh


@pytest.mark.parametrize("stdin", ["", " </dev/null"])
def test_hosts_are_reached_by_the_named_command(tmp_path, stdin):
    command = f'exec sh -c "$2"{stdin}'
    rsh = _rsh(tmp_path, f'echo "$1" >> {tmp_path}/called', command)
    words = ["--hosts", "localhost,127.0.0.1", "--rsh", str(rsh), *SMALL]
    done = run(*words, "--json", str(tmp_path / "out.json"), env=warm.NESTED)
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "called").read_text().split()) == ["127.0.0.1", "localhost"]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["facts"]["hosts"] == 2 and found["facts"]["networks"] == 1
    assert {row["communicator"] for row in found["rows"]} == {"gloo"}


def test_names_that_only_the_command_knows(tmp_path):
    """Nor does the interface have to exist where the command runs, only where ranks do."""
    rsh = _rsh(tmp_path, "")
    words = ["--hosts", "pod-a.invalid,pod-b.invalid", "--rsh", str(rsh), "--address", "127.0.0.1"]
    done = run(*words, *SMALL, "--sizes", "4K", "--interface", "lo", env=warm.NESTED)
    assert done.returncode == 0, done.stderr
    assert "hosts 2" in done.stdout
    done = run(*words, *SMALL, "--interface", "nope0", env=warm.NESTED)
    assert done.returncode == 1
    assert "--interface nope0" in done.stderr and "has no such interface" in done.stderr


def test_without_a_route_to_a_name_the_hosts_own_address_is_used(monkeypatch):
    from torch_cgx.launch import LaunchError, _network

    monkeypatch.setattr(_network, "candidates", lambda interface: ["10.9.8.7"])
    assert start._address_for("user@pod-a.invalid") == "10.9.8.7"

    def none(interface):
        raise LaunchError("none")

    monkeypatch.setattr(_network, "candidates", none)
    with pytest.raises(CliError, match="pod-a.invalid.*name one by --address"):
        start._address_for("pod-a.invalid")


@pytest.mark.parametrize(
    "words, status, text",
    [
        (["--address", "1.2.3.4"], 1, "--address is where the ranks of --hosts meet"),
        (["--sizes", "5"], 2, "size '5'; allowed: positive multiples of 4 bytes"),
        (["--bits", "9"], 2, "bits '9'; allowed: 1 to 8, 16, 32"),
        (["--codec", "zip"], 1, "--codec zip: no such codec; allowed: maxmin, rotated, trellis"),
        (["--codec", "trellis", "--bits", "8"], 1, "--bits 8: trellis has no 8 bits"),
        (["--interface", "nope0"], 1, "has no such interface"),
        (["--json", "/nowhere/file"], 1, "cannot write /nowhere/file: No such file"),
        (["--hosts", "a", "--ranks", "2"], 1, "--ranks is for this host"),
        (["--hosts", "localhost", "--rsh", "/nowhere/ssh"], 1, "'/nowhere/ssh' does not start"),
    ],
)
def test_bad_input_is_one_line(capsys, words, status, text):
    assert cli(["bench", *words]) == status
    err = capsys.readouterr().err
    assert text in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "words, text",
    [
        (["--ranks", "100000"], "100000 ranks; allowed: at most 1024"),
        (["--hosts", "a:600,b:600"], "1200 ranks; allowed: at most 1024"),
        (["--ranks", "6"], "--ranks 6 takes about 1.17 GiB on this host, which has 1 GiB free"),
    ],
)
def test_more_ranks_than_fit_start_nothing(monkeypatch, capsys, words, text):
    """The command is not run: one that fails this would take all of the machine's memory."""

    def started(*_):
        raise AssertionError("a rank was started")

    monkeypatch.setattr(start, "free_memory", lambda: 1 << 30)
    monkeypatch.setattr(start, "_start", started)
    monkeypatch.setattr(start, "_serve", started)
    assert cli(["bench", *words]) == 1
    assert capsys.readouterr().err == f"cgx bench: {text}\n"


def test_a_host_that_cannot_be_reached_is_named():
    done = run("--hosts", "localhost", "--rsh", "false", *SMALL)
    assert done.returncode == 1
    assert done.stderr == "cgx bench: rank 0 on localhost ended with status 1\n"


def test_ranks_of_other_hosts_end_with_the_command(tmp_path):
    """Nothing but their stdin tells them that it was killed."""
    rsh = _rsh(tmp_path, f"echo $$ >> {tmp_path}/pids")
    words = ["--hosts", "localhost,127.0.0.1", "--rsh", str(rsh), "--sizes", "64M"]
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_cgx", "bench", *words, "--repeats", "1000"], cwd=ROOT
    )
    file = tmp_path / "pids"
    pids = []
    try:
        limit = time.monotonic() + 60
        while len(pids) < 2 and time.monotonic() < limit:
            time.sleep(0.05)
            pids = [int(pid) for pid in file.read_text().split()] if file.exists() else []
        assert len(pids) == 2 and all(map(_runs, pids))
        process.kill()
        process.wait()
        limit = time.monotonic() + 60  # they may still be importing torch
        while any(map(_runs, pids)) and time.monotonic() < limit:
            time.sleep(0.05)
        assert not any(map(_runs, pids))
    finally:
        for pid in [*filter(_runs, pids)]:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "status, said",
    [(127, "env: '/x/python': No such file or directory"), (1, "/x: No module named torch_cgx")],
)
def test_a_host_without_the_package_is_told(tmp_path, status, said):
    file = tmp_path / "said"
    file.write_text(said)
    with file.open("rb") as stderr:
        text = start._reason(start.Rank(1, "b", None, stderr), status)
    assert text.startswith(f"rank 1 on b ended with status {status}: {said} (torch_cgx must be")


def test_the_group_of_gloo_does_not_listen_at_a_loopback_address(monkeypatch):
    """Where the host's name has only that; the address stands for the one towards the store."""
    places = [
        {"network": name, "host": name, "named": "", "at": "", "way": "127.0.0.1", "any": ""}
        for name in ("a", "b")
    ]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.setattr(rank, "_everyone", [{"gloo": json.dumps(one)} for one in places[:1] * 2])
    rank._name_interface(0)
    assert os.environ["GLOO_SOCKET_IFNAME"] == ""
    monkeypatch.setattr(rank, "_everyone", [{"gloo": json.dumps(one)} for one in places])
    rank._name_interface(0)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_is_one_line():
    done = run("--device", "cuda", *SMALL)
    assert done.returncode == 1
    assert done.stderr == f"cgx bench: --device cuda: torch {torch.__version__} sees no GPU here\n"


def test_sizes_beyond_the_memory_are_refused():
    done = run("--sizes", "4096G")
    assert done.returncode == 1
    assert done.stderr.startswith("cgx bench: --sizes up to 4096 GiB takes about")
    assert done.stderr.count("\n") == 1


def test_a_rank_that_is_missing_ends_the_others():
    env = {"RANK": "1", "WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = run("--timeout", "2", *SMALL, env=env)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("cgx bench: rank 1 on") and "127.0.0.1:1 within 2 s" in last


def _endless(folder):
    """A command that takes hours, and the process ids of its two ranks; folder holds what it
    leaves.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_cgx", "bench", "--sizes", "64M", "--repeats", "1000"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # In the background of a shell, SIGINT is ignored, and a child would do so too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    limit = time.monotonic() + 60
    while len(children.read_text().split()) < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    return process, [int(pid) for pid in children.read_text().split()]


def _runs(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _left(before):
    """The shared memory that is new; not the folders of hosts that other tests have."""
    new = set(Path("/dev/shm").iterdir()) - before
    return [path for path in new if "cgx" in path.name and not path.name.startswith("hosts-")]


def _measures(pid):
    """Whether this rank has the shared memory of a group: it measures, or is about to."""
    return "/dev/shm/" in Path(f"/proc/{pid}/maps").read_text()


# SIGHUP and SIGTERM have one handler, so one of them is enough while ranks import torch.
@pytest.mark.parametrize(
    "name, status, measuring",
    [
        *(("INT", 130, False), ("TERM", 143, False), ("KILL", -9, False)),
        *(("INT", 130, True), ("TERM", 143, True), ("HUP", 129, True), ("KILL", -9, True)),
    ],
)
def test_ranks_end_with_the_command(name, status, measuring, tmp_path):
    before = set(Path("/dev/shm").iterdir())
    process, pids = _endless(tmp_path)
    try:
        limit = time.monotonic() + 60
        while measuring and not all(map(_measures, pids)):
            assert time.monotonic() < limit
            time.sleep(0.05)
        process.send_signal(getattr(signal, f"SIG{name}"))
        _, said = process.communicate(timeout=30)
        assert process.returncode == status
        assert said.count("\n") == (0 if name == "KILL" else 1)
        limit = time.monotonic() + 30
        while any(map(_runs, pids)) and time.monotonic() < limit:
            time.sleep(0.05)
        assert not any(map(_runs, pids))
    finally:
        for pid in filter(_runs, pids):
            os.kill(pid, signal.SIGKILL)
    assert not _left(before)
    assert not list(tmp_path.iterdir())


def test_a_killed_rank_ends_the_command_and_leaves_nothing(tmp_path):
    before = set(Path("/dev/shm").iterdir())
    process, pids = _endless(tmp_path)
    os.kill(pids[1], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.count("\n") == 1 and said.startswith("cgx bench: rank ")
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()
    assert not _left(before)
    assert not list(tmp_path.iterdir())
