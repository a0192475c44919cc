#!/usr/bin/env bash
# Trains on a Cloud TPU pod: creates it, installs s2sjax on all workers, runs, follows the log, resumes, deletes.
#
#   export TPU_NAME=pod TPU_ZONE=us-east5-b TPU_TYPE=v6e-16 TPU_PROJECT=my-project
#   experiments/launch/tpu_pod.sh create --spot -- train experiments/g2p.py --out /mnt/s2sjax/runs/g2p
#   experiments/launch/tpu_pod.sh setup --bucket my-bucket
#   experiments/launch/tpu_pod.sh run -- train experiments/g2p.py --out /mnt/s2sjax/runs/g2p
#   experiments/launch/tpu_pod.sh logs --follow
#   experiments/launch/tpu_pod.sh resume --spot --bucket my-bucket -- train experiments/g2p.py \
#       --out /mnt/s2sjax/runs/g2p
#   experiments/launch/tpu_pod.sh delete
#
# Or all of it until training is done, however often the pod is pre-empted:
#
#   experiments/launch/tpu_pod.sh watch --spot -- train experiments/g2p.py --out gs://my-bucket/runs/g2p
#
# Commands
#   create    compiles the experiment for the pod on this machine (s2sjax plan --compile: x86-64 Linux with the extra
#             tpu), so that one that does not fit costs nothing; then asks for the pod (as a queued resource) and waits
#             until it is there
#   setup     copies this working tree to all workers, installs s2sjax[tpu] there, mounts the shared storage
#   run       starts `s2sjax ... --distributed` on all workers; it continues when you log out
#   logs      the log of a worker; worker 0 prints the progress, the others print only errors
#   status    of the pod, and of training on each worker
#   stop      SIGTERM to all workers: s2sjax saves once and ends
#   resume    run again. A pre-empted pod is first created and set up again: give the options of create and setup
#   watch     resume, again and again until training is done, on this machine: keep it running, or call watch again.
#             It gives up after a failure without a new checkpoint, after three pre-emptions in a row without one, or
#             if someone else stops the training or deletes the pod. It does not delete the pod
#   delete    the pod; what lies on the shared storage stays
#
# A sweep trains on one host: create a TPU with one host for each part, by --no-plan, and give each its part.
#
#   experiments/launch/tpu_pod.sh run --name pod3 --type v6e-8 -- sweep experiments/g2p.py --seed 0,1,2,3,4,5,6,7 \
#       --name /mnt/s2sjax/runs/seeds --part 3/4
#
# Shared storage. All workers write one run folder (--out), so it must lie on storage that all of them see, mounted at
# the same place (--mount). Two ways, both by setup:
#   --nfs HOST:/SHARE   a Filestore instance or any NFS server
#   --bucket BUCKET     a Cloud Storage bucket, by gcsfuse. It must have a hierarchical namespace, for a checkpoint is
#                       finished by renaming its folder, which other buckets cannot do at once:
#                       gcloud storage buckets create gs://BUCKET --location=REGION --uniform-bucket-level-access \
#                           --enable-hierarchical-namespace
# Prepared data (s2sjax prepare) belongs there too.
#
# Options                              or environment
#   --name NAME                        TPU_NAME
#   --zone ZONE                        TPU_ZONE
#   --project PROJECT                  TPU_PROJECT
#   --type TYPE     such as v6e-16     TPU_TYPE      (create, resume, watch)
#   --version V     its software       TPU_VERSION   (default: the one for JAX on that type)
#   --no-plan       does not compile before it creates; then nothing comes after -- (create)
#   --sizes N,N     of the source and target vocabularies, if the data is not on this machine (create)
#   --spot          cheaper; may be pre-empted at any time (create, resume, watch)
#   --bucket BUCKET, --nfs HOST:/SHARE, --mount DIR    the shared storage (default mount: /mnt/s2sjax)
#   --worker N      whose log: a number, or all (default: 0)
#   --follow        the log as it grows
#   --dry-run       prints every command, runs none
#   -h, --help      this page

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

name=${TPU_NAME:-}
zone=${TPU_ZONE:-}
project=${TPU_PROJECT:-}
type=${TPU_TYPE:-}
version=${TPU_VERSION:-}
spot=no
plan=yes
sizes=
bucket=
nfs=
mount=/mnt/s2sjax
worker=0
follow=no
state=UNKNOWN
patient=no
fruitless=3

# ------------------------------------------------------------------------------------------------ speaking with gcloud

# The address of the pod, for every command.
place() { pod=("--zone=$zone" "--project=$project"); }

# on WORKER COMMAND: runs a line of shell on a worker, or on all of them at once.
on() { run gcloud compute tpus tpu-vm ssh "$name" "${pod[@]}" "--worker=$1" "--command=$2"; }

# Sets state: ACTIVE, WAITING_FOR_RESOURCES, PROVISIONING, SUSPENDED (pre-empted), FAILED ..., or NONE. To watch,
# UNREACHABLE if gcloud fails.
ask_state() {
  local describe answer
  describe=(gcloud compute tpus queued-resources describe "$name" "${pod[@]}" '--format=value(state.state)')
  if [ "$dry_run" = yes ]; then
    run "${describe[@]}"
  elif answer=$("${describe[@]}" 2>&1); then
    state=${answer##*$'\n'}
  else
    case $patient$answer in
      *NOT_FOUND*) state=NONE ;;
      no* | *'active account'* | *PERMISSION_DENIED*) fail "gcloud cannot describe $name: $answer" ;;
      *)
        [ "$state" = UNREACHABLE ] || note "gcloud does not answer, and is asked again every minute: $answer"
        state=UNREACHABLE
        ;;
    esac
  fi
}

wait_until_active() {
  local before=
  note "asked again every 30 seconds until it says ACTIVE"
  while ask_state && [ "$state" != ACTIVE ] && [ "$dry_run" = no ]; do
    case $state in
      NONE | FAILED | SUSPEND*) fail "$name is $state: delete it and create it again, or resume" ;;
    esac
    if [ "$state" != "$before" ]; then note "$name is $state; it stays in the queue if you leave"; fi
    before=$state
    sleep 30
  done
}

# ---------------------------------------------------------------------------------------------------------- commands

# The programs of the training command, compiled for the pod before it is paid for.
compile_first() {
  local root fields=() skip=no word
  root=$(cd "$(dirname "$0")/../.." && pwd)
  for word in "${alone[@]:1}"; do
    case $skip$word in
      yes*) skip=no ;;
      no--out | no--init) skip=yes ;;
      no--out=* | no--init=* | no--init-assets) ;;
      *) fields+=("$word") ;;
    esac
  done
  [ -z "$sizes" ] || fields+=(--source-size "${sizes%,*}" --target-size "${sizes#*,}")
  local program=s2sjax
  command -v s2sjax >/dev/null || program=$root/.venv/bin/s2sjax
  run "$program" plan "${fields[@]}" --compile "$type" || error "see above; or create it all the same with --no-plan"
}

create() {
  local options=("--node-id=$name" "--accelerator-type=$type" "--runtime-version=$version")
  [ "$spot" = no ] || options+=(--spot)
  run gcloud compute tpus queued-resources create "$name" "${pod[@]}" "${options[@]}"
  wait_until_active
}

setup() {
  local root archive=${TMPDIR:-/tmp}/s2sjax-$name.tgz skip=() folder
  root=$(cd "$(dirname "$0")/../.." && pwd)
  for folder in .git .venv runs build .carry .hypothesis '.*_cache' __pycache__ '*.egg-info' '*.log'; do
    skip+=("--exclude=$folder")
  done
  run tar "${skip[@]}" -C "$root" -czf "$archive" .
  run gcloud compute tpus tpu-vm scp "$archive" "$name:s2sjax.tgz" "${pod[@]}" --worker=all
  [ -z "$bucket$nfs" ] || on all "$(mounting)"
  # The workers' own Python may be too old for s2sjax, so uv brings one.
  on all "set -e; mkdir -p s2sjax; tar -xzf s2sjax.tgz -C s2sjax; cd s2sjax; \
PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv; \
~/.local/bin/uv venv --quiet --allow-existing --python 3.12 .venv; \
~/.local/bin/uv pip install --quiet --python .venv/bin/python -c constraints.txt -e '.[tpu,g2p,gcs,s3]'; \
touch set-up"
}

# The line of shell that mounts the shared storage, unless it is mounted.
mounting() {
  local how
  if [ -n "$nfs" ]; then
    how="sudo apt-get install -qq -y nfs-common; sudo mount -t nfs $(quote "$nfs" "$mount"); \
sudo chmod 1777 $(quote "$mount")"
  else
    # Without these caches a worker sees at once what another wrote.
    how="sudo chown \"\$(id -u)\" $(quote "$mount"); \
command -v gcsfuse || sudo apt-get install -qq -y gcsfuse || { echo 'error: gcsfuse is missing: install it as \
https://cloud.google.com/storage/docs/cloud-storage-fuse/install says, or use --nfs' >&2; exit 1; }; \
gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 $(quote "$bucket" "$mount")"
  fi
  printf '%s' "set -e; sudo mkdir -p $(quote "$mount"); if mountpoint -q $(quote "$mount"); then exit 0; fi; $how"
}

start() {
  on all "set -e; cd s2sjax; $(mounted)\
if [ -e train.pid ] && kill -0 \"\$(cat train.pid)\" 2>/dev/null; then \
echo 'error: s2sjax is running: stop it first' >&2; exit 1; fi; \
rm -f train.pid train.end train.stop; touch train.log; before=\$(wc -l <train.log); \
{ trap '' HUP; nohup $(quote .venv/bin/s2sjax "${words[@]}") >>train.log 2>&1 </dev/null & echo \$! >train.pid; \
code=0; wait \$! || code=\$?; \
if tail -n +\$((before + 1)) train.log | grep -q '^interrupted'; then code=interrupted; fi; \
if [ -e train.stop ]; then code=stopped; fi; echo \$code >train.end; } >/dev/null 2>&1 </dev/null & \
until [ -s train.pid ]; do sleep 0.1; done"
  note "started; follow it by: $(quote "$0" logs --follow)"
}

# A worker whose storage is not mounted would write to its own disk, where nobody finds it.
mounted() {
  case $out in
    "$mount"/*)
      printf '%s' "mountpoint -q $(quote "$mount") || { echo 'error: nothing is mounted at $mount: run setup with \
--bucket or --nfs' >&2; exit 1; }; "
      ;;
  esac
}

logs() {
  local how='tail -n 100'
  [ "$follow" = no ] || how='tail -n 100 -F'
  on "$worker" "$how s2sjax/train.log"
}

status() {
  ask_state
  [ "$dry_run" = yes ] || printf '%s is %s\n' "$name" "$state"
  case $state in
    ACTIVE | UNKNOWN)
      on all "cd s2sjax && if kill -0 \"\$(cat train.pid)\" 2>/dev/null; then echo \"\$(hostname): running\"; \
else echo \"\$(hostname): not running\"; fi; tail -n 1 train.log 2>/dev/null || echo 'no log yet'"
      ;;
  esac
}

stop() { on all "cd s2sjax && touch train.stop && kill -TERM \"\$(cat train.pid)\" || echo 'not running'"; }

delete() { run gcloud compute tpus queued-resources delete "$name" "${pod[@]}" --force "$@"; }

resume() {
  bring_up
  start
}

# Creates the pod and sets it up, unless it is there.
bring_up() {
  ask_state
  case $state in
    ACTIVE) ;;
    NONE) create && setup ;;
    UNKNOWN | FAILED | SUSPEND*)
      note "a pre-empted pod is created again; for one that is ACTIVE only the last command is run"
      delete --quiet
      create
      setup
      ;;
    *) wait_until_active && setup ;;
  esac
}

# What worker 0 says: new (not set up), running, ready, or how the training that ran there has ended: its exit code,
# interrupted (saved after a SIGTERM), or stopped (by the command stop).
ask_worker() {
  on 0 "cd s2sjax 2>/dev/null && [ -e set-up ] || { echo new; exit; }; \
if kill -0 \"\$(cat train.pid 2>/dev/null)\" 2>/dev/null; then echo running; exit; fi; \
sleep 1; cat train.end 2>/dev/null || echo ready"
}

checkpoints() {
  case $out in
    gs://*) run gcloud storage ls "$out/checkpoints/*/commit_success.txt" ;;
    *) on 0 "ls $(quote "$out/checkpoints")" ;;
  esac
}

# The step of the newest checkpoint, or nothing.
newest() { (checkpoints 2>/dev/null || true) | tr / '\n' | (grep -x '[0-9][0-9]*' || true) | sort -n | tail -n 1; }

# attempt COMMAND: runs it in a shell of its own, for it may fail, as when the pod is pre-empted meanwhile.
attempt() {
  local code
  set +e
  (
    set -e
    "$@"
  )
  code=$?
  set -e
  [ "$code" -eq 0 ] || note "failed: tried again in a minute"
  return "$code"
}

# progress ANSWER: after a training that has not finished. Fails unless it is worth to start again; for watch.
progress() {
  local step
  step=$(newest)
  if [ "$step" != "$before" ]; then
    lost=0
    before=$step
    return
  fi
  case $1 in
    ready | interrupted) lost=$((lost + 1)) ;;
    *) fail "training ended with exit code $1 and saved nothing new: see logs" ;;
  esac
  [ "$lost" -lt "$fruitless" ] || fail "$name was pre-empted $lost times without a new checkpoint: see logs"
}

watch() {
  local first=yes was='' answer before='' began=no lost=0
  if [ "$dry_run" = yes ]; then
    bring_up
    checkpoints
    start
    ask_worker
    note "and so on, every minute, until training is done"
    return
  fi
  patient=yes
  while :; do
    [ "$first" = yes ] || sleep 60
    first=no
    ask_state
    case $was$state in
      *UNREACHABLE) continue ;;
      ACTIVENONE) fail "$name was deleted: watch ends" ;;
      *ACTIVE) was=ACTIVE ;;
      *)
        # A bucket can be looked into without a pod: no pod is created for nothing.
        if [ "$was$began${out%%:*}" = ACTIVEyesgs ]; then
          progress ready
          began=no
        fi
        was=
        attempt bring_up || continue
        was=ACTIVE
        ;;
    esac
    answer=$(ask_worker 2>/dev/null) || continue
    answer=${answer##*$'\n'}
    case $answer in
      new)
        attempt setup || true
        continue
        ;;
      running)
        [ "$began" = yes ] || before=$(newest)
        began=yes
        continue
        ;;
    esac
    case $began$answer in
      yes0) note "training is done: $(quote "$0" delete) deletes the pod" && return ;;
      yesstopped) note "training was stopped: watch ends" && return ;;
      yes*) progress "$answer" ;;
      no*) before=$(newest) ;;
    esac
    note "$(date): starts after ${before:-no} steps"
    if attempt start; then began=yes; fi
  done
}

# --------------------------------------------------------------------------------------------------- reading the line

# given OPTION VALUE VARIABLE EXAMPLE
given() { [ -n "$2" ] || error "$1 is missing: give $1, or set $3, as in $1 $4"; }

# The software for JAX: https://cloud.google.com/tpu/docs/runtimes
software() {
  case $type in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v[234]-*) echo tpu-ubuntu2204-base ;;
  esac
}

command=
while [ $# -gt 0 ]; do
  case $1 in
    --?*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
  esac
  case $1 in
    create | setup | run | logs | status | stop | resume | watch | delete)
      [ -z "$command" ] || error "one command at a time: $command or $1"
      command=$1
      ;;
    --name) takes "$@" && name=$2 && shift ;;
    --zone) takes "$@" && zone=$2 && shift ;;
    --project) takes "$@" && project=$2 && shift ;;
    --type) takes "$@" && type=$2 && shift ;;
    --version) takes "$@" && version=$2 && shift ;;
    --bucket)
      takes "$@" && bucket=${2#gs://}
      [ -n "$bucket" ] || error "--bucket is $2: name a bucket"
      shift
      ;;
    --nfs) takes "$@" && nfs=$2 && shift ;;
    --mount) takes "$@" && mount=${2%/} && shift ;;
    --worker) takes "$@" && worker=$2 && shift ;;
    --sizes) takes "$@" && sizes=$2 && shift ;;
    --no-plan) plan=no ;;
    --spot) spot=yes ;;
    --follow) follow=yes ;;
    --dry-run) dry_run=yes ;;
    -h | --help) usage && exit ;;
    --) break ;;
    -*) error "there is no option $1: see $(basename "$0") --help; the s2sjax command comes after --" ;;
    *) error "there is no command '$1': create, setup, run, logs, status, stop, resume, watch or delete" ;;
  esac
  shift
done
[ -n "$command" ] || error "name a command: create, setup, run, logs, status, stop, resume, watch or delete"
given --name "$name" TPU_NAME pod
given --zone "$zone" TPU_ZONE us-east5-b
given --project "$project" TPU_PROJECT my-project
place

case $command in
  create | resume | watch)
    given --type "$type" TPU_TYPE v6e-16
    version=${version:-$(software)}
    [ -n "$version" ] || error "--version is missing and not known for $type: see gcloud compute tpus versions list"
    ;;
esac
case $command in
  setup | resume | watch)
    if [ -n "$bucket" ] && [ -n "$nfs" ]; then error "--bucket and --nfs: give one of them"; fi
    case $mount in
      /*) ;;
      *) error "--mount is '$mount': name a folder by its whole path, such as /mnt/s2sjax" ;;
    esac
    ;;
esac
case $worker in
  all) ;;
  *) number --worker "$worker" 0 ;;
esac
case $command in
  run | resume | watch)
    [ $# -eq 0 ] || shift # the --
    read_words "$@"
    case $out in
      /* | gs://* | s3://*) ;;
      *) error "$out lies on each worker's own disk: name a folder that all workers see, such as $mount/$out" ;;
    esac
    if [ "$command" = watch ]; then
      [ "${alone[0]}" = train ] || error "watch trains until it is done: write -- train FILE --out DIR"
      case $out in
        s3://*) error "watch looks for checkpoints in $out, which gcloud cannot: give a folder in gs://, or resume" ;;
      esac
    fi
    case ${type##*-} in
      *[!0-9]*) error "--type is $type: write it as Google Cloud does, such as v6e-16" ;;
    esac
    if [ "${alone[0]}" = sweep ] && [ -n "$type" ] && [ "${type##*-}" -gt 8 ]; then
      error "$type has several hosts, and a sweep trains on one: create a TPU of a single host for each part, as v6e-8"
    fi
    ;;
  create)
    [ $# -eq 0 ] || shift # the --
    if [ "$plan" = no ]; then
      [ $# -eq 0 ] || error "--no-plan compiles nothing: leave out what comes after --"
    else
      [ $# -gt 0 ] || error "create compiles the experiment first: end with -- train FILE --out DIR, or give --no-plan"
      read_words "$@"
      [ "${alone[0]}" = train ] || error "create compiles a training command: write -- train FILE, or give --no-plan"
    fi
    ;;
  *) [ $# -eq 0 ] || error "$command takes nothing after --: only create, run, resume and watch do" ;;
esac
case $sizes in
  '' | *[0-9],[0-9]*) ;;
  *) error "--sizes is '$sizes': write two numbers, such as 32000,32000" ;;
esac

needs gcloud "install the Google Cloud CLI"
case $command in
  run) start ;;
  create)
    [ "$plan" = no ] || compile_first
    create
    ;;
  *) "$command" ;;
esac
