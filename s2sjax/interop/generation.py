"""The settings of transformers' `generate`, in generation_config.json, as search settings of s2sjax.

docs/search.md has the correspondence, and what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s2sjax import config
from s2sjax.config import require
from s2sjax.interop.safetensors_files import read_json

STOPS: Mapping[Any, str] = {True: "first", False: "heuristic", "never": "bound"}
"""early_stopping of transformers -> search.stop"""
IGNORED: Mapping[str, tuple[Any, str]] = {
    "do_sample": (False, "set search.sampling.count for random outputs"),
    "repetition_penalty": (1.0, "only beam search has it as transformers has"),
    "encoder_no_repeat_ngram_size": (0, "s2sjax has no such constraint"),
    "num_beam_groups": (1, "set search.groups"),
    "bad_words_ids": (None, "set search.forbidden_words"),
    "force_words_ids": (None, "set search.required_words"),
    "exponential_decay_length_penalty": (None, "s2sjax has no such penalty"),
}
"""settings that are not taken: their usual value, and what to do instead"""


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of `generate` of a folder: generation_config.json, or for older folders those in config.json."""
    path = folder / "generation_config.json"
    return read_json(path if path.is_file() else folder / "config.json")


def search_settings(folder: Path, model: config.Transformer, forced_begin: bool) -> tuple[config.Search, list[str]]:
    """The search settings of a folder, and lines on what was not taken.

    forced_begin: whether every output begins with a forced token.
    """
    page = read_settings(folder)
    check(page)
    beams = int(page.get("num_beams") or 1)
    penalty = float(1.0 if page.get("length_penalty") is None else page["length_penalty"])
    fields: dict[str, Any] = {"beam_size": beams, "length_penalty": "power", "alpha": penalty}
    if penalty in (0.0, 1.0):
        fields = {"beam_size": beams, "length_penalty": "mean" if penalty else "none"}
    if beams > 1:
        early = page.get("early_stopping") or False
        fields["stop"] = STOPS.get(early, "heuristic")
        fields["repetition_penalty"] = float(page.get("repetition_penalty") or 1.0)
    if forced_begin or page.get("forced_eos_token_id") is not None:
        fields["forced"] = "free"
    fields["no_repeat_ngram_size"] = int(page.get("no_repeat_ngram_size") or 0)
    fields["min_length"] = int(page.get("min_length") or 0)
    if page.get("min_new_tokens"):
        fields["min_length"] = int(page["min_new_tokens"]) + 1
    # Their maximum counts the token that starts the decoder; their minimum forbids <eos> before it, as ours.
    most, places = int(page.get("max_length") or 0) - 1, model.max_positions or 512
    if 20 < most < places - 1:  # otherwise it is the default of transformers, or no limit but the model's
        fields["max_length"] = most
    if page.get("max_new_tokens"):
        fields["max_length"] = int(page["max_new_tokens"])
    if page.get("bad_words_ids") == [[page.get("pad_token_id")]]:
        page = page | {"bad_words_ids": None}  # <pad> is never written
    remarks = [
        f"{name} {page[name]} of generate is not taken: {advice}"
        for name, (usual, advice) in IGNORED.items()
        if page.get(name, usual) not in (usual, None, []) and name not in fields
    ]
    return config.Search(**fields), remarks


def check(page: Mapping[str, Any]) -> None:
    """Raises a UserError for a setting of another type than transformers writes."""
    numbers = "num_beams", "length_penalty", "repetition_penalty", "no_repeat_ngram_size", "min_length", "max_length"
    for name in (*numbers, "min_new_tokens", "max_new_tokens", "temperature", "top_k", "top_p", "min_p"):
        value = page.get(name)
        require(
            value is None or (isinstance(value, int | float) and not isinstance(value, bool)),
            f"generation_config.json: {name} is {value!r}: it must be a number",
        )
    early = page.get("early_stopping")
    require(
        early is None or isinstance(early, bool) or early == "never",
        f'generation_config.json: early_stopping is {early!r}: it must be true, false or "never"',
    )
