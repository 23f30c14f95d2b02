#!/usr/bin/env bash
# Starts a training with Open MPI's mpirun on the hosts of a file, as many ranks as it has slots:
#
#     ./mpirun.sh hostfile python train.py --checkpoint /shared/last.pt
#
# Needs mpi4py, built for this Open MPI, and ssh to each host without a password. Python, the script and
# Open MPI are at the same path on all hosts.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: $0 HOSTFILE COMMAND [ARGUMENT ...]" >&2
  exit 2
fi
hostfile=$1
shift
if [ ! -r "$hostfile" ]; then
  echo "$0: cannot read the hostfile $hostfile; it has a line \"NAME slots=RANKS\" for each host" >&2
  exit 2
fi
mpirun=$(command -v mpirun) || { echo "$0: no mpirun on the PATH" >&2; exit 2; }
if [[ $("$mpirun" --version) != *"Open MPI"* ]]; then
  echo "$0: $mpirun is not Open MPI's; MPICH's takes \"-f FILE\" with lines \"NAME:RANKS\"" >&2
  exit 2
fi

# Binding would give each rank one core; torch uses more.
options=(--hostfile "$hostfile" --map-by slot --bind-to none)
# Open MPI refuses root. In a container root is the usual user.
if [ "$(id -u)" -eq 0 ]; then
  options+=(--allow-run-as-root)
fi
# Ranks on other hosts get a variable only if -x names it. CGX_HOST_ID differs between hosts.
for name in PATH PYTHONPATH LD_LIBRARY_PATH OMP_NUM_THREADS GLOO_SOCKET_IFNAME $(compgen -e CGX_); do
  if [ -n "${!name:-}" ] && [ "$name" != CGX_HOST_ID ]; then
    options+=(-x "$name")
  fi
done
# By its whole path, at which mpirun expects Open MPI on the other hosts, too.
exec "$mpirun" "${options[@]}" "$@"
