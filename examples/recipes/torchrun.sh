#!/usr/bin/env bash
# Starts a training on several hosts with torchrun. If a rank fails, torchrun starts all ranks again,
# and the training goes on from its checkpoint. The same line on each host:
#
#     HOSTS=2 RANKS=1 ./torchrun.sh host1:29400 train.py --checkpoint /shared/last.pt
#
# host1 is one of the hosts; its port 29400 is free, and no firewall is between the hosts. RANKS: on each
# host (1). RESTARTS: how often all ranks are started again (3). JOB: its name at the meeting point
# (cgx). The checkpoint is in a folder that all hosts share.
set -euo pipefail
if [ $# -lt 2 ] || [[ $1 != ?*:?* ]]; then
  echo "usage: HOSTS=2 RANKS=1 RESTARTS=3 JOB=cgx $0 HOST:PORT SCRIPT [ARGUMENT ...]" >&2
  exit 2
fi
hosts=${HOSTS:-2} ranks=${RANKS:-1} restarts=${RESTARTS:-3}
for pair in "HOSTS=$hosts" "RANKS=$ranks" "RESTARTS=$restarts"; do
  case ${pair%%=*} in RESTARTS) least=0 ;; *) least=1 ;; esac
  if [[ ! ${pair#*=} =~ ^(0|[1-9][0-9]*)$ || ${pair#*=} -lt $least ]]; then
    echo "$0: $pair; allowed: a whole number from $least" >&2
    exit 2
  fi
done
meeting=$1
shift
# Without this, torchrun tells a host that comes back later nothing of where rank 0 is.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec torchrun --nnodes "$hosts" --nproc-per-node "$ranks" --max-restarts "$restarts" \
  --rdzv-backend c10d --rdzv-endpoint "$meeting" --rdzv-id "${JOB:-cgx}" "$@"
