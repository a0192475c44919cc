"""Recordings: unusable ones are rejected by name; features do not depend on the other recordings of a batch."""

import random
import sys
import zipfile

import numpy as np
import pytest

from s2sjax import config
from s2sjax.data.signals import audio
from s2sjax.data.signals.audio import LogMel
from s2sjax.data.signals.signal_examples import Strings
from s2sjax.data.signals.spoken_digits import Recordings, SpokenDigits
from s2sjax.errors import UserError

SMALL = LogMel(rate=1000, window=32.0, hop=16.0, filters=4, low=50.0)
RNG = np.random.default_rng(0)


def noise(samples=200):
    return (0.1 * RNG.normal(size=samples)).astype(np.float32)


def message(function, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    "samples, rate, expected",
    [
        (np.zeros((0, 1)), 1000, "a.wav is empty: record it again"),
        (np.zeros((50, 1)), 1000, "a.wav is silent, every sample is 0: record it again"),
        (np.ones((50, 2)), 1000, "a.wav has 2 channels: mix it down to one"),
        (np.ones((50, 1)), 8000, "a.wav has 8000 samples a second: convert it to 1000"),
        (np.ones((31, 1)), 1000, "a.wav is too short, with 31 samples: at least 32 are needed"),
        (np.full((50, 1), np.nan), 1000, "a.wav has samples that are not finite: record it again"),
    ],
)
def test_what_cannot_be_recognised_is_refused(samples, rate, expected):
    assert message(audio.check, samples, rate, SMALL, "a.wav") == expected


def test_features_do_not_depend_on_neighbours():
    recordings = [noise(200), noise(64), noise(333)]
    together = audio.log_mels(recordings, SMALL)
    assert [frames.shape for frames in together] == [(11, 4), (3, 4), (19, 4)]
    np.testing.assert_allclose(together[1], audio.log_mels(recordings[1:2], SMALL)[0], atol=1e-5)
    silence = np.zeros(3, np.float32)
    louder = np.concatenate([9 * recordings[1], silence])
    np.testing.assert_allclose(audio.log_mels([louder], SMALL)[0], together[1], atol=1e-4)
    centred = audio.log_mels(recordings, config.replace(SMALL, center=True))
    np.testing.assert_allclose(centred[0], together[0] - together[0].mean(0), atol=1e-4)


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"low": 600.0}, "LogMel: frequencies from 600.0 to 500.0 Hz: they must ascend"),
        ({"filters": 40}, "LogMel.filters 40 is too many for windows of 32.0 ms at 1000 Hz"),
        ({"hop": 0.1}, "LogMel.hop 0.1 ms is less than one sample"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields, expected):
    options = {"rate": 1000, "window": 32.0, "hop": 16.0, "filters": 4, "low": 50.0} | fields
    assert message(lambda: LogMel(**options)).startswith(expected)


def test_without_soundfile_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert message(audio.read, "a.wav", SMALL) == (
        "reading recordings needs soundfile, which is not installed: pip install soundfile"
    )


@pytest.fixture
def write():
    """Returns write(path, samples, rate)."""
    return pytest.importorskip("soundfile").write


def test_files_that_cannot_be_read_are_named_with_their_line(tmp_path, write, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("good.wav", noise(), 1000, subtype="FLOAT")
    assert np.abs(audio.read("good.wav", SMALL)).max() > 0
    (tmp_path / "text.wav").write_text("not a recording")
    assert message(audio.read, "text.wav", SMALL) == (
        "text.wav cannot be read (Format not recognised): give a WAV, FLAC or OGG file"
    )
    assert message(audio.read, "none.wav", SMALL) == "none.wav does not exist: correct the path"
    assert message(audio.read, tmp_path, SMALL).startswith(f"{tmp_path} cannot be read (")
    for bad, error in (
        ("good.wav\t1\nmissing.wav\t2\n", "list.tsv, line 2: missing.wav does not exist: correct the path"),
        ("good.wav\t1 x\n", "list.tsv, line 1: the label 'x' is not in the alphabet, 1 2: correct it"),
        ("good.wav\n", "list.tsv, line 1 has 1 of 2 columns: write path, a tab, labels"),
    ):
        (tmp_path / "list.tsv").write_text(bad)
        assert message(Recordings(train="list.tsv", labels=("1", "2"), audio=SMALL).examples, "train") == error
    (tmp_path / "list.tsv").write_text("good.wav\t1 2 2\n")
    (found,) = Recordings(train="list.tsv", labels=("1", "2"), audio=SMALL).examples("train")
    assert found.labels == ("1", "2", "2") and found.frames.shape == (11, 4)
    decoded = Recordings(audio=SMALL).example_of("good.wav\n", "line 1")
    np.testing.assert_allclose(decoded.frames, found.frames, atol=1e-5)
    assert message(Recordings(audio=SMALL).example_of, " ", "line 1").startswith("line 1 is empty")


@pytest.fixture
def fsdd(tmp_path, write):
    """Two digits, four takes, three speakers."""
    lines = ["path\tspeaker\tdigit\ttake"]
    with zipfile.ZipFile(tmp_path / "wavs.zip", "w") as archive:
        for speaker in ("ann", "ben", "cy"):
            for digit in "07":
                for take in range(4):
                    name = f"{digit}_{speaker}_{take}.wav"
                    write(tmp_path / name, noise(100), 1000)
                    archive.write(tmp_path / name, name)
                    lines.append(f"{name}\t{speaker}\t{digit}\t{take}")
    (tmp_path / "index.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def corpus(folder, **options):
    options = {"test_speakers": ("cy",), "dev_takes": 1, "silence": 0.05, "audio": SMALL} | options
    return SpokenDigits(str(folder), Strings(train=30, dev=10, test=10, longest=3), **options)


def test_strings_are_of_one_speaker_and_test_speakers_are_never_heard(fsdd):
    parts = {split: corpus(fsdd).examples(split) for split in ("train", "dev", "test")}
    heard = {}
    for split, examples in parts.items():
        for example in examples:
            takes = [name.split("_") for name in example.name.split("+")]
            assert len({speaker for _, speaker, _ in takes}) == 1
            assert example.labels == tuple(digit for digit, _, _ in takes)
            assert 1 <= len(takes) <= 3 and len(example.frames) >= 5 * len(takes)
            heard.setdefault(split, set()).update((speaker, int(take)) for _, speaker, take in takes)
    assert {speaker for speaker, _ in heard["test"]} == {"cy"}
    assert {speaker for speaker, _ in heard["train"]} == {speaker for speaker, _ in heard["dev"]} == {"ann", "ben"}
    assert {take for _, take in heard["dev"]} == {3} and {take for _, take in heard["train"]} == {0, 1, 2}
    again = corpus(fsdd).examples("train")
    assert [example.name for example in again] == [example.name for example in parts["train"]]
    assert again[0].digest == parts["train"][0].digest and len(again[0].digest) == 64
    by_speaker = corpus(fsdd, dev_speakers=("ben",))
    assert {name.split("_")[1] for example in by_speaker.examples("dev") for name in example.name.split("+")} == {"ben"}


def test_only_training_strings_are_changed(fsdd):
    digests = lambda split, **options: [example.digest for example in corpus(fsdd, **options).examples(split)]
    changed = {"voices": 0.3, "noise": 0.1, "channel": 1.0}
    assert digests("test", **changed) == digests("test")
    assert digests("train", **changed) == digests("train", **changed)
    assert not {*digests("train", **changed)} & {*digests("train")}
    slower = corpus(fsdd, voices=0.3).examples("train")
    lengths = [len(new.frames) / len(old.frames) for new, old in zip(slower, corpus(fsdd).examples("train"))]
    assert 0.6 < min(lengths) < 0.9 and 1.1 < max(lengths) < 1.6  # from 1 / 1.3 to 1 / 0.7, in whole frames


def test_a_random_filter_multiplies_the_power_by_its_gain_and_delays_nothing(monkeypatch):
    """The gain is that of the definition; the phases do not change."""
    drawn, strength, samples = [0.7, -1.2, 0.4, 2.0], 1.5, noise(512)
    rng, values = random.Random(0), iter(drawn)
    monkeypatch.setattr(rng, "gauss", lambda mean, deviation: mean + deviation * next(values))
    found = np.fft.rfft(audio.random_filter(samples, 8000, strength, rng)) / np.fft.rfft(samples)
    place = np.log1p(np.linspace(0, 4000, 257) / 700) / np.log1p(4000 / 700)  # mel(f) / mel(4000)
    log_gain = strength * sum(n / k * np.cos(np.pi * k * place) for k, n in enumerate(drawn, start=1))
    np.testing.assert_allclose(found, np.exp(log_gain / 2), rtol=1e-6)


def test_an_index_that_is_wrong_is_refused(fsdd):
    index = (fsdd / "index.tsv").read_text()
    cases = {
        "7_ann_0.wav\tann\t7": ("7_ann_0.wav\tann\tx", "line 6: the label 'x' is not in the alphabet, 0 1 2"),
        "7_ann_0.wav\tann": ("none.wav\tann", "line 6: none.wav is not in"),
        "ann\t7\t0": ("ann\t7\tfirst", "line 6: the take 'first' is not a number"),
        "0_ben_1.wav\tben\t0\t1": ("0_ben_1.wav\tben\t0", "line 11 has 3 of 4 columns"),
    }
    for old, (new, expected) in cases.items():
        (fsdd / "index.tsv").write_text(index.replace(old, new))
        assert expected in message(corpus(fsdd).examples, "train"), new
    (fsdd / "index.tsv").write_text(index)
    assert "there is no 'dan' in" in message(corpus(fsdd, test_speakers=("dan",)).examples, "train")
    (fsdd / "wavs.zip").write_text("no zip")
    assert "it must be the recordings of the Free Spoken Digit Dataset" in message(corpus(fsdd).examples, "train")
    assert "of the Free Spoken Digit Dataset" in message(corpus(fsdd / "nowhere").examples, "train")
    assert "is in test_speakers and in dev_speakers" in message(lambda: corpus(fsdd, dev_speakers=("cy",)))
