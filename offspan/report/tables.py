"""Tables as values, and as text for the terminal, in markdown and in LaTeX."""

import math
import unicodedata
from typing import NamedTuple

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
GREEK += " Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
LATEX = {letter: rf"$\{name}$" for letter, name in zip("αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ", GREEK.split(), strict=True)}
LATEX |= {sign: rf"\{sign}" for sign in "&%$#_{}"} | {sign: f"${sign}$" for sign in "<>|"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "*": "$^*$", "−": "$-$", "–": "--", "—": "---"}
LATEX |= {"∞": r"$\infty$", "‖": r"$\|$", "≤": r"$\le$", "≥": r"$\ge$", "≠": r"$\ne$", "×": r"$\times$", "±": r"$\pm$", "·": r"$\cdot$"}
LATEX |= {"…": r"\dots{}", "→": r"$\to$", "∈": r"$\in$", "∇": r"$\nabla$", "⊥": r"$\perp$", "°": r"$^\circ$", "²": "$^2$", "³": "$^3$"}


class Table(NamedTuple):
    """Cells as text; the first column is aligned to the left, the others to the right."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    note: str = ""

    @property
    def is_large(self) -> bool:
        """Whether a page folds it."""
        return len(self.rows) > 24 or len(self.headings) > 9


def from_columns(title: str, columns: dict[str, list[str]], note: str = "") -> Table:
    return Table(title, list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)], note)


def terminal_table(table: Table) -> RichTable:
    """With a line between groups of rows that share their first cell. Nothing in it is markup."""
    shown = RichTable(title=Text(table.title), caption=Text(table.note), box=box.SIMPLE_HEAD)
    names = max(len(row[0]) for row in [table.headings, *table.rows])
    for i, heading in enumerate(table.headings):  # where the terminal is too narrow, the names stay whole, and numbers break into lines
        shown.add_column(Text(heading), justify="right" if i else "left", overflow="fold", no_wrap=not i, min_width=None if i else names)
    grouped = len({row[0] for row in table.rows}) < len(table.rows)
    for previous, row in zip([None, *table.rows], table.rows, strict=False):
        if grouped and previous is not None and previous[0] != row[0]:
            shown.add_section()
        shown.add_row(*map(Text, row))
    return shown


def markdown_table(table: Table) -> str:
    return "\n".join([*markdown_rows(table.headings, table.rows), "", table.note, ""])


def markdown_rows(headings: list[str], rows: list[list[str]]) -> list[str]:
    head, *body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [headings, *rows]]
    return [head, "|" + "---|" * len(headings), *body]


def latex_table(table: Table) -> str:
    """A `tabular` of ASCII characters that needs no package, with the note as a comment below it."""
    head, *body = [" & ".join(map(latex, row)) + r" \\" for row in [table.headings, *table.rows]]
    # After a line break, LaTeX takes a bracket for an optional argument.
    body = ["{}" + row if row.startswith("[") else row for row in body]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}"
    return "\n".join([begin, r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}", "% " + latex(table.note), ""])


def latex(text: str) -> str:
    """Escaped; a character without an entry in `LATEX` loses its accent, or becomes a question mark."""
    return "".join(LATEX.get(sign) or _ascii(sign) for sign in " ".join(text.split()))


def _ascii(sign: str) -> str:
    letter = unicodedata.normalize("NFD", sign)[0]
    return letter if letter.isascii() and (letter.isalpha() or (letter == sign and sign.isprintable())) else "?"


def number(value: float, form: str) -> str:
    if math.isnan(value):
        return "–"
    shown = "∞" if math.isinf(value) else format(value, form)
    return "0" if value == 0 and "e" in shown else shown
