"""Hosts whose own name means 127.0.1.1, as Debian and its relatives have it: Gloo would listen
there, and no other host would reach it.
"""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from tests import warm
from tests.distributed import ROOT
from tests.hosts.marks import needs_hosts
from torch_cgx import _hosts
from torch_cgx.testbed.bed import HostsFailed, hosts

pytestmark = needs_hosts

# On a host of the bed: its own name first means the loopback; the others' are as they were.
DEBIAN = """
own=$(hostname); file=$TMPDIR/hosts-$RANK
{ echo "127.0.0.1 localhost"; echo "127.0.1.1 $own"; grep -v "$own" /etc/hosts; } > "$file"
mount --bind "$file" /etc/hosts
exec "$@"
"""
PROGRAM = """
import datetime, os, socket, sys
assert socket.gethostbyname(socket.gethostname()) == "127.0.1.1"
import torch, torch.distributed as dist, torch_cgx
dist.init_process_group("cgx", timeout=datetime.timedelta(seconds=20))
rank, size = dist.get_rank(), dist.get_world_size()
groups = [None, dist.new_group(pg_options=torch_cgx.Options(inner_communicator="GLOO"))]
for group in groups:
    x = torch.full((10_000,), float(rank))
    torch_cgx.all_reduce(x, group=group, config={"bits": 8})
    assert torch.all(x == sum(range(size))), x
    y = torch.tensor([rank])
    dist.broadcast(y, size - 1, group=group)
    assert y.item() == size - 1
assert "GLOO_SOCKET_IFNAME" not in os.environ or not os.environ["GLOO_SOCKET_IFNAME"]
dist.destroy_process_group()
print("passed", flush=True)
"""


def command():
    return ["sh", "-c", DEBIAN, "sh", *warm.python(), "-c", PROGRAM]


@pytest.mark.parametrize("launcher", ["by-name", "torchrun"])
def test_ranks_find_each_other_though_their_hosts_names_mean_the_loopback(launcher):
    with hosts(2, rate=None) as bed:
        env = {"GLOO_SOCKET_IFNAME": "", "TP_SOCKET_IFNAME": ""}
        if launcher == "torchrun":
            outputs = bed.torchrun(command(), ranks=[2, 1], env=env, timeout=90)
        else:  # on host 0 itself that name means the loopback, too
            env["MASTER_ADDR"] = bed.names[0]
            outputs = bed.run(command(), ranks=[2, 1], env=env, timeout=90)
    assert "".join(outputs).count("passed") == 3, outputs


MISLED = """
import datetime, torch.distributed as dist
try:
    dist.init_process_group("cgx", timeout=datetime.timedelta(seconds=60))
except RuntimeError as error:
    print("refused:", error, flush=True)
"""


def test_an_interface_that_leads_nowhere_is_an_error_on_all_ranks():
    with hosts(2, rate=None) as bed:
        script = '[ "$GROUP_RANK" = 0 ] || export GLOO_SOCKET_IFNAME=lo; exec "$@"'
        outputs = bed.run(
            ["sh", "-c", script, "sh", *warm.python(), "-c", MISLED], ranks=[2, 1], timeout=50
        )
        for output in outputs:
            (line,) = [line for line in output.splitlines() if line.startswith("refused:")]
            assert "GLOO_SOCKET_IFNAME=lo" in line and f"rank 2 on host {bed.names[1]}" in line


# The name of a host means 127.0.0.1, as where /etc/hosts says "127.0.0.1 localhost HOST".
LOCALHOST = DEBIAN.replace('echo "127.0.1.1 $own"; ', "").replace("localhost", "localhost $own")
# As docs/launching.md has it; ranks of `bed.run` stand for the shells of two hosts.
BY_RENDEZVOUS = """
endpoint=$1; mine=$2; shift 2
[ "$RANK" = 0 ] && host=1 || host=0
set -- --rdzv-conf is_host=$host $mine "$@"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT
exec {python} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
  --rdzv-endpoint $endpoint "$@"
"""


@pytest.mark.parametrize("local", [True, False])
def test_torchrun_by_an_address_where_names_mean_the_loopback(local):
    """With the two options that the page and `cgx doctor` name; without --local-addr, torchrun
    hands out MASTER_ADDR=localhost, and `cgx doctor` names the option.
    """
    with hosts(2, rate=None) as bed:
        address = "--local-addr $(hostname -I | cut -d' ' -f1)" if local else ""
        script = BY_RENDEZVOUS.format(python=shlex.join(warm.python()))
        script = script.replace("$mine", address)
        line = ["sh", "-c", LOCALHOST, "sh", "sh", "-c", script, "sh"]
        line += [f"{bed.addresses[0]}:29400", "-", "-m", "torch_cgx", "doctor"]
        line += ["--timeout", "60" if local else "5"]
        env = {"GLOO_SOCKET_IFNAME": "", "TP_SOCKET_IFNAME": "", **warm.NESTED}
        if local:
            outputs = bed.run(line, ranks=[1, 1], env=env, timeout=110)
            assert "2 ranks on 2 hosts, alike" in outputs[0], outputs
        else:
            with pytest.raises(HostsFailed) as failed:
                bed.run(line, ranks=[1, 1], env=env, timeout=110, grace=30)
            assert "MASTER_ADDR=localhost is the loopback of every host" in str(failed.value)
            assert "--local-addr ADDRESS" in str(failed.value)


FACTS = "import json; from torch_cgx import _hosts; print(json.dumps(_hosts.facts()))"


def test_network_namespaces_that_share_memory_are_one_host():
    """As groups count them."""
    found = []
    for before in ([], ["unshare", "--net"]):
        line = [*before, *warm.python(), "-c", FACTS]
        found.append(json.loads(subprocess.check_output(line, cwd=ROOT, text=True)))
    assert found[0]["host_id"] == found[1]["host_id"]
    assert found[0]["network"] != found[1]["network"]
    assert _hosts.count(found) == 1 and _hosts.count_networks(found) == 2
    assert _hosts.link_inside_host(found) and not _hosts.link_inside_host(found[:1] * 2)
