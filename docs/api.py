"""The reference, read from the code: how each public name is called, its parameters, what it returns, its docstring and its source."""

import ast
import doctest
import enum
import functools
import inspect
import pkgutil
import re
import textwrap
import tomllib
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import offspan

HERE = Path(__file__).parent
MEANINGS: dict[str, Any] = tomllib.loads((HERE / "parameters.toml").read_text())

# An index after one letter or a bracket, but not inside a name such as stage_cost.
NAMED = "no-ext|ext|opt|cost|pg|adv|same|other|both|best|shift|std"
INDEX = rf"(?<![A-Za-z_:`])(mean|min|[A-Za-zα-ωΑ-Ω∇]\*?|[‖)⟩²])_(\{{[^}}]*\}}|{NAMED}|[0-9∞]|[A-Za-z](?![A-Za-z0-9_]))"
EXPONENT = r"([A-Za-zγ)⟩\]>])\^(\{[^}]*\}|\([^)]*\)|[A-Za-z0-9])"

# A page for each group: its title, and either a package of offspan, whose public names it lists, or the names themselves.
GROUPS: dict[str, tuple[str, str, list[str]]] = {
    "problems": ("Problems", "What is controlled: dynamics, cost and horizon, for one state and one control.", []),
    "controllers": (
        "Controllers",
        "u = π(x): functions of one state, as values. Any other function of one state will do, too.",
        [],
    ),
    "rollout": ("Trajectories and costs", "From a problem and a controller to states, controls and the cost J(π; X).", []),
    "states": ("Sets of initial states", "Arrays with one state in each row.", []),
    "baselines": ("Baselines", "What a learned controller is compared with. The closed forms are for R = 0 and B invertible.", []),
    "measures": (
        "Measures of extrapolation",
        "How well a controller does on unseen states. The paper's are for R = 0 and B invertible.",
        [],
    ),
    "training": (
        "Training",
        "Policy gradient: estimators of the gradient, stopping rules, and diagnoses of runs that diverged.",
        [],
    ),
    "exploration": ("Exploration", "Which states training visits, and how they relate to the unseen ones.", ["exploration.krylov_rank"]),
    "selection": ("Selection", "Which initial states to train on.", []),
    "maps": ("Maps", "Cost or success over a region of initial states.", ["report.maps.map_figure"]),
    "audit": ("Audit", "Where a controller works, where it fails, and which states to add.", ["audit.Outcome", "suggestions.Suggestion"]),
    "systems": (
        "Other systems and policies",
        "Adapters, each with an extra of its own (`pip install 'offspan[gymnasium]'`). Import them from their modules.",
        [
            *("systems.gymnasium.from_gymnasium", "systems.gymnasium.Observation", "systems.mujoco.from_mujoco", "systems.mjx.from_mjx"),
            *("systems.control.from_control", "policies.load_policy"),
        ],
    ),
    "theory": (
        "Theory",
        "The paper's statements, and those beyond it, in closed form. Import them from their modules.",
        [
            *("theory.verify.verify", "theory.claims.Settings", "theory.claims.Claim"),
            *("theory.closed_forms.shift_alpha_any_horizon", "theory.closed_forms.shift_learning_rate"),
            *("theory.closed_forms.shift_controller", "theory.closed_forms.shift_ratios", "theory.closed_forms.shift_from"),
            *("theory.flow.shift_flow", "theory.flow.flow_ratios"),
            *("theory.gaussian.first_step_law", "theory.gaussian.FirstStepLaw", "theory.gaussian.expected_gradient_norm"),
            *("theory.gaussian.bounds", "theory.gaussian.participation_ratio", "theory.gaussian.likely_dimension"),
            *("theory.planar.leading_order", "theory.concentration.alignment_spread", "theory.concentration.alignment_failure"),
            *("theory.concentration.step_failure", "theory.concentration.sufficient_dimension"),
            *("theory.riccati.riccati_solution", "theory.riccati.riccati_controller"),
            *("theory.riccati.infinite_horizon_cost", "theory.riccati.infinite_horizon_gradient"),
        ],
    ),
    "experiments": (
        "Experiments and reports",
        "What the command line calls: specs, run folders, figures and tables. Import them from their modules.",
        [
            *("experiments.registry.load_spec", "experiments.registry.load_preset", "experiments.registry.preset_names"),
            *("experiments.run.run", "experiments.store.find_run", "report.results.report", "report.results.Report"),
        ],
    ),
    "errors": ("Errors", "Invalid arguments, specs, files and commands.", []),
}


class Parameter(NamedTuple):
    name: str
    type: str
    default: str | None
    meaning: str


def pages() -> dict[str, str]:
    """The markdown of each group's page, by its file name."""
    return {f"{group}.md": "\n\n".join([f"# {title}", said, *map(entry, names(group))]) for group, (title, said, _) in GROUPS.items()}


def overview() -> str:
    """Every public name with its page, in one table."""
    rows = []
    for group, (title, _, _) in GROUPS.items():
        links = [f"[`{name.split('.')[-1]}`](generated/api/{group}.md#{anchor(name)})" for name in names(group)]
        rows.append(f"| [{title}](generated/api/{group}.md) | {', '.join(links)} |")
    return "\n".join(["| page | names |", "|---|---|", *rows])


def names(group: str) -> list[str]:
    public = [name for name in offspan.__all__ if getattr(offspan, name).__module__.split(".")[1] == group]
    if group not in ("problems", "controllers"):
        public.sort(key=lambda name: name[0].isupper())  # what one calls, then what comes back
    return [*public, *GROUPS[group][2]]


def anchor(name: str) -> str:
    return name.split(".")[-1]


def entry(name: str) -> str:
    """One name: signature, docstring, parameters, returns, members and example."""
    value = getattr(offspan, name) if name in offspan.__all__ else pkgutil.resolve_name(f"offspan.{name}")
    words, example = docstring(value)
    called, returns = parameters(name.split(".")[-1], value)
    record = inspect.isclass(value) and not any(one.name == "__init__" for one in _functions(value))
    return "\n\n".join(
        part
        for part in (
            f"## `{name}` {{ #{anchor(name)} }}",
            f"```python\n{signature(name, value, called, returns)}\n```",
            *words,
            table("field" if record and issubclass(value, tuple) else "parameter", called),
            f"**Returns** {_code(returns)}" if returns and not inspect.isclass(value) else "",
            members(value) if inspect.isclass(value) else "",
            f"```pycon\n{example}\n```" if example else "",
            source(value),
        )
        if part
    )


def docstring(value: Any) -> tuple[list[str], str]:
    """The paragraphs of a docstring, and its example, whose output the tests compare."""
    text = inspect.cleandoc(value.__doc__ or "")
    examples = doctest.DocTestParser().get_examples(text)
    lines = text.splitlines()
    first = examples[0].lineno if examples else len(lines)
    return [paragraph(one) for one in re.split(r"\n\s*\n", "\n".join(lines[:first]).strip())], "\n".join(lines[first:]).strip()


def paragraph(text: str) -> str:
    """Plain text as HTML: code between backticks, and the indices and exponents of equations (x_{h+1}, K_no-ext, M^h) set as such."""
    words, codes = re.split(r"`[^`]+`", text := escape(" ".join(text.split()), quote=False)), re.findall(r"`([^`]+)`", text)
    words = map(_set, words)
    return (
        "<p>" + "".join(f"{part}{code}" for part, code in zip(words, [*(f"<code>{one}</code>" for one in codes), ""], strict=True)) + "</p>"
    )


def _set(text: str) -> str:
    for pattern, tag in ((INDEX, "sub"), (EXPONENT, "sup")):
        text = re.sub(pattern, lambda m, tag=tag: f"{m[1]}<{tag}>{_set(m[2].strip('{}'))}</{tag}>", text)
    return text


def parameters(name: str, value: Any) -> tuple[list[Parameter], str]:
    """The parameters of a function or of a class, in order, and what a function returns."""
    if not inspect.isclass(value):
        node = _node(value)
        return _arguments(name, node.args), _type(node.returns)
    if issubclass(value, enum.Enum):
        return [Parameter(one.name, "int", str(one.value), meaning(name, one.name)) for one in value], ""
    if issubclass(value, Exception):
        return [], ""
    for base in value.__mro__:  # the first class that says how it is made
        if base.__module__.startswith("offspan") and (init := next((one for one in _functions(base) if one.name == "__init__"), None)):
            return _arguments(name, init.args)[1:], ""
    return [one for base in reversed(value.__mro__) if base.__module__.startswith("offspan") for one in _fields(name, base)], ""


def _arguments(name: str, given: ast.arguments) -> list[Parameter]:
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    both = [*zip(plain, defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    found = [Parameter(f"*{one.arg}", "", None, meaning(name, one.arg)) for one in (given.vararg,) if one] + [
        Parameter(one.arg, _type(one.annotation, one.arg), ast.unparse(default) if default else None, meaning(name, one.arg))
        for one, default in both
    ]
    return found if not given.kwonlyargs or given.vararg else [*found[: len(plain)], Parameter("*", "", None, ""), *found[len(plain) :]]


def _fields(name: str, base: type) -> list[Parameter]:
    """The annotated fields of a class, with the comments behind them."""
    lines = inspect.getsource(base).splitlines()
    found = []
    for one in _node(base).body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and "ClassVar" not in ast.unparse(one.annotation):
            comment = re.search(r"  # (.*)$", lines[one.lineno - 1])
            default = ast.unparse(one.value) if one.value and "field(" not in ast.unparse(one.value) else None
            said = comment[1] if comment else meaning(base.__name__, one.target.id)
            found.append(Parameter(one.target.id, _type(one.annotation, one.target.id), default, said))
    return found


def meaning(owner: str, name: str) -> str:
    """What a parameter is: as of this function, or as of all that have one of this name."""
    return MEANINGS.get(owner, {}).get(name) or MEANINGS["any"].get(name, "")


def signature(name: str, value: Any, called: list[Parameter], returns: str) -> str:
    """One argument a line."""
    if inspect.isclass(value) and issubclass(value, Exception | enum.Enum):
        return f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
    if inspect.isabstract(value):
        return f"class {name}"
    lines = [f"    {one.name}{'' if one.default is None else f'={one.default}'}," for one in called]
    back = f" -> {returns}" if returns else ""
    return "\n".join([f"{name}(", *lines, f"){back}"]) if called else f"{name}(){back}"


def table(heading: str, called: list[Parameter]) -> str:
    rows = [f"| `{one.name}` | {_code(one.type)} | {one.meaning or '–'} |" for one in called if one.name != "*"]
    return "\n".join([f"| {heading} | type | meaning |", "|---|---|---|", *rows]) if rows else ""


def members(value: type) -> str:
    """The properties and methods of a class that say what they are for."""
    rows = []
    for one in _functions(value):
        if one.name.startswith("_") or not (said := ast.get_docstring(one)):
            continue
        arguments = [argument.arg for argument in [*one.args.args, *one.args.kwonlyargs]][1:]
        is_property = any(ast.unparse(mark) in ("property", "cached_property") for mark in one.decorator_list)
        call = one.name if is_property else f"{one.name}({', '.join(arguments)})"
        rows.append(f"| `.{call}` | {paragraph(said.split(chr(10) * 2)[0]).replace('|', '&#124;')[3:-4]} |")
    return "\n".join(["| member | what |", "|---|---|", *rows]) if rows else ""


def source(value: Any) -> str:
    """A link to the lines that define it, on the page of its module."""
    module = inspect.getmodule(value)
    assert module
    path = module.__name__.replace(".", "/")
    path = f"{path}/__init__" if hasattr(module, "__path__") else path
    line = inspect.getsourcelines(value)[1]
    return f'<p class="source"><a href="../source/{path}.html#__codelineno-0-{line}">Source: {path}.py, line {line}</a></p>'


def sources() -> dict[str, str]:
    """The modules that the reference links to, each as a page with numbered lines, which search leaves out."""
    found = {}
    for group in GROUPS:
        for name in names(group):
            value = getattr(offspan, name) if name in offspan.__all__ else pkgutil.resolve_name(f"offspan.{name}")
            module = inspect.getmodule(value)
            assert module
            assert module.__file__
            path = Path(module.__file__)
            relative = path.relative_to(HERE.parent)
            code = path.read_text()
            page = (
                f'---\nsearch:\n  exclude: true\nhide: [toc]\n---\n# {relative.as_posix()}\n\n``` {{ .python linenums="1" }}\n{code}```\n'
            )
            found[relative.with_suffix(".md").as_posix()] = page
    return found


@functools.cache  # Python reads a whole module to find a class in it
def _node(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _functions(value: type) -> list[ast.FunctionDef]:
    return [one for one in _node(value).body if isinstance(one, ast.FunctionDef)]


def _type(annotation: ast.expr | None, name: str = "") -> str:
    """As it is written; where that is Any, what parameters of this name take."""
    text = "" if annotation is None else ast.unparse(annotation).replace("'", '"')
    return MEANINGS["types"].get(name, "") if text in ("", "Any") else text


def _code(text: str) -> str:
    return f"<code>{escape(text, quote=False).replace('|', '&#124;')}</code>" if text else ""
