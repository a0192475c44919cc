"""The importer of Whisper, a run of transcription that reads recordings in windows of 30 seconds, and its export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from s2sjax import config, interop
from s2sjax.config import require
from s2sjax.data.assets import Statistics
from s2sjax.data.signals.spoken_text import SpokenText, WhisperMel
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.interop import generation
from s2sjax.interop.dump_whisper import dump_whisper
from s2sjax.interop.load_whisper import ImportedWhisper, load_whisper
from s2sjax.interop.safetensors_files import read_json
from s2sjax.runs.pretrained import original
from s2sjax.runs.pretrained.importer import Exported, Imported, Options
from s2sjax.runs.run import Run
from s2sjax.tasks.recognition.settings import LabelledSignals, RecognitionEvaluate
from s2sjax.tasks.transcription import SpellerModel, Transcription

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
"""the settings of the features; since transformers 5 they can be an entry of the second file"""
GENERATION = "generation_config.json"
ROWS = 8
"""number of windows that a batch has by default: the attention of one takes as much memory as that of long documents"""

USE = "transcribe recordings with s2sjax decode {run}, which reads their paths"


def read(folder: Path, name: str, options: Options) -> Imported:
    """Reads a folder as a run of transcription with this name."""
    require(
        len(options.test) <= 1,
        f"--test has {len(options.test)} files, and a Whisper is evaluated on one list of recordings: name one",
    )
    require(
        (folder / GENERATION).is_file(),
        f"{GENERATION} is missing: copy it from the original model, whose languages and outputs it describes",
    )
    vocabulary = PretrainedVocabulary.from_folder(folder, "target", options.source_language, options.target_language)
    found = load_whisper(folder, vocabulary.foreign)
    places = found.settings.decoder.max_positions or 0
    search, remarks = generation.search_settings(folder, found.settings.decoder, forced_begin=True)  # type: ignore[arg-type]
    most = min(int(generation.read_settings(folder).get("max_length") or places), places)
    search = config.replace(search, max_length=most)
    experiment = Transcription(
        name,
        data=LabelledSignals(
            SpokenText(test=options.test[0] if options.test else "", audio=_features(folder, found)),
            ngram=0,
            buckets=((found.frames, most),),
            batch_tokens=ROWS * (found.frames + most),
        ),
        model=SpellerModel(found.settings, convolve=True),
        search=search,
        evaluate=RecognitionEvaluate(batch_size=ROWS),
        train=config.Train(steps=1),
    )
    unscaled = Statistics((0.0,) * found.features, (1.0,) * found.features)
    spoken = " ".join(vocabulary.pieces(vocabulary.begin))
    remarks = [f"every output begins with {spoken}", *remarks]
    assets = {"features": unscaled, "target": vocabulary}
    return Imported(experiment, assets, found.params, found.dtype, found.origin, remarks, USE)


def _features(folder: Path, found: ImportedWhisper) -> WhisperMel:
    """The features of preprocessor_config.json, which must be those that the model reads."""
    page: dict[str, Any] = {
        "sampling_rate": 16000, "n_fft": 400, "hop_length": 160, "feature_size": 80, "chunk_length": 30,
    }  # fmt: skip
    given = _preprocessor(folder)
    for entry, usual in page.items():
        page[entry] = value = given.get(entry, usual)
        require(
            type(value) is int and value > 0,
            f"{PREPROCESSOR}: {entry} is {value!r}, and must be a whole number: such a model cannot be imported",
        )
    for entry, usual in (("dither", 0.0), ("padding_value", 0.0), ("do_normalize", False)):
        require(
            given.get(entry, usual) in (usual, None),
            f"{PREPROCESSOR}: {entry} {given.get(entry)!r} is not among the features of s2sjax: set it to {usual}",
        )
    audio = WhisperMel(
        page["sampling_rate"], page["n_fft"], page["hop_length"], page["feature_size"], seconds=page["chunk_length"]
    )
    for what, one, other in (("features", audio.filters, found.features), ("frames", audio.frames, found.frames)):
        require(
            one == other,
            f"{PREPROCESSOR} has {one} {what}, and the model of config.json reads {other}: they are of two models",
        )
    return audio


def _preprocessor(folder: Path) -> dict[str, Any]:
    """The settings of the features."""
    if (folder / PROCESSOR).is_file() and not (folder / PREPROCESSOR).is_file():
        found = read_json(folder / PROCESSOR).get("feature_extractor")
        require(isinstance(found, dict), f"{PROCESSOR} has no feature_extractor: add {PREPROCESSOR} of the model")
        return found  # type: ignore[return-value]
    return read_json(folder / PREPROCESSOR)


def dump(run: Run, params: Any, origin: interop.Origin | None, dtype: str | None) -> Exported:
    """The entries of config.json and the tensors of a run. Raises a UserError for a model that was not imported."""
    model = run.experiment.model
    original.check(origin, run.task.assets.get("target"), run.folder)
    require(
        origin is not None and origin.model_type == "whisper" and isinstance(model.network, config.Pair),
        f"{run.folder} does not start from an imported Whisper: no format of transformers can hold it",
    )
    assert origin is not None
    return Exported(*dump_whisper(model.network, params, run.task.assets["target"].foreign, origin, dtype))
