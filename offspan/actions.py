"""What the commands do once their words are understood: run, report and draw, with progress on the terminal."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import offspan
from offspan.errors import OffspanError, nearest
from offspan.experiments.gathering import finished, gather, stored_claims, variants
from offspan.experiments.run import run
from offspan.experiments.specs.base import Spec
from offspan.experiments.store import RunFolder, find_runs
from offspan.files import write_whole
from offspan.report import page, random_figures, theory_figures
from offspan.report.kinds import report
from offspan.report.paper import EXPERIMENTS
from offspan.report.tables import latex_table, markdown_table, terminal_table
from offspan.theory import illustrations, random_illustrations


def run_and_report(spec: Spec, folder: Path, console: Console) -> None:
    """Trains, prints the main table, and leaves figures, tables and animations in the run's folder."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    interrupted = False

    def interrupt(*_) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def progress(share: float) -> None:
        # Python drops an exception that is raised inside a finaliser, and with it a Ctrl-C at that moment.
        if interrupted:
            raise KeyboardInterrupt
        bar.update(task, completed=share)

    try:
        signal.signal(signal.SIGINT, interrupt)
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(spec.name, total=1.0)
            result = run(spec, folder, progress)
            bar.update(task, completed=1.0)
    except KeyboardInterrupt:
        print(f"offspan: stopped; what was done of {spec.name} is kept, and the same command goes on from there.", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    other = getattr(spec, "compare_with", None)
    beside = RunFolder(folder / other) if other else None
    if beside is not None and not beside.is_complete():
        console.print(f"Drawn alone: for the comparison with {other}, reproduce that first.")
        beside = None
    made = report(result, beside.load_result() if beside else None)
    console.print(terminal_table(made.sheets["table"]))
    tables = {f"{name}.md": markdown_table(sheet) for name, sheet in made.sheets.items()}
    tables |= {f"{name}.tex": latex_table(sheet) for name, sheet in made.sheets.items()}
    with console.status("drawing …"):
        written = RunFolder(folder / spec.name).save_report(made.figures(), tables, made.animations())
    console.print("Figures, their data and tables: " + ", ".join(str(path) for path in written), soft_wrap=True)


def write_report(runs: list[str], paper: bool, target: Path, folder: Path, console: Console) -> Path:
    """One page of the runs that are named, of the paper's, or of all that have a result; returns where it is."""
    if not target.parent.is_dir():
        raise OffspanError(f"there is no folder {str(target.parent)!r} to write {target.name} to.")
    presets = list(EXPERIMENTS)
    every = finished(folder)
    of_the_paper = variants(every, presets)
    names = runs or (of_the_paper if paper else [*of_the_paper, *(name for name in every if name not in of_the_paper)])
    claims = None if runs else stored_claims(folder)
    if not names and claims is None:
        raise OffspanError(f"there is no finished run in {folder} to report on; `offspan reproduce lqr` makes one.")
    sections, unreadable = [], []
    with console.status("drawing …") as status:
        for name in names:
            status.update(f"drawing {name} …")
            try:
                sections.append(reported(name, page.section, gather(folder, name)))
            except ValueError as error:
                if runs:
                    raise
                unreadable.append(str(error))  # one damaged run is no reason to show none
        intuition = theory_figures.intuition_figure(illustrations.intuition())[0] if claims else None
        missing = [name for name in presets if name not in names] if paper else []
        whole = "The paper, reproduced" + (" in part" if missing else "")
        heading = whole if paper else f"Report of {', '.join(runs)}" if runs else f"All runs in {folder}/"
        text = page.page(heading, offspan.__version__, sections, missing=missing, unreadable=unreadable, claims=claims, intuition=intuition)
        write_whole(target, lambda path: path.write_text(text, encoding="utf-8"))
    for sentence in unreadable:
        console.print(f"Left out: {sentence}", soft_wrap=True)
    return target


def draw_theory(target: Path, console: Console) -> None:
    """The figures of the theory pages, at their own settings."""

    with console.status("drawing …"):
        drawn = {
            "intuition": theory_figures.intuition_figure(illustrations.intuition()),
            "shift-horizon": theory_figures.shift_horizon_figure(illustrations.shift_over_horizons(), dim=5),
            "norm-gap": theory_figures.norm_gap_figure(illustrations.norm_gap_over_dimensions()),
            "shift-weights": theory_figures.weight_figure(illustrations.shift_over_weights(), dim=5),
            "random-bounds": random_figures.bounds_figure(random_illustrations.exact_and_bounds(dim=10), dim=10),
            "random-rates": random_figures.rates_figure(random_illustrations.best_rates()),
            "random-systems": random_figures.systems_figure(random_illustrations.ratios_of_systems()),
            "random-training": random_figures.end_figure(random_illustrations.first_step_and_end(5, 3), dim=5, horizon=3),
            "surfaces": random_figures.surfaces_figure(random_illustrations.small_surfaces()),
        }
        written = RunFolder(target).save_report(drawn, {})
    console.print("Figures and their data: " + ", ".join(str(path) for path in written), soft_wrap=True)


def stored_run(run: str, folder: Path) -> RunFolder:

    stored = RunFolder(folder / run)
    if not stored.spec_file.exists():
        raise OffspanError(f"there is no run {run!r} in {folder}{nearest(run, [found.path.name for found in find_runs(folder)])}.")
    return stored


def reported(name: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """What `make` makes of a result; a result that lacks what its kind has is a person's mistake, not the program's."""
    try:
        return make(*arguments)
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise OffspanError(f"the result of {name} does not hold what it should ({type(error).__name__}: {error}); run it again.") from error
