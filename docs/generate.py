"""Writes the pages of the docs that are made from the code, into docs/generated: run it before mkdocs, as `make docs` does.

The reference and its sources, the command line, the change log, the import graph, the lines of each package, and the notebooks, executed.
"""

import base64
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402

from docs import api  # noqa: E402
from offspan.cli import app  # noqa: E402
from tests.test_architecture import LAYERS, MODULES, package, packages_imported  # noqa: E402

GENERATED = ROOT / "docs" / "generated"


def main() -> None:
    shutil.rmtree(GENERATED, ignore_errors=True)
    texts = {
        **{f"api/{name}": text for name, text in api.pages().items()},
        **{f"source/{name}": text for name, text in api.sources().items()},
        "names.txt": api.overview(),
        "command_line.md": command_line(),
        "changes.md": (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](../"),
        "import_graph.txt": import_graph(),
        "lines_of_code.txt": lines_of_code(),
    }
    for name, text in texts.items():
        path = GENERATED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        write_notebook(notebook, GENERATED / "notebooks")


def command_line() -> str:
    """Every command: what it does, its arguments and its options; and the options that stand before any command."""
    program: Any = typer.main.get_command(app)
    parts = [
        "# The command line",
        "Each command has `--help`. An invalid command, spec or file prints one sentence on stderr and ends with exit code 2; "
        "`offspan verify` ends with 1 when a claim fails. Ctrl-C ends with 130, and the same command resumes from the last checkpoint.",
        "\n".join(["| command | what it does |", "|---|---|", *(_row(name, one) for name, one in program.commands.items())]),
        "## offspan",
        "```text\noffspan [OPTIONS] COMMAND …\n```",
        api.paragraph(program.help or ""),
        _options(program),
    ]
    for name, command in program.commands.items():
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        usage = " ".join(["offspan", name, *(one.metavar or one.name.upper() for one in arguments), "[OPTIONS]"])
        parts += [f"## offspan {name}", f"```text\n{usage}\n```", api.paragraph(command.help or ""), _options(command)]
    return "\n\n".join(part for part in parts if part)


def _row(name: str, command: Any) -> str:
    return f"| [`offspan {name}`](#offspan-{name}) | {api.paragraph(command.help or '')[3:-4]} |"


def _options(command: Any) -> str:
    rows = [
        f"| `{one.metavar or one.name.upper()}` | {one.help} |" for one in command.params if one.param_type_name == "argument" and one.help
    ]
    options = [one for one in command.params if one.param_type_name == "option" and "--help" not in one.opts]
    rows += [f"| `{', '.join(one.opts)}` | {one.help or ''}{_default(one)} |" for one in options]
    return "\n".join(["| argument or option | what |", "|---|---|", *rows]) if rows else ""


def _default(option: Any) -> str:
    return "" if option.default in (None, False) else f" Default: `{option.default}`."


def import_graph() -> str:
    """An arc for every import of one package by another that is not implied by others; all lead upwards."""
    needs = {name: packages_imported(name) - {""} for name in LAYERS}
    everything: dict[str, set[str]] = {}
    for name in LAYERS:  # those above come first
        everything[name] = needs[name].union(*(everything[one] for one in needs[name]))
    step, left = 30, 120
    drawn = []
    for name in LAYERS:
        implied = set().union(*(everything[one] for one in needs[name]))
        low = step * LAYERS.index(name) + 20
        for one in sorted(needs[name] - implied):
            high = step * LAYERS.index(one) + 20
            reach = left + 14 + 0.8 * (low - high)
            drawn.append(f'<path d="M{left + 8} {low} C{reach:.0f} {low} {reach:.0f} {high} {left + 12} {high}" marker-end="url(#up)"/>')
    names = [f'<text x="{left}" y="{step * i + 24}" text-anchor="end">{name}</text>' for i, name in enumerate(LAYERS)]
    return (
        f'<svg viewBox="0 0 420 {step * len(LAYERS) + 20}" role="img" aria-label="The packages of offspan in the order of their '
        'imports; every arc leads upwards." style="max-width: 30rem; font: 13px sans-serif; fill: currentColor">'
        '<defs><marker id="up" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" orient="auto">'
        '<path d="M0 0 L6 3 L0 6 z" fill="currentColor"/></marker></defs>'
        f'<g fill="none" stroke="currentColor" stroke-opacity="0.7">{"".join(drawn)}</g>{"".join(names)}</svg>'
    )


def lines_of_code() -> str:
    counted: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for module, path in MODULES.items():
        counted[package(module)] += len(path.read_text().splitlines())
        modules[package(module)] += 1
    rows = [f"| `{name}` | {modules[name]} | {counted[name]:,} |" for name in LAYERS]
    tests = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests").glob("*.py"))
    rows += [f"| all of `offspan/` | {sum(modules.values())} | {sum(counted.values()):,} |", f"| `tests/` | | {tests:,} |"]
    return "\n".join(["| package | modules | lines |", "|---|---|---|", *rows])


def write_notebook(path: Path, folder: Path) -> None:
    """A notebook, executed from its first cell to its last, as a page with its outputs; an error in a cell stops the build."""
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    local = Config(KernelManager={"transport": "tcp" if os.name == "nt" else "ipc"})
    NotebookClient(notebook, timeout=120, kernel_name="python3", config=local).execute(cwd=str(ROOT))
    folder.mkdir(parents=True, exist_ok=True)
    parts, pictures = [], 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if printed := "".join(one.text for one in cell.outputs if one.output_type == "stream" and one.name == "stdout"):
            parts.append(f"```text\n{printed.rstrip()}\n```")
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                pictures += 1
                name = f"{path.stem}-{pictures}.png"
                (folder / name).write_bytes(base64.b64decode(output.data["image/png"]))
                parts.append(f"![{cell.metadata.get('alt', 'What the cell above draws.')}]({name})")
    assert pictures, f"{path.name} ends in no picture"
    parts.append(f"*This page is the notebook `notebooks/{path.name}` of the repository, executed when the docs were built.*")
    (folder / f"{path.stem}.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
