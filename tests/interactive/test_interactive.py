"""Figures that move: self-contained, safe for every text, and stepping changes what is shown."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from browser import Browser

from s2sjax import interactive
from s2sjax.errors import UserError
from s2sjax.evaluate.prediction.attention_heads import AttentionHeads
from s2sjax.interactive import Convolution, Recurrence, SelfAttention

HACK = "</script><img src=x onerror=hacked=1>"
SOURCE, TARGET = [f"a{HACK}", "שלום", "'\"&<b>"], ["🙂", "b", "<eos>"]
WEIGHTS = np.full((3, 3), 1 / 3)


def picture(number: int):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(1, 1))
    axes.plot([0, number])
    plt.close(figure)
    return figure


FIGURES = {
    "decoding": lambda: interactive.decoding(SOURCE, TARGET, WEIGHTS, [[(HACK, 0.7), ("the", 0.2)]] * 3),
    "gates": lambda: interactive.gates(SOURCE, {f"forget{HACK}": np.eye(3), "candidate": -np.eye(3)}),
    "heads": lambda: interactive.heads(SOURCE, TARGET, np.stack([WEIGHTS, np.eye(3)])),
    "self-attention": lambda: interactive.heads(AttentionHeads(SOURCE, SOURCE, np.eye(3)[None, None], "encoder", [2])),
    "receptive_fields": lambda: interactive.receptive_fields(
        6, {f"rnn{HACK}": [Recurrence()], "cnn": [Convolution(3), Convolution(3, 2)], "self": [SelfAttention()]}
    ),
    "edit_distance": lambda: interactive.edit_distance(SOURCE, TARGET),
    "frames": lambda: interactive.frames([picture(1), picture(2)], [f"one{HACK}", "two"]),
}


class Elements(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_one_fragment_that_no_text_can_end(name):
    text = FIGURES[name]()._repr_html_()
    elements = Elements(text).found
    assert [tag for tag, _ in elements].count("script") == 1
    assert not any("onerror" in attributes for _, attributes in elements)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|innerHTML", text)
    assert len(text) < 40_000


@pytest.mark.parametrize("name", FIGURES)
def test_a_page_without_scripts_shows_the_result(name):
    before = FIGURES[name]()._repr_html_().partition("<script>")[0]
    assert "<img" in before if name == "frames" else re.search(r"<pre>\S", before)


def test_values_are_rounded_so_that_a_notebook_stays_small():
    text = interactive.heads(["a"] * 30, ["b"] * 30, np.random.default_rng(0).random((2, 4, 30, 30)))._repr_html_()
    assert len(text) < 60_000


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: interactive.decoding(["a"], ["b"], WEIGHTS), "3"),
        (lambda: interactive.gates(["a"], {"forget": np.ones((2, 3))}), "forget"),
        (lambda: interactive.edit_distance("a" * 50, "b"), "40"),
        (lambda: interactive.receptive_fields(100, [Recurrence()]), "40"),
        (lambda: interactive.frames([]), "figure"),
    ],
)
def test_a_mistake_is_named(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_the_distance_is_that_of_the_metric(tmp_path):
    text = interactive.edit_distance("monkey", "money")._repr_html_().partition("<script>")[0]
    assert re.search(r"\b1\b", text)
    assert (
        interactive.edit_distance("ab", "cd").save(tmp_path / "x.html").read_text(encoding="utf-8").count("<html") == 1
    )


@pytest.mark.slow
def test_in_a_browser_each_figure_steps_and_several_share_a_page(tmp_path):
    page = tmp_path / "all.html"
    body = "".join(FIGURES[name]()._repr_html_() for name in FIGURES)
    page.write_text(f"<!doctype html><meta charset='utf-8'><style>button{{display:none}}</style><body>{body}", "utf-8")
    hosts = "[...document.querySelectorAll('[data-s2sjax]')].map((host) => host.shadowRoot)"
    with Browser() as browser:
        browser.open(page.as_uri())
        assert browser.run(f"{hosts}.every(Boolean)") and browser.run(f"{hosts}.length") == len(FIGURES)
        films = f"{hosts}.filter((root) => root.querySelector('[aria-label=next]'))"
        assert browser.run(f"{films}.length") >= 4
        captions = f"{films}.map((root) => root.querySelector('.film').textContent)"
        before = browser.run(captions)
        browser.run(f"{films}.forEach((root) => root.querySelector('[aria-label=next]').click())")
        after = browser.run(captions)
        assert all(old != new for old, new in zip(before, after))
        # A style of the page does not reach the figure, and no text has become markup.
        assert browser.run(f"{films}.every((root) => root.querySelector('button').offsetWidth > 0)")
        assert browser.run("typeof hacked") == "undefined"
        assert not browser.errors
        assert all(address.startswith(("file:", "data:")) for address in browser.requests)
