"""docker/compose.yaml: its two services as two hosts of the test bed, run as the file says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import ROOT
from tests.docker.image import Image
from torch_cgx.testbed.bed import hosts

FILE = ROOT / "docker" / "compose.yaml"
SECONDS = 240


def substitute(text: str, env: dict[str, str]) -> str:
    """Compose's ${NAME:-default}."""

    def value(match: re.Match[str]) -> str:
        return env.get(match[1]) or match[2]

    return re.sub(r"\$\{([A-Z_]+):-([^}]*)\}", value, text)


def services(env: dict[str, str]) -> dict[str, dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="make docker-test brings PyYAML")
    return yaml.safe_load(substitute(FILE.read_text(), env))["services"]


def train(image: Image, folder: Path, env: dict[str, str]) -> tuple[list[str], int]:
    """What both services have written, and the bytes that the first has sent."""
    found = services(env)
    assert list(found) == ["host1", "host2"]
    with hosts(2, rate=None) as bed:
        names = folder / "hosts"
        table = zip(bed.addresses, found.values(), strict=True)
        lines = [f"{address} {service['hostname']}" for address, service in table]
        names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

        def run() -> list[str]:
            logs = [folder / f"{name}.log" for name in found]
            started = []
            for host, (service, log) in enumerate(zip(found.values(), logs, strict=True)):
                assert service["cap_add"] == ["NET_ADMIN"] and service["networks"] == ["link"]
                line = image.command(
                    [*service["entrypoint"], *service["command"]],
                    names,
                    name=service["hostname"],
                    shm=service["shm_size"],
                    user=service["user"],
                    env=service["environment"],
                )
                with log.open("w") as file:
                    started.append(
                        bed.popen(host, line, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
                    )
            try:
                statuses = [process.wait(SECONDS) for process in started]
            finally:
                for process in started:
                    process.kill()
                    process.wait()
            said = [log.read_text() for log in logs]
            assert statuses == [0, 0], "\n".join(said)
            return said

        said, traffic = bed.traffic_of(run)
    return said, traffic[0].sent_bytes


@pytest.mark.slow
def test_two_hosts_train_over_a_limited_link(demo: Image, tmp_path: Path):
    sent = {}
    for bits in ("4", "32"):
        folder = tmp_path / bits
        folder.mkdir()
        said, sent[bits] = train(demo, folder, {"BITS": bits, "EPOCHS": "1"})
        assert re.search(r"digits: backend cgx, .* 4 ranks, .* accuracy", said[0])
        compressed = "maxmin 4 bits; 7.6x fewer bytes; shm+gloo" in said[0]
        assert compressed == (bits == "4"), said[0]
    assert sent["4"] < sent["32"] / 3, sent
