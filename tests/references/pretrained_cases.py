"""What make_pretrained.py and the tests of s2sjax.interop share: vocabularies, and Transformers that are exported."""

from typing import Any

import jax
import numpy as np

from s2sjax import config, models

TINY = dict(width=16, heads=2, feedforward=24, encoder_layers=2, decoder_layers=3, dropout=0.2, max_length=16)
EXPORTED: dict[str, tuple[config.Transformer, tuple[int, int]]] = {
    "marian-output": (config.Transformer(**TINY), (40, 36)),
    "marian-none": (config.Transformer(**TINY, tie="none", activation="gelu_tanh"), (36, 40)),
    "marian-all": (config.Transformer(**TINY, tie="all", scale_embedding=False, output_bias=True), (40, 40)),
    "marian-embeddings": (config.Transformer(**TINY, tie="embeddings", decoder_start="eos"), (40, 40)),
    "pegasus": (config.Transformer(**TINY, norm="pre", tie="all"), (40, 40)),
    "pegasus-output": (config.Transformer(**TINY, norm="pre"), (40, 40)),
    "blenderbot": (config.Transformer(**TINY, norm="pre", positions="learned", tie="none"), (40, 40)),
    "bart": (config.Transformer(**TINY, norm_embedding=True, positions="learned", tie="all"), (40, 40)),
    "mbart": (config.Transformer(**TINY, norm="pre", norm_embedding=True, positions="learned", tie="all"), (40, 40)),
    "m2m_100": (
        config.Transformer(**TINY, norm="pre", sinusoids="tensor2tensor", first_position=1, tie="all"),
        (40, 40),
    ),
    "t5": (
        config.Transformer(
            **TINY, norm="pre", normalization="rms", positions="relative", biases=False, scale_embedding=False,
            activation="gelu", gated=True, head_width=3, tie="all",
        ),
        (40, 40),
    ),
    "umt5": (
        config.Transformer(
            **TINY, norm="pre", normalization="rms", positions="relative", share_positions=False, biases=False,
            scale_embedding=False, gated=True, scale_output=True, tie="all", head_width=4,
        ),
        (40, 40),
    ),
}  # fmt: skip
"""settings of Transformers, and the sizes of their vocabularies"""


def foreign_ids(hf_config: dict[str, Any]) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """The foreign id of each id of s2sjax, for the one vocabulary or for source and target."""
    if hf_config.get("share_encoder_decoder_embeddings", True):
        return _foreign_ids(hf_config, hf_config["vocab_size"], 5)
    return _foreign_ids(hf_config, hf_config["vocab_size"], 7), _foreign_ids(
        hf_config, hf_config["decoder_vocab_size"], 6
    )


def _foreign_ids(hf_config: dict[str, Any], size: int, unk: int) -> np.ndarray:
    """<pad>, <s> or another, </s>, <unk>, and the others as they come."""
    pad, eos = hf_config["pad_token_id"], hf_config["eos_token_id"]
    bos = hf_config.get("bos_token_id")
    others = [id for id in range(size) if id not in (pad, eos, unk)]
    first = bos if bos in others else others[0]
    others.remove(first)
    return np.array([pad, first, eos, unk, *others], np.int32)


def own_foreign(sizes: tuple[int, int]) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """The ids of vocabularies of s2sjax: those of an export are the same."""
    source, target = (np.arange(size, dtype=np.int32) for size in sizes)
    return source, target


def draw_parameters(settings: config.Transformer, sizes: tuple[int, int]) -> dict[str, Any]:
    """Random parameters, the same for everyone: the scales of norms around 1, and biases that are not zero."""
    random = np.random.default_rng(11)

    def draw(tree: Any, name: str) -> Any:
        if isinstance(tree, dict):
            return {part: draw(tree[part], part) for part in sorted(tree)}
        drawn = random.normal(size=tree.shape)
        drawn = 1 + drawn / 4 if name == "scale" else drawn / np.sqrt(tree.shape[-2 if name == "kernel" else -1])
        return drawn.astype(np.float32)

    ids = np.ones((1, 2), np.int32)
    shapes = jax.eval_shape(models.build(settings, *sizes).init, jax.random.key(0), ids, ids)
    return draw(shapes["params"], "")
