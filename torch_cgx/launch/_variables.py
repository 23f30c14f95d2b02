"""Reads the environment variables of launchers: rank, world size, local rank, local size.

Pure functions of a mapping, without side effects; neither torch nor MPI is needed.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping


class LaunchError(RuntimeError):
    """Rank, world size or meeting point of the processes could not be determined; the text names
    the reason, and what to set or to install.
    """


class VariablesAbsent(LaunchError, ValueError):
    """Variables of `env://` are absent, and no launcher sets them; torch's own error is a
    ValueError.
    """


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The launcher and its variables. `None`: the launcher does not set the value."""

    name: str
    rank: int
    size: int | None
    local_rank: int | None
    local_size: int | None
    # Whether MPI_Init can connect this process with the others.
    connects_mpi: bool
    # Hosts of the job in rank order, and the port that all ranks derive from its ids: SLURM only.
    nodes: tuple[str, ...] = ()
    port: int | None = None


# Name; variables of rank, world size, local rank and local size. Ranks of a launcher that another
# launcher has started have the variables of both, so launchers that start ranks come first.
_TABLE = (
    (
        "Open MPI's mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    (
        "MVAPICH's mpirun",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    (
        "the mpirun of MPICH or Intel MPI",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
    ),
    ("a PMIx launcher", "PMIX_RANK", "", "", ""),
)
_SLURM = "SLURM's srun"
_FIRST_PORT = 15000  # below Linux's ephemeral ports (32768) and torch's default (29500)
_PORTS = 14500


def find(env: Mapping[str, str]) -> Launcher | None:
    """The launcher that started this process, or None.

    Raises LaunchError where one of its variables has an impossible value.
    """
    slurm = _slurm(env)
    for name, rank_name, size_name, local_rank_name, local_size_name in _TABLE:
        rank = _number(env, rank_name)
        if rank is None:
            continue
        if slurm is not None and rank_name in ("PMI_RANK", "PMIX_RANK") and rank == slurm.rank:
            # srun --mpi=pmi2 or --mpi=pmix sets the variables of both.
            return dataclasses.replace(slurm, connects_mpi=True)
        size = _number(env, size_name, least=1)
        if size is not None and rank >= size:
            raise LaunchError(f"{rank_name}={rank}: must be below {size_name}={size}")
        return Launcher(
            name,
            rank,
            size,
            _number(env, local_rank_name),
            _number(env, local_size_name, least=1),
            connects_mpi=True,
        )
    return slurm


def _slurm(env: Mapping[str, str]) -> Launcher | None:
    # A batch script itself has SLURM_PROCID=0 and the job's SLURM_NTASKS, but runs once. Only
    # processes that srun starts have a step.
    if not env.get("SLURM_STEP_ID"):
        return None
    rank = _number(env, "SLURM_PROCID")
    size = _number(env, "SLURM_STEP_NUM_TASKS", least=1)
    if size is None:
        size = _number(env, "SLURM_NTASKS", least=1)
    if rank is None or size is None:
        return None
    if rank >= size:
        raise LaunchError(f"SLURM_PROCID={rank}: must be below the number of tasks, {size}")
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    job = _number(env, "SLURM_JOB_ID") or 0
    step = _number(env, "SLURM_STEP_ID") or 0
    return Launcher(
        _SLURM,
        rank,
        size,
        _number(env, "SLURM_LOCALID"),
        _slurm_local_size(env),
        connects_mpi=False,
        nodes=tuple(expand_nodes(nodes)) if nodes else (),
        port=_FIRST_PORT + (job + 7919 * step) % _PORTS,
    )


def _slurm_local_size(env: Mapping[str, str]) -> int | None:
    counts = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE")
    node = _number(env, "SLURM_NODEID")
    if not counts or node is None:
        return None
    per_node = expand_counts(counts)
    return per_node[node] if node < len(per_node) else None


def expand_counts(text: str) -> list[int]:
    """SLURM's tasks per node: "2(x3),1" is [2, 2, 2, 1]. Raises LaunchError."""
    counts: list[int] = []
    for item in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item.strip())
        if found is None:
            raise LaunchError(f"tasks per node {text!r}: {item!r} is neither like 2 nor like 2(x3)")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def expand_nodes(text: str) -> list[str]:
    """SLURM's node list: "gpu[01-02,7]-ib,x" is ["gpu01-ib", "gpu02-ib", "gpu7-ib", "x"].

    Several brackets in one name multiply, the last one fastest. Raises LaunchError.
    """
    names: list[str] = []
    for item in _split_outside_brackets(text):
        texts = re.split(r"\[([^\[\]]*)\]", item)  # odd places: insides of brackets
        if not item or any("[" in some or "]" in some for some in texts):
            raise LaunchError(f"node list {text!r}: {item!r} is no name like host[01-04,7]")
        ranges = [_ranges(some, text) if i % 2 else [some] for i, some in enumerate(texts)]
        names += ["".join(chosen) for chosen in itertools.product(*ranges)]
    return names


def _split_outside_brackets(text: str) -> list[str]:
    return [item.strip() for item in re.split(r",(?![^\[]*\])", text)]


def _ranges(inside: str, text: str) -> list[str]:
    values: list[str] = []
    for item in inside.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        if found is None or (found[2] and int(found[2]) < int(found[1])):
            raise LaunchError(f"node list {text!r}: {item!r} is no number or range like 01-04")
        first, last = found[1], found[2] or found[1]
        width = len(first)  # zero padding is the first number's
        values += [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
    return values


def _number(env: Mapping[str, str], name: str, least: int = 0) -> int | None:
    return number(name, env.get(name), least) if name else None


def number(name: str, text: str | None, least: int = 0, most: int | None = None) -> int | None:
    """The value of variable `name`; None where it is absent or empty. Raises LaunchError."""
    if not text:
        return None
    value = int(text) if re.fullmatch(r"-?\d+", text.strip()) else None
    if value is None or value < least or (most is not None and value > most):
        allowed = f"{least} to {most}" if most is not None else f"a whole number >= {least}"
        raise LaunchError(f"{name}={text}: must be {allowed}")
    return value
