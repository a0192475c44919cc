"""Small folders of Hugging Face with random weights and the stored tokenizers of tests/references."""

import json
import tarfile
from functools import cache
from pathlib import Path

import jax
import numpy as np

from s2sjax import config, interop, models
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.interop import safetensors_files
from s2sjax.tasks.translation import SIDES

REFERENCES = Path(__file__).parent / "references"
TINY = dict(width=16, heads=2, feedforward=24, encoder_layers=2, decoder_layers=1, tie="all", epsilon=1e-5, dropout=0.1)
LIKE_BART = dict(activation="gelu", norm_embedding=True, positions="learned", max_length=64, decoder_start="eos")
LIKE_NLLB = dict(norm="pre", sinusoids="tensor2tensor", first_position=2, decoder_start="eos")
LIKE_T5 = dict(
    norm="pre", normalization="rms", epsilon=1e-6, biases=False, positions="relative", scale_embedding=False,
    head_width=4, tie="embeddings", gated=True, activation="gelu_tanh", output_bias=False, decoder_start="pad",
)  # fmt: skip
SETTINGS = {
    "marian": TINY | dict(activation="swish", decoder_start="pad", output_bias=True),
    "marian-two": TINY | dict(activation="swish", decoder_start="pad", output_bias=True, tie="output"),
    "bart": TINY | LIKE_BART | dict(scale_embedding=False),
    "mbart50": TINY | LIKE_BART | dict(norm="pre"),
    "nllb": TINY | LIKE_NLLB,
    "m2m100": TINY | LIKE_NLLB,
    "pegasus": TINY | dict(norm="pre", decoder_start="pad"),
    "t5": TINY | LIKE_T5,
    "byt5": TINY | LIKE_T5,
    "umt5": TINY | LIKE_T5 | dict(share_positions=False),
}
LANGUAGES = {"nllb": ("eng_Latn", "deu_Latn"), "mbart50": ("en_XX", "de_DE"), "m2m100": ("en", "de")}
GENERATION = {"num_beams": 3, "length_penalty": 0.6, "forced_eos_token_id": 2, "max_length": 30, "do_sample": True}


def languages(name: str) -> dict[str, str]:
    """The options of an import that a family needs."""
    return dict(zip(("source_language", "target_language"), LANGUAGES.get(name, ())))


def same_files(one: Path, other: Path) -> None:
    """Asserts that two folders have the same files, byte for byte."""
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes(), path.name


@cache
def _archive() -> tarfile.TarFile:
    return tarfile.open(REFERENCES / "tokenizers.tar.xz")


def make(name: str, parent: Path, seed: int = 0) -> Path:
    """Writes the folder of a family below `parent`, and returns it."""
    for member in _archive().getmembers():
        if member.name.startswith(f"{name}/"):
            _archive().extract(member, parent, filter="data")
    folder = parent / name
    page = json.loads((folder / "config.json").read_text())
    languages = LANGUAGES.get(name, (None, None))
    vocabularies = [PretrainedVocabulary.from_folder(folder, side, *languages) for side in SIDES]
    settings = config.Transformer(**SETTINGS[name])
    module, ids = models.build(settings, *(each.size for each in vocabularies)), np.ones((1, 1), np.int32)
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(module.init, jax.random.key(0), ids, ids)["params"]
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 2, shapes)
    foreign = tuple(each.foreign for each in vocabularies)
    entries, tensors = interop.dump(settings, params, foreign, model_type=page["model_type"])
    (folder / "config.json").write_text(json.dumps(page | entries))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    safetensors_files.write(folder, tensors)
    return folder
