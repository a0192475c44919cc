#!/usr/bin/env bash
# Submits training to Slurm, as a job that is queued again until training is done.
#
#   experiments/launch/slurm.sh --nodes 4 --gpus 8 --time 12:00:00 --partition=a100 --cpus-per-task=32 \
#       -- train experiments/g2p.py --out runs/g2p
#   experiments/launch/slurm.sh --nodes 8 --gpus 1 --time 4:00:00 \
#       -- sweep experiments/g2p.py --seed 0,1,2,3 --train.learning_rate 1e-3,2e-3 --name rates
#
# Call it from the repository, on a file system that all nodes see, with s2sjax installed there:
# .venv/bin/pip install -e ".[gpu,g2p]". The run folder (--out) must be seen by all nodes too, or be in object storage
# (gs://BUCKET/runs/g2p): then python must lie beside s2sjax, as in a virtual environment.
#
# A sweep is a job array with as many jobs as --nodes says: each is queued alone, and trains a part of the runs on all
# GPUs of its node (s2sjax sweep ... --part 3/8). Its logs: LOGS/JOB_PART.log and JOB_PART-0.log.
#
# One task per node uses all of its GPUs; JAX finds the other nodes through Slurm. Two minutes before the time limit
# Slurm sends SIGTERM to all tasks: s2sjax saves once and exits, the job is queued again and resumes. After a failure it
# is queued again only if it has saved a new checkpoint, so a mistake does not loop forever. One log per task:
# LOGS/JOB-TASK.log; process 0, which prints the progress, writes JOB-0.log. The log of the job itself: JOB.log.
#
#   tail -F runs/logs/JOB-0.log      scancel JOB  (stops for good; run the same command again to resume)
#
# Options
#   --nodes N         machines; for a sweep, jobs of one machine each
#   --gpus N          GPUs of each; 0 for machines without
#   --time LIMIT      of one job, as for sbatch; several short jobs often start sooner than a long one
#   --per-gpu         one task per GPU instead of one per node
#   --warning N       seconds between SIGTERM and the time limit (default: 120; a save must fit in)
#   --logs DIR        (default: runs/logs)
#   --s2sjax PATH     the command (default: .venv/bin/s2sjax)
#   --NAME=VALUE      any other option with a value after = goes to sbatch: --partition=, --account=, --mem= ...
#   --dry-run         prints every command, runs none
#   -h, --help        this page

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

nodes=
gpus=
time=
per=node
warning=120
logs=runs/logs
s2sjax=.venv/bin/s2sjax
others=()

while [ $# -gt 0 ]; do
  case $1 in
    --nodes=* | --gpus=* | --time=* | --warning=* | --logs=* | --s2sjax=*)
      set -- "${1%%=*}" "${1#*=}" "${@:2}"
      ;;
  esac
  case $1 in
    --nodes) takes "$@" && nodes=$2 && shift ;;
    --gpus) takes "$@" && gpus=$2 && shift ;;
    --time) takes "$@" && time=$2 && shift ;;
    --warning) takes "$@" && warning=$2 && shift ;;
    --logs) takes "$@" && logs=$2 && shift ;;
    --s2sjax) takes "$@" && s2sjax=$2 && shift ;;
    --per-gpu) per=gpu ;;
    --dry-run) dry_run=yes ;;
    -h | --help) usage && exit ;;
    --) break ;;
    --?*=*) others+=("$1") ;;
    *) error "there is no option $1: see $(basename "$0") --help; write options of sbatch as --name=value" ;;
  esac
  shift
done
[ -n "$nodes" ] || error "--nodes is missing: say how many machines, as in --nodes 2"
[ -n "$gpus" ] || error "--gpus is missing: say how many GPUs each machine has, as in --gpus 8, or --gpus 0"
[ -n "$time" ] || error "--time is missing: say how long one job may take, as in --time 12:00:00"
number --nodes "$nodes" 1
number --gpus "$gpus" 0
number --warning "$warning" 1
if [ "$per" = gpu ] && [ "$gpus" -eq 0 ]; then error "--per-gpu needs GPUs: give --gpus, or leave --per-gpu out"; fi
[ $# -eq 0 ] || shift # the --
read_words "$@"

job=%j
array=()
if [ "${alone[0]}" = sweep ]; then
  shares_out
  [ "$per" = node ] || error "--per-gpu joins tasks, which a sweep does not: give --gpus 1 and a larger --nodes"
  job=%A_%a # of the array, and of the part
  array=("--array=1-$nodes")
  nodes=1
fi

# JAX gives each Slurm task one GPU, that of its number on the node, unless it is told which ones.
tasks=1
command=("$s2sjax" "${words[@]}")
if [ "$per" = gpu ]; then
  tasks=$gpus
elif [ "$gpus" -gt 0 ] && [ "${alone[0]}" != sweep ]; then
  all=$(seq 0 $((gpus - 1)) | paste -s -d , -)
  command=(env "JAX_LOCAL_DEVICE_IDS=$all" "${command[@]}")
fi
options=(--job-name=s2sjax "--nodes=$nodes" "--ntasks-per-node=$tasks" "--time=$time")
[ "$gpus" -eq 0 ] || options+=("--gres=gpu:$gpus")
options+=("--signal=TERM@$warning" --requeue --open-mode=append "--output=$logs/$job.log" ${array[@]+"${array[@]}"})

note "the job runs srun on the first node; srun starts s2sjax on all, with a log for each task"
needs sbatch "log in to a machine of the cluster"
run mkdir -p "$logs"
run sbatch "${options[@]}" ${others[@]+"${others[@]}"} "$(dirname "$0")/slurm_job.sh" "$out" "$logs" \
  srun --kill-on-bad-exit=1 --open-mode=append "--output=$logs/$job-%t.log" "${command[@]}"
