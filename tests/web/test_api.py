"""The HTTP API of the web view, over logs that runs have written."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.stores import CountingStore
from airflow_provider_streamsem.web.app import openapi
from airflow_provider_streamsem.web.documents import Task
from airflow_provider_streamsem.web.pipelines import LoggedPipeline, ServedLog
from tests.external_systems import PublishingFixture, run_with_refused_publish
from tests.pipeline_fixture import PipelineFixture
from tests.web.client import client_of, get

_NAMES = count()


@pytest.fixture
def fixture(tmp_path: Path) -> PublishingFixture:
    """Version 0 is committed with quarantined records, 1 is aborted, 2 is committed, 3 reprocesses version 0."""
    fixture = PublishingFixture(tmp_path, store=open_memory_store(f"web-{next(_NAMES)}"))
    fixture.arrive(2, bad_lines=1)
    fixture.run("first")
    fixture.arrive(1)
    fixture.dies("second")
    opened = fixture.opened()
    abort(opened.log, opened.record, 1, reason="<script>alert(1)</script>")
    fixture.run("third")
    fixture.run("again", reprocessed=0)
    return fixture


@pytest.fixture
def client(fixture: PublishingFixture) -> TestClient:
    return client_of(fixture.store.url)


def test_pipelines_show_their_guarantee_and_their_newest_versions(client: TestClient) -> None:
    (pipeline,) = get(client, "")
    assert (pipeline["id"], pipeline["name"], pipeline["problem"]) == ("0", "world", None)
    assert pipeline["guarantee"] == {"out": "exactly_once", "audit": "exactly_once", "table": "exactly_once"}
    assert [(row["version"], row["kind"], row["result"]) for row in pipeline["newest"]] == [
        (3, "reprocess", "commit"),
        (2, "batch", "commit"),
        (1, "batch", "abort"),
        (0, "batch", "commit"),
    ]
    assert pipeline["rows_per_minute"] > 0
    assert {**get(client, "/0"), "now_ms": 0} == {**pipeline, "now_ms": 0}


def test_log_that_cannot_be_read_does_not_hide_the_others(fixture: PublishingFixture) -> None:
    client = client_of("memory://no-such-log", fixture.store.url)
    broken, good = get(client, "")
    assert broken["problem"]["error"] == "InvalidError"
    assert "there is no log at this location" in broken["problem"]["message"]
    assert good["problem"] is None
    assert client.get("/api/pipelines/0/versions").status_code == 404


def test_pages_of_versions_contain_each_version_once(client: TestClient) -> None:
    found, before = [], ""
    while True:
        page = get(client, f"/0/versions?limit=3{before}")
        found += [row["version"] for row in page["versions"]]
        if page["before"] is None:
            break
        before = f"&before={page['before']}"
    assert found == [3, 2, 1, 0]


def test_version_shows_ranges_attempts_files_sinks_and_settings(client: TestClient) -> None:
    detail = get(client, "/0/versions/0")
    assert [(r["partition"], r["start"], r["end"], r["count"], r["gaps"]) for r in detail["ranges"]] == [
        ("files", "0", "2", "2", [])
    ]
    assert [attempt["result"] for attempt in detail["attempts"]] == ["committed"]
    assert [(file["sink"], file["rows"]) for file in detail["files"]] == [("audit", 6), ("out", 6), ("table", 6)]
    assert [(s["sink"], s["state"], s["rows"], s["published_rows"]) for s in detail["sinks"]] == [
        ("audit", "applied", 6, 6),
        ("out", "committed", 6, None),
        ("table", "applied", 6, 6),
    ]
    assert (detail["quarantined"], detail["settings"]["source"]["type"]) == (2, "files")
    aborted = get(client, "/0/versions/1")
    assert (aborted["row"]["result"], aborted["row"]["reason"]) == ("abort", "<script>alert(1)</script>")
    assert get(client, "/0/versions/3")["row"]["replaces"] == 0


def test_version_with_pending_publishes_is_shown_as_publishing(tmp_path: Path) -> None:
    fixture = PublishingFixture(tmp_path, store=open_memory_store(f"web-{next(_NAMES)}"))
    fixture.arrive(1)
    run_with_refused_publish(fixture)
    client = client_of(fixture.store.url)
    assert get(client, "/0/versions/0")["row"]["result"] == "publishing"
    fixture.run("first")
    assert get(client, "/0/versions/0")["row"]["result"] == "commit", "a version that can still change is not cached"


def test_open_version_is_shown_and_is_not_cached(fixture: PublishingFixture) -> None:
    client = client_of(fixture.store.url)
    fixture.arrive(1)
    fixture.dies("fourth")
    assert get(client, "/0/versions/4")["row"]["result"] == "open"
    fixture.run("fourth")
    assert get(client, "/0/versions/4")["row"]["result"] == "commit"


def test_comparison_names_the_files_that_a_version_replaced(client: TestClient) -> None:
    found = get(client, "/0/comparison?older=2&newer=3")
    assert (found["older"]["version"], found["newer"]["version"], found["changed"]) == (2, 3, [])
    assert (found["added_files"], found["added_rows"]) == (found["removed_files"], found["removed_rows"])
    assert found["added_rows"] == 6, "rows of tables outside the log are not files that become visible"
    replaced = get(client, "/0/versions/0")["row"]
    assert replaced["replaced_by"] == 3


def test_contents_of_records_are_shown_only_if_the_deployment_allows_it(fixture: PublishingFixture) -> None:
    hidden = client_of(fixture.store.url)
    refused = hidden.get("/api/pipelines/0/versions/0/quarantine")
    assert refused.status_code == 403
    assert "--show-records" in refused.json()["detail"]
    assert "[streamsem]" not in refused.json()["detail"], "the command has no settings"
    assert hidden.get("/api/settings").json()["show_records_with"] == "the flag --show-records"
    assert "{not json" not in json.dumps([get(hidden, ""), get(hidden, "/0/versions/0")])
    shown = client_of(fixture.store.url, shows_records=True)
    records = get(shown, "/0/versions/0/quarantine?limit=1")
    assert [record["raw"] for record in records] == ["{not json"]
    assert records[0]["position"] == {"path": "00000.json"}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/9", 404),
        ("/0/versions/99", 404),
        ("/0/versions/-1", 422),
        ("/0/versions/x", 422),
        ("/0/versions?limit=0", 422),
        ("/0/versions?limit=501", 422),
        ("/0/comparison?older=0&newer=99", 404),
        ("/0/comparison?older=2&newer=1", 404),
        ("/0/comparison?older=0&newer=1001", 404),
        ("/../../etc/passwd", 404),
    ],
)
def test_invalid_request_gets_status_404_or_422(client: TestClient, path: str, status: int) -> None:
    assert client.get(f"/api/pipelines{path}").status_code == status


def test_every_response_forbids_scripts_from_other_hosts(client: TestClient) -> None:
    for path in ("/api/pipelines", "/api/pipelines/none", "/", "/none"):
        headers = client.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe-inline" not in headers["content-security-policy"].split("script-src")[1].split(";")[0]
        assert headers["x-content-type-options"] == "nosniff"


def test_api_only_reads(client: TestClient, fixture: PublishingFixture) -> None:
    for method in ("post", "put", "patch", "delete"):
        assert getattr(client, method)("/api/pipelines/0").status_code == 405
    methods = {verb for path in openapi()["paths"].values() for verb in path}
    assert methods == {"get"}


def test_closed_versions_are_read_once(fixture: PublishingFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = CountingStore(fixture.store)

    def open_counting(url: str) -> Store:
        return counting

    monkeypatch.setattr("airflow_provider_streamsem.commitlog.log.open_store", open_counting)
    client = client_of(fixture.store.url)

    def requests(path: str) -> int:
        before = len(counting.keys)
        get(client, path)
        return len(counting.keys) - before

    first = requests("/0/versions")
    assert requests("/0/versions") == requests("/0/versions?limit=1") < first / 2, "only the head is read again"


def test_log_that_replaced_another_one_is_shown_only_to_the_dags_that_planned_its_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_memory_store(f"web-{next(_NAMES)}")
    first = PipelineFixture(tmp_path / "first", store=store)
    first.arrive(1)
    first.run('airflow:["first","load","run",-1]')
    pipeline = LoggedPipeline("0", ServedLog(store.url), (Task(dag_id="first", task_id="load"),))
    assert pipeline.checked().summary().newest[0].version == 0
    for stat in [*store.list("")]:
        store.delete(stat.key)
    second = PipelineFixture(tmp_path / "second", store=store)
    second.arrive(1)
    second.run('airflow:["second","load","run",-1]')
    later_ms = SYSTEM_CLOCK.now_ms() + 301_000
    monkeypatch.setattr(SYSTEM_CLOCK, "now_ms", lambda: later_ms)
    with pytest.raises(InvalidError, match="not those of this DAG"):
        pipeline.checked()


def test_stored_description_matches_the_api() -> None:
    stored = Path(__file__).parents[2] / "ui" / "openapi.json"
    assert json.loads(stored.read_text()) == openapi(), "run `make page`, and commit ui/openapi.json"


def test_form_of_an_action_has_the_bounds_of_its_fields_and_requires_only_the_reason_of_an_abort_and_a_skip(
    client: TestClient,
) -> None:
    forms = {form["name"]: form for form in client.get("/api/settings").json()["actions"]}
    fields = {(form, field["name"]): field for form in forms for field in forms[form]["fields"]}
    assert [name for name, field in fields.items() if field["required"]] == [("abort", "reason"), ("skip", "reason")]
    assert [name for name, form in forms.items() if form["only_reads"]] == ["verify"]
    days = fields["vacuum", "keep_days"]
    assert (days["type"], days["minimum"], days["maximum"], days["needs"]) == ("integer", 0, 36_500, "keep_versions")
    assert days["help"].startswith("With keep versions: versions that were the newest")
    assert days["help"].endswith("(default: 7)")
