"""The other tabs of the lab, the command that writes its page, and finished runs in it."""

import base64
import itertools
import re
import shutil
import tomllib
from typing import Any

import jax
import numpy as np
import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

import offspan
from offspan import cli
from offspan.experiments.lqr import LQRSpec
from offspan.experiments.store import RunFolder
from offspan.lab.build import PAGE
from offspan.lab.data import stored_layers, unpacked, usual
from tests.chromium import DOCS, SIZES, centre, needs_browser, numbers, settled, shows, text


@needs_browser
@pytest.mark.parametrize("size", SIZES)
def test_which_two(lab, size):
    """The excess costs, ranks and score of the page are those of training in Python."""
    page = lab.open("#which&draw=3", size)
    page.locator("#visits button").nth(1).click()
    assert text(page, "which-words") == "And the second?"
    page.locator("#visits button").nth(6).click()
    page.wait_for_selector("#which-table", state="visible", timeout=60_000)
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#which-table tbody tr").all()]
    assert [row[0] for row in rows] == ["you", "log det of what is visited", "the closed-form flow", "training all 28"]
    assert rows[0][1] == "e₂ and e₇"

    source = base64.b64encode((PAGE / "mathematics.js").read_bytes()).decode()
    A = lab.browser.new_page().evaluate(f"async () => (await import('data:text/javascript;base64,{source}')).gaussian(1003, 8)")
    problem, e = offspan.LQR(A, horizon=8), np.eye(8)
    pairs = list(itertools.combinations(range(8), 2))
    batch = offspan.train_lqr_batch([problem] * 28, [e[list(pair)] for pair in pairs], learning_rate=1e-3, iterations=6000)
    excess = np.array([float(offspan.cost(problem, offspan.Linear(K), e)) - 1 for K in batch.K])
    mine = excess[pairs.index((1, 6))]
    best, middle = excess.min(), np.median(excess)
    assert float(rows[0][2]) == pytest.approx(mine, rel=1e-2)
    assert int(rows[0][3]) == 1 + int((excess < mine - 1e-9).sum())
    assert int(rows[0][4].replace("−", "-")) == max(-100, round(100 * (middle - mine) / (middle - best)))
    assert float(rows[3][2]) == pytest.approx(best, rel=1e-2)
    assert rows[3][3:] == ["1", "100"]
    assert f"rank {rows[0][3]} of 28" in text(page, "which-words")
    assert re.search(r"Over 1 system: you −?\d+, log det", text(page, "which-total"))
    page.click("#which-new")
    assert page.locator("#which-table").is_hidden()
    assert text(page, "which-seed") == "system 4"


@needs_browser
@pytest.mark.parametrize("size", SIZES)
def test_the_pendulum_is_dragged_and_let_go(lab, size):
    page = lab.open("#pendulum", size, reduced_motion="reduce")
    page.locator("#rod").scroll_into_view_if_needed()
    x, y = centre(page, "#rod")
    page.mouse.move(x + 60, y + 60)
    page.mouse.down()
    page.mouse.move(x + 5, y + 90, steps=4)
    page.mouse.up()
    shows(page, "rod-status", "it stands upright")
    page.get_by_role("radio", name="trained not to extrapolate").click()
    page.click("#drop")
    shows(page, "rod-status", "it does not stand")
    page.get_by_role("radio", name="policy gradient").click()
    page.get_by_role("radio", name="untrained").click()
    page.locator("#rod-angle").fill("1.5")
    page.click("#drop")
    shows(page, "rod-status", "it does not stand")
    expect(page).to_have_url(re.compile("at=0&.*angle=1.5"))
    box = page.locator("#map").bounding_box()
    assert box
    page.locator("#map").click(position={"x": box["width"] / 2, "y": 100})
    shows(page, "rod-words", "ω")


WRONG = {
    "not a number": ("A", "0 1\n1 zero", "A, row 2: “zero” is not a number."),
    "NaN": ("A", "0 nan\n1 0", "A, row 1, number 2 is nan, which is not finite; put a number there."),
    "ragged": ("A", "0 1\n1", "A is ragged: row 2 has 1 number, but row 1 has 2."),
    "nine states": ("A", "\n".join(["0 " * 9] * 9), "A is 9×9, and the lab takes up to 8 states; the Python library has no such limit."),
    "one state": ("A", "2", "A is 1×1; the lab needs two states or more, one to see and one to leave out."),
    "empty": ("A", " ", "A has no numbers; write a row a line, such as “0 1”."),
    "not square": ("A", "1 2 3\n4 5 6", "A is 2×3, but must be square: x′ = A x + B u, column vectors."),
    "unstable": ("A", "9 0\n0 9", "This system is unstable: within H = 8 steps"),
    "B of other rows": ("B", "1\n2", "B has 2 row(s), but A is 3×3, so B needs 3."),
    "Q not symmetric": ("Q", "1 2 0;0 1 0;0 0 1", "Q is not symmetric: it differs from its transpose by 2."),
    "Q negative": (
        "Q",
        "-1 0 0;0 1 0;0 0 1",
        "Q is not positive semidefinite (smallest eigenvalue -1), so the cost would have no minimum.",
    ),
    "R of another size": ("R", "1", "R is 1×1, but must be 3×3, one row and column for each control."),
    "horizon": ("H", "2.5", "The horizon is “2.5”, but must be a whole number from 1 to 100."),
    "too large a step": ("eta", "3", "Training diverged at iteration"),
    "too many": ("k", "3", "The number of states to choose is “3”, but must be a whole number from 1 to 2."),
    "markup": ("A", "<img src=x>", "A, row 1: “<img” is not a number."),
}


@needs_browser
def test_bad_input_has_a_sentence_beside_its_field(lab):
    page = lab.open("#yours")
    for key, words, sentence in WRONG.values():
        before = page.locator(f"#yours-{key}").input_value()
        page.locator(f"#yours-{key}").fill(words)
        shows(page, f"error-{key}", "^" + re.escape(sentence))
        assert page.locator(f"#yours-{key}").get_attribute("aria-invalid") == "true"
        page.locator(f"#yours-{key}").fill(before)
        shows(page, f"error-{key}", "^$")
    assert page.locator("#ranked").is_visible()


@needs_browser
@pytest.mark.parametrize("size", SIZES)
def test_yours_ranks_measures_and_gives_code_that_runs(lab, size, capsys):
    page = lab.open("#yours", size)
    page.locator("#yours-A").fill("[[0.9, 0.4, 0], [0, 0.8, 0.5], [0, 0, 0.7]]")
    page.locator("#yours-k").fill("2")
    shows(page, "yours-words", "Start from e[₁₂], e₃")
    ranked = [row.locator("td").all_inner_texts() for row in page.locator("#ranked tbody tr").all()]
    assert len(ranked) == 3
    assert ranked[-1][0] == "e₁, e₂"
    assert ranked[-1][3] == "2 of 3"
    measured = page.locator("#yours-numbers dd").nth(1).inner_text()
    exec(text(page, "python"), {})
    assert capsys.readouterr().out.startswith(f"finished {float(measured):.3f}")
    spec = LQRSpec.model_validate(tomllib.loads(text(page, "toml")))
    assert np.array_equal(spec.problem("mine", 0, 3, 8).A, [[0.9, 0.4, 0], [0, 0.8, 0.5], [0, 0, 0.7]])
    page.click("#yours-explore")
    assert text(page, "system-words").startswith("The matrices of the tab")
    settled(page)
    page.get_by_role("tab", name="Yours").click()
    page.locator("#yours-B").fill("0\n0\n1")
    shows(page, "yours-numbers", "B is 3×1, but must be square")
    exec(text(page, "python"), {})
    assert "finished" in capsys.readouterr().out


def run_lab(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["lab", "--no-open", *arguments])


def test_the_command_writes_a_page_over_pages_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run_lab().exit_code == 0
    assert opened == []
    assert (tmp_path / "offspan-lab.html").read_text() == (DOCS / "lab.html").read_text()
    done = CliRunner().invoke(cli.app, ["lab"])
    assert done.output == "The lab: offspan-lab.html (open it in a browser)\n"
    assert opened == [(tmp_path / "offspan-lab.html").as_uri()]
    (tmp_path / "mine.html").write_text("mine")
    assert "is no page of offspan" in str(run_lab("--output", "mine.html").exception)
    assert "there is no run 'lqq' in" in str(run_lab("lqq", "--folder", str(DOCS / "results")).exception)
    assert "of the kind selection; the lab shows" in str(run_lab("selection-lqr", "--folder", str(DOCS / "results")).exception)
    assert "40 states or more" in str(run_lab("lqr-large", "--folder", str(DOCS / "results")).exception)


@needs_browser
def test_a_finished_run_is_in_its_page(lab, tmp_path):
    for name in ("lqr", "pendulum", "quadcopter-below"):
        shutil.copytree(DOCS / "results" / name, tmp_path / name)
        assert run_lab(name, "--folder", str(tmp_path), "--output", str(tmp_path / f"{name}.html")).exit_code == 0
        assert (tmp_path / f"{name}.html").stat().st_size < 1_000_000
    page = lab.open(file=tmp_path / "lqr.html")
    page.get_by_role("radio", name="the run").click()
    page.locator("#run-system").select_option(label="shift: D = 5, H = 5, 2 seen, η = 0.001")
    shows(page, "number-title", "directions")
    settled(page)
    assert float(numbers(page)["in the run"]) == pytest.approx(float(numbers(page)["norm. E opt"]), abs=2e-4)
    page = lab.open("#pendulum", file=tmp_path / "pendulum.html", reduced_motion="reduce")
    assert len(page.locator("#seeds button").all()) == 5
    page.click("#drop")
    shows(page, "rod-status", "it stands upright")
    page = lab.open("#pendulum", file=tmp_path / "quadcopter-below.html")
    assert text(page, "tab-pendulum") == "The run"
    page.locator("#map").hover()
    shows(page, "network-words", "it costs")


def test_the_rounded_networks_are_as_good_as_the_stored_ones():
    """Half precision changes the cost over the unseen states, 8.9 for the network that does not extrapolate, by less than 0.05."""
    result = RunFolder(DOCS / "results" / "pendulum").load_result()
    final = [one for one in usual()["pendulum"]["networks"] if one["objective"] == "policy_gradient" and one["iteration"] == 75_000]
    unseen = np.array(usual()["pendulum"]["unseen"], np.float32)
    assert len(final) == 3
    with jax.enable_x64(False):
        for one in final:
            rounded, stored = unpacked(one["layers"]), stored_layers(result, "policy_gradient", one["seed"])
            J, expected = (float(offspan.cost(offspan.Pendulum(), offspan.MLP(layers), unseen)) for layers in (rounded, stored))
            assert expected == pytest.approx(float(result.policy_gradient_unseen_cost.sel(seed=one["seed"]).mean()), rel=1e-3)
            assert pytest.approx(expected, abs=0.05) == J
