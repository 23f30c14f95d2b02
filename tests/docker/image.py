"""Images of docker/Dockerfile without a registry or a daemon.

The base is made from Debian's packages by mmdebstrap, and buildah runs the steps in chroots.
Processes run in the image's root as in a container.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.distributed import ROOT

_MEMORY_GIB = 16  # free, for the build to be in memory
NEEDED = ("buildah", "mmdebstrap", "ip", "tc", "unshare")
BUILD_SECONDS = 1500
_CONTAINER = Path(__file__).with_name("container.sh")
# What pip and apt of this machine use, as a user would hand it to a build.
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def missing() -> str | None:
    """What is missing for building images here; None: nothing."""
    if os.environ.get("CGX_TEST_DOCKER") != "1":
        return "CGX_TEST_DOCKER=1 asks for it (make docker-test)"
    if os.geteuid() != 0:
        return "needs root"
    absent = [name for name in NEEDED if shutil.which(name) is None]
    return f"no {', '.join(absent)}" if absent else None


@dataclasses.dataclass(frozen=True)
class Image:
    """A built image: its configuration as Docker has it, and the folder that holds its files."""

    config: Mapping[str, Any]
    root: Path

    def variables(self) -> dict[str, str]:
        """The environment that the image sets."""
        return dict(line.split("=", 1) for line in self.config["Env"])

    def command(
        self,
        command: Sequence[str],
        hosts: Path,
        name: str = "container",
        shm: str = "64m",
        user: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The line that runs `command` in a container, in the caller's network."""
        values = self.variables() | dict(env or {})
        script = [str(_CONTAINER), str(self.root), name, str(hosts), shm]
        place = [self.config["WorkingDir"], user or self.config["User"]]
        inside = [*(f"{key}={value}" for key, value in values.items()), *command]
        unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts"]
        return [*unshare, "sh", *script, *place, *inside]

    def run(
        self, command: Sequence[str], timeout: float = 120.0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """`command` in a container without a network; stderr is part of stdout."""
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hosts:
            hosts.write("127.0.0.1 localhost container\n")
            hosts.flush()
            os.fchmod(hosts.fileno(), 0o644)
            line = ["unshare", "--net", *self.command(command, Path(hosts.name), **options)]
            return subprocess.run(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
            )


class BuildError(Exception):
    """A command of the build failed; the text has its last lines."""


def _do(command: Sequence[str], seconds: float = 300.0) -> str:
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            list(command),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            timeout=seconds,
        )
        said.seek(0)
        if done.returncode:
            lines = (done.stdout + said.read()).splitlines()[-40:]
            raise BuildError(f"{' '.join(command)}: status {done.returncode}\n" + "\n".join(lines))
    return done.stdout.strip()


def _sources() -> str:
    """This machine's sources of Debian packages."""
    for name in ("sources.list.d/debian.sources", "sources.list"):
        file = Path("/etc/apt") / name
        if file.exists() and file.read_text().strip():
            return str(file)
    raise BuildError("/etc/apt has neither sources.list nor sources.list.d/debian.sources")


def _release() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "VERSION_CODENAME":
            return value.strip('"')
    raise BuildError("/etc/os-release has no VERSION_CODENAME")


def _pip_options(folder: Path) -> list[str]:
    """This machine's pip configuration for the build: folders as volumes, the rest as a secret."""
    lines = ["[global]"]
    options: list[str] = []
    listed = subprocess.run(["pip", "config", "list"], capture_output=True, text=True).stdout
    wanted = ("find-links", "index-url", "extra-index-url", "trusted-host")
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        # Of local folders only plain ones, with find-links, reach the build.
        text = " ".join(word for word in value.strip("'").split() if not word.startswith("file:"))
        if name in wanted and text and not any(one.startswith(f"{name} =") for one in lines):
            lines.append(f"{name} = {text}")
            folders = [word for word in text.split() if Path(word).is_dir()]
            options += [part for one in folders for part in ("--volume", f"{one}:{one}:ro")]
    if _CERTIFICATES.exists():
        lines.append("cert = /run/certificates.pem")
        options += ["--volume", f"{_CERTIFICATES}:/run/certificates.pem:ro"]
    file = folder / "pip.conf"
    file.write_text("\n".join([*lines, ""]))
    return [*options, "--secret", f"id=pip_conf,src={file}"]


@contextlib.contextmanager
def built(target: str, wheel: str | None = None) -> Iterator[Image]:
    """The image of a target of docker/Dockerfile; it goes away at the end.

    `wheel`, a path in the repository, is installed in place of a compilation.
    """
    folder = Path(tempfile.mkdtemp(prefix="cgx-docker-"))
    _into_memory(folder)
    buildah = ["buildah", "--storage-driver", "vfs", "--root", str(folder / "store")]
    buildah += ["--runroot", str(folder / "run")]
    try:
        base = folder / "base.tar"
        _do(["mmdebstrap", "--variant=minbase", _release(), str(base), _sources()])
        container = _do([*buildah, "from", "scratch"])
        _do([*buildah, "add", container, str(base), "/"])
        _do([*buildah, "commit", "--quiet", container, "localhost/base"])
        _do([*buildah, "rm", container])
        base.unlink()
        # chroot, because a runtime would need control groups that a sandbox may lack.
        options = ["--format", "docker", "--isolation", "chroot", "--network", "host"]
        options += ["--layers=false", "--build-arg", "BASE=localhost/base", "--target", target]
        options += ["--build-arg", f"WHEEL={wheel}"] if wheel else []
        options += [*_pip_options(folder), "--file", "docker/Dockerfile"]
        _do([*buildah, "bud", *options, "--tag", "localhost/image", "."], BUILD_SECONDS)
        described = json.loads(_do([*buildah, "inspect", "--type", "image", "localhost/image"]))
        container = _do([*buildah, "from", "localhost/image"])
        root = Path(_do([*buildah, "mount", container]))
        yield Image(described["Docker"]["config"], root)
    finally:
        _remove(folder)


def _into_memory(folder: Path) -> None:
    """Some GB are written several times, as each step copies all of them: in memory, where there is
    plenty, this takes half the time.
    """
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:") and int(line.split()[1]) >> 20 >= _MEMORY_GIB:
            options = f"size={_MEMORY_GIB - 4}g,mode=0700"
            _do(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)])


def _remove(folder: Path) -> None:
    """Removes the folder; never what may still be mounted below it."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((one for one in mounts if Path(one).is_relative_to(folder)), reverse=True):
        subprocess.run(["umount", mount], check=True)
    shutil.rmtree(folder)
