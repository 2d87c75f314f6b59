"""The layout is one way: a package imports only from those that stand above it."""

import ast
import doctest
import importlib
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import offspan

PACKAGE = Path(offspan.__file__).parent
LAYERS = [
    *(
        "errors",
        "sizes",
        "files",
        "host",
        "memory",
        "problems",
        "systems",
        "controllers",
        "policies",
        "rollout",
        "states",
        "baselines",
        "measures",
        "exploration",
        "maps",
    ),
    *("training", "selection", "suggestions", "audit", "theory", "experiments", "report", "lab", "terminal", "cli"),
]
CORE = LAYERS[: LAYERS.index("experiments")]
EXTRAS = {"policies": {"onnx", "google", "safetensors"}, "systems": {"mujoco"}}  # imported where they are used
CORE_NEEDS = {"jax", "equinox", "optax", "jaxtyping", "numpy", "scipy"}
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"
}


def package(module: str) -> str:
    """The line of the layout that a module of offspan belongs to."""
    return module.split(".")[0]


def imports(path: Path) -> set[str]:
    """The dotted names that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            # A name imported from offspan itself may be a package of it.
            found |= {f"offspan.{alias.name}" for alias in node.names} if node.module == "offspan" else {node.module or ""}
    return found


def packages_imported(name: str) -> set[str]:
    """The packages of offspan that the modules of one of them import, without itself; "" stands for offspan, with all of the core."""
    paths = [path for module, path in MODULES.items() if package(module) == name]
    ours = {found for path in paths for found in imports(path) if found.split(".")[0] == "offspan"}
    return {package(found.removeprefix("offspan").removeprefix(".")) for found in ours} - {name}


def test_every_package_has_its_place():
    assert sorted(set(map(package, MODULES))) == sorted(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_imports_go_one_way(name):
    above = set(LAYERS[: LAYERS.index(name)])
    assert packages_imported(name) <= (above if name in CORE else above | {""})


@pytest.mark.parametrize("name", CORE)
def test_the_core_needs_only_the_core_libraries(name):
    found = {one.split(".")[0] for module, path in MODULES.items() if package(module) == name for one in imports(path)}
    assert found - {"offspan"} - set(sys.stdlib_module_names) <= CORE_NEEDS | EXTRAS.get(name, set())


def test_without_experiments_reports_and_theory_it_still_trains(tmp_path):
    gone = ("theory", "experiments", "report", "lab", "terminal.py", "cli.py")
    shutil.copytree(PACKAGE, tmp_path / "offspan", ignore=shutil.ignore_patterns(*gone, "__pycache__"))
    assert not any((tmp_path / "offspan" / name).exists() for name in gone)
    script = """
import offspan
run = offspan.train_lqr(offspan.identity(2, horizon=1), offspan.basis(2, 1), learning_rate=0.25, iterations=1)
assert run.K.tolist() == [[-0.5, 0.0], [0.0, 0.0]], run
print(offspan.__file__)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)


@pytest.mark.parametrize("listed", ["slow.txt", "long.txt"])
def test_the_lists_of_slow_tests_name_tests(listed):
    folder = Path(__file__).parent
    texts = {path.name: path.read_text() for path in folder.glob("test_*.py")}
    for name in (folder / listed).read_text().split():
        assert name in texts or any(f"def {name.partition('[')[0]}(" in text for text in texts.values()), name


def test_public_names_are_listed_once():
    assert offspan.__all__ == sorted(set(offspan.__all__), key=lambda name: (not name.isupper(), not name[0].isupper(), name))


@pytest.mark.parametrize("name", offspan.__all__)
def test_a_public_name_has_a_docstring_and_an_example_that_the_tests_run(name):
    value = getattr(offspan, name)
    docstring = inspect.cleandoc(value.__doc__ or "")  # its own: inspect.getdoc would find a base class's
    assert docstring
    assert not docstring.startswith(">>>"), "an example, and no words"
    found = doctest.DocTestFinder(recurse=True).find(importlib.import_module(value.__module__))
    assert any(test.name == f"{value.__module__}.{name}" and test.examples for test in found), "no example that pytest finds"


def test_import_is_light():
    """No heavy library, no backend, no change of jax's configuration."""
    script = """
import sys, jax, equinox, optax
before = dict(jax.config.values)
import offspan
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "importing offspan started a backend"
assert dict(jax.config.values) == before, "importing offspan changed jax's configuration"
heavy = {"matplotlib", "xarray", "pydantic", "scipy", "typer", "rich", "pandas", "jinja2"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
