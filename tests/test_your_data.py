"""docs/your-data.md, typed by a user: every program trains, and prints what the page shows."""

import re

import jax
import zoo
from test_docs import DOCS

from s2sjax import config, tasks

PAGE = (DOCS / "your-data.md").read_text(encoding="utf-8")
PROGRAMS = {name: (program, shown) for name, program, shown in re.findall(
    r"```python\n# (\w+)\.py\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL
)}  # fmt: skip
NAMES = {
    "pairs": "Translation", "labels": "Classification", "tags": "Tagging", "text": "LanguageModel",
    "series": "Regression", "recordings": "Recognition", "pictures": "Captioning",
}  # fmt: skip


def test_there_is_a_program_for_each_kind_of_data():
    assert list(PROGRAMS) == list(NAMES)
    assert {*NAMES.values()} == {kind.__name__ for kind in tasks.TASKS.values()} - {"Pretraining", "Transcription"}


def without_numbers(text: str) -> list[str]:
    return [re.sub(r"[\d.]+", "#", line) for line in text.splitlines()]


@zoo.each(PROGRAMS, quick=("text",), rare=("pairs", "tags", "pictures", "recordings"))
def test_a_program_runs_and_prints_what_the_page_shows(name, tmp_path, monkeypatch, capsys):
    """With two steps, on one device; so the scores are other ones."""
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)
    few = dict.fromkeys(config.SIZED_BY_DATA, 2)
    monkeypatch.setattr(config.Train, "resolve_defaults", lambda train, epoch: config.replace(train, **few))
    monkeypatch.chdir(tmp_path)
    program, shown = PROGRAMS[name]
    exec(compile(program, f"{name}.py", "exec"), {})
    printed = without_numbers(capsys.readouterr().out)
    first, *scores = [line for line in without_numbers(shown) if re.match(r"test|.* on # ", line)]
    assert scores and f"tasks.{NAMES[name]}(" in program
    at = printed.index(first)
    assert printed[at : at + 1 + len(scores)] == [first, *scores]
    assert len(printed) - at == len(shown.splitlines()), "and as many lines"
