"""Whisper against what transformers computes: features, logits, and what it writes; and the way of a user."""

import json
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop.folders import change_tensors
from pretrained_folders import same_files
from references.whisper_cases import RATE, SHOWN, recordings

from s2sjax import config, models
from s2sjax.config import Train
from s2sjax.data.signals.spoken_text import SpokenText, WhisperMel
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.errors import UserError
from s2sjax.interop import safetensors_files
from s2sjax.interop.load_whisper import load_whisper
from s2sjax.runs import pretrained
from s2sjax.runs.run import load, show, train
from s2sjax.tasks import Recognition, Transcription
from s2sjax.tasks.recognition.settings import Augment, LabelledSignals
from s2sjax.tasks.transcription import SpellerModel
from s2sjax.tasks.transcription.convolutions import Convolutions
from s2sjax.training.checkpoints.fingerprints import named_leaves

FILES = (
    "config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json",
    "model.safetensors",
)  # fmt: skip
NAMES = ("multilingual", "english", "learned-bfloat16")
CASES = {
    ("multilingual", "en-transcribe"): {},
    ("multilingual", "de-translate"): {"source_language": "de", "target_language": "en"},
    ("english", ""): {},
    ("learned-bfloat16", "de-translate"): {"source_language": "<|de|>", "target_language": "en"},
}
AUGMENT = Augment(time_masks=1, time_width=8)
SECOND = WhisperMel(filters=20, seconds=1)


@cache
def stored() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "references" / "whisper.npz") as file:
        return {name: file[name] for name in file.files}


def write_folder(name: str, folder: Path) -> Path:
    """Writes the files that transformers saved."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        (folder / file).write_bytes(stored()[f"model/{name}/{file}"].tobytes())
    return folder


def change(folder: Path, file: str, **entries) -> Path:
    """Changes entries of a JSON file in place."""
    page = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(page | entries))
    return folder


def write_recordings(folder: Path) -> list[str]:
    """Writes the recordings of the references, and returns their paths."""
    soundfile = pytest.importorskip("soundfile")
    paths = []
    for name, samples in recordings().items():
        paths.append(str(folder / f"{name}.wav"))
        soundfile.write(paths[-1], samples, RATE, subtype="FLOAT")
    return paths


def message(function, *arguments, **options) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mels", [80, 128])
def test_features_are_those_of_transformers(mels):
    settings = WhisperMel(filters=mels)
    for name, samples in recordings().items() if mels == 80 else [("chirp", recordings()["chirp"])]:
        found = settings.log_mels(samples)
        assert found.shape == (3000, mels)
        np.testing.assert_allclose(found[:SHOWN], stored()[f"features/{mels}/{name}"], atol=1e-4, err_msg=name)
        np.testing.assert_allclose(found[-1], stored()[f"features/{mels}/{name}/silence"][0], atol=1e-4)


def test_windows_have_their_own_features():
    samples = np.concatenate([recordings()["chirp"], 5 * recordings()["noise"]])
    found = SECOND.log_mels(samples)
    np.testing.assert_allclose(found[:100], SECOND.log_mels(recordings()["chirp"]), atol=1e-5)
    np.testing.assert_allclose(found[100:], SECOND.log_mels(5 * recordings()["noise"]), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name, tmp_path):
    folder = write_folder(name, tmp_path)
    vocabulary = PretrainedVocabulary.from_folder(folder, "target")
    found = load_whisper(folder, vocabulary.foreign)
    positions = found.settings.encoder.positions
    assert positions == ("learned" if name.startswith("learned") else "sinusoidal")
    sounds = [*recordings().values()][1:3]
    frames = np.stack([SECOND.log_mels(samples) for samples in sounds])
    ours = np.argsort(vocabulary.foreign)
    read = ours[stored()[f"model/{name}/inputs"][1:3].astype(int)]
    module = models.build(found.settings, 0, vocabulary.size, source_frontend=Convolutions(20, 16))
    target = np.concatenate([read[:, 1:], np.full((2, 1), 5)], axis=1)  # the last is not read
    source = frames, np.full(2, 100)
    shapes = jax.tree.map(jnp.shape, module.init(jax.random.key(0), source, target)["params"])
    assert jax.tree.map(jnp.shape, found.params) == shapes
    logits = jax.jit(module.apply)({"params": found.params}, source, target)
    expected = stored()[f"model/{name}/logits"][..., vocabulary.foreign]
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_texts_have_the_ids_of_the_tokenizer(tmp_path):
    vocabulary = PretrainedVocabulary.from_folder(write_folder("multilingual", tmp_path), "target", "de")
    begin = ["<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    assert vocabulary.pieces(vocabulary.begin) == begin and vocabulary.forced_begin == vocabulary.begin
    plain, ids, decoded = (json.loads(str(stored()[f"text/{name}"])) for name in ("plain", "ids", "decoded"))
    for text, theirs, again in zip(plain, ids, decoded):
        mine = vocabulary.encode(text)
        assert vocabulary.foreign[mine[3:]].tolist() == theirs, text
        assert vocabulary.decode(mine) == again
    for text in ("<|endoftext|>", "<|0.02|> <|en|>"):  # text that spells a special token is text
        assert vocabulary.decode(vocabulary.encode(text)) == text
    assert np.array_equal(np.sort(vocabulary.foreign), np.arange(315))
    vocabulary.save(tmp_path, "target")
    assert PretrainedVocabulary.load(tmp_path, "target").encode("a") == vocabulary.encode("a")


@pytest.mark.parametrize("name, case", CASES)
def test_transcripts_are_those_of_generate(name, case, tmp_path):
    """The whole way of a user: import, open, and decode recordings by their paths, long and short ones."""
    lines: list[str] = []
    folder = write_folder(name, tmp_path / "folder")
    pretrained.import_pretrained(folder, tmp_path / "run", say=lines.append, **CASES[name, case])
    task = load(tmp_path / "run").task
    marks = {"en-transcribe": "<|en|> <|transcribe|> ", "de-translate": "<|de|> <|translate|> ", "": ""}[case]
    assert lines[1] == f"  every output begins with {marks}<|notimestamps|>"
    params = load(tmp_path / "run").params()[0]
    examples = [task.example_of(path, "line 1") for path in write_recordings(tmp_path)]
    ids = [best[0].ids for best in task.generator().decode(params, task.columns_with(examples, None))]
    expected = stored()[f"model/{name}/written/{case}"].astype(int)
    begin = len(task.target.begin)
    for mine, theirs in zip(ids, expected):
        end = task.target.foreign[2]
        until = [*theirs.tolist(), end].index(end)
        assert task.target.foreign[mine[begin:-1]].tolist() == theirs[:until].tolist()
        assert mine[-1] == 2 and tuple(mine[:begin]) == task.target.begin
    assert 0 < min(len(mine) for mine in ids) < max(len(mine) for mine in ids)  # some end early


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_original(name, tmp_path):
    """Every file, byte for byte, with a repeated embedding too."""
    folder = write_folder(name, tmp_path / "folder")
    if name == "english":
        change_tensors(folder, lambda tensors: tensors.update({OUTPUT: tensors[TABLE].copy()}))
    run = pretrained.import_pretrained(folder, tmp_path / "run", say=lambda line: None)
    same_files(folder, pretrained.export(load(run.folder), tmp_path / "out"))
    half = safetensors_files.read(pretrained.export(run, tmp_path / "half", dtype="float16"))
    assert {half.dtype(each) for each in half} == {"float16"}


OUTPUT, TABLE = "proj_out.weight", "model.decoder.embed_tokens.weight"


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A run of the model of many languages, the folder of the recordings, and their paths."""
    folder = tmp_path_factory.mktemp("whisper")
    paths = write_recordings(folder)
    lines = [f"{Path(path).name}\tGuten Tag {number}" for number, path in enumerate(paths)]
    (folder / "list.tsv").write_text("\n".join(lines) + "\n")
    pretrained.import_pretrained(
        write_folder("multilingual", folder / "hf"), folder / "run", test=[folder / "list.tsv"], say=lambda line: None
    )
    return load(folder / "run"), folder, paths


def test_a_long_recording_is_decoded_in_windows(imported):
    """A recording of 2.5 windows has the words of its three parts."""
    soundfile = pytest.importorskip("soundfile")
    run, folder, _ = imported
    samples = np.concatenate([recordings()["chirp"], recordings()["tone"], recordings()["noise"]])
    whole, parts = str(folder / "whole.wav"), [str(folder / f"part{number}.wav") for number in range(3)]
    soundfile.write(whole, samples, RATE, subtype="FLOAT")
    for number, part in enumerate(parts):
        soundfile.write(part, samples[number * RATE : (number + 1) * RATE], RATE, subtype="FLOAT")
    found, *each = [run.decode(path) for path in (whole, *parts)]
    assert found.labels == tuple(word for one in each for word in one.labels)
    assert found.score == pytest.approx(np.mean([one.score for one in each]))
    assert len({one.labels for one in each}) > 1
    content = Path(whole).read_bytes()
    sent = run.task.example_from(content, "file 1")
    np.testing.assert_array_equal(sent.frames, run.task.example_of(whole, "line 1").frames)
    assert run.task.columns([sent]).lengths.max() == 300  # training leaves out an example that is longer than a window


def test_an_imported_run_is_evaluated_on_a_list(imported):
    run, _, paths = imported
    examples = run.task.examples("test")
    assert [example.labels for example in examples][1] == ("Guten", "Tag", "1")
    outputs = run.task.predictor()(run.params()[0], examples)
    assert [output.labels for output in outputs] == [run.decode(path).labels for path in paths]
    assert run.task.metrics(examples, outputs)["ler"].value > 0


def fine_tuned(folder: Path, **options) -> Transcription:
    corpus = SpokenText(train=str(folder / "list.tsv"), test=str(folder / "list.tsv"), audio=SECOND)
    data = LabelledSignals(corpus, AUGMENT, ngram=0, buckets=((100, 40),), batch_tokens=700)
    train = Train(steps=40, learning_rate=3e-3, warmup_steps=5, evaluate_every=0, save_every=40, log_every=20)
    return Transcription("fine", data=data, train=train, **{"init": str(folder / "run")} | options)


@pytest.mark.slow
def test_an_imported_run_is_fine_tuned(imported, tmp_path, monkeypatch, capsys):
    """All parameters and the vocabulary are taken, and training lowers the loss."""
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])
    before, folder, _ = imported
    trained, _ = train(fine_tuned(folder), tmp_path / "fine")
    assert trained.experiment.model == before.experiment.model and trained.task.target.begin == before.task.target.begin
    loss, examples = jax.jit(before.task.evaluation_loss()), trained.task.examples("train")
    batch = before.task.columns(examples).batch(np.arange(5), (100, 40))
    first, last = (float(np.divide(*loss(run.params()[0], batch)["loss"])) for run in (before, trained))
    assert "46 of 46 parameters taken" in capsys.readouterr().out and last < 0.8 * first
    assert [path.name for path in show(trained) if path.name == "attention.png"]
    out = pretrained.export(trained, tmp_path / "out")
    again = pretrained.import_pretrained(out, tmp_path / "again", say=lambda line: None)
    kept = lambda path: not path.endswith("key_value/bias")  # a bias of keys changes nothing, and is not exported
    found, expected = (dict(named_leaves(run.params()[0])) for run in (again, trained))
    for path in filter(kept, expected):
        np.testing.assert_array_equal(found[path], expected[path])
    total, weight = loss(again.params()[0], batch)["loss"]
    np.testing.assert_allclose(total / weight, last, atol=1e-5)


def test_what_cannot_work_is_refused(imported):
    run, folder, _ = imported
    assert "whose vocabulary comes with a pretrained model" in message(run.task.learn_assets, [])
    short = config.replace(run.experiment.data, buckets=((64, 40),))
    wrong = message(lambda: config.replace(run.experiment, data=short))
    assert "set data.buckets to ((100, 40),)" in wrong
    wider = config.replace(run.experiment.data, corpus=SpokenText(audio=WhisperMel(filters=80, seconds=1)))
    other = run.task.replace(config.replace(run.experiment, data=wider))
    assert "reads 20 features, and data.corpus has 80" in message(other.adopt_assets, [], run.task.assets)
    assert "no pretrained vocabulary" in message(run.task.adopt_assets, [], {})
    spoken = Recognition("x", data=LabelledSignals(SpokenText()))
    assert "use transcription" in message(spoken.task().learn_assets, [])
    assert "leave out model.stack" in message(lambda: SpellerModel(convolve=True, stack=2))
    assert "ctranslate2 is for translation: use hf" in message(pretrained.export, run, folder / "out", "ctranslate2")
    for fields, expected in (
        ({"window_samples": 401}, "must be even"), ({"high": 9000.0}, "at most half of the rate"),
        ({"hop_samples": 7}, "a multiple of hop_samples"), ({"seconds": 0}, "seconds"),
    ):  # fmt: skip
        assert expected in message(lambda fields=fields: WhisperMel(**fields))


def test_languages_that_a_model_lacks_are_refused(tmp_path):
    many, one = (write_folder(name, tmp_path / name) for name in ("multilingual", "english"))
    read = lambda folder, *languages: message(PretrainedVocabulary.from_folder, folder, "target", *languages)
    assert read(many, "xx").endswith("the model has no language 'xx': it knows en, de, yue")
    assert "did you mean yue?" in read(many, "yu")
    assert read(many, "de", "yue").endswith("or English: leave out the target language 'yue'")
    assert read(one, "de").endswith("the model knows English alone: leave out the language 'de'")
    change(many, "generation_config.json", suppress_tokens=[999])
    assert "suppress_tokens of generation_config.json has what is no id" in read(many)


@pytest.mark.parametrize(
    "file, entries, expected",
    [
        ("preprocessor_config.json", {"feature_size": 80}, "has 80 features, and the model of config.json reads 20"),
        ("preprocessor_config.json", {"chunk_length": 30}, "has 3000 frames, and the model of config.json reads 100"),
        ("preprocessor_config.json", {"hop_length": None}, "hop_length is None, and must be a whole number"),
        ("preprocessor_config.json", {"dither": 0.1}, "dither 0.1 is not among the features of s2sjax"),
        ("config.json", {"num_mel_bins": 80}, "has shape [16, 20, 3], but by config.json it should have [16, 80, 3]"),
        ("config.json", {"decoder_layers": 4}, "tensor model.decoder.layers.3.self_attn.q_proj.weight is missing"),
        ("config.json", {"decoder_layers": 2}, "model.decoder.layers.2.encoder_attn.k_proj.weight has no place"),
        ("config.json", {"max_source_positions": 49}, "embed_positions.weight has shape [50, 16]"),
        ("config.json", {"decoder_start_token_id": 3}, "decoder_start_token_id is 3, and that of the tokenizer 292"),
        ("config.json", {"vocab_size": 316}, "embed_tokens.weight has shape [315, 16]"),
        ("config.json", {"activation_function": "sine"}, "'sine' is none of"),
    ],
)
def test_folders_that_contradict_themselves_are_refused(file, entries, expected, tmp_path):
    folder = change(write_folder("multilingual", tmp_path / "hf"), file, **entries)
    assert expected in message(pretrained.import_pretrained, folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_of_generate_are_needed(tmp_path):
    folder = write_folder("multilingual", tmp_path / "hf")
    (folder / "generation_config.json").unlink()
    assert "generation_config.json is missing: copy it" in message(
        pretrained.import_pretrained, folder, tmp_path / "run"
    )


def test_an_output_layer_of_its_own_is_refused(tmp_path):
    folder = write_folder("multilingual", tmp_path / "hf")
    found = safetensors_files.read(folder)
    tensors = {name: found[name] for name in found}
    del found
    table = tensors["model.decoder.embed_tokens.weight"]
    for other, expected in ((table, None), (table + 1, "a model whose output layer is not its embedding cannot")):
        (folder / "model.safetensors").unlink()
        safetensors_files.write(folder, tensors | {"proj_out.weight": other})
        foreign = PretrainedVocabulary.from_folder(folder, "target").foreign
        if expected is None:
            assert "proj_out" not in load_whisper(folder, foreign).params
        else:
            assert expected in message(load_whisper, folder, foreign)


def test_the_settings_of_features_can_be_in_another_file(tmp_path):
    """transformers 5 writes them into processor_config.json if it saves the processor as a whole."""
    folder = write_folder("english", tmp_path / "hf")
    features = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    assert "preprocessor_config.json is missing" in message(pretrained.import_pretrained, folder, tmp_path / "run")
    (folder / "processor_config.json").write_text("{}")
    assert "has no feature_extractor" in message(pretrained.import_pretrained, folder, tmp_path / "run")
    (folder / "processor_config.json").write_text(json.dumps({"feature_extractor": features}))
    run = pretrained.import_pretrained(folder, tmp_path / "run", say=lambda line: None)
    assert run.experiment.data.corpus.audio == SECOND
