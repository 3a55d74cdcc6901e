"""A pipeline with 10,000 versions in Chromium, served by ``streamsem ui``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Response, expect

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.stores.local import LocalStore
from benchmarks.__main__ import history
from tests.integration.parts.chromium import running_chromium
from tests.web.server_process import serving

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

VERSIONS = 10_000


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Store a log of 10,000 versions with its segments, and return its location."""
    _, built = history(tmp_path, VERSIONS, whole=VERSIONS)
    store = LocalStore(str(tmp_path / "log"))
    for key, data in built.objects.items():
        path = Path(store.root, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for version in range(99, VERSIONS, 100):
        CommitLog(store).write_segments(version, [])
    return store.url


def test_view_of_10_000_versions_requests_them_page_by_page(log: str) -> None:
    responses: list[Response] = []
    with serving(log) as (url, _), running_chromium() as chromium:
        page = chromium.new_page()
        page.on("response", lambda response: responses.append(response) if "/api/" in response.url else None)
        page.goto(url)
        page.get_by_role("link", name="bench").click()
        expect(page.get_by_text(f"{VERSIONS - 1}: committed")).to_be_visible()
        expect(page.get_by_role("button", name="Show earlier versions")).to_be_visible()
        assert requested(responses) == {"settings": 1, "pipelines": 1, "pipelines/0": 1, "pipelines/0/versions": 1}
        assert sum(len(response.body()) for response in responses) < 250_000
        page.get_by_role("tab", name="Versions").click()
        rows = page.locator("tbody tr").count()
        assert 50 <= rows <= 200
        page.get_by_role("button", name="Show earlier versions").click()
        expect(page.locator("tbody tr")).to_have_count(2 * rows)
        assert requested(responses) == {"settings": 1, "pipelines": 1, "pipelines/0": 1, "pipelines/0/versions": 2}
        identifier = page.url.partition("#/pipelines/")[2]
        page.goto(f"{url}#/pipelines/{identifier}/versions/5")
        expect(page.get_by_text("data/5/a/f.json")).to_be_visible()


def requested(responses: list[Response]) -> Counter[str]:
    """Return the path of each request below ``/api/`` → how often it was sent."""
    return Counter(urlsplit(response.url).path.partition("/api/")[2] for response in responses)
