"""The conformance suite of sinks outside the log."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.sink import PublishingSink, Sink, SinkCommit
from airflow_provider_streamsem.errors import MarkerConflictError, MarkerLostError, StreamsemError
from airflow_provider_streamsem.protocol.entries import Marker, Receipt
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.conformance.staging import (
    ATTEMPT,
    LOG,
    NAME,
    UUID,
    DatasetSystem,
    StagingContract,
)
from airflow_provider_streamsem.testing.steps import Steps
from airflow_provider_streamsem.testing.stores import Crash


class SinkSystem(DatasetSystem):
    """
    An external system without rows, and a sink that publishes to it.

    :attr spark: opens the Spark session of a commit; ``None`` for a sink that publishes without Spark
    """

    spark: Callable[[Sink], AbstractContextManager[Any]] | None = None

    @abstractmethod
    def sink(self) -> PublishingSink:
        """Return the sink, as another process would create it."""

    @abstractmethod
    def ids(self) -> list[int]:
        """Return the ids of the rows in the system. A row that is there twice has its id twice."""

    @abstractmethod
    def watching(self, step: Callable[[str], object]) -> AbstractContextManager[None]:
        """
        Call ``step`` within the block before and after each request of a sink to the system, with names such as ``before commit``.

        If ``step`` raises a :class:`Crash` or :meth:`lost_reply`, the sink must get the exception in place of the reply. At the end of the block, close what
        the process of the sink had open.
        """

    @abstractmethod
    def lose_markers(self) -> None:
        """Delete the storage of the markers. Not called for a sink without markers."""

    def lost_reply(self) -> Exception:
        """Return the error that the client of the system raises if it gets no reply."""
        return ConnectionError("the reply was lost")

    def blocks_others(self, step: str) -> bool:
        """Return whether a sink that is paused at a step holds a lock for which other publishers wait."""
        return False


class Commits:
    """
    The commits of one pipeline, whose rows are staged without an engine.

    :param uuid: uuid of the pipeline
    """

    def __init__(self, system: SinkSystem, uuid: str = UUID) -> None:
        self.system, self.uuid = system, uuid
        self._log = CommitLog(MemoryStore())
        self._version = -1
        self._marker: Marker | None = None

    def next(
        self, ids: Sequence[int], *, replaces: SinkCommit | None = None, removes: Sequence[SinkCommit] = ()
    ) -> SinkCommit:
        """
        Stage one row for each id, and return the next commit.

        :param replaces: the commit whose rows it replaces, as a reprocessing run does
        :param removes: the commits whose rows it removes, as a rollback does
        """
        self._version = version = self._version + 1
        sink = self.system.sink()
        sink.claim(self.uuid, LOG, new=version == 0)
        sink.resolve_schema(self.system.schema)
        if ids:
            self.system.stage(version, ids)
        commit = SinkCommit(
            pipeline_uuid=self.uuid,
            sink=NAME,
            version=version,
            outcome=hashlib.sha256(str(version).encode()).hexdigest(),
            committable=sink.collect(version, ATTEMPT),
            schema=self.system.schema,
            root=version if replaces is None else replaces.root,
            replaced={each.root: each.committable for each in (*removes, *(() if replaces is None else (replaces,)))},
            expected_marker=self._marker,
            log=self._log,
            spark=self.system.spark,
            may_close_claims=True,
        )
        if sink.sets_marker and not commit.is_nothing:
            self._marker = Marker(version=version, outcome=commit.outcome)
        return commit

    def published(self, ids: Sequence[int]) -> SinkCommit:
        """Stage and publish the next commit."""
        commit = self.next(ids)
        assert self.system.sink().publish(commit) == Receipt(result="applied", rows=len(ids), detail=_ANY)
        return commit


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


_ANY = _Any()


class _Once:
    """Performs an action at one step. Steps within the action are not counted."""

    def __init__(self, at: int, action: Callable[[str], object]) -> None:
        self._at, self._action, self._busy = at, action, False
        self.taken: list[str] = []

    def __call__(self, name: str) -> None:
        if self._busy:
            return
        self.taken.append(name)
        if len(self.taken) - 1 == self._at:
            self._busy = True
            try:
                self._action(name)
            finally:
                self._busy = False


class SinkContract(StagingContract):
    """
    Tests of the contract of every sink outside the log (:class:`airflow_provider_streamsem.connectors.sink.PublishingSink`).

    A system with transactions also passes :class:`TransactionalSinkContract`.

    :cvar rounds: number of rounds of the tests that run publishers concurrently
    """

    rounds: ClassVar[int] = 10

    def test_published_rows_are_in_the_system_and_publishing_again_adds_none(
        self, fresh: Callable[[], SinkSystem]
    ) -> None:
        commits = Commits(fresh())
        commit = commits.published([1, 2])
        assert commits.system.sink().publish(commit) == Receipt(result="applied", rows=2, detail=_ANY)
        assert sorted(commits.system.ids()) == [1, 2]

    def test_commit_without_rows_changes_nothing(self, fresh: Callable[[], SinkSystem]) -> None:
        commits = Commits(fresh())
        commits.published([1])
        marker = commits.system.sink().marker(commits.uuid, NAME)
        nothing = commits.next([])
        assert commits.system.sink().publish(nothing) == Receipt(result="applied", rows=0, detail=_ANY)
        assert commits.system.sink().marker(commits.uuid, NAME) == marker
        assert commits.system.ids() == [1]

    @pytest.mark.parametrize("fault", ["crash", "lost reply"])
    def test_fault_at_any_request_and_a_retry_keep_the_delivery_of_the_sink(
        self, fresh: Callable[[], SinkSystem], fault: str
    ) -> None:
        for at, system in self._systems(fresh):
            commits = Commits(system)
            commits.published([1, 2])
            commit = commits.next([3, 4])
            steps = Steps(at) if fault == "crash" else _Once(at, _raise(system.lost_reply()))
            with suppress(Crash, StreamsemError), system.watching(steps):
                system.sink().publish(commit)
            receipt = system.sink().publish(commit)
            self._check_delivered(system, receipt, [1, 2], [3, 4], str(steps.taken))
            if len(steps.taken) <= at:
                assert at, "the system reports no step"
                return

    def test_skipped_commit_is_never_applied(self, fresh: Callable[[], SinkSystem]) -> None:
        commits = Commits(fresh())
        skipped = commits.next([1, 2])
        receipt = commits.system.sink().skip(skipped)
        assert receipt is not None
        assert (receipt.result, receipt.rows) in [("skipped", 0), ("unknown", 0)]
        again = commits.system.sink().publish(skipped)
        assert again is None or (again.result, again.rows) == (receipt.result, 0)
        assert commits.system.ids() == []

    def test_rows_of_a_replaced_commit_are_removed(self, fresh: Callable[[], SinkSystem]) -> None:
        commits = Commits(fresh())
        first = commits.published([1, 2])
        commits.published([3])
        sink = commits.system.sink()
        if not sink.can_remove_rows:
            return
        sink.check_removable(first.committable.files)
        again = commits.next([2, 4], replaces=first)
        for _ in range(2):
            assert sink.publish(again) == Receipt(result="applied", rows=2, detail=_ANY)
        assert sorted(commits.system.ids()) == [2, 3, 4]
        removed = commits.next([], replaces=again)
        assert sink.publish(removed) == Receipt(result="applied", rows=0, detail=_ANY)
        assert commits.system.ids() == [3]

    def test_rows_of_several_commits_are_removed_together(self, fresh: Callable[[], SinkSystem]) -> None:
        commits = Commits(fresh())
        commits.published([1])
        later = [commits.published([2, 3]), commits.published([4])]
        sink = commits.system.sink()
        if not sink.can_remove_rows:
            return
        rollback = commits.next([], removes=later)
        for _ in range(2):
            assert sink.publish(rollback) == Receipt(result="applied", rows=0, detail=_ANY)
        assert commits.system.ids() == [1]

    @staticmethod
    def _systems(fresh: Callable[[], SinkSystem]) -> Iterator[tuple[int, SinkSystem]]:
        """Yield 0, 1, … each with a new system."""
        at = 0
        while True:
            yield at, fresh()
            at += 1

    @staticmethod
    def _check_delivered(
        system: SinkSystem, receipt: Receipt | None, before: Sequence[int], ids: Sequence[int], where: str
    ) -> None:
        """Check that the system has the rows of a commit as often as the sink promises, and earlier rows once."""
        found, delivery = sorted(system.ids()), system.sink().delivery
        assert receipt is not None, where
        if delivery == "exactly_once":
            assert (receipt.result, receipt.rows) == ("applied", len(ids)), where
            assert found == sorted([*before, *ids]), where
        elif delivery == "at_most_once":
            assert [*before] == [id for id in found if id in before], where
            assert len(found) == len({*found}) <= len(before) + len(ids), where
        elif delivery == "effectively_once":
            assert found == sorted([*before, *ids]), where
        else:
            assert {*found} == {*before, *ids}, where


class TransactionalSinkContract(SinkContract):
    """Tests of the contract of every transactional sink, which sets its marker in one transaction with the rows."""

    def test_late_publisher_of_an_older_commit_changes_nothing(self, fresh: Callable[[], SinkSystem]) -> None:
        commits = Commits(fresh())
        first = commits.published([1])
        second = commits.published([2])
        for late in (commits.system.sink().publish, commits.system.sink().skip):
            assert late(first) is None
        assert sorted(commits.system.ids()) == [1, 2]
        self._check_marker(commits, second)

    def test_two_concurrent_publishers_apply_each_commit_once_in_every_round(
        self, fresh: Callable[[], SinkSystem]
    ) -> None:
        commits = Commits(fresh())
        with ThreadPoolExecutor(2) as pool:
            for id in range(self.rounds):
                commit = commits.next([id])
                receipts = pool.map(lambda commit: commits.system.sink().publish(commit), [commit, commit])
                assert [*receipts] == [Receipt(result="applied", rows=1, detail=_ANY)] * 2
        assert sorted(commits.system.ids()) == [*range(self.rounds)]

    def test_publisher_paused_at_any_request_changes_nothing_after_newer_commits(
        self, fresh: Callable[[], SinkSystem]
    ) -> None:
        for at, system in self._systems(fresh):
            commits = Commits(system)
            commits.published([1])
            paused, newer = commits.next([2]), commits.next([3])

            def others(step: str, system: SinkSystem = system, late: Sequence[SinkCommit] = (paused, newer)) -> None:
                if not system.blocks_others(step):
                    assert [system.sink().publish(commit) for commit in late] == [
                        Receipt(result="applied", rows=1, detail=_ANY)
                    ] * 2

            steps = _Once(at, others)
            with system.watching(steps):
                receipt = system.sink().publish(paused)
            assert receipt is None or (receipt.result, receipt.rows) == ("applied", 1), steps.taken
            system.sink().publish(newer)
            assert sorted(system.ids()) == [1, 2, 3], steps.taken
            self._check_marker(commits, newer)
            if len(steps.taken) <= at:
                return

    def test_fault_at_any_request_of_a_skip_and_a_retry_set_the_marker(self, fresh: Callable[[], SinkSystem]) -> None:
        for at, system in self._systems(fresh):
            commits = Commits(system)
            commits.published([1])
            skipped = commits.next([2])
            steps = Steps(at)
            with suppress(Crash, StreamsemError), system.watching(steps):
                system.sink().skip(skipped)
            assert system.sink().skip(skipped) == Receipt(result="skipped", rows=0, detail=_ANY), steps.taken
            assert system.sink().publish(skipped) == Receipt(result="skipped", rows=0, detail=_ANY), steps.taken
            assert system.ids() == [1], steps.taken
            if len(steps.taken) <= at:
                return

    def test_lost_markers_are_refused_until_a_skip_creates_them(self, fresh: Callable[[], SinkSystem]) -> None:
        commits = Commits(fresh())
        commits.published([1])
        second, third = commits.next([2]), commits.next([3])
        sink = commits.system.sink()
        commits.system.lose_markers()
        kept = commits.system.ids()
        with pytest.raises(MarkerLostError):
            sink.publish(second)
        assert commits.system.ids() == kept
        assert sink.skip(second) == Receipt(result="skipped", rows=0, detail=_ANY)
        assert sink.publish(third) == Receipt(result="applied", rows=1, detail=_ANY)
        assert sorted(commits.system.ids()) == sorted([*kept, 3])

    def test_commits_of_a_log_that_was_restored_from_an_older_copy_are_refused(
        self, fresh: Callable[[], SinkSystem]
    ) -> None:
        """Such a log plans versions again that the sink already has. The version number alone would count them as applied."""
        commits = Commits(fresh())
        commits.published([1])
        published, following = commits.published([2]), commits.next([3])
        replanned = replace(published, outcome="f" * 64)
        of_other_log = replace(following, expected_marker=Marker(version=published.version, outcome="f" * 64))
        behind = replace(following, expected_marker=published.expected_marker)
        sink = commits.system.sink()
        for refused in (replanned, of_other_log, behind):
            with pytest.raises(MarkerConflictError, match=f"version={refused.version}.*marker={published.version}"):
                sink.publish(refused)
        assert sorted(commits.system.ids()) == [1, 2]
        assert sink.publish(published) == Receipt(result="applied", rows=1, detail=_ANY)
        assert sink.skip(replanned) == Receipt(result="skipped", rows=0, detail=_ANY)
        with pytest.raises(MarkerConflictError):
            sink.publish(published)
        assert sink.publish(of_other_log) == Receipt(result="applied", rows=1, detail=_ANY)
        assert sorted(commits.system.ids()) == [1, 2, 3]

    def test_pipelines_have_markers_of_their_own(self, fresh: Callable[[], SinkSystem]) -> None:
        system = fresh()
        first = Commits(system)
        commit = first.published([1])
        assert system.sink().marker("1" * 32, NAME) is None
        assert system.sink().marker(first.uuid, "another") is None
        self._check_marker(first, commit)

    @staticmethod
    def _check_marker(commits: Commits, newest: SinkCommit) -> None:
        marker = commits.system.sink().marker(commits.uuid, NAME)
        assert marker is not None
        assert marker.is_of(newest.version, newest.outcome)
        assert marker.state == "applied"


def _raise(error: Exception) -> Callable[[str], object]:
    def act(step: str) -> None:
        raise error

    return act
