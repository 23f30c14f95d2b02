"""`cgx link`: a script on hosts of this machine."""

import os
import re
import subprocess

import pytest

from tests import warm
from tests.distributed import ROOT
from tests.hosts.marks import needs_hosts
from torch_cgx.cli import main as cli
from torch_cgx.testbed import bed

SCRIPT = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("cgx")
x = torch.ones(1 << 18)
dist.all_reduce(x)
print("rank", dist.get_rank(), "has", x[0].item(), *sys.argv[1:], flush=True)
print("the last line", end="", flush=True)
sys.exit(int(sys.argv[2]))
"""


@needs_hosts
def test_a_module_takes_the_place_of_a_script(tmp_path):
    (tmp_path / "told.py").write_text("import sys\nprint('told', *sys.argv[1:], flush=True)\n")
    line = [*warm.python(), "-m", "torch_cgx", "link", "--hosts", "1", "-m", "told", "-x", "--rate"]
    done = subprocess.run(
        line, cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, **warm.NESTED, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "host0: told -x --rate\n" in done.stdout


@needs_hosts
def test_a_script_runs_on_every_host_and_its_fate_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    line = [*warm.python(), "-m", "torch_cgx", "link", "--rate", "500mbit", "--hosts", "2"]
    for status in ("0", "3"):
        done = subprocess.run(
            [*line, str(script), "--name", status],
            cwd=ROOT, capture_output=True, text=True, timeout=120,
            env={**os.environ, **warm.NESTED},
        )  # fmt: skip
        for host in range(2):
            assert f"host{host}: rank {host} has 2.0 --name {status}\n" in done.stdout
            # torchrun may write into the same line: that the other host's store is gone.
            assert f"\nhost{host}: the last line" in done.stdout
        if status == "0":
            assert done.returncode == 0, done.stderr
            sent = re.findall(r"^host \d: sent (\S+) MiB, received \S+ MiB, at 500mbit$",
                              done.stdout, re.M)  # fmt: skip
            assert len(sent) == 2 and all(1.0 < float(mib) < 1.3 for mib in sent), sent
        else:
            assert done.returncode == 1
            assert done.stderr.startswith(f"cgx link: {script} --name 3: failed (host 0: status 1")
            assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "no script; allowed: cgx link"),
        (["-m"], "no script; allowed: cgx link"),
        (["--rate", "fast", "x.py"], "argument --rate: rate 'fast'; allowed: 64kbit to 100gbit"),
        (["--hosts", "0", "x.py"], "argument --hosts: '0'; allowed: integers from 1"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, words, said):
    try:
        status = cli(["link", *words])
    except SystemExit as error:
        status = error.code
    err = capsys.readouterr().err
    assert status == 2 and said in err and err.count("\n") == 1


def test_what_is_missing_is_said(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(bed, "hosts_available", lambda: "no 'tc' (apt-get install iproute2)")
    (tmp_path / "x.py").touch()
    assert cli(["link", str(tmp_path / "x.py")]) == 1
    err = capsys.readouterr().err
    assert err == "cgx link: there can be no hosts here: no 'tc' (apt-get install iproute2)\n"
    assert cli(["link", "missing.py"]) == 1
    assert capsys.readouterr().err == "cgx link: there is no file missing.py\n"
