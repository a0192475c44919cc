"""Search programs: the token that starts the decoder, forced tokens, and what a vocabulary forces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.config import Sampling, Search
from s2sjax.core.special_tokens import EOS, PAD, SOS, UNK
from s2sjax.data.text.vocabulary import Vocabulary
from s2sjax.errors import UserError
from s2sjax.evaluate.prediction.line_batches import LineEncoder
from s2sjax.evaluate.prediction.search_programs import Programs
from s2sjax.evaluate.prediction.word_constraints import WordConstraints, word_constraints

TINY = config.Transformer(width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1, dropout=0.0)
SOURCE = np.array([[4, 5, 6, EOS], [7, EOS, PAD, PAD]], np.int32)
SIZE = 9
SEARCHES = {
    "beam": Search(beam_size=3, nbest=3, max_length=6),
    "greedy": Search(beam_size=1, max_length=6, length_penalty="mean"),
    "samples": Search(sampling=Sampling(count=3), nbest=3, max_length=6),
}


def made(start: str) -> tuple:
    module = models.build(config.replace(TINY, decoder_start=start), SIZE, SIZE)
    params = jax.jit(module.init)(jax.random.key(1), SOURCE, SOURCE)["params"]
    return module, jax.tree.map(lambda leaf: 2 * leaf, params)


def searched(module, params, options: Search, prefix=()):
    programs = Programs(module, options, WordConstraints())
    prefixes = jnp.tile(jnp.array(prefix, jnp.int32), (len(SOURCE), 1))
    found = programs.search(programs.stored(params), SOURCE, prefixes, np.arange(2, dtype=np.int32), slots=2)[0]
    return programs, jax.tree.map(np.asarray, found)


@pytest.mark.parametrize("start", zoo.first(1, ["eos", "sos", "pad"]))
@pytest.mark.parametrize("name", SEARCHES)
def test_outputs_after_any_start_token_have_the_log_probability_of_teacher_forcing(name, start):
    module, params = made(start)
    programs, found = searched(module, params, SEARCHES[name])
    assert (found.lengths > 0).all()
    for place in range(found.lengths.shape[1]):
        exact = programs.log_likelihood(programs.stored(params), SOURCE, found.tokens[:, place])
        np.testing.assert_allclose(found.log_probs[:, place], exact, atol=1e-5)


def test_attention_of_given_targets_is_that_of_a_decoder_that_read_its_start_token():
    module, params = made("eos")
    programs = Programs(module, SEARCHES["beam"], WordConstraints())
    seen = programs.attention(programs.stored(params), SOURCE, np.array([[4, EOS], [5, EOS]], np.int32))
    memory = module.apply({"params": params}, SOURCE, method="encode")
    state = module.apply({"params": params}, memory, 2, method="init_state")
    first = module.apply({"params": params}, memory, state, np.full(2, EOS), method="step")[2]
    np.testing.assert_allclose(seen[:, 0], first, atol=1e-6)


@pytest.mark.parametrize("name", ["beam", "greedy"])
def test_free_tokens_leave_the_log_probability_and_raise_the_score(name):
    module, params = made("sos")
    options = config.replace(SEARCHES[name], max_length=2)  # the prefix, then <eos>: all is forced
    for forced in ("scored", "free"):
        programs, found = searched(module, params, config.replace(options, forced=forced), prefix=(7,))
        assert found.tokens[:, 0, :2].tolist() == [[7, EOS]] * 2
        exact = programs.log_likelihood(programs.stored(params), SOURCE, found.tokens[:, 0])
        np.testing.assert_allclose(found.log_probs[:, 0], exact, atol=1e-5)
        np.testing.assert_allclose(found.scores[:, 0], 0 if forced == "free" else exact / 2, atol=1e-5)


def test_an_ensemble_of_other_start_tokens_is_refused():
    one, other = made("eos")[0], made("pad")[0]
    message = r"must start with the same token: the decoder of model 1 starts with <eos>, that of model 3 with <pad>: "
    with pytest.raises(UserError, match=message):
        Programs([one, one, other], SEARCHES["beam"], WordConstraints())


class Forcing(Vocabulary):
    """A vocabulary that puts <sos> before every text, and forces outputs to begin with it."""

    begin = forced_begin = (SOS,)

    def encode(self, text):
        return [SOS, *super().encode(text)]


def test_what_a_vocabulary_forces_begins_every_output_unless_there_is_a_prefix():
    text = Forcing("characters", "abc")
    a, b, c = Vocabulary("characters", "abc").encode("abc")
    assert word_constraints(Search(), text).prefix == (SOS,)
    assert word_constraints(Search(prefix="ab"), text).prefix == (SOS, a, b)
    assert word_constraints(Search(prefix="ab"), Vocabulary("characters", "abc")).prefix == (a, b)
    assert word_constraints(Search(), Vocabulary("characters", "abc")).prefix == ()
    encoder = LineEncoder(text, text, 9, None, None, (SOS, c))
    assert encoder.prefix(None) == [SOS, c]
    assert encoder.prefix("") == [SOS]
    assert encoder.prefix("b") == [SOS, b]


def test_words_are_without_what_a_vocabulary_puts_before_a_text():
    text = Forcing("characters", "abc")
    _, b, c = Vocabulary("characters", "abc").encode("abc")
    words = word_constraints(Search(forbidden_words=("b", "<unk>"), required_words=("cc",)), text)
    assert words.without == ((b,), (UNK,))
    assert words.containing == ((c, c),)


def test_a_limit_without_room_for_what_is_forced_is_refused():
    text = Forcing("characters", "abc")
    with pytest.raises(UserError, match="the forced beginning of every output needs 1 tokens plus <eos>, but search"):
        word_constraints(Search(max_length=1), text)
    with pytest.raises(UserError, match=r"^search\.prefix needs 3 tokens plus <eos>, but search"):
        word_constraints(Search(max_length=3, prefix="ab"), text)
