"""Ray Train on a cluster of two hosts: a worker is killed, and the training goes on from its
checkpoint to the weights that it would have had.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.hosts.marks import needs_hosts
from tests.recipes.ray_cluster import RayCluster, ray_cluster
from tests.recipes.running import RECIPES, needs_recipes, python, run, run_ranks

pytestmark = [needs_recipes, pytest.mark.slow]

STEPS = 120  # 12 checkpoints, each some tenths of a second apart
LINE = (
    r"rank (\d) of 2: steps (\d+) to (\d+), loss ([\d.]+) to ([\d.]+), weights (\w+), "
    r"sent (\d+) of (\d+) bytes"
)


def _check(output: str) -> tuple[int, str]:
    """Both ranks have trained to the last step, alike, with compressed bytes: the first step and
    the weights.
    """
    found = sorted(re.findall(LINE, output))
    assert [one[0] for one in found] == ["0", "1"], output
    for _, _, last, begin, end, _, sent, raw in found:
        assert int(last) == STEPS - 1
        assert float(end) < 0.6 * float(begin)
        assert 0 < int(sent) < int(raw) / 5
    assert len({(one[1], one[5]) for one in found}) == 1, "steps or weights differ between ranks"
    return int(found[0][1]), found[0][5]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("storage")) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The weights of the same training by torchrun, without a failure."""
    first, weights = _check(run_ranks("train.py", "--steps", str(STEPS)).output)
    assert first == 0
    return weights


@needs_hosts
def test_after_a_worker_is_killed_all_go_on_from_the_checkpoint(cluster, undisturbed):
    training = cluster.train("restarted", "--steps", str(STEPS))
    cluster.kill_a_worker("restarted", host=1)
    assert cluster.status_of(training) == 0, cluster.output()
    first, weights = _check(cluster.lines_of_workers())
    assert 0 < first < STEPS and first % 10 == 0
    assert weights == undisturbed
    assert re.search(rf"finished: .*'step': {STEPS - 1}\b", cluster.output())


@needs_hosts
def test_a_failure_that_is_not_allowed_ends_the_training(cluster):
    training = cluster.train("failed", "--steps", str(STEPS), "--max-failures", "0")
    cluster.kill_a_worker("failed", host=0)
    assert cluster.status_of(training) == 1, cluster.output()
    assert "WorkerGroupError" in cluster.output()


def test_no_workers_are_a_usage_error():
    finished = run([python(), str(RECIPES / "ray_train.py"), "--workers", "0"], status=2)
    assert "error: --workers 0; allowed: 1 or more" in finished.output
