"""What is odd about training text is counted, and no error."""

from s2sjax import config
from s2sjax.data import Example, pairs, prepare, sources
from s2sjax.data.remarks import remarks


def written(path, content):
    path.write_text(content)
    return str(path)


def test_what_is_odd_about_training_text_is_counted(tmp_path):
    tsv = written(tmp_path / "train.tsv", "a\tb\n\tb\na\t \na\tb\tc\t\na\tb\t\t\n \tb\tc\n")
    corpus = config.TextFiles(train=(tsv,))
    remedy = "it teaches the model to write nothing"
    expected = [
        f"{tsv}: 2 of 6 lines have a blank source, the first is line 2",
        f"{tsv}: 1 of 6 lines has a blank target, the first is line 3: {remedy}",
        f"{tsv}: 2 of 6 lines have more than two columns, the first is line 4: each further column is one more target",
    ]
    assert remarks(corpus, sources.load(corpus, "train")) == expected
    files = written(tmp_path / "source", "a\nb\n"), written(tmp_path / "target", "\nb\n")
    pair = config.TextFiles(train=files)
    blank = f"has a blank target, the first is line 1: {remedy}"
    assert remarks(pair, sources.load(pair, "train")) == [f"{files[0]} and {files[1]}: 1 of 2 lines {blank}"]
    both = config.Mixture((corpus, pair, config.Synthetic(train=2)), tags=("<a>", "<b>", "<c>"))
    assert len(remarks(both, sources.load(both, "train"))) == 4
    assert remarks(config.Synthetic(train=2), sources.load(config.Synthetic(train=2), "train")) == []
    several = [Example("read", ("R EH D", "R IY D")), Example("", ("b",))]  # several targets are usual there
    assert remarks(config.Cmudict(), several) == ["Cmudict: 1 of 2 examples has a blank source, the first is example 2"]


def test_a_prepared_folder_keeps_its_remarks(tmp_path):
    data = config.Data(config.TextFiles(train=(written(tmp_path / "train.tsv", "a\tb\na\t\n"),)))
    done = prepare.prepare(data, tmp_path / "made")
    raw = pairs.remarks_on(data, pairs.read(data))
    prepared = config.replace(data, corpus=config.Prepared(str(tmp_path / "made")))
    assert done.remarks == pairs.remarks_on(prepared, pairs.read(prepared)) == raw != []
