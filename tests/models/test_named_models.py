"""The facts that `s2sjax models` prints are found by tracing each model."""

import pytest
import zoo

from s2sjax import config
from s2sjax.models import named_models
from s2sjax.models.named_models import NAMED, Facts


@pytest.mark.parametrize(
    "name, attention, parallel",
    [
        ("cho", False, False),
        ("sutskever-shared", False, False),
        ("rnnsearch", True, False),
        ("luong-unfed-bidirectional", True, False),  # its attention is parallel, its cells are not
        ("transformer-post", True, True),
        ("cnn-rnn", False, False),
        ("convs2s", True, True),
        ("lstm-dense", True, False),  # position t reads position t
        ("dense-dense", True, True),
        ("pair-transformer-rnnsearch", True, False),
        ("pair-bigru-transformer", True, False),
    ],
)
def test_attention_and_parallel_training(name, attention, parallel):
    assert named_models.facts(zoo.MODELS[name], 7, 7)[1:] == (attention, parallel)


def test_the_weights_are_those_at_the_vocabularies_given():
    assert named_models.facts(NAMED["character"].config, 74, 78) == Facts(702_030, False, False)
    assert (
        named_models.facts(config.Sutskever(width=256, embedding_size=0, layers=1), 75, 78).weights == 702_030 + 4 * 256
    )


@pytest.mark.slow
def test_every_name_has_a_line():
    header, *lines = named_models.table(100, 200).splitlines()
    assert header.split() == [
        "name",
        "paper",
        "family",
        "vocabulary",
        "weights",
        "attention",
        "parallel",
        "description",
    ]
    assert [line.split()[0] for line in lines] == list(NAMED)
    by_name = dict(zip(NAMED, lines))
    assert "74 -> 78" in by_name["character"] and " 702,030 " in by_name["character"]
    assert "Transformer + RNNsearch  100 -> 200 " in by_name["transformer_rnnsearch"]
    assert all(named.description in by_name[name] and named.paper in by_name[name] for name, named in NAMED.items())
