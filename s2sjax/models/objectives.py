"""Training losses of encoder-decoders, as (sum, weight) pairs.

Each is called as loss(module, ..., params, batch, key, step), with a random `key` and the number `step` of the update.
Letters: B batch, T target positions, W width before the output layer, N words of a part.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from s2sjax import config
from s2sjax.core import losses
from s2sjax.core.backend.matmul import at_least_float32
from s2sjax.core.backend.remat import remat
from s2sjax.core.losses import sampled_softmax, scheduled_sampling
from s2sjax.core.special_tokens import PAD
from s2sjax.models.encoder_decoder import EncoderDecoder, capability, shift_right

WeightedSums = dict[str, losses.Total]


def choose(
    module: EncoderDecoder, train: config.Train, proposal: sampled_softmax.Proposal | None = None,
    words: Array | None = None,
) -> Callable[[Any, dict, Array, Array], WeightedSums]:  # fmt: skip
    """The loss that `train` selects. `proposal` is the distribution of sampled words; `words` [P, N] are by part."""
    if train.softmax.subset:
        assert words is not None
        return partial(subset_loss, module, words)
    if train.softmax.samples:
        assert proposal is not None
        return partial(sampled_loss, module, proposal, train.softmax.samples)
    if train.scheduled_sampling.schedule != "none":
        return partial(scheduled_loss, module, train.label_smoothing, train.scheduled_sampling)
    if train.r_drop:
        return partial(r_drop_loss, module, train.label_smoothing, train.r_drop)
    return partial(loss, module, train.label_smoothing)


def loss(
    module: EncoderDecoder, smoothing: float, params: Any, batch: dict, key: Array, step: Any = None
) -> WeightedSums:
    """The cross-entropy of a batch under teacher forcing, with dropout."""
    logits = _forced(module, params, batch, key)
    return {"loss": losses.cross_entropy(logits, batch["target"], batch["target"] != PAD, smoothing)}


def r_drop_loss(
    module: EncoderDecoder, smoothing: float, strength: float, params: Any, batch: dict, key: Array, step: Any = None
) -> WeightedSums:
    """The cross-entropy of two passes with different dropout, plus their divergence (R-Drop, Liang et al. 2021):

        (CE(p_1) + CE(p_2)) / 2 + strength / 4 * (KL(p_1, p_2) + KL(p_2, p_1))

    This is half of the paper's loss, so that without dropout it is the cross-entropy.
    """
    # Both copies of a row are adjacent, so that they stay on its device.
    twice = jax.tree.map(lambda column: jnp.repeat(column, 2, axis=0), batch)
    target, mask = twice["target"], twice["target"] != PAD
    logits = _forced(module, params, twice, key)
    total, weight = losses.cross_entropy(logits, target, mask, smoothing)
    apart = losses.symmetric_divergence(logits[0::2], logits[1::2], mask[0::2])
    return {"loss": ((total + strength / 2 * apart) / 2, weight / 2), "cross_entropy": (total / 2, weight / 2)}


def evaluation_loss(module: EncoderDecoder, params: Any, batch: dict) -> WeightedSums:
    """The cross-entropy over all words and the token accuracy in percent, under teacher forcing without dropout."""
    target, mask = batch["target"], batch["target"] != PAD
    logits: Any = module.apply({"params": params}, batch["source"], target)
    loss = losses.cross_entropy(logits, target, mask)
    right = jnp.sum((jnp.argmax(logits, axis=-1) == target) & mask)
    return {"loss": loss, "accuracy": (100 * right.astype(loss[0].dtype), loss[1])}


# -------------------------------------------------------------------------- scheduled sampling


def scheduled_loss(
    module: EncoderDecoder, smoothing: float, options: config.ScheduledSampling, params: Any, batch: dict,
    key: Array, step: Array,
) -> WeightedSums:  # fmt: skip
    """Reads the true token with probability p(step), otherwise a prediction: see core/losses/scheduled_sampling.py."""
    assert options.schedule != "none"
    target = batch["target"]
    apply: Any = partial(module.apply, {"params": params})
    start = module.start_token
    inputs, mask = shift_right(target, start=start), target != PAD
    for_choice, for_draw = jax.random.split(key)
    p = scheduled_sampling.truth_probability(options.schedule, options.k, options.floor, step)
    truth = scheduled_sampling.choose_truth(for_choice, p, target.shape)
    drawn = options.feed == "sample"
    dropout = {"dropout": key}
    memory = apply(batch["source"], True, rngs=dropout, method="encode")
    if capability(module.decoder_type, "parallel"):
        # Both passes use the same dropout masks, so they are the same network.
        write = lambda inputs: apply(apply(memory, inputs, mask, True, rngs=dropout, method="hidden"), method="logits")
        first = jax.lax.stop_gradient(write(inputs))
        logits = write(scheduled_sampling.mixed(inputs, truth, first, for_draw if drawn else None, start))
    else:
        advance = lambda state, token, key: apply(memory, state, token, True, rngs={"dropout": key}, method="step")[:2]
        advance = remat(module.remat_policy, advance, looped=True)
        state = apply(memory, target.shape[1], method="init_state")
        logits = scheduled_sampling.step_by_step(advance, state, inputs, truth, for_draw, drawn, start)
    return {"loss": losses.cross_entropy(logits, target, mask, smoothing)}


# ------------------------------------------------------------------------------------ attention


def doubly_stochastic_loss(
    module: EncoderDecoder, smoothing: float, strength: float, params: Any, batch: dict, key: Array, step: Any = None
) -> WeightedSums:
    """The cross-entropy, plus `strength` times a penalty of unequal total attention (core/losses/token_losses.py)."""
    source, target = batch["source"], batch["target"]
    mask = target != PAD
    apply: Any = partial(module.apply, {"params": params}, rngs={"dropout": key})
    memory = apply(source, True, method="encode")
    hidden, alpha = apply(
        memory, shift_right(target, start=module.start_token), mask, True, method="hidden_and_attention"
    )
    total, weight = losses.cross_entropy(apply(hidden, method="logits"), target, mask, smoothing)
    penalty = jnp.sum(losses.doubly_stochastic(alpha, mask, module.source_mask(source)))
    rows = jnp.sum(mask.any(1)).astype(penalty.dtype)
    return {"loss": (total + strength * penalty, weight), "penalty": (penalty, rows)}


# --------------------------------------------------------------------------- large vocabularies


def sampled_loss(
    module: EncoderDecoder, proposal: sampled_softmax.Proposal, samples: int, params: Any, batch: dict, key: Array,
    step: Any = None,
) -> WeightedSums:  # fmt: skip
    """Sampled softmax: see core/losses/sampled_softmax.py. The whole batch, on all devices, shares one sample."""
    target = batch["target"]
    hidden = _forced(module, params, batch, key, "forced")
    words = sampled_softmax.draw(proposal, jax.random.split(key)[0], samples)
    rows = partial(module.apply, {"params": params}, method="output_rows")
    true = _logits(hidden, rows(target), "btw,btw->bt")
    others = _logits(hidden, rows(words), "btw,kw->btk")
    log_q = jnp.asarray(proposal.log_q)[words]
    return {"loss": sampled_softmax.cross_entropy(true, others, words, log_q, target, target != PAD)}


def subset_loss(
    module: EncoderDecoder, words: Array, params: Any, batch: dict, key: Array, step: Any = None
) -> WeightedSums:
    """The softmax over the words of the batch's part only (Jean et al. 2015, section 3.2).

    A proposal that is uniform over the words of a part has the same log q for all of them, which cancels. words [P, N]
    are sorted in each part; batch["part"] [B] is the same number in the whole batch.
    """
    target = batch["target"]
    chosen = words[batch["part"][0]]  # [N]
    rows: Any = module.apply({"params": params}, chosen, method="output_rows")
    logits = _logits(_forced(module, params, batch, key, "forced"), rows, "btw,kw->btk")
    return {"loss": losses.cross_entropy(logits, jnp.searchsorted(chosen, target), target != PAD)}


def _forced(module: EncoderDecoder, params: Any, batch: dict, key: Array, method: str = "__call__") -> Array:
    """The logits under teacher forcing, with dropout, or the inputs of the output layer: [B, T, V] or [B, T, W]."""
    packed = "source_segments" in batch  # see s2sjax/data/batching/packing.py
    segments = (batch["source_segments"], batch["target_segments"]) if packed else None
    inputs: Any = batch["source"], batch["target"], True, segments
    return module.apply({"params": params}, *inputs, rngs={"dropout": key}, method=method)  # type: ignore[return-value]


def _logits(hidden: Array, rows: Any, letters: str) -> Array:
    """The logits of some words in float32, from their rows of the output layer."""
    weights, biases = rows
    logits = jnp.einsum(letters, hidden, weights, preferred_element_type=at_least_float32(hidden.dtype))
    return logits if biases is None else logits + lax.broadcast_to_rank(biases, logits.ndim)
