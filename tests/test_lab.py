"""The page of the lab, driven as a person would, in a real browser: its first tab, and what holds for all."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import offspan
from offspan.errors import OffspanError
from offspan.lab import build
from offspan.lab.data import usual
from offspan.theory.closed_forms import shift_alpha_any_horizon, shift_ratios
from tests.chromium import DOCS, SIZES, centre, drag, needs_browser, numbers, settled, shows, text


def test_the_committed_page_is_what_the_sources_make():
    """`make lab` writes it."""
    assert (DOCS / "lab.html").read_text() == build.page(usual())
    assert len((DOCS / "lab.html").read_bytes()) < 1_000_000


def test_the_sources_keep_to_the_line_limit():
    sources = [path for path in build.PAGE.iterdir() if path.is_file()]
    assert len(sources) > 10
    assert [f"{path.name}:{i}" for path in sources for i, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 140] == []


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
    (tmp_path / "b.js").write_text('import { a } from "./a.js";\nexport const b = 1;\n')
    with pytest.raises(OffspanError, match="circle: a → b → a"):
        build.bundle("a")
    for unreadable in ("const b = 1;\nexport default b;\n", 'import c from "./c.js";\nexport const b = c;\n'):
        (tmp_path / "b.js").write_text(unreadable)
        with pytest.raises(OffspanError, match="not of the form"):
            build.bundle("a")
    (tmp_path / "b.js").write_text('export const b = "</script>";\n')
    with pytest.raises(OffspanError, match="would end its element"):
        build.bundle("a")


@needs_browser
def test_a_bundle_keeps_names_apart(browser, tmp_path, monkeypatch):
    """Of modules and of what they export or keep to themselves, in whatever order they are imported."""
    monkeypatch.setattr(build, "PAGE", tmp_path)
    (tmp_path / "a.js").write_text('import { c } from "./c.js";\nimport { b as d } from "./b.js";\nexport const a = [c, d];\n')
    (tmp_path / "b.js").write_text("const hidden = 1;\nexport const b = hidden;\n")
    (tmp_path / "c.js").write_text('import { b } from "./b.js";\nconst hidden = 10;\nexport function c() { return hidden + b; }\n')
    page = browser.new_page()
    assert page.evaluate(f"() => {{ {build.bundle('a')} return [module_a.a[0](), module_a.a[1]]; }}") == [11, 1]


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
    seen = np.array([re.findall(r"-?\d\.\d\d", page.locator(".handle.seen").get_attribute("aria-label") or "")], float)
    assert seen[0, 0] == 1.0
    assert seen[0, 1] > 0.5
    assert float(numbers(settled(page))["least J(S)"]) == pytest.approx(1 + seen[0, 1] ** 2, abs=0.02)
    problem = offspan.LQR([[0.0, -1.0], [1.0, 0.0]], horizon=8)
    run = offspan.train_lqr(problem, seen, learning_rate=0.01, iterations=500)
    assert float(text(page, "measure")) == pytest.approx(float(offspan.normalized_optimality(problem, run.K, seen)), abs=0.01)
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
    shows(page, "status", "^not trained yet$")
    assert numbers(page)["J(S)"] == "9.0000"
    page.click("#step")
    shows(page, "status", "^after 1 iteration$")
    A = np.array([[np.cos(np.pi / 6), -np.sin(np.pi / 6)], [np.sin(np.pi / 6), np.cos(np.pi / 6)]])
    problem, seen = offspan.LQR(A, horizon=8), offspan.basis(2, 1)
    run = offspan.train_lqr(problem, seen, learning_rate=0.01, iterations=1)
    assert float(numbers(page)["norm. E opt"]) == pytest.approx(float(offspan.normalized_optimality(problem, run.K, seen)), abs=5e-5)
    page.click("#train")
    shows(page, "train", "^Pause$")
    assert text(settled(page), "measure") == "0.44"
    assert numbers(page)["J(S)"] == "1.0000"

    page = lab.open("#explore&phi=30&eta=0.5")
    page.wait_for_selector("#advice", state="visible")
    assert re.match(r"Diverged at iteration \d+: steps of η = 0.5 overshoot\. Take smaller ones", text(page, "advice-words"))
    assert text(page, "measure") == "≫ 1"
    assert page.evaluate("document.documentElement.scrollWidth") == 1440, "numbers of 300 digits are not written out"
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
    assert float(numbers(page)["norm. E opt"]) == pytest.approx(expected, abs=5e-5)
    assert float(numbers(page)["J(S)"]) == pytest.approx(1.0, abs=5e-5)
    assert f"{expected:.4f}" in text(page, "flight")


@needs_browser
def test_other_systems_noise_and_the_gradient_cut(lab):
    page = lab.open()
    page.get_by_role("radio", name="identity").click()
    assert text(settled(page), "measure") == "1.00"
    page.locator("#noise").fill("0.3")
    shows(page, "measure", r"^0\.0\d$")  # noise explores in its place
    page.locator("#noise").fill("0")
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
    assert float(numbers(cut)["norm. E opt"]) == pytest.approx(float(offspan.normalized_optimality(problem, run.K, seen)), abs=5e-5)


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
        ("#%E0%A4%A", "names no tab"),
        ("#explore&phi=50%&H=3", "value for phi that"),
        ("#which&draw=0.5", "draw"),
        ("#pendulum&who=me&angle=NaN", "who, angle"),
    ],
)
def test_a_bad_link_falls_back_and_says_so(lab, fragment, named):
    page = lab.open(fragment)
    assert named in page.locator("#notice").inner_text()
    assert page.locator("b:not(.slider b), img").count() == 0


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
        unnamed = page.evaluate(UNNAMED)
        assert unnamed == []


# Texts whose contrast to what they stand on is too low, by WCAG's formula.
POOR = """() => {
  const rgb = colour => colour.match(/[0-9.]+/g).map(Number)
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
  const light = c => { const [r, g, b] = c.slice(0, 3).map(v => linear(v / 255)); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  const ground = e => {
    for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c }
    return [255, 255, 255]
  }
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
  const words = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())
  return [...document.querySelectorAll('body *')].filter(e => e.offsetParent && !e.closest('svg') && words(e)).map(e => {
    const style = getComputedStyle(e), needed = parseFloat(style.fontSize) >= 24 ? 3 : 4.5
    return [e.id || e.className || e.tagName, ratio(light(rgb(style.color)), light(ground(e))), needed]
  }).filter(([, found, needed]) => found < needed)
}"""
# Controls and pictures that a screen reader could say nothing of.
UNNAMED = """[...document.querySelectorAll('button, input, select, textarea, canvas, [role=slider]')].filter(
  e => e.offsetParent && !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).map(e => e.id)"""


@needs_browser
def test_the_policy_is_in_force(lab):
    """A script, a style and a request that somebody slips in are refused by the browser, which says so."""
    page = lab.open()
    failed = []
    page.on("requestfailed", lambda request: failed.append((request.url, request.failure)))
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
    lab.loaded = [url for url in lab.loaded if (url, "csp") not in failed]
