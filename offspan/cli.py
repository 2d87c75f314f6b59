"""The command line: parse, call one function, print."""

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

import offspan
from offspan.errors import OffspanError, check_known

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console(markup=False)  # names and folders may have brackets in them
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
    quick: Annotated[bool, typer.Option("--quick", help="Fewer iterations, for a first look; says so on the figures.")] = False,
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

    say = lambda sentence: console.print(sentence, soft_wrap=True)  # noqa: E731
    if cluster is None:
        yield Here(say=say)
        return
    from offspan.experiments.cluster import Dask

    with Dask(cluster, say=say) as executor:
        yield executor


def run_and_report(spec: Any, folder: Path, executor: Any) -> None:
    """Trains, prints the main table, and leaves figures, tables and animations in the run's folder."""
    from offspan.experiments.estimate import announcement
    from offspan.experiments.executor import Here
    from offspan.experiments.run import run
    from offspan.experiments.store import RunFolder
    from offspan.report.results import report
    from offspan.report.tables import latex_table, markdown_table, terminal_table

    def kept() -> str:
        has = any(RunFolder(folder / spec.name).checkpoints.glob("*.npz"))
        return f"what was done of {spec.name} is kept, and the same command resumes from there" if has else "nothing was done yet"

    if not RunFolder(folder / spec.name).is_complete() and isinstance(executor, Here) and (said := announcement(spec)):
        console.print(said, soft_wrap=True)
    with _progress(spec.name, kept) as progress:
        result = run(spec, folder, progress, executor=executor, doing=lambda what: progress(None, f"{spec.name}: {what}"))
    other = getattr(spec, "compare_with", None)
    beside = RunFolder(folder / other) if other else None
    if beside is not None and not beside.is_complete():
        console.print(f"Drawn alone: for the comparison with {other}, reproduce that first.")
        beside = None
    made = report(result, beside.load_result() if beside else None)
    console.print(terminal_table(made.tables["table"]))
    tables = {
        f"{name}.{suffix}": write(table)
        for suffix, write in (("md", markdown_table), ("tex", latex_table))
        for name, table in made.tables.items()
    }
    with console.status("drawing …"):
        written = RunFolder(folder / spec.name).save_report(made.figures(), tables, made.animations())
    console.print("Figures, their data and tables: " + ", ".join(str(path) for path in written), soft_wrap=True)


@contextmanager
def _progress(name: str, kept: Callable[[], str]) -> Iterator[Any]:
    """A progress bar, as a function of the share done and of what is being done, or None.

    A signal ends the command with a sentence, of which `kept` is the part that says what is left.
    """
    columns = BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(), TimeRemainingColumn()

    def progress(share: float | None, doing: str | None = None) -> None:
        # Python drops an exception that is raised inside a finaliser, and with it a Ctrl-C at that moment.
        if Stopped.by is not None:
            raise Stopped
        bar.update(task, completed=share, description=doing)

    try:
        with Progress(TextColumn("{task.description}", markup=False), *columns, console=console) as bar:
            task = bar.add_task(name, total=1.0)
            yield progress
            bar.update(task, completed=1.0, description=name)
    except (Stopped, KeyboardInterrupt):
        print(f"offspan: stopped; {kept()}.", file=sys.stderr)
        raise typer.Exit(Stopped.exit_code()) from None


class Stopped(BaseException):
    """By Ctrl-C, by SIGTERM, which a cluster sends before it kills, or by SIGHUP, when a terminal is closed."""

    by: ClassVar[int | None] = None

    @classmethod
    def listen(cls) -> None:
        def stop(signal_number: int, _: Any) -> None:
            cls.by = signal_number
            raise cls

        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and not (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):  # as under nohup
                signal.signal(number, stop)

    @classmethod
    def exit_code(cls) -> int:
        return 128 + (cls.by or signal.SIGINT)


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

    with console.status("choosing …"), warnings.catch_warnings():
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
    stored = find_run(folder, run if spec is None else spec.name)
    with console.status("drawing …"):
        options: Any = {"points": points, "margin": margin, "trust_code": trust_code}
        found, title, coordinates, seen, unseen = map_of_run(stored, coordinate, spec=spec, **options)
        names = [coordinates[d] for d in found.coordinates]
        others = ";\nthe other coordinates as in the mean of the seen states" if len(names) < len(coordinates) else ""
        title += others
        figure = map_figure(found, seen, unseen=unseen if len(unseen) else None, names=names, title=title)
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
    from offspan.report.audit import summary_table, write_page
    from offspan.report.page import check_target
    from offspan.report.tables import terminal_table

    path = output or spec.with_suffix(".html")
    check_target(path)

    def finish(asked: Any, found: Any) -> None:
        console.print(terminal_table(summary_table(found)))
        console.print(str(found), soft_wrap=True)
        write_page(found, path, asked.title or f"Audit: {asked.name}")
        console.print(f"The page: {path} (open it in a browser)", soft_wrap=True)

    with _progress(spec.stem, lambda: "parts that were finished are kept, and the same command continues with the others") as progress:
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
    from offspan.experiments.store import find_run
    from offspan.report.results import report
    from offspan.report.tables import terminal_table

    shown = report(find_run(folder, run).load_result())
    check_known(f"{run} has no table", table, shown.tables)
    if csv and table != "table":
        raise OffspanError(
            "--csv gives the main table's numbers; the data behind figures and other tables are CSV files in the run's figures/."
        )
    if csv:
        print(shown.data.to_csv(index=False), end="")
    else:
        console.print(terminal_table(shown.tables[table]))


@app.command("report")
def write_page(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Finished runs; all of them by default.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's experiments and statements, as far as they were run.")] = False,
    output: Annotated[Path | None, typer.Option(help="The page to write; in the folder of runs by default.")] = None,
    folder: Root = RUNS,
) -> None:
    """Writes one HTML page of one run, several or all: figures, tables, our numbers beside the paper's, and where it all comes from."""
    from offspan.report.page import write_page as write

    if runs and paper:
        raise OffspanError("name the runs to report on, or say --paper, but not both.")
    named = list(dict.fromkeys(runs or []))
    usual = "paper" if paper else "-".join(["report", *named]) if len(named) <= 3 else f"report-{len(named)}-runs"
    target = output or folder / f"{usual}.html"
    with console.status("drawing …") as status:
        left_out = write(folder, named, paper=paper, target=target, on_run=lambda name: status.update(Text(f"drawing {name} …")))
    for sentence in left_out:
        console.print(f"Left out: {sentence}", soft_wrap=True)
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
    from offspan.experiments.verifying import verify_on
    from offspan.files import atomic_write_text
    from offspan.report.theory import json_claims, markdown_claims, statement_text, terminal_claims, theory_figures
    from offspan.theory import verify as theory

    if listed:
        table = Table("label", "statement", box=None)
        for label in theory.STATEMENTS:
            table.add_row(label, statement_text(label))
        console.print(table)
        return

    settings = theory.Settings(dim, horizon, seeds)
    asked = labels or list(theory.STATEMENTS)
    width = max(map(len, asked))
    with _executor(cluster) as executor, _progress("verify", lambda: "no claims were written") as progress:
        claims = verify_on(executor, labels or (), settings, lambda share, doing: progress(share, f"{doing:{width}}"))
    console.print(terminal_claims(claims, settings))
    target = folder / "verify"
    target.mkdir(parents=True, exist_ok=True)
    stem = "some-claims" if labels else "claims"  # one statement alone leaves the whole verification as it is
    texts = {f"{stem}.md": markdown_claims(claims, settings), f"{stem}.json": json_claims(claims, settings, offspan.__version__)}
    for name, text in texts.items():
        atomic_write_text(target / name, text)
    console.print("With statements, routes and tolerances: " + ", ".join(str(target / name) for name in texts), soft_wrap=True)
    if figures:
        with console.status("drawing …"):
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

    target = output or Path("offspan-lab.html" if run is None else f"lab-{run}.html")
    check_target(target)
    atomic_write_text(target, page(usual() if run is None else of_run(find_run(folder, run))))
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
        app()
    except Stopped:
        print("offspan: stopped.", file=sys.stderr)
        sys.exit(Stopped.exit_code())
    except (OffspanError, OSError) as error:
        if show_tracebacks:
            raise
        said = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in str(error))  # no escape sequences from a file
        print(f"offspan: {said}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
