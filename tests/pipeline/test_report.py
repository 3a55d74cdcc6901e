"""The log messages of a run."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_streamsem import Limits
from airflow_provider_streamsem.pipeline.versions import report
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from tests.pipeline_fixture import PipelineFixture
from tests.protocol import samples


@pytest.fixture
def caplog_at_info(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="airflow_provider_streamsem")
    return caplog


def lines(caplog_at_info: pytest.LogCaptureFixture) -> list[str]:
    """The lines about versions and the run, without times."""
    messages = [message for message in caplog_at_info.messages if message.startswith(("version", "run", "lag"))]
    caplog_at_info.clear()
    return messages


def test_batch_and_run_are_each_logged_as_one_line_with_counts(
    fixture: PipelineFixture, caplog_at_info: pytest.LogCaptureFixture
) -> None:
    fixture.arrive(2, bad_lines=1)
    fixture.run("a")
    lag, planned, staging, committed, ended = lines(caplog_at_info)
    assert staging == "version 0: staging"
    assert lag == "lag: 2 files in the source"
    assert planned == "version 0 planned: files [0, 2)"
    assert committed.startswith("version 0 committed in ")
    assert committed.endswith(" s: 8 rows read, 6 written to out, 2 quarantined")
    assert ended.startswith("run a ended after ")
    assert ended.endswith(" s: 1 batch up to version 0, 8 rows read, 6 written to out, 2 quarantined")


def test_version_without_any_parsed_record_is_a_warning_with_the_next_command(
    fixture: PipelineFixture, caplog_at_info: pytest.LogCaptureFixture
) -> None:
    for name, line, warns in (("a", "{}", False), ("b", "bad", True)):
        (fixture.root / "in" / f"{name}.json").write_text(line + "\n")
        fixture.run(name)
        found = [record.message for record in caplog_at_info.records if record.levelname == "WARNING"]
        assert any("all 1 records are quarantined" in message for message in found) == warns
        assert any("`streamsem quarantine`" in message for message in found) == warns


def test_completed_or_empty_run_is_logged_as_such(
    fixture: PipelineFixture, caplog_at_info: pytest.LogCaptureFixture
) -> None:
    fixture.arrive(3)
    fixture.run("a", drain=True)
    lines(caplog_at_info)
    fixture.run("a", drain=True)
    (repeated,) = lines(caplog_at_info)
    assert (
        "was complete already (2 batches up to version 1, 9 rows read, 9 written to out); nothing was read or written"
        in repeated
    )
    fixture.run("b")
    assert lines(caplog_at_info) == ["lag: 0 files in the source", "run b: nothing was planned"]


def test_run_names_the_versions_of_other_runs_that_it_announces(
    fixture: PipelineFixture, caplog_at_info: pytest.LogCaptureFixture
) -> None:
    fixture.arrive(2)
    fixture.dies("first")
    lines(caplog_at_info)
    fixture.run("second")
    assert lines(caplog_at_info)[-1] == "run second: nothing was planned; its result also lists version 0 of other runs"


def test_rows_left_for_a_later_run_are_logged_with_the_limits(
    fixture: PipelineFixture, caplog_at_info: pytest.LogCaptureFixture
) -> None:
    fixture.arrive(1)
    fixture.run("a")
    fixture.arrive(1)
    fixture.run("b", pipeline=fixture.pipeline(limits=Limits(min_rows=1_000_000, max_delay_s=3600)))
    assert any(
        "left for a later run: limits.min_rows is 1000000, limits.max_delay_s is 3600" in m
        for m in caplog_at_info.messages
    )


def test_counts_are_in_the_order_of_the_flow() -> None:
    counts = {"written.b": 2, "gaps": 0, "filtered": 1, "quarantined": 1, "written.a": 2, "parsed": 3, "read": 4}
    names = [name for name, _ in report.ordered_counts(counts)]
    assert names == ["read", "parsed", "quarantined", "filtered", "gaps", "written.a", "written.b"]
    assert dict(report.ordered_counts(counts)) == counts


def test_messages_for_many_partitions_reprocessing_runs_and_aborts() -> None:
    ranges = {f"t-{n}": (0, n) for n in range(9)}
    assert report.planned(samples.plan(ranges=ranges)).endswith("t-5 [0, 5), and 3 more partitions")
    assert report.planned(samples.plan(ranges={})) == "version 0 planned: no offsets"
    reprocessed = samples.plan(4, work=Reprocess(replaces=2, counts={}))
    assert report.planned(reprocessed) == "version 4 planned: reprocessing of version 2"
    late = samples.outcome(samples.plan(3), counts={"read": 3, "written.hours": 0, "late": 1})
    assert report.closed(late, 100) == "version 3 committed in 0.1 s: 3 rows read, 0 written to hours, 1 late"
    assert report.reprocessing([3, 4]) == "this try reprocesses the versions of the run: 3, 4"
    aborted = samples.outcome(samples.plan(3), result="abort", reason="asked for")
    assert report.closed(aborted, 5) == "version 3 aborted: asked for"


@pytest.mark.parametrize(
    ("later", "kept", "remedy"),
    [
        (range(42, 58), "unchanged: versions 42 to 57 keep their rows and state, and later batches continue from their state.", "rollback PIPELINE.toml 40`, or `streamsem fork NEW.toml LOG --at 40`"),
        (range(42, 43), "unchanged: version 42 keeps its rows and state, and later batches continue from their state.", "--at 40`"),
        (range(42, 42), "only the rows of version 41 were replaced. The state after version 41 is unchanged: later batches continue from it.", "--at 40`"),
        (range(1, 2), "only the rows of version 0 were replaced", "wrong, run `streamsem fork NEW.toml LOG --at -1`"),
    ],
)  # fmt: skip
def test_reprocessing_with_state_names_the_versions_that_it_has_kept(later: range, kept: str, remedy: str) -> None:
    text = report.state_kept(later)
    assert kept in text
    assert text.endswith(remedy)
