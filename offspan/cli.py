"""The command line: parse, call one function, print."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.table import Column, Table

import offspan

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console()

Root = Annotated[Path, typer.Option("--folder", help="Where runs are kept.")]
RUNS = Path("runs")


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """How far does a learned controller reach beyond the initial states it was trained on?"""
    if version:
        print(f"offspan {offspan.__version__}")
        raise typer.Exit


@app.command()
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Presets, as `offspan list` shows them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All presets.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer iterations, for a first look; says so on the figures.")] = False,
    seeds: Annotated[int | None, typer.Option("--seeds", help="This many seeds, 0, 1, …, in place of the preset's.")] = None,
    folder: Root = RUNS,
) -> None:
    """Runs experiments of the paper; prints their tables and draws their figures. `selection` stands for all presets selection-…"""
    from offspan.actions import run_and_report
    from offspan.experiments.specs.reading import load_preset, preset_names, presets_for

    if bool(names) == every:
        raise OffspanError("name the presets to reproduce (`offspan list` shows them), or say --all.")
    asked = preset_names() if every else [preset for name in names or [] for preset in presets_for(name)]
    specs = [load_preset(name) for name in dict.fromkeys(asked)]
    for spec in specs:
        spec = spec if seeds is None else spec.with_seeds(seeds)
        run_and_report(spec.as_quick() if quick else spec, folder, console)


@app.command("run")
def run_spec(spec: Annotated[Path, typer.Argument(metavar="SPEC.toml")], folder: Root = RUNS) -> None:
    """Runs an experiment of your own."""
    from offspan.actions import run_and_report
    from offspan.experiments.specs.reading import load_spec

    run_and_report(load_spec(spec), folder, console)


@app.command("select")
def select_states(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="A spec with a table `choose` in place of its seen states.")],
    method: Annotated[str | None, typer.Option(help="In place of the spec's.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where the spec with the chosen states is written; beside SPEC.toml by default.")
    ] = None,
) -> None:
    """Chooses the initial states to train on, says why, and writes a spec that `offspan run` takes."""
    import warnings

    from offspan.experiments.choosing import choose, save_chosen
    from offspan.report.choice import choice_sheet
    from offspan.report.tables import terminal_table

    if output is not None and not output.parent.is_dir():
        raise OffspanError(f"there is no folder {str(output.parent)!r} to write {output.name} to.")
    with console.status("choosing …"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "select: ")  # what it warns of is printed below
        chosen = choose(spec, method)
    console.print(terminal_table(choice_sheet(chosen.selection, chosen.candidates)))
    if chosen.selection.note:
        console.print(f"Note: {chosen.selection.note}", soft_wrap=True)
    path = output or spec.with_name(f"{chosen.spec.name}.toml")
    save_chosen(chosen.spec, path)
    console.print(f"Train on them: offspan run {path}", soft_wrap=True)


@app.command("map")
def map_region(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of network controllers.")],
    coordinate: Annotated[
        list[int] | None, typer.Option(help="Which coordinate of the state, counted from 0; say it twice for two.")
    ] = None,
    points: Annotated[int, typer.Option(help="Values of each coordinate.")] = 121,
    margin: Annotated[float, typer.Option(help="How far beyond the run's own states, as a share of their spread.")] = 0.25,
    folder: Root = RUNS,
) -> None:
    """Draws what a trained controller costs over a region of initial states, with the seen and unseen ones marked."""
    from offspan.actions import stored_run
    from offspan.experiments.mapping import map_of_run
    from offspan.report.maps import map_data, map_figure
    from offspan.report.network import NAMES

    stored = stored_run(run, folder)
    with console.status("drawing …"):
        found, spec, seen, unseen = map_of_run(stored, coordinate, points=points, margin=margin)
        names = [NAMES[spec.problem][d] for d in found.coordinates]
        others = ";\nthe other coordinates as in the mean of the seen states" if len(names) < len(NAMES[spec.problem]) else ""
        title = f"{'QUICK LOOK: ' if spec.quick else ''}{spec.name}: policy gradient, the seed of median measure{others}"
        figure = map_figure(found, seen, unseen=unseen, names=names, title=title)
        name = "map-" + "-".join(map(str, found.coordinates))
        written = stored.save_report({name: (figure, map_data(found, names))}, {})
    console.print("The map: " + ", ".join(str(path) for path in written) + ", with its data beside it", soft_wrap=True)


@app.command("list")
def list_all(folder: Root = RUNS) -> None:
    """Presets, and runs with their state."""
    from offspan.experiments.specs.reading import load_preset, preset_names
    from offspan.experiments.store import find_runs

    presets = Table(
        Column("preset", no_wrap=True), "what", "systems", title="Presets: offspan reproduce NAME", box=None, title_justify="left"
    )
    for name in preset_names():
        spec = load_preset(name)
        presets.add_row(name, spec.title, spec.content())
    console.print(presets)
    runs = Table("run", "state", "seconds", title=f"\nRuns in {folder}: offspan show NAME", box=None, title_justify="left")
    for run in find_runs(folder):
        runs.add_row(run.path.name, run.state(), str(run.provenance().get("seconds", "")))
    console.print(runs if runs.row_count else f"\nNo runs in {folder} yet.")


@app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    csv: Annotated[bool, typer.Option("--csv", help="The main table's numbers as CSV.")] = False,
    table: Annotated[str, typer.Option("--table", help="Which table, where a run has several.")] = "table",
    folder: Root = RUNS,
) -> None:
    """A table of a run."""
    from offspan.actions import reported, stored_run
    from offspan.errors import OffspanError, nearest
    from offspan.report.kinds import report
    from offspan.report.tables import terminal_table

    shown = reported(run, report, stored_run(run, folder).load_result())
    if table not in shown.sheets:
        raise OffspanError(f"{run} has no table {table!r}{nearest(table, list(shown.sheets))}; there are {', '.join(shown.sheets)}.")
    if csv and table != "table":
        raise OffspanError(
            "--csv gives the main table's numbers; the data behind figures and other tables are CSV files in the run's figures/."
        )
    if csv:
        print(shown.data.to_csv(index=False), end="")
    else:
        console.print(terminal_table(shown.sheets[table]))


@app.command("report")
def write_page(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Finished runs; all of them by default.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's experiments and statements, as far as they were run.")] = False,
    output: Annotated[Path | None, typer.Option(help="The page to write; in the folder of runs by default.")] = None,
    folder: Root = RUNS,
) -> None:
    """Writes one HTML page of one run, several or all: figures, tables, our numbers beside the paper's, and where it all comes from."""
    from offspan.actions import write_report

    if runs and paper:
        raise OffspanError("name the runs to report on, or say --paper, but not both.")
    named = list(dict.fromkeys(runs or []))
    usual = "paper" if paper else "-".join(["report", *named]) if len(named) <= 3 else f"report-{len(named)}-runs"
    target = write_report(named, paper, output or folder / f"{usual}.html", folder, console)
    console.print(f"The report: {target} (open it in a browser)", soft_wrap=True)


@app.command()
def verify(
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="[LABEL]...", help="Statements by the paper's labels; all by default.")
    ] = None,
    dim: Annotated[int, typer.Option(help="Dimension D of the states.")] = 5,
    horizon: Annotated[int, typer.Option(help="Horizon H.")] = 10,
    seeds: Annotated[int, typer.Option(help="Number of random systems, starts and controllers.")] = 5,
    figures: Annotated[bool, typer.Option("--figures", help="Draw the figures of the theory page, too (at their own settings).")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the statements and stop.")] = False,
    folder: Annotated[Path, typer.Option("--folder", help="Where `verify/` is written, over what an earlier verification left.")] = RUNS,
) -> None:
    """Checks the paper's statements: what each predicts against what is measured by another route; exit code 1 when a claim fails."""
    from offspan.actions import draw_theory
    from offspan.files import write_whole
    from offspan.report.claims import json_claims, markdown_claims, statement_text, terminal_claims
    from offspan.theory import verify as theory

    if listed:
        table = Table("label", "statement", box=None)
        for label in theory.STATEMENTS:
            table.add_row(label, statement_text(label))
        console.print(table)
        return

    settings = theory.Settings(dim, horizon, seeds)
    with console.status("verifying …") as status:
        claims = list(theory.verify(labels or (), settings, lambda label: status.update(f"verifying {label} …")))
    console.print(terminal_claims(claims, settings))
    target = folder / "verify"
    target.mkdir(parents=True, exist_ok=True)
    stem = "some-claims" if labels else "claims"  # a look at one statement leaves the whole verification as it is
    texts = {f"{stem}.md": markdown_claims(claims, settings), f"{stem}.json": json_claims(claims, settings, offspan.__version__)}
    for name, text in texts.items():
        write_whole(target / name, lambda path, text=text: path.write_text(text, encoding="utf-8"))
    console.print("With statements, routes and tolerances: " + ", ".join(str(target / name) for name in texts), soft_wrap=True)
    if figures:
        draw_theory(target, console)
    if not all(claim.holds for claim in claims):
        raise typer.Exit(1)


def _cores() -> int:
    """The cores that this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    """A person's mistake is one sentence on stderr and exit code 2."""
    jax.config.update("jax_enable_x64", True)
    with suppress(RuntimeError):  # a backend that is already running keeps its devices
        jax.config.update("jax_num_cpu_devices", _cores())
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"offspan: {error}", file=sys.stderr)
        sys.exit(2)
