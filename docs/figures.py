"""The stored figures and tables, drawn from the stored results: `python docs/figures.py` writes those of docs/results, training nothing but
the network of the audit's example; names after it choose among them, such as `python docs/figures.py lqr pendulum verify`.

Files that are not there yet are not added, and named as left out: delete a figure to be rid of it, and touch one to have it.
"""

import contextlib
import dataclasses
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pandas as pd

import offspan
from offspan.errors import nearest
from offspan.experiments.mapping import map_of_run
from offspan.experiments.store import RunFolder
from offspan.report import audit as audit_report
from offspan.report.maps import map_figure
from offspan.report.page import gather
from offspan.report.results import report
from offspan.report.tables import markdown_table
from offspan.report.theory import theory_figures

RESULTS = Path(__file__).parent / "results"
DPI = 160


def is_stored(path: Path) -> bool:
    print(path.relative_to(RESULTS), end="\n" if path.exists() else ": left out, as it is not stored\n", flush=True)
    return path.exists()


def save(figure, path: Path) -> None:
    if is_stored(path):
        figure.savefig(path, dpi=DPI)


def draw_run(folder: Path) -> None:
    run = gather(RESULTS, folder.name)
    made = report(run.result, run.beside)
    for name, table in made.tables.items():
        if is_stored(folder / f"{name}.md"):
            (folder / f"{name}.md").write_text(markdown_table(table), encoding="utf-8")
    for name, (figure, _) in made.figures().items():
        save(figure, folder / f"{name}.png")
    for name, (first, *others) in made.animations().items() if (folder / "trajectories.gif").exists() else ():
        times = [600, *[60] * (len(others) - 1), 2000]
        first.save(folder / f"{name}.gif", save_all=True, append_images=others, duration=times, loop=0, optimize=True)
    if (path := folder / "map-0-2.png").exists():
        save(region(folder), path)


def region(folder: Path):
    made = map_of_run(RunFolder(folder), [0, 2], points=None, margin=0.25)
    names = [made.coordinates[d] for d in made.map.coordinates]
    title = f"{made.title}; the other coordinates as in the mean of the seen states"
    marks = {"target": made.target, "success": made.success, "criterion": made.criterion, "unseen_success": made.unseen_success}
    return map_figure(made.map, made.seen, unseen=made.unseen, names=names, title=title, **marks)


def draw_audit() -> None:
    """The example of docs/audit.md."""
    problem, seen = offspan.Pendulum(), jnp.array([[2.641, 0.0], [3.641, 0.0]])
    training = {"optimizer": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)), "iterations": 3_000}
    controller = offspan.train(problem, offspan.MLP.init(jax.random.key(0), 2, 1), seen, **training).controller

    def success(x):
        """the angle ends within 0.3 rad of upright"""
        return jnp.abs(x[0] - jnp.pi) < 0.3

    found = offspan.audit(problem, controller, seen, {0: (-3.0, 9.0), 1: (-6.0, 6.0)}, success=success)
    save(audit_report.map_figure(found, found.outcome), RESULTS / "audit" / "map.png")


def draw_cart_pole() -> None:
    """The README's example, by its own code and in its precision."""
    code = re.findall(r"```python\n(.*?)```", (RESULTS.parent.parent / "README.md").read_text(), re.DOTALL)[0]
    made: dict = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), jax.enable_x64(False):
        exec(code, made)  # it writes a page beside itself
    found = dataclasses.replace(made["found"], criterion="the angle ends within 0.1 rad of upright")
    save(audit_report.map_figure(found, found.outcome), RESULTS / "audit" / "cart-pole.png")


def draw_theory() -> None:
    for name, (figure, _) in theory_figures().items():
        save(figure, RESULTS / "verify" / f"{name}.png")


def draw_closed_loop() -> None:
    sys.path.insert(0, str(RESULTS.parent.parent / "examples" / "studies"))
    from closed_loop import figure  # pyright: ignore[reportMissingImports]

    save(figure(pd.read_csv(RESULTS / "closed-loop" / "results.csv")), RESULTS / "closed-loop" / "success.png")


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    runs = sorted(path.parent.name for path in RESULTS.glob("*/result.nc"))
    drawers = {name: partial(draw_run, RESULTS / name) for name in runs} | {
        "closed-loop": draw_closed_loop,
        "verify": draw_theory,
        "audit": draw_audit,
        "cart-pole": draw_cart_pole,
    }
    if unknown := [name for name in sys.argv[1:] if name not in drawers]:
        sys.exit(f"There are no figures of {unknown[0]!r}{nearest(unknown[0], list(drawers))}; there are those of: {', '.join(drawers)}.")
    for name in sys.argv[1:] or drawers:
        drawers[name]()


if __name__ == "__main__":
    main()
