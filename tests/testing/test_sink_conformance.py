"""The conformance suite of sinks fails for sinks that do not keep their promise."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.sink import record_batches
from airflow_provider_streamsem.protocol.entries import Marker, Receipt
from airflow_provider_streamsem.testing.conformance import SinkSystem, TransactionalSinkContract
from tests.external_systems import TableSink
from tests.sqlite_table import Table


def insert(sink: TableSink, batch: SinkCommit) -> Receipt:
    """Insert the rows of a batch, whatever the marker is."""
    with closing(sqlite3.connect(sink.database)) as db, db:
        for records in record_batches(sink.path, batch):
            rows = [(batch.sink, id, batch.root) for id in records["id"].to_pylist()]
            db.executemany("INSERT INTO rows VALUES (?, ?, ?)", rows)
    return Receipt(result="applied", rows=batch.committable.rows)


class InsertsAgain(TableSink):
    def publish(self, batch: SinkCommit) -> Receipt | None:
        is_settled = batch.is_settled(self.marker(batch.pipeline_uuid, batch.sink))
        return insert(self, batch) if is_settled and not batch.is_nothing else super().publish(batch)


class CommitsInTwoTransactions(TableSink):
    """It has a step after the marker was read, and one between the commits of the marker and of the rows."""

    def publish(self, batch: SinkCommit) -> Receipt | None:
        marker = self.marker(batch.pipeline_uuid, batch.sink)
        if batch.is_settled(marker) or batch.is_nothing or (marker is not None and marker.version > batch.version):
            return super().publish(batch)
        type(self).step("after marker")
        with closing(sqlite3.connect(self.database)) as db, db:
            values = (f"{batch.pipeline_uuid}/{batch.sink}", batch.version, "applied", batch.outcome)
            db.execute("INSERT OR REPLACE INTO markers VALUES (?, ?, ?, ?)", values)
        type(self).step("after commit of the marker")
        return insert(self, batch)


class AppliesOlderCommits(TableSink):
    def publish(self, batch: SinkCommit) -> Receipt | None:
        marker = self.marker(batch.pipeline_uuid, batch.sink)
        is_older = marker is not None and marker.version > batch.version
        return insert(self, batch) if is_older else super().publish(batch)


class ExpectsAnyMarker(TableSink):
    def publish(self, batch: SinkCommit) -> Receipt | None:
        marker = self.marker(batch.pipeline_uuid, batch.sink)
        expected = None if marker is None else Marker(version=marker.version, outcome=marker.outcome)
        return super().publish(replace(batch, expected_marker=expected))


class AppliesSkippedCommits(TableSink):
    def publish(self, batch: SinkCommit) -> Receipt | None:
        marker = self.marker(batch.pipeline_uuid, batch.sink)
        is_skipped = marker is not None and marker.state == "skipped" and batch.is_settled(marker)
        return insert(self, batch) if is_skipped else super().publish(batch)


SUITE = TransactionalSinkContract()


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (InsertsAgain, SUITE.test_published_rows_are_in_the_system_and_publishing_again_adds_none),
        (InsertsAgain, lambda fresh: SUITE.test_fault_at_any_request_and_a_retry_keep_the_delivery_of_the_sink(fresh, "crash")),
        (CommitsInTwoTransactions, lambda fresh: SUITE.test_fault_at_any_request_and_a_retry_keep_the_delivery_of_the_sink(fresh, "crash")),
        (AppliesOlderCommits, SUITE.test_late_publisher_of_an_older_commit_changes_nothing),
        (CommitsInTwoTransactions, SUITE.test_publisher_paused_at_any_request_changes_nothing_after_newer_commits),
        (ExpectsAnyMarker, SUITE.test_commits_of_a_log_that_was_restored_from_an_older_copy_are_refused),
        (ExpectsAnyMarker, SUITE.test_lost_markers_are_refused_until_a_skip_creates_them),
        (AppliesSkippedCommits, SUITE.test_skipped_commit_is_never_applied),
    ],
)  # fmt: skip
def test_suite_fails_for_a_sink_that_breaks_the_contract(broken: type[TableSink], test, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    class Broken(Table):
        def sink(self) -> TableSink:
            return broken(path=str(self.root / "staged"), database=str(self.root / "db.sqlite"))

    roots = (tmp_path / str(number) for number in range(100))

    def fresh() -> SinkSystem:
        return Broken(next(roots))

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(fresh)
