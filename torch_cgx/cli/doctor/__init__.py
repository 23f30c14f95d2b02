"""`cgx doctor`: what is here, what follows from it, and how to mend what cannot work."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping

from torch_cgx.cli.doctor.finding import PROBLEM, Finding

EXAMPLES = """\
examples:
  cgx doctor                                        this host and this environment
  cgx doctor --json                                 the same for programs
  torchrun --nproc-per-node 2 --no-python cgx doctor
                                                    also all-reduces over every communicator
  mpirun -np 2 cgx doctor                           the same; so does srun

Status 1: something that is set, or that every group needs, cannot work (PROBLEM). What is absent
and was not asked for is a note."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long ranks wait for each other, 60 by default",
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: seconds above 0, up to 86400")
    return value


def run(args: argparse.Namespace) -> int:
    from torch_cgx.cli.doctor import ranks, show
    from torch_cgx.cli.meeting import launched

    findings, engine_loads = local_findings(os.environ)
    printing = True
    if launched(os.environ):
        findings, printing = ranks.examine(findings, engine_loads, args.timeout)
    if printing:
        print(show.json_of(findings) if args.json else show.text_of(findings), flush=True)
    ranks.leave(args.timeout)
    return 1 if any(one.status == PROBLEM for one in findings) else 0


def local_findings(env: Mapping[str, str]) -> tuple[list[Finding], bool]:
    """What one process finds, and whether the extension loads."""
    import torch
    import torch.distributed as dist

    from torch_cgx import __version__, _build_info
    from torch_cgx.cli.doctor import host, software, variables
    from torch_cgx.launch import _network as net

    built = _build_info.read()
    abi = bool(torch._C._GLIBCXX_USE_CXX11_ABI)
    extension, engine = software.check_extension(built, abi)
    findings = [
        software.check_python(),
        software.check_package(__version__, built),
        software.check_torch(torch.__version__, dist.is_gloo_available()),
        extension,
    ]
    if engine is not None:
        findings.append(software.check_cpu(engine, env))
        findings += software.check_mpi(env)
        findings += software.check_gpu(torch, dist.is_nccl_available(), env)
    name = socket.gethostname()
    ranks = int(env["LOCAL_WORLD_SIZE"]) if env.get("LOCAL_WORLD_SIZE", "").isdigit() else 2
    names = [interface for _, interface in socket.if_nameindex()]
    asked = software.asks_for("SHM", env)
    inside = env.get("CGX_INNER_COMMUNICATOR_TYPE", "").strip().upper() or "SHM"
    findings += [
        host.check_shm(host.SHM, _block_bytes(engine), ranks, asked, needed=inside == "SHM"),
        host.check_interfaces(net.addresses(), names, env),
        host.check_name(name, host.resolve(name), env),
        host.check_files(),
    ]
    left = host.check_leftovers(host.SHM)
    nccl = host.check_nccl_interfaces(net.addresses(), env)
    findings += [one for one in (nccl, left) if one]
    if engine is not None:
        findings += variables.check_variables(engine, env)
    return findings, engine is not None


def _block_bytes(engine: object) -> int:
    """Of CGX_SHM_SEGMENT_KB; the default where it has a bad value, which other checks report."""
    default = 1024
    if engine is None:
        return default << 10
    try:
        value = engine.setting_from_environment("shm_segment_kb")  # type: ignore[attr-defined]
    except ValueError:
        value = None
    return int(value or default) << 10
