#!/usr/bin/env bash
# Trains on several machines that you reach by ssh: one process per machine, which uses all of its GPUs.
#
#   experiments/launch/multi_gpu.sh --hosts node1,node2 -- train experiments/g2p.py --out /shared/runs/g2p
#   experiments/launch/multi_gpu.sh --hosts node1,node2 -- sweep experiments/g2p.py --seed 0,1,2,3 --name seeds
#
# Each host changes to the same folder (--dir), where s2sjax is installed:  .venv/bin/pip install -e ".[gpu,g2p]"
# The run folder (--out; runs/NAME of a sweep) must lie on storage that all hosts see, such as NFS. ssh must not ask for
# a password. The hosts train one model together; of a sweep, each host trains a part of the runs.
# Each line of output begins with the name of its host; the first host prints the progress.
#
# When one host fails or cannot be reached, all are stopped, and the exit code is not 0. Ctrl-C, SIGTERM and any other
# end of this script send SIGTERM to s2sjax on all hosts: it saves once. Run the same command again to resume.
#
# One machine with several GPUs needs none of this: a single process drives all of them. Without --hosts that is
# what this script runs:
#
#   experiments/launch/multi_gpu.sh -- train experiments/g2p.py --out runs/g2p
#
# Options
#   --hosts A,B,...            as ssh knows them, user@host too; the first one coordinates
#   --coordinator HOST:PORT    the address of the first host (default: the first of --hosts, port 8476)
#   --dir DIR                  the repository, under this path on all hosts (default: the current folder)
#   --s2sjax PATH              the command, seen from there (default: .venv/bin/s2sjax)
#   --dry-run                  prints every command, runs none
#   -h, --help                 this page

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

hosts=()
coordinator=
dir=$PWD
s2sjax=.venv/bin/s2sjax

while [ $# -gt 0 ]; do
  case $1 in
    --?*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
  esac
  case $1 in
    --hosts) takes "$@" && IFS=, read -r -a hosts <<<"$2" && shift ;;
    --coordinator) takes "$@" && coordinator=$2 && shift ;;
    --dir) takes "$@" && dir=$2 && shift ;;
    --s2sjax) takes "$@" && s2sjax=$2 && shift ;;
    --dry-run) dry_run=yes ;;
    -h | --help) usage && exit ;;
    --) break ;;
    *) error "there is no option $1: see $(basename "$0") --help; the s2sjax command comes after --" ;;
  esac
  shift
done
[ $# -eq 0 ] || shift # the --
read_words "$@"

if [ ${#hosts[@]} -eq 0 ]; then
  note "one machine: a single process drives all of its GPUs, so nothing has to be joined"
  run cd "$dir"
  [ "$dry_run" = yes ] || exec "$s2sjax" "${alone[@]}"
  run "$s2sjax" "${alone[@]}"
  exit
fi

for host in "${hosts[@]}"; do
  [ -n "$host" ] || error "--hosts has an empty name: write --hosts node1,node2"
done
twice=$(printf '%s\n' "${hosts[@]}" | sort | uniq -d | head -n 1)
[ -z "$twice" ] || error "--hosts names $twice twice: one process drives all GPUs of a host, so name each host once"
if [ -z "$coordinator" ]; then
  first=${hosts[0]#*@}
  case $first in
    localhost | 127.*) error "--hosts begins with $first, which others cannot reach: name it as they see it" ;;
  esac
  coordinator=$first:8476
fi
case ${coordinator##*:} in
  "$coordinator" | '' | *[!0-9]*) error "--coordinator is '$coordinator': write HOST:PORT" ;;
esac

[ "${alone[0]}" != sweep ] || shares_out

# Standard input is the leash: when it ends, because we close it, die or lose the network, s2sjax gets a SIGTERM.
remote() {
  local line="env JAX_COORDINATOR_ADDRESS=$coordinator JAX_NUM_PROCESSES=${#hosts[@]} JAX_PROCESS_ID=$1 "
  line+=$(quote "$s2sjax" "${words[@]}")
  [ "${alone[0]}" != sweep ] || line=$(quote "$s2sjax" "${words[@]}" --part "$(($1 + 1))/${#hosts[@]}")
  printf '%s' "cd $(quote "$dir") && { $line </dev/null & child=\$!; " \
    "{ while read -r _; do :; done; kill -TERM \$child; } <&0 2>/dev/null & leash=\$!; " \
    "wait \$child; code=\$?; kill \$leash 2>/dev/null; exit \$code; }"
}

# connect INDEX: ssh notices within a minute that a host is gone.
connect() {
  run ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=3 "${hosts[$1]}" "$(remote "$1")"
}

if [ "$dry_run" = yes ]; then
  note "all at once; when one fails, standard input of all is closed, and s2sjax there gets a SIGTERM"
  for i in "${!hosts[@]}"; do connect "$i"; done
  exit
fi

needs ssh "install OpenSSH"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkfifo "$scratch/leash"
exec 3<>"$scratch/leash"

stopped=no
stop() {
  [ "$stopped" = yes ] || exec 3>&-
  stopped=yes
}
trap 'stop; echo "interrupted: run the same command again to continue"' INT TERM HUP

processes=()
for i in "${!hosts[@]}"; do
  (
    connect "$i" <"$scratch/leash" 3>&- 2>&1 |
      while IFS= read -r line; do printf '%s: %s\n' "${hosts[$i]}" "$line"; done
  ) 3>&- &
  processes[i]=$!
done

worst=0
left=${#hosts[@]}
while [ "$left" -gt 0 ]; do
  sleep 0.3 || true
  for i in "${!hosts[@]}"; do
    if [ -z "${processes[$i]}" ] || kill -0 "${processes[$i]}" 2>/dev/null; then continue; fi
    code=0
    wait "${processes[$i]}" || code=$?
    processes[i]=
    left=$((left - 1))
    if [ "$code" -gt "$worst" ]; then worst=$code; fi
    if [ "$code" -ne 0 ] && [ "$stopped" = no ]; then
      printf 'error: %s ended with exit code %s: all hosts are stopped; fix it and run the same command again\n' \
        "${hosts[$i]}" "$code" >&2
      stop
    fi
  done
done
exit "$worst"
