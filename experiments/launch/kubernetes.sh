#!/usr/bin/env bash
# Trains on Kubernetes with GPUs or, at Google's GKE, with TPUs: submits a JobSet, which starts again until training is
# done. The cluster needs JobSet (jobset.sigs.k8s.io) 0.6 or newer.
#
#   docker build --file experiments/launch/Dockerfile --build-arg EXTRAS=tpu --tag IMAGE . && docker push IMAGE
#   experiments/launch/kubernetes.sh --name reverse --image IMAGE --tpu v6e:4x4 --spot --bucket my-bucket \
#       -- train experiments/reverse.py --out /mnt/s2sjax/runs/reverse
#   experiments/launch/kubernetes.sh --name reverse --image IMAGE --hosts 2 --gpus 8 --claim shared \
#       -- train experiments/reverse.py --out /mnt/s2sjax/runs/reverse
#   experiments/launch/kubernetes.sh --name seeds --image IMAGE --hosts 4 --gpus 1 --claim shared \
#       -- sweep experiments/reverse.py --seed 0,1,2,3 --name /mnt/s2sjax/runs/seeds
#
#   kubectl logs --follow --selector jobset.sigs.k8s.io/jobset-name=reverse     kubectl delete jobset reverse
#
# A pod that is taken away (a spot machine, a drained node) gets SIGTERM: s2sjax saves once on all hosts and ends; the
# JobSet starts all of them again, and they resume. It does not start again after a mistake of yours (exit code 2);
# after other failures it does, at most --restarts times. To resume later, submit the same command again.
#
# The hosts of a sweep are not joined: each trains a part of the runs (s2sjax sweep ... --part 3/4).
#
# Options
#   --name NAME            of the JobSet: lower-case letters, digits and -
#   --image IMAGE          with s2sjax, as built by experiments/launch/Dockerfile
#   --hosts N --gpus N     machines with GPUs, and how many GPUs each has
#   --tpu TYPE:TOPOLOGY    a TPU slice: v4, v5e, v5p or v6e, such as v6e:4x4
#   --slices N             several such slices, joined over the network (default: 1)
#   --chips N              chips of a TPU host (default: 4, or all of a smaller slice)
#   --bucket BUCKET        shared storage: a Cloud Storage bucket, by GKE's Cloud Storage FUSE driver. It must have a
#                          hierarchical namespace: see tpu_pod.sh --help
#   --claim CLAIM          or a PersistentVolumeClaim that all hosts can write (ReadWriteMany). Neither is needed if the
#                          folder of the run is in object storage (gs://... or s3://...), which --account may use
#   --mount DIR            where it is seen (default: /mnt/s2sjax)
#   --account NAME         the Kubernetes service account, which may need access to the bucket (default: default)
#   --spot                 on GKE's spot machines
#   --restarts N           after failures and pre-emptions (default: 100)
#   --grace N              seconds between SIGTERM and the end (default: 120; a save must fit in)
#   --dry-run              prints every command, runs none
#   -h, --help             this page

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

name=
image=
hosts=
gpus=
tpu=
slices=1
chips=
bucket=
claim=
mount=/mnt/s2sjax
account=default
spot=no
restarts=100
grace=120

while [ $# -gt 0 ]; do
  case $1 in
    --) break ;;
    --?*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
  esac
  case $1 in
    --name) takes "$@" && name=$2 && shift ;;
    --image) takes "$@" && image=$2 && shift ;;
    --hosts) takes "$@" && hosts=$2 && shift ;;
    --gpus) takes "$@" && gpus=$2 && shift ;;
    --tpu) takes "$@" && tpu=$2 && shift ;;
    --slices) takes "$@" && slices=$2 && shift ;;
    --chips) takes "$@" && chips=$2 && shift ;;
    --bucket) takes "$@" && bucket=${2#gs://} && shift ;;
    --claim) takes "$@" && claim=$2 && shift ;;
    --mount) takes "$@" && mount=${2%/} && shift ;;
    --account) takes "$@" && account=$2 && shift ;;
    --restarts) takes "$@" && restarts=$2 && shift ;;
    --grace) takes "$@" && grace=$2 && shift ;;
    --spot) spot=yes ;;
    --dry-run) dry_run=yes ;;
    -h | --help) usage && exit ;;
    *) error "there is no option $1: see $(basename "$0") --help; the s2sjax command comes after --" ;;
  esac
  shift
done
[ -n "$name" ] || error "--name is missing: name the JobSet, as in --name reverse"
[[ $name =~ ^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$ ]] ||
  error "--name is '$name': write at most 40 lower-case letters, digits and -, and begin with a letter"
[ -n "$image" ] || error "--image is missing: build one, see $(basename "$0") --help"
number --restarts "$restarts" 0
number --grace "$grace" 1
number --slices "$slices" 1
case $mount in
  /?*) ;;
  *) error "--mount is '$mount': name a folder by its whole path, such as /mnt/s2sjax" ;;
esac
[ -z "$bucket" ] || [ -z "$claim" ] || error "--bucket and --claim: give one of them"

# ------------------------------------------------------------------------------------------------------- the machines

if [ -n "$tpu" ]; then
  [ -z "$gpus$hosts" ] || error "--tpu says how many hosts there are: leave out --hosts and --gpus"
  type=${tpu%%:*} topology=${tpu#*:}
  case $type in
    v4) accelerator='tpu-v4-podslice' ;;
    v5e) accelerator='tpu-v5-lite-podslice' ;;
    v5p) accelerator='tpu-v5p-slice' ;;
    v6e) accelerator='tpu-v6e-slice' ;;
    *) error "--tpu is '$tpu': write v4, v5e, v5p or v6e, and the topology, as in v6e:4x4" ;;
  esac
  [[ $topology =~ ^[1-9][0-9]*(x[1-9][0-9]*){1,2}$ ]] ||
    error "--tpu is '$tpu': write the topology too, as in $type:4x4"
  all=$((${topology//x/*}))
  [ -n "$chips" ] || chips=$((all < 4 ? all : 4))
  number --chips "$chips" 1
  [ $((all % chips)) -eq 0 ] || error "--chips is $chips: it must divide the $all chips of $tpu"
  hosts=$((all / chips))
  limit="google.com/tpu: $chips"
else
  [ -n "$gpus" ] || error "--gpus or --tpu is missing: say what to train on, as in --hosts 2 --gpus 8, or --tpu v6e:4x4"
  [ "$slices" -eq 1 ] || error "--slices is for TPUs: write --hosts $slices"
  [ -z "$chips" ] || error "--chips is for TPUs: write --gpus $chips"
  [ -n "$hosts" ] || hosts=1
  number --gpus "$gpus" 1
  number --hosts "$hosts" 1
  limit="nvidia.com/gpu: $gpus"
fi
pods=$((slices * hosts))

# -------------------------------------------------------------------------------------------------------- the command

[ $# -eq 0 ] || shift # the --
read_words "$@"
case $out in
  gs://* | s3://*) ;;
  "$mount"/*)
    [ -n "$bucket$claim" ] || error "--bucket or --claim is missing: all hosts must see the folder of the run"
    ;;
  *) error "$out is not on the shared storage: name a folder under $mount" ;;
esac
sweep=no
if [ "${alone[0]}" = sweep ]; then
  shares_out
  [ -z "$tpu" ] || [ "$hosts" -eq 1 ] ||
    error "a slice of $tpu has $hosts hosts, and a sweep trains on one: use --slices, with slices of one host"
  sweep=yes
elif [ "$pods" -eq 1 ]; then
  words=("${alone[@]}")
fi

# string WORD: as a string of JSON, which YAML reads too.
string() {
  local word=${1//\\/\\\\}
  printf '"%s"' "${word//\"/\\\"}"
}

# The JobSet. After SIGTERM s2sjax saves and ends with 0, which Kubernetes would take for the end of training.
manifest() {
  local word
  cat <<END
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $name
END
  [ "$slices" -eq 1 ] || cat <<END
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
END
  cat <<END
spec:
  failurePolicy:
    maxRestarts: $restarts
    rules:
    - action: FailJobSet
      onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
  - name: hosts
    replicas: $slices
    template:
      spec:
        completionMode: Indexed
        parallelism: $hosts
        completions: $hosts
        backoffLimit: 0
        podFailurePolicy:
          rules:
          - action: FailJob
            onExitCodes:
              containerName: s2sjax
              operator: In
              values: [2]
        template:
END
  [ -z "$bucket" ] || cat <<END
          metadata:
            annotations:
              gke-gcsfuse/volumes: "true"
END
  cat <<END
          spec:
            restartPolicy: Never
            serviceAccountName: $account
            terminationGracePeriodSeconds: $grace
END
  if [ -n "$tpu" ] || [ "$spot" = yes ]; then
    printf '            nodeSelector:\n'
    [ -z "$tpu" ] || printf '              %s\n' "cloud.google.com/gke-tpu-accelerator: $accelerator" \
      "cloud.google.com/gke-tpu-topology: $topology"
    [ "$spot" = no ] || printf '              cloud.google.com/gke-spot: "true"\n'
  fi
  cat <<END
            containers:
            - name: s2sjax
              image: $(string "$image")
              resources:
                limits:
                  $limit
              env:
              - name: HOST
                valueFrom:
                  fieldRef:
                    fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
              - name: SLICE
                valueFrom:
                  fieldRef:
                    fieldPath: metadata.annotations['jobset.sigs.k8s.io/job-index']
END
  if [ -z "$tpu" ] && [ "$sweep" = no ] && [ "$pods" -gt 1 ]; then
    cat <<END
              - name: JAX_PROCESS_ID
                value: \$(HOST)
              - name: JAX_NUM_PROCESSES
                value: "$pods"
              - name: JAX_COORDINATOR_ADDRESS
                value: $name-hosts-0-0.$name:8476
END
  fi
  cat <<'END'
              command:
              - bash
              - -c
              - |
                trap 'stopped=yes; kill -TERM $child' TERM
END
  [ "$sweep" = no ] || printf '                set -- "$@" --part "%s/%s"\n' "$part" "$pods"
  cat <<'END'
                "$@" & child=$!
                wait $child && code=0 || code=$?
                if [ "${stopped-}" = yes ]; then wait $child; exit 143; fi
                exit $code
              - s2sjax
END
  for word in s2sjax "${words[@]}"; do
    printf '              - %s\n' "$(string "$word")"
  done
  cat <<END
              volumeMounts:
              - name: memory
                mountPath: /dev/shm
END
  [ -z "$bucket$claim" ] || cat <<END
              - name: storage
                mountPath: $(string "$mount")
END
  cat <<END
            volumes:
            - name: memory
              emptyDir:
                medium: Memory
END
  if [ -n "$bucket" ]; then
    cat <<END
            - name: storage
              csi:
                driver: gcsfuse.csi.storage.gke.io
                volumeAttributes:
                  bucketName: $(string "$bucket")
                  mountOptions: implicit-dirs
END
  elif [ -n "$claim" ]; then
    cat <<END
            - name: storage
              persistentVolumeClaim:
                claimName: $(string "$claim")
END
  fi
}

part="\$((HOST + 1))"
[ "$slices" -eq 1 ] || part="\$((SLICE + 1))"
needs kubectl "install it and log in to the cluster"
if [ "$dry_run" = yes ]; then
  printf "kubectl apply --filename=- <<'END'\n%s\nEND\n" "$(manifest)"
else
  manifest | kubectl apply --filename=-
fi
note "kubectl logs --follow --selector jobset.sigs.k8s.io/jobset-name=$name"
