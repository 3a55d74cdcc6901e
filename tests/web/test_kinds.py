"""Rewrites, rollbacks, alters and expiries in the HTTP API of the web view. They are versions without records."""

from __future__ import annotations

from itertools import combinations, count
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_provider_streamsem import FilesSink, Limits, alter, rollback
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engine import RewriteJob, RewrittenFiles
from airflow_provider_streamsem.errors import OpenVersionError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore
from airflow_provider_streamsem.web import pipelines
from tests.pipeline.compactions import compacted, prepared
from tests.pipeline_fixture import PipelineFixture
from tests.web.client import client_of, get

_NAMES = count()


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    """Versions 0 to 3 have one file each, and one file is unread."""
    return prepared(tmp_path, store=open_memory_store(f"kinds-{next(_NAMES)}"))


@pytest.fixture
def client(fixture: PipelineFixture) -> TestClient:
    return client_of(fixture.store.url)


def version(client: TestClient, number: int) -> Any:
    return get(client, f"/0/versions/{number}")


def size(fixture: PipelineFixture, **arguments: Any) -> int:
    return sum(file.bytes for file in fixture.opened().files(**arguments))


def test_rewrite_names_its_commits_and_the_files_before_and_after_it(
    fixture: PipelineFixture, client: TestClient
) -> None:
    fixture.run("fix", reprocessed=1)
    before = size(fixture)
    compacted(fixture)
    detail = version(client, 5)
    assert detail["rewrite"] == {
        "sink": "out",
        "commits": 4,
        "ranges": [{"first": 0, "last": 0}, {"first": 2, "last": 4}],
        "rows": 12,
        "old_files": 4,
        "old_bytes": before,
    }
    row = detail["row"]
    assert (row["kind"], row["rewritten"], row["sinks"], row["counts"]) == ("rewrite", {"out": 12}, {}, {})
    assert (row["files"], row["bytes"]) == (1, size(fixture))
    assert (detail["ranges"], detail["removed"], detail["alteration"]) == ([], {}, None)
    assert version(client, 0)["rewrite"] is None


def test_files_before_a_second_rewrite_are_those_of_the_first_one_and_of_later_commits(
    fixture: PipelineFixture, client: TestClient
) -> None:
    compacted(fixture)
    fixture.arrive(3)
    fixture.run("rest", drain=True)
    before = size(fixture)
    compacted(fixture)
    found = version(client, 7)["rewrite"]
    assert (found["ranges"], found["rows"]) == ([{"first": 0, "last": 3}, {"first": 5, "last": 6}], 24)
    assert (found["old_files"], found["old_bytes"]) == (3, before), "the files of versions 4, 5 and 6"


def test_files_of_a_rewrite_that_no_longer_applied_are_not_counted_before_the_next_one(
    fixture: PipelineFixture, client: TestClient
) -> None:
    compacted(fixture)
    fixture.run("fix", reprocessed=1)
    before = size(fixture)
    compacted(fixture)
    found = version(client, 6)["rewrite"]
    assert (found["ranges"][0], found["old_files"], found["old_bytes"]) == ({"first": 0, "last": 0}, 4, before)


def test_open_and_aborted_rewrites_have_no_new_files(fixture: PipelineFixture, client: TestClient) -> None:
    found = []

    class Watched(RowsEngine):
        def rewrite(self, job: RewriteJob, log: CommitLog) -> RewrittenFiles:
            found.append(version(client, 4))
            fixture.run("rest")
            return super().rewrite(job, log)

    with pytest.raises(OpenVersionError, match="aborted the rewrite"):
        compacted(fixture, engine=Watched())
    (detail,) = found
    assert (detail["row"]["result"], detail["row"]["rewritten"], detail["rewrite"]["rows"]) == ("open", {}, 12)
    assert detail["rewrite"]["old_files"] is None, "a page that is refreshed reads no earlier versions"
    aborted = version(client, 4)
    assert (aborted["row"]["result"], aborted["row"]["rewritten"], aborted["row"]["files"]) == ("abort", {}, 0)
    assert aborted["rewrite"]["old_files"] == 4


def test_files_before_a_rewrite_of_many_commits_are_counted_from_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=1, store=open_memory_store(f"kinds-{next(_NAMES)}"))
    for number in range(205):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    compacted(fixture)
    counting = CountingStore(fixture.store)

    def open_counting(url: str) -> Store:
        return counting

    monkeypatch.setattr("airflow_provider_streamsem.commitlog.log.open_store", open_counting)
    client = client_of(fixture.store.url)
    found = version(client, 205)["rewrite"]
    assert (found["old_files"], found["ranges"]) == (205, [{"first": 0, "last": 204}])
    assert len(counting.keys) < 40
    fixture.store.delete(keys.segment(1, 0))
    assert version(client_of(fixture.store.url), 205)["rewrite"] == found, "the outcomes replace a missing segment (R5)"
    monkeypatch.setattr(pipelines, "_REWRITTEN", 204)
    assert version(client, 205)["rewrite"]["old_files"] is None


def test_rollback_shows_the_counts_that_it_removed(fixture: PipelineFixture, client: TestClient) -> None:
    rollback(fixture.pipeline(), 1, log=fixture.log())
    detail = version(client, 4)
    assert (detail["row"]["kind"], detail["row"]["rolls_back_to"]) == ("rollback", 1)
    assert (detail["removed"]["read"], detail["removed"]["written.out"]) == (6, 6)
    assert (detail["attempts"], detail["files"], detail["ranges"]) == ([], [], [])


def test_alter_shows_the_sinks_whose_rows_it_hides(fixture: PipelineFixture, client: TestClient) -> None:
    sinks = {"copy": FilesSink(path=str(fixture.root / "copy"), format="json")}
    alter(fixture.pipeline(sinks=sinks), log=fixture.log())
    detail = version(client, 4)
    assert detail["row"]["kind"] == "alter"
    assert detail["alteration"] == {"removed": ["out"], "state": [], "partitions": {}}
    assert [field for field in detail["row"]["changed"] if field.startswith("sinks")] == ["sinks.copy", "sinks.out"]


def test_comparison_counts_what_a_reader_of_only_one_version_reads(
    fixture: PipelineFixture, client: TestClient
) -> None:
    compacted(fixture)
    fixture.run("rest", drain=True)
    fixture.run("fix", reprocessed=1)
    compacted(fixture)
    fixture.arrive(1)
    fixture.run("wrong")
    rollback(fixture.pipeline(), 7, log=fixture.log())
    sinks = {"copy": FilesSink(path=str(fixture.root / "copy"), format="json")}
    alter(fixture.pipeline(sinks=sinks), log=fixture.log())
    opened = fixture.opened()
    assert opened.head == 10
    for older, newer in combinations(range(11), 2):
        found = get(client, f"/0/comparison?older={older}&newer={newer}")
        expected = opened.changes(since=older, version=newer)
        for name, files in (("added", expected.added), ("removed", expected.removed)):
            assert found[f"{name}_files"] == len(files), (older, newer)
            assert found[f"{name}_rows"] == sum(file.rows for file in files)
    rewritten = get(client, "/0/comparison?older=3&newer=4")
    names = ("added_files", "added_rows", "removed_files", "removed_rows")
    assert [rewritten[name] for name in names] == [1, 12, 4, 12]


def expired(fixture: PipelineFixture) -> None:
    """Version 4 rewrites versions 0 to 3, 5 is a batch, and 6 lets the versions below 5 expire."""
    compacted(fixture)
    fixture.run("r5")
    vacuum(fixture.pipeline(), keep_versions=1, keep_days=0, log=fixture.log())


def test_expiry_names_the_oldest_readable_version(fixture: PipelineFixture, client: TestClient) -> None:
    expired(fixture)
    detail = version(client, 6)
    row = detail["row"]
    assert (row["kind"], row["result"]) == ("expire", "commit")
    assert row["description"] == "expiry of the versions below 5"
    assert (row["counts"], row["sinks"], row["rewritten"], row["files"]) == ({}, {}, {}, 0)
    assert (detail["ranges"], detail["sinks"], detail["attempts"], detail["files"]) == ([], [], [], [])
    assert version(client, 5)["row"]["description"] == "batch"


def test_versions_that_have_expired_are_marked(fixture: PipelineFixture, client: TestClient) -> None:
    compacted(fixture)
    fixture.run("r5")
    assert version(client, 0)["row"]["is_expired"] is False
    assert get(client, "/0")["oldest_readable"] is None
    vacuum(fixture.pipeline(), keep_versions=1, keep_days=0, log=fixture.log())
    marks = [(row["version"], row["is_expired"]) for row in get(client, "/0/versions")["versions"]]
    assert marks == [(number, number < 5) for number in range(6, -1, -1)]
    assert [version(client, number)["row"]["is_expired"] for number in (4, 5, 6)] == [True, False, False]


def test_pipeline_shows_its_oldest_readable_version_also_while_a_version_is_open(
    fixture: PipelineFixture, client: TestClient
) -> None:
    expired(fixture)
    assert get(client, "/0")["oldest_readable"] == 5
    fixture.arrive(1)
    fixture.dies("open")
    found = get(client, "/0")
    assert (found["newest"][0]["result"], found["oldest_readable"]) == ("open", 5)


def test_expiry_is_not_shown_as_rolled_back(fixture: PipelineFixture, client: TestClient) -> None:
    expired(fixture)
    fixture.arrive(1)
    fixture.run("wrong")
    rollback(fixture.pipeline(), 5, log=fixture.log())
    rows = {row["version"]: row for row in get(client, "/0/versions")["versions"]}
    assert [number for number, row in rows.items() if row["is_rolled_back"]] == [7]
    assert rows[6]["kind"] == "expire"
    assert [number for number, row in rows.items() if row["is_expired"]] == [4, 3, 2, 1, 0], (
        "a rollback undoes no expiry"
    )


def test_changed_field_is_shown_at_the_batch_that_uses_it_and_not_at_an_expiry(
    fixture: PipelineFixture, client: TestClient
) -> None:
    compacted(fixture)
    fixture.run("r5")
    changed = fixture.pipeline(limits=Limits(max_files=3))
    vacuum(changed, keep_versions=1, keep_days=0, log=fixture.log())
    fixture.arrive(1)
    fixture.run("r7", pipeline=changed)
    assert version(client, 6)["row"]["changed"] == []
    assert version(client, 7)["row"]["changed"] == ["limits.max_files"]
