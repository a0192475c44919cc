"""Attention with learned queries against its equation, number by number."""

import jax
import numpy as np

from s2sjax.core.nn.pooling import query_pool

B, S, H, A, K = 3, 4, 3, 2, 2


def test_learned_query_pooling_is_its_equation():
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    weights, states = {"kernel": draw(H, A), "bias": draw(A), "query": draw(A, K)}, draw(B, S, H)
    mask = np.arange(S) < np.array([4, 2, 0])[:, None]
    total = lambda states: (lambda pooled, alpha: (pooled.sum(), (pooled, alpha)))(*query_pool(weights, states, mask))
    (_, (pooled, alpha)), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(states)
    for row, length in enumerate((4, 2)):
        for k in range(K):
            scores = []
            for s in range(length):
                hidden = np.tanh(states[row, s] @ weights["kernel"] + weights["bias"])
                scores.append(np.exp(float(hidden @ weights["query"][:, k])))
            expected = np.array(scores) / sum(scores)
            np.testing.assert_allclose(alpha[row, k], [*expected, *[0] * (S - length)], atol=1e-6)
            by_hand = sum(weight * state for weight, state in zip(expected, states[row]))
            np.testing.assert_allclose(pooled[row, k * H : (k + 1) * H], by_hand, atol=1e-6)
    assert not np.any(alpha[2]) and not np.any(pooled[2])  # an empty row
    assert np.isfinite(gradient).all() and not np.any(gradient[~mask])
