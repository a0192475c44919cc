"""LaTeX between dollars as MathML, which browsers draw without a script or a font from elsewhere."""

import re

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

CODE_OR_MATH = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`)(?:(?!\n\n).)+?(?<!`)(?P=ticks)(?!`))"
    r"|\$\$(?P<display>(?:(?!\n\n).)+?)\$\$"
    r"|(?<![\\$\w])\$(?P<inline>[^\s$](?:[^$\n]*?\n?[^$\n]*?[^\s$\\])?)\$(?![\d$])",
    re.DOTALL,
)


def mathml(latex: str, display: bool = False) -> str:
    """A formula as an element of HTML: in the line, or on a line of its own."""
    return convert(latex.strip(), display="block" if display else "inline")


class Formulas(Preprocessor):
    """Runs after blocks of code are taken out and before HTML is parsed, to which `h_{<t}` would look like a tag."""

    def run(self, lines: list[str]) -> list[str]:
        return CODE_OR_MATH.sub(self.replaced, "\n".join(lines)).split("\n")

    def replaced(self, match: re.Match) -> str:
        if match["code"]:
            return match[0]
        return self.md.htmlStash.store(mathml(match["display"] or match["inline"], bool(match["display"])))


class MathML(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(Formulas(md), "mathml", 22)
