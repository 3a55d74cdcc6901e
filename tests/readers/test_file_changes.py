"""The files that a reader of only one of two versions reads, compared with the files that readers of both versions read."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.entries import Outcome, PipelineRecord
from airflow_provider_streamsem.protocol.kinds.batch import Batch
from airflow_provider_streamsem.protocol.view import fold
from airflow_provider_streamsem.readers import history
from airflow_provider_streamsem.readers.file_changes import file_changes
from airflow_provider_streamsem.readers.files import CommittedLog, Version
from tests.protocol import samples
from tests.protocol.histories import History, stored, with_alters


class StoredHistory(history.History):
    """The history of stored outcomes."""

    def __init__(self, outcomes: list[Outcome], segments: int) -> None:
        self.store = stored(outcomes)
        log = CommitLog(self.store)
        for index in range(segments):
            log.write_segments(100 * index + 99, [])
        super().__init__(CommittedLog(log, PipelineRecord(pipeline_uuid="u", name="p", spec="", nonce="")))
        self.outcomes = outcomes

    def version(self, number: int) -> Version | None:
        outcome = self.outcomes[number]
        return Version(version=number, plan=samples.plan(number), outcome=outcome)


def changed(outcomes: list[Outcome], older: int, newer: int) -> tuple[set[tuple[int, str]], set[tuple[int, str]]]:
    """Return the version and the sink of each file that readers of only one of the versions read, from all outcomes up to each of them."""
    was, now = (
        {(file.version, file.sink) for file in fold(outcomes[: number + 1], initial_offsets={}).files}
        for number in (older, newer)
    )
    return now - was, was - now


def check(found: StoredHistory, older: int, newer: int) -> None:
    outcomes = found.outcomes
    added, removed = file_changes(found, outcomes[older], outcomes[older + 1 : newer + 1])
    names = tuple({(file.version, file.sink) for file in files} for files in (added, removed))
    assert names == changed(outcomes, older, newer), (older, newer)


@pytest.mark.parametrize("segments", [0, 1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_changes_are_the_difference_of_what_readers_of_both_versions_read(seed: int, segments: int) -> None:
    random, found = Random(seed), StoredHistory(History(seed, 330).outcomes, segments)
    for _ in range(25):
        older, newer = sorted(random.sample(range(330), 2))
        check(found, older, newer)
        check(found, older, older + 1)


def test_alter_that_removes_a_sink_hides_its_files_of_all_versions() -> None:
    found = StoredHistory(with_alters({20: (), 150: ("old",)}), 2)
    for older, newer in ((0, 249), (19, 20), (149, 150), (140, 149), (150, 240)):
        check(found, older, newer)


def test_versions_without_changed_files_are_not_read() -> None:
    found = StoredHistory(History(3, 330).outcomes, 0)
    is_batch = [isinstance(o.work, Batch) for o in found.outcomes]
    number = next(n for n in range(200, 330) if is_batch[n])
    found.store.keys.clear()
    added, removed = file_changes(found, found.outcomes[number - 1], [found.outcomes[number]])
    assert ([file.version for file in added], removed, found.store.keys) == ([number], [], [])


def test_staged_rows_of_a_sink_outside_the_log_are_no_files() -> None:
    outcomes = [replace(outcome, publish=("old",)) for outcome in with_alters({})]
    added, removed = file_changes(StoredHistory(outcomes, 0), outcomes[3], outcomes[4:6])
    assert ([(file.version, file.sink) for file in added], removed) == ([(4, "out"), (5, "out")], [])


def test_missing_version_is_damage() -> None:
    found = StoredHistory(with_alters({}), 0)
    with pytest.raises(LogDamagedError, match="missing"):
        file_changes(found, found.outcomes[3], found.outcomes[5:7])
