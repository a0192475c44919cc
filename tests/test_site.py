"""The site that `make docs` builds: what its tools make of links and docstrings, and the built pages in a browser."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import Browser

ROOT = Path(__file__).parents[1]
SOURCES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml", "docs", "s2sjax", "experiments", "notebooks")


def tool(name: str, requires: str):
    """A file of docs/tools, which is no package."""
    pytest.importorskip(requires, reason="building the site needs the extra docs")
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/tools/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------- what goes in


def test_every_module_is_in_the_reference():
    """Of the packages that have a page; the page of s2sjax has the modules around runs."""
    named = {
        page.stem: re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        for page in (ROOT / "docs/api").glob("*.md")
    }
    for page in set(named) - {"index", "run"}:
        files = (ROOT / "s2sjax" / page).rglob("*.py")
        modules = {".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files if f.stem != "__init__"}
        assert modules and modules <= set(named[page]), f"docs/api/{page}.md"
    everything = [name for names in named.values() for name in names]
    assert len(everything) == len(set(everything))


@pytest.mark.parametrize(
    "link, expected",
    [
        ("[a](pod.md#resume)", "[a](pod.md#resume)"),
        ("[a](#resume)", "[a](#resume)"),
        ("[a](../README.md#commands)", "[a](index.md#commands)"),
        ("[a](../s2sjax/core/chains/hmm.py)", "[a](api/core.md#s2sjax.core.chains.hmm)"),
        ("[a](../s2sjax/tasks/__init__.py)", "[a](api/tasks.md#s2sjax.tasks)"),
        ("[a](../s2sjax/cli/main.py)", "[a](source/s2sjax/cli/main.py.md)"),
        ("[a](../experiments/g2p.py)", "[a](source/experiments/g2p.py.md)"),
        ("[a](../experiments/launch)", "`a`"),
        ("![a](attention.png)", "![a](attention.png)"),
        ("```sh run\n[a](none.md)\n```", "```sh\n[a](none.md)\n```"),
        ("[a](https://x.org/none.md)", "[a](https://x.org/none.md)"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(link, expected):
    assert tool("pages", "mkdocs").rewrite(link, "docs/search.md") == expected


def test_links_of_the_readme_and_of_the_reference_begin_elsewhere():
    pages = tool("pages", "mkdocs")
    assert pages.rewrite("[a](docs/pod.md) [b](CONTRIBUTING.md)", "README.md") == "[a](pod.md) [b](contributing.md)"
    assert pages.rewrite("[a](../pod.md)", "docs/api/core.md") == "[a](../pod.md)"


def test_a_link_to_a_file_that_does_not_exist_is_an_error():
    pages = tool("pages", "mkdocs")
    with pytest.raises(pages.PluginError, match=r"docs/pod.md: the link to \.\./s2sjax/none.py leads nowhere"):
        pages.rewrite("[a](../s2sjax/none.py)", "docs/pod.md")


@pytest.mark.parametrize(
    "docstring, expected",
    [
        ("ends with <eos> & W_x, [D, G*H] [B, G*H]", r"ends with &lt;eos&gt; &amp; W\_x, \[D, G\*H\] \[B, G\*H\]"),
        ("`a_b[<eos>]` and a *beam* of `x`", "`a_b[<eos>]` and a *beam* of `x`"),
        ("h = a\nc = b", "h = a  \nc = b"),  # ended early: a line break
        ("x" * 95 + "\nfilled", "x" * 95 + "\nfilled"),  # there was no room for the next word
        ("Of:\n\n    h = a*b*c\n      + d\n\nEnd.", "Of:\n\n    h = a*b*c\n      + d\n\nEnd."),
        ("A:\n\n    class A:\n        b\n\n        c\n\nD", "A:\n\n    class A:\n        b\n\n        c\n\nD"),
        ("one  1\ntwo  2", "    one  1\n    two  2"),
        ("- one *a* is\n  b:\n      c  d\n  e\n- two", "-   one *a* is  \n    b:\n\n        c  d\n\n    e\n\n-   two"),
        ("See docs/python.md.", "See [docs/python.md](../python.md)."),
        (">>> f(a_b)\n1", "    >>> f(a_b)\n    1"),
    ],
)
def test_a_docstring_is_shown_as_it_was_written(docstring, expected):
    assert tool("docstrings", "griffe").markdown(docstring) == expected


# ------------------------------------------------------------------------------ what comes out


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """site/, if it is newer than all that it is made of, as after `make docs`; else a new one."""
    pytest.importorskip("mkdocs", reason="building the site needs the extra docs")
    index = ROOT / "site/search/search_index.js"  # which is written last
    files = [file for name in SOURCES for file in (ROOT / name, *(ROOT / name).rglob("*.*")) if file.is_file()]
    newest = max(file.stat().st_mtime for file in files if file.suffix != ".pyc")
    if index.exists() and index.stat().st_mtime > newest:
        return ROOT / "site"
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """What a page loads, where its links lead, and which places it has."""

    def __init__(self, file: Path):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a":
            self.links += [found["href"]] if "href" in found else []
        elif tag == "link" and found["rel"] in ("prev", "next", "canonical"):
            self.links.append(found["href"])
        else:
            self.loads += [found[name] for name in ("src", "href", "srcset", "data") if found.get(name)]


@pytest.mark.slow
def test_every_link_of_the_built_site_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site):
    pages = {file: Page(file) for file in site.rglob("*.html") if file.name != "404.html"}
    assert len(pages) > 100
    for file, page in pages.items():
        assert not [url for url in page.loads if urlsplit(url).scheme or url.startswith("//")], file
        for url in page.links + page.loads:
            parts = urlsplit(url)
            if parts.scheme:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            assert target.exists(), f"{file.name}: {url}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{file.name}: {url}"
    for file in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", file.read_text(encoding="utf-8")), file


@pytest.mark.slow
def test_the_site_is_searched_without_a_server_in_the_colours_of_the_reader(site):
    with Browser() as browser:
        for dark in (False, True, False):
            browser.resize(1280, dark=dark)
            browser.open((site / "index.html").as_uri())
            browser.wait_for(f"document.body.dataset.mdColorScheme === '{'slate' if dark else 'default'}'")
        browser.run("document.querySelector('.md-search__input').focus()")
        browser.wait_for("document.querySelector('.md-search-result__meta').textContent.includes('Type to start')")
        browser.call("Input.insertText", text="minimum Bayes risk")
        browser.press("ArrowRight")  # the page reads the text when a key is released
        found = "[...document.querySelectorAll('.md-search-result__link')]"
        browser.wait_for(f"{found}.some(link => link.href.includes('search.html'))")
        assert local(browser.requests)
        for page in ("getting-started.html", "api/core.html", "systems.html"):
            browser.resize(390)
            browser.open((site / page).as_uri())
            assert browser.run("document.documentElement.scrollWidth <= 390"), page
            assert local(browser.requests), page
        assert browser.errors == []


def local(urls: list[str]) -> bool:
    return bool(urls) and all(urlsplit(url).scheme in ("file", "data", "about", "blob") for url in urls)
