"""A fork starts after a version of another pipeline. Earlier records belong to the original only. Later records are read once by both."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import (
    Dedup,
    FilesSink,
    FilesSource,
    KafkaSource,
    Limits,
    RateSource,
    fork,
    reprocess,
    rollback,
    verify,
)
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.commitlog import log as log_module
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.queue.source import QueueSource
from airflow_provider_streamsem.connectors.sqs.client import SqsQueue
from airflow_provider_streamsem.errors import (
    ConflictError,
    InvalidError,
    NewerFormatError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.run import run_batch
from airflow_provider_streamsem.pipeline.spec.several_sources import SeveralSources
from airflow_provider_streamsem.pipeline.versions import closing_times
from airflow_provider_streamsem.readers.conditions import BatchCommitted
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.pipeline.fork_fixture import ForkFixture, new_memory_store, rows


@pytest.mark.parametrize(("version", "first"), [(-1, 0), (0, 2), (1, 4), (2, 5), (None, 5)])
def test_fork_reads_each_record_after_its_version_once(tmp_path: Path, version: int | None, first: int) -> None:
    forking = ForkFixture(tmp_path)
    done = forking.fork(version)
    assert (done.version, done.offsets) == (2 if version is None else version, {"files": first})
    forking.original.arrive(1)
    forking.run()
    assert forking.ids() == rows(first, 6)
    assert verify(open_log(forking.log(), pipeline=forking.pipeline())).violations == []
    forking.run_original("later")
    forking.original.check()
    assert forking.fork(version).copied == 0  # the fork exists already


def test_fork_at_a_time_starts_after_the_newest_version_closed_before_it(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path)
    outcome = forking.original.log().outcome(1)
    assert outcome is not None
    log, at = forking.original.log(), outcome.decided_at_ms
    with pytest.raises(InvalidError, match="no version was closed by this time"):
        fork(forking.pipeline(), log, until_ms=at - 10**6, log=forking.log())
    other = new_memory_store()
    pipeline = forking.pipeline(log=other.url)
    assert fork(pipeline, log, until_ms=at, log=forking.log(other)).version >= 1
    with pytest.raises(InvalidError, match="at most one"):
        fork(pipeline, log, until_ms=at, version=1, log=forking.log(other))


RATE = RateSource(rows_per_second=10, start="2023-11-14T22:13:20+00:00")
FIRST_MS = 1_700_000_000_000
"""Modification time of the first file. Each later file is one millisecond younger."""


@pytest.mark.parametrize(("from_ms", "first"), [(0, 0), (FIRST_MS, 0), (FIRST_MS + 3, 3), (FIRST_MS + 4, 4), (FIRST_MS + 5, 5)])  # fmt: skip
def test_G8_fork_from_a_time_reads_each_record_with_this_time_or_a_later_one(
    tmp_path: Path, from_ms: int, first: int
) -> None:
    forking = ForkFixture(tmp_path)
    forking.original.arrive(1)  # the original has not discovered this file
    done = forking.fork(from_ms=from_ms)
    assert (done.version, done.from_ms, done.offsets, done.is_new) == (-1, from_ms, {"files": first}, True)
    forking.original.arrive(1)
    forking.run()
    assert forking.ids() == rows(first, 7)
    assert verify(open_log(forking.log(), pipeline=forking.pipeline())).violations == []
    forking.run_original("later")
    forking.original.check()


def test_fork_from_a_time_has_no_state_and_reads_older_files_that_were_discovered_later(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path, dedup=Dedup(keys=["id"], rows=10**6))
    late = tmp_path / "in" / "late.json"
    late.write_text('{"id": 0}\n{"id": 99}\n')
    os.utime(late, ns=(0, 0))
    forking.run_original("later")
    forking.fork(from_ms=FIRST_MS + 4, dedup=Dedup(keys=["id"], rows=10))
    forking.run(dedup=Dedup(keys=["id"], rows=10))
    assert forking.ids() == rows(4, 5) + Counter([0, 99])


def test_fork_from_a_time_that_dies_at_any_request_reads_each_record_of_this_time(tmp_path: Path) -> None:
    """Between the tries the source grows, so a repeated call finds another end offset."""
    for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_REPLY, Fault.APPLIED_LATE):
        for from_ms in (FIRST_MS + 3, FIRST_MS + 60):
            for at in count():
                forking = ForkFixture(tmp_path / fault.name / f"{from_ms}-{at}")
                store = FaultyStore(forking.store, at, fault)
                with suppress(Crash):
                    forking.fork(from_ms=from_ms, store=store)
                existing = forking.log().read_pipeline()
                forking.original.arrive(2)
                forking.run_original("between")
                done = forking.fork(from_ms=from_ms)
                first = 3 if from_ms == FIRST_MS + 3 else 5 if existing is not None else 7
                assert (done.offsets, done.is_new) == ({"files": first}, existing is None)
                forking.original.arrive(1)
                forking.run()
                assert forking.ids() == rows(first, 8)
                if not store.reached:
                    assert at >= 4
                    break


def test_fork_from_a_time_and_a_fork_at_a_version_are_different_forks(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path)
    forking.fork(from_ms=FIRST_MS)
    assert not forking.fork(from_ms=FIRST_MS).is_new
    others: list[dict[str, int]] = [{}, {"version": -1}, {"from_ms": FIRST_MS + 1}, {"until_ms": 2 * FIRST_MS}]
    for other in others:
        with pytest.raises(ConflictError, match="was forked from another log, version or time"):
            forking.fork(**other)
    for both in ({"version": 1}, {"until_ms": 2 * FIRST_MS}):
        with pytest.raises(InvalidError, match="at most one"):
            forking.fork(from_ms=FIRST_MS, **both)
    with pytest.raises(InvalidError, match="from_ms must be an integer of 0 or more"):
        forking.fork(from_ms=-1)


def test_fork_from_a_time_is_refused_if_the_source_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forking = ForkFixture(tmp_path)

    def refuse(*arguments: Any) -> Any:
        raise UnavailableError("no answer")

    monkeypatch.setattr(FilesSource, "offsets_for_time_in", refuse)
    with pytest.raises(UnavailableError, match="no answer"):
        forking.fork(from_ms=FIRST_MS)
    assert list(forking.store.list("")) == []
    unable = QUEUE
    with pytest.raises(InvalidError, match="cannot find the offsets of a time"):
        unable.offsets_for_time_in(forking.log(), FIRST_MS)
    several = SeveralSources({"orders": RATE, "other": unable})
    with pytest.raises(InvalidError, match="cannot find the offsets of a time") as raised:
        several.offsets_for_time_in(forking.log(), FIRST_MS)
    assert raised.value.fields["source"] == "other"


def test_fork_command_starts_at_the_records_of_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forking = ForkFixture(tmp_path, dedup=Dedup(keys=["id"], rows=10**6))
    (tmp_path / "fork.toml").write_text(f"""
name = "fork"
log = "{tmp_path}/fork-log"
source = {{type = "files", path = "{tmp_path}/in", format = "json", schema = "id long"}}
sinks.out = {{type = "files", path = "{tmp_path}/forked", format = "json"}}
""")
    command = ["fork", str(tmp_path / "fork.toml"), str(tmp_path / "log"), "--from"]
    assert main([*command, "2023-11-14T22:13:20.002Z"]) == 0
    assert "starts at the records from 2023-11-14 22:13:20 UTC on" in capsys.readouterr().out
    assert forking.log().read_pipeline().fork.offsets == {"files": 2}  # type: ignore[union-attr]
    assert main([*command, "2023-11-14T22:13:20"]) == 2


def test_fork_of_several_sources_from_a_time_starts_each_at_this_time(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path)
    source = SeveralSources({"orders": RATE, "files": forking.original.pipeline().source})
    log = forking.log()
    source.open(log, None).poll(None)
    assert source.offsets_for_time_in(log, FIRST_MS + 2_000) == {"orders/rate": 20, "files/files": 5}
    assert source.offsets_for_time_in(log, FIRST_MS + 1) == {"orders/rate": 1, "files/files": 1}


def test_fork_never_starts_at_a_version_that_was_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forking = ForkFixture(tmp_path)
    original = forking.original
    original.arrive(1)
    forking.run_original("more")
    rollback(original.pipeline(), 1, log=original.log())
    for version in (2, 3):
        with pytest.raises(InvalidError, match="was rolled back") as raised:
            forking.fork(version)
        assert raised.value.fields["newest_kept_before"] == 1
    monkeypatch.setattr(closing_times, "first_closed_after", lambda log, until_ms, begin, end: until_ms + 1)
    for until, chosen in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 4)):
        other = new_memory_store()
        done = fork(forking.pipeline(log=other.url), original.log(), until_ms=until, log=forking.log(other))
        assert (done.version, done.offsets) == (chosen, {"files": 2 if chosen == 0 else 4})
    assert list(forking.store.list("")) == []
    assert forking.fork(4).offsets == {"files": 4}
    forking.run()
    assert forking.ids() == rows(4, 6)


def test_fork_that_dies_at_any_request_leaves_no_log_or_a_complete_fork(tmp_path: Path) -> None:
    for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_REPLY, Fault.APPLIED_LATE):
        for at in count():
            forking = ForkFixture(tmp_path / fault.name / str(at))
            store = FaultyStore(forking.store, at, fault)
            with suppress(Crash):
                forking.fork(1, store=store)
            existing = forking.log().read_pipeline()
            assert existing is None or existing.fork is not None
            assert forking.fork(1).offsets == {"files": 4}
            forking.run()
            assert forking.ids() == rows(4, 5)
            if not store.reached:
                assert at >= 5
                break


def test_fork_is_refused_if_a_run_creates_the_log_while_it_copies(tmp_path: Path) -> None:
    for at in count():
        forking = ForkFixture(tmp_path / str(at))
        store = FaultyStore(forking.store, at, Fault.PAUSE_BEFORE, other_processes=forking.run)
        refused = False
        try:
            forking.fork(1, store=store)
        except ConflictError:
            refused = True
        if not store.reached:
            assert at >= 5
            break
        forking.run("again")
        assert forking.ids() == (rows(0, 5) if refused else rows(4, 5))


def test_fork_drops_duplicates_of_ids_that_the_original_wrote_before_it(tmp_path: Path) -> None:
    dedup = Dedup(keys=["id"], rows=10**6)
    forking = ForkFixture(tmp_path, dedup=dedup)
    forking.fork(1)
    for name in ("00010.json", "00011.json"):  # repeats of records before and after the fork
        (tmp_path / "in" / name).write_text('{"id": 0}\n{"id": 13}\n{"id": 99}\n')
    result = forking.run()
    assert forking.ids() == rows(4, 5) + Counter([99])
    assert result.counts["duplicates"] == 5
    vacuum(forking.pipeline(), log=forking.log(), all_versions=True)
    (tmp_path / "in" / "00012.json").write_text('{"id": 1}\n')
    forking.run("after vacuum")
    assert forking.ids() == rows(4, 5) + Counter([99])
    reprocess(forking.pipeline(), 0, log=forking.log(), engine=RowsEngine())
    assert forking.ids() == rows(4, 5) + Counter([99])


def test_fork_with_other_dedup_keys_must_start_without_state(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path, dedup=Dedup(keys=["id"], rows=10**6))
    other = Dedup(keys=["id", "n"], rows=10**6)
    with pytest.raises(ConflictError, match="dedup differs"):
        forking.fork(1, dedup=other)
    assert forking.fork(-1, dedup=other).version == -1
    with pytest.raises(ConflictError, match="was forked with another source"):
        forking.fork(-1, dedup=other, source=FilesSource(path="/elsewhere", format="json", schema="id long"))


def test_aborted_first_version_keeps_the_state_of_the_fork(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path, dedup=Dedup(keys=["id"], rows=10**6))
    forking.fork(1)
    (tmp_path / "in" / "00010.json").write_text('{"id": 0}\n')

    def crash(step: str) -> None:
        raise Crash

    with suppress(Crash):
        run_batch(forking.pipeline(), run_key="dies", log=forking.log(), engine=RowsEngine(crash))
    record = forking.log().read_pipeline()
    assert record is not None
    abort(forking.log(), record, 0, reason="a test")
    forking.run()
    assert forking.ids() == rows(4, 5)


def test_fork_of_a_fork_starts_where_its_version_ends(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path, dedup=Dedup(keys=["id"], rows=10**6))
    forking.fork(0)
    second = open_store(str(tmp_path / "second-log"))
    sinks = {"out": FilesSink(path=str(tmp_path / "second"), format="json")}
    pipeline = forking.pipeline(log=second.url, name="second", sinks=sinks)
    with pytest.raises(InvalidError, match="no version"):
        fork(pipeline, forking.log(), log=forking.log(second))
    forking.run()
    assert fork(pipeline, forking.log(), version=-1, log=forking.log(second)).offsets == {"files": 2}
    run_batch(pipeline, run_key="run", drain=True, log=forking.log(second), engine=RowsEngine())
    assert open_log(forking.log(second)).head == 1


QUEUE = QueueSource(queue=SqsQueue(url="http://127.0.0.1/1/q"), landing="/landing", schema="id long")
KAFKA = KafkaSource(topics=["a"], bootstrap_servers="127.0.0.1:1")


def test_partition_columns_of_a_fork_keep_the_types_that_the_original_recorded(tmp_path: Path) -> None:
    """With other types, the ids of the same records and the keys of the state would differ from those of the original."""
    put(tmp_path, "p=abc", 1)
    forked = ForkFixture(tmp_path, dedup=Dedup(keys=["id"], rows=100), source=partitioned(tmp_path))
    put(tmp_path, "p=01", 2)
    forked.run_original("strings")
    forked.fork()
    put(tmp_path, "p=01", 2)
    put(tmp_path, "p=02", 3)
    for result in (
        forked.run(),
        forked.original.run("later", drain=True, pipeline=forked.original.pipeline(**forked.changes)),
    ):
        assert result.counts["duplicates"] == 1
    plan = forked.log().plan(0)
    assert plan is not None
    assert plan.hint["partition_columns"] == {"p": "string"}


def partitioned(root: Path) -> FilesSource:
    return FilesSource(path=str(root / "days"), format="json", schema="id long")


def put(root: Path, directory: str, id: int) -> None:
    location = root / "days" / directory
    location.mkdir(parents=True, exist_ok=True)
    (location / f"{len([*location.iterdir()])}.json").write_text(f'{{"id": {id}}}\n')


def test_writer_that_does_not_know_forks_refuses_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forking = ForkFixture(tmp_path)
    forking.fork(1)
    monkeypatch.setattr(log_module, "WRITER_FEATURES", frozenset({"publish"}))
    with pytest.raises(NewerFormatError, match="features"):
        forking.run()


def test_repeated_fork_is_found_after_the_original_has_grown_or_was_deleted(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path, dedup=Dedup(keys=["id"], rows=10**6))
    forking.fork()
    forking.original.arrive(2)
    forking.run_original("later")
    assert (forking.fork().version, forking.fork(2).is_new) == (2, False)
    deleted_log = CommitLog(MemoryStore("memory://deleted"))
    assert fork(forking.pipeline(), deleted_log, log=forking.log()).version == 2


def test_verify_reports_a_missing_file_of_the_inherited_state(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path, dedup=Dedup(keys=["id"], rows=10**6))
    forking.fork(1)
    for stat in list(forking.store.list("state/")):
        forking.store.delete(stat.key)
    violations = verify(open_log(forking.log(), pipeline=forking.pipeline())).violations
    assert [finding.what for finding in violations] == [
        "a file of the deduplication state, or of the tombstones of a sink, is missing or was changed"
    ]


def test_offsets_before_the_fork_satisfy_the_batch_committed_condition(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path)
    forking.fork(1)
    assert BatchCommitted(log=forking.store.url, offsets={"files": 4}).check().met
    assert not BatchCommitted(log=forking.store.url, offsets={"files": 5}).check().met


def test_fork_logs_that_the_ids_of_the_original_have_expired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    forking = ForkFixture(tmp_path, dedup=Dedup(keys=["id"], ttl_s=60))
    later = dataclasses.replace(forking.log(), clock=ManualClock(1_700_000_000_000 + 10**9))
    fork(forking.pipeline(), forking.original.log(), log=later)
    assert "has expired by dedup.ttl_s" in caplog.text


INVALID_FORKS: list[tuple[dict[str, Any], dict[str, Any], type[StreamsemError], str]] = [
    ({"version": 3}, {}, InvalidError, "only a closed version"),
    ({}, {"sinks": {"out": None}}, ConflictError, "belongs to another log"),
    ({"version": -2}, {}, InvalidError, "only a closed version"),
    ({}, {"source": FilesSource(path="/elsewhere", format="json", schema="id long")}, ConflictError, "source differs"),
    ({}, {"source": KAFKA, "limits": Limits()}, ConflictError, "source differs"),
    ({}, {"source": QUEUE, "limits": Limits()}, InvalidError, "removes records"),
]


@pytest.mark.parametrize(("given", "changes", "error", "message"), INVALID_FORKS, ids=range(len(INVALID_FORKS)))
def test_invalid_fork_is_refused_and_writes_nothing(
    tmp_path: Path, given: dict[str, Any], changes: dict[str, Any], error: type[StreamsemError], message: str
) -> None:
    forking = ForkFixture(tmp_path)
    if "sinks" in changes:
        changes = {"sinks": forking.original.pipeline().sinks}
    with pytest.raises(error, match=message):
        forking.fork(**given, **changes)
    assert list(forking.store.list("")) == []


def test_existing_log_cannot_be_forked_over_and_a_fork_keeps_its_source(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path)
    forking.fork(1)
    with pytest.raises(ConflictError, match="was forked from another log, version or time"):
        forking.fork(0)
    with pytest.raises(ConflictError, match="forked with another source"):
        forking.run(source=FilesSource(path=str(tmp_path / "elsewhere"), format="json", schema="id long"))
    forking.run()
    assert forking.ids() == rows(4, 5)
    with pytest.raises(InvalidError, match="must not be equal or contain each other"):
        fork(forking.pipeline(), forking.log(), log=forking.log())
    other = new_memory_store()
    with pytest.raises(InvalidError, match="there is no log"):
        fork(forking.pipeline(log=other.url), CommitLog(MemoryStore("memory://nothing")), log=forking.log(other))
