"""The pictures of the lab, taken from the page: `python docs/animation.py` writes lab.gif and lab-….png beside this file.

It needs playwright and a Chromium, which OFFSPAN_BROWSER names if it is not on the path.
"""

import io
import os
import re
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

DOCS = Path(__file__).parent
WIDTH, HEIGHT, SHOWN = 1300, 850, 880  # of the page, and the animation's width
SCREENS: dict[str, tuple[str, dict[str, Any]]] = {
    "lab-light": ("#explore&phi=30", {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"}),
    "lab-dark": (
        "#explore&system=random&D=5&H=5&eta=0.005&draw=3",
        {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    ),
    "lab-phone": (
        "#explore&phi=30",
        {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True},
    ),
    "lab-pendulum": ("#pendulum&angle=1.05", {"viewport": {"width": 1440, "height": 800}, "color_scheme": "light"}),
}


def picture(page: Page) -> Image.Image:
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return image.resize((SHOWN, SHOWN * image.height // image.width), Image.Resampling.LANCZOS)


def turn(page: Page) -> list[Image.Image]:
    """The dial from 0° to 90°, each time with training at its end."""
    found = []
    for phi in range(0, 91, 2):
        page.evaluate(f"location.hash = '#explore&phi={phi}'")
        expect(page.locator("#dial-number")).to_have_text(f"{phi}°")
        expect(page.locator("#status")).to_have_text(re.compile("^settled"))
        page.wait_for_timeout(60)
        found.append(picture(page))
    return found


def save(frames: list[Image.Image]) -> None:
    """With one palette for all frames, so that what stands still stays the same pixels; the shades differ between first and last."""
    some = [frames[0], frames[len(frames) // 2], frames[-1]]
    sample = Image.new("RGB", (some[0].width, sum(frame.height for frame in some)))
    for place, frame in enumerate(some):
        sample.paste(frame, (0, place * frame.height))
    for place, colour in enumerate(("#0072b2", "#d55e00")):  # small on the page, but what it is about
        sample.paste(colour, (0, 60 * place, sample.width, 60 * place + 60))
    palette = sample.quantize(200, dither=Image.Dither.NONE)
    first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [900, *[75] * (len(others) - 1), 2200]
    first.save(DOCS / "lab.gif", save_all=True, append_images=others, duration=times, loop=0, optimize=True)


def main() -> None:
    browser_path = os.environ.get("OFFSPAN_BROWSER") or shutil.which("chromium")
    address = (DOCS / "lab.html").as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(address)
        page.wait_for_timeout(1500)  # until every angle has been tried
        save(turn(page))
        for name, (fragment, options) in SCREENS.items():
            page = browser.new_context(**options).new_page()
            page.goto(address + fragment)
            if "pendulum" in name:
                page.click("#drop")
                expect(page.locator("#rod-status")).to_have_text(re.compile("^After"), timeout=20_000)
            page.wait_for_timeout(8000 if "pendulum" in name else 1500)
            page.screenshot(path=DOCS / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
