"""A real browser for tests of pages, and what those of the lab share."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

BROWSER = os.environ.get("OFFSPAN_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: install one, or name it in OFFSPAN_BROWSER")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-background-networking"])
        yield browser
        browser.close()


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


def settled(page: Page) -> Page:
    """After training has come to its end."""
    shows(page, "status", "^settled")
    return page


def shows(page: Page, id: str, pattern: str) -> None:
    """Waits for a text. The policy forbids what `wait_for_function` does."""
    expect(page.locator(f"#{id}")).to_have_text(re.compile(pattern), timeout=20_000)


def text(page: Page, id: str) -> str:
    return page.locator(f"#{id}").text_content() or ""


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
