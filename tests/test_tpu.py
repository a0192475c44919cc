"""What the TPU compiler makes of the programs, without a TPU: a law for every family and every task.

Runs on x86-64 Linux with the extra `tpu` (`make test-tpu`), and is skipped elsewhere.
"""

import json
from functools import cache
from pathlib import Path

import jax
import pytest
import zoo
from tasks.test_task_laws import EXPERIMENTS

from s2sjax import config
from s2sjax.core.backend import device
from s2sjax.errors import UserError
from s2sjax.plan import hlo, tpu_programs, tpu_report, tpu_slices
from s2sjax.plan.tpu_programs import Target
from s2sjax.tasks import Translation
from s2sjax.tasks.task import task_of
from s2sjax.training import mesh as meshes

pytestmark = [
    pytest.mark.skipif(bool(tpu_slices.missing()), reason=tpu_slices.missing() or "-"),
    pytest.mark.exhaustive,
]
SLICE = tpu_slices.Slice("v5e", "2x4")
MESHES = {"data": config.Mesh(8), "fsdp": config.Mesh(2, 4), "tensor": config.Mesh(4, 1, 2)}
LOCAL, LENGTH = 11, 12
"""rows on a chip, and tokens of a sentence: numbers that no width has"""


@cache
def built(name: str, mesh: str, where: str = SLICE.name) -> tpu_programs.Built:
    """The train step of a model of the zoo."""
    return target(name, mesh, where).train_steps()[0]


def target(name: str, mesh: str, where: str = SLICE.name, slices: int = 1) -> Target:
    shape = MESHES[mesh]
    of = tpu_slices.find(where)
    shape = config.replace(shape, data=slices * of.size // (shape.fsdp * shape.tensor))
    rows = LOCAL * shape.data * shape.fsdp
    data = config.Data(buckets=((LENGTH, LENGTH),), batch_tokens=2 * LENGTH * rows)
    train = config.Train(dtype="bfloat16", mesh=shape)
    task = Translation("law", data=data, model=zoo.widened(zoo.MODELS[name], 128), train=train).task()
    return Target(task.replace(assets=task.assumed_assets((1024, 1024))), of, lambda line: None, slices)


def gathered_rows(step: tpu_programs.Built) -> list[hlo.Collective]:
    """Collectives that bring activations of other chips: arrays with the rows of all chips, or of all along fsdp."""
    everything = {LOCAL * chips * tokens for chips in (4, 8) for tokens in (1, LENGTH)}
    return [
        each
        for each in step.collectives
        if each.kind in ("all-gather", "all-to-all") and any(everything & set(shape) for shape in each.shapes)
    ]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_family_compiles(name, mesh):
    step = built(name, mesh)
    assert not step.problems
    assert step.aliased >= step.held, "the new state uses the memory of the old one"
    assert step.collectives
    if mesh == "data":
        assert {each.kind for each in step.collectives} <= {"all-reduce", "all-gather", "reduce-scatter"}
        assert not gathered_rows(step)


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_fsdp_gathers_parameters_and_not_activations(name):
    """No chip sees the rows of others. A recurrent model keeps what it gathered until its backward pass."""
    step = built(name, "fsdp")
    assert not gathered_rows(step)
    kinds = {each.kind for each in step.collectives if "fsdp" in each.axes}
    assert "all-gather" in kinds, "parameters"
    if name not in ("transformer-post", "convs2s", "dense-dense", "pair-transformer-rnnsearch"):
        looped = [each for each in step.collectives if each.kind == "all-gather" and each.times > 1]
        assert not looped, "before a loop over time, not in it"


def test_fsdp_gathers_one_layer_at_a_time():
    """With twelve layers the temporaries are far smaller than the parameters, and gradients are reduce-scattered."""
    model = config.Transformer(width=256, heads=4, feedforward=1024, encoder_layers=6, decoder_layers=6, tie="all")
    data = config.Data(shared=True, buckets=((8, 8),), batch_tokens=16 * 8)
    experiment = Translation(
        "deep", data=data, model=model, train=config.Train(dtype="bfloat16", mesh=config.Mesh(1, 8, 1))
    )
    task = experiment.task()
    step = Target(task.replace(assets=task.assumed_assets((512, 512))), SLICE, lambda line: None).train_steps()[0]
    parameters = 8 * step.held / 3  # the state is the parameters and two moments, an eighth on each chip
    assert step.temporary - step.code < parameters / 2
    assert any(each.kind == "reduce-scatter" and each.axes == ("fsdp",) for each in step.collectives)


REFUSED = {("language_model", "tensor"), ("classification", "tensor")}
"""meshes that training refuses, too: a language model splits nothing, and three filters do not divide"""


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_task_compiles(name, mesh):
    experiment = config.replace(EXPERIMENTS[name], train=config.replace(EXPERIMENTS[name].train, mesh=MESHES[mesh]))
    task = task_of(experiment)
    task = task.replace(assets=task.learn_assets(task.read()))
    if (name, mesh) in REFUSED:
        with pytest.raises(UserError, match=r"train\.mesh\.tensor"):
            Target(task, SLICE, lambda line: None).train_steps()
        return
    target = Target(task, SLICE, lambda line: None)
    for program in (*target.train_steps(), *target.predictions()):
        assert not program.problems


@pytest.mark.parametrize("name", ["luong", "transformer-post", "convs2s"])
def test_beam_search_and_scoring_compile(name):
    names = [program.name for program in target(name, "data").predictions()]
    assert names == ["search", "scoring"]


def test_a_larger_slice_changes_the_mesh_alone():
    small, large = (built("transformer-post", "data", where) for where in ("v5e:2x4", "v5e:16x16"))
    # For few chips the compiler gathers small sums instead of reducing them, so that the kinds may differ.
    axes = lambda step: {each.axes for each in step.collectives}
    assert axes(small) == axes(large) == {("data",)}
    assert large.flops == pytest.approx(small.flops, rel=0.02)
    assert large.memory == pytest.approx(small.memory, rel=0.1)


@pytest.mark.parametrize("mesh", MESHES)
def test_between_slices_each_chip_sends_gradients_alone(mesh):
    found = target("transformer-post", mesh, "v6e:2x2", slices=2)
    assert [device.slice_index for device in found.mesh.devices.flat] == [0] * 4 + [1] * 4
    step = found.train_steps()[0]
    assert not step.problems and step.aliased >= step.held and not gathered_rows(step)
    between = [each for each in step.collectives if each.between]
    assert {each.axes for each in between} == {("data",)}
    # The compiler gathers small sums instead of reducing them.
    assert all(each.bytes <= 4096 for each in between if each.kind != "all-reduce")
    assert sum(each.total for each in between) < step.held, "of parameters and two moments"
    assert any(mesh in each.axes for each in step.collectives if not each.between)


def test_fsdp_over_several_slices_is_refused():
    experiment = Translation("law", model=zoo.MODELS["luong"], train=config.Train(mesh=config.Mesh(fsdp=8)))
    task = experiment.task()
    with pytest.raises(UserError, match="the 2 slices have 4 devices each, and only data may cross slices"):
        Target(task, tpu_slices.find("v6e:2x2"), lambda line: None, slices=2)


@pytest.mark.parametrize("where", ["v6e:8x8", "v5e:8x16", "v5p:2x2x4", "v4:4x4x4"])
def test_every_mesh_that_divides_a_slice_can_be_made(where):
    """Also where an axis of the mesh is a part of an axis of the pod, such as a tensor axis of 4 on v6e:8x8."""
    devices = tpu_slices.devices(tpu_slices.find(where))
    powers = [2**n for n in range(len(devices).bit_length())]
    for fsdp in powers:
        for tensor in powers:
            if fsdp * tensor <= len(devices):
                made = meshes.make_mesh(config.Mesh(fsdp=fsdp, tensor=tensor), devices)
                assert tuple(made.shape.values()) == (len(devices) // (fsdp * tensor), fsdp, tensor)
                assert {device.id for device in made.devices.flat} == {device.id for device in devices}


MEMORY = Path(__file__).with_name("tpu_memory.json")


@pytest.mark.parametrize("name", ["luong", "transformer-post"])
@pytest.mark.parametrize("mesh", MESHES)
def test_memory_has_not_grown(name, mesh):
    """Against the bytes that were stored for these versions: `python tests/test_tpu.py` writes them again."""
    stored = json.loads(MEMORY.read_text()).get(tpu_report.versions())
    if stored is None:
        pytest.skip(f"no bytes are stored for {tpu_report.versions()}: python tests/test_tpu.py stores them")
    assert built(name, mesh).memory <= 1.1 * stored[f"{name} {mesh}"]


def test_what_is_compiled_depends_on_the_target_and_not_on_this_machine():
    assert device.on_cpu() and device.target() is jax.devices()[0]
    with device.compile_for(tpu_slices.devices(SLICE)[0]):
        assert not device.on_cpu() and device.target().platform == "tpu"
        assert device.compiler_options() is None
    assert device.on_cpu()


def store() -> None:
    found = json.loads(MEMORY.read_text()) if MEMORY.exists() else {}
    sizes = {f"{name} {mesh}": built(name, mesh).memory for name in ("luong", "transformer-post") for mesh in MESHES}
    MEMORY.write_text(json.dumps(found | {tpu_report.versions(): sizes}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    store()
