"""One browser for each file of tests, and pages of the lab in it."""

import pytest

from tests.chromium import Lab, chromium


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
