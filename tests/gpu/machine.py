"""What run_all.sh asks of the machine: python -m tests.gpu.machine versions|device|prebuilt

    versions   prints those of driver, torch, nvcc, setuptools and compiler, or none; never fails
    device     prints the GPU; fails, with the reason, where torch sees none
    prebuilt   fails, with what to do, unless torch_cgx imports and has kernels for the GPU

CGX_TEST_GPU=fake: on the fake device.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Any


def versions() -> dict[str, str]:
    home = os.environ.get("CUDA_HOME", "")
    nvcc = f"{home}/bin/nvcc" if home and os.access(f"{home}/bin/nvcc", os.X_OK) else "nvcc"
    query = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    return {
        "driver": _first_line(query),
        "torch": _package("torch"),
        "nvcc": _first_line([nvcc, "--version"], r"release.*"),
        "setuptools": _package("setuptools"),
        "compiler": _first_line([*os.environ.get("CXX", "g++").split(), "--version"]),
    }


def _package(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _first_line(command: list[str], pattern: str = r".+") -> str:
    """Of what it says; what the pattern matches of it."""
    try:
        if not command or shutil.which(command[0]) is None:
            return "none"
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, ValueError, subprocess.SubprocessError):
        return "none"
    found = re.search(pattern, done.stdout) if done.returncode == 0 else None
    return found[0].strip() if found else "none"


def device() -> str:
    """Its name. SystemExit: torch sees none."""
    torch = _torch()
    fake = os.environ.get("CGX_TEST_GPU") == "fake"
    if not fake and (torch.version.cuda is None or not torch.cuda.is_available()):
        sys.exit(f"torch {torch.__version__} in {sys.executable} sees no CUDA device")
    return f"torch {torch.__version__}, {torch.cuda.get_device_name()}"


def prebuilt() -> None:
    """SystemExit: the extension is missing, is for another torch, or has no kernels for this GPU
    and no NVRTC to compile them.
    """
    build = "run tests/gpu/run_all.sh without --no-build, or build torch_cgx for this torch and GPU"
    torch = _torch()
    try:
        from torch_cgx.codecs import MaxMin
    except Exception as error:
        sys.exit(f"--no-build: torch_cgx does not import: {error}\n{build}")
    try:  # loads the kernels
        MaxMin(4, 64).encode(torch.ones(100, device="cuda"))
        torch.cuda.synchronize()
    except Exception as error:
        name = torch.cuda.get_device_name()
        sys.exit(f"--no-build: torch_cgx does not run on {name}: {error}\n{build}")


def _torch() -> Any:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = (
        "0"  # torch would fail with an extension that does
    )
    if os.environ.get("CGX_TEST_GPU") == "fake":
        from tests.device import fake_cuda

        fake_cuda.load()
    import torch

    return torch


def main(words: list[str]) -> int:
    if words == ["versions"]:
        for name, version in versions().items():
            print(f"{name}: {version}")
    elif words == ["device"]:
        print(device())
    elif words == ["prebuilt"]:
        prebuilt()
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
