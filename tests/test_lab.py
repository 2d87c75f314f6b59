"""The page of the lab, driven as a person would, in a real browser."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from playwright.sync_api import Page, expect
from typer.testing import CliRunner

import offspan
from offspan import cli
from offspan.errors import OffspanError
from offspan.experiments.lqr import LQRSpec
from offspan.lab import build
from offspan.lab.data import NETWORKS, usual
from offspan.theory.closed_forms import shift_alpha_any_horizon, shift_ratios
from tests.chromium import chromium, needs_browser

DOCS = Path(__file__).parent.parent / "docs"
SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1440, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2},
}


class Lab:
    """Opens pages, and remembers what they load and complain of."""

    def __init__(self, browser: Any):
        self.browser, self.complaints, self.loaded = browser, [], []

    def open(self, fragment: str = "", size: str = "desktop", file: Path = DOCS / "lab.html", **options: Any) -> Page:
        page = self.browser.new_context(**{**SIZES[size], **options}).new_page()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.loaded.append(request.url))
        page.goto(f"{file.as_uri()}{fragment}")
        return page


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def lab(browser):
    """After every test: no request left the page, and nothing complained."""
    lab = Lab(browser)
    yield lab
    for context in browser.contexts:
        context.close()
    assert lab.complaints == []
    assert lab.loaded
    assert all(url.startswith(("file:", "data:")) for url in lab.loaded)


def settled(page: Page) -> Page:
    """After training has come to its end."""
    shows(page, "status", "^settled")
    return page


def shows(page: Page, id: str, pattern: str) -> None:
    """Waits for a text. The policy forbids what `wait_for_function` does."""
    expect(page.locator(f"#{id}")).to_have_text(re.compile(pattern), timeout=20_000)


def text(page: Page, id: str) -> str:
    return page.locator(f"#{id}").inner_text()


def numbers(page: Page) -> dict[str, str]:
    return dict(zip(page.locator("#numbers dt").all_inner_texts(), page.locator("#numbers dd").all_inner_texts(), strict=True))


def centre(page: Page, selector: str) -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page: Page, selector: str, across: float, down: float) -> None:
    x, y = centre(page, selector)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + across / 2, y + down / 2, steps=3)
    page.mouse.move(x + across, y + down, steps=3)
    page.mouse.up()


def test_the_committed_page_is_what_the_sources_make():
    """`make lab` writes it."""
    assert (DOCS / "lab.html").read_text() == build.page(usual())
    assert len((DOCS / "lab.html").read_bytes()) < 1_000_000


def test_the_page_allows_nothing_but_itself():
    made = build.page({"title": "</script><script>alert(1)</script>", **usual()})
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', made)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert made.count("</script") == 2
    assert made.count("<script") == 2
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", made)


def test_the_build_refuses_circles_and_what_it_cannot_read(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "PAGE", tmp_path)
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nexport const a = b + 1;\n')
    (tmp_path / "b.js").write_text("const hidden = 1;\nexport const b = hidden;\n")
    assert "const { b } = b;" in build.bundle("a")
    assert build.bundle("a").index("const hidden") < build.bundle("a").index("const a")
    (tmp_path / "b.js").write_text('import { a } from "./a.js";\nexport const b = 1;\n')
    with pytest.raises(OffspanError, match="circle: a → b → a"):
        build.bundle("a")
    (tmp_path / "b.js").write_text("const b = 1;\nexport default b;\n")
    with pytest.raises(OffspanError, match="not of the form"):
        build.bundle("a")
    (tmp_path / "b.js").write_text('export const b = "</script>";\n')
    with pytest.raises(OffspanError, match="would end its element"):
        build.bundle("a")


@needs_browser
@pytest.mark.parametrize("size", SIZES)
def test_the_dial_reads_the_five_numbers(lab, size):
    """1.00 at 0°, 0.72 at 10°, 0.44 at 30°, 0.38 at 50°, 0.34 at 90°; by keys, by links, and turned by hand."""
    expected = {0: "1.00", 10: "0.72", 30: "0.44", 50: "0.38", 90: "0.34"}
    page = settled(lab.open(size=size))
    assert (text(page, "measure"), text(page, "dial-number")) == ("0.44", "30°")
    page.focus("#dial")
    page.keyboard.press("Home")
    found = {}
    for phi in range(0, 91, 10):
        expect(page.locator("#dial")).to_have_attribute("aria-valuenow", str(phi))
        settled(page)
        found[phi] = text(page, "measure")
        page.keyboard.press("PageUp")
    assert {phi: found[phi] for phi in expected} == expected
    shows(page, "dial-number", "^100°$")
    x, y = centre(page, "#dial-knob")
    box = page.locator("#dial svg").bounding_box()
    assert box
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (126 + 92) / 252, box["y"] + box["height"] * 124 / 142, steps=8)
    page.mouse.up()
    assert text(settled(page), "dial-number") == "0°"
    assert text(page, "measure") == "1.00"
    assert text(settled(lab.open("#explore&phi=50", size)), "measure") == "0.38"


@needs_browser
def test_states_are_dragged_by_mouse_touch_and_keys(lab):
    page = settled(lab.open("#explore&phi=90"))
    drag(page, ".handle.seen", 0, -120)
    assert float(numbers(settled(page))["least J(S)"]) == pytest.approx(1 + (2 * 1.62 * 120 / page.locator("#plane").bounding_box()["width"]) ** 2, rel=1e-2)  # pyright: ignore[reportOptionalSubscript]
    assert text(page, "measure") == "0.34", "the measure of a rotation by 90° does not depend on the direction"
    before = page.locator(".handle.unseen").get_attribute("aria-label")
    drag(page, ".handle.unseen", 60, 30)
    assert page.locator(".handle.unseen").get_attribute("aria-label") != before
    page.focus(".handle.unseen")
    label = lambda: re.findall(r"-?\d\.\d\d", page.locator(".handle.unseen").get_attribute("aria-label") or "")  # noqa: E731
    x, y = map(float, label())
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowDown")
    expect(page.locator(".handle.unseen")).to_have_attribute("aria-label", re.compile(f"{y - 0.25:.1f}"))
    assert [float(value) for value in label()] == pytest.approx([x - 0.05, y - 0.25], abs=0.011)

    phone = settled(lab.open("#explore&phi=90", "phone"))
    phone.locator("#plane").scroll_into_view_if_needed()
    (x, y), session = centre(phone, ".handle.unseen"), phone.context.new_cdp_session(phone)
    for kind, points in (("touchStart", [(x, y)]), ("touchMove", [(x + 30, y + 40)]), ("touchMove", [(x + 60, y + 50)]), ("touchEnd", [])):
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": a, "y": b} for a, b in points]})
    expect(phone.locator(".handle.unseen")).not_to_have_attribute("aria-label", re.compile("0.00, 1.00"))
    assert centre(phone, ".handle.unseen") == pytest.approx((x + 60, y + 50), abs=2)


@needs_browser
def test_training_steps_resets_pauses_and_diverges_with_advice(lab):
    page = settled(lab.open("#explore&phi=30"))
    page.click("#reset")
    assert text(page, "status") == "not trained yet"
    assert numbers(page)["J(S)"] == "9.0000"
    page.click("#step")
    shows(page, "status", "^after 1 iteration$")
    A = np.array([[np.cos(np.pi / 6), -np.sin(np.pi / 6)], [np.sin(np.pi / 6), np.cos(np.pi / 6)]])
    problem, seen = offspan.LQR(A, horizon=8), offspan.basis(2, 1)
    run = offspan.train_lqr(problem, seen, learning_rate=0.01, iterations=1)
    assert float(numbers(page)["E opt"]) == pytest.approx(float(offspan.normalized_optimality(problem, run.K, seen)), abs=5e-5)
    page.click("#train")
    shows(page, "train", "^Pause$")
    assert text(settled(page), "measure") == "0.44"
    assert numbers(page)["J(S)"] == "1.0000"

    page = lab.open("#explore&phi=30&eta=0.5")
    page.wait_for_selector("#advice", state="visible")
    assert re.match(r"Diverged at iteration \d+: steps of η = 0.5 overshoot\. Take smaller ones", text(page, "advice-words"))
    for _ in range(4):
        if page.locator("#advice").is_visible():
            page.click("#advice-do")
            shows(page, "status", "^(?!training)")
    assert float(text(settled(page), "measure")) < 0.5


@needs_browser
def test_the_propositions_step_extrapolates_on_the_shift(lab):
    page = settled(lab.open())
    page.click("#proposition")
    shows(page, "status", "^after 1 iteration$")
    expected = shift_ratios(shift_alpha_any_horizon(5, 5), 5)[0]
    assert float(numbers(page)["E opt"]) == pytest.approx(expected, abs=5e-5)
    assert float(numbers(page)["J(S)"]) == pytest.approx(1.0, abs=5e-5)
    assert f"{expected:.4f}" in text(page, "flight")


@needs_browser
def test_other_systems_noise_and_the_gradient_cut(lab):
    page = lab.open()
    page.get_by_role("radio", name="identity").click()
    assert text(settled(page), "measure") == "1.00"
    page.locator("#noise").fill("0.3")
    shows(page, "measure", r"^0\.0\d$")  # noise explores in its place
    page.get_by_role("radio", name="shift").click()
    assert text(settled(page), "measure") == "0.62"
    assert len(page.locator("#directions tbody tr").all()) == 5
    page.get_by_role("radio", name="random").click()
    first = text(settled(page), "measure")
    page.click("#draw")
    assert text(settled(page), "measure") != first
    cut = lab.open("#explore&system=shift&D=8&H=8&eta=0.02&cut=0.5")
    shows(cut, "status", "^(?!training)")
    problem, seen = offspan.shift(8, horizon=8), offspan.basis(8, 1)
    made = int(numbers(cut)["iterations"].replace(",", ""))
    run = offspan.train_lqr(problem, seen, learning_rate=0.02, iterations=made, clip=0.5)
    assert float(numbers(cut)["E opt"]) == pytest.approx(float(offspan.normalized_optimality(problem, run.K, seen)), abs=5e-5)


@needs_browser
def test_a_link_holds_the_state(lab):
    page = settled(lab.open())
    page.get_by_role("radio", name="shift").click()
    page.locator("#dimension").fill("4")
    page.locator("#count").fill("2")
    page.locator("#horizon").fill("6")
    page.click("#reset")
    for _ in range(3):
        page.click("#step")
    shows(page, "status", "^after 3 iterations$")
    expect(page).to_have_url(re.compile("steps=3"))
    again = lab.open(page.evaluate("location.hash"))
    shows(again, "status", "^after 3 iterations$")
    assert numbers(again) == numbers(page)
    again.evaluate("location.hash = '#explore&phi=90'")
    shows(again, "measure", "^0.34$")


@needs_browser
@pytest.mark.parametrize(
    ("fragment", "named"),
    [
        ("#explore&H=1e9&eta=abc&D=-3&system=<b>", "system, H, eta"),
        ("#explore&seen=1,2,3;4", "seen"),
        ("#nothing&x=<img src=x onerror=alert(1)>", "names no tab"),
        ("#%E0%A4%A", ""),
        ("#which&draw=0.5", "draw"),
        ("#pendulum&who=me&angle=NaN", "who, angle"),
    ],
)
def test_a_bad_link_falls_back_and_says_so(lab, fragment, named):
    page = lab.open(fragment)
    assert named in page.locator("#notice").inner_text() if named else page.locator("#notice").is_hidden()
    assert page.locator("b:not(.slider b), img").count() == 0


@needs_browser
@pytest.mark.parametrize("size", SIZES)
def test_which_two(lab, size):
    """The ranks and scores of the page are those of training in Python."""
    page = lab.open("#which&draw=3", size)
    page.locator("#visits button").nth(1).click()
    assert text(page, "which-words") == "And the second?"
    page.locator("#visits button").nth(6).click()
    page.wait_for_selector("#which-table", state="visible", timeout=60_000)
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#which-table tbody tr").all()]
    assert [row[0] for row in rows] == ["you", "log det of what is visited", "the closed-form flow", "training all 28"]
    assert rows[0][1] == "e₂ and e₇"
    assert rows[3][3:] == ["1", "100"]
    assert "rank" in text(page, "which-words")
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
    "B of other rows": ("B", "1\n2", "B has 2 rows, but A is 3×3, so B needs 3."),
    "Q not symmetric": ("Q", "1 2 0;0 1 0;0 0 1", "Q is not symmetric: it differs from its transpose by 2."),
    "Q negative": ("Q", "-1 0 0;0 1 0;0 0 1", "Q is not positive semidefinite (smallest eigenvalue -1), so the cost would have no minimum."),
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


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_tab_fits_and_can_be_read(lab, size, scheme):
    """No tab is wider than the screen, every text has a contrast of 4.5 (3 where it is large), and keys lead from tab to tab."""
    page = settled(lab.open(size=size, color_scheme=scheme))
    for name in ("explore", "which", "pendulum", "yours"):
        if name != "explore":
            page.keyboard.press("ArrowRight")
        else:
            page.focus("#tab-explore")
        assert page.locator(f"#panel-{name}").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["viewport"]["width"]
        poor = page.evaluate(POOR)
        assert poor == []
        unnamed = page.evaluate("[...document.querySelectorAll('button, input, select, textarea, canvas, [role=slider]')].filter(e => e.offsetParent && !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).map(e => e.id)")
        assert unnamed == []


# Texts whose contrast to what they stand on is too low, by WCAG's formula.
POOR = """() => {
  const rgb = colour => colour.match(/[0-9.]+/g).map(Number)
  const light = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c } return [255, 255, 255] }
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
  return [...document.querySelectorAll('body *')].filter(e => e.offsetParent && !e.closest('svg') && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
    .map(e => [e.id || e.className || e.tagName, ratio(light(rgb(getComputedStyle(e).color)), light(ground(e))), parseFloat(getComputedStyle(e).fontSize) >= 24 ? 3 : 4.5])
    .filter(([, found, needed]) => found < needed)
}"""


@needs_browser
def test_the_policy_is_in_force(lab):
    """A script, a style and a request that somebody slips in are refused by the browser, which says so."""
    page = lab.open()
    refused = page.evaluate("""async () => {
      const found = []
      addEventListener('securitypolicyviolation', e => found.push(e.effectiveDirective))
      document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.slipped = 1' }))
      await fetch('https://example.org/').catch(() => 0)
      document.body.append(Object.assign(document.createElement('img'), { src: 'https://example.org/x.png' }))
      await new Promise(r => setTimeout(r, 200))
      return [found.sort(), window.slipped === undefined]
    }""")
    assert refused == [["connect-src", "img-src", "script-src-elem"], True]
    assert len(lab.complaints) >= 3
    lab.complaints.clear()


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
    assert float(numbers(page)["in the run"]) == pytest.approx(float(numbers(page)["E opt"]), abs=2e-4)
    page = lab.open("#pendulum", file=tmp_path / "pendulum.html", reduced_motion="reduce")
    assert len(page.locator("#seeds button").all()) == 5
    page.click("#drop")
    shows(page, "rod-status", "it stands upright")
    page = lab.open("#pendulum", file=tmp_path / "quadcopter-below.html")
    assert text(page, "tab-pendulum") == "The run"
    page.locator("#map").hover()
    shows(page, "network-words", "it costs")


def test_the_rounded_networks_are_as_good_as_the_stored_ones():
    """Half precision changes the cost of a final network over the unseen states by less than a hundredth of what it lost to the baseline."""
    spec_states = usual()["pendulum"]
    stored = {one["seed"]: one for one in json.loads(NETWORKS.read_text())["networks"] if one["iteration"] == 75_000 and one["objective"] == "policy_gradient"}
    from offspan.experiments.store import RunFolder
    from offspan.lab.data import stored_layers, unpacked

    result = RunFolder(DOCS / "results" / "pendulum").load_result()
    unseen = np.array(spec_states["unseen"], np.float32)
    with jax.enable_x64(False):
        for seed, one in stored.items():
            J = [float(offspan.cost(offspan.Pendulum(), offspan.MLP(layers), unseen)) for layers in (unpacked(one["layers"]), stored_layers(result, "policy_gradient", seed))]
            assert J[0] == pytest.approx(J[1], abs=0.05)
