"""The layout is one way: a module imports only from what stands above it."""

import ast
import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import offspan

PACKAGE = Path(offspan.__file__).parent
LAYERS = [
    "checks",
    "files",
    "problems.base",
    "problems.lqr",
    "problems.pendulum",
    "problems.quadcopter",
    "problems",
    "controllers",
    "rollout",
    "states",
    "baselines",
    "measures",
    "exploration",
    "maps",
    "statistics",
    "training.loop",
    "training.batch",
    "training.policy_gradient",
    "training.diagnosis",
    "training.lqr",
    "training.lqr_kernels",
    "training.lqr_group",
    "training.lqr_batch",
    "training",
    "selection.criteria",
    "selection.sets",
    "selection.flow",
    "selection.pilots",
    "selection.methods",
    "selection.select",
    "selection.effect",
    "selection",
    "theory.closed_forms",
    "theory.riccati",
    "theory.claims",
    "theory.laurent",
    "theory.genus",
    "theory.gaussian",
    "theory.monte_carlo",
    "theory.underdetermined",
    "theory.exploring",
    "theory.regularized",
    "theory.random_systems",
    "theory.surfaces",
    "theory.verify",
    "theory.illustrations",
    "theory.random_illustrations",
    "theory",
    "experiments.specs.base",
    "experiments.specs.lqr",
    "experiments.specs.network",
    "experiments.specs.selection",
    "experiments.specs.reading",
    "experiments.specs",
    "experiments.kinds.results",
    "experiments.kinds.lqr",
    "experiments.kinds.starts",
    "experiments.kinds.network",
    "experiments.kinds.selection_training",
    "experiments.kinds.selection",
    "experiments.kinds",
    "experiments.choosing",
    "experiments.store",
    "experiments.mapping",
    "experiments.run",
    "experiments.gathering",
    "experiments",
    "report.tables",
    "report.results",
    "report.lqr",
    "report.lqr_figures",
    "report.starts",
    "report.scenes",
    "report.network",
    "report.network_figures",
    "report.selection",
    "report.selection_figures",
    "report.choice",
    "report.maps",
    "report.kinds",
    "report.claims",
    "report.theory_figures",
    "report.random_figures",
    "report.paper",
    "report.page",
    "report",
    "actions",
    "cli",
]
CORE_NEEDS = {"jax", "equinox", "optax", "jaxtyping", "numpy", "scipy"}
CORE = [name for name in LAYERS if not name.startswith(("experiments", "report", "actions", "cli"))]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"}


def imports(path: Path) -> set[str]:
    """The dotted names that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            # A name imported from a package may be a module of it.
            named = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {whole if whole.removeprefix("offspan.") in MODULES else node.module or "" for whole in named.values()}
    return found


def test_every_module_has_its_place():
    assert sorted(MODULES) == sorted(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_imports_go_one_way(name):
    ours = {found.removeprefix("offspan.") for found in imports(MODULES[name]) if found.startswith("offspan")}
    needs_the_version = {"offspan"} if name in ("cli", "actions", "experiments.store") else set()
    assert ours - needs_the_version <= set(LAYERS[: LAYERS.index(name)])


@pytest.mark.parametrize("name", CORE)
def test_the_core_needs_only_the_core_libraries(name):
    outside = {found.split(".")[0] for found in imports(MODULES[name])} - {"offspan"} - set(sys.stdlib_module_names)
    assert outside <= CORE_NEEDS


def test_public_names_are_listed_once():
    assert offspan.__all__ == sorted(set(offspan.__all__), key=lambda name: (not name.isupper(), not name[0].isupper(), name))


@pytest.mark.parametrize("name", offspan.__all__)
def test_a_public_name_has_its_equation_its_source_and_an_example(name):
    """The equation and the source stand in the text, not in the example or its output; the example runs wherever the tests do."""
    docstring = inspect.cleandoc(getattr(offspan, name).__doc__ or "")  # its own: inspect.getdoc would find a base class's
    text = re.sub(r"^>>> .*?(?=^$|\Z)", "", docstring, flags=re.MULTILINE | re.DOTALL)
    assert re.search(r" (=|←|≤|≥|<|∈|↦|⟺) ", text), "no equation"
    assert re.search(r"\[(R24, |beyond R24)", text), "no source"
    assert doctest.DocTestParser().get_examples(docstring), "no example"


def test_import_is_light():
    """No heavy library, no backend, no change of jax's configuration."""
    script = """
import sys, jax, equinox, optax
before = dict(jax.config.values)
import offspan
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "importing offspan started a backend"
assert dict(jax.config.values) == before, "importing offspan changed jax's configuration"
heavy = {"matplotlib", "xarray", "pydantic", "scipy", "typer", "rich", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
