"""The pages that are made from the code, before the docs are built."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import offspan
from docs import api
from tests.chromium import chromium, needs_browser

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def pages():
    return api.pages()


def test_every_public_name_has_one_entry(pages):
    text = "\n".join(pages.values())
    for name in offspan.__all__:
        assert text.count(f"## `{name}` {{") == 1, name


def test_every_parameter_is_explained(pages):
    rows = [line for text in pages.values() for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 300
    assert [row for row in rows if row.endswith("| – |")] == []


def test_no_meaning_is_left_over(pages):
    """A parameter that was renamed takes its old meaning with it."""
    text = "\n".join(pages.values())
    for owner, meanings in api.MEANINGS.items():
        for name in meanings:
            assert re.search(rf"\| `\*?{name}` \|", text), f"{owner}.{name}"
        assert owner in ("any", "types") or re.search(rf"## `(\w+\.)*{owner}`", text), owner


def test_an_entry_has_one_argument_a_line_its_types_and_its_source(pages):
    entry = pages["rollout.md"].split("## `rollout`")[1].split("\n## ")[0]
    assert "rollout(\n    problem,\n    controller,\n    x0,\n    *,\n    key=None,\n) -> Trajectory" in entry
    assert '| `x0` | <code>Float[ArrayLike, "n"]</code> | One initial state, (n,). |' in entry
    path, line = re.findall(r'href="../source/(.+)\.html#__codelineno-0-(\d+)"', entry)[0]
    assert (ROOT / f"{path}.py").read_text().splitlines()[int(line) - 1].startswith("def rollout(")


def test_equations_of_docstrings_have_indices_and_names_do_not():
    assert api.paragraph("x_{h+1} = A x_h, E_opt(K_no-ext) of M^h; `x_h` and stage_cost [R24, eq:state_evol]") == (
        "<p>x<sub>h+1</sub> = A x<sub>h</sub>, E<sub>opt</sub>(K<sub>no-ext</sub>) of M<sup>h</sup>; <code>x_h</code> "
        "and stage_cost [R24, eq:state_evol]</p>"
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs_and_end_in_a_picture(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert "".join(cells[-1]["source"]).endswith("plt.show()")
    assert len(cells[-1]["metadata"]["alt"]) > 50


def test_the_navigation_has_every_page_once():
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"([\w/-]+\.md)$", nav, re.MULTILINE)
    assert len(listed) == len(set(listed))
    written = {path.name for path in (ROOT / "docs").glob("*.md")}
    made = {f"generated/api/{name}.md" for name in api.GROUPS} | {f"generated/notebooks/{path.stem}.md" for path in NOTEBOOKS}
    assert set(listed) == written | made | {"generated/command_line.md", "generated/changes.md"}


@needs_browser
def test_search_works_on_pages_that_are_opened_as_files(tmp_path):
    """With the theme, the plugins and the script of the docs, on a site of one page; nothing comes from a network."""
    pytest.importorskip("material")
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "polyfills: [iframe-worker.js]" in settings
    pages = tmp_path / "docs"
    pages.mkdir()
    shutil.copy(ROOT / "docs" / "iframe-worker.js", pages)
    (pages / "index.md").write_text("# Start\n\nNothing here.\n\n## A place\n\nThe heliotrope grows here.\n")
    small = "site_name: small\ntheme: {name: material, font: false}\nplugins: [search, offline]\nextra: {polyfills: [iframe-worker.js]}\n"
    (tmp_path / "mkdocs.yml").write_text(small)
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet"], cwd=tmp_path, check=True, capture_output=True)
    with chromium() as browser:
        page = browser.new_page()
        loaded = []
        page.on("request", lambda request: loaded.append(request.url))
        page.goto((tmp_path / "site" / "index.html").as_uri())
        page.locator(".md-search__input").click()
        page.keyboard.type("heliotrope")
        page.locator(".md-search-result__link").first.wait_for()
        assert "1 matching document" in page.locator(".md-search-result__meta").inner_text()
    assert loaded
    assert all(url.startswith(("file:", "data:", "about:")) for url in loaded)
