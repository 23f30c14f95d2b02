"""Hosts whose own name means 127.0.1.1, as Debian and its relatives have it: Gloo would listen
there, and no other host would reach it.
"""

from __future__ import annotations

import pytest

from testbed.bed import hosts
from tests import warm
from tests.hosts.marks import needs_hosts

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
