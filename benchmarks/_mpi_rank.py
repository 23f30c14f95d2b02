"""One rank of benchmarks/allreduce.py, started by mpirun:

python -m benchmarks._mpi_rank JOB PORT RESULT
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks._machine import ROOT
from benchmarks._measure import Job, measure_rank

_TIMEOUT = 600.0


def run(mpirun: Path, job: Job, port: int, result: Path) -> None:
    """Runs the job's ranks. RuntimeError with what they wrote if mpirun fails."""
    file = result.with_name("job.json")
    file.write_text(job.to_json())
    command = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    command += ["-np", str(job.ranks), str(mpirun.with_name("python"))]
    command += ["-m", "benchmarks._mpi_rank", str(file), str(port), str(result)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")


if __name__ == "__main__":
    job_file, port, result = sys.argv[1:]
    measure_rank(
        int(os.environ["OMPI_COMM_WORLD_RANK"]),
        Job.from_json(Path(job_file).read_text()),
        int(port),
        result,
    )
