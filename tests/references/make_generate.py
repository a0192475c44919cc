"""The outputs of transformers' `generate` for a model that is a table, written to generate.npz beside this file.

    pip install torch==2.13.0 transformers==5.23.0 numpy
    python tests/references/make_generate.py

The logits of a next token are by_token[source, last token] + by_position[position], so that no two outputs tie. `cases`
is the JSON of {name: arguments of `generate`}; NAME/tokens are the outputs [sources, n, L] without the start token, and
NAME/scores are their scores [sources, n], where the search is a beam search. tests/core/search/test_generate.py reads
the file, so that it needs no transformers.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

PAD, SOS, EOS = 0, 1, 2
SOURCES, VOCABULARY, WIDTH, POSITIONS = 50, 12, 4, 30


class TableConfig(PretrainedConfig):
    model_type = "table"

    def __init__(self, **options):
        super().__init__(is_encoder_decoder=True, vocab_size=VOCABULARY, **options)


class SourceNumber(torch.nn.Module):
    """An encoder whose hidden state is the number of the source."""

    main_input_name = "input_ids"

    def forward(self, input_ids, **_):
        return BaseModelOutput(last_hidden_state=input_ids[..., None].float())


class Table(PreTrainedModel, GenerationMixin):
    """Logits from two tables."""

    config_class = TableConfig
    main_input_name = "input_ids"

    def __init__(self, config: TableConfig, by_token: np.ndarray, by_position: np.ndarray):
        super().__init__(config)
        self.encoder = SourceNumber()
        self.by_token = torch.nn.Parameter(torch.tensor(by_token))
        self.by_position = torch.nn.Parameter(torch.tensor(by_position))

    def get_encoder(self, *_, **__):
        return self.encoder

    def forward(self, input_ids=None, encoder_outputs=None, decoder_input_ids=None, **_):
        source = encoder_outputs.last_hidden_state[:, :1, 0].long()
        logits = self.by_token[source, decoder_input_ids]
        return Seq2SeqLMOutput(logits=logits + self.by_position[: logits.shape[1]])


def tables() -> tuple[np.ndarray, np.ndarray]:
    """Peaked and flat ones, for short and for long outputs."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(SOURCES, VOCABULARY, VOCABULARY)) * rng.choice([0.5, 1, 3], (SOURCES, 1, 1))
    logits[..., EOS] += rng.choice([-2, 0, 1], (SOURCES, 1))
    by_position = 0.5 * rng.normal(size=(POSITIONS, VOCABULARY))
    return logits.astype(np.float32), by_position.astype(np.float32)


def cases() -> dict[str, dict]:
    """The arguments of `generate` by the names of the cases."""
    beam = {"num_beams": WIDTH, "num_return_sequences": WIDTH, "decoder_start_token_id": PAD}
    made = {}
    for early, alpha, ngram, first in itertools.product(
        (True, False, "never"), (-0.5, 0.0, 0.6, 1.0, 2.0), (0, 2), (None, 5)
    ):
        made[f"grid-{early}-{alpha}-{ngram}-{first}"] = beam | {
            "early_stopping": early, "length_penalty": alpha, "no_repeat_ngram_size": ngram,
            "forced_bos_token_id": first, "forced_eos_token_id": EOS, "max_length": 11,
        }  # fmt: skip
    usual = beam | {"early_stopping": False, "length_penalty": 1.0, "forced_eos_token_id": EOS, "max_length": 9}
    for start, first in itertools.product((PAD, SOS, EOS), (None, 7)):
        made[f"start-{start}-{first}"] = usual | {"decoder_start_token_id": start, "forced_bos_token_id": first}
    for name, more in {
        "min_length": {"min_length": 6},
        "min_new_tokens": {"min_new_tokens": 5},
        "max_new_tokens": {"max_new_tokens": 5, "max_length": None},
        "repetition_penalty": {"repetition_penalty": 1.5},
        "bad_words_ids": {"bad_words_ids": [[7], [8, 9]]},
        "num_return_sequences": {"num_return_sequences": 2},
    }.items():
        made[f"option-{name}"] = usual | more
    for early in (True, False):  # most sources end before this limit, so that it does not matter how it ends an output
        made[f"unforced-{early}"] = beam | {"early_stopping": early, "length_penalty": 1.0, "max_length": POSITIONS + 1}
    for ngram in (0, 2):
        made[f"greedy-{ngram}"] = {
            "num_beams": 1, "decoder_start_token_id": PAD, "no_repeat_ngram_size": ngram, "max_length": 11,
            "forced_eos_token_id": EOS,
        }  # fmt: skip
    return made


def generated(model: Table, arguments: dict) -> dict[str, np.ndarray]:
    start = arguments["decoder_start_token_id"]
    found = model.generate(
        torch.arange(SOURCES)[:, None], do_sample=False, use_cache=False, output_scores=True,
        return_dict_in_generate=True, pad_token_id=PAD, bos_token_id=SOS, eos_token_id=EOS,
        suppress_tokens=[PAD, SOS] if start == SOS else [PAD],
        **{name: value for name, value in arguments.items() if value is not None},
    )  # fmt: skip
    count = arguments.get("num_return_sequences", 1)
    tokens = found.sequences[:, 1:].reshape(SOURCES, count, -1).numpy().astype(np.uint8)
    # transformers fills the rest with <eos> if the id of <pad> is 0.
    after = np.cumsum(tokens == EOS, axis=-1) - (tokens == EOS) > 0
    arrays = {"tokens": np.where(after, np.uint8(PAD), tokens)}
    if arguments["num_beams"] > 1:
        arrays["scores"] = found.sequences_scores.reshape(SOURCES, count).numpy()
    return arrays


if __name__ == "__main__":
    by_token, by_position = tables()
    model, every = Table(TableConfig(), by_token, by_position).eval(), cases()
    arrays = {"by_token": by_token, "by_position": by_position, "cases": np.array(json.dumps(every))}
    for name, arguments in every.items():
        arrays |= {f"{name}/{key}": value for key, value in generated(model, arguments).items()}
    np.savez_compressed(Path(__file__).with_name("generate.npz"), **arrays)
