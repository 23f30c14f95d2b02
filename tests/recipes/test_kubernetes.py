"""The manifest of Kubernetes: schemas, and its command in two "pods" with the training operator's
environment, which train, and go on from their checkpoint after one of them has ended.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.distributed import ROOT
from tests.recipes.running import RECIPES, Finished, needs_recipes, python, run, write_commands

pytestmark = [needs_recipes, pytest.mark.slow]

MANIFEST = RECIPES / "kubernetes.yaml"
# The manifest asks for 4 threads a rank; on fewer cores they should not wait actively.
CALM = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
STEPS = ("--steps", "120")
HERE = ROOT / "tests" / "recipes"
LINE = (
    r"rank (\d) of 2: steps (\d+) to (\d+), loss ([\d.]+) to ([\d.]+), weights (\w+), "
    r"sent (\d+) of (\d+) bytes"
)


def _check(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python(), str(HERE / "kubernetes_check.py")],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def job():
    done = _check(MANIFEST.read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "old, new, error",
    [
        ("nprocPerNode", "nprocPerNodes", r"'nprocPerNodes' was unexpected"),
        ('nprocPerNode: "1"', "nprocPerNode: 1", r"spec\.nprocPerNode: 1 is not of type 'string'"),
        ("kubeflow.org/v1", "kubeflow.org/v2", r"apiVersion: 'kubeflow.org/v1' was expected"),
        ("replicas: 1", "replicas: 2", r"Master\.replicas: 1 was expected"),
        ("OnFailure", "onFailure", r"'onFailure' is not one of"),
        ("name: pytorch ", "name: main ", r"containers: .* does not contain"),
        ("medium: Memory", "mediun: Memory", r"Master: .*'mediun' was unexpected"),
        ('value: "4"', "value: 4", r"env\.0\.value: 4 is not of type 'string'"),
        ("name: shm, ", "name: smh, ", r"Master: no volume 'smh'"),
    ],
)
def test_a_wrong_field_is_found(old, new, error):
    text = MANIFEST.read_text()
    assert old in text
    done = _check(text.replace(old, new))
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(error, done.stdout), done.stdout


def test_the_image_user_and_shared_memory_are_those_of_the_dockerfile(job):
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    version = re.search(r'image\.version="([\d.]+)"', dockerfile)
    user = re.search(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)
    assert version and user
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        spec = replicas["template"]["spec"]
        (container,) = spec["containers"]
        assert container["image"] == f"torch_cgx:{version[1]}"
        security = spec["securityContext"]
        assert (security["runAsUser"], security["runAsGroup"]) == (int(user[1]), int(user[2]))
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume.pop("name"): volume for volume in map(dict, spec["volumes"])}
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"


def _run(folder: Path, job: object, *arguments: str) -> Finished:
    """Both pods, with torchrun on the PATH as in the image, and their volumes below `folder`."""
    commands = folder / "bin"
    looks_for_ranks = "--end-worker" in arguments  # fake_pods.py does, by torchrun's children
    env = {**CALM, **write_commands(commands, python(), started=looks_for_ranks)}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "checkpoints").mkdir(exist_ok=True)
    command = [python(), "-P", str(HERE / "fake_pods.py"), str(folder / "job.json")]
    command += ["--map", f"/code={RECIPES}", "--map", f"/checkpoints={folder / 'checkpoints'}"]
    path = f"{commands}:{os.environ['PATH']}"
    return run([*command, *arguments], env={"PATH": path, **env}, seconds=300)


def _weights(finished: Finished, first: int | None, last: int) -> str:
    """Of both ranks, which have trained from step `first` (None: above 0) to `last`."""
    found = sorted(re.findall(LINE, finished.output))
    assert [one[0] for one in found] == ["0", "1"], finished.output
    assert {one[2] for one in found} == {str(last)}
    (start,) = {int(one[1]) for one in found}
    assert start > 0 if first is None else start == first
    assert found[0][5] == found[1][5], "weights differ between ranks"
    for *_, sent, raw in found:
        assert 0 < int(sent) < int(raw) / 5
    return found[0][5]


def test_two_pods_train(job, tmp_path):
    finished = _run(tmp_path, job)
    _weights(finished, 0, 39)
    assert "communicator gloo, 2 hosts" in finished.output  # CGX_LOG of the manifest
    assert (tmp_path / "checkpoints" / "last.pt").exists()
    ended = finished.matches(r"pods: cgx-(\w+)-0 ended with status 0")
    assert ended == ["master", "worker"], finished.output


@pytest.fixture(scope="module")
def undisturbed(job, tmp_path_factory) -> str:
    """The weights after all steps without a failure."""
    return _weights(_run(tmp_path_factory.mktemp("whole"), job, *STEPS), 0, 119)


@pytest.mark.parametrize("order", [(), ("--old-master",)], ids=["together", "old master"])
def test_pods_start_again_after_one_has_ended_and_go_on(job, tmp_path, order, undisturbed):
    checkpoint = tmp_path / "checkpoints" / "last.pt"
    finished = _run(tmp_path, job, "--end-worker", str(checkpoint), *order, *STEPS)
    assert finished.matches(r"pods: (cgx-worker-0) gets SIGTERM")
    assert finished.matches(r"pods: cgx-(\w+)-0 ended with status 1") == ["master", "worker"]
    assert _weights(finished, None, 119) == undisturbed
