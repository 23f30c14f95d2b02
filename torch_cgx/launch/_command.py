"""The command `python -m torch_cgx.launch`: prints what a process finds about itself."""

from __future__ import annotations

import argparse
import os
import socket
import sys

from torch_cgx.launch._setup import NEEDED, absent_variables, setup
from torch_cgx.launch._variables import LaunchError, find

HELP = """\
Prints launcher, rank, world size, local rank and meeting point of this process. Start it instead of
your script, with the same launcher. Status 1: no launcher found, or an error.

torchrun, one host and several (run the second on every host; it sets all variables itself):

    torchrun --standalone --nproc-per-node 2 train.py
    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d \\
        --rdzv-endpoint host1:29400 train.py

mpirun of Open MPI (needs `pip install mpi4py`); `-x NAME` passes a variable to all ranks:

    mpirun -np 2 python train.py
    mpirun -np 4 --host host1:2,host2:2 -x CGX_COMPRESSION_QUANTIZATION_BITS=4 python train.py

mpirun of MPICH or Intel MPI (the same):

    mpirun -np 2 python train.py
    mpirun -np 4 -ppn 2 -hosts host1,host2 -genv CGX_COMPRESSION_QUANTIZATION_BITS 4 \\
        python train.py

srun, in a job of SLURM or on its own; mpi4py is used if MPI can connect the ranks:

    srun --nodes 2 --ntasks-per-node 2 python train.py
    srun --mpi=pmix --nodes 2 --ntasks-per-node 2 python train.py

Variables that are set stay: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT. With MASTER_ADDR and MASTER_PORT set, MPI is not used. GLOO_SOCKET_IFNAME names the
network interface.
"""


def main(argv: list[str] | None = None) -> int:
    """`python -m torch_cgx.launch`: prints one line per rank. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_cgx.launch",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for all ranks")
    timeout = parser.parse_args(argv).timeout
    host = socket.gethostname()
    try:
        if (
            len(absent_variables(os.environ, None, None)) == len(NEEDED)
            and find(os.environ) is None
        ):
            print(f"{host}: no launcher found, and none of {', '.join(NEEDED)} set", flush=True)
            return 1
        found = setup(timeout)
    except LaunchError as error:
        print(f"{host}: {error}", file=sys.stderr, flush=True)
        return 1
    local = "local rank unknown"
    if found.local_rank is not None:
        local = f"local rank {found.local_rank} of {found.local_world_size or 'unknown'}"
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    # One write: lines of several ranks do not mix.
    print(
        f"rank {found.rank} of {found.world_size}, {local}, host {host}, "
        f"master {found.master_addr} port {found.master_port}, launcher: {found.launcher}, "
        f"determined: {found.how}" + (f", interface {interface}" if interface else "") + "\n",
        end="",
        flush=True,
    )
    return 0
