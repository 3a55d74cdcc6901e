"""What a run answers: small, JSON, and equal to what is stored (I12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_streamsem.batch.opening import Opened
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Ranges, position
from airflow_provider_streamsem.protocol.procedures import Answered
from airflow_provider_streamsem.protocol.view import Head, add_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """
    The answer of a run.

    :param status: ``committed``, or ``empty`` where the source had nothing new (or other runs committed all of it)
    :param version: the run's last version; of an empty run the newest closed one, -1 before the first
    :param ranges: partition → ``[start, end)``: of a drain from its first batch to its last, batches of other runs in between included. Empty for an empty run
    :param counts: rows over all batches of the run: ``read``, ``parsed``, ``quarantined``, ``filtered``, ``written.<sink>``
    :param batches: how many versions the run committed or tried
    :param outcome: key of the last outcome under the log's root, ``""`` for an empty run
    """

    status: str
    pipeline: str
    log: str
    run_key: str
    version: int
    ranges: Ranges
    counts: Mapping[str, int]
    batches: int
    outcome: str

    def to_json(self) -> Json:
        """Small JSON, as XCom and asset events carry it."""
        return plain(self)


def answer(opened: Opened, answered: Answered, run_key: str) -> RunResult:
    """The result of a run whose last version is closed."""
    plan, outcome = answered.plan, answered.outcome
    counts = add_counts(plan.run_counts, outcome.counts) if outcome.committed else dict(plan.run_counts)
    return RunResult(
        status="committed" if counts else "empty",
        pipeline=opened.pipeline.name,
        log=opened.pipeline.log,
        run_key=run_key,
        version=outcome.version,
        ranges=plan.ranges
        if plan.target is None
        else {
            p: (position(plan.run_start, p), end)
            for p, end in sorted(outcome.next.items())
            if end > position(plan.run_start, p)
        },
        counts=counts,
        batches=plan.j + 1,
        outcome=keys.outcome(outcome.version),
    )


def empty(opened: Opened, head: Head, run_key: str) -> RunResult:
    """The result of a run that found nothing new and wrote nothing."""
    return RunResult(
        status="empty",
        pipeline=opened.pipeline.name,
        log=opened.pipeline.log,
        run_key=run_key,
        version=head.closed,
        ranges={},
        counts={},
        batches=0,
        outcome="",
    )
