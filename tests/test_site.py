"""The site that `make docs` builds: what its tools make of links and docstrings, and the built pages in a browser."""

import base64
import html
import importlib.util
import json
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
    """A file of docs/tools, which is no package. As mkdocs does, its folder is on the path while it is loaded."""
    pytest.importorskip(requires, reason="building the site needs the extra docs")
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/tools/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs/tools"))
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
        ("[a](../notebooks/7_your_own_task.ipynb)", "[a](notebooks/7_your_own_task.md)"),
        ("![a](attention.png)", "![a](attention.png)"),
        ("```sh run\n[a](none.md)\n```", "```sh\n[a](none.md)\n```"),
        (
            "``````python\n1\n``````\n[a](../README.md)\n```\n2\n```",
            "``````python\n1\n``````\n[a](index.md)\n```\n2\n```",
        ),
        ("[a](https://x.org/none.md)", "[a](https://x.org/none.md)"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(link, expected):
    assert tool("pages", "mkdocs").rewrite(link, "docs/search.md") == expected


def test_links_of_the_readme_and_of_the_reference_begin_elsewhere():
    pages = tool("pages", "mkdocs")
    assert pages.rewrite("[a](docs/pod.md) [b](CONTRIBUTING.md)", "README.md") == "[a](pod.md) [b](contributing.md)"
    assert pages.rewrite("[a](../pod.md)", "docs/api/core.md") == "[a](../pod.md)"
    assert pages.rewrite("[a](../docs/pod.md)", "notebooks/7_your_own_task.ipynb") == "[a](../pod.md)"


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


BADGE = "[![Open In Colab](https://x.org/badge.svg)](https://colab.research.google.com/{})\n\n"


def notebook(path: Path, *cells: dict, address: str = "github/a/b/blob/main/notebooks/1_a.ipynb") -> Path:
    """A file with a title and these cells."""
    first = {"cell_type": "markdown", "source": [BADGE.format(address), "# 1. A title\n", "\n", "Of $h_{<t}$.\n"]}
    path.write_text(json.dumps({"cells": [first, *cells]}), encoding="utf-8")
    return path


def test_a_notebook_becomes_a_page_with_its_outputs(tmp_path):
    pages = tool("notebook_pages", "mkdocs")
    both = {"text/plain": ["<Figure>"], "text/html": ["<b>moves</b>\n", "\n", "<script>a < b && c</script>"]}
    picture = {"image/png": base64.b64encode(b"pixels").decode(), "text/plain": ["<Figure>"]}
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["a < b\n", "\x1b[31mred\x1b[0m\n"]},
        {"output_type": "display_data", "data": picture},
        {"output_type": "execute_result", "data": both},
    ]
    code = {"cell_type": "code", "source": ["x = 1"], "outputs": outputs}
    setup = {"cell_type": "code", "source": [f"# {pages.STAMPED}"], "outputs": []}
    solution = "<details><summary>Solution</summary>\n\n```python\ny\n```\n\nBecause.\n</details>"
    folded = {"cell_type": "markdown", "source": [solution]}
    page = pages.read(notebook(tmp_path / "1_a.ipynb", code, folded, setup))
    title, links, text, source, mark, *rest = page.markdown.split("\n\n")
    assert (title, text, source) == ("# 1. A title", "Of $h_{<t}$.", "``````python\nx = 1\n``````")
    assert re.findall('href="([^"]*)"', links) == [
        "1_a.ipynb",
        "https://colab.research.google.com/github/a/b/blob/main/notebooks/1_a.ipynb",
    ]
    assert rest[0] == '<details markdown="1"><summary>Solution</summary>'
    assert rest[-3] == '<details markdown="1"><summary>Setup</summary>'
    assert page.pictures == {"1_a/0.png": b"pixels"}
    shown = pages.with_outputs(f"<p>{mark}</p>", page.outputs)
    assert "<pre>a &lt; b\nred</pre>" in shown and 'src="1_a/0.png"' in shown and "&lt;Figure" not in shown
    assert "<b>moves</b>\n\n<script>a < b && c</script>" in shown


def test_a_notebook_without_an_address_is_only_downloaded(tmp_path):
    """Its badge leads to the page of Colab where a file can be uploaded."""
    page = tool("notebook_pages", "mkdocs").read(notebook(tmp_path / "1_a.ipynb", address="#upload=true"))
    assert re.findall('href="([^"]*)"', page.markdown) == ["1_a.ipynb"] and "badge" not in page.markdown


@pytest.mark.parametrize(
    "text, formulas",
    [
        ("the state $h_{<t}$ and $x$", ["h<t", "x"]),
        ("$$a\n+ b$$", ["a+b"]),
        ("`$a$` and ``$`b$``", []),
        ("from $5 to $6, or $ 7 $", []),
        ("```\n$a$\n```", []),
        (r"a \$5 bill and \$6$", []),
    ],
)
def test_a_formula_is_drawn_without_a_script(text, formulas):
    mathml = tool("mathml", "latex2mathml")
    shown = mathml.Markdown(extensions=[mathml.MathML(), "pymdownx.superfences"]).convert(text)
    found = re.findall("<math.*?</math>", shown, re.DOTALL)
    assert [html.unescape(re.sub("<[^>]*>", "", formula)) for formula in found] == formulas
    assert bool(found) == ("$" not in shown)


def test_the_navigation_lists_every_notebook_in_order():
    pages = tool("pages", "mkdocs")
    entries = [{"Notebooks": ["notebooks.md", "notebooks/*"]}]
    pages._list_lessons(entries)
    numbers = [int(Path(entry).name.split("_")[0]) for entry in entries[0]["Notebooks"][1:]]
    assert numbers == sorted(numbers) and len(numbers) == len(list((ROOT / "notebooks").glob("*.ipynb"))) > 6


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
        assert not [url for url in page.loads if urlsplit(url).scheme not in ("", "data") or url.startswith("//")], file
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
        found = "[...document.querySelectorAll('.md-search-result__link')].some(link => link.href.includes('{}'))"
        for text, page in (("minimum Bayes risk", "search.html"), ("beam", "4_beam_search_as_a_tree.html")):
            browser.run("document.querySelector('.md-search__input').select()")
            browser.call("Input.insertText", text=text)
            browser.press("ArrowRight")  # the page reads the text when a key is released
            browser.wait_for(found.format(page))
        assert local(browser.requests) and browser.errors == []


@pytest.mark.slow
def test_pages_fit_on_a_phone(site):
    """What is wide, such as tables and code, scrolls in its own box."""
    pages = ["index", "student", "lectures", "gallery", "results", "systems/comparison", "api/layers", "claims", "pod"]
    pages += [f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("[13]_*.ipynb")]
    with Browser() as browser:
        browser.resize(360)
        for page in pages:
            browser.open((site / f"{page}.html").as_uri())
            assert browser.run("document.documentElement.scrollWidth <= 360"), page
            assert local(browser.requests), page
        assert browser.errors == []


@pytest.mark.slow
def test_a_page_of_a_notebook_has_formulas_code_pictures_and_links(site):
    with Browser() as browser:
        browser.resize(1280)
        browser.open((site / "notebooks/1_from_gates_to_attention.html").as_uri())
        tall = lambda selector: browser.run(f"document.querySelector('{selector}').getBoundingClientRect().height")
        assert tall("math[display=block]") > 15 and tall(".highlight code") > 15 and tall(".notebook-output pre") > 15
        browser.run("document.querySelectorAll('img').forEach(each => each.loading = 'eager')")
        browser.wait_for("[...document.images].every(each => each.complete && each.naturalWidth > 100)")
        assert browser.run("document.querySelectorAll('.md-nav--secondary a').length") > 4
        solutions = "[...document.querySelectorAll('details')]"
        assert browser.run(f"{solutions}.every(each => !each.open && each.querySelector('.highlight code'))")
        assert browser.errors == []


def local(urls: list[str]) -> bool:
    return bool(urls) and all(urlsplit(url).scheme in ("file", "data", "about", "blob") for url in urls)
