#!/usr/bin/env bash
# What Slurm runs on the first node of a job that slurm.sh submitted:  slurm_job.sh OUT LOGS srun ...
# Runs the command, then queues this job again if training is not done. A job of an array trains its part of a sweep.
# Slurm copies this file, so it needs no other.

set -euo pipefail
if [ $# -lt 3 ] || [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "error: do not run slurm_job.sh directly: submit with slurm.sh (see slurm.sh --help)" >&2
  exit 2
fi
out=$1
job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
  job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # the number of one of the jobs is that of the array
  set -- "$@" --part "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
fi
log=$2/$job-0.log
shift 2
for word in "$@"; do
  case $word in train | sweep | evaluate) break ;; esac
  s2sjax=$word
done

# The checkpoints of the run, or of all runs of the sweep.
checkpoints() {
  case $out in
    gs://* | s3://*) "$(dirname "$s2sjax")/python" -m s2sjax.training.checkpoints.folders "$out" ;;
    *) find "$out"/checkpoints "$out"/*/checkpoints -maxdepth 1 ! -name '*[!0-9]*' 2>/dev/null | sort ;;
  esac
}

# shellcheck disable=SC2001  # of each line
newest() { sed 's|.*/||' <<<"$1" | sort -n | tail -n 1; }

again() {
  echo "$(date): $1: queued again"
  scontrol requeue "$job"
  exit 0
}

touch "$log"
lines=$(wc -l <"$log")
before=$(checkpoints || true)
step=$(newest "$before")
echo "$(date): start ${SLURM_RESTART_COUNT:-0} on ${SLURM_JOB_NODELIST:-this node}, last checkpoint: ${step:-none}"
code=0
"$@" || code=$?
after=$(checkpoints || true)
step=$(newest "$after")

if [ "$code" -eq 0 ]; then
  # s2sjax exits with 0 both when it is done and after a SIGTERM; the log of process 0 says which.
  if tail -n "+$((lines + 1))" "$log" | grep -q '^interrupted'; then again "interrupted after ${step:-no} steps"; fi
  echo "$(date): done"
elif [ "$after" != "$before" ]; then
  again "failed with exit code $code after checkpoint $step"
else
  echo "$(date): failed with exit code $code and nothing new was saved: see the logs of the tasks beside $log"
fi
exit "$code"
