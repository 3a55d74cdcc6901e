"""A rewrite, a rollback, an expiry and an alter in Chromium, served by ``streamsem ui``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from airflow_provider_streamsem import FilesSink, alter, rollback
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.stores.local import LocalStore
from tests.integration.parts.chromium import running_chromium
from tests.pipeline.compactions import compacted, prepared
from tests.web.server_process import serving

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """
    Versions 0 to 3 are batches, 4 reprocesses version 1, 5 rewrites 0 and 2 to 4, 6 is a batch, 7 rolls back to 5, 8 lets the versions below 5 expire, and 9
    replaces the sink.
    """
    root = tmp_path_factory.mktemp("kinds")
    fixture = prepared(root, store=LocalStore(str(root / "log")))
    fixture.run("fix", reprocessed=1)
    compacted(fixture)
    fixture.run("wrong")
    rollback(fixture.pipeline(), 5, log=fixture.log())
    vacuum(fixture.pipeline(), keep_versions=3, keep_days=0, log=fixture.log())
    alter(
        fixture.pipeline(sinks={"copy": FilesSink(path=str(root / "copy"), format="json")}),
        log=fixture.log(),
    )
    with serving(fixture.store.url) as (url, _), running_chromium() as chromium:
        page = chromium.new_page()
        page.goto(url)
        page.get_by_role("link", name="world").click()
        expect(page.get_by_text("9: alter")).to_be_visible()
        yield page


def sections(page: Page, version: int) -> list[str]:
    """Open a version, and return the headings of its sections."""
    identifier = page.url.partition("#/pipelines/")[2].partition("/")[0]
    page.goto(f"{page.url.partition('#')[0]}#/pipelines/{identifier}/versions/{version}")
    expect(page.get_by_role("heading", name=f"Version {version}")).to_be_visible()
    expect(page.get_by_role("heading", name="Settings")).to_be_visible()
    return page.locator("h2").all_inner_texts()


def fact(page: Page, name: str) -> str:
    return page.locator("dl > *", has=page.get_by_text(name, exact=True)).locator("dd").inner_text()


def test_page_of_a_rewrite_names_its_commits_and_the_files_before_and_after_it(page: Page) -> None:
    assert sections(page, 5) == ["Rewrite", "Attempts", "Files", "Settings"]
    assert fact(page, "State") == "rewrite (compaction)"
    assert (fact(page, "Sink"), fact(page, "Rows")) == ("out", "12")
    assert fact(page, "Rewritten commits") == "4: versions 0, 2–4"
    assert (fact(page, "Files before")[:3], fact(page, "Files after")[:3]) == ("4, ", "1, ")
    page.get_by_role("link", name="2", exact=True).click()
    expect(page.get_by_role("heading", name="Version 2")).to_be_visible()


def test_page_of_a_rollback_and_of_an_alter_shows_no_empty_table(page: Page) -> None:
    assert sections(page, 7) == ["Removed counts", "Settings"]
    assert (fact(page, "Rolls back to"), fact(page, "written.out")) == ("version 5", "3")
    assert sections(page, 9) == ["Settings"]
    assert fact(page, "Sinks whose earlier rows are hidden") == "out"
    assert "sinks.copy" in fact(page, "Changed in the spec")
    assert sections(page, 6) == ["Counts", "Ranges", "Sinks", "Attempts", "Files", "Settings"]


def test_page_of_an_expiry_names_the_oldest_readable_version_and_shows_no_empty_table(page: Page) -> None:
    assert sections(page, 8) == ["Settings"]
    assert (fact(page, "State"), fact(page, "Description")) == ("expiry (vacuum)", "expiry of the versions below 5")
    expect(page.get_by_text("cannot be read")).to_have_count(0)


def test_version_that_has_expired_is_recognisable_on_its_page_and_in_the_list(page: Page) -> None:
    sections(page, 3)
    assert fact(page, "State") == "committed, expired"
    assert fact(page, "Expired").startswith("cannot be read or rolled back to")
    page.get_by_role("link", name="All versions of the pipeline").click()
    assert fact(page, "Oldest readable version") == "5"
    expect(page.get_by_role("link", name="version 3: committed, expired")).to_be_visible()
    page.get_by_role("tab", name="Versions").click()
    expect(page.get_by_text("expiry of the versions below 5")).to_be_visible()


def test_rewrite_is_shown_as_one_in_each_tab_of_its_pipeline(page: Page) -> None:
    sections(page, 5)
    page.get_by_role("link", name="All versions of the pipeline").click()
    label = page.get_by_role("link", name="version 5: rewrite (compaction)").get_attribute("aria-label")
    assert label is not None
    assert label.endswith("out: rewrite (compaction)")
    page.get_by_role("tab", name="Timeline").click()
    expect(page.get_by_label("records read and written by 10 versions; rewrites: 1")).to_be_visible()
    page.get_by_role("tab", name="Versions").click()
    expect(page.get_by_text("12 rows in new files")).to_be_visible()
    page.get_by_role("tab", name="Data flow").click()
    expect(page.get_by_text("The counts are those of version 9.")).to_be_visible()
    expect(page.get_by_text("sink copy")).to_be_visible()
