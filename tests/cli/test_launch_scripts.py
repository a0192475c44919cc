"""The scripts for real clusters, run with programs that only log their calls.

A dry run calls nothing, and prints exactly the calls made without --dry-run. The shell commands that the
scripts send to other machines are run here, with a stand-in for s2sjax.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "experiments/launch"
SCRIPTS = ["tpu_pod.sh", "slurm.sh", "multi_gpu.sh", "kubernetes.sh"]
OUT = "/mnt/s2sjax/runs/it's mine"
TRAIN = ["--", "train", "experiments/reverse.py", "--out", OUT, "--train.steps", "40"]
SWEEP = ["--", "sweep", "experiments/reverse.py", "--seed", "0,1,2", "--name", "/mnt/s2sjax/runs/it's mine"]
POD = {"TPU_NAME": "pod", "TPU_ZONE": "us-east5-b", "TPU_PROJECT": "lab", "TPU_TYPE": "v6e-16"}
SLURM = ["--nodes", "2", "--gpus", "4", "--time", "1:00:00"]
K8S = ["--name", "mine", "--image", "IMAGE", "--claim", "shared"]

NOTE = """#!/usr/bin/env bash
line=$(printf '%q ' "$(basename "$0")" "$@")
echo "$line" >>"$CALLS"
"""
FAKES = {
    "gcloud": """
    case "$*" in
      'storage ls '*) cat "$BUCKET" ;;
      *' describe '*)
        state=$(head -n 1 "$STATES")
        sed -i 1d "$STATES"
        [ "$state" != NONE ] || { echo "ERROR: NOT_FOUND: no such resource" >&2; exit 1; }
        echo "${state:-ACTIVE}"
        ;;
      *' --command='*) [ ! -d "$WORKER" ] || { cd "$WORKER"; last=${@: -1}; exec bash -c "${last#--command=}"; } ;;
    esac
    """,
    "ssh": 'exec bash -c "${@: -1}"',
    "sbatch": "",
    "srun": 'bash -c "$SRUN"',
    "scontrol": "",
    "kubectl": 'cat >"$TMPDIR/manifest"',
    "tar": "",
    "s2sjax": '[ "$PLAN" != large ] || { echo "error: it does not fit" >&2; exit 2; }',
    "mkdir": 'exec /bin/mkdir "$@"',
    "mountpoint": '[ -d "$WORKER" ]',
    "sleep": 'exec /bin/sleep 0.05',
}  # fmt: skip


class Place:
    """A folder in which to run the scripts, with the programs of a cluster on the path."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.noted = folder / "calls"
        self.states = folder / "states"
        programs = folder / "programs"
        programs.mkdir()
        for name, rest in FAKES.items():
            self.program(programs / name, NOTE + rest)
        self.program(folder / ".venv/bin/s2sjax", NOTE)
        self.states.write_text("")
        path = f"{programs}:{os.environ['PATH']}"
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("TPU_", "SLURM_", "JAX_"))}
        notes = {"PLAN": "", "CALLS": str(self.noted), "STATES": str(self.states), "WORKER": str(folder / "worker")}
        notes["BUCKET"] = str(folder / "bucket")
        self.environment = plain | notes | {"PATH": path, "TMPDIR": str(folder)}

    @staticmethod
    def program(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.startswith("#!") else f"#!/usr/bin/env bash\n{text}")
        path.chmod(0o755)

    def start(self, script: str, *arguments: str, **more: str) -> subprocess.Popen:
        command = [str(LAUNCH / script), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # Tests that run in the background ignore ^C, and their scripts would inherit this.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            return subprocess.Popen(command, cwd=self.folder, env=self.environment | more, **pipes)
        finally:
            signal.signal(signal.SIGINT, before)

    def call(self, script: str, *arguments: str, **more: str) -> tuple[int, str, str]:
        child = self.start(script, *arguments, **more)
        out, err = child.communicate(timeout=60)
        return child.returncode, out, err

    def refused(self, script: str, *arguments: str, **more: str) -> str:
        code, out, err = self.call(script, *arguments, **more)
        assert (code, out, err.count("\n"), err[:7]) == (2, "", 1, "error: "), out + err
        assert self.calls() == []
        return err[7:].removesuffix("\n")

    def dry(self, script: str, *arguments: str, **more: str) -> list[list[str]]:
        """The commands that a dry run prints."""
        code, out, err = self.call(script, "--dry-run", *arguments, **more)
        assert (code, err) == (0, "")
        return [shlex.split(line) for line in out.splitlines() if not line.startswith("#")]

    def calls(self, *without: str) -> list[list[str]]:
        """The calls since the last time."""
        lines = self.noted.read_text().splitlines() if self.noted.exists() else []
        self.noted.unlink(missing_ok=True)
        return [call for call in map(shlex.split, lines) if call[0] not in without]


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def eventually(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------------------ all of them


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_the_page_at_the_head_of_the_file_and_its_examples_hold(place, script):
    code, out, err = place.call(script, "--help")
    assert (code, err) == (0, "")
    head = (LAUNCH / script).read_text().split("\n\n")[0].splitlines()[1:]
    assert out.splitlines() == [line.removeprefix("#").removeprefix(" ") for line in head]
    assert {"--dry-run", "-h,"} <= set(out.split())
    examples = re.findall(r"^ +(experiments/launch/\S+\.sh .*)$", re.sub(r"\\\n\s+", "", out), re.MULTILINE)
    assert examples
    for example in examples:
        name, *arguments = shlex.split(example)
        assert place.dry(Path(name).name, *arguments, **POD)
    assert place.calls() == []


def test_the_commands_on_the_page_hold(place):
    """The commands in docs/pod.md, from laptop to pod."""
    page = (ROOT / "docs/pod.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```sh.*?\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    commands = [shlex.split(line) for line in blocks.splitlines() if line.startswith("experiments/launch/")]
    assert {Path(words[0]).name for words in commands} == set(SCRIPTS)
    for name, *arguments in commands:
        assert place.dry(Path(name).name, *arguments, **POD)
    assert place.calls() == []


CASES = [
    ("tpu_pod.sh", ["create", *TRAIN]),
    ("tpu_pod.sh", ["create", "--no-plan", "--spot", "--type=v5p-32", "--name", "other"]),
    ("tpu_pod.sh", ["setup"]),
    ("tpu_pod.sh", ["setup", "--bucket", "gs://data"]),
    ("tpu_pod.sh", ["setup", "--nfs", "server:/share", "--mount", "/mnt/all of us"]),
    ("tpu_pod.sh", ["run", *TRAIN]),
    ("tpu_pod.sh", ["logs"]),
    ("tpu_pod.sh", ["logs", "--follow", "--worker", "all"]),
    ("tpu_pod.sh", ["status"]),
    ("tpu_pod.sh", ["stop"]),
    ("tpu_pod.sh", ["resume", "--spot", "--bucket", "data", *TRAIN]),
    ("tpu_pod.sh", ["delete"]),
    ("tpu_pod.sh", ["run", "--type", "v6e-8", *SWEEP, "--part", "3/8"]),
    ("slurm.sh", [*SLURM, *TRAIN]),
    ("slurm.sh", [*SLURM, *SWEEP]),
    ("slurm.sh", [*SLURM, "--per-gpu", "--partition=a100", "--comment=it's us", *TRAIN]),
    ("slurm.sh", ["--nodes=1", "--gpus=0", "--time=5", "--logs=kept", "--warning=60", "--", "evaluate", "runs/a"]),
    ("multi_gpu.sh", ["--hosts", "one,me@two,three", *TRAIN]),
    ("multi_gpu.sh", ["--hosts", "one", "--coordinator", "10.0.0.1:99", "--", "evaluate", "runs/a"]),
    ("multi_gpu.sh", ["--hosts", "one,two", *SWEEP]),
    ("multi_gpu.sh", TRAIN),
    ("multi_gpu.sh", [*SWEEP, "--part", "1/2"]),
]


@pytest.mark.parametrize("script, arguments", CASES, ids=lambda value: value if isinstance(value, str) else value[0])
def test_a_dry_run_calls_nothing_and_prints_exactly_what_is_called_without(place, script, arguments):
    printed = place.dry(script, *arguments, **POD)
    assert place.calls() == []
    if "resume" in arguments:
        place.states.write_text("SUSPENDED\n")
    code, _, err = place.call(script, *arguments, **POD)
    assert (code, err) == (0, "")
    called = place.calls("sleep")
    if script == "multi_gpu.sh":  # cd is not noted, and hosts start in any order
        printed = sorted([Path(call[0]).name, *call[1:]] for call in printed if call[0] != "cd")
        called = sorted(call for call in called if call[0] == printed[0][0])
    assert called == printed


@pytest.mark.parametrize(
    "script, arguments, message",
    [
        ("tpu_pod.sh", [], "name a command: create, setup, run, logs, status, stop, resume, watch or delete"),
        ("tpu_pod.sh", ["crate"], "there is no command 'crate': create, setup, "),
        ("tpu_pod.sh", ["create", "delete"], "one command at a time: create or delete"),
        ("tpu_pod.sh", ["create", "--nmae", "x"], "there is no option --nmae: see tpu_pod.sh --help; "),
        ("tpu_pod.sh", ["create", "--zone"], "--zone has no value: write --zone VALUE (see tpu_pod.sh --help)"),
        ("tpu_pod.sh", ["run", "--zone", *TRAIN], "--zone has no value: write --zone VALUE"),
        ("tpu_pod.sh", ["create", "--type", "tpu7x-16"], "--version is missing and not known for tpu7x-16: see "),
        ("tpu_pod.sh", ["setup", "--bucket", "a", "--nfs", "b:/c"], "--bucket and --nfs: give one of them"),
        ("tpu_pod.sh", ["setup", "--mount", "data"], "--mount is 'data': name a folder by its whole path, such as /"),
        ("tpu_pod.sh", ["logs", "--worker", "x"], "--worker is 'x': it must be a whole number, at least 0"),
        ("tpu_pod.sh", ["delete", *TRAIN], "delete takes nothing after --: only create, run, resume and "),
        ("tpu_pod.sh", ["create"], "create compiles the experiment first: end with -- train FILE --out DIR, or give "),
        ("tpu_pod.sh", ["create", "--no-plan", *TRAIN], "--no-plan compiles nothing: leave out what comes after --"),
        (
            "tpu_pod.sh",
            ["create", "--", "evaluate", "/mnt/s2sjax/run"],
            "create compiles a training command: write -- ",
        ),
        ("tpu_pod.sh", ["create", "--sizes", "9", *TRAIN], "--sizes is '9': write two numbers, such as 32000,32000"),
        ("tpu_pod.sh", ["run"], "there is nothing to run: end the command with -- train FILE --out DIR"),
        ("tpu_pod.sh", ["run", "--", "train", "a.py", "--out", "runs/a"], "runs/a lies on each worker's own disk: n"),
        ("tpu_pod.sh", ["run", "--", "sweep", "a.py", "--name=b"], "runs/b lies on each worker's own disk: name a "),
        ("tpu_pod.sh", ["watch", "--", "evaluate", "/a"], "watch trains until it is done: write -- train FILE --out "),
        ("tpu_pod.sh", ["watch", "--", "train", "a", "--out", "s3://a"], "watch looks for checkpoints in s3://a, w"),
        ("tpu_pod.sh", ["run", *SWEEP], "v6e-16 has several hosts, and a sweep trains on one: create a TPU of a "),
        ("tpu_pod.sh", ["run", "--type", "v6e:4x4", *SWEEP], "--type is v6e:4x4: write it as Google Cloud does, such"),
        ("tpu_pod.sh", ["setup", "--bucket", "gs://"], "--bucket is gs://: name a bucket"),
        ("tpu_pod.sh", ["run", "--", "train", "a", "--out", "gs://"], "--out gs:// names no bucket: write gs://BUCK"),
        ("slurm.sh", [*SLURM, "--", "train", "a", "--out", "s3:///run"], "--out s3:///run names no bucket: write s3"),
        ("tpu_pod.sh", ["create", *SWEEP], "create compiles a training command: write -- train FILE, or give --no-p"),
        ("slurm.sh", SLURM, "there is nothing to run: end the command with -- train FILE --out DIR"),
        ("slurm.sh", [*SLURM[2:], *TRAIN], "--nodes is missing: say how many machines, as in --nodes 2"),
        ("slurm.sh", [*SLURM[:2], *TRAIN], "--gpus is missing: say how many GPUs each machine has, as in --gpus 8"),
        ("slurm.sh", [*SLURM[:4], *TRAIN], "--time is missing: say how long one job may take, as in --time 12"),
        ("slurm.sh", [*SLURM, "--nodes", "0", *TRAIN], "--nodes is 0: it must be at least 1"),
        ("slurm.sh", [*SLURM, "--gpus", "all", *TRAIN], "--gpus is 'all': it must be a whole number, at least 0"),
        ("slurm.sh", [*SLURM, "--gpus", "0", "--per-gpu", *TRAIN], "--per-gpu needs GPUs: give --gpus, or leave"),
        ("slurm.sh", [*SLURM, "--exclusive", *TRAIN], "there is no option --exclusive: see slurm.sh --help; write o"),
        ("slurm.sh", [*SLURM, "--", "prepare", "a.py"], "'prepare' does not run on several hosts: write -- train FILE"),
        ("slurm.sh", [*SLURM, "--", "train", "a.py"], "--out is missing after --: give a folder that all hosts see"),
        ("slurm.sh", [*SLURM, "--", "sweep", "a.py"], "--name is missing after --: give a folder that all hosts see"),
        ("slurm.sh", [*SLURM, *SWEEP, "--part=1/2"], "--part is 1/2: leave it out, for each host gets its own part"),
        ("slurm.sh", [*SLURM, "--per-gpu", *SWEEP], "--per-gpu joins tasks, which a sweep does not: give --gpus 1 and"),
        ("multi_gpu.sh", ["--hosts", "a,b", *SWEEP, "--part", "1/2"], "--part is 1/2: leave it out, for each host "),
        ("slurm.sh", [*SLURM, "--", "train"], "train what? Write -- train FILE --out DIR, -- sweep FILE --name"),
        ("slurm_job.sh", ["a", "b", "srun"], "do not run slurm_job.sh directly: submit with slurm.sh (see slu"),
        ("kubernetes.sh", [*K8S[2:], "--gpus", "1", *TRAIN], "--name is missing: name the JobSet, as in --name reve"),
        ("kubernetes.sh", [*K8S, "--name=A b", "--gpus", "1", *TRAIN], "--name is 'A b': write at most 40 lower-cas"),
        ("kubernetes.sh", ["--name", "a", *TRAIN], "--image is missing: build one, see kubernetes.sh --help"),
        ("kubernetes.sh", [*K8S[:4], "--gpus=8", *TRAIN], "--bucket or --claim is missing: all hosts must see the f"),
        ("kubernetes.sh", [*K8S, "--bucket", "b", "--gpus=8", *TRAIN], "--bucket and --claim: give one of them"),
        ("kubernetes.sh", [*K8S, *TRAIN], "--gpus or --tpu is missing: say what to train on, as in --hosts 2 --gpus"),
        ("kubernetes.sh", [*K8S, "--gpus", "0", *TRAIN], "--gpus is 0: it must be at least 1"),
        ("kubernetes.sh", [*K8S, "--gpus=1", "--slices=2", *TRAIN], "--slices is for TPUs: write --hosts 2"),
        ("kubernetes.sh", [*K8S, "--gpus=1", "--chips=2", *TRAIN], "--chips is for TPUs: write --gpus 2"),
        ("kubernetes.sh", [*K8S, "--tpu=v6e:4x4", "--hosts=4", *TRAIN], "--tpu says how many hosts there are: leave"),
        ("kubernetes.sh", [*K8S, "--tpu=v6e", *TRAIN], "--tpu is 'v6e': write the topology too, as in v6e:4x4"),
        ("kubernetes.sh", [*K8S, "--tpu=v9:4x4", *TRAIN], "--tpu is 'v9:4x4': write v4, v5e, v5p or v6e, and the"),
        ("kubernetes.sh", [*K8S, "--tpu=v6e:4x4", "--chips=3", *TRAIN], "--chips is 3: it must divide the 16 chips"),
        ("kubernetes.sh", [*K8S, "--tpu=v6e:4x4", *SWEEP], "a slice of v6e:4x4 has 4 hosts, and a sweep trains on"),
        ("kubernetes.sh", [*K8S, "--gpus=1", "--", "train", "a.py", "--out", "b"], "b is not on the shared storage: "),
        ("kubernetes.sh", [*K8S, "--gpus=1", "--mount", "data", *TRAIN], "--mount is 'data': name a folder by its "),
        ("kubernetes.sh", [*K8S, "--gpu=1", *TRAIN], "there is no option --gpu: see kubernetes.sh --help; the s2sja"),
        ("multi_gpu.sh", ["--hosts", "a,b"], "there is nothing to run: end the command with -- train FILE --out DIR"),
        ("multi_gpu.sh", ["--host", "a", *TRAIN], "there is no option --host: see multi_gpu.sh --help; the s2sjax c"),
        ("multi_gpu.sh", ["--hosts", "a,b,a", *TRAIN], "--hosts names a twice: one process drives all GPUs of a host"),
        ("multi_gpu.sh", ["--hosts", "a,,b", *TRAIN], "--hosts has an empty name: write --hosts node1,node2"),
        ("multi_gpu.sh", ["--hosts", "localhost,b", *TRAIN], "--hosts begins with localhost, which others cannot re"),
        ("multi_gpu.sh", ["--hosts", "a,b", "--coordinator", "a", *TRAIN], "--coordinator is 'a': write HOST:PORT"),
        ("multi_gpu.sh", ["--hosts", "a,b", "--coordinator", "a:x", *TRAIN], "--coordinator is 'a:x': write HOST:P"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(place, script, arguments, message):
    assert place.refused(script, *arguments, **POD).startswith(message)


@pytest.mark.parametrize("name", POD)
def test_what_a_pod_needs_is_asked_for_by_option_or_environment(place, name):
    option = "--" + name.removeprefix("TPU_").lower()
    others = {key: value for key, value in POD.items() if key != name}
    assert place.refused("tpu_pod.sh", "create", "--no-plan", **others).startswith(
        f"{option} is missing: give {option}, or set {name}, as in {option} "
    )
    assert place.dry("tpu_pod.sh", "create", "--no-plan", option, POD[name], **others) == place.dry(
        "tpu_pod.sh", "create", "--no-plan", **POD
    )


@pytest.mark.parametrize(
    "script, program",
    [("tpu_pod.sh", "gcloud"), ("slurm.sh", "sbatch"), ("multi_gpu.sh", "ssh"), ("kubernetes.sh", "kubectl")],
)
def test_a_missing_program_is_named_and_a_dry_run_needs_none(place, tmp_path, script, program):
    arguments = {"tpu_pod.sh": ["status"], "slurm.sh": [*SLURM, *TRAIN], "multi_gpu.sh": ["--hosts", "a,b", *TRAIN]}
    arguments["kubernetes.sh"] = [*K8S, "--gpus", "1", *TRAIN]
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "basename", "dirname", "sed", "env", "seq", "paste", "sort", "uniq", "head", "cat"):
        (tools / tool).symlink_to(shutil.which(tool))
    bare = POD | {"PATH": str(tools)}
    assert place.dry(script, *arguments[script], **bare)
    code, _, err = place.call(script, *arguments[script], **bare)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: {program} is not installed: ")


@pytest.mark.parametrize("script", sorted(path.name for path in LAUNCH.glob("*.sh")))
def test_the_scripts_are_sound_bash(script):
    path = LAUNCH / script
    text = path.read_text()
    assert subprocess.run(["bash", "-n", path]).returncode == 0
    assert max(map(len, text.splitlines())) <= 120
    if script != "common.sh":
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "\nset -euo pipefail\n" in text
        assert os.access(path, os.X_OK)
    if shutil.which("shellcheck"):
        checked = subprocess.run(["shellcheck", "-x", path], capture_output=True, text=True)
        assert checked.stdout == ""


# -------------------------------------------------------------------------------------------------------- Kubernetes


def job_set(place: Place, *arguments: str) -> dict[str, Any]:
    """The manifest that kubectl gets, which is also what a dry run prints."""
    code, shown, err = place.call("kubernetes.sh", "--dry-run", *arguments)
    assert (code, err, place.calls()) == (0, "", [])
    code, _, err = place.call("kubernetes.sh", *arguments)
    assert (code, err) == (0, "")
    assert place.calls() == [["kubectl", "apply", "--filename=-"]]
    text = (place.folder / "manifest").read_text()
    assert shown.startswith(f"kubectl apply --filename=- <<'END'\n{text}END\n")
    return yaml.safe_load(text)


def pod_of(job_set: dict[str, Any]) -> dict[str, Any]:
    [job] = job_set["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]


JOB_SET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
    "metadata": {"name": str, "annotations?": {str: str}},
    "spec": {
        "failurePolicy": {"maxRestarts": int, "rules": [{"action": str, "onJobFailureReasons": [str]}]},
        "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": {
            "completionMode": "Indexed", "parallelism": int, "completions": int, "backoffLimit": 0,
            "podFailurePolicy": {"rules": [{"action": str, "onExitCodes": {
                "containerName": "s2sjax", "operator": "In", "values": [int]}}]},
            "template": {
                "metadata?": {"annotations": {str: str}},
                "spec": {
                    "restartPolicy": "Never", "serviceAccountName": str, "terminationGracePeriodSeconds": int,
                    "nodeSelector?": {str: str},
                    "containers": [{
                        "name": "s2sjax", "image": str, "resources": {"limits": {str: int}}, "command": [str],
                        "env": [{"name": str, "value?": str, "valueFrom?": {"fieldRef": {"fieldPath": str}}}],
                        "volumeMounts": [{"name": str, "mountPath": str}],
                    }],
                    "volumes": [{
                        "name": str, "emptyDir?": {"medium": "Memory"}, "persistentVolumeClaim?": {"claimName": str},
                        "csi?": {"driver": str, "volumeAttributes": {str: str}},
                    }],
                },
            },
        }}}],
    },
}  # fmt: skip
"""the fields of JobSet v1alpha2, Job and Pod that are used, with their types; ? for those that may be missing"""


def conforms(value: Any, schema: Any, where: str = "") -> None:
    """The API server refuses unknown fields and other types."""
    if isinstance(schema, type):
        assert type(value) is schema, where
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        for each in value:
            conforms(each, schema[0], f"{where}[]")
    elif isinstance(schema, dict) and str in schema:
        assert {type(part) for item in value.items() for part in item} <= {str, schema[str]}, where
    elif isinstance(schema, dict):
        assert {*value} <= {name.rstrip("?") for name in schema}, where
        for name, part in schema.items():
            if not name.endswith("?") or name.rstrip("?") in value:
                conforms(value[name.rstrip("?")], part, f"{where}.{name}")
    else:
        assert value == schema, where


@pytest.mark.parametrize(
    "arguments",
    [
        [*K8S, "--hosts", "2", "--gpus", "8", *TRAIN],
        [*K8S, "--gpus", "1", "--spot", *TRAIN],
        [*K8S, "--hosts=2", "--gpus=8", *SWEEP],
        [*K8S[:4], "--bucket", "gs://data", "--tpu", "v6e:4x4", "--slices", "2", *TRAIN],
        [*K8S[:4], "--bucket=data", "--tpu=v5e:2x2", "--slices=3", "--mount=/mnt/s2sjax/", *SWEEP],
        [*K8S[:4], "--hosts=2", "--gpus=8", *TRAIN[:-3], "s3://data/runs/mine"],
    ],
)
def test_a_manifest_has_the_fields_that_kubernetes_knows(place, arguments):
    conforms(job_set(place, *arguments), JOB_SET)


def test_hosts_with_gpus_find_each_other_by_name(place):
    [container] = pod_of(job_set(place, *K8S, "--hosts", "2", "--gpus", "8", *TRAIN))["spec"]["containers"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert given["JAX_PROCESS_ID"] == "$(HOST)" and given["JAX_NUM_PROCESSES"] == "2"
    assert given["JAX_COORDINATOR_ADDRESS"] == "mine-hosts-0-0.mine:8476"
    assert container["command"][-8:] == ["s2sjax", *TRAIN[1:], "--distributed"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    [alone] = pod_of(job_set(place, *K8S, "--gpus", "8", *TRAIN))["spec"]["containers"]
    assert alone["command"][-7:] == ["s2sjax", *TRAIN[1:]]
    assert {each["name"] for each in alone["env"]} == {"HOST", "SLICE"}


def test_each_slice_has_the_hosts_of_its_topology(place):
    found = job_set(place, *K8S[:4], "--bucket", "data", "--tpu", "v5p:4x4x8", "--slices", "3", "--spot", *TRAIN)
    [job] = found["spec"]["replicatedJobs"]
    assert (job["replicas"], job["template"]["spec"]["completions"]) == (3, 32)
    assert found["metadata"]["annotations"] == {
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
    }
    pod = pod_of(found)
    assert pod["metadata"]["annotations"] == {"gke-gcsfuse/volumes": "true"}
    assert pod["spec"]["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "4x4x8",
        "cloud.google.com/gke-spot": "true",
    }
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"google.com/tpu": 4}
    assert pod["spec"]["volumes"][1]["csi"]["volumeAttributes"]["bucketName"] == "data"
    pair = job_set(place, *K8S, "--tpu", "v6e:2x1", *TRAIN)["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert pair["completions"] == 1
    assert pair["template"]["spec"]["containers"][0]["resources"]["limits"] == {"google.com/tpu": 2}


@pytest.mark.parametrize(("code", "stop"), [(0, False), (2, False), (0, True)])
def test_a_container_that_was_told_to_stop_has_not_finished(place, code, stop):
    """s2sjax saves and ends with 0 after SIGTERM; Kubernetes would take this for the end of training."""
    [container] = pod_of(job_set(place, *K8S, "--gpus", "1", *TRAIN))["spec"]["containers"]
    done = 'touch "$TMPDIR/saved"; exit 0'
    program = (
        f'trap \'{done}\' TERM; touch "$TMPDIR/began"; while [ -e "$TMPDIR/wait" ]; do sleep 0.02; done; exit {code}'
    )
    place.program(place.folder / "programs/s2sjax", program)
    if stop:
        (place.folder / "wait").touch()
    child = subprocess.Popen(container["command"], env=place.environment)
    if stop:
        eventually((place.folder / "began").exists)
        child.send_signal(signal.SIGTERM)
    assert child.wait(20) == (143 if stop else code)
    assert (place.folder / "saved").exists() == stop


@pytest.mark.parametrize("slices", [False, True])
def test_each_pod_trains_its_part_of_a_sweep(place, slices):
    machines = ["--tpu", "v6e:1x1", "--slices", "4"] if slices else ["--hosts", "4", "--gpus", "1"]
    [container] = pod_of(job_set(place, *K8S, *machines, *SWEEP))["spec"]["containers"]
    which = {"HOST": "0" if slices else "2", "SLICE": "2" if slices else "0"}
    assert subprocess.run(container["command"], env=place.environment | which, timeout=60).returncode == 0
    assert place.calls("sleep") == [["s2sjax", *SWEEP[1:], "--part", "3/4"]]


# ---------------------------------------------------------------------------------------------------- Cloud TPU pods


def option(call: list[str], name: str) -> str:
    return next(word.removeprefix(f"{name}=") for word in call if word.startswith(f"{name}="))


def test_a_pod_is_a_queued_resource_with_the_software_of_its_type(place):
    create, describe = place.dry("tpu_pod.sh", "create", "--no-plan", "--spot", **POD)
    assert create[:6] == ["gcloud", "compute", "tpus", "queued-resources", "create", "pod"]
    assert {"--zone=us-east5-b", "--project=lab", "--node-id=pod", "--accelerator-type=v6e-16", "--spot"} <= set(create)
    assert describe[4:6] == ["describe", "pod"]
    software = {"v6e-8": "v2-alpha-tpuv6e", "v5p-8": "v2-alpha-tpuv5", "v5litepod-16": "v2-alpha-tpuv5-lite"}
    for kind, version in (software | {"v4-16": "tpu-ubuntu2204-base"}).items():
        create, _ = place.dry("tpu_pod.sh", "create", "--no-plan", **(POD | {"TPU_TYPE": kind}))
        assert option(create, "--runtime-version") == version
        assert "--spot" not in create
    create, _ = place.dry("tpu_pod.sh", "create", "--no-plan", "--version", "newer", **POD)
    assert option(create, "--runtime-version") == "newer"


def test_setup_copies_the_tree_to_all_workers_installs_and_mounts(place):
    tar, copy, mount, install = place.dry("tpu_pod.sh", "setup", "--bucket", "gs://data", **POD)
    assert tar[0] == "tar"
    assert tar[tar.index("-C") + 1] == str(ROOT)
    assert {"--exclude=.git", "--exclude=.venv", "--exclude=runs"} <= set(tar)
    archive = tar[tar.index("-czf") + 1]
    assert copy[3:7] == ["tpu-vm", "scp", archive, "pod:s2sjax.tgz"]
    assert all("--worker=all" in call for call in (copy, install, mount))
    assert "pip install" in option(install, "--command")
    assert ".[tpu" in option(install, "--command")
    assert option(mount, "--command").endswith(" data /mnt/s2sjax")
    mount = place.dry("tpu_pod.sh", "setup", "--nfs", "server:/share", "--mount", "/mnt/all of us/", **POD)[-2]
    assert "mount -t nfs server:/share '/mnt/all of us';" in option(mount, "--command")
    for call in (install, mount):
        assert subprocess.run(["bash", "-n", "-c", option(call, "--command")]).returncode == 0


def test_the_archive_holds_the_tree_without_what_git_ignores(place, tmp_path):
    (tar, *_) = place.dry("tpu_pod.sh", "setup", **POD)
    archive = Path(tar[tar.index("-czf") + 1])
    subprocess.run(tar, check=True)
    listed = subprocess.run(["tar", "-tzf", archive], check=True, capture_output=True, text=True).stdout.split()
    tops = {Path(name).parts[0] for name in listed if Path(name).parts}
    assert {"s2sjax", "experiments", "pyproject.toml", "constraints.txt"} <= tops
    assert not tops & {".git", ".venv", "runs"}
    assert not any("__pycache__" in name or name.endswith(".log") for name in listed)


def test_every_worker_runs_the_same_line_once(place):
    (run,) = place.dry("tpu_pod.sh", "run", *TRAIN, **POD)
    assert run[3:6] == ["tpu-vm", "ssh", "pod"]
    assert "--worker=all" in run
    inner = shlex.split(option(run, "--command"), posix=True)
    start = inner.index("nohup")
    assert inner[start + 1 : inner.index(">>train.log")] == [".venv/bin/s2sjax", *TRAIN[1:], "--distributed"]
    assert place.dry("tpu_pod.sh", "run", *TRAIN, "--distributed", **POD) == [run]
    assert option(place.dry("tpu_pod.sh", "resume", *TRAIN, **POD)[-1], "--command") == option(run, "--command")


@pytest.mark.parametrize(
    "states, expected",
    [
        ("ACTIVE", "describe ssh"),
        ("SUSPENDED WAITING_FOR_RESOURCES PROVISIONING ACTIVE", "describe delete create describe describe describe "),
        ("FAILED", "describe delete create describe "),
        ("NONE", "describe create describe "),
        ("PROVISIONING PROVISIONING", "describe describe describe "),
    ],
)
def test_resume_makes_a_pod_anew_only_if_it_is_gone(place, states, expected):
    place.states.write_text(states.replace(" ", "\n") + "\n")
    code, _, err = place.call("tpu_pod.sh", "resume", *TRAIN, **POD)
    assert (code, err) == (0, "")
    verbs = [call[4] for call in place.calls("tar", "sleep")]
    assert verbs == (expected + ("" if states == "ACTIVE" else "scp ssh ssh")).split()


def test_an_experiment_is_compiled_before_a_pod_is_created(place):
    place.states.write_text("ACTIVE\n")
    given = ["create", "--sizes", "100,200", *TRAIN, "--init", "old", "--train.dtype=bfloat16"]
    assert place.call("tpu_pod.sh", *given, **POD)[0] == 0
    plan, *others = place.calls()
    assert plan == [
        "s2sjax", "plan", "experiments/reverse.py", "--train.steps", "40", "--train.dtype=bfloat16",
        "--source-size", "100", "--target-size", "200", "--compile", "v6e-16",
    ]  # fmt: skip
    assert [call[4] for call in others] == ["create", "describe"]
    code, out, err = place.call("tpu_pod.sh", "create", *TRAIN, PLAN="large", **POD)
    assert (code, out) == (2, "")
    assert err == "error: it does not fit\nerror: see above; or create it all the same with --no-plan\n"
    assert [call[0] for call in place.calls()] == ["s2sjax"]  # nothing was created


def test_a_pod_that_cannot_be_had_is_told(place):
    place.states.write_text("WAITING_FOR_RESOURCES\nFAILED\n")
    code, out, err = place.call("tpu_pod.sh", "create", "--no-plan", **POD)
    assert (code, err) == (1, "error: pod is FAILED: delete it and create it again, or resume\n")
    assert "# pod is WAITING_FOR_RESOURCES; it stays in the queue if you leave\n" in out


def test_a_worker_starts_refuses_to_start_twice_tells_and_stops(place):
    home = place.folder / "worker/s2sjax"
    rest = "for _ in {1..600}; do /bin/sleep 0.05; done"
    place.program(home / ".venv/bin/s2sjax", f'echo "words: $*"; trap "echo interrupted; exit 0" TERM; {rest}')
    assert place.call("tpu_pod.sh", "run", *TRAIN, **POD)[0] == 0
    log = home / "train.log"
    eventually(lambda: log.exists() and "words" in log.read_text())
    assert log.read_text() == f"words: {' '.join(TRAIN[1:])} --distributed\n"
    code, out, err = place.call("tpu_pod.sh", "run", *TRAIN, **POD)
    assert (code, out, err) == (1, "", "error: s2sjax is running: stop it first\n")
    code, out, _ = place.call("tpu_pod.sh", "status", **POD)
    assert (code, out.splitlines()[0]) == (0, "pod is ACTIVE")
    assert re.search(r": running\nwords: ", out)
    assert place.call("tpu_pod.sh", "logs", **POD)[1] == log.read_text()
    assert place.call("tpu_pod.sh", "stop", **POD)[0] == 0
    eventually(lambda: log.read_text().endswith("interrupted\n"))
    eventually(lambda: ": not running\ninterrupted\n" in place.call("tpu_pod.sh", "status", **POD)[1])


BUCKET = "gs://lab/runs/mine"
WATCHED = ["watch", "--spot", "--", "train", "experiments/reverse.py", "--out", BUCKET]


@pytest.mark.parametrize(
    "lives, code, says, creates",
    [
        (["save 4; exit 0"], 0, "training is done: ", 1),
        (["save 4; gone", "save 8; gone", "save 12; exit 0"], 0, "training is done: ", 3),
        (["save 4; echo interrupted", "exit 0"], 0, "training is done: ", 1),
        (["save 4; exit 7", "save 8; exit 0"], 0, "training is done: ", 1),
        (["save 4; exit 7", "exit 7"], 1, "training ended with exit code 7 and saved nothing new: see logs", 1),
        (["save 4; gone", "gone", "gone", "gone"], 1, "pod was pre-empted 3 times without a new checkpoint", 4),
        (["save 4; gone", "gone", "save 8; gone", "gone", "gone", "exit 0"], 0, "training is done: ", 6),
        (["touch train.stop; echo interrupted"], 0, "training was stopped: watch ends", 1),
        (["echo NONE >\"$POD_STATE\"; stay"], 1, "pod was deleted: watch ends", 1),
    ],
)  # fmt: skip
def test_watch_trains_until_it_is_done_or_gets_nowhere(place, lives, code, says, creates):
    """Each life is what the training does on a pod; after `gone` the pod is SUSPENDED."""
    home, state = place.folder / "worker/s2sjax", place.folder / "state"
    state.write_text("NONE")
    (place.folder / "bucket").touch()
    (place.folder / "lives").write_text("".join(f"{life}\n" for life in lives))
    made = f"mkdir -p {home}/.venv/bin && cp {place.folder}/life {home}/.venv/bin/s2sjax && touch {home}/set-up"
    cloud = f"""
    case "$*" in
      'storage ls '*) cat "$BUCKET" ;;
      *' describe '*)
        [ "$(cat "$POD_STATE")" != NONE ] || {{ echo "ERROR: NOT_FOUND: no such resource" >&2; exit 1; }}
        cat "$POD_STATE"
        ;;
      *' queued-resources create '*) echo ACTIVE >"$POD_STATE" ;;
      *' queued-resources delete '*) rm -rf "$WORKER"; echo NONE >"$POD_STATE" ;;
      *'.venv'*'pip install'*) {made} ;;
      *' --command='*)
        [ "$(cat "$POD_STATE")" = ACTIVE ] || exit 255
        mkdir -p "$WORKER"; cd "$WORKER"; last=${{@: -1}}; exec bash -c "${{last#--command=}}"
        ;;
    esac
    """
    place.program(place.folder / "programs/gcloud", NOTE + cloud)
    life = f"""
    save() {{ echo "{BUCKET}/checkpoints/$1/commit_success.txt" >>"$BUCKET"; }}
    gone() {{ until [ -s train.pid ]; do /bin/sleep 0.02; done; echo SUSPENDED >"$POD_STATE"; kill -KILL $PPID $$; }}
    stay() {{ for _ in {{1..600}}; do /bin/sleep 0.05; done; }}
    line=$(head -n 1 {place.folder}/lives)
    sed -i 1d {place.folder}/lives
    eval "$line"
    """
    place.program(place.folder / "life", life)
    got, out, err = place.call("tpu_pod.sh", *WATCHED, **POD, POD_STATE=str(state))
    assert got == code, out + err
    assert says in (err if code else out)
    assert sum("queued-resources create" in " ".join(call) for call in place.calls()) == creates
    assert (place.folder / "lives").read_text() == ""


def test_watch_says_why_gcloud_does_not_answer(place):
    """Once if it may pass, such as an outage; it ends without an account or permission."""
    line = 'echo "$*" >>failures; [ "$(wc -l <failures)" -lt 4 ] && echo "ERROR: no network" || '
    place.program(place.folder / "programs/gcloud", line + 'echo "ERROR: no active account selected" >&2; exit 1')
    code, out, err = place.call("tpu_pod.sh", *WATCHED, **POD)
    assert code == 1 and err == "error: gcloud cannot describe pod: ERROR: no active account selected\n"
    assert out.count("does not answer, and is asked again every minute: ERROR: no network") == 1


def test_watch_follows_what_runs_already_and_looks_for_checkpoints_on_the_workers(place):
    place.folder.joinpath("worker/s2sjax").mkdir(parents=True)
    (place.folder / "worker/s2sjax/set-up").touch()
    waits = f"until [ -e {place.folder}/go ]; do /bin/sleep 0.05; done"
    place.program(place.folder / "worker/s2sjax/.venv/bin/s2sjax", waits)
    where = ["--", "train", "a.py", "--out", str(place.folder / "shared")]
    assert place.call("tpu_pod.sh", "run", *where, **POD)[0] == 0
    child = place.start("tpu_pod.sh", "watch", *where, **POD)
    eventually(lambda: any(call[-1].startswith("--command=ls ") for call in place.calls()))
    (place.folder / "go").touch()
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "") and "training is done" in out and "starts after" not in out


def test_a_worker_without_its_storage_does_not_start(place):
    home = place.folder / "worker/s2sjax"
    home.mkdir(parents=True)
    place.program(place.folder / "programs/mountpoint", "exit 1")
    code, _, err = place.call("tpu_pod.sh", "run", *TRAIN, **POD)
    assert (code, err) == (1, "error: nothing is mounted at /mnt/s2sjax: run setup with --bucket or --nfs\n")
    assert list(home.iterdir()) == []


# -------------------------------------------------------------------------------------------------------------- Slurm


def test_slurm_gets_one_task_a_node_a_warning_and_leave_to_queue_again(place):
    mkdir, submit = place.dry("slurm.sh", *SLURM, "--partition=a100", *TRAIN)
    assert mkdir == ["mkdir", "-p", "runs/logs"]
    job = submit.index(str(LAUNCH / "slurm_job.sh"))
    assert {"--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4", "--time=1:00:00", "--partition=a100"} <= set(
        submit[:job]
    )
    assert {"--signal=TERM@120", "--requeue", "--open-mode=append"} <= set(submit[:job])
    assert submit[job + 1 : job + 4] == [OUT, "runs/logs", "srun"]
    steps = submit[job + 3 :]
    assert {"--kill-on-bad-exit=1", "--output=runs/logs/%j-%t.log"} <= set(steps)
    command = ["env", "JAX_LOCAL_DEVICE_IDS=0,1,2,3", ".venv/bin/s2sjax", *TRAIN[1:], "--distributed"]
    assert steps[-len(command) :] == command


def test_a_task_a_gpu_leaves_the_choice_of_the_gpu_to_jax(place):
    _, submit = place.dry("slurm.sh", *SLURM, "--per-gpu", *TRAIN)
    assert "--ntasks-per-node=4" in submit
    assert "env" not in submit
    _, submit = place.dry("slurm.sh", *SLURM, "--gpus", "0", *TRAIN)
    assert not any(word.startswith(("--gres", "JAX_")) for word in submit)


@pytest.mark.parametrize(
    "happens, code, queued, says",
    [
        ("echo done", 0, False, "done"),
        ("echo 'interrupted after step 8: run'; mkdir out/checkpoints/8", 0, True, "interrupted after 8 steps"),
        ("echo 'interrupted: run the same command'", 0, True, "interrupted after 4 steps"),
        ("mkdir out/checkpoints/12; exit 1", 0, True, "failed with exit code 1 after checkpoint 12"),
        ("mkdir out/checkpoints/12.orbax-checkpoint-tmp; exit 3", 3, False, "failed with exit code 3 and nothing new"),
    ],
)
def test_a_job_is_queued_again_until_it_is_done_unless_it_gets_nowhere(place, happens, code, queued, says):
    (place.folder / "out/checkpoints/4").mkdir(parents=True)
    (place.folder / "logs").mkdir()
    (place.folder / "logs/7-0.log").write_text("interrupted after step 4: of the stretch before\n")
    srun = {"SRUN": f"{{ {happens}; }} >>logs/7-0.log", "SLURM_JOB_ID": "7"}
    got, out, err = place.call("slurm_job.sh", "out", "logs", "srun", "s2sjax", "train", "a b", **srun)
    assert (got, err) == (code, "")
    assert out.splitlines()[0].endswith("start 0 on this node, last checkpoint: 4")
    assert says in out.splitlines()[1]
    calls = [["srun", "s2sjax", "train", "a b"]] + [["scontrol", "requeue", "7"]] * queued
    assert place.calls("mkdir") == calls


@pytest.mark.parametrize(
    "happens, code, queued, says",
    [
        ("echo 'interrupted: run the same command' >>logs/7-0.log", 0, True, "interrupted after 4 steps"),
        ("echo s3://b/run/checkpoints/12 >>listed; exit 1", 0, True, "failed with exit code 1 after checkpoint 12"),
        ("exit 3", 3, False, "failed with exit code 3 and nothing new"),
    ],
)
def test_a_job_asks_s2sjax_for_the_checkpoints_in_a_bucket(place, happens, code, queued, says):
    place.program(place.folder / ".venv/bin/python", 'shift 2; [ "$*" = s3://b/run ] && cat listed')
    (place.folder / "logs").mkdir()
    (place.folder / "listed").write_text("s3://b/run/checkpoints/4\n")
    srun = ["srun", "--output=train", "env", "A=b", ".venv/bin/s2sjax", "train", "a b", "--out", "s3://b/run"]
    got, out, err = place.call("slurm_job.sh", "s3://b/run", "logs", *srun, SRUN=happens, SLURM_JOB_ID="7")
    assert (got, err) == (code, "")
    assert out.splitlines()[0].endswith("last checkpoint: 4") and says in out.splitlines()[1]
    assert place.calls("mkdir") == [srun] + [["scontrol", "requeue", "7"]] * queued


def test_folders_in_a_bucket_reach_the_hosts_as_they_are(place):
    out = ["--", "train", "a.py", "--out=gs://b/run"]
    name = ["--", "sweep", "a.py", "--seed", "0,1", "--name", "gs://b/seeds"]
    for script, options in (("slurm.sh", SLURM), ("multi_gpu.sh", ["--hosts", "one,two"]), ("tpu_pod.sh", ["run"])):
        for words in (out, name):
            told = place.dry(script, *options, *words, **POD | {"TPU_TYPE": "v6e-8"})[-1]
            assert all(any(word in each for each in told) for word in words[1:]), script
            assert not any("runs/gs:" in each for each in told)


def test_a_sweep_is_an_array_of_jobs_with_a_part_for_each(place):
    _, submit = place.dry("slurm.sh", *SLURM, *SWEEP)
    job = submit.index(str(LAUNCH / "slurm_job.sh"))
    assert {"--nodes=1", "--array=1-2", "--output=runs/logs/%A_%a.log"} <= set(submit[:job])
    assert submit[job + 1 : job + 3] == ["/mnt/s2sjax/runs/it's mine", "runs/logs"]
    assert submit[-len(SWEEP) :] == [".venv/bin/s2sjax", *SWEEP[1:]]
    assert "--output=runs/logs/%A_%a-%t.log" in submit


@pytest.mark.parametrize(
    "happens, code, queued, says",
    [
        ("echo done", 0, False, "done"),
        ("echo 'interrupted: saved step 4' >>logs/7_2-0.log", 0, True, "interrupted after 8 steps"),
        ("mkdir 'out/seed=1/checkpoints/4'; exit 1", 0, True, "failed with exit code 1 after checkpoint 8"),
        ("exit 3", 3, False, "failed with exit code 3 and nothing new"),
    ],
)
def test_a_job_of_an_array_trains_its_part_and_is_queued_again_alone(place, happens, code, queued, says):
    """Slurm gives one of the jobs the number of the array, by which all would be queued again."""
    for folder in ("out/seed=0/checkpoints/8", "out/seed=1/checkpoints", "logs"):
        (place.folder / folder).mkdir(parents=True)
    array = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "8"}
    got, out, err = place.call(
        "slurm_job.sh", "out", "logs", "srun", "s2sjax", "sweep", "a b", SRUN=happens, SLURM_JOB_ID="7", **array
    )
    assert (got, err) == (code, "")
    assert says in out.splitlines()[1]
    calls = [["srun", "s2sjax", "sweep", "a b", "--part", "2/8"]] + [["scontrol", "requeue", "7_2"]] * queued
    assert place.calls("mkdir") == calls


def test_the_word_that_a_job_waits_for_is_the_one_that_s2sjax_says():
    """An interrupted and a finished run both exit with 0: the job distinguishes them by the first word of a line."""
    assert "grep -q '^interrupted'" in (LAUNCH / "slurm_job.sh").read_text()
    for file in ("s2sjax/training/loop.py", "s2sjax/training/population.py", "s2sjax/cli/start_jax.py"):
        assert re.search(r"""(say|print)\(f?"interrupted""", (ROOT / file).read_text()), file


# --------------------------------------------------------------------------------------------- machines behind ssh


def test_each_host_gets_its_number_and_all_get_the_same_words(place):
    commands = place.dry("multi_gpu.sh", "--hosts", "one,me@two", "--dir", "/shared/my code", *TRAIN)
    assert [call[-2] for call in commands] == ["one", "me@two"]
    lines = [call[-1] for call in commands]
    assert lines[0].replace("JAX_PROCESS_ID=0", "JAX_PROCESS_ID=1") == lines[1]
    words = shlex.split(lines[1])
    assert words[:2] == ["cd", "/shared/my code"]
    start = words.index("env")
    joining = ["JAX_COORDINATOR_ADDRESS=one:8476", "JAX_NUM_PROCESSES=2", "JAX_PROCESS_ID=1"]
    assert words[start + 1 : words.index("</dev/null")] == [*joining, ".venv/bin/s2sjax", *TRAIN[1:], "--distributed"]


def test_each_host_gets_its_part_of_a_sweep_and_is_not_joined(place):
    commands = place.dry("multi_gpu.sh", "--hosts", "one,two", *SWEEP)
    for number, call in enumerate(commands, start=1):
        words = shlex.split(call[-1])
        start = words.index(".venv/bin/s2sjax")
        assert words[start + 1 : words.index("</dev/null")] == [*SWEEP[1:], "--part", f"{number}/2"]
        assert not any(word.startswith("JAX_") for word in words)


def test_one_machine_needs_one_process_and_is_told_so(place):
    code, out, _ = place.call("multi_gpu.sh", "--dry-run", *TRAIN, "--distributed")
    assert code == 0
    assert out.startswith("# one machine: a single process drives all of its GPUs")
    assert shlex.split(out.splitlines()[-1]) == [".venv/bin/s2sjax", *TRAIN[1:]]


# Prints its number, then does what the test sets for it; "wait" exits with 0 at a SIGTERM, as s2sjax does.
STAND_IN = """
echo "process $JAX_PROCESS_ID of $JAX_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS: $*"
wait() {
  trap 'touch saved-$JAX_PROCESS_ID; exit 0' TERM
  touch ready-$JAX_PROCESS_ID
  for _ in {1..600}; do /bin/sleep 0.05; done
}
until_ready() { while [ ! -e ready-0 ]; do /bin/sleep 0.05; done; }
case $JAX_PROCESS_ID in 0) eval "$FIRST" ;; *) eval "$OTHERS" ;; esac
"""


def saved(place: Place) -> set[str]:
    return {path.name for path in place.folder.glob("saved-*")}


def test_hosts_run_side_by_side_behind_their_names(place):
    place.program(place.folder / ".venv/bin/s2sjax", STAND_IN)
    code, out, err = place.call("multi_gpu.sh", "--hosts", "one,two", "--", "train", "a.py", "--out", "b")
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "one: process 0 of 2 at one:8476: train a.py --out b --distributed",
        "two: process 1 of 2 at one:8476: train a.py --out b --distributed",
    ]


def test_one_host_that_fails_stops_all(place):
    place.program(place.folder / ".venv/bin/s2sjax", STAND_IN)
    happens = {"FIRST": "wait", "OTHERS": "until_ready; exit 7"}
    code, _, err = place.call("multi_gpu.sh", "--hosts", "one,two", *TRAIN, **happens)
    assert code == 7
    assert err == "error: two ended with exit code 7: all hosts are stopped; fix it and run the same command again\n"
    assert saved(place) == {"saved-0"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_a_lost_launcher_too_saves_on_all_hosts(place, number):
    place.program(place.folder / ".venv/bin/s2sjax", STAND_IN)
    child = place.start("multi_gpu.sh", "--hosts", "one,two", *TRAIN, FIRST="wait", OTHERS="wait")
    eventually(lambda: len(list(place.folder.glob("ready-*"))) == 2)
    child.send_signal(number)
    eventually(lambda: saved(place) == {"saved-0", "saved-1"})
    out, err = child.communicate(timeout=20)
    assert err == ""
    if number != signal.SIGKILL:
        assert child.returncode == 0
        assert "interrupted: run the same command again to continue\n" in out
