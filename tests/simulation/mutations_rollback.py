"""Mutations of rollbacks, and of what other processes know of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.pipeline.maintenance import rollback, vacuum
from airflow_provider_streamsem.pipeline.versions import commit as versions
from airflow_provider_streamsem.pipeline.versions import publish
from airflow_provider_streamsem.protocol import view
from airflow_provider_streamsem.protocol.entries import Committable, Outcome
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.rollback import Rollback
from tests.simulation.mutations import Mutation


def rollback_keeps_the_offsets(patch: pytest.MonkeyPatch) -> None:
    real = rollback._plan

    def plan(opened: Any, ready: Any, to: int, run_key: str) -> Any:
        found = real(opened, ready, to, run_key)
        return found and replace(found, work=replace(found.work, next=ready.head.next))

    patch.setattr(rollback, "_plan", plan)


def rollback_keeps_the_rows(patch: pytest.MonkeyPatch) -> None:
    real = rollback._plan

    def plan(opened: Any, ready: Any, to: int, run_key: str) -> Any:
        found: Any = real(opened, ready, to, run_key)
        return found and replace(found, work=Rollback(to=found.version - 1, next=found.work.next, counts={}))

    patch.setattr(rollback, "_plan", plan)


def rollback_keeps_the_state(patch: pytest.MonkeyPatch) -> None:
    real = versions.commit_outcome

    def commit_outcome(log: Any, head: Any, staged: Any = None) -> Outcome:
        outcome = real(log, head, staged)
        return replace(outcome, state=head.outcome.state) if isinstance(outcome.work, Rollback) else outcome

    patch.setattr(versions, "commit_outcome", commit_outcome)


def rollback_removes_corrections(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitLog, "reprocessing_runs_after", lambda self, version, closed: [])


def without_rollback(outcome: Outcome) -> Outcome:
    """Return the outcome; instead of a rollback, a commit that hides no rows."""
    return replace(outcome, work=Alter()) if isinstance(outcome.work, Rollback) else outcome


def readers_ignore_rollbacks(patch: pytest.MonkeyPatch) -> None:
    real = view.fold

    def fold(parts: Any, **named: Any) -> Any:
        return real([without_rollback(part) if isinstance(part, Outcome) else part for part in parts], **named)

    patch.setattr("airflow_provider_streamsem.commitlog.log.fold", fold)


def vacuum_counts_rolled_back_versions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(vacuum, "oldest_kept", lambda log, closed, keep_versions: max(0, closed - keep_versions))


def rollback_leaves_the_rows_in_tables(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publish, "rows_after", lambda log, to, newest, names: {name: {} for name in names})


def rollback_removes_the_rows_of_one_version(patch: pytest.MonkeyPatch) -> None:
    real = publish.rows_after

    def rows_after(*args: Any) -> dict[str, dict[int, Committable]]:
        return {name: {root: rows[root] for root in [*sorted(rows)][-1:]} for name, rows in real(*args).items()}

    patch.setattr(publish, "rows_after", rows_after)


def rollback_does_not_name_the_tables(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rollback, "_published_after", lambda *_: ())


def rollback_names_one_table(patch: pytest.MonkeyPatch) -> None:
    real = rollback._published_after
    patch.setattr(rollback, "_published_after", lambda *args: real(*args)[:1])


ROLLBACK_MUTATIONS = (
    Mutation(rollback_keeps_the_offsets, "I21|missing or duplicated|other offsets", "rollback"),
    Mutation(rollback_keeps_the_rows, "I21|missing or duplicated|shows other rows|I5", "rollback"),
    Mutation(rollback_keeps_the_state, "I21|wrong counts|number of ids", "stateful-rollback"),
    Mutation(rollback_removes_corrections, "shows other rows|missing or duplicated|I20|not visible", "rollback"),
    Mutation(readers_ignore_rollbacks, "id twice|raw log differ|shows other rows", "rollback"),
    *(
        Mutation(mutation, "a table has other rows|I21", "tables-rollback")
        for mutation in (
            rollback_leaves_the_rows_in_tables,
            rollback_removes_the_rows_of_one_version,
            rollback_does_not_name_the_tables,
            rollback_names_one_table,
        )
    ),
    Mutation(vacuum_counts_rolled_back_versions, "state is missing|I6|wrong counts|deleted", "stateful-rollback"),
)
