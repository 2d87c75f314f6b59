"""TeX between dollars, turned into MathML when the docs are built: browsers show it without scripts, and without a network.

`$…$` stands in a line, `$$…$$` for itself. A dollar opens a formula if no space follows it, and closes it if no space stands before it and
no letter or digit after it, so that $5 and $HOME stay what they are; `\\$` is always a dollar. Code is left alone.
"""

import re

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.postprocessors import Postprocessor
from markdown.preprocessors import Preprocessor
from math_core import LatexError, LatexToMathML

CONVERTER = LatexToMathML(fancy_error=False)
IN_LINE = r"(?<![\\$\w])\$(?![\s$])((?:\\.|[^\\$])+?)(?<!\s)\$(?![\w$])"
DISPLAYED = r"(?<!\\)\$\$(.+?)\$\$"


class FormulaError(ValueError):
    """A formula that cannot be read; it stops the build."""


def mathml(tex: str, *, display: bool = False) -> str:
    """One formula as MathML.

    >>> mathml(r"x_h^\\top")
    '<math><msubsup><mi>x</mi><mi>h</mi><mi>⊤</mi></msubsup></math>'
    """
    try:
        return CONVERTER.convert_with_local_state(" ".join(tex.split()), displaystyle=display)
    except LatexError as error:
        raise FormulaError(f"the formula ${tex.strip()}$ cannot be read: {str(error).strip()}") from error


class Formulas(Extension):
    """The dollars of a page, as an extension of Python-Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.ESCAPED_CHARS.append("$")
        # Fences are gone by then (25), code in a line comes first (190), and escapes and emphasis (180 and below) see no TeX.
        md.preprocessors.register(_Rows(md), "formulas in tables", 24)
        md.inlinePatterns.register(_Formula(DISPLAYED, md, display=True), "displayed formulas", 189)
        md.inlinePatterns.register(_Formula(IN_LINE, md, display=False), "formulas", 188)
        md.postprocessors.register(_Strays(md), "stray formulas", -10)  # after the stashed HTML is back


class _Formula(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, *, display: bool) -> None:
        super().__init__(pattern, md)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        html = mathml(m[1], display=self.display)
        return self.md.htmlStash.store(f'<span class="formula">{html}</span>' if self.display else html), *m.span()


class _Rows(Preprocessor):
    """A bar inside a formula ends no cell of a table."""

    def run(self, lines: list[str]) -> list[str]:
        code_or_formula = re.compile(rf"(`+).+?\1|{IN_LINE}")
        return [code_or_formula.sub(self._without_bars, line) if line.lstrip().startswith("|") else line for line in lines]

    def _without_bars(self, m: re.Match[str]) -> str:
        return m[0] if m[1] else m[0][:-1].replace(r"\|", r"\Vert ").replace("|", r"\vert ").rstrip() + "$"


class _Strays(Postprocessor):
    """TeX that no dollars enclose as they should is an error, too."""

    def run(self, text: str) -> str:
        words = re.sub(r"<(pre|code|math|script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
        if stray := re.search(r"\$[^$]{0,200}?\\[a-zA-Z]+|\\[a-zA-Z]+[^$]{0,200}?\$", words):
            raise FormulaError(f"{stray[0][:80]!r} looks like a formula that does not end, or does not begin.")
        return text
