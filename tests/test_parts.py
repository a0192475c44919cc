"""docs/parts.md: every program runs alone, and prints what the page shows."""

import re
from pathlib import Path

import pytest
import zoo

PAGE = (Path(__file__).parents[1] / "docs/parts.md").read_text(encoding="utf-8")
PARTS = {
    title: (program, shown)
    for title, program, shown in re.findall(r"^## (.*?)\n.*?```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.M | re.S)
}
NUMBER = re.compile(r"\d+\.\d*")


def test_every_section_has_a_program():
    assert list(PARTS) == re.findall("^## (.*)$", PAGE, re.M)


@zoo.each(PARTS, "title", quick=("Attention in your own code",))
def test_a_part_prints_what_the_page_shows(title, capsys):
    """Numbers may differ by rounding, which other devices do in another order."""
    program, shown = PARTS[title]
    exec(program, {})
    printed = capsys.readouterr().out
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    numbers = [list(map(float, NUMBER.findall(text))) for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.011)
