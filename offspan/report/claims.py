"""Claims as a table for the terminal, in markdown and in JSON."""

import inspect
import json
import math
from itertools import groupby
from typing import Any

from rich import box
from rich.table import Table

from offspan.theory.claims import Claim, Settings
from offspan.theory.verify import STATEMENTS

COLOURS = {"holds": "green", "FAILS": "bold red", "does not apply": "yellow"}


def statement_text(label: str) -> str:
    """The statement itself: the docstring of its function, as one paragraph."""
    return " ".join((inspect.getdoc(STATEMENTS[label]) or "").split())


def terminal_claims(claims: list[Claim], settings: Settings) -> Table:
    table = Table(title=_title(settings), caption=verdict(claims), box=box.SIMPLE_HEAD)
    table.add_column("statement, and what was measured", overflow="fold")
    for heading in ("measured", "", "predicted", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, group in groupby(claims, key=lambda claim: claim.label):
        table.add_row(f"[bold]{label}[/bold]")
        for claim in group:
            shown = "" if claim.verdict == "does not apply" else claim.verdict
            colour = COLOURS[claim.verdict]
            table.add_row(f"[{colour}]{claim.text}[/]" if not shown else claim.text, *_numbers(claim), f"[{colour}]{shown}[/]")
    return table


def markdown_claims(claims: list[Claim], settings: Settings) -> str:
    lines = [f"# {_title(settings)}", "", verdict(claims), "", "Tolerances are relative to predictions larger than 1."]
    for label, group in groupby(claims, key=lambda claim: claim.label):
        lines += ["", f"## `{label}`", "", statement_text(label), ""]
        lines += ["| claim | measured | | predicted | tolerance | by | verdict |", "|---|---|---|---|---|---|---|"]
        for claim in group:
            cells = [claim.text, *_numbers(claim), f"{claim.tolerance:g}", claim.route, claim.verdict]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def json_claims(claims: list[Claim], settings: Settings, version: str) -> str:
    """NaN, which JSON does not have, as null."""
    content: dict[str, Any] = {"offspan": version, "settings": settings._asdict(), "claims": []}
    for claim in claims:
        fields = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in claim._asdict().items()}
        content["claims"].append({**fields, "verdict": claim.verdict})
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def verdict(claims: list[Claim]) -> str:
    counted = [claim for claim in claims if claim.verdict != "does not apply"]
    failed = [claim for claim in counted if not claim.holds]
    passed_over = len(claims) - len(counted)
    parts = [f"{len(counted) - len(failed)} of {len(counted)} claims hold"]
    if failed:
        parts.append("failing: " + ", ".join(dict.fromkeys(claim.label for claim in failed)))
    if passed_over:
        parts.append(f"{passed_over} statement{'s' if passed_over > 1 else ''} passed over")
    return "; ".join(parts) + "."


def _title(settings: Settings) -> str:
    seeds = "1 seed" if settings.seeds == 1 else f"{settings.seeds} seeds"
    return f"Statements of the paper and beyond, at D = {settings.dim}, H = {settings.horizon}, {seeds} unless a claim says otherwise"


def _numbers(claim: Claim) -> tuple[str, str, str]:
    whole = claim.tolerance == 0 and claim.relation == "=" and claim.predicted.is_integer() and claim.measured.is_integer()
    show = (lambda value: f"{value:.0f}") if whole else _six_digits
    return show(claim.measured), claim.relation, show(claim.predicted)


def _six_digits(value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:#.6g}" if value == 0 or 1e-4 <= abs(value) < 1e6 else f"{value:.5e}"
