"""What the docs say of the code is read from it when they are built: the reference, the import graph, and the lines of each package."""

import dataclasses
import doctest
import enum
import inspect
import pkgutil
import re
import sys
from collections import Counter
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import equinox as eqx  # noqa: E402
import typer  # noqa: E402

import offspan  # noqa: E402
from offspan.cli import app  # noqa: E402
from tests.test_architecture import LAYERS, MODULES, package, packages_imported  # noqa: E402

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
    "audit": "Audits",
    "errors": "Errors",
}


BY_NAME = [  # that one imports from their own modules
    *("systems.gymnasium.from_gymnasium", "systems.gymnasium.Observation", "systems.mujoco.from_mujoco", "systems.mjx.from_mjx"),
    *("systems.control.from_control", "policies.load_policy"),
]


def on_page_markdown(markdown: str, **_: Any) -> str:
    made = {"reference": reference, "command line": command_line, "import graph": import_graph, "lines of code": lines_of_code}
    for name, make in made.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", make())
    return markdown


def reference() -> str:
    """Every public name: how it is called, and its docstring, whose examples the tests run."""
    parts = []
    groups = {name: getattr(offspan, name).__module__.split(".")[1] for name in offspan.__all__}
    assert set(groups.values()) == set(GROUPS)
    for group, title in GROUPS.items():
        parts += [f"## {title}", *(_entry(name) for name in offspan.__all__ if groups[name] == group)]
    parts += ["## Others' systems and policies", *map(_entry, BY_NAME)]
    return "\n\n".join(parts)


def command_line() -> str:
    """Every command: what it does, its arguments and its options; and the options that stand before any command."""
    program: Any = typer.main.get_command(app)
    parts = ["### offspan", "```text\noffspan [OPTIONS] COMMAND …\n```", _paragraph(program.help or ""), _options(program)]
    for name, command in program.commands.items():
        words = " ".join(one.metavar or one.name.upper() for one in command.params if one.param_type_name == "argument")
        usage = f"offspan {name} {words} [OPTIONS]".replace("  ", " ")
        parts += [f"### offspan {name}", f"```text\n{usage}\n```", _paragraph(command.help or ""), _options(command)]
    return "\n\n".join(part for part in parts if part)


def _options(command: Any) -> str:
    options = [one for one in command.params if one.param_type_name == "option" and "--help" not in one.opts]
    rows = [f"| `{one.opts[0]}` | {one.help or ''} |" for one in options]
    return "\n".join(["| option | what |", "|---|---|", *rows]) if rows else ""


def _entry(name: str) -> str:
    value = getattr(offspan, name) if name in offspan.__all__ else pkgutil.resolve_name(f"offspan.{name}")
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
    """How it is made or called, without types, or the fields of a record; then what a class has that its bases do not."""
    if not inspect.isclass(value):
        return name + _signature(value)
    if issubclass(value, enum.Enum):
        return f"{name}: {', '.join(value.__members__)}"
    if issubclass(value, Exception):
        return f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
    record: Any = value
    fields = record._fields if issubclass(value, tuple) else [one.name for one in dataclasses.fields(record)]
    if inspect.isabstract(value):
        first = f"class {name}"
    else:
        first = name + (_signature(value) if issubclass(value, eqx.Module) else f"({', '.join(fields)})")
    inherited = {member for base in value.__mro__[1:] for member in vars(base)}
    own = {
        member: inspect.getattr_static(value, member)
        for member in vars(value)
        if member not in {*fields, *inherited} and (not member.startswith("_") or member in getattr(value, "__abstractmethods__", ()))
    }
    lines = [f"    .{member}" for member, one in own.items() if isinstance(one, property | cached_property)]
    lines += [
        f"    .{member}{_signature(getattr(value, member), without_self=not isinstance(one, classmethod))}".replace(".__call__", "")
        for member, one in own.items()
        if isinstance(one, classmethod) or callable(one)
    ]
    return "\n".join([first, *lines])


def _signature(value: Any, without_self: bool = False) -> str:
    signature = inspect.signature(value)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=plain[1 if without_self else 0 :], return_annotation=inspect.Signature.empty))


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
