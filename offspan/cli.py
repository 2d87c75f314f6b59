"""The command line: parse, call one function, print."""

import sys
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import offspan

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """How far does a learned controller reach beyond the initial states it was trained on?"""
    if version:
        print(f"offspan {offspan.__version__}")
        raise typer.Exit


@app.command()
def reproduce(
    folder: Annotated[Path, typer.Option(help="Where the figure and its data go.")] = Path("runs/first-look"),
) -> None:
    """Trains on the identity, shift and Gaussian systems; prints both normalised measures and draws the paper's bar figure."""
    from offspan.experiments.first_look import first_look
    from offspan.files import write_whole
    from offspan.report.figures import measure_bars
    from offspan.report.tables import measure_table

    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "measures.csv", Path.touch)  # a folder that cannot be written is worth knowing before the training
    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training linear controllers")
        result = first_look(lambda done, total: bar.update(task, completed=done, total=total))
    console.print(measure_table(result))
    figure = measure_bars(result)
    write_whole(folder / "measures.png", lambda path: figure.savefig(path, dpi=200))
    write_whole(folder / "measures.pdf", figure.savefig)
    write_whole(folder / "measures.csv", lambda path: result.to_dataframe().to_csv(path))
    console.print("The identity system explores nothing and its controllers do not extrapolate; the other two explore, and theirs do.")
    console.print(f"Figure: {folder}/measures.png (and .pdf), data: {folder}/measures.csv", soft_wrap=True)


def main() -> None:
    """A person's mistake is one sentence on stderr and exit code 2."""
    jax.config.update("jax_enable_x64", True)
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"offspan: {error}", file=sys.stderr)
        sys.exit(2)
