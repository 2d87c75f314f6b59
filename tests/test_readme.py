"""The README, the docs and the examples do what they say."""

import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import offspan

ROOT = Path(__file__).parent.parent
PAPER_MAP = (ROOT / "docs" / "paper_map.md").read_text()
AS_A_READER = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # without the compiler flags of the tests


def code_with_output(page: str) -> list[tuple[str, str]]:
    """Each python block and the text block that follows it."""
    return re.findall(r"```python\n(.*?)```.*?```text\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


PAGES = {
    "README.md": 1,
    "docs/index.md": 1,
    "docs/own_system.md": 2,
    "docs/experiments.md": 1,
    "docs/networks.md": 1,
    "docs/selection.md": 1,
    "docs/maps.md": 1,
    "docs/diverged.md": 2,
    "docs/theory.md": 1,
    "docs/random_systems.md": 1,
    "docs/flow.md": 1,
    "docs/leading_order.md": 1,
    "docs/dimensions.md": 1,
    "docs/noise.md": 1,
}


@pytest.mark.parametrize(("page", "blocks"), PAGES.items())
def test_the_code_on_a_page_prints_what_the_page_says(page, blocks, tmp_path):
    found = code_with_output(page)
    assert len(found) == blocks
    for code, output in found:
        # In a process of its own, without the settings of the tests: as a reader runs it.
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=AS_A_READER, cwd=tmp_path)
        assert done.stdout == output, done.stderr
        assert output.strip()


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script):
    done = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 3


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`(test_\w+)`", PAPER_MAP))))
def test_the_paper_map_names_tests_that_exist(test):
    assert any(f"def {test}(" in path.read_text() for path in (ROOT / "tests").glob("test_*.py"))


def test_the_paper_map_names_functions_that_exist():
    rows = [row.split("|") for row in PAPER_MAP.splitlines() if row.startswith("| ") and "`" in row]
    assert len(rows) > 50
    names = {name for row in rows for name in re.findall(r"`([A-Za-z_.]+)`", row[3])}
    assert len(names) > 15
    for name in names:
        assert pkgutil.resolve_name(f"offspan.{name}")


def test_versions_agree():
    assert f"version: {offspan.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {offspan.__version__} (" in (ROOT / "CHANGELOG.md").read_text()
    assert f"Made by offspan {offspan.__version__} from stored results" in (ROOT / "docs" / "results" / "paper.html").read_text()
