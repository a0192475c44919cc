"""What mkdocs cannot do alone: pages that are files of the repository, and links that lead out of docs/.

The pages of docs/ are also read as plain files in the repository, where a link such as `../s2sjax/runs/run.py` works.
On the site the same link leads to the module in the API reference, or else to a page with the text of the file. A
notebook can be downloaded, and the name of a folder is only shown. A link to a file that does not exist is an error.
README.md is the first page of the site and CONTRIBUTING.md the last one, so that nothing is written twice.
"""

import posixpath
import re
from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""files of the repository that are pages of the site"""
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)```(\w+) run$", re.MULTILINE)  # a block that a test executes
DIRECTIVE = re.compile(r"^::: ([\w.]+)", re.MULTILINE)  # a module of the API reference
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
        return path
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

    blocks = re.split(r"(^ *```.*?^ *```$)", FENCE.sub(r"\1```\2", markdown), flags=re.MULTILINE | re.DOTALL)
    return "".join(block if block.lstrip().startswith("```") else LINK.sub(link, block) for block in blocks)


def source_page(path: str) -> str:
    """A page with the text of a file. It is not searched: the reference has what can be searched of the code."""
    text = (ROOT / path).read_text(encoding="utf-8")
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch: {{exclude: true}}\nhide: [toc]\n---\n# {path}\n\n`````` {language}\n{text}\n``````\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    linked = set(documented())
    for file in files.documentation_pages():
        source = source_of(file)
        for match in LINK.finditer((ROOT / source).read_text(encoding="utf-8")):
            path = target_of(source, match["target"])
            if (ROOT / path).is_file() and path not in PAGES and not path.startswith("docs/"):
                linked.add(path)
    for path in sorted(linked):
        if path.endswith(".ipynb"):
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        else:
            page = File.generated(config, uri_of(path), content=source_page(path))
            page.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(page)
    return files


def source_of(file: File) -> str:
    """The file of the repository that a page is: docs/pod.md, README.md."""
    return next((path for path, uri in PAGES.items() if uri == file.src_uri), f"docs/{file.src_uri}")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return markdown if page.file.src_uri.startswith("source/") else rewrite(markdown, source_of(page.file))
