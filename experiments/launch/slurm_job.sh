#!/usr/bin/env bash
# What Slurm runs on the first node of a job that slurm.sh submitted:  slurm_job.sh OUT LOGS srun ...
# Runs the command, then queues this job again if training is not done. Slurm copies this file, so it needs no other.

set -euo pipefail
if [ $# -lt 3 ] || [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "error: do not run slurm_job.sh directly: submit with slurm.sh (see slurm.sh --help)" >&2
  exit 2
fi
out=$1
log=$2/$SLURM_JOB_ID-0.log
shift 2

newest_checkpoint() {
  find "$out/checkpoints" -maxdepth 1 ! -name '*[!0-9]*' 2>/dev/null | sed 's|.*/||' | sort -n | tail -n 1
}

again() {
  echo "$(date): $1: queued again"
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
}

touch "$log"
lines=$(wc -l <"$log")
before=$(newest_checkpoint || true)
echo "$(date): start ${SLURM_RESTART_COUNT:-0} on ${SLURM_JOB_NODELIST:-this node}, last checkpoint: ${before:-none}"
code=0
"$@" || code=$?
after=$(newest_checkpoint || true)

if [ "$code" -eq 0 ]; then
  # s2sjax exits with 0 both when it is done and after a SIGTERM; the log of process 0 says which.
  if tail -n "+$((lines + 1))" "$log" | grep -q '^interrupted'; then again "interrupted after ${after:-no} steps"; fi
  echo "$(date): done"
elif [ "$after" != "$before" ]; then
  again "failed with exit code $code after checkpoint $after"
else
  echo "$(date): failed with exit code $code and nothing new was saved: see the logs of the tasks beside $log"
fi
exit "$code"
