"""What mkdocs cannot do alone: pages that are files of the repository, and links that lead out of docs/.

The pages of docs/ are also read as plain files in the repository, where a link such as `../s2sjax/runs/run.py` works.
On the site the same link leads to the module in the API reference, or else to a page with the text of the file. The
name of a folder is only shown. A link to a file that does not exist is an error. README.md is the first page of the
site and CONTRIBUTING.md one of the last, so that nothing is written twice. Every notebook is a page
(notebook_pages.py), formulas and the moving figures of the gallery are drawn (mathml.py, gallery.py).
"""

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

import gallery
import mathml
import notebook_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""files of the repository that are pages of the site"""
LESSONS = "notebooks/*"
"""stands in the navigation for every notebook"""
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)```(\w+) run$", re.MULTILINE)  # a block that a test executes
BLOCK = re.compile(r"(^ *(?:`{6}.*?^ *`{6}$|```(?!`).*?^ *```$))", re.MULTILINE | re.DOTALL)
"""code: a fence of six marks, as in the pages of notebooks, may have others inside"""
DIRECTIVE = re.compile(r"^::: ([\w.]+)", re.MULTILINE)  # a module of the API reference
FIGURE = re.compile(r"<!-- figure (\w+) -->")
"""the place of a figure that moves: see gallery.py"""
LANGUAGES = {".py": "python", ".sh": "sh", ".json": "json", ".toml": "toml"}


def target_of(source: str, target: str) -> str:
    """A link in the file `source` of the repository, as a path from its root.

    Example: docs/pod.md, ../s2sjax/runs/run.py -> s2sjax/runs/run.py.
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


@cache
def documented() -> dict[str, str]:
    """The modules of the API reference, by path: s2sjax/runs/run.py -> api/run.md#s2sjax.runs.run."""
    modules = {}
    for page in sorted((ROOT / "docs/api").glob("*.md")):
        for name in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            modules[path_of(name)] = f"api/{page.name}#{name}"
    return modules


def path_of(module: str) -> str:
    """s2sjax.core.recurrence.cells -> s2sjax/core/recurrence/cells.py, s2sjax.tasks -> s2sjax/tasks/__init__.py."""
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if (ROOT / path).is_dir() else f"{path}.py"


def uri_of(path: str) -> str | None:
    """Where a file of the repository is on the site; None if it has no page there, as a folder."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return None if (ROOT / path).is_dir() else f"source/{path}.md"


def rewrite(markdown: str, source: str) -> str:
    """The text of the file `source` with links that work on the site."""
    here = posixpath.dirname(uri_of(source) or "")

    def link(match: re.Match) -> str:
        if re.match(r"[a-z]+:", match["target"]):
            return match[0]
        path = target_of(source, match["target"])
        if not (ROOT / path).exists():
            raise PluginError(f"{source}: the link to {match['target']} leads nowhere")
        uri = documented().get(path) or uri_of(path)
        if uri is None:
            return f"`{match['text']}`"
        return f"{match['image']}[{match['text']}]({posixpath.relpath(uri, here or '.')}{match['anchor'] or ''})"

    blocks = BLOCK.split(FENCE.sub(r"\1```\2", markdown))
    return "".join(block if block.lstrip().startswith("```") else LINK.sub(link, block) for block in blocks)


@cache
def notebooks() -> dict[str, notebook_pages.NotebookPage]:
    """The notebooks in the order of their numbers: notebooks/1_from_gates_to_attention.ipynb -> its page."""
    files = sorted((ROOT / "notebooks").glob("*.ipynb"), key=lambda file: (int(file.name.split("_")[0]), file.name))
    return {file.relative_to(ROOT).as_posix(): notebook_pages.read(file) for file in files}


def source_page(path: str) -> str:
    """A page with the text of a file. It is not searched: the reference has what can be searched of the code."""
    text = (ROOT / path).read_text(encoding="utf-8")
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch: {{exclude: true}}\nhide: [toc]\n---\n# {path}\n\n`````` {language}\n{text}\n``````\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    notebooks.cache_clear()  # `make docs-serve` builds again when a file changes
    config.markdown_extensions.append(mathml.MathML())
    for section in config.nav or []:
        for entries in section.values():
            _list_lessons(entries)
    return config


def _list_lessons(entries: Any) -> None:
    """Writes the notebooks where the navigation says `notebooks/*`."""
    for entry in entries if isinstance(entries, list) else []:
        for inner in entry.values() if isinstance(entry, dict) else []:
            _list_lessons(inner)
    if isinstance(entries, list) and LESSONS in entries:
        place = entries.index(LESSONS)
        entries[place : place + 1] = [uri_of(path) for path in notebooks()]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for path, page in notebooks().items():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        files.append(File.generated(config, uri_of(path), content=page.markdown))
        for address, picture in page.pictures.items():
            files.append(File.generated(config, f"notebooks/{address}", content=picture))
    linked = set(documented())
    for file in files.documentation_pages():
        source = source_of(file)
        for match in LINK.finditer(file.content_string):
            path = target_of(source, match["target"])
            outside = path not in PAGES and not path.startswith("docs/") and not path.endswith(".ipynb")
            if outside and (ROOT / path).is_file():
                linked.add(path)
    for path in sorted(linked):
        page = File.generated(config, uri_of(path), content=source_page(path))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def source_of(file: File) -> str:
    """The file of the repository that a page is: docs/pod.md, README.md, notebooks/7_your_own_task.ipynb."""
    own = {uri: path for path, uri in PAGES.items()} | {uri_of(path): path for path in notebooks()}
    return own.get(file.src_uri, f"docs/{file.src_uri}")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # which lists nothing but the page itself
    return markdown if page.file.src_uri.startswith("source/") else rewrite(markdown, source_of(page.file))


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if notebook := notebooks().get(source_of(page.file)):
        return notebook_pages.with_outputs(content, notebook.outputs)
    return FIGURE.sub(lambda match: figure(match[1]), content)


def figure(name: str) -> str:
    """A figure that moves, as HTML."""
    return f'<div class="moving" data-search-exclude>{gallery.figures()[name]._repr_html_()}</div>'
