"""Google's neural machine translation (Wu et al. 2016): deep residual stacks, attention from the lowest decoder layer.

Letters: B batch, S source positions, T target positions, E width of a token, H state width, V vocabulary.
"""

from functools import partial

from jax import Array

from s2sjax import config, layers
from s2sjax.core import attention, recurrence
from s2sjax.core.recurrence import cells
from s2sjax.models.encoder_decoder import DecoderModule, EncoderModule, EncoderOutput, Segments, output_layer
from s2sjax.models.families.recurrent_parts import DecoderMemory, run_layers, step_layers
from s2sjax.models.families.rnnsearch import SearchState, SearchWeights, rnnsearch_step


class GNMTEncoder(EncoderModule):
    """A bidirectional lowest layer, each direction of full width, then layers that are residual from the third on.

    The lowest decoder layer starts from the final backward state, each other one from the final state of its layer.
    """

    config: config.GNMT

    def setup(self):
        c = self.config
        stack = partial(layers.Recurrent, c.cell, dropout=c.dropout, dtype=self.dtype, remat_policy=self.remat_policy)
        self.lowest = stack(width=2 * c.width, layers=1, inputs=self.inputs, bidirectional=1)
        self.upper = stack(width=c.width, layers=c.layers - 1, inputs=2 * c.width, residual=True)

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        rate = self.config.dropout
        both_ways, (ends,) = self.lowest(layers.dropout(self, xs, rate, train), mask, train=train)
        states, final = self.upper(layers.dropout(self, both_ways, rate, train), mask, train=train)
        backward = tuple(part[:, self.config.width :] for part in ends)
        return EncoderOutput(layers.dropout(self, states, rate, train), mask, (backward, *final))


class GNMTDecoder(DecoderModule):
    """The query is the previous state of the lowest layer, and every layer reads the context.

    c_t = attend(s^1_{t-1});  s^1_t = cell(s^1_{t-1}, [y_{t-1}; c_t]);  x^1 = s^1
    s^i_t = cell(s^i_{t-1}, [x^{i-1}_t; c_t]);  x^2 = s^2;  x^i = s^i + x^{i-1} from i = 3 on;  logits = W_o x^L

    Only the lowest layer depends on attention, so it is scanned separately, and each upper layer then runs over all
    steps with known contexts.
    """

    config: config.GNMT

    def setup(self):
        c, tokens = self.config, self.embedding.width
        self.kind, self.score = cells.CELLS[c.cell], attention.SCORES[c.score]
        gates = len(self.kind.gates) * c.width
        self.attention = layers.Weights(self.score.shapes(c.width, c.width, c.attention_size or c.width), self.dtype)
        self.lowest = layers.cell_weights(c.cell, tokens, c.width, self.dtype, context=(c.width, gates))
        self.upper = [layers.cell_weights(c.cell, 2 * c.width, c.width, self.dtype) for _ in range(c.layers - 1)]
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def prepare(self, memory: EncoderOutput) -> DecoderMemory:
        keys = self.score.prepare(self.attention(), memory.states)
        return DecoderMemory(memory.states, keys, memory.mask, memory.final)

    def init_state(self, memory: DecoderMemory, steps: int) -> tuple[cells.Carry, ...]:
        return memory.carry

    def _weights(self) -> tuple[SearchWeights, list[cells.Weights]]:
        return SearchWeights(self.lowest(), self.attention()), [weights() for weights in self.upper]

    def _step(self):
        return partial(rnnsearch_step, self.kind, self.score)

    def step(self, memory: DecoderMemory, carries: tuple[cells.Carry, ...], token: Array, train: bool = False):
        rate = self.config.dropout
        lowest, upper = self._weights()
        projected = cells.project(lowest.cell, layers.dropout(self, self.embedding(token), rate, train))
        before = SearchState(carries[0], None)
        first, (x, context, alpha) = self._step()(lowest, memory, before, (projected, cells.NO_NOISE))
        x = layers.dropout(self, x, rate, train)
        rest, x = step_layers(self, self.kind, upper, carries[1:], x, train, residual=True, context=context)
        return (first.carry, *rest), self.output.logits(x), alpha

    def hidden(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool, segments: Segments = None
    ) -> Array:
        rate = self.config.dropout
        lowest, upper = self._weights()
        embedded = layers.dropout(self, self.embedding(inputs), rate, train)
        projected = cells.project(lowest.cell, embedded.swapaxes(0, 1))  # [T, B, G*H]
        _, (states, contexts, _) = recurrence.scan(
            self._step(), lowest, SearchState(memory.carry[0], None), (projected, cells.NO_NOISE), memory,
            remat_policy=self.remat_policy,
        )  # fmt: skip
        xs = layers.dropout(self, states.swapaxes(0, 1), rate, train)
        contexts = contexts.swapaxes(0, 1)  # [B, T, H]
        return run_layers(self, self.kind, upper, memory.carry[1:], xs, train, residual=True, context=contexts)
