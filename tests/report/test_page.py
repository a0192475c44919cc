"""The page is one file, makes no requests, and shows text from data as text."""

import json
import re
from importlib import resources

import pytest

from s2sjax.report import page

MARKUP = "</script><script>hacked=1</script><!--<img src=x onerror=hacked=1> & \u2028 \ud800 ]]>"


def test_values_in_a_script_element_cannot_end_it():
    text = page.escaped_json({MARKUP: [MARKUP, None, 1.5]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert text.encode("utf-8")
    assert json.loads(text) == {MARKUP: [MARKUP, None, 1.5]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.escaped_json(float("nan"))


@pytest.mark.parametrize("scripts", [page.REPORT, page.SWEEP, page.LIVE], ids=["report", "sweep", "live"])
def test_markup_in_values_and_title_adds_no_element(scripts):
    plain, hostile = (page.render(text, {"text": text}, scripts) for text in ("text", MARKUP))
    tags = lambda document: re.findall(r"<[/!a-zA-Z][^>\s]*", document)
    assert tags(plain) == tags(hostile)
    assert "hacked" in hostile


@pytest.mark.parametrize("scripts", [page.REPORT, page.SWEEP, page.LIVE], ids=["report", "sweep", "live"])
def test_the_policy_allows_this_program_and_nothing_else(scripts):
    policy = page.policy(scripts)
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert ("connect-src 'self'" in policy) == (scripts == page.LIVE)
    document = page.render("", {}, scripts)
    assert f'content="{policy}"' in document and f"<script>{page.program(scripts)}</script>" in document
    assert "</script" not in page.program(scripts)


def test_the_program_never_parses_text_as_markup_and_contains_no_address():
    packages = ("s2sjax.report", "s2sjax.interactive")
    for file in (file for package in packages for file in resources.files(package).joinpath("static").iterdir()):
        if file.name.endswith((".js", ".css")):
            text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            for word in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "Function(",
                "//www",
            ):
                assert word not in text, f"{file.name}: {word}"
            assert not re.search(r"https?://|url\(|@import", text), file.name
