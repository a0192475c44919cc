"""CTranslate2 gives the scores and the outputs of s2sjax, for every option that its format can hold."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.core import losses, search
from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.data.text.vocabulary import Vocabulary
from s2sjax.errors import UserError
from s2sjax.interop import ctranslate2_format

ctranslate2 = pytest.importorskip("ctranslate2")

VOCABULARY = Vocabulary("words", list("abcdefghij"))
NAMES = [
    name
    for name, model in zoo.MODELS.items()
    if type(model) is config.Transformer and not model.window and model.positions != "rotary" and "adapt" not in name
]


@pytest.mark.parametrize("name", NAMES)
def test_its_scores_and_outputs_are_ours(name, tmp_path):
    settings = dataclasses.replace(zoo.MODELS[name], width=16, heads=2, dropout=0.0)
    module = models.build(settings, VOCABULARY.size, VOCABULARY.size)
    params = jax.tree.map(jnp.asarray, zoo.parameters(module, zoo.SHARPNESS))
    arrays = {side: _arrays(part) for side, part in params["params"].items()}
    folder = ctranslate2_format.write(tmp_path / "out", settings, arrays, VOCABULARY, VOCABULARY)
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")

    rng = np.random.default_rng(0)
    lines = [[int(i) for i in rng.integers(4, VOCABULARY.size, length)] for length in (5, 2, 7)]
    sources = [[VOCABULARY.all_pieces[i] for i in line] for line in lines]
    targets = sources[1:] + sources[:1]
    source, target = _padded(lines), _padded(lines[1:] + lines[:1])
    ours = losses.log_likelihood(module.apply(params, source, target), target, target != PAD)
    theirs = [sum(scored.log_probs) for scored in translator.score_batch(sources, targets)]
    np.testing.assert_allclose(theirs, ours, atol=1e-4)

    memory = module.apply(params, source, method="encode")
    state = module.apply(params, memory, 8, method="init_state")
    found = search.greedy(module.beams(params["params"], memory), state, 8, 8, start=module.start_token)
    limited = {
        "beam_size": 1,
        "max_decoding_length": 7,
        "min_decoding_length": 0,
        "suppress_sequences": _never_written(settings),
    }
    for row, result in enumerate(translator.translate_batch(sources, **limited)):
        expected = [VOCABULARY.all_pieces[i] for i in np.asarray(found.tokens[row, 0]) if i not in (PAD, EOS)]
        assert result.hypotheses[0] == expected


def _never_written(settings: config.Transformer) -> list[list[str]]:
    """Our search writes neither <pad> nor a <sos> that starts the decoder."""
    return [[VOCABULARY.all_pieces[i]] for i in {PAD, settings.start_token} - {EOS}]


def _arrays(tree):
    return {k: _arrays(v) if isinstance(v, dict) else np.asarray(v) for k, v in tree.items()}


def _padded(lines: list[list[int]]) -> jnp.ndarray:
    length = max(map(len, lines)) + 1
    return jnp.asarray([[*line, EOS, *[PAD] * (length - 1 - len(line))] for line in lines], jnp.int32)


@pytest.mark.parametrize(
    "options", [dict(positions="rotary"), dict(window=2), dict(join_positions="concat")], ids=lambda o: next(iter(o))
)
def test_what_it_cannot_hold_is_refused(options, tmp_path):
    settings = config.Transformer(**zoo.TINY_TRANSFORMER, **options)
    with pytest.raises(UserError, match=f"cannot hold model.{next(iter(options))} "):
        ctranslate2_format.write(tmp_path, settings, {}, VOCABULARY, VOCABULARY)
