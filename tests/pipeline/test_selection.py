"""Batches are selected by version, time and offsets, and the preview says what reprocessing them would replace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Dedup, alter, reprocess, rollback, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.run.selection import (
    Replacement,
    Selection,
    parse_versions,
    preview_reprocess,
    select,
)
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.connectors.pipeline.bronze import pair
from tests.external_systems import PublishingFixture, TableSink
from tests.pipeline_fixture import PipelineFixture


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    """Batches 0 to 3 of two files each, closed 10 minutes after each other. Version 4 replaces batch 1."""
    fixture = PipelineFixture(tmp_path)
    for minute in (10, 20, 30, 40):
        fixture.arrive(2)
        log = CommitLog(fixture.store, ManualClock(minute * 60_000, name=f"at {minute}"))
        run_batch(fixture.pipeline(), run_key=f"at {minute}", log=log, engine=RowsEngine())
    fixture.run("fix", reprocessed=1)
    return fixture


def selected(fixture: PipelineFixture, **conditions: Any) -> list[int]:
    log = fixture.log()
    return select(log, log.newest_head(), Selection(**conditions))


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"versions": ((0, 99),)}, [0, 1, 2, 3]),
        ({"versions": ((1, 2),)}, [1, 2]),
        ({"versions": ((0, 0), (2, 99))}, [0, 2, 3]),
        ({"since_ms": 1_200_000}, [1, 2, 3]),
        ({"until_ms": 1_900_000}, [0, 1, 2]),
        ({"since_ms": 700_000, "until_ms": 1_900_000}, [1, 2]),
        ({"offsets": {"files": (3, 5)}}, [1, 2]),
        ({"offsets": {"files": (4, 6)}}, [2]),
        ({"versions": ((2, 99),), "offsets": {"files": (0, 99)}}, [2, 3]),
        ({"offsets": {"other": (0, 99)}}, []),
        ({"versions": ((50, 60),)}, []),
    ],
)
def test_batches_that_satisfy_all_conditions_are_selected(
    fixture: PipelineFixture, conditions: dict[str, Any], expected: list[int]
) -> None:
    assert selected(fixture, **conditions) == expected


@pytest.mark.parametrize(
    ("text", "spans"), [("3", ((3, 3),)), ("3-7, 9", ((3, 7), (9, 9))), (" 1 - 2 ,4", ((1, 2), (4, 4)))]
)
def test_text_names_spans_of_versions(text: str, spans: tuple[tuple[int, int], ...]) -> None:
    assert parse_versions(text) == spans


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1-2-3", "1,,2", "1" * 13])
def test_text_that_names_no_versions_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="N or N-M"):
        parse_versions(text)


def test_batches_that_were_rolled_back_are_not_selected(fixture: PipelineFixture) -> None:
    rollback(fixture.pipeline(), 4, log=fixture.log())
    fixture.arrive(2)
    fixture.run("more")
    rollback(fixture.pipeline(), 4, log=fixture.log())
    assert selected(fixture, versions=((0, 99),)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "conditions",
    [
        {},
        {"versions": ((-1, 2),)},
        {"versions": ((3, 2),)},
        {"offsets": {"files": (3, 3)}},
        {"offsets": {"files": (-1, 3)}},
    ],
)
def test_selection_without_a_valid_condition_is_refused(conditions: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        Selection(**conditions)


def test_preview_counts_the_present_rows_of_the_selected_batches(fixture: PipelineFixture) -> None:
    keys = [stat.key for stat in fixture.store.list("")]
    found = preview_reprocess(fixture.pipeline(), Selection(versions=((1, 2),)), log=fixture.log())
    assert (found.versions, found.counts["read"], found.refused, found.kept) == ((1, 2), 12, {}, None)
    files = [file for file in fixture.opened().files(sink="out") if file.version in (4, 2)]
    assert found.sinks == {"out": Replacement(12, len(files), sum(file.bytes for file in files))}
    assert [stat.key for stat in fixture.store.list("")] == keys
    for version in found.versions:
        reprocess(fixture.pipeline(), version, log=fixture.log(), engine=RowsEngine())
    fixture.check()


def test_preview_of_nothing_is_empty(fixture: PipelineFixture) -> None:
    found = preview_reprocess(fixture.pipeline(), Selection(versions=((50, 60),)), log=fixture.log())
    assert (found.versions, found.counts, found.sinks) == ((), {}, {"out": Replacement()})


def test_preview_names_versions_that_would_be_refused(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, store=open_store(str(tmp_path / "log")))
    fixture.arrive(2)
    fixture.run("first")
    dedup = fixture.pipeline(dedup=Dedup(keys=["id"], ttl_s=60))
    alter(dedup, log=fixture.log())
    fixture.arrive(2)
    fixture.run("second", pipeline=dedup)
    found = preview_reprocess(dedup, Selection(versions=((0, 99),)), log=fixture.log())
    assert (found.versions, [*found.refused]) == ((0, 2), [0])
    assert "altered after the version" in found.refused[0]


def test_preview_counts_the_batches_of_a_downstream_pipeline_that_read_the_rows(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit(4)
    silver.store = open_store(str(tmp_path / "silver-log"))
    silver.run("first", drain=True)
    bronze.correct(2)
    url = silver.store.url
    found = preview_reprocess(bronze.pipeline(), Selection(versions=((1, 2),)), downstream=[url], log=bronze.log())
    assert found.downstream == {url: 2}
    with pytest.raises(InvalidError, match="no log at this location"):
        preview_reprocess(
            bronze.pipeline(), Selection(versions=((1, 1),)), downstream=["memory://no-log"], log=bronze.log()
        )


def test_preview_refuses_sinks_that_cannot_replace_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = PublishingFixture(tmp_path)
    fixture.arrive(2)
    fixture.run("first")
    monkeypatch.setattr(TableSink, "can_remove_rows", False)
    with pytest.raises(InvalidError, match="cannot replace published rows"):
        preview_reprocess(fixture.pipeline(), Selection(versions=((0, 99),)), log=fixture.log())


def test_preview_without_a_log_is_refused(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    with pytest.raises(InvalidError, match="no log at this location"):
        preview_reprocess(fixture.pipeline(), Selection(versions=((0, 99),)), log=fixture.log())
