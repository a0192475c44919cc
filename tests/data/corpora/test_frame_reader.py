"""Frames, Parquet and JSON lines: the same rows, read lazily and without copies; mistakes are named in one line."""

import gzip
import hashlib
import importlib
import io
import json
import sys
import tracemalloc
import wave

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import refused

from s2sjax import config, tasks
from s2sjax.config import Frame, FrameFiles, arrow_tables
from s2sjax.data.corpora import frame_reader, memory_reader, readers
from s2sjax.data.signals.frame_signals import FrameSignals
from s2sjax.tasks.captioning import CaptionData, FramePictures
from s2sjax.tasks.classification.settings import LabelData
from s2sjax.tasks.pretraining.settings import Paragraphs
from s2sjax.tasks.recognition import LabelledSignals
from s2sjax.tasks.regression import FrameSeries, Windows
from s2sjax.tasks.tagging.settings import TagData, TaggerModel

ROWS = [
    {"en": "a dog", "de": ["ein Hund"], "pair": {"x": "one", "y": "eins"}, "words": ["a", "dog"], "tags": ["D", "N"]},
    {"en": "cats", "de": ["Katzen", "Katze"], "pair": {"x": "two", "y": "zwei"}, "words": ["cats"], "tags": ["N"]},
    {"en": "no", "de": ["nein"], "pair": {"x": "three", "y": "drei"}, "words": ["no"], "tags": ["X"]},
]
TABLE = pa.Table.from_pylist(ROWS)


class Stream:
    """A frame of an unknown library, which exports its columns as an Arrow stream."""

    def __init__(self, table):
        self.table, self.columns = table, table.schema.names

    def __getitem__(self, columns):
        return Stream(self.table.select(columns))

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def as_views(table):
    """The table with the string views of Polars."""
    views = lambda column: column.cast(pa.string_view()) if column.type == pa.string() else column
    return pa.table({name: views(table.column(name)) for name in table.schema.names})


def installed_datasets():
    """The package `datasets`. Without it, tests/datasets/ has its name."""
    pytest.importorskip("datasets.arrow_dataset")
    return importlib.import_module("datasets")


def of(library):
    """ROWS as a frame of an installed library."""
    if library == "polars":
        return pytest.importorskip("polars").DataFrame(ROWS)
    if library == "datasets":
        return installed_datasets().Dataset.from_list(ROWS)
    return pytest.importorskip("pandas").DataFrame(ROWS)


FRAMES = {
    "pyarrow": lambda: TABLE,
    "sliced": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 2)]),
    "large": lambda: TABLE.set_column(0, "en", TABLE.column("en").cast(pa.large_string())),
    "dictionary": lambda: TABLE.set_column(0, "en", TABLE.column("en").dictionary_encode()),
    "views": lambda: as_views(TABLE),
    "stream": lambda: Stream(TABLE),
    "pandas": lambda: of("pandas"),
    "polars": lambda: of("polars"),
    "datasets": lambda: of("datasets"),
}


def pairs(corpus, split="train"):
    return [(example.source, example.targets) for example in readers.load(corpus, split)]


@pytest.mark.parametrize("library", FRAMES)
def test_every_library_gives_the_same_examples_and_the_same_fingerprint(library):
    frame, plain = FRAMES[library](), Frame(TABLE, source="en", target="de")
    corpus = Frame(frame, source="en", target="de")
    assert pairs(corpus) == [("a dog", ("ein Hund",)), ("cats", ("Katzen", "Katze")), ("no", ("nein",))]
    assert corpus == plain and stored(corpus) == corpus
    nested = Frame(frame, source="pair.x", target=("pair.y", "en"))
    assert pairs(nested)[1] == ("two", ("zwei", "cats")) and nested != plain
    assert pairs(config.replace(corpus, source="pair.x", target="en"))[0] == ("one", ("a dog",))
    changed = TABLE.set_column(0, "en", pa.array(["a dog", "catsn", "o"]))  # the same bytes, cut elsewhere
    assert Frame(changed, source="en", target="de") != plain


def test_files_have_the_rows_of_frames(tmp_path):
    plain = pairs(Frame(TABLE, source="pair.x", target="de"))
    pq.write_table(TABLE.slice(0, 2), tmp_path / "part-0.parquet")
    pq.write_table(TABLE.slice(2), tmp_path / "part-1.parquet")
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "all.jsonl").write_text(lines)
    (tmp_path / "all.json.gz").write_bytes(gzip.compress(lines.encode()))
    for train in (("part-*.parquet",), ("part-0.parquet", "part-1.parquet"), ("all.jsonl",), ("all.json.gz",)):
        corpus = FrameFiles(train, source="pair.x", target="de")
        corpus = config.resolve_paths(corpus, tmp_path)
        assert pairs(corpus) == plain and stored(corpus) == corpus
        assert readers.has(corpus, "train") and not readers.has(corpus, "dev")


def test_splits_are_named_or_a_mapping_or_held_out():
    one = Frame(TABLE, dev=TABLE.slice(0, 1), test=TABLE.slice(1, 1), source="en", target="de")
    mapping = {"train": TABLE, "validation": TABLE.slice(0, 1), "test": TABLE.slice(1, 1), "unused": TABLE}
    assert Frame(mapping, source="en", target="de") == one
    assert Frame(mapping, dev=TABLE, source="en", target="de").dev == one.train
    rows = [{"s": f"{n % 200}", "t": f"{n}"} for n in range(400)]
    corpus = Frame(pa.Table.from_pylist(rows), source="s", target="t", dev_percent=10)
    parts = {split: pairs(corpus, split) for split in ("train", "dev")}
    assert sum(map(len, parts.values())) == 400 and 10 < len(parts["dev"]) < 80
    assert not {source for source, _ in parts["train"]} & {source for source, _ in parts["dev"]}  # equal ones together
    assert corpus.has("dev") and not corpus.has("test")


def hugging_face(table, **features):
    """The table with the metadata of a Hugging Face dataset."""
    page = {"info": {"features": features}}
    return table.replace_schema_metadata({"huggingface": json.dumps(page)})


CLASSES = hugging_face(
    pa.table({"text": ["good", "bad", "so"], "label": [1, 0, -1], "tags": [[2], [0, 1], [1]]}),
    label={"names": ["neg", "pos"], "_type": "ClassLabel"},
    tags={"feature": {"names": ["O", "B-x", "I-x"], "_type": "ClassLabel"}, "_type": "List"},
)


def test_numbers_of_classes_become_their_names(tmp_path):
    named = Frame(CLASSES.slice(0, 2), source="text", target="label")
    assert pairs(named) == [("good", ("pos",)), ("bad", ("neg",))]
    assert pairs(Frame(CLASSES, source="text", target="tags"))[1] == ("bad", ("O", "B-x"))
    pq.write_table(CLASSES, tmp_path / "x.parquet")
    file = FrameFiles((str(tmp_path / "x.parquet"),), source="text", target="label")
    assert "row 3: the column 'label' is None" in refused(lambda: pairs(file))  # -1 is a label that nobody gave
    assert pairs(Frame(pa.table({"text": ["a"], "label": [7]}), source="text", target="label")) == [("a", ("7",))]
    wrong = hugging_face(pa.table({"t": ["a"], "label": [5]}), label={"names": ["neg"], "_type": "ClassLabel"})
    assert "the column 'label' is damaged" in refused(lambda: Frame(wrong, source="t", target="label"))


def test_a_dataset_with_its_features_and_indices():
    datasets = installed_datasets()
    names = datasets.ClassLabel(names=["O", "B"])
    features = datasets.Features({"t": datasets.Value("string"), "y": names, "tags": datasets.Sequence(names)})
    rows = {"t": ["a", "b", "c"], "y": [0, 1, 1], "tags": [[0, 1], [1], [0]]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    chosen = dataset.select([2, 0])
    assert pairs(Frame(chosen, source="t", target="y")) == [("c", ("B",)), ("a", ("O",))]
    both = datasets.DatasetDict(train=dataset, validation=chosen)
    corpus = Frame(both, source="t", target="tags")
    assert pairs(corpus)[0] == ("a", ("O", "B")) and pairs(corpus, "dev") == [("c", ("O",)), ("a", ("O", "B"))]
    address = lambda array: array.buffers()[2].address
    (batch,) = corpus.train.table().batches(("t",))
    assert address(batch[0]) == address(dataset.data.column("t").chunk(0))  # not a copy
    streamed = dataset.to_iterable_dataset()
    assert "is streamed" in refused(lambda: Frame(streamed, source="t", target="y"))


# ---------------------------------------------------------------------------------------- memory


def test_a_table_is_read_without_copies_and_in_constant_memory():
    count = 300_000
    text = pa.array(["word"] * 1000)
    table = pa.table({name: pa.chunked_array([text] * (count // 1000)) for name in "ab"})
    long = pa.table({name: table.column(name).combine_chunks() for name in "ab"})
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    corpus = Frame(long, source="a", target="b")
    assert corpus.train.startswith("300000 examples")
    opened = corpus.train.table()
    first = next(iter(opened.batches(("a", "b"))))
    assert first[0].buffers()[2].address == long.column("a").chunk(0).buffers()[2].address  # the same memory
    stream = readers.stream(corpus, "train")
    for _ in range(5000):
        next(stream)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000  # the rows as tuples would be over 50 MB
    assert pa.total_allocated_bytes() - before < 5_000_000
    tracemalloc.stop()


def test_no_batch_is_larger_than_its_limit(monkeypatch):
    monkeypatch.setattr(arrow_tables, "ROWS", 2)
    table = Frame(TABLE, source="en", target="de").train.table()
    assert [len(arrays[0]) for arrays in table.batches(("en",))] == [2, 1]
    assert [row.where for row in frame_reader.rows(Frame(TABLE, source="en"), "train")][2] == "Frame.train, row 3"


# ------------------------------------------------------------------------------------------ runs


def stored(settings):
    """The settings as an opened run has them."""
    return config.from_json(json.loads(json.dumps(config.to_json(settings))))


def test_a_run_keeps_the_columns_that_it_reads(tmp_path):
    corpus = Frame(TABLE, test=CLASSES.rename_columns(["en", "de", "pair"]).slice(0, 2), source="en", target="de")
    data = config.Data(config.Mixture((corpus, config.Synthetic())))
    memory_reader.save(data, tmp_path)
    memory_reader.save(data, tmp_path)
    assert sorted(path.name[:5] for path in tmp_path.iterdir()) == ["test-", "train"]
    (file,) = tmp_path.glob("train-*.parquet")
    assert pq.read_schema(file).names == ["en", "de"]
    opened = memory_reader.load(stored(data), tmp_path)
    assert opened == data
    for split in ("train", "test"):
        assert pairs(opened.corpus.corpora[0], split) == pairs(corpus, split)
    pq.write_table(TABLE.slice(1).select(["en", "de"]), file)
    changed = memory_reader.load(stored(corpus), tmp_path)
    assert "has other examples than this run: copy it again" in refused(lambda: pairs(changed))
    alone = stored(corpus)
    assert "the train examples of Frame are not stored here" in refused(lambda: pairs(alone))


# ----------------------------------------------------------------------------------- every task


@pytest.fixture
def either(tmp_path):
    """A function that gives the same rows as a Frame and as a Parquet file."""

    def corpora(table, **columns):
        file = tmp_path / f"{hashlib.sha256(repr(columns).encode()).hexdigest()[:8]}.parquet"
        pq.write_table(table, file)
        return Frame(table, **columns), FrameFiles((str(file),), **columns)

    return corpora


def test_text_labels_and_tags(either):
    for corpus in either(TABLE, source="en", target="de"):
        assert len(tasks.Translation("x", data=config.Data(corpus)).task().read()) == 3
    for corpus in either(CLASSES.slice(0, 2), source="text", target="label"):
        found = tasks.Classification("x", data=LabelData(corpus)).task().read()
        assert [(example.source, example.label) for example in found] == [("good", "pos"), ("bad", "neg")]
    for corpus in either(TABLE, source="words", target=("tags", "en")):
        found = tasks.Tagging("x", data=TagData(corpus), model=TaggerModel(intent=1.0)).task().read()
        assert found[0] == (("a", "dog"), ("D", "N"), "a dog")
    for corpus in either(TABLE, source="words", target="en"):
        task = tasks.Tagging("x", data=TagData(config.replace(corpus, target="pair.x"))).task()
        assert refused(task.read).endswith(", row 1 has 2 words and 1 tags: give each word one tag")
    frames = pa.table({"f": [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]], "g": [[1], [2, 3]], "y": ["u", "v"]})
    for name, shape in (("f", (2, 2)), ("g", (2, 1))):
        for corpus in either(frames, source=name, target="y"):
            found = tasks.Classification("x", data=LabelData(corpus)).task().read()
            assert found[1].source.shape == shape and found[1].label == "v"


def test_text_alone(either):
    for corpus in either(TABLE, source="en"):
        task = tasks.LanguageModel("x", data=config.PlainText(corpus=corpus)).task()
        assert task.read() == ["a dog", "cats", "no"] and task.has("train") and not task.has("dev")
    for corpus in either(pa.table({"t": ["One is. Two are.", "a  b\nc", "x"]}), source="t"):
        task = tasks.Pretraining("x", data=Paragraphs(corpus=corpus)).task()
        assert task.read() == [("One is.", "Two are."), ("a b", "c")]
    memory = config.PlainText(corpus=config.InMemory(train=[("a", "b")]))
    assert tasks.LanguageModel("x", data=memory).task().read() == ["a"]
    assert "both corpus and train" in refused(lambda: config.PlainText("x.txt", corpus=memory.corpus))


def test_series(either):
    for corpus in either(pa.table({"v": np.sin(np.arange(60.0)), "n": range(60)}), source="v"):
        task = tasks.Regression("x", data=Windows(FrameSeries(corpus), steps=4)).task()
        assert len(task.read()) > 10 and task.read()[0].target == pytest.approx(np.sin(4.0))
    for column, message in (([1.0, None], "row 2: the column 'v' is None"), (["a"], "row 1: the column 'v' is 'a'")):
        series = FrameSeries(Frame(pa.table({"v": column}), source="v"))
        assert f"Frame.train, {message}: it must be a number" in refused(series.values)
    assert "only train and source" in refused(lambda: FrameSeries(Frame(TABLE, source="en", target="de")))


def sound(samples):
    file = io.BytesIO()
    with wave.open(file, "wb") as opened:
        opened.setparams((1, 2, 8000, 0, "NONE", ""))
        opened.writeframes((samples * 8000).astype("<i2").tobytes())
    return file.getvalue()


def test_recordings_and_vectors(either):
    samples = np.sin(np.arange(800) / 3)
    heard = (samples * 8000).astype("<i2").astype(np.float32) / 32768
    kinds = {
        "bytes": [sound(samples)],
        "audio": [{"bytes": sound(samples), "path": "a.wav"}],
        "decoded": [{"array": heard, "sampling_rate": 8000}],
        "samples": [heard],
    }
    table = pa.table({**kinds, "y": [["a", "b"]], "z": ["a b"], "v": [[[1.0, 2.0], [3.0, 4.0]]]})
    digests = set()
    for name in kinds:
        for corpus in either(table, source=name, target="y"):
            data = LabelledSignals(FrameSignals(corpus, ("a", "b")))
            (found,) = tasks.Recognition("x", data=data).task().read()
            assert found.labels == ("a", "b") and found.frames.shape == (8, 40)
            digests.add(found.digest)
    assert len(digests) == 1  # the same samples
    for corpus in either(table, source="v", target="z"):
        data = LabelledSignals(FrameSignals(corpus, ("a", "b"), vector_size=2), ngram=0)
        (found,) = tasks.Transcription("x", data=data).task().read()
        np.testing.assert_array_equal(found.frames, [[1, 2], [3, 4]])
    wrong = FrameSignals(Frame(table, source="z", target="y"), ("a", "b"))
    assert "the column 'z' is 'a b': it must be a recording" in refused(lambda: wrong.examples("train"))
    slow = config.replace(wrong, frame=Frame(
        pa.table({"s": [{"array": heard, "sampling_rate": 16000}], "y": ["a"]}), source="s", target="y"
    ))  # fmt: skip
    assert "16000 samples a second: convert it to 8000" in refused(lambda: slow.examples("train"))
    narrow = FrameSignals(Frame(table, source="v", target="y"), ("a", "b"), vector_size=3)
    assert "it must be a list of vectors of data.corpus.vector_size 3" in refused(lambda: narrow.examples("train"))


def test_pictures(either):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "PNG")
    table = pa.table({
        "bytes": [file.getvalue()], "image": [{"bytes": file.getvalue(), "path": None}], "array": [pixels.tolist()],
        "y": [["A dog.", "one dog"]],
    })  # fmt: skip
    for name in ("bytes", "image", "array"):
        for corpus in either(table, source=name, target="y"):
            data = CaptionData(FramePictures(corpus, size=8))
            (found,) = tasks.Captioning("x", data=data).task().read()
            np.testing.assert_array_equal(found.pixels, pixels)
            assert found.captions == ("a dog", "one dog")
    wrong = FramePictures(Frame(table, source="y", target="y"), size=8)
    assert "the column 'y' is ['A dog.', 'one dog']: it must be a picture" in refused(lambda: wrong.examples("train"))


# ------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"source": "eng", "target": "de"}, "Frame.train has no column 'eng', it has en, de, pair"),
        ({"source": "pair.z", "target": "de"}, "Frame.train has no column 'pair.z', it has en, de, pair.x, pair.y, w"),
        ({}, "Frame.source is empty: name a column, as in source='en', target='de'"),
        ({"train": TABLE.slice(0, 0), "source": "en"}, "Frame.train has no rows: give some, or leave it out"),
        ({"train": {"en": ["a"]}, "source": "en"}, "Frame.train is a mapping of en: give a frame of pandas"),
        ({"train": "x.parquet", "source": "en"}, "Frame.train is 'x.parquet': give a frame"),
        ({"train": ROWS, "source": "en"}, "Frame.train is [{'en': 'a dog'"),
        ({"source": "en", "dev_percent": 100.0}, "data.corpus.dev_percent is 100.0: it must be at least 0 and below"),
        ({"source": "en", "dev": TABLE, "dev_percent": 1.0}, "data.corpus has both dev and dev_percent"),
    ],
)  # fmt: skip
def test_a_frame_that_cannot_be_read_is_refused(fields, message):
    found = refused(lambda: Frame(**{"train": TABLE, **fields}))
    assert found.startswith(message) and len(found) < 250


def test_the_nearest_column_is_proposed():
    found = refused(lambda: Frame(Stream(TABLE), source="word", target="de"))
    assert found == "Frame.train has no column 'word', it has en, de, pair, words, tags: did you mean 'words'?"


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "x.jsonl",
            '{"en": "a", "de": "b"}\n{"en": "a"}\n',
            "line 2 has no column 'de', it has en: did you mean 'en'?",
        ),
        (
            "x.jsonl",
            '{"en": "a", "de": "b"}\n{"en": 3, "de": "b"}\n',
            "line 2: the column 'en' is 3: it must be a text",
        ),
        ("x.jsonl", '{"en": "a", "de": null}\n', "line 1: the column 'de' is None: it must be a text"),
        ("x.json", '[\n{"en": "a"}]', "line 1 is not JSON: write one JSON object on each line"),
        ("x.json", '[{"en": "a"}]', 'line 1 is \'[{"en": "a"}]\': write one JSON object on each line'),
        ("x.jsonl", '{"en": "a", "de": "b"}\n{"en"\n', "line 2 is not JSON: correct it"),
        ("x.parquet", "nonsense", "x.parquet cannot be read ("),
        ("x.csv", "en,de\n", "x.csv: its format is unknown: give .parquet, .jsonl or .jsonl.gz files"),
    ],
)
def test_mistakes_in_files_name_the_file_and_the_line(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    corpus = FrameFiles((str(tmp_path / name),), source="en", target="de")
    assert message in refused(lambda: pairs(corpus))
    missing = config.replace(corpus, train=(str(tmp_path / "no-*.parquet"),))
    assert "there is no file" in refused(lambda: pairs(missing))
    assert "FrameFiles.target is empty" in refused(lambda: pairs(config.replace(corpus, target="")))


def test_the_extra_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = refused(lambda: Frame(TABLE, source="en", target="de"))
    assert found == "pyarrow, which reads frames and Parquet files, is not installed: pip install pyarrow"
