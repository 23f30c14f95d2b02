#!/usr/bin/env bash
# A batch script of SLURM: two hosts with one rank each. If a host fails, SLURM queues the job again, and
# the training goes on from its checkpoint. Submit it from the folder with train.py, which all hosts share:
#
#     sbatch slurm.sh
#
#SBATCH --job-name=cgx
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?submit this script: sbatch slurm.sh}"
export OMP_NUM_THREADS="$SLURM_CPUS_PER_TASK"

# torch_cgx finds rank, world size and meeting point in the variables of each task. srun does not take
# --cpus-per-task from the job. If a rank fails, SLURM ends the others.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
  python train.py --checkpoint "${CHECKPOINT:-last.pt}" "$@"
