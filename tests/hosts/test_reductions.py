"""Jobs on several hosts: right results under every launcher, over every communicator between hosts.

The ranks check themselves (tests/hosts/programs.py); here they are started.
"""

from __future__ import annotations

import json
import random
import sys

import pytest

from tests import warm
from tests.hosts.marks import mpi_installation, needs_hosts
from torch_cgx.testbed.bed import hosts

pytestmark = needs_hosts

LAYOUTS = [(2, 2), (2, 1, 1), (1, 1, 1, 1)]
RANDOM_PROGRAMS = 30
ALL = "compressed,collectives"


def command(*arguments: str, python: str = sys.executable) -> list[str]:
    return [*warm.python(python), "-m", "tests.hosts.programs", *arguments]


def check_passed(output: str, names: str, size: int) -> None:
    for name in names.split(","):
        for rank in range(size):
            assert f"rank {rank} of {size}: {name} passed" in output, output


@pytest.mark.parametrize("ranks", LAYOUTS, ids=str)
def test_over_gloo(ranks):
    with hosts(len(ranks), rate=None) as bed:
        outputs = bed.run(command(ALL), ranks=ranks, timeout=240)
        check_passed("\n".join(outputs), ALL, sum(ranks))


def test_under_torchrun():
    """Of a rank, torchrun decides no more than variables, as `run` does: one layout is enough."""
    ranks = (2, 1, 1)
    with hosts(len(ranks), rate=None) as bed:
        outputs = bed.torchrun(command("brief"), ranks=ranks, timeout=240)
        check_passed("\n".join(outputs), "brief", sum(ranks))


@pytest.mark.parametrize(
    "kind, ranks", [("openmpi", (2, 1, 1)), ("openmpi", (1, 1, 1, 1)), ("mpich", (2, 2))], ids=str
)
def test_over_mpi_under_mpirun(kind, ranks):
    prefix = mpi_installation(kind)
    with hosts(len(ranks), rate=None) as bed:
        output = bed.mpirun(
            command(ALL, python=str(prefix / "bin" / "python")),
            ranks=ranks,
            mpirun=prefix / "bin" / "mpirun",
            env={"CGX_CROSS_COMMUNICATOR_TYPE": "MPI"},
            timeout=240,
        )
        check_passed(output, ALL, sum(ranks))


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_over_gloo_under_mpirun(kind):
    prefix = mpi_installation(kind)
    with hosts(2, rate=None) as bed:
        output = bed.mpirun(
            command("brief", python=str(prefix / "bin" / "python")),
            ranks=[2, 1],
            mpirun=prefix / "bin" / "mpirun",
            timeout=240,
        )
        check_passed(output, "brief", 3)


def test_random_programs_on_overlapping_groups_agree_with_gloo():
    first = random.randrange(1 << 30)
    print(f"programs with the seeds {first} to {first + RANDOM_PROGRAMS - 1}")
    with hosts(2, rate=None) as bed:
        arguments = command("random", str(first), str(RANDOM_PROGRAMS))
        outputs = bed.run(arguments, ranks=[2, 2], timeout=240)
        check_passed("\n".join(outputs), "random", 4)


VALUES = 1 << 24  # 64 MiB


# Configurations, and the bits of a value on the wire with its share of extremes or scales.
CONFIGS: list[tuple[dict[str, object], float]] = [
    ({"bits": 4}, 4 + 64 / 512),
    ({"bits": 32}, 32),
    ({"codec": "float", "exponent": 4, "mantissa": 3}, 8),
    ({"codec": "block", "format": "mxfp4"}, 4 + 8 / 32),
]


@pytest.mark.parametrize("count", [2, 4])
def test_bytes_that_leave_a_host(count):
    """Two ranks a host, none of whose values may cross the wire twice; all have equal bits."""
    texts = [json.dumps(config) for config, _ in CONFIGS]
    with hosts(count, rate=None) as bed:
        outputs = bed.run(command("traffic", str(VALUES), "2", *texts), ranks=2, timeout=240)
    told = [[json.loads(x) for x in text.splitlines() if x.startswith("{")] for text in outputs]
    assert len(told) == 2 * count
    for number, (config, bits) in enumerate(CONFIGS):
        assert len({lines[number]["digest"] for lines in told}) == 1, config
        expected = 2 * (count - 1) / count * VALUES * bits / 8
        for host in range(count):
            line = told[2 * host][number]
            assert line["config"] == config
            share = line["sent"] / 2 / expected
            print(f"host {host} of {count}, {config}: {share:.4f} of the formula")
            # Headers, acknowledgements and the barriers are in the counters too.
            assert 0.99 < share < 1.05, config
