"""Runs a measurement on ranks: processes of this host, of mpirun, or of several hosts.

A measurement is a function of a benchmark's module that takes a job (JSON types) and returns a dict
of such; it is called on every rank, with a gloo group of all ranks as the default group. What rank
0 returns comes back, with the `seconds` that the measurement took.

    python -m benchmarks._ranks MODULE:FUNCTION JOB RESULT    # one rank; JOB, RESULT: JSON files

Hosts are network namespaces of this machine (torch_cgx.testbed: needs Linux, root, iproute2).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from benchmarks._command import NOTHING, ROOT, print_facts
from torch_cgx.testbed.bed import Hosts, hosts_available
from torch_cgx.testbed.network import MTU, congestion_control, parse_rate

Measurement = Callable[[Any], dict[str, Any]]
TIMEOUT = timedelta(seconds=300)  # of the gloo group
_MPIRUN_SECONDS = 600.0


def on_this_host(
    measurement: Measurement, job: Any, ranks: int, mpirun: Path | None = None
) -> dict[str, Any]:
    """Runs on new processes, or those of mpirun (Open MPI's, with the python beside it). A rank's
    exception is raised here, with its text.
    """
    # One thread per rank, as torchrun does it; read when the processes import torch.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="cgx-benchmark-") as folder:
        arguments, result = _prepare(measurement, job, Path(folder))
        if mpirun:
            _run_mpi(mpirun, arguments, ranks)
        else:
            # The store is served here, so no port has to be guessed.
            store = _store(0, is_master=True, wait_for_workers=False)
            spawn(_spawned, args=(ranks, store.port, *arguments), nprocs=ranks)
        return dict(json.loads(result.read_text()))


def on_hosts(
    bed: Hosts,
    measurement: Measurement,
    job: Any,
    ranks: int,
    timeout: float,
    env: dict[str, str] | None = None,
    mpirun: str | None = None,
) -> dict[str, Any]:
    """Runs on so many ranks of each host, started by `mpirun`, with the python beside it, if it is
    named. HostsFailed, with what the ranks wrote, if one fails or `timeout` seconds are over.
    """
    arguments, result = _prepare(measurement, job, bed.folder)
    python = str(Path(mpirun).with_name("python")) if mpirun else sys.executable
    command = [python, "-m", "benchmarks._ranks", *arguments]
    if mpirun:
        bed.mpirun(command, ranks, mpirun, env, timeout=timeout)
    else:
        bed.run(command, ranks, env, timeout=timeout)
    return dict(json.loads(result.read_text()))


def _prepare(measurement: Measurement, job: Any, folder: Path) -> tuple[list[str], Path]:
    """The arguments of a rank, and the file of its result."""
    # Not __module__: may be __main__.
    file = Path(measurement.__code__.co_filename).resolve().relative_to(ROOT)
    module = ".".join(file.with_suffix("").parts)
    job_file, result = folder / "job.json", folder / "result.json"
    job_file.write_text(json.dumps(job))
    result.unlink(missing_ok=True)
    return [f"{module}:{measurement.__name__}", str(job_file), str(result)], result


def _store(port: int, **options: Any) -> Any:
    return dist.TCPStore("127.0.0.1", port, **options)  # type: ignore[attr-defined]  # not in stubs


def _run_mpi(mpirun: Path, arguments: list[str], ranks: int) -> None:
    command = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    command += ["-np", str(ranks), str(mpirun.with_name("python")), "-m", "benchmarks._ranks"]
    command += arguments
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_MPIRUN_SECONDS
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")


def _spawned(rank: int, ranks: int, port: int, *arguments: str) -> None:
    store = _store(port, is_master=False, timeout=TIMEOUT)
    _serve(*arguments, store=store, rank=rank, world_size=ranks)


def _serve(name: str, job_file: str, result_file: str, **place: Any) -> None:
    """One rank. place: store, rank and world size; without, what torchrun sets tells them."""
    torch.set_num_threads(1)
    module, _, function = name.partition(":")
    measurement: Measurement = getattr(importlib.import_module(module), function)
    job = json.loads(Path(job_file).read_text())
    dist.init_process_group("gloo", timeout=TIMEOUT, **place)
    try:
        start = time.monotonic()
        measured = measurement(job)
        measured["seconds"] = round(time.monotonic() - start, 1)
        if dist.get_rank() == 0:
            Path(result_file).write_text(json.dumps(measured))
    finally:
        dist.destroy_process_group()


def everyone(value: Any) -> list[Any]:
    """`value` of every rank, in rank order. Collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


# ---- hosts


def missing_hosts() -> bool:
    """True, and said on stderr, where no hosts can be made. That is no error of a benchmark: `make
    bench` runs everything that can be run.
    """
    missing = hosts_available()
    if missing:
        print(f"{NOTHING}{missing}", file=sys.stderr)
    return bool(missing)


def rate(text: str) -> str | None:
    """A rate of links, or "none": as fast as this machine can."""
    if text == "none":
        return None
    try:
        parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, or none") from None
    return text


def print_link_facts(**more: Any) -> dict[str, Any]:
    """Facts of the machine, of this measurement and of the hosts' links, which are printed."""
    links = {"mtu": MTU, "congestion_control": congestion_control() or "the kernel's default"}
    return print_facts(threads=1, **more, **links)


if __name__ == "__main__":
    if "RANK" not in os.environ:  # started by mpirun
        from torch_cgx import launch

        launch.setup()
    _serve(*sys.argv[1:])
