"""One page of many runs: self-contained HTML without scripts, which needs no network and also prints. `page.html.jinja` is the page, and
this module gathers what it shows."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
import matplotlib
import xarray as xr
from markupsafe import Markup
from matplotlib.figure import Figure

import offspan
from offspan.errors import OffspanError
from offspan.experiments.registry import load_preset, preset_of
from offspan.experiments.spec import Spec, to_toml
from offspan.experiments.store import RunFolder, beside, find_run, find_runs
from offspan.files import atomic_write_text, check_writable, excerpt, read_bytes, sentence
from offspan.report.drawing import BEHIND_WORDS
from offspan.report.paper import EXPERIMENTS, Finding, findings
from offspan.report.results import report
from offspan.report.tables import Table
from offspan.report.theory import LEAST_AGREEING, STATEMENTS, intuition_figure, statement_text
from offspan.theory.illustrations import intuition
from offspan.theory.verify import number_of

# Black is the page's ink and `BEHIND_WORDS` its paper, light or dark; of other colours, a black that means a value is `drawing.INKY`.
INK = (
    "svg { color: #1f2328; fill: currentColor; --paper: #ffffff } "
    "@media (prefers-color-scheme: dark) { svg { color: #e6e9ed; --paper: #14181d } }"
)
PLAIN = " '/:;,.=()<>-+!*~_{}@"  # characters that are frequent in an SVG and allowed in a data address
CLAIM = ("label", "text", "measured", "relation", "predicted", "route", "verdict")  # the fields of a stored claim that are shown
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class Gathered(NamedTuple):
    """A finished run."""

    name: str  # of its folder
    title: str
    content: str  # what was asked, in a few words
    asked: str  # its spec, as TOML
    preset: str | None  # whose settings these are
    command: str  # that runs it again
    result: xr.Dataset
    beside: xr.Dataset | None
    provenance: dict[str, Any]


class Picture(NamedTuple):
    """A figure as a data address, and its description."""

    address: Markup
    words: str


class Section(NamedTuple):
    """What the page shows of one run."""

    run: Gathered
    heading: str
    findings: list[Finding]
    pictures: list[Picture]
    tables: list[Table]
    origin: Table


def check_target(path: Path) -> None:
    """Whether a page may be written there: where there is nothing yet, or a page of ours."""
    check_writable(path, _is_ours, "is no page of offspan")


def _is_ours(content: bytes) -> bool:
    return content.lstrip().lower().startswith(b"<!doctype html") and b"Made by offspan" in content


def write_page(
    root: Path, runs: list[str], *, paper: bool, target: Path, on_run: Callable[[str], object] | None = None, stored: Path | None = None
) -> list[str]:
    """Writes one page of the runs that are named, of the paper's, or of all under `root` that have a result, to `target`.

    `on_run` is called with each name before it is drawn. If `root` has only a quick run, the full run of the same preset that the folder
    `stored` holds is shown before it, marked as such. Returns a sentence for each run that was left out, as it cannot be read; one that
    is named is an error.
    """
    if stored is not None and not stored.is_dir():
        raise OffspanError(f"--stored is {str(stored)!r}, but there is no such folder.")
    for name in runs:
        find_run(root, name)  # which says what there is
    every = finished(root)
    of_the_paper = variants(every, list(EXPERIMENTS))
    names = runs or (of_the_paper if paper else [*of_the_paper, *(name for name in every if name not in of_the_paper)])
    claims = None if runs else stored_claims(root)
    if not names and claims is None:
        raise OffspanError(f"there is no finished run in {root} to report on; `offspan reproduce lqr` makes one.")
    check_target(target)
    sections, left_out = [], []
    for name in names:
        if on_run is not None:
            on_run(name)
        full = name.removesuffix("-quick")
        try:
            if stored is not None and full not in (name, *every) and RunFolder(stored / full).is_complete():
                whole_run = section(gather(stored, full))
                sections.append(whole_run._replace(heading=f"{whole_run.heading}: the stored full run"))
            sections.append(section(gather(root, name)))
        except (OffspanError, OSError) as error:
            if runs:
                raise
            left_out.append(sentence(error))
    missing = [name for name in EXPERIMENTS if name not in names] if paper else []
    whole = "The paper, reproduced" + (" in part" if missing else "")
    heading = whole if paper else f"Report of {', '.join(runs)}" if runs else f"All runs in {root}/"
    atomic_write_text(target, page(heading, sections, missing=missing, left_out=left_out, claims=claims))
    return left_out


def page(heading: str, sections: list[Section], *, missing: list[str], left_out: list[str], claims: dict[str, Any] | None) -> str:
    """`missing` are presets that were not run, `left_out` says why runs are not shown, `claims` is the content of claims.json."""
    names = {section.run.name for section in sections}
    return TEMPLATES.get_template("page.html.jinja").render(
        heading=heading,
        version=offspan.__version__,
        experiments=EXPERIMENTS,
        sections=sections,
        compared=[(section.run.name, finding) for section in sections for finding in section.findings],
        repeated=sum(len(one.findings) for one in sections if one.run.name != one.run.preset and one.run.preset in names),
        statements=None if claims is None else _statements(claims),
        missing=missing,
        left_out=left_out,
    )


def section(run: Gathered) -> Section:
    made = report(run.result, run.beside)
    return Section(
        run,
        run.title if run.title and run.name == run.preset else f"{run.title} ({run.name})" if run.title else run.name,
        findings(run.preset, run.result, run.beside),
        [picture(figure, f"{run.name}: {made.captions[name]}") for name, (figure, _) in made.figures().items()],
        list(made.tables.values()),
        Table(f"{run.name}: provenance", ["what", "value"], [[key, _words(one)] for key, one in run.provenance.items()]),
    )


def picture(figure: Figure, words: str) -> Picture:
    return Picture(Markup("data:image/svg+xml," + quote(vector(figure), safe=PLAIN)), words)


def vector(figure: Figure) -> str:
    """As SVG whose black follows the page's light or dark scheme; the same bits for the same figure."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "offspan", "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    drawn = file.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace("#000000", "currentColor").replace(BEHIND_WORDS, "var(--paper)").replace('"', "'")
    drawn = re.sub(r" d='[^']*'", lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), drawn)  # a hundredth of a point is enough
    return re.sub(r"\s+", " ", drawn).replace("<defs>", f"<style>{INK}</style><defs>", 1)


def _statements(claims: dict[str, Any]) -> dict[str, Any]:
    """The picture and the tables of the statements, and how many claims hold, of those that apply."""
    every = claims["claims"]
    rows = []
    for label in dict.fromkeys(claim["label"] for claim in every):
        holding, counted = _count([claim for claim in every if claim["label"] == label])
        text = statement_text(label) if label in STATEMENTS else ""
        rows.append([number_of(label), label, text, f"{holding} of {counted} hold" if counted else "does not apply"])
    settings = ", ".join(f"{key} = {value}" for key, value in claims["settings"].items())
    note = f"At {settings} unless a claim says otherwise. {LEAST_AGREEING}"
    all_rows = [[_words(claim[field]) for field in CLAIM] for claim in every]
    return {
        "count": _count(every),
        "picture": picture(intuition_figure(intuition())[0], "Where one step sends the unit circle, the seen and the unseen direction."),
        "summary": Table("Statements of the paper and beyond", ["in the paper", "label", "statement", "claims"], rows, note),
        "all": Table("All claims", ["label", "claim", "measured", "", "predicted", "by", "verdict"], all_rows),
    }


def _count(claims: list[dict[str, Any]]) -> tuple[int, int]:
    counted = [claim for claim in claims if claim["verdict"] != "does not apply"]
    return sum(claim["verdict"] == "holds" for claim in counted), len(counted)


def _words(value: Any, levels: int = 8) -> str:
    if isinstance(value, dict | list):
        if not levels:
            return "…"
        inside = lambda one: _words(one, levels - 1)  # noqa: E731
        parts = [f"{key} {inside(one)}" for key, one in value.items()] if isinstance(value, dict) else list(map(inside, value))
        return ", ".join(parts) if len(parts) <= 8 else f"{', '.join(parts[:8])}, … ({len(parts)} in all)"
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def gather(root: Path, name: str) -> Gathered:
    """The run of that name under `root`."""
    folder = find_run(root, name)
    spec = folder.spec()
    return Gathered(
        name,
        spec.title,
        f"{spec.content()}; {len(spec.seeds)} seed{'s' if len(spec.seeds) > 1 else ''}, {spec.iterations:,} iterations, {spec.precision}",
        to_toml(spec),
        preset_of(spec),
        command_line(spec, folder.spec_file),
        folder.load_result(),
        beside(spec, root),
        folder.provenance(),
    )


def finished(root: Path) -> list[str]:
    """The names of all runs under `root` that have a result, or may have one, as they cannot be looked into."""

    def may_be(run: RunFolder) -> bool:
        try:
            return run.is_complete()
        except PermissionError:
            return True

    return [run.path.name for run in find_runs(root) if may_be(run)]


def variants(names: list[str], presets: list[str]) -> list[str]:
    """Of the names, those of each preset and of its variants, as the options of `offspan reproduce` name them."""
    options = r"(-\d+-seeds)?(-\d+-a-task)?(-together)?(-quick)?"
    return [name for preset in presets for name in names if re.fullmatch(preset + options, name)]


def stored_claims(root: Path) -> dict[str, Any] | None:
    """What `offspan verify` has written there, if it has."""
    path = root / "verify" / "claims.json"
    if not path.exists():
        return None
    try:
        content = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise OffspanError(f"{path} cannot be read ({excerpt(error)}); write it again with `offspan verify`.") from error
    if not (isinstance(content, dict) and isinstance(content.get("settings"), dict) and _are_claims(content.get("claims"))):
        raise OffspanError(f"{path} does not hold settings and claims; write it again with `offspan verify`.")
    return content


def _are_claims(claims: Any) -> bool:
    return isinstance(claims, list) and all(
        isinstance(claim, dict)
        and isinstance(claim.get("label"), str)
        and all(field in claim and isinstance(claim[field], str | int | float | None) for field in CLAIM)
        for claim in claims
    )


def command_line(spec: Spec, path: Path) -> str:
    """The command that runs it again."""
    if (name := preset_of(spec)) is not None:
        preset, count = load_preset(name), len(spec.seeds)
        variants = {f"offspan reproduce {name}": preset, f"offspan reproduce {name} --seeds {count}": preset.with_seeds(count)}
        if (share := spec.seeds_per_task) is not None:
            variants = {f"{command} --seeds-per-task {share}": variant.with_seeds_per_task(share) for command, variant in variants.items()}
        if getattr(spec, "together", False):
            variants = {f"{command} --together": variant.as_one_program() for command, variant in variants.items()}
        variants |= {f"{command} --quick": variant.as_quick() for command, variant in variants.items()}
        for command, variant in variants.items():
            if variant.digest() == spec.digest():
                return command
    return f"offspan run {path}"
