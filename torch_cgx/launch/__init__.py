"""Determines rank, world size and meeting point of processes that mpirun or srun started.

Scripts need not call anything: `init_process_group("cgx")`, or any backend with the default
`env://`, does it if RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT is not set. `setup()` does the
same earlier, for scripts that read LOCAL_RANK before they create the group.
"""

from __future__ import annotations

from torch_cgx.launch._command import main
from torch_cgx.launch._rendezvous import rendezvous
from torch_cgx.launch._setup import NEEDED, setup
from torch_cgx.launch._state import Setup
from torch_cgx.launch._variables import Launcher, LaunchError, find

__all__ = ["NEEDED", "LaunchError", "Launcher", "Setup", "find", "main", "rendezvous", "setup"]
