"""Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, expect, sync_playwright

from tests.integration.parts.install import browser


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Start a browser whose expectations wait up to a minute. A page inside of Airflow needs more than Playwright's five seconds on a busy machine."""
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        yield chromium
        chromium.close()
