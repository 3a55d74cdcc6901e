"""What the log of a process says of a run."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_streamsem import Limits
from airflow_provider_streamsem.pipeline import report
from airflow_provider_streamsem.protocol.entries import Replaced
from tests.pipeline_fixture import PipelineFixture
from tests.protocol import samples


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="airflow_provider_streamsem")
    return caplog


def lines(said: pytest.LogCaptureFixture) -> list[str]:
    """The lines about versions and the run, without times."""
    found = [message for message in said.messages if message.startswith(("version", "run", "lag"))]
    said.clear()
    return found


def test_batch_is_one_line_with_its_counts_and_the_run_another(
    fixture: PipelineFixture, said: pytest.LogCaptureFixture
) -> None:
    fixture.arrive(2, bad_lines=1)
    fixture.run("a")
    lag, planned, staging, committed, ended = lines(said)
    assert staging == "version 0: staging"
    assert lag == "lag: 2 files in the source"
    assert planned == "version 0 planned: files [0, 2)"
    assert committed.startswith("version 0 committed in ")
    assert committed.endswith(" s: 8 rows read, 6 written to out, 2 quarantined")
    assert ended.startswith("run a ended after ")
    assert ended.endswith(" s: 1 batch up to version 0, 8 rows read, 6 written to out, 2 quarantined")


def test_run_that_is_complete_or_finds_nothing_says_so(
    fixture: PipelineFixture, said: pytest.LogCaptureFixture
) -> None:
    fixture.arrive(3)
    fixture.run("a", drain=True)
    lines(said)
    fixture.run("a", drain=True)
    (again,) = lines(said)
    assert (
        "was complete already (2 batches up to version 1, 9 rows read, 9 written to out); nothing was read or written"
        in again
    )
    fixture.run("b")
    assert lines(said) == ["lag: 0 files in the source", "run b: nothing was planned"]


def test_run_names_the_versions_of_other_runs_that_it_announces(
    fixture: PipelineFixture, said: pytest.LogCaptureFixture
) -> None:
    fixture.arrive(2)
    fixture.dies("first")
    lines(said)
    fixture.run("second")
    assert lines(said)[-1] == "run second: nothing was planned; announces version 0 of other runs"


def test_rows_that_wait_for_more_are_told(fixture: PipelineFixture, said: pytest.LogCaptureFixture) -> None:
    fixture.arrive(1)
    fixture.run("a")
    fixture.arrive(1)
    fixture.run("b", pipeline=fixture.pipeline(limits=Limits(min_rows=1_000_000, max_delay_s=3600)))
    assert any(
        "left for a later run: limits.min_rows is 1000000, limits.max_delay_s is 3600" in m for m in said.messages
    )


def test_many_partitions_are_counted_and_reprocessing_runs_and_aborts_are_told() -> None:
    ranges = {f"t-{n}": (0, n) for n in range(9)}
    assert report.planned(samples.plan(ranges=ranges)).endswith("t-5 [0, 5), and 3 more partitions")
    assert report.planned(samples.plan(ranges={})) == "version 0 planned: no offsets"
    reprocessed = samples.plan(4, kind="reprocess", replaces=Replaced(version=2, counts={}))
    assert report.planned(reprocessed) == "version 4 planned: reprocessing of version 2"
    aborted = samples.outcome(samples.plan(3), result="abort", reason="asked for")
    assert report.closed(aborted, 5) == "version 3 aborted: asked for"
