"""The pages in docs/ say what the code says."""

import re
from pathlib import Path

from s2sjax.core import search

DOCS = Path(__file__).parents[1] / "docs"


def words(text: str) -> list[str]:
    """Without blanks, line ends and the marks of code."""
    return re.sub(r"[`\s]+", " ", text.replace("`", "")).split()


def test_the_page_of_search_is_the_specification():
    assert search.__doc__ is not None
    specification = search.__doc__.split("-------------\n")[1].split("A model is seen as")[0]
    page = (DOCS / "search.md").read_text(encoding="utf-8")
    shown = page.split("V vocabulary.\n")[1].split("## One beam")[0]
    assert words(shown) == words(specification)


def test_every_link_of_a_page_leads_somewhere():
    pages = [DOCS.parent / "README.md", *DOCS.glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"
