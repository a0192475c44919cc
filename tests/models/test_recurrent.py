"""The recurrent systems against their equations, written out by hand for one sentence at a time."""

from functools import partial

import jax
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.core import recurrence
from s2sjax.core.special_tokens import PAD, SOS

BAR = 1e-5
WIDTH, TOKEN = 5, 4
SIZES = dict(width=WIDTH, embedding_size=TOKEN, dropout=0.0)
SOURCE, TARGET = zoo.batch(np.random.default_rng(3))


def built(model: config.ModelConfig, seed: int = 0):
    """(module, random variables): initial ones are orthogonal, and slow to compile."""
    module = models.build(model, zoo.VOCABULARY, zoo.VOCABULARY)
    shapes = jax.eval_shape(module.init, jax.random.key(0), SOURCE, TARGET)
    rng = np.random.default_rng(seed)
    return module, jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 2, shapes)


def first_attention(module, variables, source):
    """[B, S]: where the first step looks."""

    def look(variables, source):
        apply = partial(module.apply, variables)
        memory = apply(source, method="encode")
        return apply(memory, apply(memory, 1, method="init_state"), np.full(len(source), SOS), method="step")[2]

    return jax.jit(look)(variables, source)


# ------------------------------------------------------------------------------------- by hand


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(w, carry, inputs):
    """`inputs` = W_x x + b and whatever else is added to it."""
    h, c = carry
    f, i, o, candidate = np.split(inputs + h @ w["state"], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
    return sigmoid(o) * np.tanh(c), c


def gru(w, h, inputs):
    u, r = np.split(sigmoid(inputs[: 2 * WIDTH] + h @ w["state"]), 2)
    return u * h + (1 - u) * np.tanh(inputs[2 * WIDTH :] + (r * h) @ w["candidate"])


def lstm_over(w, xs, backwards=False):
    """Outputs in the order of xs, and the last carry."""
    carry, ys = (np.zeros(WIDTH), np.zeros(WIDTH)), []
    for x in xs[::-1] if backwards else xs:
        carry = lstm(w, carry, x @ w["input"] + w["bias"])
        ys.append(carry[0])
    return np.array(ys[::-1] if backwards else ys), carry


def dense(w, x):
    return x @ w["kernel"] + w["bias"]


def sentences(variables):
    """(embedded source, embedded decoder inputs, the target's length) of each row, without padding."""
    tables = [variables["params"][f"{side}_embedding"]["table"] * TOKEN**0.5 for side in ("source", "target")]
    for source, target in zip(SOURCE, TARGET):
        length = (target != PAD).sum()
        yield tables[0][source[source != PAD]], tables[1][[SOS, *target[: length - 1]]], length


def assert_logits(module, variables, by_hand):
    logits = np.asarray(jax.jit(module.apply)(variables, SOURCE, TARGET))
    for row, (xs, ys, length) in enumerate(sentences(variables)):
        np.testing.assert_allclose(logits[row, :length], by_hand(variables["params"], xs, ys), atol=BAR)


def test_cho_gives_one_vector_to_every_step():
    def by_hand(params, xs, ys):
        w, cell, h = params["decoder"], params["decoder"]["cell"], np.zeros(WIDTH)
        for x in xs:
            reader = params["encoder"]["stack"]["forward_0"]
            h = gru(reader, h, x @ reader["input"] + reader["bias"])
        c = np.tanh(dense(w["summary"], h))
        s, logits = np.tanh(dense(w["bridge_0"], c)), []
        for y in ys:
            s = gru(cell, s, y @ cell["input"] + cell["bias"] + c @ cell["context"])
            left, right = np.split(dense(w["readout"], np.concatenate([s, y, c])), 2)
            logits.append(dense(w["output"], np.maximum(left, right)))
        return logits

    assert_logits(*built(config.Cho(**SIZES, readout_width=3)), by_hand)


def test_gnmt_looks_from_its_lowest_layer_and_tells_all():
    """Four layers, so that in both stacks two layers add to what they read."""

    def by_hand(params, xs, ys):
        lowest, upper = params["encoder"]["lowest"], params["encoder"]["upper"]
        there, _ = lstm_over(lowest["forward_0"], xs)
        back, carry = lstm_over(lowest["backward_0"], xs, backwards=True)
        states, carries = np.concatenate([there, back], axis=1), [carry]
        for layer in range(3):
            above, carry = lstm_over(upper[f"forward_{layer}"], states)
            carries.append(carry)
            states = above if layer == 0 else above + states

        w, logits = params["decoder"], []
        score, bottom = w["attention"], w["lowest"]
        for y in ys:
            e = np.tanh(states @ score["memory"] + carries[0][0] @ score["query"]) @ score["vector"]
            context = np.exp(e) / np.exp(e).sum() @ states
            carries[0] = lstm(bottom, carries[0], y @ bottom["input"] + bottom["bias"] + context @ bottom["context"])
            x = carries[0][0]
            for layer in (1, 2, 3):
                cell = w[f"upper_{layer - 1}"]
                carries[layer] = lstm(cell, carries[layer], np.concatenate([x, context]) @ cell["input"] + cell["bias"])
                x = carries[layer][0] if layer == 1 else carries[layer][0] + x
            logits.append(dense(w["output"], x))
        return logits

    assert_logits(*built(config.GNMT(**SIZES, layers=4)), by_hand)


# ------------------------------------------------------------------------------- what the options mean


@pytest.mark.parametrize("kind", [config.Sutskever, config.Luong])
def test_to_reverse_the_source_is_to_read_it_from_its_end(kind):
    """The plain model on a turned source; attention still points at the words where they stood."""
    plain, variables = built(kind(**SIZES, reverse=False))
    reversing, _ = built(kind(**SIZES, reverse=True))
    turned = np.asarray(recurrence.reverse_sequences(SOURCE, SOURCE != PAD))
    logits, read = jax.jit(reversing.apply)(variables, SOURCE, TARGET), jax.jit(plain.apply)
    assert np.abs(logits - read(variables, SOURCE, TARGET)).max() > 0.01
    np.testing.assert_allclose(logits, read(variables, turned, TARGET), atol=BAR)
    if reversing.attends:
        looked = recurrence.reverse_sequences(first_attention(plain, variables, turned), SOURCE != PAD)
        np.testing.assert_allclose(first_attention(reversing, variables, SOURCE), looked, atol=BAR)


def test_a_shared_stack_goes_on_as_if_it_read():
    """If all matrices are shared, reading `a b c` and decoding <sos> equals reading `a b c <sos>`."""
    module, variables = built(
        config.Sutskever(width=WIDTH, embedding_size=WIDTH, reverse=False, share=True, tie="all", dropout=0.0)
    )
    read = jax.jit(partial(module.apply, method="encode"))
    source = np.array([[4, 5, 6, PAD]], np.int32)
    carries, _, attention = module.apply(variables, None, read(variables, source), np.array([SOS]), method="step")
    further = read(variables, np.array([[4, 5, 6, SOS]], np.int32))
    assert attention is None
    jax.tree.map(partial(np.testing.assert_allclose, atol=BAR), carries, further)


def test_one_hot_tokens_are_rows_of_the_input_matrix():
    """One-hot vectors equal an embedding that is the identity."""
    size = zoo.VOCABULARY
    options = dict(width=WIDTH, layers=1, dropout=0.0)
    plain, variables = built(config.Sutskever(**options, embedding_size=0))
    embedding = models.build(config.Sutskever(**options, embedding_size=size), size, size)
    unit = {"table": np.eye(size, dtype=np.float32) / size**0.5}
    with_tables = {"params": {**variables["params"], "source_embedding": unit, "target_embedding": unit}}
    logits = jax.jit(plain.apply)(variables, SOURCE, TARGET)
    np.testing.assert_allclose(logits, jax.jit(embedding.apply)(with_tables, SOURCE, TARGET), atol=BAR)
