"""Names of version 0.1 that have changed. Runs and experiment files with these names still open.

A module, a setting or a method that is found under its former name warns once, and says the new one.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import os
import sys
import warnings
from collections.abc import Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, FrameType, ModuleType
from typing import Any

# new package: former package: modules, with their new names if these have changed
_MOVED = {
    "core": {"core": "tokens>special_tokens"},
    "core.backend": {"core": "device precision>quantization products>matmul remat rows>batch_sharding"},
    "core.nn": {"core": "convolution dropout norms>normalization spelling>character_cnn pooling"},
    "core.attention": {
        "core": "local>local_window windowed>sliding_window kv_cache positions>position_encodings fused>decode_kernel "
        "short>short_sequence_kernel"
    },
    "core.recurrence": {"core": "cells regularization explain>gradient_analysis"},
    "core.losses": {"core": "sampled>sampled_softmax scheduled>scheduled_sampling masking>word_masking"},
    "core.chains": {"core": "ctc prefix_search>ctc_prefix_search ngram>ngram_language_model crf hmm kalman"},
    "core.search": {"core": "beams>beam_interface hypotheses constraints sampling ensemble continuous_batching top_k"},
    "core.signals": {"core": "features>mel_features augment>frame_augmentation pictures>image_augmentation"},
    "config": {"config": "memory>in_memory"},
    "config.models": {"config": "specs convolutional>convolutional_settings pair"},
    "layers": {"": "parameters", "models": "blocks>attention_pooling"},
    "models": {"models": "contract>encoder_decoder encoders>frame_encoder catalogue>named_models"},
    "models.families": {
        "models": "cho sutskever rnn>recurrent_parts gnmt transformer convs2s rctm dense ngrams>ngram_cnn identity"
    },
    "data": {"data": "remarks>data_notes"},
    "data.text": {"data": "segmentation>subword_sampling streams>text_streams"},
    "data.batching": {"data": "columns batches>batch_plan mixtures packing parts>target_subsets"},
    "data.corpora": {
        "data": "sources>readers synthetic tfds memory>memory_reader tables>text_files records>prepared_corpus"
    },
    "data.signals": {"data": "audio spoken>spoken_digits written>handwritten_digits"},
    "training": {
        "training": "state>train_state schedules>optimizers functions>optimizers programs>compiled_steps "
        "progress>run_log hosts>multihost memory>device_memory settings>jax_settings"
    },
    "training.checkpoints": {"training": "damage>integrity fingerprints reading>fast_reader transfer"},
    "evaluate.prediction": {
        "evaluate": "decoding>translator generation>text_generator batched>batched_apply few_shapes "
        "mbr>minimum_bayes_risk search_words>word_constraints notes>line_notes dev_loss>heldout_loss "
        "counter>progress_listener perplexity"
    },
    "evaluate.metrics": {"evaluate": "edit>edit_distance significance"},
    "evaluate.figures": {
        "evaluate": "style curves>logged_metrics trees>search_trees search_nodes>search_tree_layout "
        "share_figure>share_curves"
    },
    "align": {"align": "attention>attention_links models>ibm_models files>link_files"},
    "tasks": {"tasks": "generation>text_generation"},
    "tasks.classification": {
        "config": "labels>settings",
        "data": "labels>labelled_examples",
        "models": "classifier",
        "evaluate": "labels>label_metrics label_figures",
    },
    "tasks.tagging": {
        "config": "tagging>settings",
        "data": "tagged>tagged_sentences",
        "models": "tagger",
        "evaluate": "tags>tag_metrics tag_figure",
    },
    "tasks.language_model": {"config": "language>settings", "models": "language_model>language_models"},
    "tasks.pretraining": {"config": "pretraining>settings", "data": "paragraphs", "models": "bert"},
    "tasks.recognition": {"models": "recognizer", "data": "label_models>label_model", "evaluate": "spikes"},
    "tasks.transcription": {"models": "listener", "evaluate": "time_figure"},
    "tasks.captioning": {
        "data": "pictures>captioned_pictures",
        "models": "pictures>picture_grid",
        "evaluate": "picture_figure",
    },
    "report": {"report": "examples>scored_outputs"},
    "runs": {"": "run folder lock code>stored_code evaluations comparison experiment_file dev_evaluation"},
    "cli": {"": "commands lines>standard_input startup>start_jax launch doctor fields>overrides"},
    "": {"": "addresses>files"},
}


def _modules() -> dict[str, str]:
    found = {}
    for package, former in _MOVED.items():
        for old, modules in former.items():
            for module in modules.split():
                name, _, renamed = module.partition(">")
                found[_dotted(old, name)] = _dotted(package, renamed or name)
    return found


def _dotted(*parts: str) -> str:
    return ".".join(filter(None, ("s2sjax", *parts)))


MODULES = _modules()
"""former name of each module that has moved -> its name now"""

KINDS = {
    **{
        name: f"s2sjax.tasks.{task}:{name}"
        for task, names in {
            "classification": "LabelData LabelEvaluate LabelModel LabelledFrames LabelledText",
            "tagging": "TagData TagEvaluate TaggedFiles TaggerModel",
            "language_model": "Continuation PerplexityEvaluate RecurrentLM TransformerLM",
            "pretraining": "BertEvaluate BertModel Paragraphs",
        }.items()
        for name in names.split()
    },
    "s2sjax.tasks.recognition:LabelEvaluate": "s2sjax.tasks.recognition:RecognitionEvaluate",
}
"""former `kind` in config.json -> its kind now, for settings classes that have moved"""

NAMES = {"s2sjax.evaluate.metrics": {"Result": "MetricResult"}}
"""package -> former name -> name now, for classes and functions of the package and of its modules"""

FIELDS = {
    "beam": "beam_size",
    "penalty": "length_penalty",
    "no_repeat": "no_repeat_ngram_size",
    "repetition": "repetition_penalty",
    "without": "forbidden_words",
    "containing": "required_words",
    "clip": "clip_norm",
    "warmup": "warmup_steps",
    "keep": "max_to_keep",
    "micro_batches": "grad_accum_steps",
    "tokens": "batch_tokens",
    "rows": "batch_size",
    "lines": "dev_examples",
    "line": "target_unit",
    "embedding": "embedding_size",
    "attention": "attention_size",
    "variational": "variational_dropout",
    "initial": "recurrent_init",
}
"""fields of settings that have been renamed, in the classes that have a field of the new name"""


def field(name: str, fields: Collection[str]) -> str:
    """The name of a field among those of a class: `name` itself, or what it is called now."""
    return FIELDS[name] if name not in fields and FIELDS.get(name) in fields else name


def warn_field(owner: str, name: str, now: str) -> None:
    _warn(f"{owner}.{name} is now {owner}.{now}")


def attribute(settings: Any, name: str) -> Any:
    """`__getattr__` of settings: reads a field by its former name."""
    owner, now = type(settings).__name__, FIELDS.get(name)
    if now is not None and now in vars(settings):
        warn_field(owner, name, now)
        return vars(settings)[now]
    raise AttributeError(f"{owner!r} object has no attribute {name!r}", name=name, obj=settings)


def add_present_names(cls: type, fields: Collection[str]) -> None:
    """Lets s2sjax read the fields of a user's class that have former names."""
    for old, new in FIELDS.items():
        if old in fields and new not in fields:
            setattr(cls, new, property(operator.attrgetter(old)))


def add_present_method(cls: type, former: str, now: str) -> None:
    """Lets s2sjax call a method of a user's class, or of a class below it, that has its former name."""
    kinds = [kind for kind in cls.__mro__ if callable(vars(kind).get(former, vars(kind).get(now)))]
    if not any(former in vars(kind) and now not in vars(kind) for kind in kinds):
        return
    for kind in kinds:
        if now in vars(kind):
            setattr(kind, former, vars(kind)[now])  # for `super().former()`
            continue
        setattr(kind, now, vars(kind)[former])
        code = inspect.unwrap(vars(kind)[former]).__code__
        message = f"{kind.__name__}.{former} is now {kind.__name__}.{now}"
        warnings.warn_explicit(message, FutureWarning, code.co_filename, code.co_firstlineno)


def kind(name: str) -> str:
    """A `kind` of config.json by its name now."""
    module, colon, rest = KINDS.get(name, name).partition(":")
    return f"{MODULES.get(module, module)}{colon}{rest}"


def setting(name: str) -> Any:
    """A settings class that was in `s2sjax.config`, for `config.__getattr__`."""
    if name not in KINDS:
        raise AttributeError(f"module 's2sjax.config' has no attribute {name!r}")
    module, _, name = KINDS[name].partition(":")
    _warn(f"config.{name} is now {module}.{name}")
    return getattr(importlib.import_module(module), name)


def star(public: Collection[str]) -> list[str]:
    """Names for `from s2sjax.config import *`: the public ones, and former ones that the importing file mentions."""
    mentioned = _mentioned(_user_frame().f_code)
    return [*(name for name in public if not name.startswith("_")), *(name for name in KINDS if name in mentioned)]


def _mentioned(code: CodeType) -> set[str]:
    """The names in a module's code, and in the functions that it defines."""
    inner = (_mentioned(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


def name_in(module: str, name: str) -> Any:
    """What has been renamed in a module, for its `__getattr__`."""
    now = next((NAMES[package].get(name) for package in NAMES if f"{module}.".startswith(f"{package}.")), None)
    if now is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    _warn(f"{module}.{name} is now {module}.{now}")
    return getattr(sys.modules[module], now)


class _Finder(MetaPathFinder, Loader):
    """Imports a module by its former name. It comes last, after the modules that exist."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        former = module.__name__
        _warn(f"{former} is now {MODULES[former]}")
        sys.modules[former] = importlib.import_module(MODULES[former])  # what `import` then returns


def _warn(message: str) -> None:
    """Warns at the line of the user's file that has the former name."""
    frame = _user_frame()
    warnings.warn_explicit(message, FutureWarning, frame.f_code.co_filename, frame.f_lineno)


def _user_frame() -> FrameType:
    """The innermost frame outside s2sjax."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith((os.path.dirname(__file__) + os.sep, "<frozen")):
        frame = frame.f_back
    return frame


def install() -> None:
    """Lets former names be imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
