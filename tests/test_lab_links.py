"""Links of the lab: what the page writes it reads again, what it cannot read it names; and the first tab beside the others."""

import re
import shutil

import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

from offspan import cli
from tests.chromium import DOCS, centre, drag, needs_browser, numbers, settled, shows, text

pytestmark = needs_browser

STATES = {
    "rotation": "phi=90&H=12&eta=0.005&noise=0.1&cut=2&seen=1,0.5&unseen=-0.3,1.2&steps=40",
    "more seen states than coordinates": "seen=1,0;0,1;1,1",
    "identity": "system=identity&D=3&count=2",
    "shift": "system=shift&D=6&count=3&x=2&y=5&steps=30000",
    "random": "system=random&D=8&draw=17&H=4&unseen=0,0,0,0,0,0,1.5,-1.5",
    "yours, long and slow": "system=yours&A=0.5,0.1;0,0.4&H=100&eta=1e-8&steps=2",
    "yours": "system=yours&A=0.9,0.4,0;0,0.8,0.5;0,0,0.7&B=0;0;1&Q=2,0,0;0,1,0;0,0,1&R=0.1&H=7&count=2&steps=5",
    "yours, unstable": "system=yours&A=9,0;0,9&H=20&steps=1",
}


@pytest.mark.parametrize("name", STATES)
def test_what_the_page_writes_it_reads_again(lab, name):
    """Every pair of the link is kept, nothing is refused, and the numbers are the same."""
    page = lab.open(f"#explore&{STATES[name]}")
    shows(page, "status", "^(?!training)")
    expect(page).to_have_url(re.compile("eta="))
    assert page.locator("#notice").is_hidden(), text(page, "notice")
    written = page.evaluate("location.hash")
    assert set(STATES[name].split("&")) - {"steps=1"} <= set(written.split("&")[1:])
    again = lab.open(written)
    shows(again, "status", "^(?!training)")
    expect(again).to_have_url(re.compile("eta="))
    assert again.locator("#notice").is_hidden(), text(again, "notice")
    assert again.evaluate("location.hash") == written
    assert numbers(again) == numbers(page)


def test_a_link_to_a_system_of_a_run(lab, tmp_path):
    shutil.copytree(DOCS / "results" / "lqr", tmp_path / "lqr")
    file = tmp_path / "lab.html"
    assert CliRunner().invoke(cli.app, ["lab", "--no-open", "lqr", "--folder", str(tmp_path), "--output", str(file)]).exit_code == 0
    page = lab.open("#explore&system=run&run=1&steps=3", file=file)
    shows(page, "status", "^after 3 iterations$")
    page.locator(".handle.seen").first.press("ArrowUp")
    expect(page).to_have_url(re.compile("&run=1&.*seen="))
    again = lab.open(page.evaluate("location.hash"), file=file)
    assert again.locator("#notice").is_hidden(), text(again, "notice")
    assert again.locator(".handle.seen").first.get_attribute("aria-label") == page.locator(".handle.seen").first.get_attribute("aria-label")


@pytest.mark.parametrize(
    ("fragment", "named"),
    [
        ("#yours&A=50%&H=3", "The link has a value for A that cannot be used, so the usual one stands in its place."),
        ("#explore&phi=30&colour=red&b", "The link has colour, b, which mean nothing here."),
        ("#explore&seen=9,0&unseen=0,0.01", "value for seen, unseen that"),
        ("#explore&phi=12.5", "value for phi that"),
        ("#explore&system=shift&D=4&x=2&y=2", "value for x, y that"),
        ("#explore&system=yours&A=0,1;one,0&H=3", "value for A that"),
        ("#which&draw=3%26x=1", "value for draw that"),
    ],
)
def test_what_a_link_says_in_vain_is_named(lab, fragment, named):
    page = lab.open(fragment)
    assert named in text(page, "notice")
    assert page.evaluate("document.documentElement.scrollWidth") == 1440


def test_values_with_the_signs_of_links_in_them(lab):
    page = lab.open("#yours")
    page.locator("#yours-A").fill("1 0 & =\n0 50%")
    expect(page).to_have_url(re.compile("%26"))
    again = lab.open(page.evaluate("location.hash"))
    assert again.locator("#yours-A").input_value() == "1 0 & =\n0 50%"
    assert again.locator("#notice").is_hidden()


def test_other_matrices_in_yours_are_other_matrices_in_explore(lab):
    page = lab.open("#explore&system=yours")
    for A, k, D in (("0 1\n0.5 0", 1, 2), ("0 1 0 0\n0 0 1 0\n0 0 0 1\n0.5 0 0 0", 2, 4)):
        page.click("#tab-yours")
        page.locator("#yours-k").fill(str(k))
        page.locator("#yours-A").fill(A)
        page.click("#tab-explore")  # at once
        page.locator("#horizon").fill("6")
        shows(page, "status", "^(settled|after)")
        words = text(page, "yours-words")
        assert f"of {D} directions" in words
        best = re.findall(r"e(.)", re.findall(r"Start from (.*):", words)[0])
        assert len(best) == k
        assert "NaN" not in "".join(numbers(page).values())
        rows = page.locator("#directions tbody tr td:first-child").all_inner_texts()
        assert len(rows) == D
        assert [row[1] for row in rows if " seen" in row] == best
    assert page.locator("#count").get_attribute("max") == "3"


def test_explore_it_takes_what_yours_chose(lab):
    page = lab.open("#yours&A=0.9,0.4,0;0,0.8,0.5;0,0,0.7&H=40&eta=0.002&k=1")
    shows(page, "yours-words", "Start from e₃")
    page.click("#yours-explore")
    expect(page).to_have_url(re.compile("H=40&eta=0.002&seen=0,0,1"))
    assert page.locator(".handle.seen").is_visible()
    assert page.locator(".handle.unseen").is_visible()


def test_neither_state_can_be_lost_in_the_origin(lab):
    page = settled(lab.open("#explore&phi=90"))
    for kind in ("unseen", "seen"):
        (x, y), (a, b) = centre(page, f".handle.{kind}"), centre(page, "#plane")
        drag(page, f".handle.{kind}", a - x, b - y)
        assert page.locator(f".handle.{kind}").is_visible()


def test_training_goes_on_when_asked(lab):
    page = lab.open("#explore&phi=30&eta=1e-6")
    shows(page, "status", "^after 20,000 iterations$")
    shows(page, "train", "^Train on$")
    page.click("#train")
    shows(page, "status", "^after 40,000 iterations$")
    expect(page).to_have_url(re.compile("steps=40000"))


def test_a_flown_trajectory_is_of_this_controller(lab):
    """At φ = 0 and H = 8, (0.8, 0) costs 0.64 · 9 before training; one step of η = 0.01 leaves 1 − 0.01 · 2 Σ_h h = 0.28 of a state."""
    page = settled(lab.open("#explore&phi=0"))
    box = page.locator("#plane").bounding_box()
    assert box
    page.click("#reset")
    page.locator("#plane").click(position={"x": box["width"] * (0.5 + 0.5 / 1.62 * 0.8), "y": box["height"] / 2})
    shows(page, "flight", r"^From \(0\.80, -?0\.00\): cost 5\.7\d, of which 5\.1 is excess\.$")
    page.click("#step")
    later = 0.64 * sum(0.28 ** (2 * h) for h in range(1, 9))
    shows(page, "flight", rf"cost {0.64 + later:.2f}\d, of which {later:.3f} is excess\.$")
    page.get_by_role("radio", name="shift").click()
    assert text(page, "flight") == ""
    page.get_by_role("radio", name="yours").click()
    assert text(page, "shade-words") == "excess cost"
    costly = lab.open("#explore&system=yours&A=1,0;0,1&R=1,0;0,1")
    assert text(costly, "shade-words") == "cost beyond xᵀQx"


def test_another_system_begins_without_noise_and_cut(lab):
    page = lab.open("#explore&phi=0&noise=0.3&cut=1")
    assert "noise visits every direction" in text(page, "system-words")
    page.get_by_role("radio", name="identity").click()
    assert "nothing new is visited" in text(page, "system-words")
    expect(page).to_have_url(re.compile(r"#explore&system=identity&D=2&H=8&eta=0.01$"))


def test_a_button_that_said_copied_says_its_name_again(lab):
    page = lab.open()
    for _ in range(3):
        page.click("#share")
    shows(page, "share", "^Cop(ied|y it from the address bar)$")
    shows(page, "share", "^Copy link$")


def test_a_finger_scrolls_from_within_the_dial_and_turns_by_its_arc(lab):
    page = settled(lab.open("#explore&phi=30", "phone"))
    page.locator("#dial").scroll_into_view_if_needed()
    box, session = page.locator("#dial svg").bounding_box(), page.context.new_cdp_session(page)
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + 0.8 * box["height"]

    def swipe(x: float, y: float, across: float, down: float) -> None:
        for kind, share in (("touchStart", 0), ("touchMove", 0.3), ("touchMove", 0.6), ("touchMove", 1)):
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x + share * across, "y": y + share * down}]})
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    before = page.evaluate("scrollY")
    swipe(*centre(page, "#dial-knob"), 15, 60)
    shows(page, "dial-number", r"^\d°$")
    assert page.evaluate("scrollY") == before
    turned = text(page, "dial-number")
    swipe(x, y, 0, -150)
    page.wait_for_timeout(200)
    assert page.evaluate("scrollY") > before + 50
    assert text(page, "dial-number") == turned


def test_the_status_is_heard_at_its_start_and_end(lab):
    page = settled(lab.open())
    page.evaluate("""() => {
      window.heard = []
      new MutationObserver(() => window.heard.push(document.getElementById('heard').textContent)).observe(
        document.getElementById('heard'), { childList: true })
    }""")
    page.click("#reset")
    page.click("#train")
    shows(page, "status", "^training … [1-9]")
    page.click("#train")
    shows(page, "status", "^after")
    assert page.evaluate("window.heard") == ["not trained yet", "training", text(page, "status")]


def test_the_tabs_fit_the_smallest_phone(lab):
    page = lab.open(viewport={"width": 320, "height": 640})
    bar, last = (page.locator(one).bounding_box() for one in (".tabs", "#tab-yours"))
    assert bar
    assert last
    assert last["x"] + last["width"] <= bar["x"] + bar["width"]
    assert page.evaluate("document.documentElement.scrollWidth") == 320
