"""One page of many runs: self-contained HTML, without scripts, that reads the same with no network, on paper and on a phone."""

import importlib.resources
import io
import re
from html import escape
from string import Template
from typing import Any, NamedTuple
from urllib.parse import quote

import matplotlib
from matplotlib.figure import Figure

from offspan.experiments.gathering import Gathered
from offspan.report.claims import STATEMENTS, statement_text
from offspan.report.kinds import report
from offspan.report.paper import EXPERIMENTS, Finding, findings, findings_sheet
from offspan.report.tables import Sheet, html_table

INK = "svg { color: #1f2328; fill: currentColor } @media (prefers-color-scheme: dark) { svg { color: #e6e9ed } }"
JUDGED = """How verdicts are made: a bound agrees where it is kept; a direction where every median goes that way; "below 1" where every
median is, "well below 1" where the median is below 0.5; a number where it lies between our quartiles or ours is lower; "fails" where at
most a tenth of the runs diverge at H = 8 and at least a quarter at the longest horizon; "decays" where the further half of the states
costs more."""
PLAIN = " '/:;,.=()<>-+!*~_{}@"  # what an SVG has in plenty and a data address may have


class Section(NamedTuple):
    """What is told of one run, drawn."""

    name: str
    heading: str
    findings: list[Finding]
    body: str


def section(run: Gathered) -> Section:
    made, found = report(run.result, run.beside), findings(run.preset, run.result, run.beside)
    source = f" In the paper: <code>{EXPERIMENTS[run.preset]}</code>." if run.preset in EXPERIMENTS else ""
    parts = [f"<p>Asked: {escape(run.content)}.{source} Run again by <code>{escape(run.command)}</code>.</p>"]
    if found:
        parts.append(html_table(findings_sheet(run.name, found), "words"))
    parts += [_figure(figure, f"{run.name}: {made.words[name]}") for name, (figure, _) in made.figures().items()]
    parts += [html_table(sheet) for sheet in made.sheets.values()]
    if diverged := str(run.result.attrs.get("diagnoses", "")):
        parts.append(f"<h3>Divergences</h3><pre>{escape(diverged)}</pre>")
    parts.append(f"<details><summary>What was asked</summary><pre>{escape(run.asked)}</pre></details>")
    rows = [[key, _words(value)] for key, value in run.provenance.items()]
    origin = Sheet(f"{run.name}: where it comes from", ["what", "value"], rows, "")
    parts.append(f"<details><summary>Where it comes from</summary>{html_table(origin, 'words')}</details>")
    own = run.title if run.title and run.name == run.preset else f"{run.title} ({run.name})" if run.title else run.name
    return Section(run.name, own, found, "".join(parts))


def page(
    heading: str,
    version: str,
    sections: list[Section],
    *,
    missing: list[str],
    unreadable: list[str],
    claims: dict[str, Any] | None,
    intuition: Figure | None,
) -> str:
    """`missing` are presets that were not run, `unreadable` says why runs are not here, `claims` is the content of claims.json."""
    parts = [("beside-the-paper", "Ours and the paper's", _overview(sections, missing, unreadable, claims))]
    parts += [(f"run-{one.name}", one.heading, one.body) for one in sections]
    if claims is not None:
        parts.append(("statements", "The statements, checked", _statements(claims, intuition)))
    contents = "".join(f'<li><a href="#{escape(anchor)}">{escape(title)}</a></li>' for anchor, title, _ in parts)
    body = "".join(f'<section id="{escape(anchor)}"><h2>{escape(title)}</h2>{content}</section>' for anchor, title, content in parts)
    files = importlib.resources.files("offspan.report")
    style, frame = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "page.html"))
    return Template(frame).substitute(heading=escape(heading), version=escape(version), style=style, contents=contents, body=body)


def _overview(sections: list[Section], missing: list[str], unreadable: list[str], claims: dict[str, Any] | None) -> str:
    """Every comparison with the paper in one table, each with a link to where it comes from."""
    compared = [(section, finding) for section in sections for finding in section.findings]
    parts = []
    if compared:
        agree = sum(finding.agrees for _, finding in compared)
        more = "; runs with more seeds are compared on their own" if len({one.what for _, one in compared}) < len(compared) else ""
        parts.append(f"<p><strong>{agree} of {len(compared)} comparisons with the paper's experiments agree</strong>{more}.</p>")
    else:
        parts.append("<p>No run here has the settings of the paper's experiments in full, so that there is nothing to compare.</p>")
    if claims is not None:
        holding, counted = _count(claims["claims"])
        parts.append(f'<p><strong>{holding} of {counted} checked claims hold</strong>: <a href="#statements">the statements</a>.</p>')
    if compared:
        rows = "".join(
            f'<tr><th scope="row"><a href="#run-{escape(section.name)}">{escape(section.name)}</a></th><td>{escape(finding.what)}</td>'
            f"<td>{escape(finding.paper)}</td><td>{escape(finding.ours)}</td>"
            f'<td class="{finding.verdict}">{finding.verdict}</td></tr>'
            for section, finding in compared
        )
        head = "".join(f'<th scope="col">{heading}</th>' for heading in ("run", "what", "the paper", "here", "verdict"))
        table = f"<table class='words'><caption>Beside the paper</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        parts.append(f'<div class="wide" role="region" aria-label="Beside the paper" tabindex="0">{table}</div>')
        parts.append(f'<p class="note">{JUDGED}</p>')
    parts += [f"<p>Left out: {escape(sentence)}</p>" for sentence in unreadable]
    if missing:
        listed = ", ".join(f"<code>offspan reproduce {escape(name)}</code>" for name in missing)
        parts.append(f"<p>Not run yet: {listed}.</p>")
    return "".join(parts)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(one)}" for key, one in value.items())
    if isinstance(value, list):
        shown = ", ".join(map(str, value[:8]))
        return shown if len(value) <= 8 else f"{shown}, … ({len(value)} in all)"
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def _statements(claims: dict[str, Any], intuition: Figure | None) -> str:
    settings = ", ".join(f"{key} = {value}" for key, value in claims["settings"].items())
    groups: dict[str, list[dict[str, Any]]] = {}
    for claim in claims["claims"]:
        groups.setdefault(claim["label"], []).append(claim)
    counts = {label: _count(group) for label, group in groups.items()}
    rows = [
        [label, statement_text(label) if label in STATEMENTS else "", "does not apply" if not counted else f"{holding} of {counted} hold"]
        for label, (holding, counted) in counts.items()
    ]
    fields = ("label", "text", "measured", "relation", "predicted", "route", "verdict")
    every = [[_words(claim[field]) for field in fields] for claim in claims["claims"]]
    note = f"At {settings} unless a claim says otherwise."
    summary = Sheet("Statements of the paper and beyond", ["label", "statement", "claims"], rows, note)
    whole = Sheet("All claims", ["label", "claim", "measured", "", "predicted", "by", "verdict"], every, "")
    picture = "" if intuition is None else _figure(intuition, "Where one step sends the unit circle, the seen and the unseen direction.")
    return (
        f"<p>Each prediction is compared with a measurement by another route; <code>offspan verify</code> does it again.</p>{picture}"
        + html_table(summary, "words")
        + f"<details><summary>All {len(every)} claims</summary>{html_table(whole, 'words')}</details>"
    )


def _count(claims: list[dict[str, Any]]) -> tuple[int, int]:
    """How many hold, of those that apply."""
    counted = [claim for claim in claims if claim["verdict"] != "does not apply"]
    return sum(claim["verdict"] == "holds" for claim in counted), len(counted)


def _figure(figure: Figure, words: str) -> str:
    picture = f'<img src="data:image/svg+xml,{quote(vector(figure), safe=PLAIN)}" alt="{escape(words)}">'
    box = f'<div class="wide" role="group" aria-label="{escape(words)}" tabindex="0">{picture}</div>'
    return f"<figure>{box}<figcaption>{escape(words)}</figcaption></figure>"


def vector(figure: Figure) -> str:
    """As SVG whose black follows the page's light or dark scheme; the same bits for the same figure."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "offspan", "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    drawn = file.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace("#000000", "currentColor").replace('"', "'")
    drawn = re.sub(r" d='[^']*'", lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), drawn)  # a hundredth of a point is enough
    return re.sub(r"\s+", " ", drawn).replace("<defs>", f"<style>{INK}</style><defs>", 1)
