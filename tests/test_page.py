"""The page of runs: what a reader sees of it, in a real browser too."""

import json
import os
import re
import shutil
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import xarray as xr
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

from offspan import cli
from offspan.errors import OffspanError
from offspan.experiments.registry import load_preset
from offspan.experiments.store import RunFolder
from offspan.report.page import CLAIM, command_line, gather, page, stored_claims, variants
from offspan.report.paper import EXPERIMENTS, findings
from offspan.report.tables import Table

STORED = Path(__file__).parent.parent / "docs" / "results"
BROWSER = os.environ.get("OFFSPAN_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="session")
def paper(tmp_path_factory) -> Path:
    """The page of three stored experiments of the paper and of its statements; the others were not run in this folder."""
    folder = tmp_path_factory.mktemp("some")
    for name in ("lqr", "lqr-large", "pendulum", "verify"):
        shutil.copytree(STORED / name, folder / name)
    done = CliRunner().invoke(cli.app, ["report", "--paper", "--folder", str(folder)])
    assert done.exit_code == 0, done.output
    assert f"The report: {folder / 'paper.html'}" in done.output.replace("\n", "")
    return folder / "paper.html"


class Elements(HTMLParser):
    """Every element with its attributes, and the text."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page_stands_alone_and_can_be_heard(paper):
    """No address, no script; every link leads somewhere, every figure is whole and has its words, every table its headings."""
    page = Elements(paper.read_text())
    assert not page.all("script")
    assert all(link["href"].startswith(("#", "data:")) for link in [*page.all("a"), *page.all("link")])
    anchors = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    linked = {link["href"][1:] for link in page.all("a")}
    assert {"run-lqr", "run-pendulum", "statements", "beside-the-paper", "top"} <= linked <= set(anchors)
    figures = page.all("img")
    assert len(figures) == 2 + 2 + 4 + 1
    for figure in figures:
        assert len(figure["alt"]) > 30
        svg = ET.fromstring(unquote(figure["src"].removeprefix("data:image/svg+xml,")))
        assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) > 20
    tables = len(page.all("table"))
    assert tables >= 8
    assert len(page.all("caption")) == tables
    assert all(heading["scope"] in ("col", "row") for heading in page.all("th"))
    assert "0.0023 (0.0017–0.0028)" in page.text
    claims = len(json.loads((STORED / "verify" / "claims.json").read_text())["claims"])
    assert f"{claims} of {claims} checked claims hold" in page.text
    assert "offspan reproduce quadcopter-below" in page.text, "what was not run is named"
    asked = "Settings: pendulum, 2 seen and 5 unseen states; 5 seeds, 75,000 iterations, float32."
    assert f"{asked} In the paper: Figure 3 (fig:pend_and_quad_experiments_main). Run again by offspan reproduce pendulum." in page.text
    assert '"jax"' not in page.text
    assert "jax 0." in page.text, "where it comes from"


def test_no_table_is_there_twice_and_large_ones_are_folded(paper):
    text = paper.read_text()
    captions = re.findall(r"<caption>(.*?)</caption>", text)
    assert len(captions) == len(set(captions))
    assert "Beside the paper" in captions
    folded = "".join(re.findall(r"<details>.*?</details>", text, flags=re.S))
    assert "pendulum: states, policy gradient" not in folded, "2 columns are no reason to fold a table"
    assert re.findall(r"<summary>(.*?)</summary>", text).count("Spec") == 3
    assert re.findall(r"<summary>(.*?)</summary>", text).count("Provenance") == 3
    assert "e+00<" not in text, "zero is written 0"
    wide = Table("wide", [str(i) for i in range(14)], [["0"] * 14])
    assert (wide.is_large, Table("long", ["a"], [["0"]] * 30).is_large, Table("small", ["a"], [["0"]] * 5).is_large) == (True, True, False)


def test_a_quick_look_stands_beside_the_stored_full_run(tmp_path):
    """Its section, marked as such, comes first; without a folder of stored runs, or where the full run is there, it is left out."""
    spec = load_preset("shift-regularized")
    quick = RunFolder(tmp_path / "shift-regularized-quick")
    with quick.claimed(spec.as_quick()):
        whole = RunFolder(STORED / "shift-regularized").load_result()
        kept = {name: value for name, value in whole.attrs.items() if name not in ("checksum", "spec_digest")}
        quick.save_result(spec.as_quick(), whole.assign_attrs(kept | {"quick": 1, "iterations": spec.as_quick().iterations}), {})
    run = lambda *arguments: CliRunner().invoke(cli.app, ["report", *arguments, "--folder", str(tmp_path)])  # noqa: E731
    assert run("--stored", str(STORED)).exit_code == 0
    sections = [one["id"] for one in Elements((tmp_path / "report.html").read_text()).all("section")]
    assert sections == ["beside-the-paper", "run-shift-regularized", "run-shift-regularized-quick"]
    assert "R ≠ 0: one minimiser: the stored full run" in (tmp_path / "report.html").read_text()
    assert run().exit_code == 0
    assert "stored full run" not in (tmp_path / "report.html").read_text()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: install one, or name it in OFFSPAN_BROWSER")
def test_the_page_in_a_browser(paper):
    """Figures are seen, links lead there, nothing is wider than a phone, nothing is loaded, nothing complains; in light and dark."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-background-networking"])
        complaints, loaded, papers = [], [], []
        for width, scheme in ((1400, "light"), (390, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: loaded.append(request.url[:60]))
            page.goto(paper.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            seen = page.evaluate("Array.from(document.images, i => [i.complete, i.naturalWidth, i.getBoundingClientRect().width])")
            assert len(seen) == 9
            assert all(complete and natural > 0 and shown > 300 for complete, natural, shown in seen)
            for link in page.locator("nav a").all():
                link.click()
                target = page.locator(link.get_attribute("href") or "none")
                assert abs(target.bounding_box()["y"]) < 800, "the link did not lead there"  # pyright: ignore[reportOptionalSubscript]
            page.locator("#run-lqr summary").first.click()
            assert page.locator("#run-lqr pre").first.is_visible()
            page.evaluate("window.scrollTo(0, 3000)")
            contents = page.locator("nav").bounding_box()
            assert (contents is not None and 0 <= contents["y"] < 50) == (width > 1215), "contents stay in view where there is room"
            assert page.locator("a.up").is_visible() == (width < 1216)
            papers.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            contrast = page.evaluate(CONTRAST)
            assert min(contrast.values()) >= 4.5, contrast
        browser.close()
    assert complaints == []
    assert all(url.startswith(("file:", "data:")) for url in loaded)
    assert len(set(papers)) == 2


# WCAG's contrast of every text that can be told apart by its class, against the page's background.
CONTRAST = """() => {
  const light = colour => { const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  const paper = light(getComputedStyle(document.body).backgroundColor)
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
  const of = element => ratio(light(getComputedStyle(element).color), paper)
  const kinds = ['p', 'a', 'caption', 'figcaption', '.note', '.agrees', '.differs', 'summary', 'footer p']
  return Object.fromEntries(kinds.map(s => [s, of(document.querySelector(s))]))
}"""


def stored(name: str) -> tuple[str | None, xr.Dataset, xr.Dataset | None]:
    run = gather(STORED, name)
    return run.preset, run.result, run.beside


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_stored_results_beside_the_paper(name):
    """What differs, the docs explain: random systems of dimension 40 diverge, H = 8 does not always help random ones, and our
    pendulums end within 0.063 of the top, not 0.05."""
    found = findings(*stored(name))
    assert found
    differing = {"lqr-large": 2, "lqr-long-horizon": 1, "pendulum": 1}
    assert sum(not one.agrees for one in found) == differing.get(name, 0)


def test_a_result_that_is_not_the_papers_is_told_apart():
    """Each verdict turns when the number it is about is changed."""
    preset, lqr, _ = stored("lqr")
    assert [one.agrees for one in findings(preset, lqr)] == [True] * 4
    worse = lqr.copy(deep=True)
    worse["normalized_cost"][:] = 1.01
    worse["excess_training_cost"][:] = 1e-7
    assert [one.agrees for one in findings(preset, worse)] == [False] * 4
    assert findings(None, lqr) == []
    assert findings(preset, lqr.assign_attrs(iterations=99_999)) == [] == findings(preset, lqr.isel(seed=slice(0, 19)))
    preset, pendulum, _ = stored("pendulum")
    assert [one.agrees for one in findings(preset, pendulum)] == [True, False]
    worse = pendulum.assign(normalized_cost=pendulum.normalized_cost + 0.003)
    assert [one.agrees for one in findings(preset, worse)] == [False, False]
    better = pendulum.copy(deep=True)
    better["policy_gradient_unseen_trajectory"][:, -1] = pendulum.target
    assert [one.agrees for one in findings(preset, better)] == [True, True]
    preset, further, _ = stored("quadcopter-further")
    nearer = further.assign(policy_gradient_unseen_cost=1 / further.policy_gradient_unseen_cost)
    assert [one.agrees for one in findings(preset, nearer)] == [True, False]
    all_diverged = further.assign(policy_gradient_status=further.policy_gradient_status * 0 + 2)
    assert not findings(preset, all_diverged)[1].agrees
    preset, starts, _ = stored("shift-regularized")
    assert [one.agrees for one in findings(preset, starts.isel(iteration=slice(0, 20)))] == [False, False, True]
    preset, longer, beside = stored("lqr-long-horizon")
    assert len(findings(preset, longer, beside)) == 6
    assert beside is not None
    assert len(findings(preset, longer, beside.isel(seen=slice(0, 2)))) == 4, "another experiment is not compared with"
    preset, sweep, _ = stored("lqr-horizon-sweep")
    assert [one.agrees for one in findings(preset, sweep.assign(status=sweep.status * 0))] == [False]


def test_variants_of_a_preset_are_told_from_other_presets():
    names = ["lqr", "lqr-20-seeds", "lqr-5-seeds-quick", "lqr-large-quick", "lqr-long-horizon-5-seeds", "lqr-mine-quick", "my-lqr"]
    assert variants(names, ["lqr", "lqr-large"]) == ["lqr", "lqr-20-seeds", "lqr-5-seeds-quick", "lqr-large-quick"]


@pytest.mark.parametrize("options", ["", "--seeds 7", "--seeds 7 --together", "--seeds-per-task 2 --quick", "--seeds 7 --together --quick"])
def test_the_command_of_a_variant_names_every_option(options, monkeypatch, tmp_path):
    """What `offspan reproduce` runs with these options is a variant of the preset, and its page names the same options."""
    ran = []
    monkeypatch.setattr(cli, "run_and_report", lambda spec, folder, executor: ran.append(spec))
    done = CliRunner().invoke(cli.app, ["reproduce", "pendulum", *options.split()])
    assert done.exit_code == 0, done.output
    assert command_line(ran[0], tmp_path) == f"offspan reproduce pendulum {options}".strip()
    assert variants([ran[0].name], ["pendulum"]) == [ran[0].name]


def test_a_run_that_cannot_be_drawn_is_left_out_and_said_so(tmp_path):
    for name in ("shift-regularized", "pendulum", "verify"):
        shutil.copytree(STORED / name, tmp_path / name)
    folder = RunFolder(tmp_path / "pendulum")
    folder.save_result(folder.spec(), folder.load_result().drop_vars("policy_gradient_curve"), {})
    claims = (tmp_path / "verify" / "claims.json").read_text()
    (tmp_path / "verify" / "claims.json").write_text(claims.replace('"prop:shift"', '"prop:of-an-older-version"'))
    done = CliRunner().invoke(cli.app, ["report", "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    sentence = f"Left out: {folder.result_file} is not the result of a run (it has no variable 'policy_gradient_curve'"
    assert sentence in done.output
    page = Elements((tmp_path / "report.html").read_text())
    assert sentence in page.text
    assert "prop:of-an-older-version" in page.text
    assert [one["id"] for one in page.all("section")] == ["beside-the-paper", "run-shift-regularized", "statements"]
    alone = CliRunner().invoke(cli.app, ["report", "pendulum", "--folder", str(tmp_path)])
    assert isinstance(alone.exception, ValueError)


def test_runs_are_named_one_by_one_or_all_together(tmp_path):
    shutil.copytree(STORED / "shift-regularized", tmp_path / "shift-regularized")
    run = lambda *arguments: CliRunner().invoke(cli.app, ["report", *arguments, "--folder", str(tmp_path)])  # noqa: E731
    assert run("shift-regularized", "--output", str(tmp_path / "one.html")).exit_code == 0
    text = (tmp_path / "one.html").read_text()
    assert re.search(r"<h2>R ≠ 0: one minimiser</h2>", text)
    assert "the statements" not in Elements(text).text
    assert run().exit_code == 0
    assert "All runs in" in (tmp_path / "report.html").read_text()
    for arguments, sentence in (
        (["nothing"], "there is no run 'nothing'"),
        (["shift-regularised"], "did you mean 'shift-regularized'?"),
        (["shift-regularized", "--paper"], "but not both"),
    ):
        done = run(*arguments)
        assert isinstance(done.exception, ValueError)
        assert sentence in str(done.exception)


def test_words_of_a_person_are_text_on_the_page():
    """A title or a sentence with HTML in it adds no element."""
    words = '<script>alert(1)</script> & "x"'
    found = Elements(page(words, [], missing=[], left_out=[words], claims=None))
    assert not found.all("script")
    assert found.text.count(words) == 3  # title, heading and sentence


NO_CLAIMS = {
    "cut short": '{"settings": {}, "claims": [',
    "a list": "[]",
    "nested too deep": "[" * 10_000,
    "a number of thousands of digits": "9" * 5_000,
    "no claims": '{"settings": {}}',
    "claims that are numbers": '{"settings": {}, "claims": [3]}',
    "settings that are a list": '{"settings": [], "claims": []}',
    "a label that is a number": json.dumps({"settings": {}, "claims": [dict.fromkeys(CLAIM, 3)]}),
    "a number that is a list": json.dumps({"settings": {}, "claims": [{**dict.fromkeys(CLAIM, "x"), "measured": [1]}]}),
}


@pytest.mark.parametrize("content", NO_CLAIMS)
def test_claims_that_are_none_are_refused(tmp_path, content):
    (tmp_path / "verify").mkdir()
    (tmp_path / "verify" / "claims.json").write_text(NO_CLAIMS[content])
    with pytest.raises(OffspanError, match=r"claims\.json .* write it again with `offspan verify`\.$") as caught:
        stored_claims(tmp_path)
    assert "set_int_max" not in str(caught.value)
