"""Tables: functions of a result; for the terminal, in markdown and in LaTeX."""

import math

import xarray as xr
from rich import box
from rich.table import Table

from offspan.report.summary import Quartiles, Row, summary

EXPECTED = {"identity": "= 1", "shift": "< 1", "gaussian": "< 1"}


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


def terminal_table(result: xr.Dataset) -> Table:
    rows = summary(result)
    title = f"{result.attrs['name']}: measures normalised by K_no-ext, median (quartiles) over {result.sizes['seed']} seeds"
    table = Table(title=title, caption=note(rows), box=box.SIMPLE_HEAD)
    for heading, _ in _columns(rows):
        table.add_column(heading, justify="left" if heading == "system" else "right", no_wrap=True)
    for previous, row in zip([None, *rows], rows, strict=False):
        if previous is not None and previous.system != row.system:
            table.add_section()
        table.add_row(*(cell(row) for _, cell in _columns(rows)))
    return table


def markdown_table(result: xr.Dataset) -> str:
    rows = summary(result)
    columns = _columns(rows)
    lines = ["| " + " | ".join(heading for heading, _ in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row) for _, cell in columns) + " |" for row in rows]
    return "\n".join([*lines, "", note(rows), ""])


def latex_table(result: xr.Dataset) -> str:
    rows = summary(result)
    columns = _columns(rows)
    escape = str.maketrans({"−": "$-$", "<": "$<$", "∞": r"$\infty$", "η": r"$\eta$", "–": "--", "_": r"\_", "*": "$^*$"})
    body = [" & ".join(cell(row).translate(escape) for _, cell in columns) + r" \\" for row in rows]
    head = " & ".join(heading.translate(escape) for heading, _ in columns) + r" \\"
    return "\n".join(
        [rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}", ""]
    )


def _columns(rows: list[Row]):
    """(heading, cell of a row). What is the same in all rows has no column; a sweep over more than the seen states shows medians alone."""
    swept = [
        (heading, lambda row, name=name: f"{getattr(row, name):g}")
        for heading, name in (("D", "dim"), ("H", "horizon"), ("η", "learning_rate"))
        if len({getattr(row, name) for row in rows}) > 1
    ]
    seen = [("seen", lambda row: str(row.seen))] if len({row.seen for row in rows}) > 1 or not swept else []
    value = (lambda values: _number(values.median, ".3f")) if swept else _with_quartiles
    diverged = [("diverged", lambda row: f"{row.diverged}/{row.runs}")] if any(row.diverged for row in rows) else []
    expected = [("theory", _expected)] if any(row.system in EXPECTED for row in rows) else []
    return [
        ("system", lambda row: row.system),
        *swept,
        *seen,
        ("optimality", lambda row: value(row.normalized_optimality)),
        ("cost", lambda row: value(row.normalized_cost)),
        *expected,
        ("J(S) − J*", lambda row: _number(row.excess_training_cost.median, ".1e")),
        *diverged,
    ]


def _expected(row: Row) -> str:
    return "" if math.isnan(row.normalized_cost.median) else EXPECTED.get(row.system, "")


def _with_quartiles(values: Quartiles) -> str:
    low, median, high = values
    whole = _number(median, ".3f")
    return whole if low == high or math.isnan(median) else f"{whole} ({_number(low, '.2f')}–{_number(high, '.2f')})"


def _number(value: float, form: str) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else format(value, form)
