"""What tests/test_meshes_over_processes.py runs in pods of real processes, and in one process to compare with.

A job trains a tiny experiment for a few steps on one mesh, and predicts with it:

    python tests/mesh_jobs.py FOLDER JOBS      JOBS: a JSON list of [name, kind, [data, fsdp, tensor, context], order]

FOLDER/NAME.npz holds what the job computed: text and bytes, which must not change, and numbers.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import jax
import numpy as np

from s2sjax import config
from s2sjax.runs import run
from s2sjax.tasks import LanguageModel, Translation
from s2sjax.tasks.language_model.settings import PerplexityEvaluate, RecurrentLM
from s2sjax.training import loop, mesh, multihost

ROWS, STEPS = 8, 3
TEXT = str(Path(__file__).parent / "tasks/text.txt")
TRAIN = config.Train(
    steps=STEPS, warmup_steps=1, learning_rate=1e-2, eps=1e-2, evaluate_every=STEPS, log_every=1, loggers=()
)
RAW = config.Synthetic("reverse", train=40, dev=5, test=9, length=5, alphabet=4)
DATA = config.Data(RAW, buckets=((6, 6),), batch_tokens=12 * ROWS)
LUONG = config.Luong(width=32, embedding_size=32, layers=1, dropout=0.2)
TRANSFORMER = config.Transformer(
    width=32, heads=4, feedforward=128, encoder_layers=1, decoder_layers=1, norm="pre", dropout=0.2
)
ORDERS: dict[str, Callable] = {
    "one device": lambda devices: devices[:1],
    "by process": lambda devices: devices,
    "in turns": lambda devices: np.reshape(devices, (-1, jax.local_device_count())).T.ravel().tolist(),
    "shuffled": lambda devices: [devices[n] for n in np.random.default_rng(len(devices)).permutation(len(devices))],
}


def translation(model: config.ModelConfig, data: config.Data) -> Translation:
    evaluate = config.Evaluate(metrics=("cer",), batch_size=ROWS, dev_examples=5)
    search = config.Search(beam_size=3)
    return Translation("tiny", data=data, model=model, train=TRAIN, search=search, evaluate=evaluate)


def experiment(kind: str, folder: Path) -> config.Experiment:
    """translation and prepared have large parameters, which fsdp splits, as have the others."""
    if kind == "translation":
        return translation(LUONG, DATA)
    if kind == "prepared":
        return translation(LUONG, config.replace(DATA, corpus=config.Prepared(str(folder / "prepared"))))
    if kind == "packed":
        return translation(TRANSFORMER, config.replace(DATA, buckets=((12, 12),), batch_tokens=24 * ROWS, packing=True))
    return LanguageModel(
        "tiny",
        data=config.PlainText(TEXT, TEXT, TEXT, batch_size=ROWS, steps=4),
        model=RecurrentLM(embedding_size=32, width=32, layers=1, weight_drop=0.3),
        train=TRAIN,
        evaluate=PerplexityEvaluate(streams=4),
    )


def do(folder: Path, name: str, kind: str, axes: list[int], order: str) -> dict[str, np.ndarray]:
    """Trains, evaluates, decodes and scores. Every process gets the same numbers; the leader stores them."""
    seen = []

    def noting(programs, state, batch, log, plain=loop.Programs.__call__):
        jax.block_until_ready(state)  # programs that run at the same time could start their collectives in any order
        digest = hashlib.sha256()
        for column in sorted(batch):
            digest.update(np.asarray(multihost.all_gather(batch[column])).tobytes())
        seen.append(digest.hexdigest())
        return plain(programs, state, batch, log)

    def ordered(settings, devices=None, plain=mesh.make_mesh):
        return plain(settings, ORDERS[order](jax.devices()) if devices is None else devices)

    settings = experiment(kind, folder)
    settings = config.replace(settings, train=config.replace(settings.train, mesh=config.Mesh(*axes)))
    with mock.patch.object(mesh, "make_mesh", ordered), mock.patch.object(loop.Programs, "__call__", noting):
        trained, fitted = run.train(settings, folder / "runs" / name)
        found = {"batches": np.array(seen)}
        for path, leaf in jax.tree_util.tree_leaves_with_path((fitted.state.params, fitted.state.carry)):
            found[f"state {jax.tree_util.keystr(path)}"] = np.asarray(multihost.all_gather(leaf))
        test = trained.evaluate("test")
        found |= {f"test {metric}": np.array(result.value) for metric, result in test.results.items()}
        if kind == "translation":
            lines = ["abcd", "b", "", "dcbad"]
            best = [each for outputs in trained.nbest(lines, nbest=2) for each in outputs]
            found["outputs"] = np.array([each.text for each in best])
            found["scores of outputs"] = np.array([each.log_prob for each in best])
            found["scores"] = np.array([each.log_prob for each in trained.score([(x, x[::-1]) for x in lines])])
    lines = map(json.loads, (folder / "runs" / name / "metrics.jsonl").read_text().splitlines())
    found["losses"] = np.array([line[key] for line in lines for key in ("loss", "dev_loss") if key in line])
    if multihost.is_leader():
        np.savez(folder / f"{name}.npz", **found)
    return found


if __name__ == "__main__":
    if "JAX_PROCESS_ID" in os.environ:
        multihost.initialize()
    for job in json.loads(sys.argv[2]):
        do(Path(sys.argv[1]), *job)
        multihost.wait_for_all("job") if multihost.is_multiprocess() else None
    multihost.shutdown()
