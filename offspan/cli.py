"""The command line: parse, call one function, print."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

import offspan
from offspan.errors import OffspanError, check_known
from offspan.experiments.programs import keep_programs
from offspan.files import make_folder, printable, sentence, without_formulas
from offspan.terminal import Stopped, console, progress_of, status, stoppable

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
show_tracebacks = False  # of errors that are a person's to mend; of others they are always shown

Root = Annotated[Path, typer.Option("--folder", help="Where runs are kept.")]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="Run the code that the spec names.")]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="PLACE", help="Where tasks run: local:4 (workers here), tcp://host:8786, or a scheduler file."),
]
RUNS = Path("runs")


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of every error.")] = False,
) -> None:
    """How far does a learned controller reach beyond the initial states it was trained on?"""
    if version:
        print(f"offspan {offspan.__version__}")
        raise typer.Exit
    global show_tracebacks
    show_tracebacks = debug


@app.command()
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Presets, as `offspan list` shows them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All presets.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer iterations; marked as such on the figures.")] = False,
    seeds: Annotated[int | None, typer.Option("--seeds", help="This many seeds, 0, 1, …, in place of the preset's.")] = None,
    seeds_per_task: Annotated[
        int | None, typer.Option("--seeds-per-task", help="Split the training into tasks of this many seeds, for a cluster.")
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Train the objectives of network experiments as one program: faster on a GPU.")
    ] = False,
    cluster: Cluster = None,
    folder: Root = RUNS,
) -> None:
    """Runs experiments of the paper; prints their tables and draws their figures. `selection` stands for all presets selection-…"""
    from offspan.experiments.registry import load_preset, preset_names, presets_for

    if bool(names) == every:
        raise OffspanError("name the presets to reproduce (`offspan list` shows them), or say --all.")
    asked = preset_names() if every else [preset for name in names or [] for preset in presets_for(name)]
    specs = [load_preset(name) for name in dict.fromkeys(asked)]
    if seeds is not None:
        specs = [spec.with_seeds(seeds) for spec in specs]
    if seeds_per_task is not None:
        specs = [spec.with_seeds_per_task(seeds_per_task) for spec in specs]
    if together:
        specs = [spec.as_one_program() for spec in specs]
    with _executor(cluster) as executor:
        for spec in specs:
            run_and_report(spec.as_quick() if quick else spec, folder, executor)


@app.command("run")
def run_spec(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml")], trust_code: TrustCode = False, cluster: Cluster = None, folder: Root = RUNS
) -> None:
    """Runs an experiment of your own."""
    from offspan.experiments.registry import load_spec

    loaded = load_spec(spec, trust_code=trust_code)
    with _executor(cluster) as executor:
        run_and_report(loaded, folder, executor)


@contextmanager
def _executor(cluster: str | None) -> Iterator[Any]:
    """Where tasks run."""
    from offspan.experiments.executor import Here

    say = lambda words: console.print(words, soft_wrap=True)  # noqa: E731
    if cluster is None:
        yield Here(say=say)
        return
    from offspan.experiments.cluster import Dask

    Stopped.closing = 20.0  # workers that are ended in the middle leave things behind
    with Dask(cluster, say=say) as executor:
        yield executor


def run_and_report(spec: Any, folder: Path, executor: Any) -> None:
    """Trains, prints the main table, and leaves figures, tables and animations in the run's folder."""
    from offspan.experiments.estimate import announcement
    from offspan.experiments.executor import Here
    from offspan.experiments.run import run
    from offspan.experiments.store import RunFolder, beside
    from offspan.report.results import report
    from offspan.report.tables import latex_table, markdown_table, terminal_table

    def kept() -> str:
        there = RunFolder(folder / spec.name)
        if there.is_complete():
            return f"the result of {spec.name} is kept, and the same command draws it"
        has = any(there.checkpoints.glob("[!.]*.npz"))  # the others are half written
        return f"what was done of {spec.name} is kept, and the same command resumes from there" if has else "nothing was done yet"

    other = beside(spec, folder)
    if not RunFolder(folder / spec.name).is_complete() and isinstance(executor, Here) and (said := announcement(spec)):
        console.print(said, soft_wrap=True)
    with progress_of(spec.name, kept) as progress:
        result = run(spec, folder, progress, executor=executor, doing=lambda what: progress(None, f"{spec.name}: {what}"))
    if other is None and (name := getattr(spec, "compare_with", None)):
        console.print(f"Drawn alone: for the comparison with {name}, reproduce that first.")
    with stoppable(kept):
        with status("summarising …"):
            made = report(result, other)
        console.print(terminal_table(made.tables["table"]))
        tables = {
            f"{name}.{suffix}": write(table)
            for suffix, write in (("md", markdown_table), ("tex", latex_table))
            for name, table in made.tables.items()
        }
        with status("drawing …"):
            written = RunFolder(folder / spec.name).save_report(made.figures(), tables, made.animations())
    console.print("Figures, their data and tables: " + ", ".join(str(path) for path in written), soft_wrap=True)


@app.command("select")
def select_states(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="A spec with a table `choose` in place of its seen states.")],
    method: Annotated[str | None, typer.Option(help="In place of the spec's.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where the spec with the chosen states is written; beside SPEC.toml by default.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Chooses the initial states to train on, says why, and writes a spec that `offspan run` takes."""
    import warnings

    from offspan.experiments.choosing import choose, save_chosen
    from offspan.report.selection import choice_table
    from offspan.report.tables import terminal_table

    with status("choosing …"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "select: ")  # what it warns of is printed below
        chosen = choose(spec, method, output=output, trust_code=trust_code)
    console.print(terminal_table(choice_table(chosen.selection, chosen.candidates)))
    if chosen.selection.note:
        console.print(f"Note: {chosen.selection.note}", soft_wrap=True)
    save_chosen(chosen.spec, chosen.path)
    console.print(f"Train on them: offspan run {chosen.path}", soft_wrap=True)


@app.command("map")
def map_region(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of controllers, or the spec that it ran.")],
    coordinate: Annotated[
        list[int] | None, typer.Option(help="Which coordinate of the state, counted from 0; say it twice for two.")
    ] = None,
    points: Annotated[int | None, typer.Option(help="Values of each coordinate; 121, or as many as the spec says.")] = None,
    margin: Annotated[float, typer.Option(help="How far beyond the run's own states, as a share of their spread.")] = 0.25,
    trust_code: TrustCode = False,
    folder: Root = RUNS,
) -> None:
    """Draws what a trained controller costs over a region of initial states, with the seen and unseen ones marked."""
    from offspan.experiments.mapping import map_of_run
    from offspan.experiments.registry import load_spec
    from offspan.experiments.store import find_run
    from offspan.report.maps import map_data, map_figure

    spec = load_spec(Path(run), trust_code=trust_code) if run.endswith(".toml") else None
    if spec is not None:
        spec.check()
    stored = find_run(folder, run if spec is None else spec.name)
    with status("drawing …"):
        options: Any = {"points": points, "margin": margin, "trust_code": trust_code}
        made = map_of_run(stored, coordinate, spec=spec, **options)
        found, names = made.map, [made.coordinates[d] for d in made.map.coordinates]
        others = "; the other coordinates as in the mean of the seen states" if len(names) < len(made.coordinates) else ""
        figure = map_figure(
            found,
            made.seen,
            unseen=made.unseen if len(made.unseen) else None,
            names=names,
            title=made.title + others,
            target=made.target,
            success=made.success,
            criterion=made.criterion,
            unseen_success=made.unseen_success,
        )
        name = "map-" + "-".join(map(str, found.coordinates))
        written = stored.save_report({name: (figure, map_data(found, names))}, {})
    console.print("The map: " + ", ".join(str(path) for path in written) + ", with its data beside it", soft_wrap=True)


@app.command("audit")
def audit_controller(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Names a system, a controller, its seen states and a region.")],
    output: Annotated[Path | None, typer.Option(help="Where the page is written; beside SPEC.toml by default.")] = None,
    trust_code: TrustCode = False,
    folder: Root = RUNS,
) -> None:
    """Where does a controller work, where does it fail, and which initial states should be added? One page of HTML."""
    from offspan.experiments.auditing import audit_file
    from offspan.experiments.spec import read_toml
    from offspan.report.audit import summary_table, write_page
    from offspan.report.page import check_target
    from offspan.report.tables import terminal_table

    read_toml(spec)  # which says what is wrong with the file
    path = output or spec.with_suffix(".html")
    check_target(path)

    def finish(asked: Any, found: Any) -> None:
        console.print(terminal_table(summary_table(found)))
        console.print(printable(str(found)), soft_wrap=True)
        write_page(found, path, asked.title or f"Audit: {asked.name}", *asked.subject())
        console.print(f"The page: {path} (open it in a browser)", soft_wrap=True)

    with progress_of(spec.stem, lambda: "parts that were finished, if any, are kept, and the same command makes the others") as progress:
        audit_file(spec, folder, finish, trust_code=trust_code, progress=progress)


@app.command("list")
def list_all(folder: Root = RUNS) -> None:
    """Presets, and runs with their state."""
    from offspan.experiments.registry import load_preset, preset_names
    from offspan.experiments.store import find_runs

    presets = Table(
        Column("preset", no_wrap=True), "what", "systems", title="Presets: offspan reproduce NAME", box=None, title_justify="left"
    )
    for name in preset_names():
        spec = load_preset(name)
        if console.width < 60:  # too narrow for columns
            console.print(f"{name}: {spec.title}; {spec.content()}")
        presets.add_row(name, spec.title, spec.content())
    if console.width >= 60:
        console.print(presets)
    runs = Table(
        Column("run", overflow="fold"), "state", "seconds", title=f"\nRuns in {folder}: offspan show NAME", box=None, title_justify="left"
    )
    for run in find_runs(folder):
        seconds = run.provenance().get("seconds")
        runs.add_row(printable(run.path.name), run.state(), str(seconds) if isinstance(seconds, float) else "")
    console.print(runs if runs.row_count else f"\nNo runs in {folder} yet.")


@app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    csv: Annotated[bool, typer.Option("--csv", help="The main table's numbers as CSV.")] = False,
    table: Annotated[str, typer.Option("--table", help="Which table, where a run has several.")] = "table",
    folder: Root = RUNS,
) -> None:
    """A table of a run."""
    from offspan.experiments.store import find_run
    from offspan.report.results import report
    from offspan.report.tables import terminal_table

    with console.status(Text("reading …")):  # which writes nothing into a pipe, where there may be CSV
        shown = report(find_run(folder, run).load_result())
    check_known(f"{run} has no table", table, shown.tables)
    if csv and table != "table":
        raise OffspanError(
            "--csv gives the main table's numbers; the data behind figures and other tables are CSV files in the run's figures/."
        )
    if csv:
        for line in without_formulas(shown.data).to_csv(index=False).splitlines():
            print(printable(line))
    else:
        console.print(terminal_table(shown.tables[table]))


@app.command("report")
def write_page(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Finished runs; all of them by default.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's experiments and statements, as far as they were run.")] = False,
    output: Annotated[Path | None, typer.Option(help="The page to write; in the folder of runs by default.")] = None,
    stored: Annotated[
        Path | None, typer.Option(help="A folder of full runs: each is shown, marked as such, before the quick look at the same preset.")
    ] = None,
    folder: Root = RUNS,
) -> None:
    """Writes one HTML page of one run, several or all: figures, tables, our numbers beside the paper's, and where it all comes from."""
    from offspan.report.page import write_page as write

    if runs and paper:
        raise OffspanError("name the runs to report on, or say --paper, but not both.")
    named = list(dict.fromkeys(runs or []))
    usual = "paper" if paper else "-".join(["report", *named]) if len(named) <= 3 else f"report-{len(named)}-runs"
    target = output or folder / f"{usual}.html"
    with status("drawing …") as update:
        on_run = lambda name: update(f"drawing {printable(name)} …")  # noqa: E731
        left_out = write(folder, named, paper=paper, target=target, on_run=on_run, stored=stored)
    for reason in left_out:
        console.print(f"Left out: {printable(reason)}", soft_wrap=True)
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
    cluster: Cluster = None,
    folder: Annotated[Path, typer.Option("--folder", help="Where `verify/` is written, over what an earlier verification left.")] = RUNS,
) -> None:
    """Checks the paper's statements: what each predicts against what is measured by another route; exit code 1 when a claim fails."""
    from offspan.experiments.store import RunFolder
    from offspan.experiments.verifying import check_place, verify_on
    from offspan.files import atomic_write_text
    from offspan.report.theory import json_claims, markdown_claims, statement_text, terminal_claims, theory_figures
    from offspan.theory import verify as theory

    if listed:
        for label in theory.STATEMENTS:
            console.print(Text(f"{theory.number_of(label)}: {label}", "bold", overflow="fold"))  # whole at any width
            console.print(Padding(Text(statement_text(label)), (0, 0, 0, 4)))
        return

    settings = theory.Settings(dim, horizon, seeds)
    asked = labels or list(theory.STATEMENTS)
    width = max(map(len, asked))
    target, stem = folder / "verify", "some-claims" if labels else "claims"  # one statement alone leaves the whole verification as it is
    check_place(target, [f"{stem}.md", f"{stem}.json"])
    with _executor(cluster) as executor, progress_of("verify", lambda: "no claims were written") as progress:
        claims = verify_on(executor, labels or (), settings, lambda share, doing: progress(share, f"{doing:{width}}"))
    console.print(terminal_claims(claims, settings))
    make_folder(target)
    texts = {f"{stem}.md": markdown_claims(claims, settings), f"{stem}.json": json_claims(claims, settings, offspan.__version__)}
    for name, text in texts.items():
        atomic_write_text(target / name, text)
    console.print("With statements, routes and tolerances: " + ", ".join(str(target / name) for name in texts), soft_wrap=True)
    if figures:
        with stoppable(lambda: "the claims are written"), status("drawing …"):
            written = RunFolder(target).save_report(theory_figures(), {})
        console.print("Figures and their data: " + ", ".join(str(path) for path in written), soft_wrap=True)
    if not all(claim.holds for claim in claims):
        raise typer.Exit(1)


@app.command()
def lab(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A finished LQR or network run to put into it.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="The page to write; offspan-lab.html, or lab-RUN.html, in this folder by default.")
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Write the page, and do not open it.")] = False,
    folder: Root = RUNS,
) -> None:
    """A page to play with: turn a dial and watch extrapolation follow exploration. One HTML file that needs no network."""
    import webbrowser

    from offspan.experiments.store import find_run
    from offspan.files import atomic_write_text
    from offspan.lab.build import page
    from offspan.lab.data import of_run, usual
    from offspan.report.page import check_target

    stored = None if run is None else find_run(folder, run)
    target = output or Path("offspan-lab.html" if stored is None else f"lab-{stored.path.name}.html")
    check_target(target)
    atomic_write_text(target, page(usual() if stored is None else of_run(stored)))
    console.print(f"The lab: {target} (open it in a browser)", soft_wrap=True)
    if not no_open:
        webbrowser.open(target.resolve().as_uri())


def _cores() -> int:
    """The cores that this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    """A person's mistake is one sentence on stderr and exit code 2; any other error is a bug, and shows its traceback."""
    Stopped.listen()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no ∇ gets a question mark
    try:
        jax.config.update("jax_enable_x64", True)
        with suppress(RuntimeError):  # a backend that is already running keeps its devices
            jax.config.update("jax_num_cpu_devices", _cores())
        keep_programs()
        app()
    except (Stopped, Exception) as error:
        if Stopped.by is not None:  # also where something turned it into an error of its own
            Stopped.tell()
            sys.exit(Stopped.exit_code())
        if show_tracebacks or not isinstance(error, OffspanError | OSError):
            raise
        print(f"offspan: {printable(sentence(error))}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
