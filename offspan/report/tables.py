"""Tables, before they are printed and after: for the terminal, in markdown, in LaTeX and in HTML."""

import math
from html import escape
from typing import NamedTuple

from rich import box
from rich.table import Table

LATEX = {"−": "$-$", "<": "$<$", "∞": r"$\infty$", "–": "--", "_": r"\_", "*": "$^*$", "‖": r"$\|$"}
LATEX |= {"η": r"$\eta$", "θ": r"$\theta$", "φ": r"$\phi$", "ψ": r"$\psi$"}


class Sheet(NamedTuple):
    """A table before it is printed: cells as text, the first column to the left, the others to the right."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    note: str


def terminal_table(sheet: Sheet) -> Table:
    """A line between rows that differ in their first cell, if they come in groups."""
    table = Table(title=sheet.title, caption=sheet.note, box=box.SIMPLE_HEAD)
    for i, heading in enumerate(sheet.headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    grouped = len({row[0] for row in sheet.rows}) < len(sheet.rows)
    for previous, row in zip([None, *sheet.rows], sheet.rows, strict=False):
        if grouped and previous is not None and previous[0] != row[0]:
            table.add_section()
        table.add_row(*row)
    return table


def markdown_table(sheet: Sheet) -> str:
    lines = ["| " + " | ".join(sheet.headings) + " |", "|" + "---|" * len(sheet.headings)]
    lines += ["| " + " | ".join(row) + " |" for row in sheet.rows]
    return "\n".join([*lines, "", sheet.note, ""])


def latex_table(sheet: Sheet) -> str:
    escape = str.maketrans(LATEX)
    head, *body = [" & ".join(cell.translate(escape) for cell in row) + r" \\" for row in [sheet.headings, *sheet.rows]]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(sheet.headings) - 1)}}}"
    note = "% " + sheet.note.replace("\n", " ")
    return "\n".join([begin, r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}", note, ""])


def html_table(sheet: Sheet, style: str = "numbers") -> str:
    """With the first cell of a row as its heading; in a box of its own, which scrolls where the table is wider than the page."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in sheet.headings)
    rows = [
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for first, *cells in sheet.rows
    ]
    title = escape(sheet.title)
    table = f'<table class="{style}"><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    note = f'<p class="note">{escape(sheet.note)}</p>' if sheet.note else ""
    return f'<div class="wide" role="region" aria-label="{title}" tabindex="0">{table}</div>{note}'


def number(value: float, form: str) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else format(value, form)
