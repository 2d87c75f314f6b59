"""What the docs say of the code is read from it when they are built: the reference, the import graph, and the lines of each folder."""

import doctest
import inspect
import re
import sys
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402

import offspan  # noqa: E402
from offspan.cli import app  # noqa: E402
from tests.test_architecture import LAYERS, MODULES, imports  # noqa: E402

GROUPS = {
    "problems": "Problems",
    "controllers": "Controllers",
    "rollout": "Trajectories and costs",
    "states": "Sets of initial states",
    "baselines": "To compare with",
    "measures": "How far a controller reaches",
    "training": "Training",
    "exploration": "What training visits",
    "selection": "Choosing initial states",
    "maps": "Maps",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    made = {"reference": reference, "command line": command_line, "import graph": import_graph, "lines of code": lines_of_code}
    for name, make in made.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", make())
    return markdown


def reference() -> str:
    """Every public name: how it is called, and its docstring, whose examples the tests run."""
    parts = []
    for group, title in GROUPS.items():
        names = [name for name in offspan.__all__ if getattr(offspan, name).__module__.split(".")[1] == group]
        assert names, group
        parts += [f"## {title}", *(_entry(name) for name in names)]
    return "\n\n".join(parts)


def command_line() -> str:
    """Every command: what it does, its arguments and its options."""
    parts = []
    for name, command in typer.main.get_command(app).commands.items():  # pyright: ignore[reportAttributeAccessIssue]
        words = " ".join(one.metavar or one.name.upper() for one in command.params if one.param_type_name == "argument")
        usage = f"offspan {name} {words} [OPTIONS]".replace("  ", " ")
        parts += [f"### offspan {name}", f"```text\n{usage}\n```", _paragraph(command.help or "")]
        options = [one for one in command.params if one.param_type_name == "option" and "--help" not in one.opts]
        rows = [f"| `{one.opts[0]}` | {one.help or ''} |" for one in options]
        parts += ["\n".join(["| option | what |", "|---|---|", *rows])] if rows else []
    return "\n\n".join(parts)


def _entry(name: str) -> str:
    value = getattr(offspan, name)
    text = inspect.cleandoc(value.__doc__)
    examples = doctest.DocTestParser().get_examples(text)
    lines = text.splitlines()
    code = "\n".join(lines[examples[0].lineno :]).strip() if examples else ""
    words = "\n".join(lines[: examples[0].lineno] if examples else lines).strip()
    paragraphs = [_paragraph(paragraph) for paragraph in re.split(r"\n\s*\n", words)]
    return "\n\n".join([f"### `{name}`", f"```python\n{_call(name, value)}\n```", *paragraphs, f"```pycon\n{code}\n```"])


def _paragraph(text: str) -> str:
    return "<p>" + re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(" ".join(text.split()), quote=False)) + "</p>"


def _call(name: str, value: Any) -> str:
    """The signature without its types, or the fields of a record."""
    if hasattr(value, "_fields"):
        return f"{name}({', '.join(value._fields)})"
    if hasattr(value, "__members__"):
        return f"{name}: {', '.join(value.__members__)}"
    signature = inspect.signature(value)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return f"{name}{signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)}"


def _folder(module: str) -> str:
    return module.split(".")[0]


def import_graph() -> str:
    """An arc for every import of one folder by another that is not implied by others; all lead upwards."""
    folders = list(dict.fromkeys(map(_folder, LAYERS)))
    order = {folder: max(i for i, name in enumerate(LAYERS) if _folder(name) == folder) for folder in folders}
    folders.sort(key=order.__getitem__)
    needs: dict[str, set[str]] = {folder: set() for folder in folders}
    for name, path in MODULES.items():
        found = {one.removeprefix("offspan.") for one in imports(path) if one.startswith("offspan.")}
        needs[_folder(name)] |= {_folder(one) for one in found} - {_folder(name)}
    everything = {}
    for folder in folders:
        assert all(folders.index(one) < folders.index(folder) for one in needs[folder]), f"{folder} imports from below"
        everything[folder] = needs[folder].union(*(everything[one] for one in needs[folder]))
    step, left = 30, 120
    drawn = []
    for folder in folders:
        implied = set().union(*(everything[one] for one in needs[folder])) if needs[folder] else set()
        low = step * folders.index(folder) + 20
        for one in needs[folder] - implied:
            high = step * folders.index(one) + 20
            reach = left + 14 + 0.8 * (low - high)
            drawn.append(f'<path d="M{left + 8} {low} C{reach:.0f} {low} {reach:.0f} {high} {left + 12} {high}" marker-end="url(#up)"/>')
    names = [f'<text x="{left}" y="{step * i + 24}" text-anchor="end">{folder}</text>' for i, folder in enumerate(folders)]
    return (
        f'<svg viewBox="0 0 420 {step * len(folders) + 20}" role="img" aria-label="The folders of offspan in the order of their '
        'imports; every arc leads upwards." style="max-width: 30rem; font: 13px sans-serif; fill: currentColor">'
        '<defs><marker id="up" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" orient="auto">'
        '<path d="M0 0 L6 3 L0 6 z" fill="currentColor"/></marker></defs>'
        f'<g fill="none" stroke="currentColor" stroke-opacity="0.7">{"".join(drawn)}</g>{"".join(names)}</svg>'
    )


def lines_of_code() -> str:
    counted: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for name, path in MODULES.items():
        counted[_folder(name)] += len(path.read_text().splitlines())
        modules[_folder(name)] += 1
    rows = [f"| `{folder}` | {modules[folder]} | {counted[folder]:,} |" for folder in dict.fromkeys(map(_folder, LAYERS))]
    tests = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests").glob("*.py"))
    rows += [f"| all of `offspan/` | {sum(modules.values())} | {sum(counted.values()):,} |", f"| `tests/` | | {tests:,} |"]
    return "\n".join(["| folder | modules | lines |", "|---|---|---|", *rows])
