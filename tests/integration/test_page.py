"""
Tests of the web view in Chromium, below a real Airflow with two processes of its API server.

``STREAMSEM_SCREENSHOTS`` names a directory for the screenshots of the documentation.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from airflow_provider_streamsem import open_log, verify
from tests.integration.parts.airflow import PASSWORD, USER, Airflow
from tests.integration.parts.chromium import running_chromium

pytestmark = [pytest.mark.integration, pytest.mark.airflow, pytest.mark.timeout(900)]

SCRIPT = "<img src=x onerror=alert(1)>"
"""Text that a page runs if it inserts the text as HTML."""
DAGS = {
    "sales": Path(__file__).parent / "page_dags",
    "warehouse": Path(__file__).parent / "page_dags_of_another_team",
}
ROLES = {"anne": "viewer:sales", "otto": "op:sales", "wanda": "op:warehouse"}


@dataclass
class Site:
    """
    A pipeline with several batches below a real Airflow, another one of another team, and a browser.

    :param home: the directory of the pipeline; see ``page_dags/shop.py``
    """

    home: Path
    airflow: Airflow
    browser: Browser

    def run(self, run_id: str) -> str:
        """Run the DAG of the pipeline, and return the state of its run."""
        self.airflow.trigger("shop", run_id)
        return self.state("shop", run_id)

    def state(self, dag: str, run_id: str) -> str:
        """Wait for the end of a run, and return its state."""
        ended = lambda: self.airflow.state(dag, run_id) in ("success", "failed")  # noqa: E731
        self.airflow.until(f"the run {run_id} of {dag} ends", ended, 240)
        return str(self.airflow.state(dag, run_id))

    def arrive(self, name: str, *lines: str) -> None:
        (self.home / "in" / name).write_text("".join(f"{line}\n" for line in lines))

    def login(self, user: str) -> BrowserContext:
        """Return a browser context in which a user has logged in with the form."""
        context = self.browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.goto(self.airflow.url)
        page.locator("input[name=username]").fill(user)
        page.locator("input[name=password]").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda url: "/auth/" not in url)
        page.close()
        return context

    def open(self, context: BrowserContext, path: str = "") -> Page:
        """Open a page of the web view. A dialog that a script opens fails the test."""
        page = context.new_page()
        page.on("dialog", lambda dialog: pytest.fail(f"a script has run: {dialog.message}"))
        page.goto(f"{self.airflow.url}/streamsem/#/{path}")
        return page

    def pipeline(self, context: BrowserContext, name: str = "shop") -> Page:
        page = self.open(context)
        page.get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Versions 0 and 1 are committed. Version 2 is open, because its transform fails. The pipeline of the other team has version 0."""
    home = tmp_path_factory.mktemp("page")
    (home / "in").mkdir()
    (home / "stock" / "in").mkdir(parents=True)
    (home / "stock" / "in" / "a.json").write_text('{"id": 1}\n')
    environment = {
        "STREAMSEM_PAGE_HOME": str(home),
        "AIRFLOW__API__WORKERS": "2",
        "AIRFLOW__STREAMSEM__SHOW_RECORDS": "True",
    }
    airflow = Airflow(home / "airflow", DAGS, users=ROLES, environment=environment)
    with airflow.running(), running_chromium() as chromium:
        site = Site(home, airflow, chromium)
        site.arrive("a", json.dumps({"id": 1, "country": SCRIPT}), json.dumps({"id": 2, "country": "de"}), SCRIPT)
        site.arrive("b", json.dumps({"id": 3, "country": "de"}))
        site.arrive("c", json.dumps({"id": 4, "country": "fr"}))
        for dag in ("shop_actions", "stock_actions"):
            airflow.until(f"the DAG {dag} is there", lambda dag=dag: airflow.request("GET", f"/dags/{dag}"), 120)
        airflow.trigger("stock", "first")
        assert site.run("first") == "success"
        assert site.state("stock", "first") == "success"
        (home / "poison").touch()
        site.arrive("d", json.dumps({"id": 5, "country": "fr"}))
        assert site.run("poisoned") == "failed"
        (home / "poison").unlink()
        yield site


@pytest.fixture(scope="module")
def viewer(site: Site) -> Iterator[BrowserContext]:
    with site.login("anne") as context:
        yield context


@pytest.fixture(scope="module")
def operator(site: Site) -> Iterator[BrowserContext]:
    with site.login("otto") as context:
        yield context


@pytest.fixture(scope="module")
def other_team(site: Site) -> Iterator[BrowserContext]:
    with site.login("wanda") as context:
        yield context


def save_screenshot(page: Page, name: str) -> None:
    """Save a screenshot for the documentation, if it is wanted. Texts that only the test needs are replaced."""
    if directory := os.environ.get("STREAMSEM_SCREENSHOTS"):
        script = """() => {
            const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (texts.nextNode()) {
                const text = texts.currentNode;
                text.data = text.data.replace(/\\/\\S*\\/log$/, "s3://lake/logs/shop").replace(/<img.*>/, "a wrong transform");
            }
        }"""
        page.evaluate(script)
        page.screenshot(path=Path(directory) / f"{name}.png")


_TRANSITIONS_END = """() => Promise.all(
    document.getAnimations().filter(each => each.effect.getComputedTiming().iterations !== Infinity).map(each => each.finished.catch(() => null))
).then(() => null)"""


def check_accessibility(page: Page) -> None:
    page.evaluate(_TRANSITIONS_END)  # until then, a text may have a colour between two others
    found = Axe().run(page).response["violations"]
    serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    assert serious == [], [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in serious]


def test_anonymous_browser_sees_nothing(site: Site) -> None:
    with site.browser.new_context() as context:
        response = context.new_page().goto(f"{site.airflow.url}/streamsem/")
        assert response is not None
        assert response.status == 401
        assert "shop" not in response.text()


def test_viewer_sees_every_view_and_no_script_runs(site: Site, viewer: BrowserContext) -> None:
    page = site.open(viewer)
    expect(page.get_by_role("cell", name="exactly-once")).to_be_visible()
    check_accessibility(page)
    page = site.pipeline(viewer)
    expect(page.get_by_text("2: open")).to_be_visible()
    check_accessibility(page)
    for tab, text in (("Timeline", "The slowest of these"), ("Versions", "committed"), ("Data flow", "files")):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_text(text).locator("visible=true").first).to_be_visible()
        check_accessibility(page)
    page.get_by_role("tab", name="Versions").click()
    page.get_by_role("link", name="with 0").click()
    expect(page.get_by_text("Files that became visible")).to_be_visible()
    check_accessibility(page)
    page.go_back()
    page.get_by_role("tab", name="Versions").click()
    page.get_by_role("link", name="0", exact=True).click()
    expect(page.get_by_text(f"country={SCRIPT}")).to_be_visible()
    check_accessibility(page)
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text(SCRIPT, exact=True)).to_be_visible()


@pytest.mark.parametrize(("theme", "width"), [("dark", 1280), ("light", 400), ("dark", 400)])
def test_view_is_readable_in_each_theme_and_on_a_narrow_screen(
    site: Site, viewer: BrowserContext, theme: Any, width: int
) -> None:
    page = site.pipeline(viewer)
    page.emulate_media(color_scheme=theme)
    page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
    page.set_viewport_size({"width": width, "height": 800})
    page.reload()
    expect(page.get_by_text("2: open")).to_be_visible()
    assert page.evaluate("document.documentElement.classList.contains('dark')") is (theme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    check_accessibility(page)
    page.evaluate("localStorage.removeItem('theme')")


def test_view_is_usable_with_the_keyboard_alone(site: Site, viewer: BrowserContext) -> None:
    page = site.open(viewer)
    link = page.get_by_role("link", name="shop")
    expect(link).to_be_visible()
    for _ in range(10):
        page.keyboard.press("Tab")
        if link.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    tab = page.get_by_role("tab", name="Batch grid")
    tab.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")


def test_page_is_shown_inside_of_airflow(site: Site, viewer: BrowserContext) -> None:
    page = viewer.new_page()
    page.goto(f"{site.airflow.url}/plugin/streamsem")
    expect(page.frame_locator("iframe").get_by_role("link", name="shop")).to_be_visible()
    page.goto(f"{site.airflow.url}/dags/shop/plugin/streamsem_dag")
    expect(page.frame_locator("iframe").get_by_role("link", name="shop")).to_be_visible()


def test_viewer_is_offered_no_action(site: Site, viewer: BrowserContext) -> None:
    page = site.pipeline(viewer)
    expect(page.get_by_text("you need the right to trigger the DAG shop_actions")).to_be_visible()
    expect(page.get_by_role("button", name="Actions")).to_have_count(0)
    refused = viewer.request.post(
        f"{site.airflow.url}/api/v2/dags/shop_actions/dagRuns",
        data={"logical_date": None, "conf": {"action": "abort", "version": 2, "dry_run": False, "reason": "x"}},
    )
    assert refused.status == 403


def test_pipeline_of_another_team_is_shown_to_its_team_and_to_the_administrator(
    site: Site, other_team: BrowserContext
) -> None:
    page = site.pipeline(other_team, "stock")
    expect(page.get_by_text("0: committed")).to_be_visible()
    expect(page.get_by_role("button", name="Actions")).to_be_visible()
    with site.login(USER) as administrator:
        page = site.open(administrator)
        for name in ("shop", "stock"):
            expect(page.get_by_role("link", name=name)).to_be_visible()


def test_pipeline_of_another_team_is_hidden_in_the_list_and_below_its_address(
    site: Site, operator: BrowserContext, other_team: BrowserContext
) -> None:
    page = site.open(operator)
    expect(page.get_by_role("link", name="shop")).to_be_visible()
    expect(page.get_by_text("stock")).to_have_count(0)
    identifier = site.pipeline(other_team, "stock").url.partition("#/pipelines/")[2]
    for path in ("", "/versions/0"):
        page = site.open(operator, f"pipelines/{identifier}{path}")
        expect(page.get_by_text("or you may not read its DAGs").first).to_be_visible()
        expect(page.get_by_text("stock")).to_have_count(0)
    page = site.open(operator, "dags/stock")
    expect(page.get_by_text("No task of this DAG has run a pipeline yet.")).to_be_visible()


@pytest.mark.parametrize("user", ["viewer", "operator"])
def test_api_returns_nothing_of_a_pipeline_of_another_team(
    site: Site, other_team: BrowserContext, user: str, request: pytest.FixtureRequest
) -> None:
    api = f"{site.airflow.url}/streamsem/api/pipelines"
    identifiers = {pipeline["name"]: pipeline["id"] for pipeline in other_team.request.get(api).json()}
    own: BrowserContext = request.getfixturevalue(user)
    assert [pipeline["name"] for pipeline in own.request.get(api).json()] == ["shop"]
    for path in ("", "/versions", "/versions/0", "/versions/0/quarantine", "/comparison?older=0&newer=1"):
        refused = own.request.get(f"{api}/{identifiers['stock']}{path}")
        assert (refused.status, "or you may not read its DAGs" in refused.text()) == (404, True)
        assert "stock" not in refused.text()


@pytest.mark.parametrize("dag", ["stock", "stock_actions"])
def test_action_on_a_pipeline_of_another_team_is_refused(site: Site, operator: BrowserContext, dag: str) -> None:
    path, conf = f"/dags/{dag}/dagRuns", {"action": "verify", "dry_run": True}
    before = site.airflow.request("GET", path)["total_entries"]
    refused = operator.request.post(f"{site.airflow.url}/api/v2{path}", data={"logical_date": None, "conf": conf})
    assert refused.status == 403
    assert site.airflow.request("GET", path)["total_entries"] == before


def test_page_of_another_site_cannot_start_an_action(site: Site, operator: BrowserContext) -> None:
    """
    A form cannot send JSON, and a script may not send it to another site without a permission of that site.

    Chromium sends a cookie without ``SameSite`` with a form of another site for two minutes, so Airflow may know the user.
    """
    path = "/dags/shop_actions/dagRuns"
    url, before = f"{site.airflow.url}/api/v2{path}", site.airflow.request("GET", path)["total_entries"]
    form = (
        f"<form method=post enctype=text/plain action='{url}'>"
        """<input name='{"logical_date": null, "conf": {"a": "' value='"}}'><button>Win</button></form>"""
    )
    page = operator.new_page()
    page.route("http://other.test/", lambda route: route.fulfill(body=form, content_type="text/html"))
    page.goto("http://other.test/")
    script = """url => fetch(url, {
        method: "POST", credentials: "include", headers: {"Content-Type": "application/json"}, body: '{"logical_date": null}'
    }).then(response => response.status, error => error.message)"""
    assert page.evaluate(script, url) == "Failed to fetch"
    with page.expect_response(re.compile("dagRuns")) as response:
        page.get_by_role("button").click()
    assert response.value.status in (401, 422)
    assert site.airflow.request("GET", path)["total_entries"] == before


def act(page: Page, action: str, fill: dict[str, str] | None = None) -> tuple[str, Callable[[], str]]:
    """Choose an action and its values, and start its preview. Return the preview, and a function that confirms it and returns the result."""
    page.get_by_role("button", name="Actions").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Action").select_option(label=action)
    for label, value in (fill or {}).items():
        dialog.get_by_label(label).fill(value)
    dialog.get_by_role("button", name=re.compile("Preview|Verify")).last.click()

    def shown() -> str:
        expect(dialog.locator("[aria-live]")).to_have_attribute("aria-busy", "false", timeout=180_000)
        return dialog.locator("[aria-live]").inner_text()

    expect(dialog.locator("[aria-live]")).to_have_attribute("aria-busy", "true")
    preview = shown()

    def confirm() -> str:
        dialog.get_by_role("button", name="Confirm").click()
        expect(dialog.locator("[aria-live]")).to_have_attribute("aria-busy", "true")
        return shown()

    return preview, confirm


def test_operator_performs_each_action_after_its_preview(site: Site, operator: BrowserContext) -> None:
    log = str(site.home / "log")
    page = site.pipeline(operator)
    preview, _ = act(page, "Verify")
    assert "clean: closed versions: 2" in preview
    page.reload()
    preview, confirm = act(page, "Abort", {"Reason": SCRIPT})
    assert "version 2 would be aborted" in preview
    check_accessibility(page)
    assert open_log(log).head == 1, "a preview writes nothing"
    assert f"version 2: aborted: {SCRIPT}" in confirm()
    page.keyboard.press("Escape")
    expect(page.get_by_text(f"version 2: {SCRIPT}")).to_be_visible()

    preview, confirm = act(page, "Vacuum", {"Keep versions": "1", "Keep days": "0"})
    assert "would delete" in preview
    assert "no version would expire: no file is needed only by versions older than those to keep" in preview
    check_accessibility(page)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Keep versions").fill("0")
    expect(dialog.get_by_text("An integer, 1 or more")).to_be_visible()
    expect(dialog.get_by_role("button", name="Preview")).to_be_disabled()
    page.reload()

    preview, confirm = act(page, "Reprocess", {"Versions": "0-1"})
    save_screenshot(page, "web-view-preview")
    assert "2 versions are selected: 0-1" in preview
    assert "replaced in lake: 3 rows" in preview or "replaced in lake: 4 rows" in preview
    assert "version 1: reprocessed as 4" in confirm()
    page.reload()

    (site.home / "refuse").touch()
    assert site.run("refused") == "failed"
    page.reload()
    preview, confirm = act(page, "Skip", {"Reason": "poison"})
    assert "version 5: 1 rows for table would not be published" in preview
    (site.home / "refuse").unlink()
    assert "version 5: sink table: skipped" in confirm()
    page.reload()

    (site.home / "altered").touch()
    preview, confirm = act(page, "Alter")
    assert "sinks.copy: added" in preview
    assert "version 6 altered the pipeline" in confirm()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text("6: alter")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("^version 6"))).to_be_visible()
    save_screenshot(page, "web-view-grid")
    page.get_by_role("tab", name="Timeline").click()
    expect(page.get_by_text("The slowest of these")).to_be_visible()
    save_screenshot(page, "web-view-timeline")
    assert verify(log).violations == []


def test_refused_action_shows_its_reason(site: Site, operator: BrowserContext) -> None:
    page = site.pipeline(operator)
    preview, _ = act(page, "Reprocess", {"Versions": "all"})
    assert "versions must have the form N or N-M" in preview
    expect(page.get_by_role("button", name="Confirm")).to_be_disabled()
