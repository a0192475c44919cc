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


def cast(column, kind):
    """The frame of Polars with a column of another type: kind(polars)."""
    polars = pytest.importorskip("polars")
    return of("polars").with_columns(polars.col(column).cast(kind(polars)))


FRAMES = {
    "pyarrow": lambda: TABLE,
    "sliced": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 2)]),
    "large": lambda: TABLE.set_column(0, "en", TABLE.column("en").cast(pa.large_string())),
    "dictionary": lambda: TABLE.set_column(0, "en", TABLE.column("en").dictionary_encode()),
    "views": lambda: as_views(TABLE),
    "dictionary of views": lambda: TABLE.set_column(
        0, "en", pa.DictionaryArray.from_arrays([2, 0, 1], pa.array(["cats", "no", "a dog"], pa.string_view()))
    ),
    "repeated": lambda: TABLE.set_column(
        0, "en", pa.RunEndEncodedArray.from_arrays([1, 2, 3], ["a dog", "cats", "no"])
    ),
    "categorical": lambda: cast("en", lambda polars: polars.Categorical),
    "enum": lambda: cast("en", lambda polars: polars.Enum(["no", "a dog", "cats", "more"])),
    "lists of categories": lambda: cast("de", lambda polars: polars.List(polars.Categorical)),
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


PAIRS = [["a", "b"], ["c", "d"], None, ["e", "a"]]
LISTS = {
    "fixed": lambda: pa.array(PAIRS, pa.list_(pa.string(), 2)),
    "fixed views": lambda: pa.array(PAIRS, pa.list_(pa.string_view(), 2)),
    "list views": lambda: pa.array(PAIRS, pa.list_view(pa.string())),
    "large list views": lambda: pa.array(PAIRS, pa.large_list_view(pa.string_view())),
    "dictionaries": lambda: pa.array(PAIRS, pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "polars arrays": lambda: series(lambda polars: polars.Array(polars.String, 2)),
    "polars categories": lambda: series(lambda polars: polars.List(polars.Categorical)),
    "polars arrays of enums": lambda: series(lambda polars: polars.Array(polars.Enum(list("edcba")), 2)),
}


def series(kind):
    polars = pytest.importorskip("polars")
    return polars.Series("y", PAIRS, dtype=polars.List(polars.String)).cast(kind(polars))


@pytest.mark.parametrize("stored_as", LISTS)
@pytest.mark.parametrize("start, count", [(0, 4), (1, 3), (1, 1), (2, 1)])
def test_lists_are_the_same_however_they_are_stored_and_cut(stored_as, start, count):
    made = LISTS[stored_as]()
    if isinstance(made, pa.Array):
        frame = pa.table({"s": list("stuv"), "y": made})
    else:
        frame = pytest.importorskip("polars").DataFrame({"s": list("stuv"), "y": made})
    corpus = Frame(frame.slice(start, count), source="s", target="y")
    plain = pa.table({"s": list("stuv"), "y": PAIRS}).slice(start, count)
    found = [row.targets[0] for row in frame_reader.rows(corpus, "train")]
    assert found == PAIRS[start : start + count] and corpus == Frame(plain, source="s", target="y")


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


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)])
def test_a_missing_list_of_classes_is_none(kind):
    rows = pa.table({"text": list("abcd"), "tags": pa.array([[0, 1], None, [1, 1], [2, -1]], kind)})
    names = {"feature": {"names": ["O", "B", "I"], "_type": "ClassLabel"}, "_type": "List"}
    corpus = Frame(hugging_face(rows, tags=names).slice(1), source="text", target="tags")
    assert [row.targets for row in frame_reader.rows(corpus, "train")] == [(None,), (["B", "B"],), (["I", None],)]
    assert "row 1: the column 'tags' is None: it must be a text" in refused(lambda: pairs(corpus))


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


def test_a_dataset_with_lists_of_classes_of_one_length():
    datasets = installed_datasets()
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B"]), length=2)
    features = datasets.Features({"t": datasets.Value("string"), "tags": tags})
    dataset = datasets.Dataset.from_dict({"t": ["a", "b"], "tags": [[0, 1], [1, 1]]}, features=features)
    assert pairs(Frame(dataset, source="t", target="tags")) == [("a", ("O", "B")), ("b", ("B", "B"))]


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


def test_a_number_of_a_series_that_is_too_large_is_named(tmp_path):
    (tmp_path / "v.jsonl").write_text("".join(f'{{"v": {n if n != 7 else "9" * 400}}}\n' for n in range(60)))
    series = FrameSeries(FrameFiles((str(tmp_path / "v.jsonl"),), source="v"))
    task = tasks.Regression("x", data=Windows(series, steps=4)).task()
    assert refused(task.read).startswith("value 8 of column 'v' is inf: give finite numbers")


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
    floats = lambda numbers: FramePictures(
        Frame(pa.table({"x": [numbers.tolist()], "y": ["a"]}), source="x", target="y"), size=8
    )
    (whole,) = floats(pixels.astype(float)).examples("train")
    np.testing.assert_array_equal(whole.pixels, pixels)
    for numbers in (pixels / 255, np.full((8, 8, 3), np.nan), np.full((8, 8, 3), np.inf), pixels + 0.5, pixels - 256.0):
        assert "must be a picture: bytes, an image column, or whole numbers from 0 to 255" in refused(
            lambda numbers=numbers: floats(numbers).examples("train")
        )


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


@pytest.mark.parametrize(
    "column, message",
    [
        (pa.array([[("k", 1)]] * 2, pa.map_(pa.string(), pa.int64())), "has the type map<string, int64>, which cannot"),
        (pa.array([[[("k", 1)]]] * 2, pa.list_(pa.map_(pa.string(), pa.int64()))), "has the type list<item: map<"),
        (pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array(["x", "y"])]), "has the type sparse_union<"),
        (pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval()), "has the type month_day_nano_interval, which cannot"),
        (pa.array([0, 0], pa.timestamp("us", "Mars/X")), "has the type timestamp[us, tz=Mars/X], which cannot be read"),
        (pa.array([b"ab"] * 2, pa.binary(2)), "is b'ab': it must be a text"),
        (pa.array([b"x" * 16] * 2, pa.uuid()), "is b'xxxxxxxxxxxxxxxx': it must be a text"),
        (pa.array([0, 0], pa.duration("s")), "is datetime.timedelta(0): it must be a text"),
        (pa.array([[["x"]]] * 2, pa.list_(pa.list_(pa.string_view()))), "is [['x']]: it must be a text"),
        (
            pa.array([{"a": ["x", "y"]}] * 2, pa.struct([("a", pa.list_(pa.string_view(), 2))])),
            "is {'a': ['x', 'y']}: ",
        ),
        (pa.nulls(2), "is None: it must be a text"),
    ],
    ids=lambda value: str(value.type)[:20] if isinstance(value, pa.Array) else "",
)
def test_a_column_of_a_type_that_is_no_text_is_named(column, message):
    corpus = lambda: pairs(Frame(pa.table({"s": ["a", "b"], "y": column}), source="s", target="y"))
    assert refused(corpus).startswith("Frame.train") and f"the column 'y' {message}" in refused(corpus)


def test_large_unsigned_numbers_are_read(tmp_path):
    large = [2**63, 2**64 - 1, 1]
    table = pa.table({"s": ["a", "b", "c"], "y": pa.array(large, pa.uint64())})
    corpus = Frame(table, source="s", target="y")
    assert [targets for _, targets in pairs(corpus)] == [(str(number),) for number in large]
    smaller = pa.table({"s": ["a"], "y": pa.array([1], pa.uint64())})
    assert Frame(smaller, source="s", target="y") == Frame(pa.table({"s": ["a"], "y": [1]}), source="s", target="y")
    memory_reader.save(corpus, tmp_path)
    assert memory_reader.load(stored(corpus), tmp_path) == corpus


TWICE = pa.Table.from_arrays([pa.array(["a"])] * 4, ["s", "y", "y", "z"])
INNER = pa.StructArray.from_arrays([pa.array(["1"]), pa.array(["2"])], ["k", "k"])


@pytest.mark.parametrize(
    "frame, target, message",
    [
        (lambda: TWICE, "y", "Frame.train has 2 columns 'y': give each its own name"),
        (lambda: pa.table({"s": ["a"], "y": INNER}), "y.k", "Frame.train has no column 'y.k', it has s, y.k, y.k"),
        (lambda: pa.table({}), "y", "Frame.train has no columns: give a frame with named columns"),
        (lambda: pandas_frame({}), "y", "Frame.train has no columns: give a frame with named columns"),
        (lambda: pandas_frame({"s": ["a"], "y": ["b"]}).set_index(["s", "y"]), "y", "Frame.train has no columns: give"),
        (lambda: pandas_frame({"s": ["a"], "y": ["b"]}).set_axis(["s", "s"], axis=1), "s", "Frame.train cannot be "),
        (lambda: pandas_frame({"s": ["a"], "y": [2**70]}), "y", "Frame.train cannot be read as an Arrow table ("),
        (lambda: pandas_frame({"s": ["a"], "y": ["\ud83d"]}), "y", "Frame.train cannot be read as an Arrow table ("),
        (lambda: pandas_frame({"s": ["a", "b"], "y": ["x", 1]}), "y", "Frame.train cannot be read as an Arrow table ("),
        (lambda: pandas_frame({"s": ["a"], "y": ["b"]})["s"], "y", "Frame.train"),
        (lambda: type(of("pandas")), "y", "Frame.train is <class 'pandas"),
        (lambda: type(of("polars")), "y", "Frame.train is <class 'polars"),
    ],
)  # fmt: skip
def test_a_frame_whose_columns_cannot_be_told_apart_or_converted(frame, target, message):
    frame = frame()
    assert refused(lambda: Frame(frame, source="s", target=target)).startswith(message)


def pandas_frame(columns):
    return pytest.importorskip("pandas").DataFrame(columns, dtype=object)


def test_other_columns_and_the_index_are_not_looked_at():
    assert pairs(Frame(TWICE, source="s", target="z")) == [("a", ("a",))]
    frame = pandas_frame({"s": ["a", "b", "c"], "y": ["x", "y", "z"], "bad": [1, "a", object()]})
    plain = Frame(frame, source="s", target="y")
    for index in ([1, "a", 2.5], [object()] * 3):
        frame.index = index
        assert Frame(frame, source="s", target="y") == plain and pairs(plain)[2] == ("c", ("z",))
    frame.index = [7, 8, 9]
    frame.index.name = "y"  # as a column is named
    assert Frame(frame, source="s", target="y") == plain


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
        (
            "x.jsonl",
            '{"en": "a", "de": "b"}\n{"en": "a", "de": "\\ud83d"}\n',
            "line 2 is not text (surrogates not allowed)",
        ),
        ("x.jsonl", '{"en": "a", "de": ["\\uDE00"]}\n', "line 1 is not text (surrogates not allowed): correct it"),
        ("x.jsonl", '{"en": "a", "de": "b"}\n' + "[" * 200_000, "line 2 is not JSON: correct it"),
        ("x.jsonl", '{"en": "a", "de": ' + "9" * 5000 + "}\n", "line 1 is not JSON"),
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


def test_columns_of_columns_that_are_null_have_null_columns(tmp_path):
    """In JSON lines as in frames."""
    rows = [{"s": "a", "t": {"u": {"v": "x"}}}, {"s": "b", "t": {"u": None}}, {"s": "c", "t": None}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = FrameFiles((str(tmp_path / "x.jsonl"),), source="s", target="t.u.v")
    for corpus in (file, Frame(pa.Table.from_pylist(rows), source="s", target="t.u.v")):
        assert [row.targets for row in frame_reader.rows(corpus, "train")] == [("x",), (None,), (None,)]
    (tmp_path / "x.jsonl").write_text('{"s": "a", "t": {"w": null}}\n')
    assert "line 1 has no column 't.u.v'" in refused(lambda: pairs(file))


def test_pairs_of_surrogates_are_text(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"en": "\\ud83d\\ude00", "de": "\\\\ud83d"}\n')
    assert pairs(FrameFiles((str(tmp_path / "x.jsonl"),), source="en", target="de")) == [("\U0001f600", ("\\ud83d",))]


def test_a_file_of_an_unknown_user_is_named():
    for name in ("x.jsonl", "x.parquet"):
        corpus = FrameFiles((f"~nouser/{name}",), source="en", target="de")
        assert f"~nouser/{name}" in refused(lambda corpus=corpus: pairs(corpus))


def test_the_extra_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = refused(lambda: Frame(TABLE, source="en", target="de"))
    assert found == "pyarrow, which reads frames and Parquet files, is not installed: pip install pyarrow"
