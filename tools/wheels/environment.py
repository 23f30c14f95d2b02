"""The environments that build wheels: a Python, one torch and what the build requires, each in a
folder of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tools.wheels.names import Target
from tools.wheels.tree import TREE, WORK

BUILD_PACKAGES = ("setuptools>=77,<82", "wheel", "ninja")  # as in pyproject.toml
WRAPPED = "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"


def run(command: list[str], what: str, **options: object) -> str:
    """Its output, standard error included. A failure ends the program."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    if done.returncode != 0:
        sys.exit(f"make wheels: {what} fails ({shlex.join(command)}):\n{done.stdout}")
    return str(done.stdout)


def base_packages(base: Path, target: Target) -> str:
    """The site-packages of the environment `base` if it has this Python and torch, else ""."""
    script = (
        "import importlib.metadata as m, sys, sysconfig; v = sys.version_info; "
        "print(f'cp{v[0]}{v[1]}', m.version('torch'), sysconfig.get_path('purelib'))"
    )
    python = base / "bin/python"
    if not python.exists():
        return ""
    done = subprocess.run([str(python), "-c", script], capture_output=True, text=True)
    if done.returncode != 0:
        return ""
    tag, torch, folder = done.stdout.strip().split(maxsplit=2)
    return folder if (tag, torch.partition("+")[0]) == (target.tag, target.torch) else ""


def make(target: Target, base: Path) -> Path:
    """The interpreter of an environment for `target`. torch comes from the environment `base` if
    that has it, else from pip, which may take gigabytes.
    """
    folder = WORK / f"env-{target.name}"
    python, stamp = folder / "bin/python", folder / ".ready"
    shared = base_packages(base, target)
    if stamp.exists() and stamp.read_text() == shared:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    run([shutil.which(target.python) or target.python, "-m", "venv", str(folder)], "its venv")
    packages = [*BUILD_PACKAGES]
    if shared:
        query = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        own = run(query, "its venv").strip()
        (Path(own) / "base.pth").write_text(f"{shared}\n")
    else:
        print(f"make wheels: installing torch {target.torch} into {folder.name}", flush=True)
        packages += ["numpy", f"torch=={target.torch}"]
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run([*pip, *packages], "installing its packages")
    ninja = folder / "bin/ninja"
    if not ninja.exists() and (base / "bin/ninja").exists():
        # As `base` had it, pip has left it out; a ninja of the system may be one that cannot read
        # what this one has logged.
        ninja.symlink_to((base / "bin/ninja").resolve())
    stamp.write_text(shared)
    return python


def lower_libstdcxx() -> str:
    """LDFLAGS that link libstdcxx.cc."""
    source = Path(__file__).with_name("libstdcxx.cc")
    compiled = WORK / "libstdcxx.o"
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    run([*compiler, "-O2", "-fPIC", "-c", str(source), "-o", str(compiled)], source.name)
    return f"-Wl,--wrap={WRAPPED} {shlex.quote(str(compiled))}"


def build(python: Path, target: Target, mpicc: str, kernels: bool, out: Path) -> Path:
    """The wheel of TREE, as the build leaves it, in the folder `out`."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    env = {k: v for k, v in os.environ.items() if k not in ("CGX_TESTING", "MPICC", "PYTHONPATH")}
    links = f"{env.get('LDFLAGS', '')} {lower_libstdcxx()}"
    env |= {"LDFLAGS": links.strip(), "CGX_MPICC": mpicc}
    env |= {"CGX_MPI": "1" if mpicc else "0", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    env["CGX_CUDA_ARCHS"] = os.environ.get("CGX_CUDA_ARCHS", "all") if kernels else "0"
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps"]
    command += ["--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(out), str(TREE)]
    run(command, f"the build for {target.name}", env=env, cwd=out)
    (found,) = out.glob("*.whl")
    return found
