"""Tables: functions of a result; for the terminal, in markdown and in LaTeX."""

import math
from typing import NamedTuple

import xarray as xr
from rich import box
from rich.table import Table

from offspan.report.summary import Quartiles, Row, summary

LATEX = {"−": "$-$", "<": "$<$", "∞": r"$\infty$", "–": "--", "_": r"\_", "*": "$^*$", "‖": r"$\|$"}
LATEX |= {"η": r"$\eta$", "θ": r"$\theta$", "φ": r"$\phi$", "ψ": r"$\psi$"}
EXPECTED = {"identity": "= 1", "shift": "< 1", "gaussian": "< 1"}


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


def measure_sheet(result: xr.Dataset) -> Sheet:
    """Both normalised measures of a sweep of linear controllers."""
    rows = summary(result)
    columns = _columns(rows)
    title = f"{result.attrs['name']}: measures normalised by K_no-ext, median (quartiles) over {result.sizes['seed']} seeds"
    return Sheet(title, [heading for heading, _ in columns], [[cell(row) for _, cell in columns] for row in rows], note(rows))


def note(rows: list[Row]) -> str:
    """What a reader of the table must know."""
    parts = ["1 = no extrapolation, 0 = perfect."]
    if any(row.system in EXPECTED for row in rows):
        parts.append(
            "Theory: = 1 by prop:no_exploration_no_extrapolation; < 1 is proven for other learning rates, by prop:shift for one seen "
            "state and by thm:typical_system for the first step in the mean."
        )
    if any(math.isnan(row.normalized_cost.median) for row in rows):
        parts.append("–: not defined, as nothing is unseen, R is not 0 or B is not invertible.")
    return " ".join(parts)


def _columns(rows: list[Row]):
    """(heading, cell of a row). What is the same in all rows has no column; a sweep over more than the seen states shows medians alone."""
    swept = [
        (heading, lambda row, name=name: f"{getattr(row, name):g}")
        for heading, name in (("D", "dim"), ("H", "horizon"), ("η", "learning_rate"))
        if len({getattr(row, name) for row in rows}) > 1
    ]
    seen = [("seen", lambda row: str(row.seen))] if len({row.seen for row in rows}) > 1 or not swept else []
    value = (lambda values: number(values.median, ".3f")) if swept else _with_quartiles
    diverged = [("diverged", lambda row: f"{row.diverged}/{row.runs}")] if any(row.diverged for row in rows) else []
    expected = [("theory", _expected)] if any(row.system in EXPECTED for row in rows) else []
    return [
        ("system", lambda row: row.system),
        *swept,
        *seen,
        ("optimality", lambda row: value(row.normalized_optimality)),
        ("cost", lambda row: value(row.normalized_cost)),
        *expected,
        ("J(S) − J*", lambda row: number(row.excess_training_cost.median, ".1e")),
        *diverged,
    ]


def _expected(row: Row) -> str:
    return "" if math.isnan(row.normalized_cost.median) else EXPECTED.get(row.system, "")


def _with_quartiles(values: Quartiles) -> str:
    low, median, high = values
    whole = number(median, ".3f")
    return whole if low == high or math.isnan(median) else f"{whole} ({number(low, '.2f')}–{number(high, '.2f')})"


def number(value: float, form: str) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else format(value, form)
