"""A configuration that cannot work is refused when it is built, by the name of the field."""

import ast
import json
from pathlib import Path

import pytest
from conftest import refused

from s2sjax import config
from s2sjax.config import (
    GNMT,
    RCTM,
    Cho,
    ConvS2S,
    Data,
    DenseDense,
    Evaluate,
    LSTMDense,
    Luong,
    Pair,
    RNNsearch,
    Search,
    Sutskever,
    Synthetic,
    TextFiles,
    Train,
    Transformer,
)
from s2sjax.tasks import Translation


@pytest.mark.parametrize(
    "model",
    [RNNsearch(), Luong(cell="gru"), Transformer(heads=4), Cho(), Sutskever(share=True), GNMT(), Pair(Luong(), Cho())],
    ids=config.model_name,
)
@pytest.mark.parametrize(
    "corpus",
    [config.Cmudict(), TextFiles(train=("a", "b"), dev=("c",)), Synthetic("sort")],
    ids=lambda c: type(c).__name__,
)
def test_an_experiment_survives_a_journey_through_json(model, corpus):
    experiment = Translation("one", data=Data(corpus, buckets=((8, 9), (10, 11))), model=model, show=("a", "b"))
    back = config.from_json(json.loads(json.dumps(config.to_json(experiment))))
    assert back == experiment
    assert hash(back) == hash(experiment)


def test_json_of_another_program_is_refused_by_name():
    assert "there is no 'Perceiver'" in refused(lambda: config.from_json({"kind": "Perceiver"}))
    assert "there is no 'nowhere:Model'" in refused(lambda: config.from_json({"kind": "nowhere:Model"}))
    assert "Train has no field 'stepz'" in refused(lambda: config.from_json({"kind": "Train", "stepz": 1}))
    assert "Train.steps is 'x'" in refused(lambda: config.from_json({"kind": "Train", "steps": "x"}))


def test_a_misspelt_field_names_the_nearest():
    assert refused(lambda: Train(stepz=5)) == "Train has no field 'stepz': did you mean 'steps'?"
    assert refused(lambda: config.replace(Search(), bean=5)) == "Search has no field 'bean': did you mean 'beam_size'?"
    with pytest.raises(TypeError, match="positional"):
        Evaluate(("exact",), "word", 1, 1, 1, "one too many")


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: Train(steps="600"), "Train.steps is '600': it must be a whole number"),
        (lambda: Train(steps=1e4), "Train.steps is 10000.0: it must be a whole number"),
        (lambda: Train(steps=True), "Train.steps is True: it must be a whole number"),
        (lambda: Train(clip_norm="1"), "Train.clip_norm is '1': it must be a number"),
        (lambda: Data(shared=1), "Data.shared is 1: it must be True or False"),
        (
            lambda: Data(buckets=(8, 8)),
            "Data.buckets is (8, 8): it must be a tuple of (a whole number, a whole number)",
        ),
        (
            lambda: Data(buckets=((8, 8, 8),)),
            "Data.buckets is ((8, 8, 8),): it must be a tuple of (a whole number, a who",
        ),
        (lambda: Luong(cell="elman"), "Luong.cell is 'elman': it must be one of 'rnn', 'lstm', 'gru'"),
        (lambda: Evaluate(metrics="bleu"), "Evaluate.metrics is 'bleu': it must be a tuple of one of 'per', 'wer', "),
        (
            lambda: Translation("x", show="abc"),
            "Translation.show is 'abc': it must be a tuple of a string, write ('abc',)",
        ),
        (lambda: Translation("x", model="luong"), "Translation.model is 'luong': it must be a config."),
        (lambda: Translation(7), "Translation.name is 7: it must be a string"),
    ],
)
def test_a_value_of_another_type_is_refused(build, message):
    assert refused(build).startswith(message)


def test_a_whole_number_is_a_number_and_a_list_is_a_tuple():
    assert Train(clip_norm=1).clip_norm == 1
    assert Data(buckets=[[8, 8]]) == Data(buckets=((8, 8),))


def subset(**data) -> Translation:
    return Translation("x", data=Data(**data), train=Train(softmax=config.Softmax(subset=9)))


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: Transformer(width=100, heads=8), "model.width 100 is not divisible by model.heads 8: try width 96"),
        (lambda: Transformer(heads=0), "model.heads is 0: it must be at least 1"),
        (lambda: Transformer(width=3, heads=3), "model.width 3 must be even for sinusoidal positions"),
        (lambda: Luong(width=9, bidirectional=True), "model.width is 9: it must be even"),
        (lambda: Luong(widths=(512,)), "model.widths is (512,): give one for each of model.layers 2, the last equal"),
        (lambda: Luong(widths=(512, 256)), "model.widths is (512, 256): give one for each of model.layers 2, the last"),
        (lambda: Luong(widths=(0, 512)), "model.widths is (0, 512): each must be at least 1"),
        (lambda: Luong(widths=(256, 512), residual=True), "model.widths is (256, 512): model.residual requires layers"),
        (lambda: Luong(widths=(9, 512), bidirectional=True), "model.widths is (9, 512): each must be even"),
        (lambda: Luong(join="mean"), "model.join 'mean' requires two directions: set model.bidirectional"),
        (lambda: Luong(zoneout=1.0), "model.zoneout is 1.0: it must be in [0, 1)"),
        (lambda: RNNsearch(zoneout=-0.1), "model.zoneout is -0.1: it must be in [0, 1)"),
        (
            lambda: Luong(radius=2),
            "model.radius 2 requires a local window: set model.window to monotonic or predictive",
        ),
        (
            lambda: Luong(window="monotonic"),
            "model.radius is 0: the monotonic window must reach at least 1 to either side",
        ),
        (lambda: Luong(window="predictive", radius=-1), "model.radius is -1: the predictive window must reach"),
        (lambda: Transformer(window=-1), "model.window is -1: it must be at least 0"),
        (
            lambda: Transformer(width=6, heads=2, positions="rotary"),
            "model.width 6 / model.heads 2 must be even for rotary positions",
        ),
        (
            lambda: Transformer(share_positions=False),
            "model.share_positions False applies to relative positions: set model.positions to relative, or leave it",
        ),
        (
            lambda: Transformer(positions="relative", join_positions="concat"),
            "model.join_positions 'concat' requires one vector per position: set model.positions to sinusoidal or",
        ),
        (
            lambda: Translation("x", model=Transformer(window=64)),
            "model.window 64 reaches across the longest of data.buckets, 64: lower it, or set it to 0",
        ),
        (
            lambda: Translation("x", data=Data(buckets=((8, 40),)), model=Luong(window="monotonic", radius=8)),
            "model.radius 8 reaches across the longest of data.buckets, 8: lower it, or set it to 0, and model.window",
        ),
        (lambda: RNNsearch(attention_size=-1), "model.attention_size is -1: it must be at least 0"),
        (lambda: Luong(dropout=1.0), "model.dropout is 1.0: it must be in [0, 1)"),
        (lambda: Train(steps=-1), "train.steps is -1: it must be at least 0"),
        (lambda: Train(warmup_steps=-1), "train.warmup_steps is -1: it must be at least 0"),
        (lambda: Train(learning_rate=0.0), "train.learning_rate is 0.0: it must be above 0"),
        (lambda: Train(learning_rate=float("nan")), "Train.learning_rate is nan: it must be a number"),
        (lambda: Train(ema=1.0), "train.ema is 1.0: it must be in [0, 1)"),
        (lambda: Train(final_fraction=2.0), "train.final_fraction is 2.0: it must be from 0 to 1"),
        (lambda: Train(patience=2, evaluate_every=0), "train.patience requires evaluations"),
        (
            lambda: config.ScheduledSampling("constant", k=1.5),
            "train.scheduled_sampling.k is 1.5: for constant it must be from 0 to 1",
        ),
        (
            lambda: config.ScheduledSampling("exponential", k=1.0),
            "train.scheduled_sampling.k is 1.0: for exponential it must be between 0 and 1",
        ),
        (lambda: config.ScheduledSampling("linear", k=0.5), "train.scheduled_sampling.k is 0.5: for linear it must"),
        (
            lambda: config.Train(r_drop=1.0, scheduled_sampling=config.ScheduledSampling("constant", k=0.5)),
            "train has both r_drop and scheduled_sampling: turn one off",
        ),
        (
            lambda: config.Train(r_drop=1.0, softmax=config.Softmax(samples=5)),
            "train.r_drop requires the softmax over all words, but train.softmax.samples is set: turn one off",
        ),
        (lambda: config.ScheduledSampling(floor=2.0), "train.scheduled_sampling.floor is 2.0: it must be from 0 to 1"),
        (lambda: config.Softmax(samples=-1), "train.softmax.samples is -1: it must be at least 0"),
        (lambda: config.Softmax(samples=5, subset=5), "train.softmax has both samples and subset"),
        (
            lambda: Train(softmax=config.Softmax(samples=5), label_smoothing=0.1),
            "train.label_smoothing requires the softmax over all words, but train.softmax.samples is set",
        ),
        (
            lambda: Train(
                softmax=config.Softmax(subset=5), scheduled_sampling=config.ScheduledSampling("constant", k=0.5)
            ),
            "train.scheduled_sampling requires the softmax over all words, but train.softmax.subset is set",
        ),
        (
            lambda: Translation(
                "x",
                data=Data(target=config.Text("subwords", sampling=0.1)),
                train=Train(softmax=config.Softmax(subset=9)),
            ),
            "train.softmax.subset requires a part's target subwords in advance, "
            "but data.target.sampling draws new ones",
        ),
        (
            lambda: subset(corpus=config.Mixture((Synthetic(),))),
            "train.softmax.subset plans by parts, which the mixture of data.corpus does not: set it to 0",
        ),
        (
            lambda: subset(corpus=config.Prepared("x")),
            "train.softmax.subset plans by parts, which the prepared folder of data.corpus does not: set it to 0",
        ),
        (lambda: subset(packing=True), "train.softmax.subset plans by parts, which data.packing does not: set it to 0"),
        (
            lambda: Translation(
                "x", data=Data(config.Prepared("x")), train=Train(softmax=config.Softmax(9, distribution="unigram"))
            ),
            "train.softmax.distribution unigram counts the words of the training text, which a prepared folder does",
        ),
        (
            lambda: Data(config.Prepared("x"), config.Text("subwords", sampling=0.1)),
            "data.source.sampling draws new subwords each epoch, but a prepared folder has fixed ids: set it to 0",
        ),
        (
            lambda: Data(target=config.Text("subwords", sampling=0.1), packing=True),
            "data.target.sampling changes the lengths each epoch, but data.packing requires fixed lengths: turn one",
        ),
        (
            lambda: Translation("x", data=Data(packing=True), model=Transformer(window=4)),
            "data.packing keeps the examples of a row apart, model.window does not: use one of them",
        ),
        (
            lambda: Translation(
                "x",
                data=Data(packing=True),
                train=Train(scheduled_sampling=config.ScheduledSampling("constant", k=0.5)),
            ),
            "data.packing gives each example of a row its own <sos>, which train.scheduled_sampling would replace: use",
        ),
        (
            lambda: Translation(
                "x",
                data=Data(source=config.Text("words", spelling=config.Spelling(on=True))),
                model=config.Sutskever(embedding_size=0),
            ),
            "data.source.spelling.on builds word vectors: raise model.embedding_size above 0",
        ),
        (lambda: config.Spelling(kernels=()), "spelling.kernels is (): give at least one width of 1 or more"),
        (lambda: Search(beam_size=0), "search.beam_size is 0: it must be at least 1"),
        (
            lambda: Search(beam_size=2, nbest=3),
            "search.nbest 3 is not from 1 to search.beam_size 2: raise the beam_size or lower nbest",
        ),
        (lambda: RCTM(kernels=()), "model.kernels is empty: give at least one"),
        (lambda: RCTM(kernels=(3, 0)), "model.kernels is (3, 0): each must be at least 1"),
        (lambda: RCTM(width=8, embedding_size=6, tie="output"), "model.tie 'output': the output layer reads width 8"),
        (lambda: ConvS2S(encoder_layers=()), "model.encoder_layers is empty: give at least one (width, kernel) pair"),
        (lambda: ConvS2S(decoder_layers=((8, 0),)), "model.decoder_layers is ((8, 0),): every width and kernel must"),
        (lambda: ConvS2S(dropout=1.0), "model.dropout is 1.0: it must be in [0, 1)"),
        (lambda: LSTMDense(width=7), "model.width is 7: it must be even to be halved between two directions"),
        (lambda: DenseDense(window=4), "model.window is 4: it must be odd, try 5"),
        (
            lambda: Translation("x", model=ConvS2S(max_length=32)),
            "model.max_length 32 is shorter than the longest source of data.buckets, 64: raise it",
        ),
        (
            lambda: Translation("x", model=RCTM(), search=Search(coverage=0.2)),
            "search.coverage 0.2 requires a model with attention, and RCTM has none: set it to 0",
        ),
        (lambda: Evaluate(metrics=()), "evaluate.metrics is empty"),
        (lambda: Evaluate(dev_examples=0), "evaluate.dev_examples is 0: it must be at least 1"),
        (lambda: Data(buckets=()), "data.buckets is empty"),
        (
            lambda: Data(buckets=((8, 8), (4, 4))),
            "data.buckets is ((8, 8), (4, 4)): give lengths of at least 1, from short to long",
        ),
        (lambda: Data(shared=True, target=config.Text("words")), "data.shared is set, but"),
        (lambda: TextFiles(train=("a", "b", "c")), "data.corpus.train has 3 files"),
        (lambda: Synthetic(alphabet=27), "data.corpus.alphabet is 27: it must be from 1 to 26"),
        (lambda: config.Cmudict(50.0, 50.0), "data.corpus: dev_percent + test_percent is 100.0"),
        (lambda: Translation("x", model=Transformer(tie="all")), "model.tie 'all' requires one vocabulary"),
        (
            lambda: Translation("x", model=Pair(decoder=RNNsearch(embedding_size=512, tie="all"))),
            "model.tie 'all' requires one vocabulary",
        ),
        (
            lambda: Luong(width=8, embedding_size=6, tie="output"),
            "model.tie 'output': the output layer reads width 8, but the embedding has width 6: set "
            "model.embedding_size 8",
        ),
        (
            lambda: RNNsearch(embedding_size=6, readout_width=5, tie="all"),
            "model.tie 'all': the output layer reads width 5, but the embedding has width 6: set "
            "model.embedding_size 5",
        ),
        (
            lambda: Sutskever(width=8, embedding_size=0, tie="output"),
            "model.tie 'output' needs an embedding to tie: set model.embedding_size 8",
        ),
        (lambda: Sutskever(embedding_size=0, share=True), "model.share requires tokens of one width on both sides"),
        (
            lambda: Cho(embedding_size=0),
            "model.readout_width 0 means model.embedding_size, which is 0: set one of them",
        ),
        (lambda: GNMT(layers=1), "model.layers is 1: it must be at least 2"),
        (lambda: Luong(bidirectional=True, reverse=True), "model.reverse requires a unidirectional encoder: set"),
        (
            lambda: Pair(RNNsearch(width=8), Luong(width=20), bridge="identity"),
            "model.bridge 'identity': the encoder's memory has width 16, the decoder reads 20: set model.bridge",
        ),
        (
            lambda: Pair(Sutskever(width=8, layers=3), Sutskever(width=6, layers=2), bridge="identity"),
            "model.bridge 'identity': the encoder ends with lstm 8 + 8 + 8, the decoder begins with lstm 6 + 6: set",
        ),
        (
            lambda: Pair(Transformer(), Cho(), bridge="identity"),
            "model.bridge 'identity': the encoder ends with no carry, the decoder begins with gru 512: set",
        ),
        (
            lambda: Pair(Luong(embedding_size=6), Transformer(width=8, tie="all")),
            "model.decoder.tie 'all': the encoder's embedding has width 6, the decoder's 8: make them equal",
        ),
        (lambda: Pair(Sutskever(share=True), Luong()), "model.encoder.share requires an encoder and a decoder of"),
        (lambda: Pair(Pair(), Luong()), "Pair.encoder is Pair("),
        (
            lambda: Translation("x", model=Pair(decoder=Cho()), search=Search(coverage=0.2)),
            "search.coverage 0.2 requires a model with attention, and Transformer + Cho has none: set it to 0",
        ),
        (lambda: Translation("a/b"), "name is 'a/b': it must be the name of a folder"),
        (lambda: Translation(".."), "name is '..': it must be the name of a folder"),
        (
            lambda: Translation("x", model=Transformer(positions="learned", max_length=32)),
            "model.max_length 32 is shorter than the longest source of data.buckets, 64: raise it",
        ),
        (
            lambda: Translation("x", model=Pair(RNNsearch(), Transformer(positions="learned", max_length=32))),
            "model.decoder.max_length 32 is shorter than the longest target of data.buckets, 64: raise it",
        ),
        (
            lambda: Translation("x", model=Pair(ConvS2S(max_length=63), RNNsearch())),
            "model.encoder.max_length 63 is shorter than the longest source of data.buckets, 64: raise it",
        ),
        (
            lambda: Translation("x", model=ConvS2S(max_length=64), search=Search(max_length=65)),
            "search.max_length 65 is more than model.max_length 64 can address: lower it",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(build, message):
    assert refused(build).startswith(message)


def test_only_the_side_that_has_positions_limits_its_buckets():
    short = Transformer(positions="learned", max_length=8)
    Translation("x", data=Data(buckets=((64, 8),)), model=Pair(RNNsearch(), short), search=Search(max_length=8))
    Translation("x", data=Data(buckets=((8, 64),)), model=Pair(short, RNNsearch()), search=Search(max_length=64))


VAGUE = ("of", "for", "how", "what", "which", "it", "they")


def documented_fields() -> dict[str, tuple[list[str], dict[str, str]]]:
    """Settings class -> (its bases, field -> docstring, "" if there is none)."""
    found = {}
    for file in Path(config.__file__).parents[1].rglob("*.py"):
        for kind in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(kind, ast.ClassDef) and any(ast.unparse(d).endswith("settings") for d in kind.decorator_list):
                fields = {}
                for field, following in zip(kind.body, [*kind.body[1:], None]):
                    if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                        fields[field.target.id] = following.value.value if isinstance(following, ast.Expr) else ""
                found[kind.name] = [ast.unparse(base).rpartition(".")[2] for base in kind.bases], fields
    return found


def test_every_field_says_what_it_is():
    """The command line shows these words without their context. They may be inherited."""
    classes = documented_fields()
    assert len(classes) > 60

    def words(kind: str, field: str) -> str:
        bases, fields = classes.get(kind, ([], {}))
        return fields.get(field) or next(filter(None, (words(base, field) for base in bases)), "")

    for kind, (_, fields) in classes.items():
        for field in fields.keys() - {"_"}:
            shown = words(kind, field)
            assert shown and shown.split()[0].lower() not in VAGUE, f"{kind}.{field}: {shown!r}"
