"""Tests of `s2sjax plan --compile` that need no TPU compiler; tests/test_tpu.py tests the compiled programs."""

import importlib.util
import platform
import types

import jax
import numpy as np
import pytest

from s2sjax import config
from s2sjax.core.backend import device
from s2sjax.core.backend.batch_sharding import constrain_batch_sharding, gather_for_loop, gather_whole
from s2sjax.errors import UserError
from s2sjax.plan import hlo, mesh_report, recorded_errors, tpu_programs, tpu_report, tpu_slices
from s2sjax.plan.cost_model import Mesh
from s2sjax.tasks import Translation
from s2sjax.training import mesh as meshes
from s2sjax.training.compiled_steps import Programs
from s2sjax.training.optimizers import optimizer
from s2sjax.training.train_state import make_train_step

# ----------------------------------------------------------------------------------- topologies


def test_a_slice_has_two_names():
    for name, size in (("v6e:4x4", 16), ("V6E-16", 16), ("v5litepod-8", 8), ("v4-16", 8), ("v5p:8x8x16", 1024)):
        assert tpu_slices.find(name).size == size
    assert tpu_slices.find("v4-16") == tpu_slices.find("v4:2x2x2") == ("v4", "2x2x2")
    assert len({each.type for each in tpu_slices.SLICES}) == len(tpu_slices.SLICES)


def test_a_topology_that_does_not_exist_names_those_that_do():
    with pytest.raises(UserError, match=r"no topology 'v6e:3x3': did you mean v6e:\S+ .*v5e: 2x2, 2x4, .*16x16; v5p: "):
        tpu_slices.find("v6e:3x3")


@pytest.mark.parametrize("machine, installed, message", [
    ("aarch64", True, r"runs on x86-64 Linux, not on Linux on aarch64: use such a machine"),
    ("x86_64", False, r'libtpu, is not installed: pip install -e "\.\[tpu\]", which needs no TPU'),
])  # fmt: skip
def test_without_the_compiler_it_says_what_to_install_and_where(monkeypatch, machine, installed, message):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: installed or None)
    with pytest.raises(UserError, match=message):
        tpu_slices.devices(tpu_slices.find("v6e-16"))


# ------------------------------------------------------------------------------------------ hlo

PROGRAM = """HloModule jit_step, entry_computation_layout={()}

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%all-reduce-scatter.1 (p: f32[64,8]) -> f32[16,8] {
  %reduced = f32[64,8]{1,0} all-reduce(%p), channel_id=9, replica_groups={{0,2,4,6},{1,3,5,7}}, to_apply=%add
}

%body (state: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %gathered = bf16[16,8]{1,0:T(8,128)(2,1)} all-gather(%part), channel_id=3, replica_groups=[2,4]<=[4,2]T(1,0)
  %again = (bf16[4,8]{1,0}, bf16[16,8]{1,0}) all-gather-start(%part), channel_id=3, replica_groups=[2,4]<=[4,2]T(1,0)
  %scattered = f32[16,8]{1,0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.1
  %sent = (bf16[4,8]{1,0}, bf16[4,8]{1,0}, u32[], u32[]) collective-permute-start(%x), channel_id=4, \
source_target_pairs={{0,1},{1,0}}
}

%condition (state: (s32[], bf16[4,8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(6)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main () -> f32[] {
  %loop = (s32[], bf16[4,8]{1,0:T(8,128)(2,1)}) while(%start), condition=%condition, body=%body
  %large = bf16[32,64]{1,0:T(8,128)(2,1)} fusion(%loop), kind=kLoop, calls=%add
  ROOT %loss = f32[] all-reduce(%l), channel_id=1, replica_groups=mesh['data'=1,'fsdp'=4,'tensor'=2] {'fsdp'}
}
"""
MESH = {"data": 1, "fsdp": 4, "tensor": 2}


def test_collectives_with_their_axis_their_bytes_and_how_often():
    found = {each.kind: each for each in hlo.Module(PROGRAM).collectives(MESH)}
    assert found["all-gather"][1:4] == (("fsdp",), 16 * 8 * 2, 6)
    assert found["reduce-scatter"][1:4] == (("fsdp",), 64 * 8 * 4, 6)
    assert found["collective-permute"][1:4] == (("tensor",), 4 * 8 * 2, 6)
    assert found["all-reduce"][1:4] == (("fsdp",), 4, 1)
    assert found["all-gather"].total == 6 * 256 and len(found) == 4


def test_a_chain_that_goes_on_beside_a_loop_is_one_collective():
    """The parts of an asynchronous collective share a channel, also across a loop and its body."""
    link = '%part = bf16[16,8]{1,0} all-gather(%p), channel_id=3, frontend_attributes={chain_id="0"}'
    text = PROGRAM.replace("ENTRY %main () -> f32[] {", f"ENTRY %main () -> f32[] {{\n  {link}")
    text = text.replace("channel_id=3, replica_groups=[2,4]<=[4,2]T(1,0)", 'channel_id=3, attributes={chain_id="0"}')
    (found,) = [each for each in hlo.Module(text).collectives(MESH) if each.kind == "all-gather"]
    assert (found.bytes, found.times) == (16 * 8 * 2, 1)


OF_SLICES = """ENTRY %main () -> f32[] {
  %scattered = f32[8,128]{1,0} reduce-scatter(%g), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}
  %send = (f32[1,8,128]{2,1,0}, u32[], token[]) send(%x, %token), channel_id=2, is_host_transfer=true, \
frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",\
_xla_host_transfer_rendezvous="all-reduce.2_0",_xla_megascale_reduce_operation="SUM",\
_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}, backend_config={}
  %send-done = token[] send-done(%send), channel_id=2, \
frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}
  ROOT %whole = f32[32,128]{1,0} all-gather(%y), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}
}
"""


def test_what_is_sent_to_other_slices_is_a_collective_of_its_own():
    """It is sent through the hosts, which is no callback. Its two halves inside a slice share a channel."""
    found = hlo.Module(OF_SLICES).collectives({"data": 4, "fsdp": 1, "tensor": 1})
    assert [(one.kind, one.axes, one.bytes, one.between) for one in found] == [
        ("reduce-scatter", ("data",), 32 * 128 * 4, False),
        ("all-reduce", ("data",), 8 * 128 * 4, True),
        ("all-gather", ("data",), 32 * 128 * 4, False),
    ]
    assert hlo.problems(OF_SLICES) == []
    assert hlo.problems("%s = (f32[8], token[]) send(%x, %token)") == ["a callback to the host"]
    lines = list(tpu_report._collectives(types.SimpleNamespace(collectives=found, name="step"), Mesh(8, 1, 1), 2))
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == [
        "communication of each chip inside its slice in step", "communication of each chip between slices in step"
    ]  # fmt: skip
    assert lines[-1].split() == ["all-reduce", "data", "1", "times", "4.1", "kB"]


@pytest.mark.parametrize("groups, axes", [
    ("{{0,1},{2,3}}", ("tensor",)),
    ("{{0,1,2,3,4,5,6,7}}", ("fsdp", "tensor")),
    ("[1,8]<=[8]", ("fsdp", "tensor")),
    ("[4,2]<=[8]", ("tensor",)),
    ("[2,4]<=[4,2]T(1,0)", ("fsdp",)),
    ("mesh['axis_0'=4,'axis_1'=2] {'axis_1'}", ("tensor",)),
    ("mesh['axis_0'=8] {'axis_0'}", ("fsdp", "tensor")),
    ("something new", ()),
])  # fmt: skip
def test_groups_of_devices_as_xla_writes_them(groups, axes):
    assert hlo.axes_of(f"all-reduce(%x), replica_groups={groups}, use_global_device_ids=true", MESH) == axes


def test_padding_to_the_tiles_of_the_chip():
    (narrow,) = hlo.arrays("bf16[32,64]{1,0:T(8,128)(2,1)}")
    assert (narrow.bytes, narrow.padded) == (32 * 64 * 2, 32 * 128 * 2)
    assert hlo.arrays("f32[16,128]{0,1:T(8,128)}")[0].padded == 128 * 128 * 4  # the first dimension is minor
    assert hlo.arrays("f32[3,5]")[0].padded == 60
    assert [str(each) for each in hlo.Module(PROGRAM).written() if each.padded > each.bytes] == [
        "bf16[4,8]", "bf16[32,64]", "bf16[16,8]"
    ]  # fmt: skip


def test_what_must_not_be_in_a_program():
    assert hlo.problems(PROGRAM) == []
    assert hlo.problems("%x = f64[2] add(%a, %b)") == ["float64"]
    assert hlo.problems('custom-call(%x), custom_call_target="xla_python_cpu_callback"') == ["a callback to the host"]


# ------------------------------------------------------------------------------- rows stay split


TRANSFORMER = config.Transformer(width=64, heads=4, feedforward=128, encoder_layers=2, decoder_layers=2, tie="all")
GNMT = config.GNMT(width=64, embedding_size=64, layers=2)


def gathered_for_fsdp(model: config.ModelConfig, rows: int) -> list[hlo.Collective]:
    """The arrays that the train step of a small model gathers on eight simulated devices."""
    train = config.Train(mesh=config.Mesh(fsdp=8))
    task = Translation(
        "fsdp", data=config.Data(shared=True, buckets=((12, 12),), batch_tokens=24 * rows), model=model, train=train
    ).task()
    task = task.replace(assets=task.assumed_assets((512, 512)))
    mesh = meshes.make_mesh(train.mesh)
    from s2sjax.runs.train_run import make_init_fn

    state = meshes.abstract_state(make_init_fn(task), mesh, (), jax.random.key(0))
    programs = Programs(make_train_step(task.loss(), optimizer(train), train, 0), state, mesh)
    module = hlo.Module(programs.lower(task.abstract_batch((12, 12), rows)).compile().as_text())
    found = module.collectives({"data": 1, "fsdp": 8, "tensor": 1})
    return [each for each in found if each.kind == "all-gather"]


@pytest.mark.slow
@pytest.mark.parametrize("model", [TRANSFORMER, GNMT], ids=lambda model: type(model).__name__)
def test_with_fsdp_no_device_gathers_the_rows_of_others(model):
    rows = 88  # a number that no width has
    gathered = gathered_for_fsdp(model, rows)
    assert gathered, "parameters are"
    assert not [each for each in gathered if any({rows, 12 * rows} & set(shape) for shape in each.shapes)]
    if model is GNMT:
        assert all(each.times == 1 for each in gathered), "before a loop over time, not in it"


def test_outside_of_a_mesh_nothing_is_constrained():
    x = np.ones((8, 3), np.float32)
    assert constrain_batch_sharding(x) is x and gather_whole(x) is x
    with jax.set_mesh(meshes.make_mesh(config.Mesh())):  # no fsdp
        assert constrain_batch_sharding(x) is x and gather_whole(x) is x and gather_for_loop(x) is x
    with jax.set_mesh(meshes.make_mesh(config.Mesh(fsdp=4, tensor=2))):  # tensor may split it
        assert gather_for_loop(x) is x


@pytest.mark.slow
def test_decisions_follow_the_device_that_is_compiled_for():
    other = types.SimpleNamespace(platform="tpu")
    assert device.on_cpu()
    with device.compile_for(other):
        assert device.target() is other and not device.on_cpu() and device.compiler_options() is None
    assert device.on_cpu()


# -------------------------------------------------------------------------------------- records


def record(experiment="one", memory=100, predicted=110, **others) -> recorded_errors.Record:
    fields = dict(
        experiment=experiment, model="Luong", weights=7, dtype="float32", topology="v5e:2x4", chips=8, mesh=(8, 1, 1),
        bucket=(4, 4), rows=8, seconds=1.0, held=30, memory=memory, predicted=predicted, flops=1.0, products=2.0,
        collectives={"all-reduce data": 4.0}, versions="JAX 1, libtpu 2",
    )  # fmt: skip
    return recorded_errors.Record(**(fields | others))


def test_predictions_are_compared_with_what_was_compiled(tmp_path):
    path = tmp_path / "cache" / recorded_errors.FILE
    assert recorded_errors.read(path) == [] and recorded_errors.describe([], [], "one") == []
    recorded_errors.keep(path, [record(predicted=500)])
    recorded_errors.keep(path, [record(), record("two", predicted=70)])
    assert recorded_errors.read(path) == [record(), record("two", predicted=70)]  # the newer one replaces the older
    path.write_text(path.read_text() + '{"of": "another version"}\n{"cut sho')
    mine, others = recorded_errors.describe(recorded_errors.read(path), [record("three", predicted=90)], "one")
    assert mine == "compiled before for v5e:2x4, mesh 8 x 1 x 1: 0.1 kB, predicted 0.1 kB (+10%)"
    assert others == (
        "for the 2 other train steps that were compiled for TPUs, the predicted memory was -30% to -10% off, "
        "median -20%"
    )


def test_the_table_of_the_page_is_the_stored_one():
    for each in recorded_errors.read(recorded_errors.TABLE):
        assert each.memory > each.held > 0 and tpu_slices.find(each.topology).size == each.chips
        assert np.prod(each.mesh) == each.chips


# --------------------------------------------------------------------------- changes that may fit


def fake_target(**train) -> tpu_programs.Target:
    """A target of 8 chips without devices."""
    data = config.Data(buckets=((4, 4),), batch_tokens=8 * 64)
    task = Translation("large", data=data, model=config.Luong(), train=config.Train(**train)).task()
    target = object.__new__(tpu_programs.Target)
    target.experiment, target.task = task.experiment, task
    target.mesh = meshes.make_mesh(config.Mesh())
    target.rows = {(4, 4): 64}
    return target


def flags(used: float, held: int, params: int, **train) -> list[str]:
    failure = tpu_programs.DoesNotFit("train step", used, 100.0)
    return [change.flags for change in tpu_programs.changes(fake_target(**train), held, params, failure)]


def test_the_smallest_change_comes_first():
    fsdp = "--train.mesh.data 4 --train.mesh.fsdp 2"
    assert flags(105, 30, 10) == ["--train.grad_accum_steps 2", "--train.remat layers", fsdp]
    assert flags(300, 30, 10)[0] == "--train.grad_accum_steps 8"
    assert flags(300, 30, 10, remat="layers")[1:] == ["--train.mesh.data 1 --train.mesh.fsdp 8"]
    assert flags(200, 150, 50) == ["--train.mesh.data 2 --train.mesh.fsdp 4"]  # the state itself is too large


@pytest.mark.parametrize("message", [
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.50G of 15.75G hbm. Exceeded by 2.75G.",
    "the total memory required for HLO temporaries (18.50G) exceeds available HBM (15.75G). HLO module: jit_step.",
])  # fmt: skip
def test_the_message_of_the_compiler_is_understood(message):
    found = tpu_programs._explained("train step", RuntimeError(message))
    assert (found.used, found.limit) == (18.5 * 2**30, 15.75 * 2**30)
    other = RuntimeError("INTERNAL: something else")
    assert tpu_programs._explained("train step", other) is other


# -------------------------------------------------------------------------------------- command


@pytest.mark.parametrize("arguments, message", [
    (["--compile", "v6e-17"], "there is no topology 'v6e-17': did you mean v6e:"),
    (["--compile", "v6e-16", "--devices", "8"], "--compile v6e-16 determines the devices: leave out --devices"),
    (["--compile", "v6e-16", "--chip", "v6e"], "--compile v6e-16 determines the devices: leave out --chip"),
    (["--mesh", "4x2x1"], "--mesh is for --compile TOPOLOGY: give both"),
    (["--slices", "4"], "--slices is for --compile TOPOLOGY, a slice: give both, or leave out --slices"),
    (["--compile", "v6e-16", "--slices", "0"], "--slices is 0: it must be at least 1"),
])  # fmt: skip
def test_mistakes_are_one_line(call, arguments, message):
    code, out, err = call("plan", "experiments/reverse.py", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_mesh_is_three_numbers():
    assert tpu_report.parse_mesh("4x2x1") == config.Mesh(4, 2, 1)
    with pytest.raises(UserError, match="--mesh is '4x2': write data x fsdp x tensor, such as 4x2x1"):
        tpu_report.parse_mesh("4x2")


def test_a_machine_without_the_compiler_is_told_before_any_work(call, monkeypatch):
    monkeypatch.setattr(tpu_slices, "missing", lambda: "the TPU compiler is missing: install it")
    monkeypatch.setattr(mesh_report, "task_with_assets", lambda *_: pytest.fail("the data was read"))
    code, out, err = call("plan", "experiments/reverse.py", "--compile", "v6e-16")
    assert (code, out, err) == (2, "", "error: the TPU compiler is missing: install it\n")
