"""What sbatch and srun do to a script's environment, on this host: no SLURM is needed.

`job` reads the #SBATCH lines as sbatch does. Run as the command srun, this file starts the tasks
of such a job and sets their variables, with the names and values that SLURM documents.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

# The first is the meeting point, so that it must be an address of this host; the other one is not.
NODES = ("localhost", "node2", "node3", "node4")


class _Parser(argparse.ArgumentParser):
    def __init__(self, name: str) -> None:
        super().__init__(prog=name, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(f"{self.prog}: {message}")


def job(script: str, submit_dir: str) -> dict[str, str]:
    """The variables that sbatch sets for `script`, the text of a batch script.

    ValueError for an option that this table lacks: add it, or mend the script.
    """
    parser = _Parser("sbatch")
    parser.add_argument("--job-name", required=True)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ntasks-per-node", type=int, default=1)
    parser.add_argument("--cpus-per-task", type=int)
    parser.add_argument("--time")
    parser.add_argument("--requeue", action="store_true")
    parser.add_argument("--open-mode", choices=["append", "truncate"])
    words = []
    for line in script.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break  # sbatch reads no further than the first command
        if line.startswith("#SBATCH "):
            words += shlex.split(line.removeprefix("#SBATCH "))
    options = parser.parse_args(words)
    tasks = options.nodes * options.ntasks_per_node
    variables = {
        "SLURM_JOB_ID": str(os.getpid()),  # the port follows from it: parallel tests differ
        "SLURM_JOB_NAME": options.job_name,
        "SLURM_SUBMIT_DIR": submit_dir,
        "SLURM_JOB_NUM_NODES": str(options.nodes),
        "SLURM_JOB_NODELIST": ",".join(NODES[: options.nodes]),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(options.ntasks_per_node),
        "SLURM_TASKS_PER_NODE": f"{options.ntasks_per_node}(x{options.nodes})",
        "SLURM_PROCID": "0",  # the batch script has these, too
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
    }
    if options.cpus_per_task is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(options.cpus_per_task)
    return variables


def tasks(env: Mapping[str, str]) -> list[dict[str, str]]:
    """The variables that srun sets, by task."""
    per_node = int(env["SLURM_NTASKS_PER_NODE"])
    nodes = env["SLURM_JOB_NODELIST"].split(",")
    return [
        {
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": env["SLURM_NTASKS"],
            "SLURM_STEP_NUM_NODES": env["SLURM_JOB_NUM_NODES"],
            "SLURM_STEP_NODELIST": env["SLURM_JOB_NODELIST"],
            "SLURM_STEP_TASKS_PER_NODE": env["SLURM_TASKS_PER_NODE"],
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task % per_node),
            "SLURM_NODEID": str(task // per_node),
            "SLURMD_NODENAME": nodes[task // per_node],
            "CGX_HOST_ID": nodes[task // per_node],  # different hosts, as torch_cgx sees them
        }
        for task in range(int(env["SLURM_NTASKS"]))
    ]


def main(arguments: Sequence[str]) -> int:
    """srun. The status is that of the task that has failed first, after which the others end."""
    parser = _Parser("srun")
    parser.add_argument("--cpus-per-task", type=int)
    parser.add_argument("--kill-on-bad-exit", type=int, choices=[0, 1], default=0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    job_cpus = os.environ.get("SLURM_CPUS_PER_TASK")
    if job_cpus is not None and str(options.cpus_per_task) != job_cpus:
        raise ValueError(f"srun: --cpus-per-task={options.cpus_per_task}, the job has {job_cpus}")
    running = [
        subprocess.Popen(options.command, env={**os.environ, **variables})
        for variables in tasks(os.environ)
    ]
    status = 0
    while running:
        time.sleep(0.05)
        for process in list(running):
            if process.poll() is None:
                continue
            running.remove(process)
            if process.returncode != 0 and status == 0:
                status = process.returncode
                print(f"srun: error: a task ended with status {status}", flush=True)
                if options.kill_on_bad_exit:
                    for other in running:
                        with contextlib.suppress(ProcessLookupError):
                            other.terminate()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
